"""Find the silent bug: the score that nobody learns from."""

from labs.grading.draw import Draw, numbers
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import require, same

COUNTED = "counted = [t for t, m in enumerate(mask) if m]"
PLACE = """        if counted:
            row[counted[-1]] = score
"""
STUB = (
    ("for score, mask, _real in", "for score, mask, real in"),
    (COUNTED + "\n" + PLACE, "length = sum(real)\n        row[length - 1] = score\n"),
)


def inputs(draw: Draw) -> Inputs:
    rows, width = draw.integer(1, 3), draw.integer(1, 5)
    attention, mask = [], []
    for _ in range(rows):
        length = draw.integer(0, width)
        attention.append([1] * length + [0] * (width - length))
        mask.append([draw.choice((1, 0)) for _ in range(length)] + [0] * (width - length))
    return {"scores": [s + 3 for s in numbers(draw, rows, -1, 1)], "response_mask": mask, "attention_mask": attention}


def only_where_mask(call: Call, x: Inputs, draw: Draw) -> None:
    """Nothing stands where the policy did not choose."""
    answer = call(x)
    require(
        all(m or not v for a, b in zip(answer, x["response_mask"], strict=True) for v, m in zip(a, b, strict=True)),
        answer,
    )


def total(call: Call, x: Inputs, draw: Draw) -> None:
    """Each row that has a token of the policy keeps its score."""
    same(
        [sum(row) for row in call(x)],
        [s if any(m) else 0.0 for s, m in zip(x["scores"], x["response_mask"], strict=True)],
    )


EXERCISE = Exercise(
    name="hunt_score_position",
    number=19,
    title=Text("Find the silent bug: the score nobody learns from", "找出无声的错误：没人学到的分数"),
    function="place_scores",
    minutes=15,
    kinds=dict.fromkeys(("scores", "response_mask", "attention_mask"), "plain"),
    inputs=inputs,
    needs=("gae",),
    stub=STUB,
    hand=(
        Case(
            inputs={"scores": [1.0], "response_mask": [[1, 1, 0, 0]], "attention_mask": [[1, 1, 0, 0]]},
            expected=[[0.0, 1.0, 0.0, 0.0]],
            note=Text("the code you get is right here", "你拿到的代码在这里是对的"),
        ),
        Case(
            inputs={"scores": [1.0], "response_mask": [[1, 1, 0]], "attention_mask": [[1, 1, 1]]},
            expected=[[0.0, 1.0, 0.0]],
            note=Text("the episode ends with a tool's message", "回合以工具的消息结束"),
        ),
        Case(
            inputs={"scores": [5.0], "response_mask": [[0, 0, 0]], "attention_mask": [[0, 0, 0]]},
            expected=[[0.0, 0.0, 0.0]],
            note=Text("an empty response", "空的回答"),
        ),
    ),
    probes=(
        {
            "scores": [2.0, 3.0],
            "response_mask": [[1, 0, 1, 0], [0, 0, 0, 0]],
            "attention_mask": [[1, 1, 1, 1], [1, 1, 0, 0]],
        },
    ),
    properties=(
        prop(
            "where the policy chose",
            only_where_mask,
            "nothing is placed where the mask is 0",
            "掩码为 0 处不放任何东西",
        ),
        prop(
            "total",
            total,
            "every row with a token of the policy keeps its score",
            "只要有策略的 token，该行的分数就完整保留",
        ),
    ),
    mistakes=(
        mistake(
            "last_real_token",
            *STUB,
            en="places the score on the last real token: a tool's message, or, for an empty response, the last column",
            zh="把分数放在最后一个真实 token 上：可能是工具的消息；空回答时则落到最后一列",
        ),
        mistake(
            "last_real_token_checked",
            (COUNTED, "counted = [t for t, m in enumerate(_real) if m]"),
            en="places the score on the last real token, which may be a tool's message that nobody learns from",
            zh="把分数放在最后一个真实 token 上，它可能是没人能学到的工具消息",
        ),
        mistake(
            "count_as_position",
            (PLACE, "        if counted:\n            row[len(counted) - 1] = score\n"),
            en="takes the number of tokens for a position: a tool reply in between shifts it to the left",
            zh="把 token 个数当成了位置：中间的工具回复会让它左移",
        ),
        mistake(
            "wraps_around",
            (PLACE, "        row[counted[-1] if counted else -1] = score\n"),
            en="index -1 wraps around: an empty response gets the score in its last column",
            zh="下标 -1 会绕回去：空回答的分数落到了最后一列",
        ),
        mistake(
            "one_too_far",
            ("row[counted[-1]] = score", "row[min(counted[-1] + 1, len(row) - 1)] = score"),
            en="places the score one position after the last token",
            zh="把分数放到了最后一个 token 的后一位",
        ),
        mistake(
            "first_token",
            ("row[counted[-1]] = score", "row[counted[0]] = score"),
            en="places the score on the first token of the policy; it belongs on the last",
            zh="把分数放在了策略的第一个 token 上；应放在最后一个",
        ),
        mistake(
            "every_token",
            (PLACE, "        for t in counted:\n            row[t] = score\n"),
            en="places the score on every token: the row's total is multiplied by its length",
            zh="每个 token 都放了分数：整行的总分被乘上了长度",
        ),
        mistake(
            "spread",
            (PLACE, "        for t in counted:\n            row[t] = score / len(counted)\n"),
            en="spreads the score over the tokens; it is given once, at the end",
            zh="把分数平摊到各个 token；它只在末尾给一次",
        ),
        mistake(
            "last_column",
            (PLACE, "        if counted:\n            row[-1] = score\n"),
            en="places the score in the last column, which is padding for all but the longest row",
            zh="把分数放在最后一列；除最长行外那里都是填充",
        ),
        mistake(
            "end_of_first_turn",
            (
                PLACE,
                "        if counted:\n"
                "            row[next((t for t in counted if t + 1 not in counted), counted[-1])] = score\n",
            ),
            en="places the score at the end of the first turn; later turns then get no credit",
            zh="把分数放在了第一轮的末尾；后面的轮次得不到信用",
        ),
    ),
)
