"""Importance weights, and the effective sample size they leave."""

import math

from labs.grading.draw import Draw, mask_table, table
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import require, same

LN2 = math.log(2.0)


def inputs(draw: Draw) -> Inputs:
    rows, width = draw.integer(1, 4), draw.integer(1, 4)
    old = table(draw, rows, width, -3, 0)
    return {
        "old_log_prob": old,
        "rollout_log_prob": [[v - draw.number(-1, 1) for v in row] for row in old],
        "mask": mask_table(draw, rows, width),
        "cap": draw.choice((2.0, 1.5)),
    }


def on_policy(call: Call, x: Inputs, draw: Draw) -> None:
    """Equal policies: all weights 1, nothing lost."""
    tokens, rows, effective = call({**x, "rollout_log_prob": x["old_log_prob"]})
    same([tokens, rows, effective], [x["mask"], [1.0] * len(rows), 1.0])


def tool_text(call: Call, x: Inputs, draw: Draw) -> None:
    """Log-probabilities of tool text do not matter."""
    noise = draw.number(-2, 2)
    changed = [
        [v if m else v + noise for v, m in zip(a, b, strict=True)]
        for a, b in zip(x["old_log_prob"], x["mask"], strict=True)
    ]
    same(list(call({**x, "old_log_prob": changed})), list(call(x)))


def bounds(call: Call, x: Inputs, draw: Draw) -> None:
    """Weights lie between 0 and the cap, the effective share between 1/B and 1."""
    tokens, rows, effective = call(x)
    flat = [w for row in tokens for w in row] + rows
    require(all(0 <= w <= x["cap"] + 1e-9 for w in flat), flat)
    require(1 / len(rows) - 1e-9 <= effective <= 1 + 1e-9, effective)


