"""Group advantages by the course's rule and by verl's, on the four kinds of group."""

from labs.grading.draw import Draw
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import require, same

S3 = 3**0.5


def inputs(draw: Draw) -> Inputs:
    # Numbers that are exact in binary: a group of equal rewards then has a spread of exactly 0.
    count = draw.integer(1, 8)
    return {
        "rewards": [draw.choice((0.0, 1.0, 0.5, 0.25)) for _ in range(count)],
        "groups": [draw.choice(("a", "b", "c")) for _ in range(count)],
    }


def shift(call: Call, x: Inputs, draw: Draw) -> None:
    """The course's advantages do not see a constant."""
    constant = draw.choice((1.0, 2.0, -0.5))
    same(call({**x, "rewards": [r + constant for r in x["rewards"]]})[0], call(x)[0])


def scale(call: Call, x: Inputs, draw: Draw) -> None:
    """The course's advantages do not see a scale."""
    same(call({**x, "rewards": [4 * r for r in x["rewards"]]})[0], call(x)[0])


def smaller(call: Call, x: Inputs, draw: Draw) -> None:
    """In a group of several verl's number is the course's, made smaller by sqrt((n - 1) / n)."""
    course, verl = call(x)
    for i, group in enumerate(x["groups"]):
        n = x["groups"].count(group)
        if n > 1:
            same(verl[i], course[i] * ((n - 1) / n) ** 0.5, rtol=2e-5)


def zero_sum(call: Call, x: Inputs, draw: Draw) -> None:
    """Both sum to 0 in a group of several."""
    for answer in call(x):
        for group in set(x["groups"]):
            own = [a for a, g in zip(answer, x["groups"], strict=True) if g == group]
            require(len(own) == 1 or abs(sum(own)) < 1e-9, answer)


EXERCISE = Exercise(
    name="group_advantages",
    number=3,
    title=Text("Group advantages: the course's rule and verl's", "组内优势：课程的规则与 verl 的规则"),
    function="group_advantages",
    minutes=30,
    kinds={"rewards": "plain", "groups": "plain"},
    inputs=inputs,
    rtol=1e-7,
    needs=("policy_gradient",),
    hand=(
        Case(
            inputs={
                "rewards": [0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0],
                "groups": ["a", "a", "b", "b", "c", "c", "c", "c", "d"],
            },
            expected=(
                [0.0, 0.0, 0.0, 0.0, 0.75 / (S3 / 4), -1 / S3, -1 / S3, -1 / S3, 0.0],
                [0.0] * 4 + [0.75 / 0.500001] + [-0.25 / 0.500001] * 3 + [1 / 1.000001],
            ),
            note=Text("a all wrong, b all right, c mixed, d alone", "a 全错，b 全对，c 有对有错，d 独自一组"),
        ),
        Case(
            inputs={"rewards": [1.0, 0.5, 0.0], "groups": ["a", "b", "a"]},
            expected=(
                [1.0, 0.0, -1.0],
                [0.5 / (0.5**0.5 + 1e-6), 0.5 / 1.000001, -0.5 / (0.5**0.5 + 1e-6)],
            ),
        ),
    ),
    properties=(
        prop(
            "shift",
            shift,
            "the course's rule does not see a constant added to all rewards",
            "给所有奖励加常数，课程规则的结果不变",
        ),
        prop(
            "scale",
            scale,
            "the course's rule does not see all rewards multiplied by 4",
            "所有奖励乘以 4，课程规则的结果不变",
        ),
        prop(
            "ratio",
            smaller,
            "in a group of n, verl's number is the course's times sqrt((n - 1)/n)",
            "在 n 条的组里，verl 的数是课程的数乘 sqrt((n - 1)/n)",
        ),
        prop("zero sum", zero_sum, "advantages of a group of several sum to 0", "多于一条的组，优势之和为 0"),
    ),
    mistakes=(
        mistake(
            "course_sample_std",
            ("math.sqrt(squares / n)", "math.sqrt(squares / max(n - 1, 1))"),
            en="course: divides by the sample standard deviation where the statement asks for the population's",
            zh="课程规则：除以了样本标准差；题目要总体标准差",
        ),
        mistake(
            "verl_population_std",
            ("math.sqrt(squares / (n - 1))", "math.sqrt(squares / n)"),
            en="verl: divides by the population standard deviation; verl uses the sample's (n - 1)",
            zh="verl 规则：除以了总体标准差；verl 用样本标准差（n - 1）",
        ),
        mistake(
            "verl_without_epsilon",
            ("(math.sqrt(squares / (n - 1)) + EPSILON)", "(math.sqrt(squares / (n - 1)) or 1.0)"),
            en="verl: forgets the epsilon that is added to the standard deviation",
            zh="verl 规则：忘了给标准差加 epsilon",
        ),
        mistake(
            "course_with_epsilon",
            ("(r - mean) / spread", "(r - mean) / (spread + EPSILON)"),
            en="course: adds an epsilon; the course's rule has none and treats equal rewards as a case of its own",
            zh="课程规则：加了 epsilon；课程规则没有它，相等奖励单独处理",
        ),
        mistake(
            "epsilon_under_the_root",
            ("(math.sqrt(squares / (n - 1)) + EPSILON)", "math.sqrt(squares / (n - 1) + EPSILON)"),
            en="verl: adds the epsilon under the square root; it is added to the standard deviation",
            zh="verl 规则：epsilon 加在了根号里；应当加在标准差上",
        ),
        mistake(
            "verl_singleton_zero",
            ("verl[i] = r / (1 + EPSILON)", "verl[i] = 0.0"),
            en="verl: gives a lone trajectory 0; verl takes mean 0 and standard deviation 1, so its score stays",
            zh="verl 规则：独自一组给了 0；verl 取均值 0、标准差 1，分数得以保留",
        ),
        mistake(
            "verl_singleton_without_epsilon",
            ("verl[i] = r / (1 + EPSILON)", "verl[i] = r"),
            en="verl: a lone trajectory is divided by 1 + epsilon as well",
            zh="verl 规则：独自一组的轨迹同样要除以 1 + epsilon",
        ),
        mistake(
            "course_singleton_keeps_score",
            (
                "course[i] = (r - mean) / spread if spread else 0.0",
                "course[i] = ((r - mean) / spread if spread else 0.0) if n > 1 else r",
            ),
            en="course: a lone trajectory keeps its score; it has nothing to be compared with and gets 0",
            zh="课程规则：独自一组保留了分数；它没有比较对象，应为 0",
        ),
        mistake(
            "divides_by_zero",
            (" if spread else 0.0", ""),
            en="course: divides by zero in a group of equal rewards; such a group teaches nothing, so 0",
            zh="课程规则：奖励全等的组里除以了零；这样的组什么也学不到，应为 0",
        ),
        mistake(
            "whole_batch",
            (" if g == group]", "]"),
            en="compares with the whole batch instead of with the own group",
            zh="和整个批次比较，而不是和自己那一组比较",
        ),
        mistake(
            "not_centred",
            ("course[i] = (r - mean)", "course[i] = r"),
            ("verl[i] = (r - mean)", "verl[i] = r"),
            en="forgets to subtract the group's mean",
            zh="忘了减去组的均值",
        ),
        mistake(
            "swapped",
            ("return course, verl", "return verl, course"),
            en="returns the two lists in the wrong order: the course's first, then verl's",
            zh="两个列表的顺序反了：先课程的，再 verl 的",
        ),
    ),
)
