"""The clipped policy loss: clip, clip-higher and dual clip."""

import math

from labs.grading.draw import Draw, mask_table, table
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import require, same

LN = {r: math.log(r) for r in (0.5, 1.5, 8.0)}


def inputs(draw: Draw) -> Inputs:
    rows, width = draw.integer(1, 2), draw.integer(1, 4)
    old = table(draw, rows, width, -3, 0)
    return {
        "old_log_prob": old,
        "log_prob": [[v + draw.number(-1, 1) * draw.choice((1, 2)) for v in row] for row in old],
        "advantages": table(draw, rows, width, -2, 2),
        "mask": mask_table(draw, rows, width),
        "clip_low": draw.choice((0.2, 0.1)),
        "clip_high": draw.choice((0.28, 0.2, 0.4)),
        "clip_dual": draw.choice((3.0, 1.5)),
    }


def one(ratio: float, advantage: float, **settings: float) -> Inputs:
    """A batch of one token."""
    base = {"clip_low": 0.2, "clip_high": 0.2, "clip_dual": 3.0}
    column = {"old_log_prob": [[-1.0]], "log_prob": [[-1.0 + math.log(ratio)]], "advantages": [[advantage]]}
    return {**column, "mask": [[1]], **base, **settings}


def on_policy(call: Call, x: Inputs, draw: Draw) -> None:
    """With equal log-probabilities the loss is minus the mean advantage."""
    pairs = [(a, m) for r, s in zip(x["advantages"], x["mask"], strict=True) for a, m in zip(r, s, strict=True)]
    same(call({**x, "log_prob": x["old_log_prob"]}), -sum(a * m for a, m in pairs) / sum(m for _, m in pairs))


def pessimistic(call: Call, x: Inputs, draw: Draw) -> None:
    """Without the dual clip the loss is never below the unclipped one."""
    wide = {**x, "clip_dual": 1e9}
    require(call(wide) >= call({**wide, "clip_low": 1.0, "clip_high": 1e9}) - 1e-9, call(wide))


def bounded(call: Call, x: Inputs, draw: Draw) -> None:
    """One token of a negative advantage never costs more than clip_dual times its size."""
    ratio, size = draw.number(1, 16), draw.number(0.5, 2)
    require(call(one(ratio, -size)) <= 3 * size + 1e-9, call(one(ratio, -size)))


