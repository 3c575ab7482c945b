"""A closed form of the queue between workers and trainer."""

from labs.grading.draw import Draw
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import require, same


def inputs(draw: Draw) -> Inputs:
    return {
        "workers": draw.integer(1, 12),
        "rollout_seconds": draw.number(1, 10),
        "training_seconds": draw.number(0.25, 4),
    }


def little(call: Call, x: Inputs, draw: Draw) -> None:
    """Little's law over the whole cycle: W = throughput times (rollout + response)."""
    _, throughput, _, response = call(x)
    same(throughput * (x["rollout_seconds"] + response), float(x["workers"]))


def one_worker(call: Call, x: Inputs, draw: Draw) -> None:
    """One worker never meets another trajectory."""
    rollout, training = x["rollout_seconds"], x["training_seconds"]
    busy, throughput, number, response = call({**x, "workers": 1})
    share = training / (rollout + training)
    same([busy, throughput, number, response], [share, 1 / (rollout + training), share, training])


def more_workers(call: Call, x: Inputs, draw: Draw) -> None:
    """One more worker never lowers the throughput, and it stays below what the trainer can do."""
    more = call({**x, "workers": x["workers"] + 1})
    require(call(x)[1] <= more[1] + 1e-12 and more[1] <= 1 / x["training_seconds"] + 1e-9, more)


EXERCISE = Exercise(
    name="queue_closed_form",
    number=26,
    title=Text("A closed form of the queue", "队列的闭式解"),
    function="closed_form",
    minutes=25,
    kinds=dict.fromkeys(("workers", "rollout_seconds", "training_seconds"), "plain"),
    inputs=inputs,
    needs=("queue_time",),
    hand=(
        Case(
            inputs={"workers": 1, "rollout_seconds": 3.0, "training_seconds": 2.0},
            expected=(0.4, 0.2, 0.4, 2.0),
            note=Text("one worker: rollout, training, rollout, ...", "一个 worker：rollout、训练、rollout……"),
        ),
        Case(
            inputs={"workers": 2, "rollout_seconds": 1.0, "training_seconds": 1.0},
            expected=(0.8, 0.8, 1.2, 1.5),
            note=Text("weights 1, 2, 2", "权重 1、2、2"),
        ),
        Case(
            inputs={"workers": 3, "rollout_seconds": 2.0, "training_seconds": 1.0},
            expected=(15 / 19, 15 / 19, 27 / 19, 27 / 15),
            note=Text("weights 1, 3/2, 3/2, 3/4", "权重 1、3/2、3/2、3/4"),
        ),
    ),
    properties=(
        prop(
            "Little",
            little,
            "workers = throughput times (rollout seconds + response seconds)",
            "worker 数 = 吞吐量 ×（rollout 秒数 + 响应秒数）",
        ),
        prop("one worker", one_worker, "with one worker nothing ever waits", "只有一个 worker 时从不排队"),
        prop(
            "more workers", more_workers, "one more worker never lowers the throughput", "多一个 worker 不会降低吞吐量"
        ),
    ),
    mistakes=(
        mistake(
            "ratio_upside_down",
            ("r = training_seconds / rollout_seconds", "r = rollout_seconds / training_seconds"),
            en="the ratio is upside down: training seconds over rollout seconds",
            zh="比值颠倒了：应为训练秒数除以 rollout 秒数",
        ),
        mistake(
            "power_of_workers",
            ("(workers - k + 1) * r", "workers * r"),
            en="lets all workers deliver although k of their trajectories wait: W (W - 1) ..., not a power of W",
            zh="已有 k 条在等，却仍让所有 worker 都能交付：应为 W (W - 1) ……，不是 W 的幂",
        ),
        mistake(
            "open_queue",
            ("(workers - k + 1) * r", "r"),
            en="forgets that several workers deliver at the same time",
            zh="忘了多个 worker 会同时交付",
        ),
        mistake(
            "binomial",
            ("(workers - k + 1) * r", "(workers - k + 1) / k * r"),
            en="divides by k: that would be one trainer for every waiting trajectory",
            zh="多除了 k：那相当于每条等待的轨迹都有一个训练器",
        ),
        mistake(
            "one_state_short",
            ("range(1, workers + 1)", "range(1, workers)"),
            en="leaves out the state in which every trajectory waits",
            zh="漏掉了所有轨迹都在等待的状态",
        ),
        mistake(
            "idle_share",
            ("busy = 1 - weights[0] / total", "busy = weights[0] / total"),
            en="returns the share of time in which the trainer is idle",
            zh="返回的是训练器空闲的时间占比",
        ),
        mistake(
            "throughput_by_rollout",
            ("throughput = busy / training_seconds", "throughput = busy / rollout_seconds"),
            en="the throughput is utilisation over training seconds",
            zh="吞吐量应为利用率除以训练秒数",
        ),
        mistake(
            "without_the_one_in_training",
            ("sum(k * w for k, w in enumerate(weights))", "sum((k - 1) * w for k, w in enumerate(weights) if k)"),
            en="counts only those that wait; the one in training belongs to the number too",
            zh="只数了等待的；正在训练的那条也要算",
        ),
        mistake(
            "response_with_rollout",
            ("number / throughput", "workers / throughput"),
            en="returns the seconds of a whole cycle; from the end of the rollout to the end of training is asked for",
            zh="返回的是整个循环的秒数；题目要从 rollout 结束到训练结束",
        ),
        mistake(
            "waiting_only_in_response",
            ("number / throughput", "number / throughput - training_seconds"),
            en="returns the wait before training; the training itself is part of it",
            zh="返回的是训练之前的等待；训练本身也要算在内",
        ),
    ),
)
