"""The tool mask set to 1 by mistake: why the loss changes although nobody acted."""

from labs.grading.draw import Draw, numbers, table
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import same


def inputs(draw: Draw) -> Inputs:
    rows, width = draw.integer(1, 3), draw.integer(2, 5)
    attention, mask = [], []
    for _ in range(rows):
        length = draw.integer(1, width)
        own = [draw.choice((1, 1, 0)) for _ in range(length)]
        own[draw.integer(0, length - 1)] = 1
        attention.append([1] * length + [0] * (width - length))
        mask.append(own + [0] * (width - length))
    return {
        "log_prob": table(draw, rows, width, -3, 0),
        "advantages": numbers(draw, rows, -2, 2),
        "response_mask": mask,
        "attention_mask": attention,
    }


def adds_up(call: Call, x: Inputs, draw: Draw) -> None:
    """Right plus both parts is wrong."""
    right, wrong, denominator, numerator = call(x)
    same(right + denominator + numerator, wrong)


def no_tools(call: Call, x: Inputs, draw: Draw) -> None:
    """Without tool text nothing changes."""
    right, wrong, denominator, numerator = call({**x, "response_mask": x["attention_mask"]})
    same([wrong, denominator, numerator], [right, 0.0, 0.0])


def padding(call: Call, x: Inputs, draw: Draw) -> None:
    """A further column of padding changes nothing."""
    wider = {
        "log_prob": [[*row, -5.0] for row in x["log_prob"]],
        "response_mask": [[*row, 0] for row in x["response_mask"]],
        "attention_mask": [[*row, 0] for row in x["attention_mask"]],
    }
    same(call({**x, **wider}), call(x))


EXERCISE = Exercise(
    name="tool_mask",
    number=14,
    title=Text("The tool mask set to 1 by mistake", "误把工具掩码设为 1"),
    function="tool_mask_effect",
    minutes=25,
    library="torch",
    kinds={"log_prob": "float", "advantages": "float", "response_mask": "int", "attention_mask": "int"},
    gradient=("log_prob",),
    inputs=inputs,
    needs=("masked_mean",),
    hand=(
        Case(
            inputs={
                "log_prob": [[-1.0, -2.0, -3.0, -1.0]],
                "advantages": [1.0],
                "response_mask": [[1, 0, 0, 1]],
                "attention_mask": [[1, 1, 1, 1]],
            },
            expected=[2 / 2, 7 / 4, 2 / 4 - 2 / 2, 5 / 4],
        ),
        Case(
            inputs={
                "log_prob": [[-1.0, -2.0, -1.0], [-1.0, -9.0, -9.0]],
                "advantages": [1.0, -1.0],
                "response_mask": [[1, 0, 1], [1, 0, 0]],
                "attention_mask": [[1, 1, 1], [1, 0, 0]],
            },
            expected=[1 / 3, 3 / 4, 1 / 4 - 1 / 3, 2 / 4],
            note=Text("a winning row with a tool reply, a losing one without", "赢的一行有工具回复，输的一行没有"),
        ),
    ),
    properties=(
        prop("adds up", adds_up, "right + both parts = wrong", "正确损失 + 两部分 = 错误损失"),
        prop("no tool text", no_tools, "without tool text nothing changes", "没有工具文字时什么都不变"),
        prop("padding", padding, "one more column of padding changes nothing", "再补一列填充，结果不变"),
    ),
    mistakes=(
        mistake(
            "padding_counted",
            ("wrong = real / attention_mask.sum()", "wrong = push.mean()"),
            en="counts padding in the wrong loss too; only tool text was taken for the policy's own",
            zh="错误的损失里把填充也算了进去；被误当成策略输出的只有工具文字",
        ),
        mistake(
            "right_divides_by_all",
            ("right = own / response_mask.sum()", "right = own / attention_mask.sum()"),
            en="divides the right loss by all real tokens; divide by those that the policy chose",
            zh="正确的损失除以了全部真实 token；应当除以策略选出的 token 数",
        ),
        mistake(
            "denominator_forgotten",
            ("wrong = real / attention_mask.sum()", "wrong = real / response_mask.sum()"),
            en="the wrong mask also changes the denominator of the wrong loss",
            zh="错误的掩码同样会改变错误损失的分母",
        ),
        mistake(
            "other_order",
            (
                "denominator = own / attention_mask.sum() - right",
                "denominator = real / attention_mask.sum() - real / response_mask.sum()",
            ),
            ("numerator = (real - own) / attention_mask.sum()", "numerator = (real - own) / response_mask.sum()"),
            en="changes the numerator first and the denominator second; the statement does it the other way round",
            zh="先换分子、后换分母；题目的顺序相反",
        ),
        mistake(
            "numerator_is_everything",
            ("numerator = (real - own) / attention_mask.sum()", "numerator = wrong - right"),
            en="the last entry is the whole difference; the part that the denominator explains must be taken off",
            zh="最后一项写成了全部差值；应当减去由分母解释的部分",
        ),
        mistake(
            "sign",
            ("-advantages[:, None] * log_prob", "advantages[:, None] * log_prob"),
            en="has the sign of the objective; a loss is minus advantage times log-probability",
            zh="符号是目标函数的；损失等于负的优势乘对数概率",
        ),
        mistake(
            "no_advantage",
            ("-advantages[:, None] * log_prob", "-log_prob"),
            en="forgets the advantages",
            zh="忘了乘优势",
        ),
        mistake(
            "row_means",
            (
                "right = own / response_mask.sum()",
                "right = (torch.where(response_mask.bool(), push, 0.0).sum(1) / response_mask.sum(1)).mean()",
            ),
            en="averages row means in the right loss; it is one mean over all tokens",
            zh="正确的损失先求了每行均值；应当是对所有 token 的一个均值",
        ),
        mistake(
            "sums",
            ("right = own / response_mask.sum()", "right = own"),
            ("wrong = real / attention_mask.sum()", "wrong = real"),
            en="sums over the tokens instead of averaging",
            zh="对 token 求和而不是求均值",
        ),
        mistake(
            "detached",
            ("log_prob\n", "log_prob.detach()\n"),
            en="no gradient flows to the log-probabilities",
            zh="梯度传不到对数概率",
        ),
        mistake(
            "parts_swapped",
            ("[right, wrong, denominator, numerator]", "[right, wrong, numerator, denominator]"),
            en="the two parts are in the wrong order: the denominator's first",
            zh="两部分的顺序反了：分母的部分在前",
        ),
    ),
)
