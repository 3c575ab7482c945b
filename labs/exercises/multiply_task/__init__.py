"""A third task: multiplication, in environment, policy shape, verifier and evaluation together."""

from labs.grading.draw import Draw, numbers
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import require, same

STEP = """    if stage == "ready" and action == "multiply":
        return "computed", left * right, None
"""
VERIFY = """    if family == "product":
        expected = left * right
    elif family == "sum":
"""
ACTIONS = 'ACTIONS = ("read", "add", "subtract", "multiply", "submit")'
UNCHANGED = (
    (ACTIONS, 'ACTIONS = ("read", "add", "subtract", "submit")'),
    ('FAMILIES = ("sum", "difference", "product")', 'FAMILIES = ("sum", "difference")'),
    ("SHAPE = (3, 3, 5)", "SHAPE = (2, 3, 4)"),
    (STEP, ""),
    (VERIFY, '    if family == "sum":\n'),
)
FAMILIES = ("sum", "difference", "product")


def greedy(stages: tuple[str, str, str]) -> list[list[float]]:
    """Logits that pick these actions, one per stage."""
    names = ("read", "add", "subtract", "multiply", "submit")
    return [[9.0 if name == chosen else 0.0 for name in names] for chosen in stages]


#: A policy that does everything right.
RIGHT = [greedy(("read", tool, "submit")) for tool in ("add", "subtract", "multiply")]


def inputs(draw: Draw) -> Inputs:
    count, limit = draw.integer(1, 5), draw.integer(2, 4)
    tasks = [[draw.choice(FAMILIES), draw.integer(1, 3), draw.integer(1, 3)] for _ in range(count)]
    # Mostly the right thing, so that episodes get somewhere.
    table = [[[z / 3 + draw.number(-1, 1) for z in row] for row in family] for family in RIGHT]
    if draw.choice((False, True)):
        table[2][1] = [0.0, draw.number(2, 4), 0.0, draw.number(2, 4), 0.0]
    return {"logits": table, "tasks": tasks, "draws": [numbers(draw, limit, 0, 0.99) for _ in range(count)]}


def old_tasks(call: Call, x: Inputs, draw: Draw) -> None:
    """A perfect policy solves every kind of task, given three steps."""
    answer = call({**x, "logits": RIGHT, "draws": [[0.5] * 4 for _ in x["tasks"]]})
    require(all(v == 1.0 for v in answer["success"].values()), answer["success"])


def one_by_one(call: Call, x: Inputs, draw: Draw) -> None:
    """Tasks do not influence each other."""
    answer = call(x)
    for i, task in enumerate(x["tasks"]):
        same(call({**x, "tasks": [task], "draws": [x["draws"][i]]})["rewards"][0], answer["rewards"][i])


