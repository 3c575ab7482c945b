"""One run of the trainer: from the settings to the result."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from labs.config import changed
from labs.experiment import Progress, Result
from labs.registry import environments
from labs.stats import wilson

if TYPE_CHECKING:
    from experiments.train import Config
    from labs.environment import Environment
    from labs.policy import Policy
    from labs.trainer import Trainer, TrainerConfig

#: How many episodes of the last evaluation the result shows.
SHOWN = 8
#: Exact success from which a task counts as solved.
SOLVED = 0.95


def trainer_config(config: Config) -> TrainerConfig:
    from labs.correction import PRESETS
    from labs.step import StepConfig
    from labs.trainer import TrainerConfig

    options: dict[str, dict[str, Any]] = {}
    for text in config.options:
        entry, _, rest = text.partition(".")
        name, _, value = rest.partition("=")
        try:
            read: Any = json.loads(value)
        except json.JSONDecodeError:
            read = value
        options.setdefault(entry, {})[name] = read
    same = ("estimator", "loss", "loss_agg_mode", "denominators", "gamma", "lam", "norm_adv_by_std_in_grpo",
            "use_kl_in_reward", "kl_penalty", "use_kl_loss", "kl_loss_type", "kl_loss_coef", "entropy_coeff",
            "truncation")  # fmt: skip
    kl_ctrl: dict[str, Any] = {"type": "fixed", "kl_coef": config.kl_coef}
    if config.kl_target is not None:
        # An error of a fifth moves the coefficient by 2 % an update, whatever the batch.
        horizon = 10 * config.groups_per_update * config.group_size
        kl_ctrl |= {"type": "adaptive", "target_kl": config.kl_target, "horizon": horizon}
    step = StepConfig(
        **{name: getattr(config, name) for name in same},
        estimator_options=options.get("estimator", {}),
        loss_options=options.get("loss", {}),
        rewards=tuple((name, options.get(name, {})) for name in config.rewards),
        masks=tuple((name, options.get(name, {})) for name in config.masks),
        correction=None if config.correction is None else PRESETS[config.correction](),
        kl_ctrl=kl_ctrl,
    )
    same = ("groups_per_update", "group_size", "max_steps", "temperature", "rollout_lag", "optimiser", "learning_rate",
            "epochs", "minibatches", "max_grad_norm", "row_entropy_coeff", "critic_learning_rate", "critic_epochs",
            "reference_refresh", "filter_groups", "filter_budget", "format_tokens", "multi_turn_rows")  # fmt: skip
    operands = None if config.train_operands is None else (config.train_operands[0], config.train_operands[1])
    return TrainerConfig(step=step, operands=operands, **{name: getattr(config, name) for name in same})


def _trainer(config: Config, seed: int) -> Trainer:
    from labs.trainer import Trainer

    return Trainer(environments[config.environment], trainer_config(config), seed=seed)


def explained(config: Config, seed: int, number: int) -> Any:
    """Update `number` of this run, for `python -m labs explain`."""
    from labs.explain import of_trainer

    return of_trainer(_trainer(config, seed), number)


def run(config: Config, seed: int, progress: Progress | None = None) -> Result:
    """Evaluate the uniform policy, train, evaluate again; evaluations draw from a generator of their own."""
    import torch

    trainer = _trainer(config, seed)
    before, _ = _judge(config, trainer.policy, seed)
    policy_before = _table(trainer.environment, trainer.policy)
    rows = []
    for number in range(1, config.updates + 1):
        rows.append(next(trainer))
        if progress is not None:
            progress(number, config.updates)
    after, episodes = _judge(config, trainer.policy, seed)
    exact = [row["exact_success_rate"] for row in rows[1:]] + [_exact(config, trainer)]
    solved = next((i + 1 for i, value in enumerate(exact) if value >= SOLVED), None)
    first = torch.tensor([row["trajectories"] for row in rows]).cumsum(0).tolist()
    data = {
        "before": before,
        "after": after,
        "train_episodes": first[-1],
        "exact_train_success_rate": exact[-1],
        "solved_after_updates": solved,
        "solved_after_trajectories": None if solved is None else first[solved - 1],
        "policy": _table(trainer.environment, trainer.policy),
        "policy_before": policy_before,
        "trajectories": [_shown(episodes, i) for i in range(min(SHOWN, len(episodes)))],
    }
    headline = {
        "exact_final_success_rate": after["exact_success_rate"],
        "success_rate": after["success_rate"],
        "exact_final_score": after["exact_mean_score"],
        "invalid_rate": after["invalid_rate"],
        "mean_actions": after["mean_actions"],
        "timeout_rate": after["timeout_rate"],
        "mean_score": after["mean_score"],
        "mean_state_entropy": rows[-1]["mean_state_entropy"],
    }
    return Result(
        data=data,
        metrics=rows,
        trajectories=data["trajectories"],
        headline=headline,
        summary=_summary(config, data, rows),
        conclusion=_conclusion(config, data),
        next=(
            f"python -m labs.run --experiment train{_spelt(config)} --seeds 0-7",
            f"python -m labs show {config.estimator}",
        ),
        files={"policy.json": trainer.policy.as_json(trainer.environment).encode()},
    )


def _exact(config: Config, trainer: Trainer) -> float:
    from labs.episodes import exact_outcomes

    chosen = config.train_operands
    operands = trainer.environment.train_operands if chosen is None else (chosen[0], chosen[1])
    return exact_outcomes(trainer.environment, trainer.policy, operands=operands, max_steps=config.max_steps).success


def _judge(config: Config, policy: Policy, seed: int) -> tuple[dict[str, Any], Any]:
    import torch

    from labs.episodes import evaluate

    chosen = config.evaluation_operands
    seen = evaluate(
        environments[config.environment],
        policy.at(config.evaluation_temperature),
        generator=torch.Generator().manual_seed(seed + 10_000),
        episodes=config.evaluation_episodes,
        operands=None if chosen is None else (chosen[0], chosen[1]),
        mode=config.evaluation_mode,
        max_steps=config.max_steps,
    )
    interval = wilson(round(seen.success_rate * config.evaluation_episodes), config.evaluation_episodes)
    return {
        "success_rate": seen.success_rate,
        "success_interval": [interval.low, interval.high],
        "success_interval_kind": interval.name,
        "invalid_rate": seen.invalid_rate,
        "timeout_rate": seen.timeout_rate,
        "mean_actions": seen.mean_actions,
        "mean_score": seen.mean_score,
        "episodes": config.evaluation_episodes,
        "exact_success_rate": seen.exact.success,
        "exact_invalid_rate": seen.exact.invalid,
        "exact_timeout_rate": seen.exact.timeout,
        "exact_mean_actions": seen.exact.actions,
        "exact_mean_score": seen.exact.score,
    }, seen.episodes


def _table(environment: Environment, policy: Policy) -> list[dict[str, Any]]:
    return [
        {"operation": family, "stage": stage, "action_probabilities": dict(zip(environment.actions, row, strict=True))}
        for family, rows in zip(environment.families, policy.as_list(), strict=True)
        for stage, row in zip(environment.stages, rows, strict=True)
    ]


def _shown(episodes: Any, i: int) -> dict[str, Any]:
    environment, task, path = episodes.environment, episodes.tasks[i], episodes.path(i)
    return {
        "episode": i,
        "operation": task.family,
        "operands": list(task.operands),
        "steps": [
            {
                "observation": {"operation": task.family, "stage": environment.states[state].stage},
                "action": environment.actions[action],
                "log_probability": float(episodes.log_probs[i, step]),
                "policy_version": int(episodes.versions[i, step]),
            }
            for step, (state, action) in enumerate(zip(path.states, path.actions, strict=True))
        ],
        "end": path.end,
        "success": bool(episodes.successes[i]),
        "reward": float(episodes.scores[i]),
    }


def _summary(config: Config, data: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    before, after, last = data["before"], data["after"], rows[-1]
    low, high = after["success_interval"]

    def change(key: str) -> str:
        return f"{before[key]:.4f} -> {after[key]:.4f}"

    solved = data["solved_after_updates"]
    when = f"never over {SOLVED}" if solved is None else f"over {SOLVED} after {solved} updates"
    return [
        f"success  {change('success_rate')} of {after['episodes']} held-out tasks, {config.evaluation_mode} "
        f"({after['success_interval_kind']} {low:.4f} to {high:.4f})",
        f"exact    {change('exact_success_rate')} probability of success of the same policies, by enumeration",
        f"score    {change('exact_mean_score')} exact; {after['exact_mean_actions']:.2f} decisions an episode",
        f"trained  {data['train_episodes']:,} trajectories in {config.updates} updates; training success {when}",
        f"groups   of the last {last['groups']}: {last['all_wrong_groups']} all wrong, "
        f"{last['all_right_groups']} all right, {last['zero_advantage_groups']} of equal scores",
    ]


def _conclusion(config: Config, data: dict[str, Any]) -> str:
    """One sentence from the exact values, which no luck of the evaluation can change."""
    start, end = data["before"]["exact_success_rate"], data["after"]["exact_success_rate"]
    name = f"{config.estimator} with {config.loss}"
    change = f"exact success went from {start:.4f} to {end:.4f}"
    if end >= SOLVED and data["solved_after_trajectories"] is not None:
        return f"{name} solved {config.environment} in {data['solved_after_trajectories']:,} trajectories: {change}."
    if end >= SOLVED:
        return f"{name} solved {config.environment} on the held-out tasks: {change}."
    if end > start + 0.05:
        return f"{name} learned a part of {config.environment}: {change}."
    if end < start / 2:
        return f"{name} unlearned {config.environment}: {change}."
    return f"{name} did not learn {config.environment} in this many updates: {change}."


def _spelt(config: Config) -> str:
    """What to type for the same settings."""

    def spell(value: Any) -> str:
        if isinstance(value, list):
            return ",".join(map(str, value))
        return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

    pairs = [f"{name}={spell(value)}" for name, value in changed(config).items()]
    return " --set " + " ".join(pairs) if pairs else ""
