"""Reading returns 4, 32 or 256 tokens by chance; the decisions are those of `arithmetic`.

Purpose: tool text that dwarfs what the policy writes. The lengths carry no information and no reward, so that nothing
may depend on them: whatever changes with them (a tool mask set to 1, lengths counted with tool text, a mean over all
tokens, the padded width as a denominator) is a mistake or a choice that can be seen here.

`read` at start leads to a page of 4, 32 or 256 tokens with probability 0.5, 0.3, 0.2; the agent sees the same stage.
Policy [2, 3, 4], at most 4 decisions.

Exact truth: the uniform policy succeeds with probability (1/4)^3 = 1/64, the best with 1, both whatever the lengths; an
episode that reads has 62.8 reply tokens after it on average, and then at most 2 for the tool.
"""

from labs.environment import Environment, State

_PAGES = (("short", 4, 0.5), ("long", 32, 0.3), ("huge", 256, 0.2))

long_observations = Environment(
    name="long_observations",
    purpose="tool replies of varying length, up to a hundred times what the policy writes",
    families={"sum": lambda left, right: left + right, "difference": lambda left, right: left - right},
    stages=("start", "ready", "computed"),
    actions=("read", "add", "subtract", "submit"),
    states=(
        State(name="start", stage="start", text="{family} of two hidden numbers"),
        *(
            State(name=name, stage="ready", text=f"left={{0}} right={{1}} in a page of {tokens} tokens", tokens=tokens)
            for name, tokens, _ in _PAGES
        ),
        State(name="added", stage="computed", tool="add", text="scratchpad={value}", tokens=2),
        State(name="subtracted", stage="computed", tool="subtract", text="scratchpad={value}", tokens=2),
    ),
    transitions={
        ("start", "read"): tuple((probability, name) for name, _, probability in _PAGES),
        **{(name, "add"): "added" for name, _, _ in _PAGES},
        **{(name, "subtract"): "subtracted" for name, _, _ in _PAGES},
    },
    submits=frozenset({("added", "submit"), ("subtracted", "submit")}),
    tools={"add": lambda left, right: left + right, "subtract": lambda left, right: left - right},
)
