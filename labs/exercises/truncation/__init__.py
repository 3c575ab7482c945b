"""Truncation: zero, drop, mask, bootstrap, continue."""

from labs.grading.draw import Draw, numbers
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import same

RULES = ("zero", "drop", "mask", "bootstrap", "continue")
GROUP = {
    "scores": [1.0, 0.0, 0.5],
    "truncated": [False, False, True],
    "values": [0.0, 0.0, 0.25],
    "finished": [0.0, 0.0, 1.0],
}


def inputs(draw: Draw) -> Inputs:
    count = draw.integer(1, 5)
    return {
        "scores": numbers(draw, count, -1, 1),
        "truncated": [draw.choice((False, True)) for _ in range(count)],
        "values": numbers(draw, count, -1, 1),
        "finished": numbers(draw, count, -1, 1),
        "rule": draw.choice(RULES),
    }


def nothing_cut(call: Call, x: Inputs, draw: Draw) -> None:
    """Where nothing was cut, all rules are one."""
    whole = {**x, "truncated": [False] * len(x["scores"])}
    same(list(call(whole)), list(call({**whole, "rule": draw.choice(RULES)})))
    same(sum(call(whole)[0]), 0.0)


def complete_rows(call: Call, x: Inputs, draw: Draw) -> None:
    """The critic's opinion and the continuation of a row that ended do not matter."""
    noise = draw.number(-2, 2)
    moved = {
        n: [v if c else v + noise for v, c in zip(x[n], x["truncated"], strict=True)] for n in ("values", "finished")
    }
    same(list(call({**x, **moved})), list(call(x)))


def dropped(call: Call, x: Inputs, draw: Draw) -> None:
    """A dropped row might as well never have been there."""
    rest = [i for i, c in enumerate(x["truncated"]) if not c]
    if rest:
        alone = {n: [v[i] for i in rest] for n, v in x.items() if n != "rule"}
        answer = call({**x, "rule": "drop"})[0]
        same([answer[i] for i in rest], call({**alone, "rule": "drop"})[0])


EXERCISE = Exercise(
    name="truncation",
    number=22,
    title=Text("Truncation: five rules", "截断：五种规则"),
    function="truncation",
    minutes=25,
    kinds=dict.fromkeys(("scores", "truncated", "values", "finished", "rule"), "plain"),
    inputs=inputs,
    needs=("gae",),
    hidden=24,
    hand=(
        Case(inputs={**GROUP, "rule": "zero"}, expected=([1 - 1 / 3, -1 / 3, -1 / 3], [1, 1, 1])),
        Case(inputs={**GROUP, "rule": "drop"}, expected=([0.5, -0.5, 0.0], [1, 1, 0])),
        Case(inputs={**GROUP, "rule": "mask"}, expected=([0.5, -0.5, 0.0], [1, 1, 0])),
        Case(
            inputs={**GROUP, "scores": [1.0, 1.0, 0.0], "rule": "mask"},
            expected=([1 / 3, 1 / 3, 0.0], [1, 1, 0]),
            note=Text("mask: the row still counts in the mean", "mask：该行仍计入均值"),
        ),
        Case(inputs={**GROUP, "rule": "bootstrap"}, expected=([1 - 1.75 / 3, -1.75 / 3, 0.75 - 1.75 / 3], [1, 1, 1])),
        Case(inputs={**GROUP, "rule": "continue"}, expected=([1 / 3, -2 / 3, 1 / 3], [1, 1, 1])),
    ),
    probes=({**GROUP, "truncated": [True, True, True], "rule": "drop"},),
    properties=(
        prop("nothing cut", nothing_cut, "where nothing was cut all rules agree", "没有截断时，所有规则一致"),
        prop(
            "rows that ended",
            complete_rows,
            "values and continuation of rows that ended do not matter",
            "正常结束的行，价值与续写结果不影响答案",
        ),
        prop("dropped", dropped, "a dropped row might as well never have been there", "被丢弃的行等于从未存在"),
    ),
    mistakes=(
        mistake(
            "dropped_in_baseline",
            ('counted = kept if rule == "drop" else [1] * len(scores)', "counted = [1] * len(scores)"),
            en="drop: the row leaves the group altogether, its baseline included",
            zh="drop：该行完全离开这一组，也不计入基线",
        ),
        mistake(
            "masked_out_of_baseline",
            ('counted = kept if rule == "drop" else', 'counted = kept if rule in ("drop", "mask") else'),
            en="mask: the row leaves the loss but stays in the baseline of its group",
            zh="mask：该行离开损失，但仍留在组的基线里",
        ),
        mistake(
            "masked_stays",
            ('rule in ("drop", "mask") else 1', 'rule == "drop" else 1'),
            en="mask: the row must leave the loss",
            zh="mask：该行必须离开损失",
        ),
        mistake(
            "zeroed_row_leaves",
            ('rule in ("drop", "mask") else 1', 'rule in ("drop", "mask", "zero") else 1'),
            en="zero: the row stays, with the score 0, and is pushed down like any failure",
            zh="zero：该行保留，分数为 0，像其他失败一样被压低",
        ),
        mistake(
            "cut_is_end",
            ('if cut and rule == "bootstrap":', 'if cut and rule == "never":'),
            en="bootstrap: treats the cut as an end; the value of the state that follows is missing",
            zh="bootstrap：把截断当成了结束；缺少后续状态的价值",
        ),
        mistake(
            "value_instead_of_score",
            ("worth[i] = scores[i] + values[i]", "worth[i] = values[i]"),
            en="bootstrap: the value comes on top of what was already scored",
            zh="bootstrap：价值是加在已有分数之上的",
        ),
        mistake(
            "all_bootstrapped",
            ('if cut and rule == "bootstrap":', 'if rule == "bootstrap":'),
            en="bootstrap: adds a value to rows that ended as well; nothing follows an end",
            zh="bootstrap：给正常结束的行也加了价值；结束之后什么都没有",
        ),
        mistake(
            "continue_keeps_score",
            ("worth[i] = finished[i]", "worth[i] = scores[i]"),
            en="continue: the score of the finished episode counts, not that of the cut one",
            zh="continue：应使用续写完成后的分数，而不是截断时的分数",
        ),
        mistake(
            "all_continued",
            ('if cut and rule == "continue":', 'if rule == "continue":'),
            en="continue: replaces the score of rows that had ended as well",
            zh="continue：把正常结束的行的分数也替换了",
        ),
        mistake(
            "zero_ignored",
            ('if cut and rule == "zero":', 'if cut and rule == "never":'),
            en="zero: the cut row keeps its score; it must count as 0",
            zh="zero：截断的行保留了分数；应计为 0",
        ),
        mistake(
            "not_centred",
            ("(w - baseline) * k", "w * k"),
            en="forgets to subtract the group's mean",
            zh="忘了减去组的均值",
        ),
        mistake(
            "empty_group",
            (" / total if total else 0.0", " / total"),
            en="divides by zero when every row was dropped",
            zh="所有行都被丢弃时除以了零",
        ),
        mistake(
            "removed_rows_keep_advantage",
            ("(w - baseline) * k for", "(w - baseline) for"),
            en="rows that are not kept must get the advantage 0",
            zh="不保留的行优势应为 0",
        ),
    ),
)
