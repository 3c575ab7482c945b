"""Staleness: what a bound on the policy lag costs and keeps."""

from labs.grading.draw import Draw
from labs.grading.spec import Call, Case, Exercise, Inputs, Text, mistake, prop
from labs.grading.values import require, same

SMALL = {"durations": [1.0, 2.0, 3.0, 4.0], "workers": 2, "batch_size": 2, "training_seconds": 1.0}


def inputs(draw: Draw) -> Inputs:
    count = draw.integer(1, 14)
    return {
        # Odd numbers, so that nothing happens at the same moment as something else.
        "durations": [draw.number(0.5, 6) * draw.choice((1, 1, 3)) + (i + 1) * 0.0137 for i in range(count)],
        "workers": draw.integer(1, 4),
        "batch_size": draw.integer(1, 4),
        "training_seconds": draw.choice((0.51, 2.03, 9.07)),
        "max_policy_lag": draw.integer(0, 3),
    }


def nothing_lost(call: Call, x: Inputs, draw: Draw) -> None:
    """Every rollout is trained or rejected, and has a lag."""
    accepted, rejected, _, lags = call(x)
    require(accepted + rejected == len(x["durations"]) == sum(lags.values()), (accepted, rejected, lags))
    require(rejected == sum(n for lag, n in lags.items() if lag > x["max_policy_lag"]), lags)


def one_batch(call: Call, x: Inputs, draw: Draw) -> None:
    """A batch that holds everything: one step, no lag, as long as the workers need plus one training."""
    free = [0.0] * x["workers"]
    for seconds in x["durations"]:
        free[free.index(min(free))] += seconds
    answer = call({**x, "batch_size": len(x["durations"])})
    same(list(answer), [len(x["durations"]), 0, max(free) + x["training_seconds"], {0: len(x["durations"])}])


def one_worker(call: Call, x: Inputs, draw: Draw) -> None:
    """One worker, one trajectory a step, training far shorter than a rollout: everything has lag 0 or 1."""
    answer = call({**x, "workers": 1, "batch_size": 1, "training_seconds": 0.001, "max_policy_lag": 9})
    require(set(answer[3]) <= {0, 1}, answer)
    same(answer[2], sum(x["durations"]) + 0.001)


