"""Five steps in a fixed order, six actions at each: the first success is rare.

Purpose: the cold start. Reward is terminal, so until one episode gets everything right nothing can be learnt at all;
what decides a run is when that happens, and what a group, an entropy bonus or a group filter does with it.

Actions: connect, search, read, add, subtract, submit; each is valid at one stage only and in this order, with one
choice (add or subtract) that depends on the family. Policy [2, 5, 6], at most 5 decisions.

Exact truth: the uniform policy succeeds with probability (1/6)^5 = 1.29e-4, so that 192 episodes an update see their
first success after 41 updates on average; the best success is 1.
"""

from labs.environment import Environment, State

long_protocol = Environment(
    name="long_protocol",
    purpose="a long protocol whose first success is rare, so that nothing can be learnt before it",
    families={"sum": lambda left, right: left + right, "difference": lambda left, right: left - right},
    stages=("start", "connected", "found", "ready", "computed"),
    actions=("connect", "search", "read", "add", "subtract", "submit"),
    states=(
        State(name="start", stage="start", text="{family} of two numbers in a remote file"),
        State(name="connected", stage="connected", text="connected", tokens=1),
        State(name="found", stage="found", text="1 file", tokens=2),
        State(name="ready", stage="ready", text="left={0} right={1}", tokens=4),
        State(name="added", stage="computed", tool="add", text="scratchpad={value}", tokens=2),
        State(name="subtracted", stage="computed", tool="subtract", text="scratchpad={value}", tokens=2),
    ),
    transitions={
        ("start", "connect"): "connected",
        ("connected", "search"): "found",
        ("found", "read"): "ready",
        ("ready", "add"): "added",
        ("ready", "subtract"): "subtracted",
    },
    submits=frozenset({("added", "submit"), ("subtracted", "submit")}),
    tools={"add": lambda left, right: left + right, "subtract": lambda left, right: left - right},
    max_steps=5,
)
