"""Find the silent bug: whitening that praises the worse row."""

from labs.grading.draw import Draw, mask_table, table
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import same

MEAN = "mean = kept.sum() / count"


def inputs(draw: Draw) -> Inputs:
    rows, width = draw.integer(1, 3), draw.integer(2, 4)
    return {
        "advantages": table(draw, rows, width, -3, 3),
        "mask": mask_table(draw, rows, width, holes=draw.choice((False, True))),
    }


def padding(call: Call, x: Inputs, draw: Draw) -> None:
    """A wider batch is the same batch."""
    wider = {"advantages": [[*row, 2.0] for row in x["advantages"]], "mask": [[*row, 0] for row in x["mask"]]}
    same([row[:-1] for row in call(wider)], call(x))


def mean_zero(call: Call, x: Inputs, draw: Draw) -> None:
    """Over the tokens that count the mean is 0."""
    same(sum(map(sum, call(x))), 0.0)


def shift(call: Call, x: Inputs, draw: Draw) -> None:
    """A constant changes nothing."""
    constant = draw.number(-3, 3)
    same(call({**x, "advantages": [[a + constant for a in row] for row in x["advantages"]]}), call(x))


EXERCISE = Exercise(
    name="hunt_padding_mean",
    number=13,
    title=Text("Find the silent bug: whitening praises the worse row", "找出无声的错误：白化表扬了更差的行"),
    function="whiten",
    minutes=15,
    library="torch",
    kinds={"advantages": "float", "mask": "int"},
    inputs=inputs,
    needs=("masked_mean",),
    stub=((MEAN, "mean = kept.mean()"),),
    hand=(
        Case(
            inputs={"advantages": [[2.0, 2.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]], "mask": [[1, 1, 0, 0], [1, 1, 1, 0]]},
            expected=[
                [0.6 / (0.24 + 1e-8) ** 0.5] * 2 + [0.0, 0.0],
                [-0.4 / (0.24 + 1e-8) ** 0.5] * 3 + [0.0],
            ],
            note=Text("mean 7/5, variance 6/25", "均值 7/5，方差 6/25"),
        ),
        Case(
            inputs={"advantages": [[3.0, 1.0, -1.0, -3.0]], "mask": [[1, 1, 1, 1]]},
            expected=[[a / (5 + 1e-8) ** 0.5 for a in (3.0, 1.0, -1.0, -3.0)]],
            note=Text("no padding: the code you get is right here", "没有填充：你拿到的代码在这里是对的"),
        ),
    ),
    probes=(
        {"advantages": [[1.0, 1.0, 5.0]], "mask": [[1, 1, 0]]},
        {"advantages": [[1.0, 2.0]], "mask": [[0, 0]]},
    ),
    properties=(
        prop("padding", padding, "one more column of padding changes nothing", "再补一列填充，结果不变"),
        prop("mean 0", mean_zero, "over the tokens that count the mean is 0", "在计入的 token 上，均值为 0"),
        prop("shift", shift, "adding a constant changes nothing", "加一个常数，结果不变"),
    ),
    mistakes=(
        mistake(
            "mean_over_padding",
            (MEAN, "mean = kept.mean()"),
            en="takes the mean over all positions, padding included: all advantages move up or down together",
            zh="均值取的是所有位置（包括填充）：所有优势一起偏上或偏下",
        ),
        mistake(
            "variance_over_padding",
            ("variance = centred.square().sum() / count", "variance = centred.square().mean()"),
            en="takes the variance over all positions, padding included",
            zh="方差取的是所有位置（包括填充）",
        ),
        mistake(
            "both_over_padding",
            (MEAN, "mean = kept.mean()"),
            ("variance = centred.square().sum() / count", "variance = centred.square().mean()"),
            en="takes mean and variance over all positions, padding included",
            zh="均值和方差取的都是所有位置（包括填充）",
        ),
        mistake(
            "sample_variance",
            ("centred.square().sum() / count", "centred.square().sum() / (count - 1).clamp(min=1)"),
            en="divides the squares by n - 1; the statement asks for the population's variance",
            zh="平方和除以了 n - 1；题目要总体方差",
        ),
        mistake(
            "per_row",
            (MEAN, "count = mask.sum(1, keepdim=True).clamp(min=1)\n    mean = kept.sum(1, keepdim=True) / count"),
            ("centred.square().sum() / count", "centred.square().sum(1, keepdim=True) / count"),
            en="whitens every row by itself, which makes every row's mean 0; the batch is whitened as one",
            zh="每一行单独白化，于是每行均值都是 0；应当对整个批次白化",
        ),
        mistake(
            "per_column",
            (MEAN, "count = mask.sum(0, keepdim=True).clamp(min=1)\n    mean = kept.sum(0, keepdim=True) / count"),
            ("centred.square().sum() / count", "centred.square().sum(0, keepdim=True) / count"),
            en="whitens along the wrong axis: with one row everything becomes 0",
            zh="沿错误的轴白化：只有一行时全部变成 0",
        ),
        mistake(
            "mask_forgotten_at_the_end",
            ("return centred /", "return (advantages - mean) /"),
            en="leaves numbers on positions with mask 0; they must be 0",
            zh="掩码为 0 的位置留下了数；应为 0",
        ),
        mistake(
            "no_epsilon",
            ("torch.sqrt(variance + 1e-8)", "torch.sqrt(variance)"),
            en="divides 0 by 0 when all advantages are equal",
            zh="优势全相等时出现 0 除以 0",
        ),
        mistake(
            "epsilon_outside",
            ("torch.sqrt(variance + 1e-8)", "(torch.sqrt(variance) + 1e-4)"),
            en="adds the epsilon to the standard deviation, and a far larger one",
            zh="epsilon 加在了标准差上，而且大得多",
        ),
        mistake(
            "only_centred",
            ("centred / torch.sqrt(variance + 1e-8)", "centred"),
            en="centres and does not divide by the standard deviation",
            zh="只做了中心化，没有除以标准差",
        ),
        mistake(
            "not_centred",
            ("return centred /", "return kept /"),
            en="divides by the standard deviation without subtracting the mean",
            zh="除以了标准差，却没有减去均值",
        ),
    ),
)
