"""Estimator or loss? Which of the two changes the step."""

from labs.grading.draw import Draw, mask_table, numbers, table
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import same


def inputs(draw: Draw) -> Inputs:
    rows, width = draw.integer(2, 4), draw.integer(1, 3)
    new = table(draw, rows, width, -3, 0)
    old = new if draw.choice((True, False)) else [[v + draw.number(-0.5, 0.5) for v in row] for row in new]
    return {
        "rewards": numbers(draw, rows, -1, 1),
        "old_log_prob": old,
        "log_prob": new,
        "mask": mask_table(draw, rows, width),
    }


def factor(call: Call, x: Inputs, draw: Draw) -> None:
    """Leave-one-out is centring, larger by n / (n - 1)."""
    first, second = call(x)
    n = len(x["rewards"])
    same(second, [v * n / (n - 1) for v in first])


def shift(call: Call, x: Inputs, draw: Draw) -> None:
    """A constant in the rewards does nothing."""
    same(call({**x, "rewards": [r + 2 for r in x["rewards"]]}), call(x))


def behaviour(call: Call, x: Inputs, draw: Draw) -> None:
    """REINFORCE does not know the old policy; the ratio loss does not know its level."""
    other = {"old_log_prob": [[v + 1 for v in row] for row in x["old_log_prob"]]}
    both = {**other, "log_prob": [[v + 1 for v in row] for row in x["log_prob"]]}
    table_before = call(x)
    same([row[0] for row in call({**x, **other})], [row[0] for row in table_before])
    same([row[1] for row in call({**x, **both})], [row[1] for row in table_before])


EXERCISE = Exercise(
    name="estimator_or_loss",
    number=18,
    title=Text("Estimator against loss", "估计器与损失"),
    function="loss_table",
    minutes=25,
    library="torch",
    kinds={"rewards": "float", "old_log_prob": "float", "log_prob": "float", "mask": "int"},
    gradient=("log_prob",),
    inputs=inputs,
    needs=("rloo", "policy_loss"),
    hand=(
        Case(
            inputs={
                "rewards": [1.0, 0.0],
                "old_log_prob": [[-1.0], [-2.0]],
                "log_prob": [[-1.0], [-2.0]],
                "mask": [[1], [1]],
            },
            expected=[[(0.5 - 1.0) / 2, 0.0], [(1.0 - 2.0) / 2, 0.0]],
            note=Text(
                "on policy: the ratio losses are 0, their gradients are not", "在策略上：比率损失为 0，梯度却不为 0"
            ),
        ),
        Case(
            inputs={
                "rewards": [1.0, 0.0, 0.0],
                "old_log_prob": [[0.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]],
                "log_prob": [[0.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]],
                "mask": [[1, 1], [1, 0], [1, 0]],
            },
            expected=[[-2 / 3 / 4, (-2 / 3 * 2 + 1 / 3 * 2) / 4], [-1 / 4, (-2 + 1 / 2 * 2) / 4]],
            note=Text("the winner is longer", "赢的一行更长"),
        ),
    ),
    properties=(
        prop("factor", factor, "the second row is the first times n/(n - 1)", "第二行是第一行的 n/(n - 1) 倍"),
        prop("shift", shift, "a constant added to all rewards changes nothing", "所有奖励加常数，结果不变"),
        prop(
            "old policy",
            behaviour,
            "REINFORCE ignores the old policy; the ratio sees only the difference",
            "REINFORCE 与旧策略无关；比率只看差值",
        ),
    ),
    mistakes=(
        mistake(
            "leave_one_out_is_centring",
            ("rewards - (rewards.sum() - rewards) / (count - 1)", "rewards - rewards.mean()"),
            en="the second estimator is the first again; leave the own reward out of the baseline",
            zh="第二个估计器又是第一个；基线里应排除自己的奖励",
        ),
        mistake(
            "leave_one_out_divides_by_n",
            ("/ (count - 1)", "/ count"),
            en="leave-one-out: there are n - 1 others",
            zh="留一法：其他轨迹有 n - 1 条",
        ),
        mistake(
            "no_baseline",
            ("centred = rewards - rewards.mean()", "centred = rewards"),
            en="the first estimator has no baseline",
            zh="第一个估计器没有基线",
        ),
        mistake(
            "normalised",
            ("centred = rewards - rewards.mean()", "centred = (rewards - rewards.mean()) / (rewards.std() + 1e-6)"),
            en="divides the centred rewards by their standard deviation; here they are only centred",
            zh="中心化后又除以了标准差；本题只做中心化",
        ),
        mistake(
            "transposed",
            (".reshape(2, 2)", ".reshape(2, 2).T"),
            en="the table is transposed: rows are estimators, columns are losses",
            zh="表转置了：行是估计器，列是损失",
        ),
        mistake(
            "ratio_upside_down",
            ("log_prob - old_log_prob", "old_log_prob - log_prob"),
            en="the ratio is upside down: on policy the value is the same, the gradient has the opposite sign",
            zh="比率颠倒了：在策略上数值相同，梯度却反号",
        ),
        mistake(
            "ratio_detached",
            ("torch.exp(log_prob - old_log_prob)", "torch.exp(log_prob - old_log_prob).detach()"),
            en="detaches the ratio: the value is right and the gradient is gone",
            zh="把比率 detach 了：数值对，梯度没了",
        ),
        mistake(
            "old_is_current",
            ("log_prob - old_log_prob", "log_prob - log_prob.detach()"),
            en="takes the current policy for the old one: every ratio is 1, whatever was sampled",
            zh="把当前策略当作旧策略：无论怎么采样，比率都是 1",
        ),
        mistake(
            "probability",
            ("for term in (log_prob, ratio)", "for term in (torch.exp(log_prob), ratio)"),
            en="REINFORCE uses the probability; it is the log-probability",
            zh="REINFORCE 用了概率；应为对数概率",
        ),
        mistake(
            "ascent",
            ("-advantages[:, None] * term", "advantages[:, None] * term"),
            en="has the sign of the objective; a loss is to be descended",
            zh="符号是目标函数的；损失是要下降的",
        ),
        mistake(
            "row_means",
            (
                "torch.where(mask.bool(), loss, 0.0).sum() / mask.sum()",
                "(torch.where(mask.bool(), loss, 0.0).sum(1) / mask.sum(1)).mean()",
            ),
            en="averages the means of the rows; one mean over all tokens is asked for",
            zh="对每行的均值求平均；题目要对所有 token 的一个均值",
        ),
        mistake(
            "padding_counted",
            ("/ mask.sum()", "/ mask.numel()"),
            en="divides by all positions, padding included",
            zh="除以了全部位置（包括填充）",
        ),
    ),
)
