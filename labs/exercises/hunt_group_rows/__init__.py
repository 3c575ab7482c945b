"""Find the silent bug: groups of unequal size."""

from labs.grading.draw import Draw, numbers
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import same

GROUPED = """    members: dict[str, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    blocks = list(members.values())
"""
VIEWED = """    count = len(rewards) // group_size
    if count * group_size == len(rewards):
        blocks = [list(range(k * group_size, (k + 1) * group_size)) for k in range(count)]
    else:
        blocks = [list(range(len(rewards)))]
"""
CUT = """    blocks = [
        list(range(k, min(k + group_size, len(rewards)))) for k in range(0, len(rewards), group_size)
    ]
"""
NEIGHBOURS = """    blocks: list[list[int]] = []
    for i, group in enumerate(groups):
        if i and groups[i - 1] == group:
            blocks[-1].append(i)
        else:
            blocks.append([i])
"""


def inputs(draw: Draw) -> Inputs:
    size = draw.integer(2, 3)
    labels = [name for name in ("a", "b", "c") for _ in range(draw.integer(1, size))]
    if draw.choice((False, True)):
        labels = [labels[i] for i in draw.permutation(len(labels))]
    return {"rewards": numbers(draw, len(labels), -1, 2), "groups": labels, "group_size": size}


def shift(call: Call, x: Inputs, draw: Draw) -> None:
    """How hard a task is does not matter."""
    group, constant = draw.choice(x["groups"]), draw.number(-3, 3)
    moved = [r + constant if g == group else r for r, g in zip(x["rewards"], x["groups"], strict=True)]
    same(call({**x, "rewards": moved}), call(x))


def order(call: Call, x: Inputs, draw: Draw) -> None:
    """Rows in another order."""
    places = draw.permutation(len(x["rewards"]))
    moved = {n: [x[n][i] for i in places] for n in ("rewards", "groups")}
    answer = call(x)
    same(call({**x, **moved}), [answer[i] for i in places])


EXERCISE = Exercise(
    name="hunt_group_rows",
    number=5,
    title=Text("Find the silent bug: groups after an abort", "找出无声的错误：中止之后的组"),
    function="centred",
    minutes=20,
    kinds={"rewards": "plain", "groups": "plain", "group_size": "plain"},
    inputs=inputs,
    needs=("rloo",),
    stub=((GROUPED, VIEWED),),
    hand=(
        Case(
            inputs={"rewards": [1.0, 0.0, 1.0, 0.0], "groups": ["a", "a", "b", "b"], "group_size": 2},
            expected=[0.5, -0.5, 0.5, -0.5],
        ),
        Case(
            inputs={
                "rewards": [1.0, 0.0, 1.0, 1.0, 1.0, 0.0],
                "groups": ["a", "a", "a", "b", "b", "c"],
                "group_size": 3,
            },
            expected=[1 / 3, -2 / 3, 1 / 3, 0.0, 0.0, 0.0],
            note=Text("one of b and two of c were aborted", "b 有一条、c 有两条被中止"),
        ),
        Case(
            inputs={
                "rewards": [2.0, 2.0, 2.0, 4.0, 0.0, 4.0, 0.0, 8.0, 8.0, 8.0, 8.0],
                "groups": ["a"] * 3 + ["b"] * 4 + ["c"] * 4,
                "group_size": 4,
            },
            expected=[0.0, 0.0, 0.0, 2.0, -2.0, 2.0, -2.0, 0.0, 0.0, 0.0, 0.0],
            note=Text("groups a and c say nothing", "a 组和 c 组没有信息"),
        ),
    ),
    properties=(
        prop(
            "difficulty",
            shift,
            "making one task easier for all of its rows changes nothing",
            "让某个任务对它的每一行都更容易，结果不变",
        ),
        prop("order", order, "reordering the rows reorders the advantages", "行换顺序，优势跟着换顺序"),
    ),
    mistakes=(
        mistake(
            "one_block",
            (GROUPED, VIEWED),
            en="when rows are missing, the whole batch becomes one group: rows are compared across tasks",
            zh="缺行时整个批次变成了一组：不同任务的行互相比较了",
        ),
        mistake(
            "blocks_of_n",
            (GROUPED, CUT),
            en="cuts the batch into blocks of group_size whatever the labels say",
            zh="不管标签，把批次按 group_size 切块",
        ),
        mistake(
            "neighbours_only",
            (GROUPED, NEIGHBOURS),
            en="groups neighbours only; rows of one task may stand apart",
            zh="只把相邻的行归为一组；同一任务的行可能并不相邻",
        ),
        mistake(
            "singleton_keeps_score",
            (
                "sum(rewards[i] for i in block) / len(block)",
                "sum(rewards[i] for i in block) / len(block) if len(block) > 1 else 0.0",
            ),
            en="a row alone in its group keeps its score; with nothing to compare it with it gets 0",
            zh="独自一组的行保留了分数；没有比较对象，应为 0",
        ),
        mistake(
            "nominal_size",
            ("/ len(block)", "/ group_size"),
            en="divides by the nominal group size; aborted rows do not count",
            zh="除以了名义上的组大小；被中止的行不算",
        ),
        mistake(
            "incomplete_dropped",
            ("for block in blocks:", "for block in (b for b in blocks if len(b) == group_size):"),
            en="gives incomplete groups 0 altogether; what is left of them can still be compared",
            zh="不完整的组全部给了 0；剩下的行仍然可以比较",
        ),
        mistake(
            "leave_one_out",
            ("rewards[i] - baseline", "(rewards[i] - baseline) * len(block) / max(len(block) - 1, 1)"),
            en="leaves the own reward out of the baseline; here the mean of the whole group is asked for",
            zh="基线里排除了自己；本题要的是整组的均值",
        ),
        mistake(
            "divided_by_std",
            (
                "rewards[i] - baseline",
                "(rewards[i] - baseline)"
                " / (((sum((rewards[j] - baseline) ** 2 for j in block) / len(block)) ** 0.5) or 1)",
            ),
            en="divides by the standard deviation; here the rewards are only centred",
            zh="除以了标准差；本题只做中心化",
        ),
    ),
)
