"""What the experiment measures: a ledger of weights, exact gradients by denominator, micro-batches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from labs.experiment import Progress
from labs.registry import environments

if TYPE_CHECKING:
    from experiments.aggregation import Config
    from labs.batch import TokenBatch
    from labs.policy import Policy
    from labs.step import StepConfig

#: Name of a way, verl's `loss_agg_mode`, and whether the constant of the configuration is its denominator.
WAYS = {
    "token-mean": ("token-mean", False),
    "token-sum": ("token-sum", False),
    "seq-mean-token-sum": ("seq-mean-token-sum", False),
    "seq-mean-token-mean": ("seq-mean-token-mean", False),
    "constant": ("seq-mean-token-sum-norm", True),
    "padded width": ("seq-mean-token-sum-norm", False),
}


def policy(success: float) -> Policy:
    """The policy of exact training that first succeeds this often; decisions are the same in both environments."""
    from labs.exact import ascend
    from labs.policy import Policy

    environment = environments["arithmetic"]
    return Policy.of(environment, ascend(environment, success).log_probs)


def step(config: Config, way: str) -> StepConfig:
    from labs.step import StepConfig

    mode, constant = WAYS[way]
    return StepConfig(estimator=config.estimator, loss="reinforce", loss_agg_mode=mode,
                      loss_scale_factor=config.constant if constant else None)  # fmt: skip


def sample(config: Config, acting: Policy, generator: Any) -> TokenBatch:
    """A batch with the advantages of the estimator; the critic is exact."""
    import torch

    from labs.columns import complete
    from labs.critic import ValueTable
    from labs.episodes import draw_tasks, play
    from labs.exact import truth
    from labs.step import required, stages

    environment = environments[config.environment]
    tasks = draw_tasks(environment, config.groups, generator)
    episodes = play(environment, acting, tasks, config.group_size, generator=generator)
    critic = ValueTable(torch.from_numpy(truth(environment, acting.logits.numpy()).row_values))
    own = step(config, "token-mean")
    batch = complete(
        episodes.tokens(), sorted(required(own)), old=acting, reference=acting, critic=critic, environment=environment,
        tasks=dict(zip(episodes.uid.tolist(), episodes.tasks, strict=True)), generator=generator,
    )  # fmt: skip
    *_, (_, done) = stages(batch, own, generator=generator)
    return done


def ledger(config: Config, acting: Policy, seed: int) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Tokens and weights of every rollout of one batch, and by way the weight of the longest over the shortest.

    The weight of a token is `d objective / d log-probability` at advantage 1, so that only the denominators are seen.
    """
    import torch

    batch = sample(config, acting, torch.Generator().manual_seed(seed))
    attended = batch["attention_mask"][:, -batch.width :].sum(dim=1).tolist()
    chosen = batch["loss_mask"].sum(dim=1).tolist()
    ones = batch.replace(advantages=batch["loss_mask"].to(torch.float64))
    totals = {way: _weights(ones, step(config, way)).sum(dim=1).tolist() for way in WAYS}
    rows = [
        {"rollout": i, "uid": str(batch["uid"][i]), "score": float(batch["scores"][i]), "action_tokens": c,
         "tool_tokens": t - c, "advantage": float(batch["advantages"][i, 0]),
         "weight": {way: totals[way][i] for way in WAYS}, "token_weight": {way: totals[way][i] / c for way in WAYS}}
        for i, (c, t) in enumerate(zip(chosen, attended, strict=True))
    ]  # fmt: skip
    long, short = chosen.index(max(chosen)), chosen.index(min(chosen))
    return rows, {way: totals[way][long] / totals[way][short] for way in WAYS}


def _weights(batch: TokenBatch, config: StepConfig, **counts: float) -> Any:
    """`loss_weights` `[B, T]`: minus the derivative of the loss with respect to the log-probabilities."""
    import torch

    from labs.step import loss

    log_prob = batch["old_log_probs"].clone().requires_grad_()
    value, _ = loss(batch, log_prob, config, **counts)
    (gradient,) = torch.autograd.grad(value, log_prob)
    return -gradient


def exact(config: Config, acting: Policy) -> dict[str, dict[str, float]]:
    """Cosine, scale and signal-to-noise of the exact expected gradient of one group a family, by way.

    The width of a padded batch is a property of tool text, which is no part of the decisions that are counted here:
    `padded width` stands for the width of the longest episode of `arithmetic`.
    """
    from labs.moments import moments

    environment = environments["arithmetic"]
    found = {}
    for way in WAYS:
        own = step(config, way)
        if way == "padded width":
            own = replace(own, loss_scale_factor=9.0)
        m = moments(environment, acting, own, group_size=config.exact_group_size, draws=2000)
        found[way] = {"exact_cosine": m.cosine, "exact_scale": m.scale, "exact_signal_to_noise": m.signal_to_noise}
    return found


def splits(
    config: Config, acting: Policy, seed: int, progress: Progress | None
) -> tuple[list[dict[str, Any]], list[float]]:
    """Mean relative error of the summed gradient of micro-batches by way and number of parts.

    Own counts: every part is divided by its own tokens or rows and the parts are averaged, as gradient accumulation
    does when told nothing. Whole counts: every part is divided by the counts of the batch and the parts are added.

    Returns:
        Rows `{way, parts, local, global}`, and per batch how much larger the local error of token-mean is when the rows
        are sorted by length than when they are shuffled, at the largest number of parts.
    """
    import torch

    generator = torch.Generator().manual_seed(seed + 1)
    sums: dict[tuple[str, int], list[float]] = {(way, k): [0.0, 0.0] for way in WAYS for k in config.splits}
    paired = []
    for number in range(config.batches):
        batch = sample(config, acting, generator)
        shuffled = torch.randperm(batch.rows, generator=generator)
        for (way, k), total in sums.items():
            total[0] += error(batch, acting, step(config, way), shuffled, k, whole=False)
            total[1] += error(batch, acting, step(config, way), shuffled, k, whole=True)
        by_length = torch.argsort(batch["loss_mask"].sum(dim=1), stable=True)
        own, most = step(config, "token-mean"), max(config.splits)
        left, right = (error(batch, acting, own, order, most, whole=False) for order in (by_length, shuffled))
        paired.append(left - right)
        if progress is not None:
            progress(number + 1, config.batches)
    rows = [
        {"way": way, "parts": k, "local": total[0] / config.batches, "global": total[1] / config.batches}
        for (way, k), total in sums.items()
    ]
    return rows, paired


def error(batch: TokenBatch, acting: Policy, config: StepConfig, order: Any, parts: int, *, whole: bool) -> float:
    """`|g_parts - g| / |g|` of the gradient of the table; 0 when there is no gradient at all."""
    import torch

    tokens, rows = float(batch["loss_mask"].sum()), float(batch.rows)
    counts = {"batch_num_tokens": tokens, "global_batch_size": rows} if whole else {}
    target = gradient(batch, acting, _weights(batch, config))
    found = torch.zeros_like(target)
    for index in torch.tensor_split(order, parts):
        part = batch.select(index.numpy())
        found += gradient(part, acting, _weights(part, config, **counts)) / (1 if whole else parts)
    size = float(target.norm())
    return float((found - target).norm()) / size if size else 0.0


def gradient(batch: TokenBatch, acting: Policy, weights: Any) -> Any:
    """`sum over tokens of weight * grad log pi`, `[families, stages, actions]`."""
    import torch

    from labs.policy import Policy as Table

    logits = acting.logits.clone().requires_grad_()
    (found,) = torch.autograd.grad((Table(logits).token_log_probs(batch["table_index"]) * weights).sum(), logits)
    return found
