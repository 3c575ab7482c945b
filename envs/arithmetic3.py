"""Sum, difference or product: a third family, a fifth action, and tools that are right by accident.

Purpose: shows that families and actions are data (the policy is [3, 3, 5] and no learner changed), and that reward
depends on the task and not only on the protocol: 2 + 2 equals 2 * 2, so a wrong tool is sometimes right and exact
quantities have to average over the task distribution.

Everything else is as in `arithmetic`; `multiply` is valid only at ready and writes left * right.
"""

from labs.environment import Environment, State

_TOOLS = {
    "add": lambda left, right: left + right,
    "subtract": lambda left, right: left - right,
    "multiply": lambda left, right: left * right,
}

arithmetic3 = Environment(
    name="arithmetic3",
    purpose="families and actions are data; a wrong tool may give the right number",
    families=dict(zip(("sum", "difference", "product"), _TOOLS.values(), strict=True)),
    stages=("start", "ready", "computed"),
    actions=("read", *_TOOLS, "submit"),
    states=(
        State(name="start", stage="start", text="{family} of two hidden numbers"),
        State(name="ready", stage="ready", text="left={0} right={1}", tokens=4),
        *(State(name=f"{t}ed", stage="computed", tool=t, text="scratchpad={value}", tokens=2) for t in _TOOLS),
    ),
    transitions={("start", "read"): "ready", **{("ready", tool): f"{tool}ed" for tool in _TOOLS}},
    submits=frozenset((f"{tool}ed", "submit") for tool in _TOOLS),
    tools=_TOOLS,
)
