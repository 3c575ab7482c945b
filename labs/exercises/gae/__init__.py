"""GAE by hand: credit that crosses a tool's reply, and a cut-off that is no end."""

from labs.grading.draw import Draw, mask_table, numbers
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import same


def inputs(draw: Draw) -> Inputs:
    width = draw.integer(1, 6)
    return {
        "rewards": numbers(draw, width, -1, 1),
        "values": numbers(draw, width, -1, 1),
        "mask": mask_table(draw, 1, width)[0],
        "last_value": draw.choice((0.0, draw.number(-1, 1))),
        "gamma": draw.choice((1.0, 0.9, 0.5)),
        "lam": draw.choice((1.0, 0.95, 0.0, 0.5)),
    }


def tool_text(call: Call, x: Inputs, draw: Draw) -> None:
    """Rewards and values under mask 0 do not matter."""
    noise = draw.number(-4, 4)
    keep = {n: [v if m else v + noise for v, m in zip(x[n], x["mask"], strict=True)] for n in ("rewards", "values")}
    same(call({**x, **keep}), call(x))


def longer_reply(call: Call, x: Inputs, draw: Draw) -> None:
    """One more token of tool text anywhere costs nothing."""
    at = draw.integer(0, len(x["mask"]))
    wider = {n: [*x[n][:at], 0.0, *x[n][at:]] for n in ("rewards", "values")}
    answer = call({**x, **wider, "mask": [*x["mask"][:at], 0, *x["mask"][at:]]})
    short = call(x)
    same([[*a[:at], *a[at + 1 :]] for a in answer], [list(a) for a in short])


def monte_carlo(call: Call, x: Inputs, draw: Draw) -> None:
    """With lambda = 1 the return of a policy token is the discounted sum of what follows, whatever the critic says."""
    other = numbers(draw, len(x["values"]), -1, 1)
    same(call({**x, "lam": 1.0, "values": other})[1], call({**x, "lam": 1.0})[1])


EXERCISE = Exercise(
    name="gae",
    number=12,
    title=Text("GAE by hand, with tool replies and a cut-off", "手算 GAE：工具回复与截断"),
    function="gae",
    minutes=30,
    kinds=dict.fromkeys(("rewards", "values", "mask", "last_value", "gamma", "lam"), "plain"),
    inputs=inputs,
    hand=(
        Case(
            inputs={
                "rewards": [0.0, 0.0, 1.0],
                "values": [0.2, 0.3, 0.4],
                "mask": [1, 1, 1],
                "last_value": 0.0,
                "gamma": 1.0,
                "lam": 0.95,
            },
            expected=([0.7365, 0.67, 0.6], [0.9365, 0.97, 1.0]),
        ),
        Case(
            inputs={
                "rewards": [0.0, 0.0, 1.0],
                "values": [0.2, 9.0, 0.4],
                "mask": [1, 0, 1],
                "last_value": 0.0,
                "gamma": 1.0,
                "lam": 0.95,
            },
            expected=([0.2 + 0.95 * 0.6, 0.0, 0.6], [0.97, 0.0, 1.0]),
            note=Text("a tool replies in the middle", "中间是工具回复"),
        ),
        Case(
            inputs={
                "rewards": [-1.0, -1.0, -1.0],
                "values": [-5.0, -4.0, -3.0],
                "mask": [1, 1, 1],
                "last_value": -2.0,
                "gamma": 1.0,
                "lam": 1.0,
            },
            expected=([0.0, 0.0, 0.0], [-5.0, -4.0, -3.0]),
            note=Text("cut off by a step limit; a state worth -2 follows", "被步数上限截断，后面的状态价值 -2"),
        ),
    ),
    properties=(
        prop(
            "tool text", tool_text, "rewards and values under mask 0 do not matter", "掩码为 0 处的奖励和价值不影响结果"
        ),
        prop(
            "longer reply",
            longer_reply,
            "one more token of tool text costs neither gamma nor lambda",
            "工具文字多一个 token，不损失 gamma 或 lambda",
        ),
        prop(
            "lambda 1",
            monte_carlo,
            "with lambda = 1 the returns do not depend on the critic",
            "lambda = 1 时，回报不依赖价值估计",
        ),
    ),
    mistakes=(
        mistake(
            "resets_at_tool",
            ("            continue", "            next_value, trace = 0.0, 0.0\n            continue"),
            en="resets credit at a tool's reply: the decisions before it learn nothing of what came after",
            zh="在工具回复处把信用清零：之前的决策学不到之后发生的事",
        ),
        mistake(
            "hole_costs_a_step",
            ("            continue", "            next_value, trace = 0.0, gamma * lam * trace\n            continue"),
            en="treats a tool's reply as a state of value 0 that costs one more gamma times lambda",
            zh="把工具回复当作价值为 0 的状态，多乘了一次 gamma 乘 lambda",
        ),
        mistake(
            "ignores_mask",
            ("        if not mask[t]:\n            continue\n", ""),
            en="ignores the mask: rewards and values of tool text enter as if the policy had written it",
            zh="没有用掩码：工具文字的奖励和价值像策略自己写的一样参与了计算",
        ),
        mistake(
            "cutoff_is_end",
            ("next_value, trace = last_value, 0.0", "next_value, trace = 0.0, 0.0"),
            en="treats a cut-off as the end: the value of the state after the last token is lost",
            zh="把截断当成了结束：丢掉了最后一个 token 之后那个状态的价值",
        ),
        mistake(
            "one_step_only",
            ("trace = delta + gamma * lam * trace", "trace = delta"),
            en="returns the one-step errors delta; their discounted sum is asked for",
            zh="返回的是单步误差 delta；题目要的是它们的折扣和",
        ),
        mistake(
            "lambda_without_gamma",
            ("delta + gamma * lam * trace", "delta + lam * trace"),
            en="multiplies the trace by lambda alone; it decays by gamma times lambda",
            zh="迹只乘了 lambda；应当按 gamma 乘 lambda 衰减",
        ),
        mistake(
            "gamma_without_lambda",
            ("delta + gamma * lam * trace", "delta + gamma * trace"),
            en="forgets lambda in the trace, which makes every answer the Monte Carlo one",
            zh="迹里忘了 lambda，于是每个答案都变成了蒙特卡洛",
        ),
        mistake(
            "undiscounted_next",
            ("delta = rewards[t] + gamma * next_value", "delta = rewards[t] + next_value"),
            en="forgets gamma in front of the next value",
            zh="下一个价值前忘了乘 gamma",
        ),
        mistake(
            "returns_without_value",
            ("returns[t] = trace + values[t]", "returns[t] = trace"),
            en="returns the advantages twice; the returns are advantage plus value",
            zh="优势返回了两次；回报等于优势加价值",
        ),
        mistake(
            "value_added",
            ("- values[t]\n", "+ values[t]\n"),
            en="adds the value of the present state to delta instead of subtracting it",
            zh="delta 里把当前状态的价值加上去了，应当减去",
        ),
        mistake(
            "forwards",
            ("reversed(range(len(rewards)))", "range(len(rewards))"),
            en="runs through the row from left to right; credit flows from the end backwards",
            zh="从左到右计算；信用应当从末尾往前传",
        ),
    ),
)
