"""An entropy coefficient of 1: the bonus outweighs the reward."""

import math

from labs.grading.draw import Draw, numbers
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import require, same

E = math.e
BEST = E / (E + 3)


def inputs(draw: Draw) -> Inputs:
    count = draw.integer(2, 4)
    return {
        "values": [draw.choice((0.0, 1.0, draw.number(-1, 1))) for _ in range(count)],
        "logits": numbers(draw, count, -2, 2),
        "coefficient": draw.choice((1.0, 0.0, 0.5, 0.125)),
    }


def sums(call: Call, x: Inputs, draw: Draw) -> None:
    """A gradient moves probability, an optimum is a distribution."""
    gradient, optimum, _ = call(x)
    same(sum(gradient), 0.0)
    same(sum(optimum), 1.0)


def stationary(call: Call, x: Inputs, draw: Draw) -> None:
    """At the optimum the gradient vanishes."""
    if x["coefficient"] > 0:
        _, optimum, _ = call(x)
        require(min(optimum) > 0, optimum)
        at = {**x, "logits": [math.log(p) for p in optimum]}
        same(call(at)[0], [0.0] * len(optimum))


def shifted(call: Call, x: Inputs, draw: Draw) -> None:
    """A constant added to all values moves the value and nothing else."""
    constant = draw.choice((1.0, -2.0))
    gradient, optimum, value = call(x)
    moved = call({**x, "values": [q + constant for q in x["values"]]})
    same(list(moved), [gradient, optimum, value + constant])


EXERCISE = Exercise(
    name="entropy",
    number=10,
    title=Text("Entropy coefficient 1", "熵系数为 1"),
    function="entropy_bonus",
    minutes=25,
    kinds={"values": "plain", "logits": "plain", "coefficient": "plain"},
    inputs=inputs,
    needs=("policy_gradient",),
    numbers={"best": BEST, "chain": BEST**3, "best001": 1 / (1 + 3 * math.exp(-100.0))},
    hand=(
        Case(
            inputs={"values": [1.0, 0.0, 0.0, 0.0], "logits": [0.0, 0.0, 0.0, 0.0], "coefficient": 1.0},
            expected=(
                [0.25 * 0.75, -0.0625, -0.0625, -0.0625],
                [BEST, 1 / (E + 3), 1 / (E + 3), 1 / (E + 3)],
                BEST,
            ),
            note=Text("at the uniform policy the entropy pulls nowhere", "在均匀策略处，熵没有拉力"),
        ),
        Case(
            inputs={"values": [1.0, 0.0], "logits": [math.log(3.0), 0.0], "coefficient": 0.0},
            expected=([0.75 * 0.25, -0.25 * 0.75], [1.0, 0.0], 1.0),
            note=Text("no bonus", "没有熵奖励"),
        ),
        Case(
            inputs={"values": [0.0, 0.0], "logits": [math.log(3.0), 0.0], "coefficient": 1.0},
            expected=([-3 / 16 * math.log(3.0), 3 / 16 * math.log(3.0)], [0.5, 0.5], 0.0),
            note=Text("nothing but the bonus", "只有熵奖励"),
        ),
    ),
    probes=(
        {"values": [1.0, 1.0, 0.0], "logits": [0.0, 1.0, 2.0], "coefficient": 0.0},
        {"values": [1.0, 0.0], "logits": [0.0, 1.0], "coefficient": 0.0009765625},
    ),
    properties=(
        prop("sums", sums, "the gradient sums to 0, the optimum to 1", "梯度之和为 0，最优分布之和为 1"),
        prop("stationary", stationary, "at the optimum the gradient is 0", "在最优处梯度为 0"),
        prop(
            "shift",
            shifted,
            "a constant added to all values moves the value alone",
            "所有动作价值加常数，只有期望价值跟着变",
        ),
    ),
    mistakes=(
        mistake(
            "no_bonus_in_gradient",
            (" - coefficient * a * (math.log(a) + entropy)", ""),
            en="the gradient lacks the entropy term",
            zh="梯度里没有熵的那一项",
        ),
        mistake(
            "bonus_reversed",
            ("- coefficient * a", "+ coefficient * a"),
            en="the entropy term has the wrong sign: it makes the policy sharper",
            zh="熵项符号反了：它让策略变得更尖锐",
        ),
        mistake(
            "entropy_not_subtracted",
            ("(math.log(a) + entropy)", "math.log(a)"),
            en="forgets the entropy itself in the gradient: -p (log p + H), not -p log p",
            zh="梯度里忘了熵本身：应为 -p (log p + H)，不是 -p log p",
        ),
        mistake(
            "gradient_by_probability",
            ("* a * (math.log(a) + entropy)", "* (math.log(a) + 1)"),
            en="differentiates the entropy by the probabilities; the logits are the parameters",
            zh="对概率求了熵的导数；参数是 logits",
        ),
        mistake(
            "bits",
            ("entropy = -sum(a * math.log(a) for a in p)", "entropy = -sum(a * math.log2(a) for a in p)"),
            en="measures the entropy in bits; natural logarithms are used throughout",
            zh="熵用了比特；全文都用自然对数",
        ),
        mistake(
            "no_mean",
            ("a * (q - mean)", "a * q"),
            en="forgets the expected value in the gradient: p (q - sum p q)",
            zh="梯度里忘了期望价值：应为 p (q - sum p q)",
        ),
        mistake(
            "temperature_upside_down",
            ("q / coefficient", "q * coefficient"),
            en="multiplies the values by the coefficient; the optimum is the softmax of values divided by it",
            zh="用价值乘以系数；最优分布是价值除以系数后的 softmax",
        ),
        mistake(
            "softmax_of_values",
            ("softmax([q / coefficient for q in values])", "softmax(values)"),
            en="the optimum ignores the coefficient",
            zh="最优分布没有考虑系数",
        ),
        mistake(
            "first_of_the_best",
            (
                "1.0 if q == max(values) else 0.0 for q in values",
                "1.0 if i == values.index(max(values)) else 0.0 for i in range(len(values))",
            ),
            en="without a bonus it takes the first of several best actions; they share",
            zh="没有熵奖励时，只取了并列最优中的第一个；它们应平分",
        ),
        mistake(
            "divides_by_zero",
            ("if coefficient == 0:", "if coefficient < 0:"),
            en="divides by a coefficient of 0",
            zh="系数为 0 时除以了零",
        ),
        mistake(
            "bonus_in_value",
            (
                "return gradient, optimum, sum(a * q for a, q in zip(optimum, values, strict=True))",
                "value = sum(a * q for a, q in zip(optimum, values, strict=True))\n"
                "    return gradient, optimum, value - coefficient * sum(a * math.log(a) for a in optimum if a)",
            ),
            en="adds the bonus to the value; the expected value alone is asked for",
            zh="把熵奖励加进了价值；题目只要期望价值",
        ),
        mistake(
            "value_of_the_policy",
            (
                "return gradient, optimum, sum(a * q for a, q in zip(optimum, values, strict=True))",
                "return gradient, optimum, mean",
            ),
            en="returns the expected value of the given policy; that of the optimum is asked for",
            zh="返回的是所给策略的期望价值；题目要最优处的",
        ),
        mistake(
            "overflow",
            ("math.exp(z - max(row))", "math.exp(z)"),
            en="the exponential overflows for a small coefficient: subtract the largest logit first",
            zh="系数很小时指数溢出：先减去最大的 logit",
        ),
    ),
)
