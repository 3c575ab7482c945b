"""Configurations that cannot work, or may not: found and named before anything runs.

`refuse` raises for what is certain: a batch that the gates can never hold, a budget that never grows enough. `hazards`
names what can deadlock or starve depending on the draw; such a system runs, its report says so, and if it happens the
run ends with `DeadlockError` or `StarvationError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from labs.errors import InputError

if TYPE_CHECKING:
    from labs.pipeline.rules import Rules


def refuse(rules: Rules) -> None:
    """Raise `InputError` if the system can never train, or must come to a stop."""
    batch, cycle = rules.batch_size, rules.batch_size * rules.steps_per_sync
    if rules.concurrency is not None and rules.concurrency < 1:
        raise InputError(
            f"concurrency_batches is {rules.concurrency_batches:g}: no rollout may ever run; allowed: at least "
            f"one rollout, 1 / (batch_size x group_size) batches"
        )
    if rules.capacity is not None and rules.capacity < batch:
        raise InputError(
            f"batch_size is {batch}, but the queue holds at most {rules.capacity} and a batch is taken from the queue; "
            f"allowed: queue_batches at least 1"
        )
    if rules.submission != "open":
        ahead = rules.whole(rules.submission_batches)
        # Between two publications the clock of published versions stands still, and so does a quota.
        needed = batch if rules.submission == "budget" and rules.submission_clock == "taken" else cycle
        if ahead < needed:
            raise InputError(
                f"submission_batches is {rules.submission_batches:g}: the {rules.submission} lets {ahead} tasks start "
                f"and the trainer needs {needed} before it opens again; allowed: at least {needed / batch:g}"
            )
    if rules.ingestion == "reject" and rules.version_unit != "sync":
        per_step = 1 if rules.version_unit == "step" else batch * rules.group_size
        late = (rules.steps_per_sync - 1) * per_step
        if late > rules.max_policy_lag:
            raise InputError(
                f"max_policy_lag is {rules.max_policy_lag}, but versions count every {rules.version_unit} and weights "
                f"are published every {rules.steps_per_sync} steps: before the next publication even a new trajectory "
                f"is {late} behind and is rejected, for ever; allowed: max_policy_lag at least {late}"
            )


def hazards(rules: Rules) -> list[str]:
    """What may go wrong under these rules, one sentence each, beginning `deadlock`, `starvation` or `unbounded`."""
    found = []
    # A budget or quota no larger than the queue never lets it overflow.
    overflows = rules.capacity is not None and rules.on_full != "block"
    if rules.submission != "open" and rules.capacity is not None:
        overflows = overflows and rules.whole(rules.submission_batches) > rules.capacity
    untrained = {
        "rejected": rules.ingestion == "reject",
        "dropped": overflows,
        "filtered": rules.filter != "none",
        "cancelled": rules.sweep,
        "lost": rules.mean_time_to_failure is not None,
    }
    if rules.submission == "budget" and rules.submission_clock == "version":
        # Every publication lets a whole batch start that is not too old before the next: what is stale uses up no more
        # than the lead, and the schedule becomes synchronous.
        untrained["rejected"] = untrained["cancelled"] = False
    leaks = [way for way, happens in untrained.items() if happens and way not in rules.returns]
    if rules.submission != "open" and leaks:
        found.append(
            f"deadlock: a group that is {' or '.join(leaks)} keeps its place in the {rules.submission}, so the gate "
            f"can close before a batch is complete"
        )
    if rules.mean_time_to_failure is not None and rules.restart_seconds is None:
        found.append("deadlock: dead workers never come back, so all of them can be dead")
    if rules.mean_time_to_failure is not None and rules.requeue != "none":
        found.append(
            "starvation: a rollout much longer than workers live is lost every time it is made, and made again"
        )
    stale = rules.ingestion == "reject" or rules.sweep
    if rules.requeue == "same" and stale:
        found.append(
            f"starvation: a task that takes longer than about {rules.max_policy_lag + 1} versions is too old every "
            f"time it is made, and is made again"
        )
    if rules.requeue == "same" and rules.filter != "none":
        found.append(
            "starvation: a task that always or never succeeds is filtered every time it is made, and made again"
        )
    if rules.requeue == "new" and rules.filter != "none":
        found.append("starvation: if every task always or never succeeds, each is filtered and replaced, without end")
    if rules.in_flight == "abort_restart":
        found.append("starvation: a rollout longer than the time between two updates is aborted at each of them")
    if rules.requeue != "none" and overflows:
        found.append("starvation: what is dropped from the full queue is made again, and may be dropped again")
    if rules.submission == "open" and rules.queue_batches is None and rules.ingestion != "reject":
        found.append("unbounded: nothing stops the queue, and with it the lag, if rollouts outrun the trainer")
    return found
