"""Aggregation: five numbers from one table of token losses."""

from labs.grading.draw import Draw, mask_table, table
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import same

NAN = float("nan")


def inputs(draw: Draw) -> Inputs:
    rows, width = draw.integer(1, 3), draw.integer(1, 4)
    loss_mask = mask_table(draw, rows, width)
    kept = [[m * draw.choice((1, 1, 0)) for m in row] for row in loss_mask]
    return {"losses": table(draw, rows, width, -3, 3), "response_mask": kept, "loss_mask": loss_mask}


def padding(call: Call, x: Inputs, draw: Draw) -> None:
    """A further column of padding changes only the number that divides by the width."""
    wide = call(
        {
            "losses": [[*r, 2.0] for r in x["losses"]],
            **{n: [[*r, 0] for r in x[n]] for n in ("response_mask", "loss_mask")},
        }
    )
    width = len(x["losses"][0])
    *first, norm, last = call(x)
    same(wide, [*first, norm * width / (width + 1), last])


def rejection(call: Call, x: Inputs, draw: Draw) -> None:
    """A rejected token is one whose loss is 0: denominators stay (those of the last number are the rows' own)."""
    zero = [[v * m for v, m in zip(a, b, strict=True)] for a, b in zip(x["losses"], x["response_mask"], strict=True)]
    same(call({**x, "losses": zero, "response_mask": x["loss_mask"]})[:4], call(x)[:4])


def duplicated(call: Call, x: Inputs, draw: Draw) -> None:
    """The batch twice: means stay, the sum doubles."""
    double = call({n: [*v, *v] for n, v in x.items()})
    mean, total, *rest = call(x)
    same(double, [mean, 2 * total, *rest])


EXERCISE = Exercise(
    name="aggregation",
    number=15,
    title=Text("Aggregation: five reductions", "聚合：五种归约"),
    function="aggregate",
    minutes=25,
    library="torch",
    kinds={"losses": "float", "response_mask": "int", "loss_mask": "int"},
    gradient=("losses",),
    inputs=inputs,
    needs=("masked_mean", "tool_mask"),
    hand=(
        Case(
            inputs={
                "losses": [[1.0, 1.0, 1.0, 0.0], [2.0, 2.0, 0.0, 0.0]],
                "response_mask": [[1, 1, 1, 0], [1, 1, 0, 0]],
                "loss_mask": [[1, 1, 1, 0], [1, 1, 0, 0]],
            },
            expected=[7 / 5, 7.0, 7 / 2, 7 / 2 / 4, (1 + 2) / 2],
        ),
        Case(
            inputs={
                "losses": [[-1.0, -1.0], [-1.0, -1.0]],
                "response_mask": [[1, 1], [0, 0]],
                "loss_mask": [[1, 1], [1, 1]],
            },
            expected=[-2 / 4, -2.0, -2 / 2, -2 / 2 / 2, -1 / 2],
            note=Text("the second row was rejected", "第二行被拒绝了"),
        ),
    ),
    probes=(
        {"losses": [[1.0, NAN], [2.0, 3.0]], "response_mask": [[1, 0], [1, 1]], "loss_mask": [[1, 0], [1, 1]]},
        {"losses": [[1.0, 2.0, 4.0]], "response_mask": [[1, 0, 1]], "loss_mask": [[1, 1, 1]]},
    ),
    properties=(
        prop(
            "padding",
            padding,
            "one more column of padding changes only the fourth number",
            "再补一列填充，只有第四个数会变",
        ),
        prop(
            "rejection",
            rejection,
            "a rejected token counts as one with loss 0 (in the first four)",
            "被拒绝的 token 相当于损失为 0（前四个数）",
        ),
        prop(
            "batch twice",
            duplicated,
            "the batch twice: means stay, the sum doubles",
            "批次重复一遍：均值不变，总和加倍",
        ),
    ),
    mistakes=(
        mistake(
            "shrunk_denominator",
            ("token_sum / loss_mask.sum()", "token_sum / response_mask.sum().clamp(min=1)"),
            en="token-mean divides by the tokens that are left; the denominator is the one before rejection",
            zh="token-mean 除以了剩下的 token 数；分母应取拒绝之前的",
        ),
        mistake(
            "rows_with_tokens",
            (
                "seq_sum = row_sums.sum() / rows",
                "seq_sum = row_sums.sum() / (response_mask.sum(1) > 0).sum().clamp(min=1)",
            ),
            en="seq-mean-token-sum divides by the rows that still have a token; divide by all rows",
            zh="seq-mean-token-sum 除以了还有 token 的行数；应当除以全部行数",
        ),
        mistake(
            "rows_with_tokens_in_the_mean",
            (".sum() / rows\n    return", ".sum() / (response_mask.sum(1) > 0).sum().clamp(min=1)\n    return"),
            en="seq-mean-token-mean divides by the rows that still have a token; divide by all rows",
            zh="seq-mean-token-mean 除以了还有 token 的行数；应当除以全部行数",
        ),
        mistake(
            "longest_row",
            ("seq_norm = seq_sum / width", "seq_norm = seq_sum / loss_mask.sum(1).max()"),
            en="the normed sum is divided by T, the width of the table, not by the longest row's count",
            zh="归一化的和应除以 T（表的宽度），而不是最长行的 token 数",
        ),
        mistake(
            "norm_without_rows",
            ("seq_norm = seq_sum / width", "seq_norm = token_sum / width"),
            en="seq-mean-token-sum-norm forgets to divide by the number of rows: twice the batch, twice the step",
            zh="seq-mean-token-sum-norm 忘了除以行数：批次加倍，步长也加倍",
        ),
        mistake(
            "row_mean_over_width",
            ("response_mask.sum(1).clamp(min=1)", "width"),
            en="a row's mean is over its own tokens, not over the width of the table",
            zh="每行的均值是对自己的 token 求的，而不是除以表的宽度",
        ),
        mistake(
            "row_mean_before_rejection",
            ("response_mask.sum(1).clamp(min=1)", "loss_mask.sum(1).clamp(min=1)"),
            en="a row's mean is over the tokens it has left (this one denominator does shrink, as in verl)",
            zh="每行的均值是对剩下的 token 求的（唯有这个分母会变小，与 verl 一致）",
        ),
        mistake(
            "empty_row_nan",
            (".clamp(min=1)).sum()", ").sum()"),
            en="a row without tokens is 0/0; it adds 0",
            zh="没有 token 的行变成了 0/0；它应贡献 0",
        ),
        mistake(
            "multiplies",
            ("torch.where(response_mask.bool(), losses, 0.0)", "losses * response_mask"),
            en="multiplies by the mask: a NaN outside it makes everything NaN",
            zh="用掩码相乘：掩码外的 NaN 会把一切变成 NaN",
        ),
        mistake(
            "rejected_still_count",
            ("torch.where(response_mask.bool(), losses, 0.0)", "torch.where(loss_mask.bool(), losses, 0.0)"),
            en="rejected tokens still add to the numerators",
            zh="被拒绝的 token 仍然进入了分子",
        ),
        mistake(
            "token_mean_by_rows",
            ("token_mean = token_sum / loss_mask.sum()", "token_mean = token_sum / rows"),
            en="token-mean divides by tokens, not by rows",
            zh="token-mean 除以的是 token 数，不是行数",
        ),
        mistake(
            "order",
            ("seq_sum, seq_norm, seq_mean]", "seq_mean, seq_sum, seq_norm]"),
            en="the last three numbers are in the wrong order",
            zh="后三个数的顺序不对",
        ),
    ),
)
