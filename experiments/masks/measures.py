"""What the experiment measures: a wrong mask, rejection, versions at a reply, a score on a tool's token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from labs.registry import call, environments, estimators

if TYPE_CHECKING:
    from experiments.masks import Config
    from labs.batch import TokenBatch
    from labs.policy import Policy
    from labs.step import StepConfig

#: Versions of one estimator that differ in what they do at a reply.
RETURNS = ("reinforce_plus_plus", "reinforce_plus_plus_reset")
TRACES = ("gae", "gae_truncated", "gae_step", "gae_ignore")


def skilled(skill: float) -> Policy:
    """A policy with this logit on the right action of every stage."""
    from labs.policy import Policy

    table = [[[skill * (a == right) for a in range(4)] for right in rights] for rights in ((0, 1, 3), (0, 2, 3))]
    return Policy.of(environments["arithmetic"], table)


def sample(config: Config, policy: Policy, seed: int) -> tuple[TokenBatch, dict[str, Any]]:
    import torch

    from labs.episodes import draw_tasks, play

    environment, generator = environments["arithmetic"], torch.Generator().manual_seed(seed)
    tasks = draw_tasks(environment, config.groups, generator)
    episodes = play(environment, policy, tasks, config.group_size, generator=generator)
    return episodes.tokens(), dict(zip(episodes.uid.tolist(), episodes.tasks, strict=True))


def _complete(batch: TokenBatch, tasks: dict[str, Any], policy: Policy, step: StepConfig) -> TokenBatch:
    """The columns of the estimator; the critic is the exact one."""
    import torch

    from labs.columns import complete
    from labs.critic import ValueTable
    from labs.exact import truth
    from labs.step import required

    environment = environments["arithmetic"]
    critic = ValueTable(torch.from_numpy(truth(environment, policy.logits.numpy()).row_values))
    return complete(batch, sorted(required(step)), old=policy, reference=policy, critic=critic, environment=environment,
                    tasks=tasks)  # fmt: skip


def measure(
    batch: TokenBatch, tasks: dict[str, Any], policy: Policy, step: StepConfig, seed: int, mask: str
) -> tuple[dict[str, Any], Any]:
    """Loss and both gradients under a mask; and the gradient of the choices as `[families, stages, actions]`.

    The tool's text has one row of logits, all zero, over the states that a reply can report: log-probability
    -log(states) a token.
    """
    import torch

    from labs.policy import Policy as Table
    from labs.step import loss, stages
    from labs.tokens import reply_id

    environment = environments["arithmetic"]
    attended = batch["attention_mask"][:, -batch.width :]
    tool = (attended == 1) & (batch["loss_mask"] == 0)
    chosen = float(batch["loss_mask"].sum())
    logits = policy.logits.clone().requires_grad_()
    text = torch.zeros(len(environment.states), dtype=torch.float64, requires_grad=True)
    reply = (batch["responses"] - reply_id(environment, 0)).clamp(min=0)
    words = torch.where(tool, torch.log_softmax(text, 0)[reply], torch.zeros((), dtype=torch.float64))
    log_prob = Table(logits).token_log_probs(batch["table_index"]) + words
    if mask == "attention":
        batch = batch.replace(response_mask=attended, loss_mask=attended)
    batch = _complete(batch, tasks, policy, step).replace(old_log_probs=log_prob.detach())
    *_, (_, done) = stages(batch, step, generator=torch.Generator().manual_seed(seed))
    value, _ = loss(done, log_prob, step)
    choices, replies = torch.autograd.grad(value, (logits, text))
    row = {
        "mask": "right" if mask == "response_mask" else "wrong", "chosen_tokens": chosen,
        "counted_tokens": float(done["response_mask"].sum()), "loss": float(value.detach()),
        "choice_gradient": float(choices.norm()), "text_gradient": float(replies.norm()),
    }  # fmt: skip
    return row, -choices.numpy()


def exact_share(policy: Policy) -> float:
    """Expected tool tokens over expected response tokens of an episode: the reply on entering a state is its tokens."""
    from labs.exact import truth

    environment = environments["arithmetic"]
    known = truth(environment, policy.logits.numpy())
    tool = chosen = 0.0
    for weight, occupancy in zip(known.family_weights, known.occupancy, strict=True):
        chosen += float(weight * occupancy.sum())
        # Every state but the first is entered behind a decision, and its reply is read there.
        tool += sum(float(weight * occupancy[1:, s].sum()) * state.tokens for s, state in enumerate(environment.states))
    return tool / (tool + chosen)


def reject(config: Config, batch: TokenBatch, behaviour: Policy, seed: int) -> dict[str, Any]:
    """The three masks, stage by stage, when the policy of the step is not the one that sampled."""
    from labs.correction import RolloutCorrectionConfig
    from labs.step import StepConfig, stages

    newer = skilled(config.skill + config.drift)
    block = RolloutCorrectionConfig(rollout_is=None, rollout_rs="token_k1", rollout_rs_threshold=config.threshold)
    step = StepConfig(estimator="rloo", loss="reinforce", loss_agg_mode=config.loss_agg_mode, correction=block)
    given = batch.replace(old_log_probs=newer.token_log_probs(batch["table_index"]))
    attended = float(batch["attention_mask"][:, -batch.width :].sum())
    table, sizes = [], {}
    for name, now in stages(given, step):
        table.append({"stage": name, "attention_mask": attended, "loss_mask": float(now["loss_mask"].sum()),
                      "response_mask": float(now["response_mask"].sum())})  # fmt: skip
    for divide in ("loss_mask", "response_mask"):
        *_, (_, done) = stages(given, replace(step, denominators=divide))
        sizes[divide] = float(done["loss_weights"].norm())
    kept = int(table[-1]["response_mask"])
    return {"masks": table, "rejected": int(table[0]["loss_mask"]) - kept, "kept": kept, "weight_norm": sizes}


def _rows(max_steps: int, actions: Sequence[tuple[str, ...]], **options: Any) -> tuple[TokenBatch, Policy, Any]:
    """Given rollouts of one `sum` task under the uniform policy, as tokens."""
    from labs.enumeration import trajectories
    from labs.environment import Task
    from labs.episodes import pack
    from labs.policy import Policy

    environment, task = environments["arithmetic"], Task("sum", (7, 5))
    known = {tuple(environment.actions[a] for a in t.actions): t for t in trajectories(environment, max_steps)}
    policy = Policy.uniform(environment)
    episodes = pack(environment, [task] * len(actions), [known[a] for a in actions], policy, ["task"] * len(actions))
    return episodes.tokens(**options), policy, {"task": task}


def holes(config: Config) -> dict[str, Any]:
    """What each version gives to the tokens before a reply: a right episode with reward 1 on its last token.

    REINFORCE++ shows its returns. GAE shows the advantage before whitening, once with a critic that says 0 everywhere,
    once with `ahead`, the value gamma^k of a right episode k decisions before its last, carried on replies.
    """
    import torch

    batch, *_ = _rows(4, [("read", "add", "submit")])
    mask = batch["response_mask"]
    rewards = torch.zeros(1, batch.width, dtype=torch.float64)
    rewards[0, -1] = 1.0
    left = mask.flip(1).cumsum(1).flip(1)
    ahead = config.gamma ** (left - 1).clamp(min=0).to(torch.float64) * 0.5
    given: dict[str, Any] = {"token_level_rewards": rewards, "response_mask": mask, "gamma": config.gamma, "config": {}}
    lines = {name: call(estimators[name], **given)[1][0].tolist() for name in RETURNS}
    for label, values in (("critic 0", torch.zeros_like(rewards)), ("critic", ahead)):
        for name in TRACES:
            _, returns = call(estimators[name], **given, lam=config.lam, values=values)
            seen = values if name in ("gae", "gae_ignore") else values * mask
            lines[f"{name}, {label}"] = (returns - seen)[0].tolist()
    return {"mask": mask[0].tolist(), "lines": lines}


def landing() -> list[dict[str, Any]]:
    """The first advantage of a cut episode whose score 1 sits on its action, on the tool's reply behind it, nowhere."""
    import torch

    from labs.step import StepConfig, stages

    actions = [("read", "add"), ("read", "submit"), ("read", "subtract"), ("read", "read")]
    table = []
    for name in estimators.sound():
        # At lambda 1 no version of GAE loses the score on its way.
        step, found = StepConfig(estimator=name), {}
        for place, reply, score in (("action", False, 1.0), ("tool", True, 1.0), ("nowhere", True, 0.0)):
            batch, policy, tasks = _rows(2, actions, trailing_reply=reply)
            first = torch.zeros(batch.rows, dtype=torch.float64)
            first[0] = score
            batch = _complete(batch.replace(scores=first, success=first), tasks, policy, step)
            *_, (_, done) = stages(batch, step, generator=torch.Generator().manual_seed(0))
            found[place] = float(done["advantages"][0, 0])
        table.append({"estimator": name, **found, "lost": abs(found["tool"] - found["nowhere"]) < 1e-6})  # fmt: skip
    return table


def ledger(batch: TokenBatch) -> list[dict[str, Any]]:
    attended = batch["attention_mask"][:, -batch.width :].sum(dim=1).tolist()
    chosen = batch["loss_mask"].sum(dim=1).tolist()
    return [
        {"rollout": i, "uid": str(batch["uid"][i]), "action_tokens": a, "tool_tokens": t - a, "score": s}
        for i, (a, t, s) in enumerate(zip(chosen, attended, batch["scores"].tolist(), strict=True))
    ]
