"""A step limit of 2: success stays 0 and every advantage is 0."""

from labs.grading.draw import Draw
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import require, same

NAMES = ("read", "right", "wrong", "submit", "max_steps", "group_size")


def inputs(draw: Draw) -> Inputs:
    right = draw.number(0, 1)
    return {
        "read": draw.number(0, 1),
        "right": right,
        "wrong": (1 - right) * draw.number(0, 1),
        "submit": draw.number(0, 1),
        "max_steps": draw.integer(1, 5),
        "group_size": draw.integer(2, 16),
    }


def total(call: Call, x: Inputs, draw: Draw) -> None:
    """The four ways an episode can end exhaust all of them."""
    answer = call(x)
    same(sum(answer[:4]), 1.0)
    require(min(answer) >= -1e-9, answer)


def enough_is_enough(call: Call, x: Inputs, draw: Draw) -> None:
    """More than three steps change nothing."""
    same(call({**x, "max_steps": 3 + draw.integer(1, 4)}), call({**x, "max_steps": 3}))


EXERCISE = Exercise(
    name="max_steps",
    number=8,
    title=Text("A step limit of 2", "步数上限为 2"),
    function="outcome",
    minutes=20,
    kinds=dict.fromkeys(NAMES, "plain"),
    inputs=inputs,
    needs=("group_size",),
    hand=(
        Case(
            inputs=dict(zip(NAMES, (0.25, 0.25, 0.25, 0.25, 2, 16), strict=True)),
            expected=(0.0, 0.0, 0.875, 0.125, 1.0),
            note=Text("uniform policy, limit 2", "均匀策略，上限 2"),
        ),
        Case(
            inputs=dict(zip(NAMES, (0.25, 0.25, 0.25, 0.25, 4, 16), strict=True)),
            expected=(1 / 64, 1 / 64, 62 / 64, 0.0, (63 / 64) ** 16 + (1 / 64) ** 16),
            note=Text("uniform policy, limit 4", "均匀策略，上限 4"),
        ),
        Case(
            inputs=dict(zip(NAMES, (1.0, 1.0, 0.0, 1.0, 2, 4), strict=True)),
            expected=(0.0, 0.0, 0.0, 1.0, 1.0),
            note=Text("a perfect policy, limit 2", "完美的策略，上限 2"),
        ),
    ),
    probes=tuple(dict(zip(NAMES, (0.5, 0.5, 0.25, 0.5, limit, 2), strict=True)) for limit in (1, 2, 3)),
    properties=(
        prop(
            "total",
            total,
            "success, wrong answer, invalid action and timeout sum to 1",
            "成功、答错、非法动作、超时之和为 1",
        ),
        prop("three suffice", enough_is_enough, "more than 3 steps change nothing", "多于 3 步，结果不变"),
    ),
    mistakes=(
        mistake(
            "limit_ignored",
            ("finished = max_steps >= 3", "finished = True"),
            en="ignores the limit: an answer needs three decisions, read, compute and submit",
            zh="没有考虑步数上限：给出答案需要三个决策，读取、计算、提交",
        ),
        mistake(
            "limit_off_by_one_up",
            ("finished = max_steps >= 3", "finished = max_steps > 3"),
            en="asks for one step too many: with a limit of 3 the third decision still counts",
            zh="多要了一步：上限为 3 时第三个决策仍然有效",
        ),
        mistake(
            "limit_off_by_one_down",
            ("finished = max_steps >= 3", "finished = max_steps >= 2"),
            en="asks for one step too few: with a limit of 2 nothing can be submitted",
            zh="少要了一步：上限为 2 时无法提交任何答案",
        ),
        mistake(
            "timeout_is_invalid",
            ("timeout = alive", "timeout = 0.0"),
            en="counts running out of steps as an invalid action; a cut-off is a timeout",
            zh="把步数用完算成了非法动作；被截断是超时",
        ),
        mistake(
            "wrong_is_invalid",
            ("wrong_answer = computed * wrong * submit", "wrong_answer = 0.0"),
            en="counts a wrong answer as an invalid action; submitting it is allowed",
            zh="把答错算成了非法动作；提交错误答案是允许的",
        ),
        mistake(
            "wrong_tool_invalid",
            ("reached = read * (right + wrong)", "reached = read * right"),
            en="the wrong tool is not invalid: it also leads to a state in which one can submit",
            zh="用错工具不算非法：同样会到达可以提交的状态",
        ),
        mistake(
            "any_tool_right",
            ("success = computed * right * submit", "success = computed * (right + wrong) * submit"),
            en="counts the wrong tool's number as a success",
            zh="把错误工具算出的数也当成了成功",
        ),
        mistake(
            "dead_all_wrong_only",
            ("dead = success**group_size + ", "dead = "),
            en="forgets that a group in which all succeed is dead as well",
            zh="忘了全部成功的组也是死组",
        ),
        mistake(
            "dead_of_not_timeout",
            ("(1 - success) ** group_size", "(1 - success - timeout) ** group_size"),
            en="leaves timeouts out of the failures: they get reward 0 like any other",
            zh="失败里漏了超时：它和其他失败一样奖励为 0",
        ),
        mistake(
            "alive_after_one",
            ("alive = reached if max_steps == 2 else read", "alive = read"),
            en="after two decisions only what survived both is still running",
            zh="两个决策之后，只有两步都合法的回合还在进行",
        ),
    ),
)
