"""Group size 2 against 16 at the same number of rollouts, exactly."""

from labs.grading.draw import Draw
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import require, same


def inputs(draw: Draw) -> Inputs:
    size = draw.integer(1, 16)
    return {"success": draw.number(0, 1), "group_size": size, "rollouts": size * draw.integer(1, 12)}


def mirror(call: Call, x: Inputs, draw: Draw) -> None:
    """Success and failure may change places."""
    same(call({**x, "success": 1 - x["success"]}), call(x))


def proportional(call: Call, x: Inputs, draw: Draw) -> None:
    """Twice the rollouts, twice the live groups and twice the signal."""
    dead, live, signal = call(x)
    same(call({**x, "rollouts": 2 * x["rollouts"]}), (dead, 2 * live, 2 * signal))


def bounded(call: Call, x: Inputs, draw: Draw) -> None:
    """No rollout has more than |A| = 1 on average."""
    dead, live, signal = call(x)
    require(-1e-9 <= dead <= 1 + 1e-9 and signal <= x["rollouts"] + 1e-9 and live >= -1e-9, (dead, live, signal))


EXERCISE = Exercise(
    name="group_size",
    number=7,
    title=Text("Group size 2 against 16", "组大小 2 与 16"),
    function="group_size_effect",
    minutes=25,
    kinds={"success": "plain", "group_size": "plain", "rollouts": "plain"},
    inputs=inputs,
    needs=("zero_variance",),
    numbers={"dead2": 0.9**2 + 0.1**2, "dead16": 0.9**16 + 0.1**16, "live2": 96 * 0.18, "live16": 12 * (1 - 0.9**16)},
    hand=(
        Case(
            inputs={"success": 0.5, "group_size": 2, "rollouts": 16},
            expected=(0.5, 4.0, 8 * 0.5 * 2.0),
        ),
        Case(
            inputs={"success": 0.5, "group_size": 4, "rollouts": 16},
            expected=(0.125, 3.5, 4 * (2 * 4 / 16 * 2 * 3**0.5 + 6 / 16 * 4)),
        ),
        Case(inputs={"success": 0.0, "group_size": 16, "rollouts": 192}, expected=(1.0, 0.0, 0.0)),
        Case(
            inputs={"success": 0.3, "group_size": 1, "rollouts": 5},
            expected=(1.0, 0.0, 0.0),
            note=Text("a group of one is always dead", "独自一组总是死组"),
        ),
    ),
    properties=(
        prop(
            "mirror",
            mirror,
            "success rates p and 1 - p give the same three numbers",
            "成功率 p 与 1 - p 给出同样的三个数",
        ),
        prop(
            "proportional",
            proportional,
            "twice the rollouts: twice the live groups, twice the signal",
            "rollout 加倍：活组与信号也加倍",
        ),
        prop("bounded", bounded, "the signal never exceeds one per rollout", "信号不超过每条 rollout 1"),
    ),
    mistakes=(
        mistake(
            "all_wrong_only",
            ("dead = p**n + (1 - p) ** n", "dead = (1 - p) ** n"),
            en="a group is dead when all succeed as well, not only when all fail",
            zh="全对的组也是死组，不只是全错的组",
        ),
        mistake(
            "all_right_only",
            ("dead = p**n + (1 - p) ** n", "dead = p**n"),
            en="a group is dead when all fail as well, not only when all succeed",
            zh="全错的组也是死组，不只是全对的组",
        ),
        mistake(
            "singleton_twice",
            ("if n > 1 else 1.0", "if n > 1 else 0.0"),
            en="a group of one has nothing to compare: it is always dead",
            zh="独自一组没有比较对象：总是死组",
        ),
        mistake(
            "dead_groups_counted",
            ("groups * (1 - dead)", "groups * dead"),
            en="returns the expected number of dead groups; the live ones are asked for",
            zh="返回的是死组的期望个数；题目要活组的",
        ),
        mistake(
            "rollouts_as_groups",
            ("groups = rollouts / n", "groups = rollouts"),
            en="counts every rollout as a group: there are rollouts / group_size groups",
            zh="把每条 rollout 当作一组：组数是 rollouts / group_size",
        ),
        mistake(
            "signal_per_group",
            ("return dead, groups * (1 - dead), groups * signal", "return dead, groups * (1 - dead), signal"),
            en="returns the signal of one group; the sum over all groups is asked for",
            zh="返回的是一组的信号；题目要所有组之和",
        ),
        mistake(
            "no_binomial",
            ("math.comb(n, k) * ", ""),
            en="forgets the binomial coefficient: k successes among n can stand in many places",
            zh="忘了二项式系数：n 次中的 k 次成功可以出现在不同位置",
        ),
        mistake(
            "successes_only",
            ("2 * math.sqrt(k * (n - k))", "math.sqrt(k * (n - k))"),
            en="sums |A| over the successes only; the failures carry as much",
            zh="只对成功的轨迹求了 |A| 之和；失败的轨迹分量一样大",
        ),
        mistake(
            "plug_in",
            (
                "signal = sum(math.comb(n, k) * p**k * (1 - p) ** (n - k)"
                " * 2 * math.sqrt(k * (n - k)) for k in range(1, n))",
                "signal = 2 * n * math.sqrt(p * (1 - p)) if n > 1 else 0.0",
            ),
            en="puts the expected number of successes into the formula; average the formula over that number",
            zh="把成功次数的期望代入了公式；应当对成功次数求公式的期望",
        ),
        mistake(
            "sample_std",
            ("2 * math.sqrt(k * (n - k))", "2 * math.sqrt(k * (n - k) * (n - 1) / n)"),
            en="uses the sample's standard deviation; the course's rule uses the population's",
            zh="用了样本标准差；课程规则用总体标准差",
        ),
        mistake(
            "not_normalised",
            ("2 * math.sqrt(k * (n - k))", "2 * k * (n - k) / n"),
            en="forgets to divide the centred rewards by the standard deviation",
            zh="中心化后的奖励忘了除以标准差",
        ),
    ),
)
