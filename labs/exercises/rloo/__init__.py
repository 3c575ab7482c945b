"""RLOO: compare every trajectory with the mean of the others in its group."""

from labs.grading.draw import Draw
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import same


def inputs(draw: Draw) -> Inputs:
    count = draw.integer(1, 7)
    return {
        "rewards": [draw.choice((0.0, 1.0, draw.number(-1, 2))) for _ in range(count)],
        "groups": [draw.choice(("a", "b", "c")) for _ in range(count)],
    }


def shift(call: Call, x: Inputs, draw: Draw) -> None:
    """A constant added to a group of several changes nothing."""
    constant = draw.number(-3, 3)
    crowded = [g for g in x["groups"] if x["groups"].count(g) > 1]
    moved = [r + constant if g in crowded else r for r, g in zip(x["rewards"], x["groups"], strict=True)]
    same(call({**x, "rewards": moved}), call(x))


def zero_sum(call: Call, x: Inputs, draw: Draw) -> None:
    """The advantages of a group of several sum to zero."""
    answer = call(x)
    for group in set(x["groups"]):
        own = [a for a, g in zip(answer, x["groups"], strict=True) if g == group]
        if len(own) > 1:
            same(sum(own), 0.0)


def order(call: Call, x: Inputs, draw: Draw) -> None:
    """Rows in another order get their advantages in that order."""
    places = draw.permutation(len(x["rewards"]))
    moved = {name: [column[i] for i in places] for name, column in x.items()}
    answer = call(x)
    same(call(moved), [answer[i] for i in places])


def doubled(call: Call, x: Inputs, draw: Draw) -> None:
    """Twice the rewards are twice the advantages."""
    same(call({**x, "rewards": [2 * r for r in x["rewards"]]}), [2 * a for a in call(x)])


EXERCISE = Exercise(
    name="rloo",
    number=4,
    title=Text("Leave one out (RLOO)", "留一法基线（RLOO）"),
    function="rloo",
    minutes=15,
    kinds={"rewards": "plain", "groups": "plain"},
    inputs=inputs,
    hand=(
        Case(
            inputs={"rewards": [1.0, 0.0, 0.5], "groups": ["a", "a", "a"]},
            expected=[1 - (0 + 0.5) / 2, 0 - (1 + 0.5) / 2, 0.5 - (1 + 0) / 2],
        ),
        Case(
            inputs={"rewards": [1.0, 1.0, 1.0, 0.0, 0.7], "groups": ["a", "b", "b", "a", "c"]},
            expected=[1 - 0.0, 1 - 1.0, 1 - 1.0, 0 - 1.0, 0.7],
            note=Text("groups are mixed up, and c stands alone", "各组交错排列，c 独自一组"),
        ),
    ),
    properties=(
        prop(
            "shift",
            shift,
            "adding a constant to every reward of a group changes nothing",
            "给一组的所有奖励加同一个常数，结果不变",
        ),
        prop("zero sum", zero_sum, "the advantages of a group of several sum to 0", "多于一条的组，优势之和为 0"),
        prop("order", order, "reordering the trajectories reorders the advantages", "轨迹换顺序，优势跟着换顺序"),
        prop("scale", doubled, "twice the rewards give twice the advantages", "奖励加倍，优势也加倍"),
    ),
    mistakes=(
        mistake(
            "own_included",
            ("(total - reward) / (size - 1)", "total / size"),
            en="the baseline is the mean of the whole group; leave the trajectory's own reward out",
            zh="基线用了全组均值；应当把这条轨迹自己的奖励排除在外",
        ),
        mistake(
            "own_subtracted_only_above",
            ("(total - reward) / (size - 1)", "(total - reward) / size"),
            en="leaves its own reward out of the sum but still divides by the whole group's size",
            zh="求和时排除了自己，分母却还是全组的条数",
        ),
        mistake(
            "own_subtracted_only_below",
            ("(total - reward) / (size - 1)", "total / (size - 1)"),
            en="divides by n - 1 but keeps its own reward in the sum",
            zh="分母用了 n - 1，求和时却保留了自己的奖励",
        ),
        mistake(
            "over_the_batch",
            ("if g == group", "if g is not None"),
            en="compares with the whole batch instead of with the trajectory's own group",
            zh="和整个批次比较，而不是和自己那一组比较",
        ),
        mistake(
            "singleton_zero",
            ("advantages.append(reward)", "advantages.append(0.0)"),
            en="gives a lone trajectory the advantage 0; here it keeps its reward, as in verl's rloo",
            zh="独自一组的轨迹给了 0；本题中它保留自己的奖励（与 verl 的 rloo 一致）",
        ),
        mistake(
            "wrong_sign",
            ("reward - (total", "-reward + (total"),
            en="subtracts the reward from the baseline: the sign is the wrong way round",
            zh="用基线减奖励：符号反了",
        ),
        mistake(
            "divided_by_std",
            (
                "return advantages",
                "spread = (sum(a * a for a in advantages) / len(advantages)) ** 0.5\n"
                "    return [a / spread if spread else a for a in advantages]",
            ),
            en="divides by a standard deviation; leave-one-out does not normalise",
            zh="除以了标准差；留一法不做归一化",
        ),
        mistake(
            "sorted_by_group",
            (
                "zip(rewards, groups, strict=True):\n        own",
                "sorted(zip(rewards, groups, strict=True), key=lambda p: p[1]):\n        own",
            ),
            en="returns the advantages group by group instead of in the order of the trajectories",
            zh="按组的顺序返回优势，而不是按轨迹原来的顺序",
        ),
        mistake(
            "best_of_the_others",
            ("(total - reward) / (size - 1)", "sorted(own)[-2 if reward == max(own) else -1]"),
            en="compares with the best of the others instead of with their mean",
            zh="和其他轨迹中最好的一条比较，而不是和它们的均值比较",
        ),
    ),
)