EXERCISE = Exercise(
    name="policy_loss",
    number=17,
    title=Text("Clip, clip-higher and dual clip", "裁剪、单侧放宽与双重裁剪"),
    function="policy_loss",
    minutes=30,
    library="torch",
    kinds={
        **dict.fromkeys(("old_log_prob", "log_prob", "advantages"), "float"),
        "mask": "int",
        **dict.fromkeys(("clip_low", "clip_high", "clip_dual"), "plain"),
    },
    gradient=("log_prob",),
    inputs=inputs,
    needs=("aggregation",),
    hand=(
        Case(
            inputs={
                "old_log_prob": [[0.0, 0.0, 0.0, 0.0]],
                "log_prob": [[LN[1.5], LN[0.5], LN[1.5], LN[0.5]]],
                "advantages": [[1.0, 1.0, -1.0, -1.0]],
                "mask": [[1, 1, 1, 1]],
                "clip_low": 0.2,
                "clip_high": 0.2,
                "clip_dual": 3.0,
            },
            expected=(-1.2 - 0.5 + 1.5 + 0.8) / 4,
            note=Text("ratios 1.5, 0.5, 1.5, 0.5", "比率 1.5、0.5、1.5、0.5"),
        ),
        Case(
            inputs=one(8.0, -2.0),
            expected=6.0,
            note=Text("ratio 8: 16 without the dual clip", "比率 8：没有双重裁剪时为 16"),
        ),
        Case(inputs=one(1.5, 1.0, clip_high=0.28), expected=-1.28, note=Text("clip-higher", "上界放宽")),
    ),
    probes=tuple(one(r, a, clip_low=0.1, clip_high=0.4) for r in (2.5, 1.3, 0.5, 0.85, 16.0) for a in (1.5, -1.5)),
    properties=(
        prop(
            "on policy",
            on_policy,
            "with equal log-probabilities the loss is minus the mean advantage",
            "新旧对数概率相等时，损失等于负的平均优势",
        ),
        prop(
            "pessimistic",
            pessimistic,
            "without the dual clip, clipping never lowers the loss",
            "没有双重裁剪时，裁剪不会降低损失",
        ),
        prop(
            "bounded",
            bounded,
            "a negative advantage costs at most clip_dual times its size",
            "负优势的代价至多为其大小的 clip_dual 倍",
        ),
    ),
    mistakes=(
        mistake(
            "upper_only",
            ("torch.clamp(ratio, 1 - clip_low, 1 + clip_high)", "torch.clamp(ratio, max=1 + clip_high)"),
            en="clips only one side: the lower bound is missing",
            zh="只裁剪了一侧：缺少下界",
        ),
        mistake(
            "lower_only",
            ("torch.clamp(ratio, 1 - clip_low, 1 + clip_high)", "torch.clamp(ratio, min=1 - clip_low)"),
            en="clips only one side: the upper bound is missing",
            zh="只裁剪了一侧：缺少上界",
        ),
        mistake(
            "unclipped",
            ("torch.maximum(plain, clipped)", "plain"),
            en="does not clip at all",
            zh="根本没有裁剪",
        ),
        mistake(
            "optimistic",
            ("torch.maximum(plain, clipped)", "torch.minimum(plain, clipped)"),
            en="takes the smaller of the two losses; the larger one is the cautious choice",
            zh="取了两个损失中较小的；谨慎的选择是较大的",
        ),
        mistake(
            "clipped_always",
            ("torch.maximum(plain, clipped)", "clipped"),
            en="always uses the clipped ratio: a move in the wrong direction then has no gradient to undo it",
            zh="总是用裁剪后的比率：走错方向时就没有梯度把它拉回来",
        ),
        mistake(
            "capped_at_epsilon",
            ("torch.clamp(ratio, 1 - clip_low, 1 + clip_high)", "torch.clamp(ratio, max=clip_high)"),
            en="caps at epsilon instead of 1 + epsilon",
            zh="上界取成了 epsilon，而不是 1 + epsilon",
        ),
        mistake(
            "symmetric",
            ("torch.clamp(ratio, 1 - clip_low, 1 + clip_high)", "torch.clamp(ratio, 1 - clip_low, 1 + clip_low)"),
            en="uses the lower epsilon for both sides",
            zh="两侧都用了下侧的 epsilon",
        ),
        mistake(
            "no_dual",
            ("torch.where(advantages < 0, bounded, loss)", "loss"),
            en="leaves the dual clip out: a large ratio with a negative advantage is unbounded",
            zh="漏了双重裁剪：比率很大且优势为负时损失没有上界",
        ),
        mistake(
            "dual_everywhere",
            ("torch.where(advantages < 0, bounded, loss)", "bounded"),
            en="applies the dual clip to positive advantages as well",
            zh="把双重裁剪也用在了正优势上",
        ),
        mistake(
            "dual_as_constant",
            ("-advantages * clip_dual", "torch.full_like(loss, clip_dual)"),
            en="bounds the loss by clip_dual itself; the bound is -advantage times clip_dual",
            zh="把损失的上界取成了 clip_dual 本身；应为负优势乘 clip_dual",
        ),
        mistake(
            "ratio_upside_down",
            ("log_prob - old_log_prob", "old_log_prob - log_prob"),
            en="the ratio is upside down: new over old",
            zh="比率颠倒了：应为新除以旧",
        ),
        mistake(
            "linear_ratio",
            ("torch.exp(log_prob - old_log_prob)", "1 + log_prob - old_log_prob"),
            en="uses the difference of log-probabilities as the ratio; exponentiate it",
            zh="把对数概率之差当作比率；应取指数",
        ),
        mistake(
            "detached_ratio",
            ("torch.exp(log_prob - old_log_prob)", "torch.exp(log_prob - old_log_prob).detach()"),
            en="detaches the ratio, which is all that carries the gradient here",
            zh="把比率 detach 了，而这里只有它携带梯度",
        ),
        mistake(
            "padding_counted",
            ("/ mask.sum()", "/ mask.numel()"),
            en="divides by all positions, padding included",
            zh="除以了全部位置（包括填充）",
        ),
    ),
)
