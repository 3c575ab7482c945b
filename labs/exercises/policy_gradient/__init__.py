"""The policy gradient of a softmax table, in closed form."""

from labs.grading.draw import Draw, numbers, table
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import same


def inputs(draw: Draw) -> Inputs:
    states, actions, count = draw.integer(1, 3), draw.integer(2, 4), draw.integer(1, 4)
    episodes = [
        [[draw.integer(0, states - 1), draw.integer(0, actions - 1)] for _ in range(draw.integer(1, 3))]
        for _ in range(count)
    ]
    return {
        "logits": table(draw, states, actions, -2, 2),
        "episodes": episodes,
        "advantages": numbers(draw, count, -2, 2),
    }


def rows_sum_to_zero(call: Call, x: Inputs, draw: Draw) -> None:
    """Probability is moved, never made."""
    same([sum(row) for row in call(x)], [0.0] * len(x["logits"]))


def shifted(call: Call, x: Inputs, draw: Draw) -> None:
    """Logits of a row plus a constant are the same policy."""
    constant = draw.choice((1.0, -2.0, 900.0))
    same(call({**x, "logits": [[z + constant for z in row] for row in x["logits"]]}), call(x))


def twice(call: Call, x: Inputs, draw: Draw) -> None:
    """Every episode twice is the same batch."""
    double = {"episodes": x["episodes"] * 2, "advantages": x["advantages"] * 2}
    same(call({**x, **double}), call(x))


EXERCISE = Exercise(
    name="policy_gradient",
    number=2,
    title=Text("The policy gradient of a softmax table", "softmax 表格策略的策略梯度"),
    function="policy_gradient",
    minutes=25,
    kinds={"logits": "plain", "episodes": "plain", "advantages": "plain"},
    inputs=inputs,
    hand=(
        Case(
            inputs={"logits": [[0.0, 0.0]], "episodes": [[[0, 1]]], "advantages": [1.0]},
            expected=[[0 - 0.5, 1 - 0.5]],
        ),
        Case(
            inputs={
                "logits": [[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]],
                "episodes": [[[0, 0], [1, 2]], [[0, 1]]],
                "advantages": [1.0, -1.0],
            },
            expected=[
                [(0.75 + 0.25) / 2, (-0.25 - 0.75) / 2, 0.0, 0.0],
                [-0.25 / 2, -0.25 / 2, 0.75 / 2, -0.25 / 2],
            ],
            note=Text("state 1 is visited by the first episode only", "状态 1 只有第一个回合到过"),
        ),
    ),
    probes=({"logits": [[1000.0, 0.0]], "episodes": [[[0, 1]]], "advantages": [1.0]},),
    properties=(
        prop("rows sum to 0", rows_sum_to_zero, "every row of the gradient sums to 0", "梯度的每一行之和为 0"),
        prop("shift", shifted, "adding a constant to all logits changes nothing", "所有 logits 加同一个常数，结果不变"),
        prop("twice", twice, "having every episode twice changes nothing", "每个回合都出现两次，结果不变"),
    ),
    mistakes=(
        mistake(
            "per_decision",
            ("count = len(episodes)", "count = sum(len(e) for e in episodes)"),
            en="divides by the number of decisions; divide by the number of episodes",
            zh="除以了决策的个数；应当除以回合的个数",
        ),
        mistake(
            "sum_over_episodes",
            ("count = len(episodes)", "count = 1"),
            en="sums over the episodes instead of averaging, so that a larger batch takes a larger step",
            zh="对回合求和而不是求平均，批次越大步子就越大",
        ),
        mistake(
            "last_decision_only",
            ("in episode:", "in episode[-1:]:"),
            en="credits the last decision only; every decision of the episode gets the advantage",
            zh="只给最后一个决策记功；回合里的每个决策都应得到这个优势",
        ),
        mistake(
            "first_decision_only",
            ("in episode:", "in episode[:1]:"),
            en="credits the first decision only; every decision of the episode gets the advantage",
            zh="只给第一个决策记功；回合里的每个决策都应得到这个优势",
        ),
        mistake(
            "no_probability",
            ("(chosen - p)", "chosen"),
            en="forgets to subtract the probabilities: the other actions must lose what the chosen one gains",
            zh="忘了减去概率：被选动作增加多少，其他动作就应减少多少",
        ),
        mistake(
            "descent",
            ("(chosen - p)", "(p - chosen)"),
            en="has the sign of the loss: the gradient of the objective, to be ascended, is asked for",
            zh="符号是损失的符号；题目要的是目标函数（要上升）的梯度",
        ),
        mistake(
            "gradient_of_probability",
            ("* (chosen - p)", "* table[state][action] * (chosen - p)"),
            en="differentiates the probability; differentiate its logarithm (do not multiply by pi(a|s))",
            zh="对概率求了导；应当对它的对数求导（不要再乘 pi(a|s)）",
        ),
        mistake(
            "length_normalised",
            ("* (chosen - p)", "/ len(episode) * (chosen - p)"),
            en="divides every episode by its length, so that decisions of long episodes count less",
            zh="每个回合又除以了自己的长度，长回合里的决策权重变小了",
        ),
        mistake(
            "only_good_episodes",
            (
                "strict=True):\n        for",
                "strict=True):\n        if advantage < 0:\n            continue\n        for",
            ),
            en="skips episodes with a negative advantage; they push their actions down",
            zh="跳过了优势为负的回合；它们应当把自己的动作往下压",
        ),
        mistake(
            "overflow",
            ("math.exp(z - max(row))", "math.exp(z)"),
            en="the exponential of a large logit overflows: subtract the largest logit first",
            zh="大的 logit 取指数会溢出：先减去最大的 logit",
        ),
        mistake(
            "one_softmax_for_the_table",
            (
                "[softmax(row) for row in logits]",
                "[[p * len(logits) for p in softmax([z for r in logits for z in r])[i * len(row) : (i + 1) * len(row)]]"
                " for i, row in enumerate(logits)]",
            ),
            en="takes one softmax over the whole table; every state has a distribution of its own",
            zh="对整张表做了一个 softmax；每个状态都有自己的分布",
        ),
    ),
)
