"""What the numbers of this package declare. `<...>` in a name stands for what a run puts there."""

from __future__ import annotations

import math

from labs.metrics import Metric


def _three(
    name: str, unit: str, what: str, *, low: float = -math.inf, high: float = math.inf, healthy: str = "",
    text: str = "", scope: str = "batch",
) -> tuple[Metric, ...]:  # fmt: skip
    """Declarations of `name/mean`, `name/max` and `name/min`, which share a range."""
    return tuple(
        Metric(
            name=f"{name}/{how}",
            unit=unit,
            formula=f"{how} of {what}",
            low=low,
            high=high,
            scope=scope,
            healthy=healthy if how == "mean" else "",
            text=text,
        )
        for how in ("mean", "max", "min")
    )


def _one(
    name: str, unit: str, formula: str, *, low: float = -math.inf, high: float = math.inf, healthy: str = "",
    text: str = "", scope: str = "batch",
) -> Metric:  # fmt: skip
    return Metric(name=name, unit=unit, formula=formula, low=low, high=high, healthy=healthy, text=text, scope=scope)


_CLIPPED = "Compares with the width of this batch: padded to its longest row, a batch always shows at least 1/B."

DATA: tuple[Metric, ...] = (
    *_three("critic/score", "reward", "row sums of token_level_scores over rows with a response",
            text="What the verifier gave, before any KL."),
    *_three("critic/rewards", "reward", "row sums of token_level_rewards over rows with a response",
            text="Scores minus the KL charged in the reward."),
    *_three("critic/advantages", "reward", "advantages over response_mask",
            healthy="near 0", text="Weighted by length: a long row has more tokens."),
    *_three("critic/returns", "reward", "returns over response_mask"),
    *_three("critic/values", "reward", "values over response_mask"),
    _one("critic/vf_explained_var", "1", "1 - var(returns - values) / (var(returns) + 1e-5), Bessel", high=1,
         healthy="above 0.5", text="Below 0 the critic is worse than a constant."),
    *_three("response_length", "token", "attended response tokens of each row, tool text included", low=0),
    _one("response_length/clip_ratio", "1", "share of rows as long as the padded width", low=0, high=1, text=_CLIPPED),
    *_three("response_length_non_aborted", "token", "the same over rows with a response", low=1),
    _one("response_length_non_aborted/clip_ratio", "1", "the same over rows with a response", low=0, high=1,
         text=_CLIPPED),
    _one("response/aborted_ratio", "1", "share of rows without a response token", low=0, high=1, healthy="0"),
    *_three("prompt_length", "token", "attended prompt tokens of each row", low=0),
    _one("prompt_length/clip_ratio", "1", "share of prompts as long as the padded width", low=0, high=1, text=_CLIPPED),
    *_three("num_turns", "turn", "turns of each row", low=0),
    *_three("tool_call_counts", "call", "tool calls of each row", low=0),
)  # fmt: skip

_OFF_POLICY = "training/off_policy/trajectory"
OFF_POLICY: tuple[Metric, ...] = (
    *_three(f"{_OFF_POLICY}_spans", "version", "newest - oldest version + 1 of each row", low=1, healthy="1",
            text="More than 1 means that a rollout was continued after a weight update."),
    *_three(f"{_OFF_POLICY}_staleness", "version", "(step - 1) - newest version of each row", low=0),
    *_three(f"{_OFF_POLICY}_staleness_worst", "version", "(step - 1) - oldest version of each row", low=0),
)  # fmt: skip

DEBUG: tuple[Metric, ...] = (
    _one("training/rollout_probs_diff_valid", "1", "1 if the mask has a token", low=0, high=1, healthy="1"),
    _one("training/rollout_probs_diff_max", "1", "largest |pi_actor - pi_rollout| over response_mask", low=0, high=1,
         healthy="below 0.4"),
    _one("training/rollout_probs_diff_mean", "1", "mean of the same", low=0, high=1, healthy="below 0.01",
         text="A sudden rise means that trainer and engine do not hold the same weights."),
    _one("training/rollout_probs_diff_std", "1", "Bessel standard deviation of the same", low=0, high=1,
         healthy="below 0.02"),
    _one("training/rollout_actor_probs_pearson_corr", "1", "Pearson correlation of both probabilities", low=-1, high=1,
         healthy="above 0.99"),
)  # fmt: skip

VARIANCE: tuple[Metric, ...] = (
    _one("variance_proxy/proxy1_signal_strength", "reward^2", "gradient norm squared, 0 without one", low=0),
    _one("variance_proxy/proxy2_total_power", "reward^2", "mean over rows of A^2 max(W, 0)", low=0,
         text="Signal plus noise of one row's gradient, in the logits."),
    _one("variance_proxy/proxy3_pure_noise", "reward^2", "max(0, (proxy2 - proxy1) / (B - 1))", low=0),
    _one("variance_proxy/expected_a_squared", "reward^2", "mean over rows of the squared masked mean advantage", low=0),
    _one("variance_proxy/expected_w", "1", "mean over rows of the sum of 1 - 2 pi + sum pi^2", low=0,
         text="Not negative when sum_pi_squared belongs to the same policy: it is a squared norm."),
)  # fmt: skip

TIMING: tuple[Metric, ...] = (
    _one("timing_s/<stage>", "s", "wall-clock or simulated seconds of the stage", low=0, scope="update"),
    _one("timing_per_token_ms/<stage>", "ms/token", "1000 * seconds / tokens (gen: response tokens, else all)", low=0,
         scope="update"),
    _one("perf/total_num_tokens", "token", "attended tokens of the batch", low=0),
    _one("perf/time_per_step", "s", "timing_s/step", low=0, scope="update"),
    _one("perf/throughput", "token/s/GPU", "tokens / (seconds * GPUs)", low=0, scope="update"),
    _one("fully_async/trainer/idle_ratio", "1", "timing_s/gen / timing_s/step", low=0, scope="update",
         healthy="near 0", text="The trainer waits inside its generation stage."),
    _one("dynamic_resource/train_resource_utilization", "1", "compute / allocated seconds of the trainer's GPUs", low=0,
         scope="update"),
    _one("dynamic_resource/rollout_resource_utilization", "1", "active over possible requests, by time", low=0, high=1,
         scope="update"),
    _one("dynamic_resource/resource_utilization", "1", "both, weighted by GPUs and time", low=0, scope="update"),
)  # fmt: skip

VALIDATION: tuple[Metric, ...] = (
    _one("val-core/<source>/<variable>/mean@<N>", "variable", "mean over prompts of the mean of N responses",
         scope="run"),
    _one("val-aux/<source>/<variable>/std@<N>", "variable", "mean over prompts of the population deviation", low=0,
         scope="run"),
    _one("val-core/<source>/<variable>/best@<K>/mean", "variable", "mean of the best of K drawn with replacement",
         scope="run", text="Drawn with replacement, it is at most pass@K."),
    _one("val-aux/<source>/<variable>/worst@<K>/mean", "variable", "mean of the worst of K drawn with replacement",
         scope="run"),
    _one("val-core/<source>/<variable>/maj@<K>/mean", "variable", "mean value of the most frequent answer of K",
         scope="run"),
    _one("val-aux/<source>/<variable>/<best|worst|maj>@<K>/std", "variable", "deviation over 1000 resamples", low=0,
         scope="run"),
)  # fmt: skip


METRICS: tuple[Metric, ...] = DATA + OFF_POLICY + DEBUG + VARIANCE + TIMING + VALIDATION
