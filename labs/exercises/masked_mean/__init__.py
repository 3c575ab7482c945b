"""Masked mean: the mean over the tokens that count."""

from labs.grading.draw import Draw, mask_table, table
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import require, same

NAN = float("nan")


def inputs(draw: Draw) -> Inputs:
    rows, width = draw.integer(1, 3), draw.integer(1, 4)
    values = table(draw, rows, width, -4, 4)
    mask = mask_table(draw, rows, width, empty=True)
    return {"values": values, "mask": mask}


def hidden_cells(call: Call, x: Inputs, draw: Draw) -> None:
    """Whatever stands under mask 0 does not matter."""
    other = draw.number(-4, 4)
    changed = [
        [v if m else other for v, m in zip(*rows, strict=True)] for rows in zip(x["values"], x["mask"], strict=True)
    ]
    same(call({**x, "values": changed}), call(x))


def padding(call: Call, x: Inputs, draw: Draw) -> None:
    """A further column of padding changes nothing."""
    wider = {"values": [[*row, 3.0] for row in x["values"]], "mask": [[*row, 0] for row in x["mask"]]}
    same(call(wider), call(x))


def between(call: Call, x: Inputs, draw: Draw) -> None:
    """The mean lies between the smallest and the largest value that counts."""
    kept = [v for rows in zip(x["values"], x["mask"], strict=True) for v, m in zip(*rows, strict=True) if m] or [0.0]
    mean = call(x)
    require(min(kept) - 1e-9 <= mean <= max(kept) + 1e-9, mean)


EXERCISE = Exercise(
    name="masked_mean",
    number=1,
    title=Text("Masked mean", "掩码均值"),
    function="masked_mean",
    minutes=10,
    library="torch",
    kinds={"values": "float", "mask": "int"},
    gradient=("values",),
    inputs=inputs,
    hand=(
        Case(
            inputs={"values": [[1.0, 2.0, 9.0], [4.0, 9.0, 9.0]], "mask": [[1, 1, 0], [1, 0, 0]]},
            expected=(1 + 2 + 4) / 3,
        ),
        Case(inputs={"values": [[1.0, NAN]], "mask": [[1, 0]]}, expected=1.0),
        Case(inputs={"values": [[5.0, 5.0]], "mask": [[0, 0]]}, expected=0.0),
    ),
    probes=({"values": [[NAN, 2.0]], "mask": [[1, 1]]},),
    properties=(
        prop("hidden cells", hidden_cells, "what stands under mask 0 does not matter", "掩码为 0 处的值不影响结果"),
        prop("padding", padding, "one more column of padding changes nothing", "再补一列填充，结果不变"),
        prop(
            "between",
            between,
            "a mean lies between the smallest and the largest kept value",
            "均值介于所保留的最小值和最大值之间",
        ),
    ),
    mistakes=(
        mistake(
            "padding_in_denominator",
            ("count = mask.sum()", "count = torch.tensor(mask.numel())"),
            en="divides by all positions, padding included, instead of by the number of positions that count",
            zh="分母用了全部位置（包括填充），而不是计入的位置数",
        ),
        mistake(
            "no_mask",
            ("torch.where(mask.bool(), values, 0.0)", "values"),
            ("count = mask.sum()", "count = torch.tensor(mask.numel())"),
            en="takes the plain mean and ignores the mask",
            zh="直接取普通均值，没有用掩码",
        ),
        mistake(
            "mask_only_in_denominator",
            ("torch.where(mask.bool(), values, 0.0)", "values"),
            en="forgets the mask in the numerator: masked values are summed too",
            zh="分子忘了掩码：被掩掉的值也加进去了",
        ),
        mistake(
            "multiplies",
            ("torch.where(mask.bool(), values, 0.0)", "values * mask"),
            en="multiplies by the mask instead of selecting: NaN times 0 is NaN",
            zh="用乘法代替选择：NaN 乘 0 仍是 NaN",
        ),
        mistake(
            "nan_to_num",
            ("torch.where(mask.bool(), values, 0.0)", "torch.nan_to_num(values) * mask"),
            en="turns every NaN into 0, so that a NaN on a position that counts goes unnoticed",
            zh="把所有 NaN 都变成 0，计入位置上的 NaN 就被悄悄掩盖了",
        ),
        mistake(
            "mean_of_row_means",
            ("kept.sum() / count.clamp(min=1)", "(kept.sum(1) / mask.sum(1).clamp(min=1)).mean()"),
            en="averages the rows' means, so that a token of a short row weighs more",
            zh="先求每行均值再平均，短行的 token 权重变大了",
        ),
        mistake(
            "per_row",
            ("kept.sum() / count.clamp(min=1)", "kept.sum(1) / mask.sum(1).clamp(min=1)"),
            en="returns one mean per row; one number over the whole batch is asked for",
            zh="返回了每行一个均值；题目要整个批次的一个数",
        ),
        mistake(
            "nan_when_empty",
            ("count.clamp(min=1)", "count"),
            en="divides 0 by 0 when the mask selects nothing",
            zh="掩码一个位置都不选时，出现了 0 除以 0",
        ),
        mistake(
            "plus_one",
            ("count.clamp(min=1)", "(count + 1)"),
            en="adds 1 to every denominator to avoid dividing by zero, which changes all other answers",
            zh="为了避免除以零给每个分母都加 1，于是其他答案全变了",
        ),
        mistake(
            "detached",
            ("return kept.sum()", "return kept.detach().sum()"),
            en="detaches the values, so that nothing can be learned through this mean",
            zh="把值 detach 了，梯度传不过这个均值",
        ),
    ),
)
