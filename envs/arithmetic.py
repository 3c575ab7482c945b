"""Sum or difference of two hidden numbers: read the operands, use the right tool, submit.

Purpose: the smallest protocol in which an agent has to learn both an order (read, compute, submit) and a choice
that depends on the task (add or subtract), from nothing but a terminal 0/1 reward.

Action space: read, add, subtract, submit. Observation: family (sum, difference) and stage (start, ready, computed),
so a policy has the shape [2, 3, 4]. `read` is valid only at start and reveals the operands, `add` and `subtract` only
at ready (they write left + right or left - right to the scratchpad), `submit` only at computed; any other action
ends the episode. Reward: 1 for the right number, else 0. With operands of at least 1 the two tools never agree.
"""

import operator

from labs.environment import Environment, State

arithmetic = Environment(
    name="arithmetic",
    purpose="the smallest protocol with an order to learn and a choice that depends on the task",
    families={"sum": operator.add, "difference": operator.sub},
    stages=("start", "ready", "computed"),
    actions=("read", "add", "subtract", "submit"),
    states=(
        State(name="start", stage="start", text="{family} of two hidden numbers"),
        State(name="ready", stage="ready", text="left={0} right={1}", tokens=4),
        State(name="added", stage="computed", tool="add", text="scratchpad={value}", tokens=2),
        State(name="subtracted", stage="computed", tool="subtract", text="scratchpad={value}", tokens=2),
    ),
    transitions={
        ("start", "read"): "ready",
        ("ready", "add"): "added",
        ("ready", "subtract"): "subtracted",
    },
    submits=frozenset({("added", "submit"), ("subtracted", "submit")}),
    tools={"add": operator.add, "subtract": operator.sub},
)