EXERCISE = Exercise(
    name="multiply_task",
    number=9,
    title=Text("Adding a multiply task", "增加乘法任务"),
    function="evaluate",
    minutes=40,
    kinds={"logits": "plain", "tasks": "plain", "draws": "plain"},
    inputs=inputs,
    stub=UNCHANGED,
    hidden=14,
    examples=15,
    needs=("max_steps",),
    hand=(
        Case(
            inputs={
                "logits": RIGHT,
                "tasks": [["sum", 3, 4], ["difference", 3, 4], ["product", 3, 4]],
                "draws": [[0.5, 0.5, 0.5]] * 3,
            },
            expected={
                "shape": [3, 3, 5],
                "ends": ["submitted"] * 3,
                "rewards": [1.0, 1.0, 1.0],
                "success": {"sum": 1.0, "difference": 1.0, "product": 1.0},
            },
            note=Text("a perfect policy", "完美的策略"),
        ),
        Case(
            inputs={
                "logits": [RIGHT[0], RIGHT[1], greedy(("read", "add", "submit"))],
                "tasks": [["product", 2, 2], ["product", 2, 3]],
                "draws": [[0.5, 0.5, 0.5]] * 2,
            },
            expected={
                "shape": [3, 3, 5],
                "ends": ["submitted", "submitted"],
                "rewards": [1.0, 0.0],
                "success": {"product": 0.5},
            },
            note=Text("the wrong tool: 2 + 2 is 2 * 2 all the same", "用错了工具：但 2 + 2 恰好等于 2 * 2"),
        ),
    ),
    probes=(
        {"logits": [greedy(("multiply", "add", "submit"))] * 3, "tasks": [["sum", 1, 2]], "draws": [[0.5] * 3]},
        {"logits": RIGHT, "tasks": [["product", 2, 3], ["sum", 1, 1]], "draws": [[0.5] * 2] * 2},
        {"logits": RIGHT, "tasks": [["product", 5, 1], ["product", 1, 5]], "draws": [[0.5] * 3] * 2},
        {"logits": [greedy(("read", "submit", "submit"))] * 3, "tasks": [["product", 2, 3]], "draws": [[0.5] * 3]},
        {"logits": [greedy(("read", "multiply", "submit"))] * 3, "tasks": [["sum", 2, 2]], "draws": [[0.5] * 3]},
    ),
    properties=(
        prop(
            "perfect policy",
            old_tasks,
            "a policy that always uses the right tool solves every task",
            "总是用对工具的策略能解出每个任务",
        ),
        prop("one by one", one_by_one, "tasks do not influence each other", "任务之间互不影响"),
    ),
    mistakes=(
        mistake(
            "unchanged",
            *UNCHANGED,
            en="the product is still unknown: nothing was added yet",
            zh="还不认识 product：什么都没有加",
        ),
        mistake(
            "verifier_forgotten",
            (VERIFY, '    if family == "sum":\n'),
            en="the verifier still knows two families and judges a product as a difference",
            zh="验证器仍只认识两类任务，把乘积当成差来判",
        ),
        mistake(
            "verifier_knows_sum_only",
            (VERIFY, '    if family != "difference":\n'),
            en="the verifier judges a product as a sum",
            zh="验证器把乘积当成和来判",
        ),
        mistake(
            "verifier_accepts_anything",
            ("return 1.0 if answer == expected else 0.0", "return 1.0 if answer is not None else 0.0"),
            en="the verifier accepts every submitted number",
            zh="验证器接受任何提交的数",
        ),
        mistake(
            "tool_not_in_environment",
            (STEP, ""),
            en="the environment refuses multiply: the action exists but no state allows it",
            zh="环境拒绝 multiply：动作有了，但没有状态允许它",
        ),
        mistake(
            "multiply_anywhere",
            ('if stage == "ready" and action == "multiply":', 'if action == "multiply":'),
            en="allows multiply in every state; it needs the operands, which only ready has",
            zh="任何状态都允许 multiply；它需要操作数，只有 ready 状态才有",
        ),
        mistake(
            "multiply_adds",
            (STEP, STEP.replace("left * right", "left + right")),
            en="the multiply tool adds",
            zh="multiply 工具做的是加法",
        ),
        mistake(
            "action_last",
            (ACTIONS, 'ACTIONS = ("read", "add", "subtract", "submit", "multiply")'),
            en="puts multiply after submit: the columns of the policy no longer mean what the statement says",
            zh="把 multiply 放在了 submit 之后：策略各列的含义与题目不符",
        ),
        mistake(
            "family_first",
            ('FAMILIES = ("sum", "difference", "product")', 'FAMILIES = ("product", "sum", "difference")'),
            en="puts product first: the rows of the policy no longer mean what the statement says",
            zh="把 product 放在了最前：策略各行的含义与题目不符",
        ),
        mistake(
            "shape_forgotten",
            ("SHAPE = (3, 3, 5)", "SHAPE = (2, 3, 4)"),
            en="still reports the old shape of the policy",
            zh="报告的策略形状仍是旧的",
        ),
        mistake(
            "evaluation_forgotten",
            ("    for family in FAMILIES:", '    for family in ("sum", "difference"):'),
            en="the evaluation leaves the product out: training would never show whether it is learned",
            zh="评估漏掉了 product：训练时永远看不到它是否学会",
        ),
        mistake(
            "submit_at_ready",
            ('if stage == "computed" and action == "submit"', 'if stage != "start" and action == "submit"'),
            en="allows submit before anything was computed",
            zh="还没有计算就允许 submit",
        ),
        mistake(
            "timeout_is_invalid",
            ('end or "timeout"', 'end or "invalid_action"'),
            en="reports running out of steps as an invalid action",
            zh="把步数用完报告成了非法动作",
        ),
    ),
)
