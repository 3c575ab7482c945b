"""Episodes as they were played and as the step saw them.

An experiment whose module defines `explained(config, seed, number)` (see `labs.explain`) can be replayed: its update is
played again and its stages are run to the last, so that masks, advantages and weights are those of the run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labs.errors import InputError
from labs.experiment import Result
from labs.registry import experiments

if TYPE_CHECKING:
    from labs.explain import Update


@dataclass(frozen=True, kw_only=True)
class Token:
    """One token of a row.

    Attributes:
        position: in the row's response.
        kind: "action", "format" or "reply".
        text: what it is.
        attention_mask, response_mask, loss_mask: 0 or 1; the response mask after every rejection.
        reward: `token_level_rewards`, KL charged.
        advantage, returns, value: None where there is no such column.
        weight: minus the derivative of the loss with respect to its log-probability, first pass, whole batch.
        version: of the policy that wrote it, None for a tool's token.
    """

    position: int
    kind: str
    text: str
    attention_mask: int
    response_mask: int
    loss_mask: int
    reward: float
    advantage: float
    returns: float | None
    value: float | None
    weight: float
    version: int | None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One decision and what came of it.

    Attributes:
        stage: what the policy saw.
        probabilities: of every action there; empty where the policy that acted is not known any more.
        action: what it sampled.
        log_probability: of that, in nats.
        version: of the policy.
        reply: what the environment answered, or how it ended.
        tokens: empty for an episode outside training.
    """

    stage: str
    probabilities: Mapping[str, float]
    action: str
    log_probability: float
    version: int
    reply: str
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One episode.

    Attributes:
        number: within its update or evaluation, from 0.
        group: label of its group, "" outside training.
        task: the family and the operands.
        decisions: in order.
        end: why it ended.
        success: whether the answer was right.
        score: the verifier's.
        rows: of the batch it fills; several where every turn is a row.
    """

    number: int
    group: str
    task: str
    decisions: tuple[Decision, ...]
    end: str
    success: bool
    score: float
    rows: tuple[int, ...] = ()


def able(name: str) -> bool:
    """Whether updates of this experiment can be played again."""
    return hasattr(experiments[name], "explained")


def of_update(result: Result, number: int) -> list[Episode]:
    """The episodes of update `number`, from 1, of a run of one seed.

    Raises:
        InputError: an experiment that trains no policy, or a number outside the run.
    """
    from labs.settings import build

    if not able(result.experiment):
        names = ", ".join(name for name in experiments if able(name))
        raise InputError(f"{result.experiment} trains no policy; runs of {names} have updates to replay")
    module = experiments[result.experiment]
    config = build(module.Config, result.config)
    last = int(getattr(config, "updates", number))
    if not 1 <= number <= last:
        raise InputError(f"update {number} is not in the run; it has updates 1 to {last}")
    import torch

    torch.set_num_threads(1)
    return _episodes(module.explained(config, result.seed, number))


def _episodes(update: Update) -> list[Episode]:
    played, environment = update.episodes, update.episodes.environment
    columns = _Columns(update)
    rows = _rows_of(update)
    found = []
    for number, task in enumerate(played.tasks):
        path = played.path(number)
        family = environment.family_index(task.family)
        after = [*path.states[1:], path.last]
        places = columns.places(rows[number])
        if len(places) != len(path.actions):
            raise InputError("the step changed which rows there are; such a run cannot be replayed row by row")
        decisions = []
        for step, (state, action) in enumerate(zip(path.states, path.actions, strict=True)):
            ended = step == len(path.actions) - 1
            version = int(played.versions[number, step])
            policy = update.behaviour.get(version)
            known = {} if policy is None else dict(
                zip(environment.actions, columns.table(policy)[family][environment.stage_of[state]], strict=True)
            )  # fmt: skip
            reply = f"[{path.end}]" if ended and path.end != "timeout" else environment.text(task, after[step])
            decisions.append(
                Decision(
                    stage=environment.states[state].stage,
                    probabilities=known,
                    action=environment.actions[action],
                    log_probability=float(played.log_probs[number, step]),
                    version=version,
                    reply=f"{reply} [timeout]" if ended and path.end == "timeout" else reply,
                    tokens=tuple(columns.token(*place, environment.actions[action]) for place in places[step]),
                )
            )
        found.append(
            Episode(
                number=number,
                group=str(played.uid[number]),
                task=f"{task.family} of {', '.join(map(str, task.operands))}",
                decisions=tuple(decisions),
                end=path.end,
                success=bool(played.successes[number]),
                score=float(played.scores[number]),
                rows=tuple(rows[number]),
            )
        )
    return found


def _rows_of(update: Update) -> list[list[int]]:
    """The rows of the batch that each episode fills, in order."""
    count = len(update.episodes)
    if "session_keys" not in update.batch:
        return [[i] for i in range(count)]
    rows: list[list[int]] = []
    for i, key in enumerate(update.batch["session_keys"]):
        if str(key).endswith("_0"):
            rows.append([])
        rows[-1].append(i)
    return rows


class _Columns:
    """The columns of a finished batch as lists, and the places of decisions in them."""

    def __init__(self, update: Update) -> None:
        batch = update.finished()
        wanted = ("response_mask", "loss_mask", "token_level_rewards", "advantages", "returns", "values",
                  "loss_weights", "versions", "table_index")  # fmt: skip
        self.columns: dict[str, Any] = {name: batch[name].tolist() for name in wanted if name in batch}
        self.columns["attention"] = batch["attention_mask"][:, -batch.width :].tolist()
        self._tables: dict[int, Any] = {}

    def table(self, policy: Any) -> Any:
        """The probabilities of a policy as lists."""
        if policy.version not in self._tables:
            self._tables[policy.version] = policy.probabilities.detach().tolist()
        return self._tables[policy.version]

    def places(self, rows: Sequence[int]) -> list[list[tuple[int, int]]]:
        """For each decision the places of its action, its format tokens and the reply to it."""
        found: list[list[tuple[int, int]]] = []
        for row in rows:
            for position, real in enumerate(self.columns["attention"][row]):
                if not real:
                    continue
                if self.columns["table_index"][row][position] >= 0:
                    found.append([])
                found[-1].append((row, position))
        return found

    def token(self, row: int, position: int, action: str) -> Token:
        def at(name: str) -> Any:
            return self.columns[name][row][position] if name in self.columns else None

        version = at("versions")
        kind = "action" if at("table_index") >= 0 else "reply" if version < 0 else "format"
        return Token(
            position=position,
            kind=kind,
            text=action if kind == "action" else "",
            attention_mask=int(at("attention")),
            response_mask=int(at("response_mask")),
            loss_mask=int(at("loss_mask")),
            reward=float(at("token_level_rewards")),
            advantage=float(at("advantages")),
            returns=at("returns"),
            value=at("values"),
            weight=float(at("loss_weights")),
            version=None if version < 0 else int(version),
        )


def held_out(result: Result) -> list[Episode]:
    """The stored episodes of the last evaluation, with the probabilities of the trained policy; none if none are."""
    rows = [row for row in result.trajectories or result.data.get("trajectories", ()) if "steps" in row]
    table = {
        (row["operation"], row["stage"]): row["action_probabilities"] for row in result.data.get("policy", ()) or ()
    }
    found = []
    for row in rows:
        steps = row["steps"]
        decisions = []
        for i, step in enumerate(steps):
            seen = step["observation"]
            known = table.get((seen["operation"], seen["stage"]), {})
            # An evaluation at another temperature, or a greedy one, acted with other probabilities than the table's.
            same = step["action"] in known and _close(known[step["action"]], step["log_probability"])
            decisions.append(
                Decision(
                    stage=seen["stage"],
                    probabilities=known if same else {},
                    action=step["action"],
                    log_probability=float(step["log_probability"]),
                    version=int(step["policy_version"]),
                    reply=f"[{row['end']}]" if i == len(steps) - 1 else "",
                )
            )
        found.append(
            Episode(
                number=int(row["episode"]),
                group="",
                task=f"{row['operation']} of {', '.join(map(str, row['operands']))}",
                decisions=tuple(decisions),
                end=row["end"],
                success=bool(row["success"]),
                score=float(row["reward"]),
            )
        )
    return found


def _close(probability: float, log_probability: float) -> bool:
    return math.isclose(probability, math.exp(log_probability), rel_tol=1e-6, abs_tol=1e-12)


def clearest_group(episodes: Sequence[Episode]) -> list[Episode]:
    """The group that teaches most: whose share of right episodes is nearest to one half; the first of equals."""
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.group, []).append(episode)
    if not groups:
        return []
    return min(groups.values(), key=lambda group: abs(sum(e.success for e in group) / len(group) - 0.5))


def telling_updates(result: Result) -> list[int]:
    """Three updates worth seeing: the first, the one whose success in training is nearest to one half, the last."""
    rates = [row.get("train_success_rate") for row in result.metrics]
    if not rates:
        return []
    known = [(abs(rate - 0.5), i) for i, rate in enumerate(rates) if rate is not None]
    return sorted({1, len(rates), *([min(known)[1] + 1] if known else [])})
