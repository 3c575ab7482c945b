"""Solutions of the exercises on queues, staleness and corrections against the lab's own code."""

from __future__ import annotations

import math
import random

import pytest
import torch

from labs.correction.rejection import compute_rollout_rejection_mask
from labs.correction.weights import compute_rollout_correction_weights
from labs.grading.spec import get
from labs.pipeline.closed_forms import machine_repair
from labs.pipeline.model import simulate
from labs.pipeline.rules import Rules
from tests.solutions import cases, f64, near, solution

torch.set_num_threads(1)


def test_queue_times_are_the_pipelines() -> None:
    answer = solution("queue_time")
    durations = [1.3, 2.9, 0.7, 3.1, 1.9, 2.3, 4.1, 0.9, 1.1, 2.6]
    run = simulate(Rules(workers=3, batch_size=2, training_seconds=1.7, max_policy_lag=9), durations)
    trained = [t for t in run.trajectories if t.exit is not None]
    assert len(trained) == len(durations)
    moments = {
        "started": [t.start for t in trained],
        "finished": [t.end for t in trained],
        "ingested": [t.exit.time for t in trained],
        "published": [time for time, version in run.publications if version > 0],
    }
    rollout, queue, during, after, share = answer(moments)
    assert [a + b for a, b in zip(during, after, strict=True)] == [t.lag for t in trained]
    assert max(during) > 0
    assert max(after) > 0
    near(sum(rollout), sum(durations))
    near(sum(queue), run.waiting_area)
    assert 0 < share < 1


def course_durations() -> list[float]:
    generator = random.Random(7)
    durations = [generator.lognormvariate(math.log(3) - 0.5, 1.0) for _ in range(96)]
    return [d * 5 if i % 13 == 0 else d for i, d in enumerate(durations)]


@pytest.mark.parametrize(
    ("lag", "training", "accepted", "seconds"),
    [(0, 2.0, "lag0", "s0"), (1, 2.0, "lag1", "s0"), (3, 2.0, "lag3", "s3"), (1, 10.0, "slow", "s10")],
)
def test_staleness_gives_the_reference_figures_of_its_statement(
    lag: int, training: float, accepted: str, seconds: str
) -> None:
    numbers = get("staleness").numbers
    settings = {"workers": 4, "batch_size": 8, "training_seconds": training, "max_policy_lag": lag}
    answer = solution("staleness")({"durations": course_durations(), **settings})
    assert answer[0] == numbers[accepted]
    assert round(answer[2], 3) == numbers[seconds]
    assert sum(answer[:2]) == 96


def test_staleness_is_the_pipelines() -> None:
    for x, (accepted, rejected, seconds, lags) in cases("staleness"):
        settings = {n: x[n] for n in ("workers", "batch_size", "training_seconds", "max_policy_lag")}
        summary = simulate(Rules(**settings), x["durations"]).summary()
        assert (accepted, rejected) == (summary["accepted_trajectories"], summary["rejected_stale_trajectories"])
        assert {str(k): v for k, v in lags.items()} == summary["all_ingest_lag_histogram"]
        near(seconds, summary["simulated_seconds"])


def test_closed_form_of_the_queue() -> None:
    for x, (busy, *_) in cases("queue_closed_form"):
        near(busy, machine_repair(x["workers"], x["training_seconds"] / x["rollout_seconds"]))


def test_importance_weights() -> None:
    for x, (tokens, rows, effective) in cases("importance_weights"):
        ratio, mask = f64(x["old_log_prob"]) - f64(x["rollout_log_prob"]), f64(x["mask"])
        theirs, _ = compute_rollout_correction_weights(ratio, mask, "token", x["cap"])
        near(tokens, theirs.tolist())
        theirs, _ = compute_rollout_correction_weights(ratio, mask, "sequence", x["cap"])
        near(rows, theirs.max(1).values.tolist())
        raw = torch.exp((ratio * mask).sum(1))
        near(effective, (raw.sum() ** 2 / (raw**2).sum() / len(raw)).item())


def test_off_policy_gates() -> None:
    options = ("token_k1", "seq_sum_k1", "seq_mean_k1")
    for x, answers in cases("off_policy_gates"):
        # k1 is minus the log-ratio: a window on it bounds the inverse of the ratio.
        window = f"{1 / x['high']!r}_{1 / x['low']!r}"
        mask = torch.tensor(x["mask"])
        for mine, option in zip(answers, options, strict=False):
            theirs, _ = compute_rollout_rejection_mask(f64(x["log_ratio"]), mask, option, window)
            assert mine == theirs.tolist()
