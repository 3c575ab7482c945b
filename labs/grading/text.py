"""Every sentence a student reads about an answer, in English and Chinese."""
# ruff: noqa: E501 - a sentence and its translation stand side by side

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from labs.grading.spec import Exercise, Language, Text, render_call, shown
from labs.grading.verdict import LAYERS, Check, Finding, Verdict

LAYER_NAMES = {
    "contract": Text("contract", "约定"),
    "hand": Text("by hand", "手算"),
    "property": Text("properties", "性质"),
    "hidden": Text("hidden", "隐藏"),
}

STATUS = {
    "passed": Text("passed", "通过"),
    "failed": Text("not yet", "还没通过"),
    "not started": Text("not started: the function still raises NotImplementedError", "还没开始：函数仍然抛出 NotImplementedError"),
    "refused": Text("refused", "被拒绝"),
    "broken": Text("the file cannot be imported", "文件无法导入"),
    "missing": Text("the function is missing", "缺少要求的函数"),
    "timeout": Text("no answer in time", "超时没有回答"),
    "died": Text("the process ended before it answered", "进程在回答之前就结束了"),
    "garbage": Text("what came back was no answer", "返回的内容不是一个答案"),
}  # fmt: skip

_STOP = {
    "refused": Text(
        "Your file tried to {what}. An answer computes from its arguments alone: it may not read the lab's own "
        "sources, change files, start processes, send signals or open connections.",
        "你的文件试图执行：{what}。答案只能由参数计算得到：不能读取实验室自己的源码，不能改动文件，不能启动进程、发送信号或打开网络连接。",
    ),
    "broken": Text("{error}", "{error}"),
    "missing": Text("The file must define the function {function}.", "文件里必须定义函数 {function}。"),
    "timeout": Text(
        "No answer within {detail} s: is there a loop that never ends, or does it wait for input?",
        "{detail} 秒内没有回答：是不是有一个不会结束的循环，或者在等待输入？",
    ),
    "died": Text(
        "The process ended (exit code {detail}) while it was asked. Return the answer; do not exit.",
        "提问过程中进程退出了（退出码 {detail}）。请返回答案，不要退出。",
    ),
    "garbage": Text(
        "The reply was larger than any right answer, or not a value that can be compared.",
        "返回的内容比任何正确答案都大，或者不是可以比较的值。",
    ),
}

_FINDING = {
    "nothing": Text("there was no answer to look at", "没有可供检查的答案"),
    "edited": Text(
        "the function edits its argument {name}; compute on a copy", "函数改动了参数 {name}；请在副本上计算"
    ),
    "differs": Text("two calls with the same arguments give different answers", "相同参数调用两次，答案不同"),
    "no gradient": Text(
        "no gradient flows to {name}: it was detached, or turned into a number",
        "梯度传不到 {name}：它被 detach 了，或者被转成了普通数字",
    ),
    "value": Text("the answer differs{at}", "答案不同{at}"),
    "gradient": Text(
        "the gradient with respect to {name} (of a weighted sum of the answer) differs{at}",
        "（答案加权和）对 {name} 的梯度不同{at}",
    ),
    "property": Text("does not hold: {text}", "性质不成立：{text}"),
    "raised": Text("it raises {error}", "抛出异常 {error}"),
}

_STRUCTURE = {
    "kind": Text("returns {got}{at}, the statement asks for {wanted}", "返回了 {got}{at}，题目要求 {wanted}"),
    "length": Text("returns {got} entries{at}, the statement asks for {wanted}", "返回了 {got} 项{at}，题目要求 {wanted} 项"),
    "keys": Text("returns the keys {got}{at}, the statement asks for {wanted}", "返回的键是 {got}{at}，题目要求 {wanted}"),
    "dtype": Text("returns dtype {got}{at}, it must be {wanted}", "返回的 dtype 是 {got}{at}，应为 {wanted}"),
    "shape": Text("returns shape {got}{at}, it must be {wanted}", "返回的形状是 {got}{at}，应为 {wanted}"),
}  # fmt: skip

_WORDS = {
    "counts": Text("{exist} checks exist, {ran} ran, {passed} passed", "共有 {exist} 项检查，运行了 {ran} 项，通过 {passed} 项"),
    "yours": Text("yours", "你的答案"),
    "expected": Text("expected", "应为"),
    "one side": Text("got", "得到"),
    "other side": Text("against", "对比"),
    "after": Text("after the call", "调用之后"),
    "input": Text("smallest failing input found", "找到的最小出错输入"),
    "what": Text("What went wrong", "错在哪里"),
    "next": Text("Next", "下一步"),
    "printed": Text("Your file printed", "你的文件打印了"),
    "line": Text(", line {line} of your file", "，你的文件第 {line} 行"),
    "at": Text(" at {where}", "，位置 {where}"),
    "entry": Text(": {got}, expected {wanted}", "：{got}，应为 {wanted}"),
}  # fmt: skip


def word(name: str, lang: Language) -> str:
    """One of the fixed words."""
    return _WORDS[name].get(lang)


