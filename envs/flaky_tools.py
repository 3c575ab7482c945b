"""Tools that fail three times in ten and may be called again.

Purpose: random transitions. An error is an observation like any other, the right answer to it is to repeat the call,
and the step limit caps how often: no policy succeeds always, so that a success rate under 1 is not a fault of the
learner.

As `arithmetic`, with a fourth stage: `add` and `subtract` at ready write the number with probability 0.7 and otherwise
lead to failed, where both are valid again with the same odds. Policy [2, 4, 4], at most 6 decisions.

Exact truth: reading and submitting leave room for 4 calls, so the best success is 1 - 0.3^4 = 0.9919; the uniform
policy's is 0.7 (1/4)^3 (1 + 0.15 + 0.15^2 + 0.15^3) = 0.01286, where 0.15 is "either tool, and it fails".
"""

from labs.environment import Environment, State

_FAILS = 0.3

flaky_tools = Environment(
    name="flaky_tools",
    purpose="random transitions: a tool call may fail, and the thing to learn is to repeat it",
    families={"sum": lambda left, right: left + right, "difference": lambda left, right: left - right},
    stages=("start", "ready", "failed", "computed"),
    actions=("read", "add", "subtract", "submit"),
    states=(
        State(name="start", stage="start", text="{family} of two hidden numbers"),
        State(name="ready", stage="ready", text="left={0} right={1}", tokens=4),
        State(name="failed", stage="failed", text="error: try again", tokens=3),
        State(name="added", stage="computed", tool="add", text="scratchpad={value}", tokens=2),
        State(name="subtracted", stage="computed", tool="subtract", text="scratchpad={value}", tokens=2),
    ),
    transitions={
        ("start", "read"): "ready",
        **{
            (state, action): ((1 - _FAILS, target), (_FAILS, "failed"))
            for state in ("ready", "failed")
            for action, target in (("add", "added"), ("subtract", "subtracted"))
        },
    },
    submits=frozenset({("added", "submit"), ("subtracted", "submit")}),
    tools={"add": lambda left, right: left + right, "subtract": lambda left, right: left - right},
    max_steps=6,
)
