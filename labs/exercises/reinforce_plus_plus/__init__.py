"""REINFORCE++ at mask 0: does credit cross a tool's reply?"""

from labs.grading.draw import Draw, mask_table, numbers
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import same


def inputs(draw: Draw) -> Inputs:
    width = draw.integer(1, 7)
    return {
        "rewards": numbers(draw, width, -1, 1),
        "mask": mask_table(draw, 1, width, empty=True)[0],
        "gamma": draw.choice((1.0, 0.9, 0.5)),
    }


def longer_reply(call: Call, x: Inputs, draw: Draw) -> None:
    """A longer reply costs nothing under the first rule."""
    at = draw.integer(0, len(x["mask"]))
    wider = {
        **x,
        "rewards": [*x["rewards"][:at], 0.0, *x["rewards"][at:]],
        "mask": [*x["mask"][:at], 0, *x["mask"][at:]],
    }
    long = call(wider)[0]
    same([*long[:at], *long[at + 1 :]], call(x)[0])


def no_tool(call: Call, x: Inputs, draw: Draw) -> None:
    """Without tool text the two rules are one."""
    carried, reset = call({**x, "mask": [1] * len(x["mask"])})
    same(carried, reset)


def lost(call: Call, x: Inputs, draw: Draw) -> None:
    """A reward on tool text is lost under both."""
    noise = draw.number(-3, 3)
    same(
        list(call({**x, "rewards": [r if m else r + noise for r, m in zip(x["rewards"], x["mask"], strict=True)]})),
        list(call(x)),
    )


EXERCISE = Exercise(
    name="reinforce_plus_plus",
    number=11,
    title=Text("REINFORCE++ at mask 0", "REINFORCE++ 遇到掩码 0"),
    function="returns_to_go",
    minutes=20,
    kinds={"rewards": "plain", "mask": "plain", "gamma": "plain"},
    inputs=inputs,
    hand=(
        Case(
            inputs={"rewards": [0.0, 0.0, 0.0, 0.0, 1.0], "mask": [1, 1, 0, 1, 1], "gamma": 0.9},
            expected=([0.9**3, 0.9**2, 0.0, 0.9, 1.0], [0.0, 0.0, 0.0, 0.9, 1.0]),
        ),
        Case(
            inputs={"rewards": [0.5, 5.0, 0.0, 1.0], "mask": [1, 0, 1, 0], "gamma": 1.0},
            expected=([0.5, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0]),
            note=Text("rewards on tool text are lost", "工具文字上的奖励丢失"),
        ),
    ),
    properties=(
        prop(
            "longer reply",
            longer_reply,
            "carried: one more token of tool text changes nothing",
            "穿过规则：工具文字多一个 token，结果不变",
        ),
        prop("no tool text", no_tool, "without tool text both rules agree", "没有工具文字时，两种规则一致"),
        prop("lost rewards", lost, "a reward under mask 0 is lost", "掩码为 0 处的奖励丢失"),
    ),
    mistakes=(
        mistake(
            "always_resets",
            ("            local = 0.0", "            local = crossing = 0.0"),
            en="resets credit at a tool reply under both rules: the call before the reply learns nothing",
            zh="两种规则都在工具回复处清零：回复之前的调用什么也学不到",
        ),
        mistake(
            "never_resets",
            ("            local = 0.0", "            pass"),
            en="carries credit across a tool reply under both rules; the second one begins anew",
            zh="两种规则都让信用穿过工具回复；第二种应当重新开始",
        ),
        mistake(
            "swapped",
            ("return carried, reset", "return reset, carried"),
            en="returns the two lists in the wrong order: carried first",
            zh="两个列表的顺序反了：穿过的在前",
        ),
        mistake(
            "hole_costs_gamma",
            ("            local = 0.0", "            local = 0.0\n            crossing = gamma * crossing"),
            en="discounts while crossing tool text; gamma is paid per token of the policy",
            zh="穿过工具文字时也打了折；gamma 只按策略的 token 计",
        ),
        mistake(
            "tool_rewards_count",
            ("            local = 0.0", "            local = 0.0\n            crossing += rewards[t]"),
            en="counts rewards that stand on tool text; they are lost under this rule",
            zh="把工具文字上的奖励也算进来了；按此规则它们会丢失",
        ),
        mistake(
            "raw_under_mask",
            ("            local = 0.0", "            carried[t] = crossing\n            local = 0.0"),
            en="leaves the carried return on tool text; under mask 0 the answer is 0",
            zh="工具文字处留下了穿过的回报；掩码为 0 处应为 0",
        ),
        mistake(
            "gamma_on_reward",
            ("crossing = rewards[t] + gamma * crossing", "crossing = gamma * (rewards[t] + crossing)"),
            en="discounts the immediate reward as well",
            zh="把即时奖励也打了折",
        ),
        mistake(
            "no_gamma",
            ("rewards[t] + gamma * crossing", "rewards[t] + crossing"),
            ("rewards[t] + gamma * local", "rewards[t] + local"),
            en="forgets gamma",
            zh="忘了 gamma",
        ),
        mistake(
            "from_the_left",
            ("reversed(range(len(rewards)))", "range(len(rewards))"),
            en="sums what came before; a return is what comes from here on",
            zh="求的是之前的和；回报是从这里往后的和",
        ),
        mistake(
            "last_reward_everywhere",
            ("carried[t], reset[t] = crossing, local", "carried[t], reset[t] = crossing, rewards[t]"),
            en="the second list holds single rewards instead of their sum up to the next tool reply",
            zh="第二个列表放的是单个奖励，而不是到下一次工具回复为止的和",
        ),
    ),
)