def summary(verdict: Verdict, lang: Language) -> str:
    """The first line: exercise, status, and how many checks exist, ran and passed."""
    passed, ran, exist = verdict.count()
    head = f"{verdict.exercise.number:02d} {verdict.exercise.name}: {STATUS[verdict.status].get(lang)}"
    stop = "。" if lang == "zh" else ". "
    return f"{head}{stop}{word('counts', lang).format(exist=exist, ran=ran, passed=passed)}"


def render(verdict: Verdict, lang: Language) -> str:
    """The verdict as a student reads it: what, where, the smallest failing input, the named mistake."""
    lines = [summary(verdict, lang)]
    lines.append("   " + "   ".join(_layer(verdict, layer, lang) for layer in LAYERS))
    if verdict.stop:
        lines += ["", stop_text(verdict.stop, verdict.exercise, lang)]
    elif verdict.status == "failed":
        first = next(c for c in verdict.checks if c.passed is False)
        told = check_text(first, verdict.exercise, lang)
        # A hidden case is large; where a small input fails too, that one is shown.
        lines += ["", *(told[:1] if first.layer == "hidden" and verdict.smallest else told)]
        if verdict.smallest and first.layer != "contract":
            what = (
                f"; {finding_text(verdict.smallest, verdict.exercise, lang)}"
                if verdict.smallest.code != "value"
                else ""
            )
            lines += ["", f"{word('input', lang)}{what}:", *_shown(verdict.smallest, verdict.exercise, lang)]
        if verdict.mistakes:
            lines.append("")
        lines += [f"{word('what', lang)}: {mistake_text(verdict.exercise, m, lang)}" for m in verdict.mistakes]
    if verdict.printed.strip():
        lines += ["", f"{word('printed', lang)}:", *(f"    {x}" for x in verdict.printed.strip().splitlines()[:12])]
    return "\n".join(lines)


def _layer(verdict: Verdict, layer: str, lang: Language) -> str:
    passed, _, exist = verdict.count(layer)
    return f"{LAYER_NAMES[layer].get(lang)} {passed}/{exist}"


def mistake_text(exercise: Exercise, name: str, lang: Language) -> str:
    """The sentence of a named mistake."""
    return next(m.text.get(lang) for m in exercise.mistakes if m.name == name)


def stop_text(stop: Finding, exercise: Exercise, lang: Language) -> str:
    """Why the process could answer no more."""
    error = stop.data.get("error")
    return _STOP[stop.code].get(lang).format(
        what=stop.data.get("what", ""),
        detail=stop.data.get("detail") or "?",
        function=exercise.function,
        error=error_text(error, lang) if error else "",
    )  # fmt: skip


def error_text(error: Mapping[str, Any], lang: Language) -> str:
    """An exception of the student's."""
    line = word("line", lang).format(line=error["line"]) if error.get("line") else ""
    return f"{error['type']}: {error['text']}{line}"


def check_text(check: Check, exercise: Exercise, lang: Language) -> list[str]:
    """A failed check: one line of what, then the input and both answers."""
    assert check.finding is not None
    head = f"{LAYER_NAMES[check.layer].get(lang)}, {check.name}: {finding_text(check.finding, exercise, lang)}"
    return [head, *_shown(check.finding, exercise, lang)]


def finding_text(finding: Finding, exercise: Exercise, lang: Language) -> str:
    """One line that says what a check found."""
    data = finding.data
    at = word("at", lang).format(where=data["where"]) if data.get("where") else ""
    if at and "entry" in data:
        at += word("entry", lang).format(got=shown(data["entry"][0]), wanted=shown(data["entry"][1]))
    if finding.code == "structure":
        return _STRUCTURE[data["kind"]].get(lang).format(got=data["got"], wanted=data["wanted"], at=at)
    text = ""
    if finding.code == "property":
        text = next(p.text.get(lang) for p in exercise.properties if p.name == data["property"])
    error = error_text(data["error"], lang) if "error" in data else ""
    return _FINDING[finding.code].get(lang).format(name=data.get("name", ""), at=at, text=text, error=error)


def _shown(finding: Finding, exercise: Exercise, lang: Language) -> list[str]:
    data = finding.data
    if "inputs" not in data:
        return []
    lines = ["    " + line for line in render_call(exercise.function, data["inputs"]).splitlines()]
    if finding.code == "edited":
        return [*lines, f"    {word('after', lang)}: {data['name']} = {shown(data['got'])}"]
    if finding.code in ("value", "gradient", "differs"):
        pair = (word("yours", lang), word("expected", lang))
        return [*lines, *_pair(pair, data["got"], data["wanted"])]
    if finding.code == "property" and data["got"] is not None:
        if not data["wanted"]:
            return [*lines, f"    {word('one side', lang)}  {shown(data['got'])}"]
        pair = (word("one side", lang), word("other side", lang))
        return [*lines, *_pair(pair, data["got"], data["wanted"][0])]
    return lines


def _pair(labels: tuple[str, str], got: Any, wanted: Any) -> list[str]:
    width = max(map(columns, labels))
    lines = zip(labels, (got, wanted), strict=True)
    return [f"    {label}{' ' * (width - columns(label))}  {shown(x)}" for label, x in lines]


def columns(text: str) -> int:
    """Columns a text takes on a terminal: two for a Chinese character."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
