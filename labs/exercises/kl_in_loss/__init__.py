"""KL in the loss: what k1, k2 and k3 really descend."""

import math

from labs.grading.draw import Draw, numbers
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import same

KL = 0.8 * math.log(1.6) + 0.2 * math.log(0.4)
K2 = (0.8 * math.log(1.6) ** 2 + 0.2 * math.log(0.4) ** 2) / 2
TRUE = 0.8 * (math.log(1.6) - KL)


def inputs(draw: Draw) -> Inputs:
    count = draw.integer(2, 4)
    return {"logits": numbers(draw, count, -2, 2), "ref_logits": numbers(draw, count, -2, 2)}


def k1_is_noise(call: Call, x: Inputs, draw: Draw) -> None:
    """The expected gradient of k1 is zero."""
    same(call(x)["gradients"][0], [0.0] * len(x["logits"]))


def k2_is_right(call: Call, x: Inputs, draw: Draw) -> None:
    """The expected gradient of k2 is the true one."""
    answer = call(x)
    same(answer["gradients"][1], answer["true"])


def k1_and_k3_agree(call: Call, x: Inputs, draw: Draw) -> None:
    """k1 and k3 have the same mean."""
    value = call(x)["values"]
    same(value[2], value[0])


def k3_is_forward(call: Call, x: Inputs, draw: Draw) -> None:
    """The expected gradient of k3 is p - q, that of the divergence the other way round."""

    def softmax(row: list[float]) -> list[float]:
        total = sum(map(math.exp, row))
        return [math.exp(z) / total for z in row]

    pairs = zip(softmax(x["logits"]), softmax(x["ref_logits"]), strict=True)
    same(call(x)["gradients"][2], [a - b for a, b in pairs])


EXERCISE = Exercise(
    name="kl_in_loss",
    number=21,
    title=Text("KL in the loss: what k1, k2 and k3 descend", "损失中的 KL：k1、k2、k3 各在下降什么"),
    function="kl_in_loss",
    minutes=35,
    kinds={"logits": "plain", "ref_logits": "plain"},
    inputs=inputs,
    needs=("policy_gradient", "kl_in_reward"),
    hand=(
        Case(
            inputs={"logits": [math.log(4.0), 0.0], "ref_logits": [0.0, 0.0]},
            expected={
                "values": [KL, K2, KL],
                "gradients": [[0.0, 0.0], [TRUE, -TRUE], [0.3, -0.3]],
                "true": [TRUE, -TRUE],
            },
            note=Text("policy (0.8, 0.2), reference (0.5, 0.5)", "策略 (0.8, 0.2)，参考 (0.5, 0.5)"),
        ),
        Case(
            inputs={"logits": [1.0, 2.0, 3.0], "ref_logits": [2.0, 3.0, 4.0]},
            expected={"values": [0.0] * 3, "gradients": [[0.0] * 3] * 3, "true": [0.0] * 3},
            note=Text("the same policy, written with other logits", "同一个策略，只是 logits 写法不同"),
        ),
    ),
    properties=(
        prop(
            "k1",
            k1_is_noise,
            "the expected gradient of k1 is 0: in a loss it is noise",
            "k1 的期望梯度为 0：放在损失里只是噪声",
        ),
        prop("k2", k2_is_right, "the expected gradient of k2 is that of KL(p, q)", "k2 的期望梯度就是 KL(p, q) 的梯度"),
        prop(
            "k3",
            k3_is_forward,
            "the expected gradient of k3 is p - q, that of KL(q, p)",
            "k3 的期望梯度是 p - q，即 KL(q, p) 的梯度",
        ),
        prop("values", k1_and_k3_agree, "k1 and k3 have the same mean", "k1 与 k3 的均值相同"),
    ),
    mistakes=(
        mistake(
            "sampling_differentiated",
            ("slopes = [[1.0 for _ in d],", "slopes = [[1.0 + x for x in d],"),
            en="k1: differentiates the sampling distribution too; tokens are already sampled when the loss is made",
            zh="k1：连采样分布也求了导；构造损失时 token 已经采好了",
        ),
        mistake(
            "k3_reversed",
            ("math.exp(-x) - 1 + x", "math.exp(x) - 1 - x"),
            ("1 - math.exp(-x) for x", "math.exp(x) - 1 for x"),
            en="k3 with the ratio upside down: it is q/p - 1 - log(q/p) at a token of p",
            zh="k3 的比率颠倒了：在 p 采到的 token 上应为 q/p - 1 - log(q/p)",
        ),
        mistake(
            "k3_gradient_is_true",
            ("[1 - math.exp(-x) for x in d]", "d"),
            en="k3 has the right mean, but its gradient is not that of KL(p, q): differentiate it as it stands",
            zh="k3 的均值对，但它的梯度不是 KL(p, q) 的梯度：请按式子本身求导",
        ),
        mistake(
            "k2_without_half",
            ("x * x / 2", "x * x"),
            en="k2 is half the square",
            zh="k2 是平方的一半",
        ),
        mistake(
            "k2_slope_halved",
            ("slopes = [[1.0 for _ in d], d,", "slopes = [[1.0 for _ in d], [x / 2 for x in d],"),
            en="the derivative of d^2/2 is d, not d/2",
            zh="d^2/2 的导数是 d，不是 d/2",
        ),
        mistake(
            "under_the_reference",
            (
                "mean = sum(a * s for a, s in zip(p, slope, strict=True))",
                "mean = sum(b * s for b, s in zip(q, slope, strict=True))",
            ),
            en="averages under the reference; the policy itself samples",
            zh="在参考分布下求了平均；采样的是策略本身",
        ),
        mistake(
            "by_probability",
            ("[a * (s - mean) for", "[s - mean for"),
            en="differentiates by the log-probabilities; the logits are the parameters",
            zh="对对数概率求了导；参数是 logits",
        ),
        mistake(
            "no_mean",
            ("[a * (s - mean) for", "[a * s for"),
            en="forgets that raising one logit lowers the probability of all other actions",
            zh="忘了抬高一个 logit 会压低其他所有动作的概率",
        ),
        mistake(
            "true_is_forward",
            (
                '"true": [a * (x - kl) for a, x in zip(p, d, strict=True)]',
                '"true": [a - b for a, b in zip(p, q, strict=True)]',
            ),
            en="`true` holds the gradient of KL(q, p); KL(p, q) is asked for",
            zh="`true` 写成了 KL(q, p) 的梯度；题目要 KL(p, q)",
        ),
        mistake(
            "true_without_mean",
            ('"true": [a * (x - kl) for', '"true": [a * x for'),
            en="`true` forgets to subtract the divergence itself: p (log p/q - KL)",
            zh="`true` 忘了减去散度本身：应为 p (log p/q - KL)",
        ),
        mistake(
            "logits_as_log_probabilities",
            (
                "d = [math.log(a / b) for a, b in zip(p, q, strict=True)]",
                "d = [a - b for a, b in zip(logits, ref_logits, strict=True)]",
            ),
            en="takes the difference of the logits; normalise first",
            zh="直接用了 logits 之差；要先归一化",
        ),
    ),
)
