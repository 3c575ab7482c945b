"""The expression of a `Number` as lines of plain arithmetic."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from labs.trace.numbers import Number


def _text(value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return str(int(value))
    number = float(value)
    if number != number or math.isinf(number):
        return {True: "nan"}.get(number != number, "inf" if number > 0 else "-inf")
    return str(int(number)) if number == int(number) and abs(number) < 1e15 else repr(number)


#: From how many equal entries of one column on a sum counts them instead of listing them.
MANY = 4

_PRECEDENCE = {"+": 1, "sum": 1, "-": 1, "neg": 2, "*": 2, "count": 2, "/": 2, "**": 3}


def lines(root: Number, label: str, *, most: int = 12) -> list[str]:
    """The expression of `root` as lines `name = expression = value`, then the named inputs it rests on.

    A number that is used more than once, or whose expression is long, gets a line of its own (`x1`, `x2`, ...), with
    the line of code that made it. The lines, read from the last to the first, are plain arithmetic: `exp`, `log`,
    `sqrt`, `max`, `min`, `abs` and the four operations.
    """
    root = _shared(root)
    uses: dict[int, int] = {}
    post = _post_order(root)
    for node in post:
        for child in node.args:
            uses[id(child)] = uses.get(id(child), 0) + 1
    size: dict[int, int] = {}
    names: dict[int, str] = {}
    for node in post:
        size[id(node)] = 1 + sum(0 if id(c) in names else size[id(c)] for c in node.args) if node.op else 0
        if node.args and node is not root and (uses[id(node)] > 1 or size[id(node)] > most):
            names[id(node)] = f"x{len(names) + 1}"
    rendered: dict[int, tuple[str, int]] = {}
    for node in post:
        rendered[id(node)] = _render(node, names, rendered)
    made = f"{rendered[id(root)][0]} = " if root.op or root.name else ""
    body = [f"{label} = {made}{_text(root.value)}"]
    if root.source:
        body[0] += f"    # {root.source}"
    for node in reversed(post):
        if id(node) in names:
            note = f"    # {node.source}" if node.source else ""
            body.append(f"  {names[id(node)]} = {rendered[id(node)][0]} = {_text(node.value)}{note}")
    leaves = {n.name: n.value for n in post if n.name}
    return body + [
        f"  {name} = {_text(value)}" for name, value in sorted(leaves.items(), key=lambda kv: _natural(kv[0]))
    ]


def _shared(root: Number) -> Number:
    """The same expression with equal parts made one and sums made short, so that each thing is written once."""
    known: dict[tuple[Any, ...], Number] = {}
    replaced: dict[int, Number] = {}
    for node in _post_order(root):
        arguments = tuple(replaced[id(c)] for c in node.args)
        source = node.source
        if node.op == "sum":
            empty = sum(term.value == 0 for term in arguments)
            if empty:
                source = f"{source or ''}  ({empty} of {len(arguments)} terms are 0)".strip()
            arguments = _short(arguments)
            if len(arguments) == 1:
                replaced[id(node)] = arguments[0]
                continue
        if node.op == "+" and any(term.value == 0 for term in arguments):
            replaced[id(node)] = arguments[1] if arguments[0].value == 0 else arguments[0]
            continue
        key = (node.op, node.name, repr(node.value) if not node.args else "", tuple(map(id, arguments)))
        if key not in known:
            known[key] = Number(node.value, node.op, arguments, node.name, source)
        replaced[id(node)] = known[key]
    return replaced[id(root)]


def _short(terms: tuple[Number, ...]) -> tuple[Number, ...]:
    """The terms of a sum without those that are 0, and with many equal entries of one column as `count * value`."""
    alike: dict[tuple[str, Any], list[Number]] = {}
    for term in terms:
        if term.name and term.value != 0:
            alike.setdefault((term.name.partition("[")[0], term.value), []).append(term)
    repeated = Counter(map(id, terms))
    kept: list[Number] = []
    for term in dict(zip(map(id, terms), terms, strict=True)).values():
        if term.value == 0:
            continue
        if repeated[id(term)] > 1:
            kept.append(Number(repeated[id(term)] * term.value, "*", (Number(repeated[id(term)]), term)))
            continue
        group = alike.get((term.name.partition("[")[0], term.value), []) if term.name else []
        if len(group) < MANY:
            kept.append(term)
        elif term is group[0]:
            kept.append(Number(len(group) * term.value, "count", (Number(len(group)), Number(term.value))))
    return tuple(kept)


def _natural(name: str) -> tuple[Any, ...]:
    head, _, tail = name.partition("[")
    return (head, *(int(x) for x in tail.rstrip("]").split(",") if x.lstrip("-").isdigit()))


def _post_order(root: Number) -> list[Number]:
    result: list[Number] = []
    done: set[int] = set()
    stack: list[tuple[Number, bool]] = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if id(node) in done:
            continue
        if ready:
            done.add(id(node))
            result.append(node)
        else:
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(node.args))
    return result


def _render(node: Number, names: dict[int, str], rendered: dict[int, tuple[str, int]]) -> tuple[str, int]:
    """Text and binding strength of the node's own expression."""
    if node.name:
        return node.name, 9
    if not node.op:
        text = _text(node.value)
        return text, 1 if text.startswith("-") else 9

    def part(child: Number, strength: int) -> str:
        if id(child) in names:
            return names[id(child)]
        text, own = rendered[id(child)]
        return f"({text})" if own < strength else text

    if node.op == "sum" and not node.args:
        return "0", 9
    if node.op == "count":
        return f"{_text(node.args[0].value)} * {_text(node.args[1].value)}", 2
    if node.op in ("sum", "+"):
        return " + ".join(part(c, 1) if not _text_negative(c, names) else f"({part(c, 1)})" for c in node.args), 1
    if node.op == "neg":
        return f"-{part(node.args[0], 3)}", 1
    if node.op in _PRECEDENCE:
        strength = _PRECEDENCE[node.op]
        right = part(node.args[1], strength + 1)
        return f"{part(node.args[0], strength + (node.op == '**'))} {node.op} {right}", strength
    return f"{node.op}({', '.join(part(c, 0) for c in node.args)})", 9


def _text_negative(child: Number, names: dict[int, str]) -> bool:
    return child.plain and id(child) not in names and _text(child.value).startswith("-")
