"""The policy: a table of logits `[families, stages, actions]` in torch.

The agent sees (family, stage) and picks an action with probability `softmax(logits[family, stage] / temperature)`.
A `Policy` is a thin frozen thing around the tensor, so that four policies can stand side by side: behaviour, old,
current, reference. `labs.entropy` and `labs.agent` hold the same formulas for `[B, T, V]` logits and plain lists.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labs.entropy import entropy_from_logits
from labs.environment import Environment
from labs.errors import InputError, one_of

#: How a policy acts: `sampled` from its probabilities at a temperature, or `greedy`.
MODES = ("sampled", "greedy")
OPTIMISERS = ("sgd", "adam")


@dataclass(frozen=True)
class Policy:
    """A table of logits.

    Args:
        logits: `[families, stages, actions]` float; float64 wherever exact values are compared.
        temperature: logits are divided by it, so that 0.5 sharpens and 2 flattens.
        version: number of updates it has seen.

    Raises:
        InputError: another shape, integers, no actions, NaN, or a temperature that is not positive.
    """

    logits: Tensor
    temperature: float = 1.0
    version: int = 0

    def __post_init__(self) -> None:
        if self.logits.ndim != 3 or 0 in self.logits.shape or not self.logits.dtype.is_floating_point:
            raise InputError(
                f"the policy has shape {tuple(self.logits.shape)} and dtype {self.logits.dtype}; "
                "it must be floating point [families, stages, actions]"
            )
        if bool(self.logits.detach().isnan().any()):
            raise InputError("the policy has a logit that is NaN")
        if not 0 < self.temperature < float("inf"):
            raise InputError(f"temperature is {self.temperature}; it must be above 0 (greedy is a mode of its own)")

    @classmethod
    def uniform(cls, environment: Environment, dtype: torch.dtype = torch.float64) -> Policy:
        """All zeros: every action equally likely everywhere."""
        return cls(torch.zeros(environment.policy_shape, dtype=dtype))

    @classmethod
    def of(cls, environment: Environment, logits: Any, dtype: torch.dtype = torch.float64) -> Policy:
        """A policy for `environment` from nested lists, an array or a tensor; raises `InputError` on another shape."""
        table = torch.as_tensor(logits, dtype=dtype)
        if tuple(table.shape) != environment.policy_shape:
            raise InputError(
                f"the policy has shape {tuple(table.shape)}, environment {environment.name} needs "
                f"{environment.policy_shape}"
            )
        return cls(table)

    @property
    def log_probs(self) -> Tensor:
        """`log_softmax(logits / temperature)`, `[families, stages, actions]`."""
        return torch.log_softmax(self.logits / self.temperature, dim=-1)

    @property
    def probabilities(self) -> Tensor:
        """`softmax(logits / temperature)`, `[families, stages, actions]`."""
        return torch.softmax(self.logits / self.temperature, dim=-1)

    @property
    def entropy(self) -> Tensor:
        """Entropy of every row in nats, `[families, stages]`; between 0 and log(actions)."""
        return entropy_from_logits(self.logits / self.temperature)

    @property
    def sum_pi_squared(self) -> Tensor:
        """Sum over actions of the squared probability, `[families, stages]`."""
        return self.probabilities.square().sum(dim=-1)

    def greedy(self) -> Tensor:
        """One-hot probabilities of the likeliest action, the first one among equals; `[families, stages, actions]`."""
        best = self.logits.argmax(dim=-1, keepdim=True)
        return torch.zeros_like(self.logits).scatter_(-1, best, 1.0)

    def acting(self, mode: str = "sampled") -> Tensor:
        """The probabilities that a mode (`sampled`, `greedy`) acts with."""
        if mode not in MODES:
            raise one_of("mode", mode, MODES)
        return self.greedy() if mode == "greedy" else self.probabilities

    def sample(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """Draw one action for each row `[N, 2]` of (family, stage); one draw of the generator a row.

        Inverts the cumulative probabilities as `labs.batched.sample_batch` does.
        """
        sums = self.probabilities.detach().double()[rows[:, 0], rows[:, 1]].cumsum(dim=-1)
        draws = torch.rand(len(rows), 1, generator=generator, dtype=torch.float64)
        return (draws >= sums[:, :-1]).sum(dim=-1)

    def at(self, temperature: float) -> Policy:
        """The same logits at another temperature."""
        return Policy(self.logits, temperature, self.version)

    def token_log_probs(self, table_index: Tensor) -> Tensor:
        """Log-probability of every token `[B, T]`; 0 where `table_index` is -1 (no logit chose the token).

        Args:
            table_index: `[B, T]` flat index into the table, see `labs.episodes`.
        """
        return _gathered(self.log_probs, table_index)

    def token_rows(self, per_row: Tensor, table_index: Tensor) -> Tensor:
        """A number of each table row (`entropy`, `sum_pi_squared`) on every token `[B, T]`, 0 where there is none."""
        return _gathered(per_row, torch.where(table_index < 0, -1, table_index // self.logits.shape[-1]))

    def as_list(self) -> list[list[list[float]]]:
        """The probabilities as nested lists, for `labs.enumeration`."""
        nested: list[list[list[float]]] = self.probabilities.detach().tolist()
        return nested

    def as_json(self, environment: Environment) -> str:
        """The policy as the text of a `.json` file, with the names of its rows and columns."""
        data = {**_names(environment), "temperature": self.temperature, "version": self.version,
                "dtype": str(self.logits.dtype), "logits": self.logits.detach().tolist()}  # fmt: skip
        return json.dumps(data, indent=1) + "\n"

    def save(self, path: Path, environment: Environment) -> None:
        """Write the policy as `.npz` or `.json`, by the suffix, with the names of its rows and columns.

        Raises:
            InputError: another suffix.
        """
        names = _names(environment)
        part = path.with_name(path.name + ".part")
        if path.suffix == ".npz":
            arrays: dict[str, Any] = {
                "logits": self.logits.detach().numpy(),
                "temperature": np.array(self.temperature),
                "version": np.array(self.version),
                **{what: np.array(known) for what, known in names.items()},
            }
            with part.open("wb") as stream:
                np.savez(stream, **arrays)
        elif path.suffix == ".json":
            part.write_text(self.as_json(environment), encoding="utf-8")
        else:
            raise InputError(f"a policy is saved as .npz or .json, not as {path.name}")
        part.replace(path)

    @classmethod
    def load(cls, path: Path, environment: Environment) -> Policy:
        """Read what `save` wrote, bit for bit; nothing is ever unpickled.

        Raises:
            InputError: no such file, another suffix, or a policy for other families, stages or actions.
        """
        if path.suffix not in (".npz", ".json") or not path.is_file():
            raise InputError(f"{path} is no policy file; a policy is saved as .npz or .json")
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as data:
                found: dict[str, Any] = {name: data[name].tolist() for name in data.files}
                logits = torch.from_numpy(data["logits"])
        else:
            found = json.loads(path.read_text(encoding="utf-8"))
            logits = torch.tensor(found["logits"], dtype=getattr(torch, found["dtype"].removeprefix("torch.")))
        for what, wanted in _names(environment).items():
            if found.get(what) != wanted:
                raise InputError(
                    f"{path}: its {what} are {found.get(what)}, environment {environment.name} has {wanted}"
                )
        return cls(logits, float(found["temperature"]), int(found["version"]))


def _names(environment: Environment) -> dict[str, Any]:
    return {
        "families": list(environment.families),
        "stages": list(environment.stages),
        "actions": list(environment.actions),
    }


def _gathered(table: Tensor, index: Tensor) -> Tensor:
    flat = table.reshape(-1)[index.clamp(min=0)]
    return torch.where(index < 0, torch.zeros_like(flat), flat)


def kl_divergence(first: Policy, second: Policy) -> Tensor:
    """Exact `KL(first, second) = sum_a p (log p - log q)` of every row in nats, `[families, stages]`.

    An action with probability 0 under `first` adds 0; one that only `second` excludes gives infinity.
    """
    p, log_p, log_q = first.probabilities, first.log_probs, second.log_probs
    return torch.where(p > 0, p * (log_p - log_q), torch.zeros_like(p)).sum(dim=-1)


def optimiser(name: str, parameter: Tensor, learning_rate: float) -> torch.optim.Optimizer:
    """One of `OPTIMISERS` on a table: `sgd` goes `learning_rate * gradient`, `adam` has torch's default betas."""
    kind = torch.optim.SGD if name == "sgd" else torch.optim.Adam
    return kind([parameter], lr=learning_rate)