EXERCISE = Exercise(
    name="importance_weights",
    number=27,
    title=Text("Importance weights and effective sample size", "重要性权重与有效样本量"),
    function="importance_weights",
    minutes=25,
    library="torch",
    kinds={"old_log_prob": "float", "rollout_log_prob": "float", "mask": "int", "cap": "plain"},
    inputs=inputs,
    needs=("policy_loss", "staleness"),
    hand=(
        Case(
            inputs={
                "old_log_prob": [[0.0, 0.0], [0.0, -5.0]],
                "rollout_log_prob": [[-LN2, -LN2], [0.0, 0.0]],
                "mask": [[1, 1], [1, 0]],
                "cap": 3.0,
            },
            expected=([[2.0, 2.0], [1.0, 0.0]], [3.0, 1.0], 25 / 17 / 2),
            note=Text("row 1: ratios 2 and 2, product 4, capped at 3", "第 1 行：比率 2 和 2，乘积 4，封顶为 3"),
        ),
        Case(
            inputs={
                "old_log_prob": [[0.0, -LN2], [0.0, 0.0]],
                "rollout_log_prob": [[-LN2, 0.0], [0.0, 0.0]],
                "mask": [[1, 1], [1, 1]],
                "cap": 1.5,
            },
            expected=([[1.5, 0.5], [1.0, 1.0]], [1.0, 1.0], 1.0),
            note=Text("ratios 2 and 1/2 cancel in the product", "比率 2 与 1/2 在乘积中抵消"),
        ),
    ),
    properties=(
        prop(
            "on policy", on_policy, "equal policies give weights 1 and lose nothing", "两策略相同时权重为 1，没有损失"
        ),
        prop("tool text", tool_text, "log-probabilities under mask 0 do not matter", "掩码为 0 处的对数概率不影响结果"),
        prop(
            "bounds",
            bounds,
            "weights lie in [0, cap], the effective share in [1/B, 1]",
            "权重在 [0, cap]，有效占比在 [1/B, 1]",
        ),
    ),
    mistakes=(
        mistake(
            "upside_down",
            ("old_log_prob - rollout_log_prob, 0.0", "rollout_log_prob - old_log_prob, 0.0"),
            en="the ratio is upside down: trainer's policy over the policy that sampled",
            zh="比率颠倒了：应为训练端策略除以采样策略",
        ),
        mistake(
            "tokens_uncapped",
            ("torch.exp(log_ratio).clamp(max=cap) * mask", "torch.exp(log_ratio) * mask"),
            en="does not cap the token weights",
            zh="token 权重没有封顶",
        ),
        mistake(
            "rows_uncapped",
            ("rows = raw.clamp(max=cap)", "rows = raw.clone()"),
            en="does not cap the row weights",
            zh="行权重没有封顶",
        ),
        mistake(
            "two_sided",
            ("torch.exp(log_ratio).clamp(max=cap) * mask", "torch.exp(log_ratio).clamp(min=1 / cap, max=cap) * mask"),
            en="raises small token weights too; truncation bounds from above only",
            zh="把小的 token 权重也抬高了；截断只限上界",
        ),
        mistake(
            "zeroed_instead_of_capped",
            (
                "torch.exp(log_ratio).clamp(max=cap) * mask",
                "torch.exp(log_ratio) * (torch.exp(log_ratio) <= cap) * mask",
            ),
            en="sets token weights above the cap to 0; that is masking, truncation keeps them at the cap",
            zh="把超过上限的 token 权重设为 0；那是屏蔽，截断应保留为上限值",
        ),
        mistake(
            "geometric",
            ("raw = torch.exp(log_ratio.sum(1))", "raw = torch.exp(log_ratio.sum(1) / mask.sum(1))"),
            en="takes the geometric mean of the ratios; the weight of a row is their product",
            zh="取了比率的几何平均；行的权重是它们的乘积",
        ),
        mistake(
            "arithmetic",
            ("raw = torch.exp(log_ratio.sum(1))", "raw = (torch.exp(log_ratio) * mask).sum(1) / mask.sum(1)"),
            en="averages the ratios of a row; the weight of a row is their product",
            zh="对行内比率求了平均；行的权重是它们的乘积",
        ),
        mistake(
            "product_of_capped",
            ("raw = torch.exp(log_ratio.sum(1))", "raw = torch.where(mask.bool(), tokens, 1.0).prod(1)"),
            en="multiplies the capped token weights; the row weight is the product of the ratios, capped afterwards",
            zh="把封顶后的 token 权重相乘了；行权重是比率之积，之后再封顶",
        ),
        mistake(
            "padding_in_the_product",
            ("torch.where(mask.bool(), old_log_prob - rollout_log_prob, 0.0)", "old_log_prob - rollout_log_prob"),
            en="lets tool text and padding into the product of a row",
            zh="行的乘积里混进了工具文字和填充",
        ),
        mistake(
            "ones_under_mask",
            (".clamp(max=cap) * mask", ".clamp(max=cap)"),
            en="leaves weight 1 on positions with mask 0; the weights are 0 there",
            zh="掩码为 0 的位置留下了权重 1；应为 0",
        ),
        mistake(
            "effective_after_cap",
            ("raw.sum().square() / raw.square().sum()", "rows.sum().square() / rows.square().sum()"),
            en="measures the effective sample size after the cap, which hides the very weights it should warn of",
            zh="有效样本量是在封顶之后量的，恰好掩盖了它应当警示的权重",
        ),
        mistake(
            "effective_as_count",
            (".square().sum() / len(raw)", ".square().sum()"),
            en="returns the effective number of rows; the share of B is asked for",
            zh="返回的是有效行数；题目要占 B 的比例",
        ),
        mistake(
            "effective_upside_down",
            (
                "raw.sum().square() / raw.square().sum() / len(raw)",
                "raw.square().sum() * len(raw) / raw.sum().square()",
            ),
            en="the effective share is upside down: (sum w)^2 over sum of w^2",
            zh="有效占比颠倒了：应为（w 之和）的平方除以 w 平方之和",
        ),
    ),
)
