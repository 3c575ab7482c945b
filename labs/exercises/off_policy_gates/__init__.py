"""Off-policy gates: which tokens and rows are still trained."""

import math

from labs.grading.draw import Draw, mask_table, numbers, table
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import require, same

STEP = math.log(1.2)


def inputs(draw: Draw) -> Inputs:
    rows, width = draw.integer(1, 4), draw.integer(1, 4)
    spread = draw.choice((0.3, 1.0))
    return {
        "log_ratio": [[spread * v for v in row] for row in table(draw, rows, width, -1, 1)],
        "advantages": numbers(draw, rows, -1, 1),
        "mask": mask_table(draw, rows, width),
        "low": draw.choice((0.5, 0.8)),
        "high": draw.choice((1.5, 1.25)),
    }


def only_shrink(call: Call, x: Inputs, draw: Draw) -> None:
    """A gate never adds a token."""
    for answer in call(x):
        cells = [(a, m) for r, s in zip(answer, x["mask"], strict=True) for a, m in zip(r, s, strict=True)]
        require(all(a in (0, 1) and a <= m for a, m in cells), answer)


def on_policy(call: Call, x: Inputs, draw: Draw) -> None:
    """Without mismatch nothing is rejected."""
    same(list(call({**x, "log_ratio": [[0.0] * len(r) for r in x["log_ratio"]]})), [x["mask"]] * 4)


def tool_text(call: Call, x: Inputs, draw: Draw) -> None:
    """The ratio of tool text does not matter."""
    noise = draw.number(-3, 3)
    changed = [
        [v if m else noise for v, m in zip(a, b, strict=True)] for a, b in zip(x["log_ratio"], x["mask"], strict=True)
    ]
    same(list(call({**x, "log_ratio": changed})), list(call(x)))


def whole_rows(call: Call, x: Inputs, draw: Draw) -> None:
    """The last three keep or reject whole rows."""
    for answer in call(x)[1:]:
        for row, own in zip(answer, x["mask"], strict=True):
            require(row == own or not any(row), answer)


