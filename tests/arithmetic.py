"""Evaluate an explanation as the plain arithmetic it claims to be."""

import math
import re

_NAME = re.compile(r"[A-Za-z_]\w*(?:\[[\d,]*\])?")
_FUNCTIONS = {
    "exp": math.exp, "log": math.log, "log1p": math.log1p, "expm1": math.expm1, "sqrt": math.sqrt, "abs": abs,
    "max": max, "min": min, "tanh": math.tanh, "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "nan": math.nan, "inf": math.inf, "e": math.e,
}  # fmt: skip


def evaluate(text: str) -> float:
    """Read the lines from the last to the first, check each stated value, and return the first line's result."""
    known: dict[str, float] = {}
    result = math.nan
    for line in reversed(text.strip().split("\n")):
        line = line.split("    # ")[0].strip()
        parts = line.split(" = ")
        name, stated = parts[0], float(parts[-1])
        expression = parts[1]
        bound: dict[str, float] = {}

        def bind(match: re.Match, bound=bound) -> str:
            token = match.group(0)
            if token in _FUNCTIONS:
                return token
            key = f"v{len(bound)}_"
            bound[key] = known[token]
            return key

        # A number such as 1e-08 is no name.
        guarded = re.sub(r"(\d(?:\.\d+)?)e([-+]?\d+)", r"\1E\2", expression)
        code = re.sub(r"(?<![\w.])" + _NAME.pattern, bind, guarded)
        result = eval(code, {"__builtins__": {}, **_FUNCTIONS}, bound)
        known[name] = float(result)
        same = math.isclose(result, stated, rel_tol=1e-9, abs_tol=1e-12) or (result != result and stated != stated)
        assert same, f"{line}: the arithmetic gives {result}"
    return float(result)
