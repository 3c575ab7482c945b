"""Rollout time split from queue time, and the lag that each of them causes."""

from labs.grading.draw import Draw
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import require, same

NAMES = ("started", "finished", "ingested", "published")


def inputs(draw: Draw) -> Inputs:
    # Whole seconds, so that moments coincide now and then.
    rows: list[tuple[float, float, float]] = []
    for _ in range(draw.integer(1, 4)):
        start = float(draw.integer(0, 5))
        end = start + draw.integer(1, 5)
        rows.append((start, end, end + draw.integer(0, 6)))
    published = sorted({float(draw.integer(0, 14)) for _ in range(draw.integer(0, 5))})
    columns = [list(column) for column in zip(*rows, strict=True)]
    return dict(zip(NAMES, (*columns, published), strict=True))


def total_lag(call: Call, x: Inputs, draw: Draw) -> None:
    """Both lags together are the versions between start and training."""
    _, _, during, after, _ = call(x)
    spans = zip(x["started"], x["ingested"], strict=True)
    same(
        [a + b for a, b in zip(during, after, strict=True)], [sum(s < t <= i for t in x["published"]) for s, i in spans]
    )


def all_seconds(call: Call, x: Inputs, draw: Draw) -> None:
    """Rollout and queue together are the whole life, and the share is one of them."""
    rollout, queue, _, _, share = call(x)
    same(
        [r + q for r, q in zip(rollout, queue, strict=True)],
        [i - s for s, i in zip(x["started"], x["ingested"], strict=True)],
    )
    require(-1e-12 <= share <= 1 + 1e-12, share)


def long_queue(call: Call, x: Inputs, draw: Draw) -> None:
    """A trajectory that waits longer has the same rollout."""
    later = {**x, "ingested": [i + draw.integer(1, 9) for i in x["ingested"]]}
    first, second = call(x), call(later)
    same([first[0], first[2]], [second[0], second[2]])


EXERCISE = Exercise(
    name="queue_time",
    number=24,
    title=Text("Rollout time and queue time", "rollout 时间与排队时间"),
    function="split_times",
    minutes=15,
    kinds=dict.fromkeys(NAMES, "plain"),
    inputs=inputs,
    hidden=12,
    hand=(
        Case(
            inputs=dict(zip(NAMES, ([0.0, 1.0], [4.0, 3.0], [9.0, 9.0], [2.0, 5.0, 8.0]), strict=True)),
            expected=([4.0, 2.0], [5.0, 6.0], [1, 1], [2, 2], 11 / 17),
        ),
        Case(
            inputs=dict(zip(NAMES, ([2.0], [4.0], [6.0], [2.0, 4.0, 6.0]), strict=True)),
            expected=([2.0], [2.0], [1], [1], 0.5),
            note=Text("a version that comes out at the start is already used", "开始那一刻发布的版本已经在用"),
        ),
    ),
    properties=(
        prop(
            "total lag",
            total_lag,
            "both lags add up to the versions between start and training",
            "两个滞后之和等于从开始到训练之间发布的版本数",
        ),
        prop(
            "all seconds",
            all_seconds,
            "rollout and queue seconds add up to the whole life",
            "rollout 与排队秒数之和是整个生命期",
        ),
        prop(
            "longer queue",
            long_queue,
            "waiting longer does not change the rollout's seconds and lag",
            "排队更久，rollout 的秒数和滞后不变",
        ),
    ),
    mistakes=(
        mistake(
            "total_as_rollout",
            (
                "rollout = [f - s for s, f in zip(started, finished, strict=True)]",
                "rollout = [i - s for s, i in zip(started, ingested, strict=True)]",
            ),
            en="counts the time in the queue as rollout time: the environment would be blamed for a slow trainer",
            zh="把排队时间算进了 rollout：训练慢却怪到了环境头上",
        ),
        mistake(
            "queue_from_start",
            (
                "queue = [i - f for f, i in zip(finished, ingested, strict=True)]",
                "queue = [i - s for s, i in zip(started, ingested, strict=True)]",
            ),
            en="counts queue time from the start of the rollout; it begins when the rollout ends",
            zh="排队时间从 rollout 开始算起了；应从 rollout 结束算起",
        ),
        mistake(
            "start_included",
            ("s < t <= f", "s <= t <= f"),
            en="counts a version that came out at the start of the rollout; that one is being used",
            zh="把 rollout 开始那一刻发布的版本也算了；那正是在用的版本",
        ),
        mistake(
            "end_excluded",
            ("s < t <= f", "s < t < f"),
            en="loses a version that comes out at the moment a rollout ends",
            zh="漏掉了 rollout 结束那一刻发布的版本",
        ),
        mistake(
            "finish_twice",
            ("f < t <= i", "f <= t <= i"),
            en="counts a version that comes out at the end of a rollout twice",
            zh="rollout 结束那一刻发布的版本被算了两次",
        ),
        mistake(
            "ingestion_excluded",
            ("f < t <= i", "f < t < i"),
            en="loses a version that comes out at the moment training begins",
            zh="漏掉了训练开始那一刻发布的版本",
        ),
        mistake(
            "all_lag_in_rollout",
            (
                "sum(s < t <= f for t in published) for s, f in zip(started, finished, strict=True)",
                "sum(s < t <= f for t in published) for s, f in zip(started, ingested, strict=True)",
            ),
            en="gives the rollout the lag of the queue as well",
            zh="把排队造成的滞后也算给了 rollout",
        ),
        mistake(
            "mean_of_shares",
            (
                "sum(queue) / (sum(rollout) + sum(queue))",
                "sum(q / (r + q) for r, q in zip(rollout, queue, strict=True)) / len(queue)",
            ),
            en="averages the shares of the trajectories; the share of all seconds is asked for",
            zh="对各轨迹的占比求了平均；题目要总秒数的占比",
        ),
        mistake(
            "share_of_rollout",
            ("sum(queue) / (sum(rollout) + sum(queue))", "sum(rollout) / (sum(rollout) + sum(queue))"),
            en="returns the share of rollout time; that of queue time is asked for",
            zh="返回的是 rollout 时间的占比；题目要排队时间的占比",
        ),
        mistake(
            "ratio_to_rollout",
            ("sum(queue) / (sum(rollout) + sum(queue))", "sum(queue) / sum(rollout)"),
            en="divides queue time by rollout time; the share of all seconds is asked for",
            zh="用排队时间除以了 rollout 时间；题目要它占全部秒数的比例",
        ),
    ),
)
