"""Advantage redistribution: better passes get more, the sum stays."""

from labs.grading.draw import Draw
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import require, same


def inputs(draw: Draw) -> Inputs:
    count = draw.integer(1, 6)
    return {
        "rewards": [draw.choice((1.0, 0.0)) for _ in range(count)],
        "quality": [draw.choice((1.0, 0.5, draw.number(0.125, 1.0))) for _ in range(count)],
        "cap": draw.choice((None, 1.2, 1.5)),
    }


def zero_sum(call: Call, x: Inputs, draw: Draw) -> None:
    """Whatever the cap, the sum is 0."""
    same(sum(call(x)), 0.0)


def equal_quality(call: Call, x: Inputs, draw: Draw) -> None:
    """Equal grades change nothing, without a cap."""
    grade = draw.choice((1.0, 0.5, 0.25))
    mean = sum(x["rewards"]) / len(x["rewards"])
    same(call({**x, "quality": [grade] * len(x["rewards"]), "cap": None}), [r - mean for r in x["rewards"]])


def order_on_passes(call: Call, x: Inputs, draw: Draw) -> None:
    """Among passes in a mixed group a better grade never gets less."""
    answer = call(x)
    passes = [i for i, r in enumerate(x["rewards"]) if r == 1]
    if len(passes) < len(answer):
        for i in passes:
            for j in passes:
                require(x["quality"][i] <= x["quality"][j] or answer[i] >= answer[j] - 1e-12, answer)


def failures(call: Call, x: Inputs, draw: Draw) -> None:
    """Grades of failures are not read."""
    other = [q if r == 1 else draw.number(0.25, 1.0) for q, r in zip(x["quality"], x["rewards"], strict=True)]
    same(call({**x, "quality": other}), call(x))


EXERCISE = Exercise(
    name="redistribution",
    number=23,
    title=Text("Advantage redistribution", "优势再分配"),
    function="redistribute",
    minutes=25,
    kinds={"rewards": "plain", "quality": "plain", "cap": "plain"},
    inputs=inputs,
    needs=("group_advantages",),
    hidden=14,
    hand=(
        Case(
            inputs={"rewards": [1.0, 1.0, 0.0, 0.0], "quality": [1.0, 0.5, 1.0, 1.0], "cap": None},
            expected=[2 / 3, 1 / 3, -0.5, -0.5],
            note=Text("lambda = 1/(0.5 + 0.25) = 4/3", "lambda = 1/(0.5 + 0.25) = 4/3"),
        ),
        Case(
            inputs={"rewards": [1.0, 1.0, 0.0, 0.0], "quality": [1.0, 0.5, 1.0, 1.0], "cap": 1.2},
            expected=[0.625, 0.325, -0.475, -0.475],
            note=Text(
                "capped: 0.6, 0.3, -0.5, -0.5, then recentred by -0.025",
                "封顶：0.6、0.3、-0.5、-0.5，再按 -0.025 重新中心化",
            ),
        ),
        Case(
            inputs={"rewards": [1.0, 1.0], "quality": [1.0, 0.5], "cap": None},
            expected=[0.0, 0.0],
            note=Text("all passed: nothing to redistribute", "全部通过：没有可分配的"),
        ),
    ),
    properties=(
        prop("zero sum", zero_sum, "the advantages sum to 0", "优势之和为 0"),
        prop(
            "equal grades", equal_quality, "equal grades without a cap change nothing", "评分相等且不封顶时，什么都不变"
        ),
        prop(
            "order",
            order_on_passes,
            "among passes a better grade never gets less",
            "通过者之中，评分更高的不会得到更少",
        ),
        prop("failures", failures, "grades of failures are not read", "失败者的评分不被读取"),
    ),
    mistakes=(
        mistake(
            "no_lambda",
            ("scale = sum(advantages[i] for i in passes) / weighted", "scale = 1.0"),
            en="forgets lambda: grading alone only takes credit away from the passes",
            zh="忘了 lambda：只打分就只会从通过者那里拿走信用",
        ),
        mistake(
            "lambda_upside_down",
            (
                "scale = sum(advantages[i] for i in passes) / weighted",
                "scale = weighted / sum(advantages[i] for i in passes)",
            ),
            en="lambda is upside down: sum of A over sum of f A",
            zh="lambda 颠倒了：应为 A 之和除以 f A 之和",
        ),
        mistake(
            "cap_ignored",
            ("scale = min(scale, cap)", "pass"),
            en="ignores the cap on lambda",
            zh="没有理会 lambda 的上限",
        ),
        mistake(
            "cap_on_the_product",
            ("scale = min(scale, cap)", "pass"),
            (
                "advantages[i] = scale * quality[i] * advantages[i]",
                "advantages[i] = min(scale * quality[i], cap or 1e9) * advantages[i]",
            ),
            en="caps lambda times f; lambda alone is capped",
            zh="对 lambda 乘 f 封顶了；只应对 lambda 封顶",
        ),
        mistake(
            "cap_as_floor",
            ("min(scale, cap)", "max(scale, cap)"),
            en="the cap is an upper bound, not a lower one",
            zh="cap 是上限，不是下限",
        ),
        mistake(
            "not_recentred",
            ("return [a - centre for a in advantages]", "return advantages"),
            en="forgets to recentre after the cap: the sum of the group is then below 0",
            zh="封顶之后忘了重新中心化：组内之和会小于 0",
        ),
        mistake(
            "passes_recentred",
            (
                "return [a - centre for a in advantages]",
                "centre *= len(advantages) / len(passes)\n"
                "    return [a - centre if i in passes else a for i, a in enumerate(advantages)]",
            ),
            en="recentres the passes only; the mean is subtracted from every member of the group",
            zh="只对通过者重新中心化；应从组的每个成员中减去均值",
        ),
        mistake(
            "failures_graded",
            (
                "    centre = sum",
                "    for i, r in enumerate(rewards):\n"
                "        advantages[i] *= quality[i] if r != 1 else 1\n    centre = sum",
            ),
            en="grades the failures as well; their advantages stay until the recentring",
            zh="给失败者也乘了评分；在重新中心化之前它们的优势不变",
        ),
        mistake(
            "worse_gets_more",
            ("weighted = sum(quality[i] *", "quality = [1 / q for q in quality]\n    weighted = sum(quality[i] *"),
            en="gives more to the worse grade",
            zh="评分更差的反而得到更多",
        ),
        mistake(
            "divided_by_std",
            (
                "    passes = [",
                "    spread = (sum(a * a for a in advantages) / len(advantages)) ** 0.5 or 1.0\n"
                "    advantages = [a / spread for a in advantages]\n    passes = [",
            ),
            en="divides by the standard deviation; the rule only centres",
            zh="除以了标准差；该规则只做中心化",
        ),
        mistake(
            "grade_as_reward",
            (
                "    mean = sum(rewards)",
                "    rewards = [r * q for r, q in zip(rewards, quality, strict=True)]\n    mean = sum(rewards)",
            ),
            en="multiplies the reward by the grade before centring, which changes groups in which all pass",
            zh="在中心化之前把奖励乘了评分：那是另一种方法，会改变全部通过的组",
        ),
        mistake(
            "divides_by_zero",
            ("    if weighted == 0:\n        return advantages\n", ""),
            en="divides by zero in a group without passes, or of passes only",
            zh="没有通过者或全部通过的组里除以了零",
        ),
    ),
)
