"""Find the silent bug: the loss depends on how the batch was cut."""

from labs.grading.draw import Draw, mask_table, table
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import same

PART = "part / mask.sum()"
BUG = "part / mask[rows].sum() * size / len(losses)"


def inputs(draw: Draw) -> Inputs:
    sizes = [draw.integer(1, 3) for _ in range(draw.integer(1, 3))]
    width = draw.integer(1, 4)
    rows = sum(sizes)
    return {
        "losses": table(draw, rows, width, -2, 2),
        "mask": mask_table(draw, rows, width, holes=draw.choice((False, True))),
        "sizes": sizes,
    }


def whole(call: Call, x: Inputs, draw: Draw) -> None:
    """One micro-batch or many: the same loss."""
    same(call(x), call({**x, "sizes": [sum(x["sizes"])]}))


def order(call: Call, x: Inputs, draw: Draw) -> None:
    """Rows may be dealt in any order."""
    places = draw.permutation(len(x["losses"]))
    same(call({**x, "losses": [x["losses"][i] for i in places], "mask": [x["mask"][i] for i in places]}), call(x))


EXERCISE = Exercise(
    name="hunt_micro_batches",
    number=16,
    title=Text("Find the silent bug: micro-batches", "找出无声的错误：微批次"),
    function="accumulated_loss",
    minutes=15,
    library="torch",
    kinds={"losses": "float", "mask": "int", "sizes": "plain"},
    gradient=("losses",),
    inputs=inputs,
    needs=("aggregation",),
    stub=((PART, BUG),),
    hand=(
        Case(
            inputs={
                "losses": [[0.25] * 6, [0.25] * 6, [0.25] * 6, [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]],
                "mask": [[1] * 6, [1] * 6, [1] * 6, [1, 1, 0, 0, 0, 0]],
                "sizes": [3, 1],
            },
            expected=(18 * 0.25 + 2) / 20,
            note=Text("three long rows, then a short one", "三个长行，然后一个短行"),
        ),
        Case(
            inputs={"losses": [[0.25] * 4, [0.25] * 4, [1.0] * 4], "mask": [[1] * 4] * 3, "sizes": [2, 1]},
            expected=0.5,
            note=Text("rows of one length: the code you get is right here", "各行等长：你拿到的代码在这里是对的"),
        ),
    ),
    properties=(
        prop("one or many", whole, "however the batch is cut, the loss is the same", "无论批次怎么切，损失都一样"),
        prop("order", order, "rows may be dealt to micro-batches in any order", "行以任何顺序分给微批次，损失都一样"),
    ),
    mistakes=(
        mistake(
            "weighted_by_rows",
            (PART, BUG),
            en="weighs each micro-batch's token mean by its rows; tokens of a short row then count more",
            zh="按行数给各微批次的 token 均值加权；短行的 token 因此更重",
        ),
        mistake(
            "weighted_equally",
            (PART, "part / mask[rows].sum() / len(sizes)"),
            en="averages the micro-batches' token means with equal weights",
            zh="把各微批次的 token 均值等权平均",
        ),
        mistake(
            "sum_of_means",
            (PART, "part / mask[rows].sum()"),
            en="adds up the micro-batches' token means: more micro-batches, larger loss",
            zh="把各微批次的 token 均值直接相加：微批次越多，损失越大",
        ),
        mistake(
            "padding_counted",
            (PART, "part / mask.numel()"),
            en="divides by all positions, padding included",
            zh="除以了全部位置（包括填充）",
        ),
        mistake(
            "by_rows",
            (PART, "part / len(losses)"),
            en="divides by the number of rows; the mean over tokens is asked for",
            zh="除以了行数；题目要对 token 的均值",
        ),
        mistake(
            "mask_forgotten",
            ("torch.where(mask[rows].bool(), losses[rows], 0.0)", "losses[rows]"),
            en="forgets the mask in the numerator",
            zh="分子里忘了掩码",
        ),
        mistake(
            "start_stands_still",
            ("start += size", "start += 0"),
            en="reads the first rows again in every micro-batch",
            zh="每个微批次都在重复读取最前面的行",
        ),
        mistake(
            "last_dropped",
            ("for size in sizes:", "for size in sizes[:-1] or sizes:"),
            en="drops the last micro-batch",
            zh="丢掉了最后一个微批次",
        ),
        mistake(
            "first_denominator",
            (PART, "part / mask[: sizes[0]].sum()"),
            en="divides everything by the token count of the first micro-batch",
            zh="全部除以了第一个微批次的 token 数",
        ),
    ),
)