EXERCISE = Exercise(
    name="off_policy_gates",
    number=29,
    title=Text("Off-policy gates", "离策略门控"),
    function="off_policy_gates",
    minutes=30,
    library="torch",
    kinds={"log_ratio": "float", "advantages": "float", "mask": "int", "low": "plain", "high": "plain"},
    inputs=inputs,
    needs=("importance_weights",),
    hidden=16,
    numbers={"product": 1.012**100},
    hand=(
        Case(
            inputs={
                "log_ratio": [[STEP, STEP, STEP], [math.log(2.0), -math.log(2.0), 0.0]],
                "advantages": [1.0, -1.0],
                "mask": [[1, 1, 1], [1, 1, 0]],
                "low": 0.8,
                "high": 1.25,
            },
            expected=(
                [[1, 1, 1], [0, 0, 0]],
                [[0, 0, 0], [1, 1, 0]],
                [[1, 1, 1], [1, 1, 0]],
                [[1, 1, 1], [1, 1, 0]],
            ),
            note=Text("ratios 1.2, 1.2, 1.2 (product 1.728) and 2, 1/2", "比率 1.2、1.2、1.2（乘积 1.728）与 2、1/2"),
        ),
        Case(
            inputs={
                "log_ratio": [[math.log(2.0)], [math.log(2.0)]],
                "advantages": [1.0, -1.0],
                "mask": [[1], [1]],
                "low": 0.5,
                "high": 1.5,
            },
            expected=([[0], [0]], [[0], [0]], [[0], [0]], [[1], [0]]),
            note=Text("the last gate rejects only what would be pushed down", "最后一个门只拒绝会被压低的行"),
        ),
    ),
    properties=(
        prop("only shrink", only_shrink, "a gate never adds a token", "门控不会增加 token"),
        prop("on policy", on_policy, "without mismatch nothing is rejected", "没有失配就不拒绝任何东西"),
        prop("tool text", tool_text, "ratios under mask 0 do not matter", "掩码为 0 处的比率不影响结果"),
        prop(
            "whole rows", whole_rows, "the last three gates keep or reject whole rows", "后三个门控整行保留或整行拒绝"
        ),
    ),
    mistakes=(
        mistake(
            "upper_only",
            ("by_token = (token >= low) & (token <= high)", "by_token = token <= high"),
            en="token: checks only the upper bound; a ratio can be too small as well",
            zh="token：只检查了上界；比率也可能太小",
        ),
        mistake(
            "lower_only",
            ("by_token = (token >= low) & (token <= high)", "by_token = token >= low"),
            en="token: checks only the lower bound",
            zh="token：只检查了下界",
        ),
        mistake(
            "log_against_ratio",
            ("token = torch.exp(kept)", "token = kept"),
            en="compares log-ratios with bounds on the ratio: take the exponential",
            zh="拿对数比率去比比率的界限：要先取指数",
        ),
        mistake(
            "sequence_is_mean",
            ("product = torch.exp(kept.sum(1))", "product = torch.exp(kept.sum(1) / mask.sum(1))"),
            en="sequence: uses the geometric mean; the product is asked for",
            zh="sequence：用了几何平均；题目要乘积",
        ),
        mistake(
            "mean_is_product",
            ("mean = torch.exp(kept.sum(1) / mask.sum(1))", "mean = torch.exp(kept.sum(1))"),
            en="geometric: uses the product, which rejects long rows for being long",
            zh="geometric：用了乘积，长行仅因为长就被拒绝",
        ),
        mistake(
            "mean_over_width",
            ("mean = torch.exp(kept.sum(1) / mask.sum(1))", "mean = torch.exp(kept.mean(1))"),
            en="geometric: averages over the width of the table, so that padding dilutes the mismatch",
            zh="geometric：除以了表的宽度，填充冲淡了失配",
        ),
        mistake(
            "arithmetic_mean",
            ("mean = torch.exp(kept.sum(1) / mask.sum(1))", "mean = (token * mask).sum(1) / mask.sum(1)"),
            en="geometric: averages the ratios; average their logarithms",
            zh="geometric：对比率求了平均；应对它们的对数求平均",
        ),
        mistake(
            "padding_in_rows",
            ("kept = torch.where(mask.bool(), log_ratio, 0.0)", "kept = log_ratio"),
            en="lets tool text and padding into the rows' ratios",
            zh="行的比率里混进了工具文字和填充",
        ),
        mistake(
            "mask_forgotten",
            ("mask * gate.long() for", "gate.long() for"),
            en="returns the gates themselves; they only take tokens away from the mask",
            zh="返回的是门控本身；它们只应从掩码中去掉 token",
        ),
        mistake(
            "positive_rejected",
            ("(advantages >= 0)", "(advantages < 0)"),
            en="negative: rejects rows with a positive advantage instead of those with a negative one",
            zh="negative：拒绝了正优势的行，应拒绝负优势的行",
        ),
        mistake(
            "sign_ignored",
            ("by_sign = by_mean | (advantages >= 0)", "by_sign = by_mean"),
            en="negative: a row with a positive advantage is never rejected",
            zh="negative：正优势的行从不拒绝",
        ),
        mistake(
            "rejected_returned",
            ("mask * gate.long() for", "mask * (~gate).long() for"),
            en="returns what is rejected; what is kept is asked for",
            zh="返回的是被拒绝的；题目要保留的",
        ),
        mistake(
            "row_by_any_token",
            ("by_sequence = (product >= low) & (product <= high)", "by_sequence = (by_token | (mask == 0)).all(1)"),
            en="sequence: rejects a row for one bad token; the product of its ratios decides",
            zh="sequence：因一个坏 token 就拒绝整行；应由比率的乘积决定",
        ),
    ),
)
