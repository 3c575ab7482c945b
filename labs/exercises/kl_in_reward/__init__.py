"""KL in the reward, and the controller that steers its coefficient."""

from labs.grading.draw import Draw, mask_table, table
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import require, same

NAMES = ("scores", "old_log_prob", "ref_log_prob", "mask", "beta", "target", "horizon")


def inputs(draw: Draw) -> Inputs:
    rows, width = draw.integer(1, 3), draw.integer(1, 4)
    old = table(draw, rows, width, -2, 0)
    spread = draw.choice((0.1, 1.0))
    return {
        "scores": table(draw, rows, width, -1, 1),
        "old_log_prob": old,
        "ref_log_prob": [[v - spread * draw.number(-0.5, 1) for v in row] for row in old],
        "mask": mask_table(draw, rows, width, empty=True),
        "beta": draw.choice((0.1, 0.01)),
        "target": draw.choice((0.1, 0.3)),
        "horizon": draw.choice((10.0, 100.0)),
    }


def same_policies(call: Call, x: Inputs, draw: Draw) -> None:
    """No divergence, no penalty, and the coefficient falls as fast as it may."""
    rewards, beta = call({**x, "ref_log_prob": x["old_log_prob"]})
    same(rewards, x["scores"])
    same(beta, x["beta"] * (1 - 0.2 * len(x["scores"]) / x["horizon"]))


def tool_text(call: Call, x: Inputs, draw: Draw) -> None:
    """The reference's opinion of tool text does not matter."""
    other = draw.number(-3, 3)
    changed = [
        [r if m else r + other for r, m in zip(a, b, strict=True)]
        for a, b in zip(x["ref_log_prob"], x["mask"], strict=True)
    ]
    same(list(call({**x, "ref_log_prob": changed})), list(call(x)))


def bounded(call: Call, x: Inputs, draw: Draw) -> None:
    """One step changes the coefficient by at most 0.2 B / horizon."""
    beta = call(x)[1]
    require(abs(beta / x["beta"] - 1) <= 0.2 * len(x["scores"]) / x["horizon"] + 1e-9, beta)


