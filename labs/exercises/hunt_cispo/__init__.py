"""Find the silent bug: CISPO that forgets the tokens it was made for."""

import math

from labs.grading.draw import Draw, mask_table, table
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import same

LOSS = "loss = -weight.detach() * advantages * log_prob"
WEIGHT = "weight = torch.clamp(ratio, 1 - low, 1 + high)"
BUG = "loss = -weight * advantages"
L4 = math.log(4.0)


def inputs(draw: Draw) -> Inputs:
    rows, width = draw.integer(1, 2), draw.integer(1, 4)
    new = table(draw, rows, width, -3, -0.25)
    return {
        "old_log_prob": [[v - draw.number(-1, 1) for v in row] for row in new],
        "log_prob": new,
        "advantages": table(draw, rows, width, -2, 2),
        "mask": mask_table(draw, rows, width),
        "low": draw.choice((0.2, 1.0)),
        "high": draw.choice((0.28, 0.5)),
    }


def on_policy(call: Call, x: Inputs, draw: Draw) -> None:
    """Where the policies agree, it is the REINFORCE loss."""
    cells = [
        (a * v, m)
        for rows in zip(x["advantages"], x["log_prob"], x["mask"], strict=True)
        for a, v, m in zip(*rows, strict=True)
    ]
    same(call({**x, "old_log_prob": x["log_prob"]}), -sum(c * m for c, m in cells) / sum(m for _, m in cells))


def capped(call: Call, x: Inputs, draw: Draw) -> None:
    """Far above the cap, the old policy does not matter any more."""
    far = [[v - 4 for v in row] for row in x["log_prob"]]
    farther = [[v - 7 for v in row] for row in x["log_prob"]]
    same(call({**x, "old_log_prob": far}), call({**x, "old_log_prob": farther}))


def scale(call: Call, x: Inputs, draw: Draw) -> None:
    """A capped token weighs 1 + high times what it weighs on policy."""
    far = {**x, "old_log_prob": [[v - 4 for v in row] for row in x["log_prob"]]}
    same(call(far), (1 + x["high"]) * call({**x, "old_log_prob": x["log_prob"]}))


EXERCISE = Exercise(
    name="hunt_cispo",
    number=28,
    title=Text("Find the silent bug: a CISPO that is not one", "找出无声的错误：名不副实的 CISPO"),
    function="cispo_loss",
    minutes=20,
    library="torch",
    kinds={
        **dict.fromkeys(("old_log_prob", "log_prob", "advantages"), "float"),
        "mask": "int",
        **dict.fromkeys(("low", "high"), "plain"),
    },
    gradient=("log_prob",),
    inputs=inputs,
    needs=("policy_loss", "importance_weights"),
    stub=((LOSS, BUG),),
    hand=(
        Case(
            inputs={
                "old_log_prob": [[-2.0, -2.0]],
                "log_prob": [[-2.0, -2.0]],
                "advantages": [[1.0, -1.0]],
                "mask": [[1, 1]],
                "low": 0.2,
                "high": 0.28,
            },
            expected=0.0,
            note=Text("on policy; the code you get says 0 as well", "在策略上；你拿到的代码也给出 0"),
        ),
        Case(
            inputs={
                "old_log_prob": [[-1.0 - L4, -1.0]],
                "log_prob": [[-1.0, -1.0]],
                "advantages": [[1.0, 1.0]],
                "mask": [[1, 1]],
                "low": 0.2,
                "high": 0.28,
            },
            expected=(1.28 + 1) / 2,
            note=Text(
                "ratios 4 and 1; gradient by log_prob: -1.28/2 and -1/2",
                "比率 4 和 1；对 log_prob 的梯度：-1.28/2 和 -1/2",
            ),
        ),
    ),
    properties=(
        prop(
            "on policy",
            on_policy,
            "where the policies agree it is the REINFORCE loss",
            "两策略一致时就是 REINFORCE 损失",
        ),
        prop("far out", capped, "far above the cap the old policy does not matter", "远超上限时，旧策略不再起作用"),
        prop("cap", scale, "a capped token weighs 1 + high", "封顶的 token 权重为 1 + high"),
    ),
    mistakes=(
        mistake(
            "plain_clipped_ratio",
            (LOSS, BUG),
            en="is a plain clipped ratio, without log-probability: a capped token has no gradient at all",
            zh="只是裁剪后的比率，没有对数概率：封顶的 token 完全没有梯度",
        ),
        mistake(
            "weight_not_detached",
            (LOSS, "loss = -weight * advantages * log_prob"),
            en="does not hold the weight constant: inside the band the gradient gets a second term",
            zh="没有把权重当作常数：在区间内梯度多出一项",
        ),
        mistake(
            "capped_at_epsilon",
            (WEIGHT, "weight = torch.clamp(ratio, max=high)"),
            en="caps at epsilon instead of 1 + epsilon",
            zh="上界取成了 epsilon，而不是 1 + epsilon",
        ),
        mistake(
            "no_floor",
            (WEIGHT, "weight = torch.clamp(ratio, max=1 + high)"),
            en="the lower bound is missing",
            zh="缺少下界",
        ),
        mistake(
            "no_cap",
            (WEIGHT, "weight = torch.clamp(ratio, min=1 - low)"),
            en="the upper bound is missing: stale tokens weigh without limit",
            zh="缺少上界：陈旧 token 的权重没有限制",
        ),
        mistake(
            "no_weight",
            (WEIGHT, "weight = torch.ones_like(ratio)"),
            en="leaves the importance weight out: it is REINFORCE on stale tokens",
            zh="没有重要性权重：成了在陈旧 token 上的 REINFORCE",
        ),
        mistake(
            "ppo",
            (LOSS, "loss = torch.maximum(-ratio * advantages, -weight * advantages)"),
            en="is PPO's clip; CISPO keeps the gradient of every token",
            zh="这是 PPO 的裁剪；CISPO 保留每个 token 的梯度",
        ),
        mistake(
            "dropped_outside",
            (WEIGHT, "weight = torch.where((ratio >= 1 - low) & (ratio <= 1 + high), ratio, 0.0)"),
            en="drops tokens outside the band; they are kept, at the bound",
            zh="丢掉了区间外的 token；它们应按边界值保留",
        ),
        mistake(
            "ratio_upside_down",
            ("log_prob - old_log_prob", "old_log_prob - log_prob"),
            en="the ratio is upside down: new over old",
            zh="比率颠倒了：应为新除以旧",
        ),
        mistake(
            "padding_counted",
            ("/ mask.sum()", "/ mask.numel()"),
            en="divides by all positions, padding included",
            zh="除以了全部位置（包括填充）",
        ),
        mistake(
            "log_prob_detached",
            (LOSS, "loss = -weight * advantages * log_prob.detach()"),
            en="holds the wrong factor constant: the weight is constant, the log-probability is learned",
            zh="固定错了因子：权重是常数，对数概率才是要学的",
        ),
    ),
)
