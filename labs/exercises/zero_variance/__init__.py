"""Dead groups: their share per kind of task, and the tokens they leave in the denominator."""

from labs.grading.draw import Draw
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import same

COLUMNS = ("rewards", "groups", "kinds", "tokens")


def inputs(draw: Draw) -> Inputs:
    kind_of = {g: draw.choice(("sum", "difference")) for g in ("a", "b", "c", "d")}
    count = draw.integer(1, 8)
    groups = [draw.choice(tuple(kind_of)) for _ in range(count)]
    return {
        "rewards": [draw.choice((0.0, 1.0, 0.5)) for _ in range(count)],
        "groups": groups,
        "kinds": [kind_of[g] for g in groups],
        "tokens": [draw.integer(1, 9) for _ in range(count)],
    }


def order(call: Call, x: Inputs, draw: Draw) -> None:
    """The order of the rows does not matter."""
    places = draw.permutation(len(x["rewards"]))
    same(call({n: [x[n][i] for i in places] for n in COLUMNS}), call(x))


def dead_group_added(call: Call, x: Inputs, draw: Draw) -> None:
    """A further dead group brings tokens to the denominator and nothing else."""
    extra = draw.integer(1, 9)
    more: Inputs = {"rewards": [1.0, 1.0], "groups": ["new", "new"], "kinds": ["new", "new"], "tokens": [extra, 1]}
    grown, before = call({n: [*x[n], *more[n]] for n in COLUMNS}), call(x)
    same(grown["live_tokens"], before["live_tokens"])
    same(grown["all_tokens"], before["all_tokens"] + extra + 1)
    same(grown["share"], {**before["share"], "new": 1.0})


EXERCISE = Exercise(
    name="zero_variance",
    number=6,
    title=Text("Dead groups and the effective denominator", "零方差组与有效分母"),
    function="zero_variance",
    minutes=20,
    kinds=dict.fromkeys(COLUMNS, "plain"),
    inputs=inputs,
    needs=("group_advantages",),
    hand=(
        Case(
            inputs={
                "rewards": [1.0, 0.0, 1.0, 1.0],
                "groups": ["a", "a", "b", "b"],
                "kinds": ["sum", "sum", "sum", "sum"],
                "tokens": [3, 1, 6, 6],
            },
            expected={"share": {"sum": 0.5}, "live_tokens": 4, "all_tokens": 16, "scale": 0.25},
        ),
        Case(
            inputs={
                "rewards": [0.0, 0.0, 0.0, 1.0, 1.0],
                "groups": ["a", "a", "b", "b", "c"],
                "kinds": ["difference", "difference", "sum", "sum", "difference"],
                "tokens": [2, 4, 3, 5, 6],
            },
            expected={"share": {"difference": 1.0, "sum": 0.0}, "live_tokens": 8, "all_tokens": 20, "scale": 0.4},
            note=Text("a all wrong, b mixed, c alone", "a 全错，b 有对有错，c 独自一组"),
        ),
    ),
    probes=(
        {
            "rewards": [0.5, 0.5, 1.0, 0.0, 0.0, 0.0],
            "groups": ["a", "a", "b", "b", "c", "c"],
            "kinds": ["sum", "sum", "sum", "sum", "difference", "difference"],
            "tokens": [2, 3, 4, 5, 6, 7],
        },
    ),
    properties=(
        prop("order", order, "the order of the rows does not matter", "行的顺序不影响结果"),
        prop(
            "one more dead group",
            dead_group_added,
            "one more dead group only adds tokens to the denominator",
            "多一个零方差组，只会给分母增加 token",
        ),
    ),
    mistakes=(
        mistake(
            "only_all_wrong",
            ("min(own) == max(own)", "max(own) == 0"),
            en="counts groups where everybody failed; a group where everybody succeeded is as dead",
            zh="只数了全错的组；全对的组同样没有信息",
        ),
        mistake(
            "only_all_right",
            ("min(own) == max(own)", "min(own) == 1"),
            en="counts groups where everybody succeeded; a group where everybody failed is as dead",
            zh="只数了全对的组；全错的组同样没有信息",
        ),
        mistake(
            "only_zero_or_one",
            ("min(own) == max(own)", "max(own) == 0 or min(own) == 1"),
            en="misses groups whose equal reward is neither 0 nor 1: it is the spread that matters",
            zh="漏掉了奖励相等但既不是 0 也不是 1 的组：看的是离散程度",
        ),
        mistake(
            "singleton_live",
            ("min(own) == max(own)", "len(own) > 1 and min(own) == max(own)"),
            en="counts a group of one as live; it has no spread either",
            zh="把独自一组当作有信息；它同样没有离散程度",
        ),
        mistake(
            "share_of_rows",
            (
                "shares.setdefault(kind[group], []).append(equal)",
                "shares.setdefault(kind[group], []).extend([equal] * len(own))",
            ),
            en="takes the share of rows; the share of groups is asked for",
            zh="算的是行的占比；题目要组的占比",
        ),
        mistake(
            "one_share",
            ("shares.setdefault(kind[group], [])", "shares.setdefault(kinds[0], [])"),
            en="takes one share over all tasks; one per kind is asked for, since one kind can hide another",
            zh="所有任务算了一个占比；题目要每类任务一个，否则一类会掩盖另一类",
        ),
        mistake(
            "live_share",
            ("sum(flags) / len(flags)", "1 - sum(flags) / len(flags)"),
            en="returns the share of live groups; the share of dead ones is asked for",
            zh="返回的是有信息的组的占比；题目要零方差组的占比",
        ),
        mistake(
            "tokens_of_successes",
            (
                "live += sum(t for t, g in zip(tokens, groups, strict=True) if g == group)",
                "live += sum(t for t, g, r in zip(tokens, groups, rewards, strict=True) if g == group and r > 0)",
            ),
            en="counts the tokens of successful rows only; the failures of a live group have an advantage too",
            zh="只数了成功行的 token；有信息的组里，失败的行也有优势",
        ),
        mistake(
            "rows_instead_of_tokens",
            ("live += sum(t for", "live += sum(1 for"),
            en="counts rows where tokens are asked for",
            zh="数的是行数；题目要 token 数",
        ),
        mistake(
            "inverted",
            ('"scale": live / sum(tokens)', '"scale": sum(tokens) / live if live else 0.0'),
            en="the scale is the wrong way round: live tokens over all tokens",
            zh="比例反了：应当是有信息的 token 除以全部 token",
        ),
        mistake(
            "dead_left_out",
            ('"all_tokens": sum(tokens)', '"all_tokens": live'),
            en="takes dead groups out of the denominator; the loss divides by all tokens",
            zh="把零方差组从分母里拿掉了；损失除以的是全部 token",
        ),
    ),
)