EXERCISE = Exercise(
    name="staleness",
    number=25,
    title=Text("Staleness: max_policy_lag 0, 1, 3", "陈旧度：max_policy_lag 取 0、1、3"),
    function="asynchronous",
    minutes=60,
    kinds=dict.fromkeys((*SMALL, "max_policy_lag"), "plain"),
    inputs=inputs,
    needs=("queue_time",),
    hidden=16,
    numbers={"lag0": 56, "lag1": 88, "lag3": 95, "slow": 59, "s0": 93.860, "s3": 95.860, "s10": 103.860},
    hand=(
        Case(inputs={**SMALL, "max_policy_lag": 1}, expected=(4, 0, 7.0, {0: 2, 1: 2})),
        Case(
            inputs={**SMALL, "max_policy_lag": 0},
            expected=(2, 2, 6.0, {0: 2, 1: 2}),
            note=Text("the last two started before the update", "后两条在更新之前就开始了"),
        ),
        Case(
            inputs={
                "durations": [2.0, 3.0, 5.0],
                "workers": 2,
                "batch_size": 2,
                "training_seconds": 1.0,
                "max_policy_lag": 1,
            },
            expected=(3, 0, 8.0, {0: 2, 1: 1}),
            note=Text("the last batch is smaller and is trained all the same", "最后一批较小，照样训练"),
        ),
    ),
    probes=(
        {
            "durations": [1.3, 5.7, 2.1, 1.9, 0.7, 6.2, 1.1, 2.9, 0.6, 1.7, 4.4, 1.2, 0.8, 3.3, 1.6, 2.2],
            "workers": 4,
            "batch_size": 2,
            "training_seconds": 2.03,
            "max_policy_lag": 3,
        },
        {
            "durations": [1.3, 4.7, 2.1, 1.9, 0.7, 6.2, 1.1, 2.9, 0.6, 1.7, 4.4, 1.2, 0.8, 3.3, 1.6, 2.2],
            "workers": 4,
            "batch_size": 2,
            "training_seconds": 0.51,
            "max_policy_lag": 0,
        },
    ),
    properties=(
        prop(
            "nothing lost",
            nothing_lost,
            "accepted + rejected = all; the lags say which is which",
            "接受 + 拒绝 = 全部；滞后表与之一致",
        ),
        prop(
            "one batch",
            one_batch,
            "a batch that holds everything trains once, at lag 0",
            "一批装下全部时只训练一次，滞后为 0",
        ),
        prop(
            "one worker",
            one_worker,
            "with one worker and quick training no lag exceeds 1",
            "单 worker 且训练很快时，滞后不超过 1",
        ),
    ),
    mistakes=(
        mistake(
            "lag_from_arrival",
            ("now, born = heapq.heappop(running)", "now, _ = heapq.heappop(running)\n            born = version"),
            en="counts the lag from the end of a rollout; the policy that acted is the one at its start",
            zh="从 rollout 结束时开始算滞后；实际行动的策略是它开始时的那个",
        ),
        mistake(
            "bound_exclusive",
            ("version - born > max_policy_lag]", "version - born >= max_policy_lag]"),
            ("version - born <= max_policy_lag]", "version - born < max_policy_lag]"),
            en="rejects a lag equal to the bound; only lags above it are too old",
            zh="拒绝了等于上限的滞后；只有超过上限才算太旧",
        ),
        mistake(
            "nothing_rejected",
            ("version - born > max_policy_lag]", "False]"),
            ("[born for born in waiting if version - born <= max_policy_lag]", "list(waiting)"),
            en="never rejects anything",
            zh="从不拒绝任何轨迹",
        ),
        mistake(
            "newest_first",
            ("batch = waiting[:batch_size] if", "waiting.reverse()\n            batch = waiting[:batch_size] if"),
            ("waiting = waiting[len(batch) :]", "waiting = waiting[len(batch) :][::-1]"),
            en="trains the newest arrivals first; the oldest ones go first",
            zh="先训练最新到达的；应先训练最早到达的",
        ),
        mistake(
            "last_batch_dropped",
            ("if len(waiting) >= batch_size or not running else []", "if len(waiting) >= batch_size else []"),
            en="drops the last, smaller batch",
            zh="丢掉了最后那个较小的批次",
        ),
        mistake(
            "no_full_batches",
            ("if len(waiting) >= batch_size or not running else []", "if waiting else []"),
            en="trains as soon as anything waits; a batch must be full while rollouts still run",
            zh="只要有等待就训练；还有 rollout 在跑时必须凑满一批",
        ),
        mistake(
            "takes_all",
            ("waiting[:batch_size] if", "waiting[:] if"),
            en="trains everything that waits; a step takes batch_size trajectories",
            zh="把等待的全部训练了；一步只取 batch_size 条",
        ),
        mistake(
            "workers_wait",
            ("while tasks and len(running) < workers:", "while tasks and len(running) < workers and done is None:"),
            en="hands out no task while the trainer works; asynchronous workers do not wait for it",
            zh="训练期间不发任务；异步的 worker 不等训练",
        ),
        mistake(
            "instant_training",
            ("done = now + training_seconds", "done = now"),
            en="forgets the seconds of training",
            zh="忘了训练所需的时间",
        ),
        mistake(
            "version_at_start_of_training",
            (
                "                done = now + training_seconds",
                "                done = now + training_seconds\n                version += 1",
            ),
            ("now, done = done, None\n            version += 1", "now, done = done, None"),
            en="publishes the new version when training begins; it exists when training ends",
            zh="训练一开始就发布了新版本；新版本在训练结束时才有",
        ),
        mistake(
            "rejected_have_no_lag",
            ("for born in stale + batch:", "for born in batch:"),
            en="leaves rejected trajectories out of the table of lags",
            zh="滞后表里漏了被拒绝的轨迹",
        ),
        mistake(
            "checked_once",
            (
                "for born in waiting if version - born > max_policy_lag]",
                "for born in waiting[:batch_size] if version - born > max_policy_lag]",
            ),
            (
                "[born for born in waiting if version - born <= max_policy_lag]",
                "[b for i, b in enumerate(waiting) if i >= batch_size or version - b <= max_policy_lag]",
            ),
            en="checks only the oldest batch_size arrivals; all that wait are checked whenever the trainer is free",
            zh="只检查最早到达的 batch_size 条；训练器空闲时应检查所有等待的轨迹",
        ),
    ),
)