EXERCISE = Exercise(
    name="kl_in_reward",
    number=20,
    title=Text("KL in the reward", "奖励中的 KL"),
    function="kl_in_reward",
    minutes=20,
    kinds=dict.fromkeys(NAMES, "plain"),
    inputs=inputs,
    hand=(
        Case(
            inputs={
                "scores": [[0.0, 0.0, 1.0]],
                "old_log_prob": [[-1.0, -1.0, -1.0]],
                "ref_log_prob": [[-1.1, -1.2, -1.3]],
                "mask": [[1, 1, 1]],
                "beta": 0.01,
                "target": 0.1,
                "horizon": 10.0,
            },
            expected=([[-0.001, -0.002, 0.997]], 0.01 * (1 + 0.2 / 10)),
            note=Text(
                "mean KL 0.2 is twice the target; the error is clipped to 0.2",
                "平均 KL 0.2 是目标的两倍；误差裁剪到 0.2",
            ),
        ),
        Case(
            inputs={
                "scores": [[0.0, 0.0], [1.0, 0.0]],
                "old_log_prob": [[-1.0, -1.0], [-1.0, -1.0]],
                "ref_log_prob": [[-1.22, -5.0], [-1.0, -1.0]],
                "mask": [[1, 0], [1, 1]],
                "beta": 0.1,
                "target": 0.1,
                "horizon": 10.0,
            },
            expected=([[-0.022, 0.0], [1.0, 0.0]], 0.1 * (1 + 0.1 * 2 / 10)),
            note=Text(
                "row means 0.22 and 0; their mean is 1.1 times the target", "行均值 0.22 与 0；其均值是目标的 1.1 倍"
            ),
        ),
    ),
    probes=(
        {
            "scores": [[0.0], [1.0]],
            "old_log_prob": [[-1.0], [-1.0]],
            "ref_log_prob": [[-1.22], [-1.5]],
            "mask": [[1], [0]],
            "beta": 0.1,
            "target": 0.1,
            "horizon": 10.0,
        },
    ),
    properties=(
        prop(
            "no divergence",
            same_policies,
            "equal policies: rewards are the scores, beta falls by the largest step",
            "两策略相同：奖励等于分数，beta 以最大步幅下降",
        ),
        prop("tool text", tool_text, "log-probabilities under mask 0 do not matter", "掩码为 0 处的对数概率不影响结果"),
        prop("bounded", bounded, "beta changes by at most 0.2 B / horizon", "beta 的变化至多 0.2 B / horizon"),
    ),
    mistakes=(
        mistake(
            "rewarded",
            ("s - beta * k", "s + beta * k"),
            en="adds the divergence to the reward: the policy is paid for leaving the reference",
            zh="把散度加进了奖励：策略因偏离参考而得到奖赏",
        ),
        mistake(
            "upside_down",
            ("(o - r) * m", "(r - o) * m"),
            en="takes reference minus policy; the estimate of KL(policy, reference) is policy minus reference",
            zh="用了参考减策略；KL(策略, 参考) 的估计是策略减参考",
        ),
        mistake(
            "no_mask",
            ("(o - r) * m", "(o - r)"),
            en="penalises tool text and padding as well: mask the divergence",
            zh="工具文字和填充也被惩罚了：要对散度加掩码",
        ),
        mistake(
            "absolute",
            ("(o - r) * m", "abs(o - r) * m"),
            en="takes the absolute value; the estimate is signed, and its negative samples belong to it",
            zh="取了绝对值；这个估计是带符号的，负的样本也是它的一部分",
        ),
        mistake(
            "new_beta_at_once",
            (
                "    return rewards, beta * (1 + error * len(scores) / horizon)",
                "    after = beta * (1 + error * len(scores) / horizon)\n"
                "    pairs = zip(scores, rewards, strict=True)\n"
                "    rewards = [[s + (r - s) * after / beta for s, r in zip(a, b, strict=True)] for a, b in pairs]\n"
                "    return rewards, after",
            ),
            en="uses the new coefficient for this step's rewards; it applies from the next step on",
            zh="本步奖励就用了新的系数；它从下一步起才生效",
        ),
        mistake(
            "error_not_clipped",
            ("min(max(current / target - 1, -0.2), 0.2)", "current / target - 1"),
            en="does not clip the controller's error: one odd batch then moves beta a lot",
            zh="控制器的误差没有裁剪：一个异常批次就会让 beta 大幅变动",
        ),
        mistake(
            "clipped_above_only",
            ("min(max(current / target - 1, -0.2), 0.2)", "min(current / target - 1, 0.2)"),
            en="clips the controller's error from above only",
            zh="控制器的误差只裁剪了上侧",
        ),
        mistake(
            "token_mean",
            (
                "current = sum(means) / len(means)",
                "current = sum(m * sum(own) for m, own in zip(means, mask, strict=True)) / max(sum(map(sum, mask)), 1)",
            ),
            en="the controller sees the mean over tokens; it must see the mean over rows of the row means",
            zh="控制器看的是对 token 的均值；应是各行均值的平均",
        ),
        mistake(
            "empty_rows_left_out",
            ("current = sum(means) / len(means)", "current = sum(means) / max(sum(1 for own in mask if any(own)), 1)"),
            en="leaves rows without tokens out of the mean; they count as 0",
            zh="求均值时去掉了没有 token 的行；它们按 0 计入",
        ),
        mistake(
            "rows_forgotten",
            ("error * len(scores) / horizon", "error / horizon"),
            en="forgets the number of rows in the controller: horizon is measured in rows",
            zh="控制器里忘了行数：horizon 以行为单位",
        ),
        mistake(
            "fixed",
            ("beta * (1 + error * len(scores) / horizon)", "beta"),
            en="returns the coefficient unchanged",
            zh="系数原样返回，没有更新",
        ),
        mistake(
            "at_the_end",
            ("[s - beta * k for s, k in zip(row, kl, strict=True)]", "[*row[:-1], row[-1] - beta * sum(kl)]"),
            en="charges the whole divergence at the last position; each token pays for itself",
            zh="把全部散度算在最后一个位置；应由每个 token 各自承担",
        ),
    ),
)
