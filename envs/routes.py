"""Two right ways to the answer: one expensive call, or three cheap ones.

Purpose: routes of different cost and length. The verifier subtracts what the actions cost, so success alone does not
say which policy is better; the cheap route is the longer one and is found later, and a step limit of 4 forbids it.
Doing nothing is free, and in a group without a success only the costs differ: an estimator that divides by the group's
standard deviation (`grpo`, the learner of `labs/agent.py`) blows that difference up to full size and learns to give up
at once, where one that does not (`rloo`, `dr_grpo`) learns the task.

Actions: read, add, subtract (0.1 each), count_up, count_down (0.01 each), submit. At ready either one call of
`add`/`subtract`, or three times `count_up`/`count_down` in one direction. Policy [2, 5, 6], at most 6 decisions.

Exact truth: read, add, submit scores 0.9 in 3 decisions; read, count_up three times, submit scores 0.97 in 5. The
uniform policy finds the short way with probability (1/6)^3, the long one with (1/6)^5.
"""

from labs.environment import Environment, State

_DIRECTIONS = (("up", "add"), ("down", "subtract"))

routes = Environment(
    name="routes",
    purpose="a short expensive and a long cheap way to the same answer",
    families={"sum": lambda left, right: left + right, "difference": lambda left, right: left - right},
    stages=("start", "ready", "counting", "nearly", "computed"),
    actions=("read", "add", "subtract", "count_up", "count_down", "submit"),
    states=(
        State(name="start", stage="start", text="{family} of two hidden numbers"),
        State(name="ready", stage="ready", text="left={0} right={1}", tokens=4),
        *(
            State(name=f"{name}_{direction}", stage=name, text="go on", tokens=2)
            for name in ("counting", "nearly")
            for direction, _ in _DIRECTIONS
        ),
        State(name="added", stage="computed", tool="add", text="scratchpad={value}", tokens=2),
        State(name="subtracted", stage="computed", tool="subtract", text="scratchpad={value}", tokens=2),
    ),
    transitions={
        ("start", "read"): "ready",
        ("ready", "add"): "added",
        ("ready", "subtract"): "subtracted",
        **{("ready", f"count_{d}"): f"counting_{d}" for d, _ in _DIRECTIONS},
        **{(f"counting_{d}", f"count_{d}"): f"nearly_{d}" for d, _ in _DIRECTIONS},
        **{(f"nearly_{d}", f"count_{d}"): f"{tool}ed" for d, tool in _DIRECTIONS},
    },
    submits=frozenset({("added", "submit"), ("subtracted", "submit")}),
    tools={"add": lambda left, right: left + right, "subtract": lambda left, right: left - right},
    costs={"add": 0.1, "subtract": 0.1, "count_up": 0.01, "count_down": 0.01},
    max_steps=6,
)
