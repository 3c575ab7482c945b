"""From a batch and the name of an estimator to the batch with advantages, as verl's trainer goes.

verl's dispatcher has three branches, and settings get lost between them: `gae` takes gamma and lambda as arguments and
is the only one behind which PF-PPO works; `grpo` takes the group labels and the std flag; everything else takes the
whole config and reads from it what it likes, so that `norm_adv_by_std_in_grpo` does nothing for `grpo_vectorized`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labs.batch import TokenBatch
from labs.errors import AssertedError, InputError
from labs.pf_ppo import compute_pf_ppo_reweight_data
from labs.registry import call, estimators, opt


def compute_advantage(
    data: TokenBatch,
    adv_estimator: str,
    gamma: float = 1.0,
    lam: float = 1.0,
    num_repeat: int = 1,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
    generator: torch.Generator | None = None,
    options: Mapping[str, Any] | None = None,
) -> TokenBatch:
    """The batch with `advantages` and `returns` (and with other rows, if PF-PPO is on).

    Without `response_mask` the mask is the tail of `attention_mask`, so tool text would count as chosen tokens.
    An entry that verl does not have gets gamma and lambda too, if it takes them. A column that an entry needs and the
    batch lacks is an error here; verl passes what is there.

    Args:
        data: token_level_rewards, response_mask, `uid` for grouped estimators, and what the entry needs.
        adv_estimator: name in `labs.registry.estimators`.
        gamma, lam: of `gae`, and of the lab's own entries; the others read `config.gamma`.
        num_repeat: not read.
        norm_adv_by_std_in_grpo: of `grpo` alone.
        config: verl's `algorithm` block, mapping or object; `use_pf_ppo`, `pf_ppo.reweight_method`,
            `pf_ppo.weight_pow` are read here.
        generator: of PF-PPO; None draws from torch's global generator, as verl does.
        options: keywords for the entry that verl's trainer has no way to set (`epsilon`, `f_norm`).

    Raises:
        InputError: unknown estimator, NaN in rewards or values.
        AssertedError: a column is missing.
    """
    estimator = estimators[adv_estimator]
    if "response_mask" not in data:
        data = data.replace(response_mask=data["attention_mask"][:, -data.width :])
    columns = {"token_level_rewards": data["token_level_rewards"], "response_mask": data["response_mask"]}
    if adv_estimator == "gae":
        columns |= {"values": _column(data, "values", "gae"), "gamma": gamma, "lam": lam}
    elif adv_estimator == "grpo":
        columns |= {"index": _column(data, "uid", "grpo"), "norm_adv_by_std_in_grpo": norm_adv_by_std_in_grpo}
    else:
        columns |= _everything_else(data, estimator, adv_estimator, gamma, lam, config)
    if not estimator.meta.get("accepts_nan", False):
        _refuse_nan(columns)
    advantages, returns = call(estimator, **{**columns, **(options or {})})
    data = data.replace(advantages=advantages, returns=returns)
    if adv_estimator == "gae" and opt(config, "use_pf_ppo", False):
        method, power = opt(config, "pf_ppo.reweight_method", "pow"), opt(config, "pf_ppo.weight_pow", 2.0)
        data = compute_pf_ppo_reweight_data(data, method, power, generator)
    return data


def compute_advantage_for_multi_trajectories(
    data: TokenBatch, batch_keys: Sequence[str], adv_estimator: str, **settings: Any
) -> TokenBatch:
    """`compute_advantage` for sessions that produced several rows, told apart by `{uid}_{session}_{index}`.

    `grpo`: the row with the numerically largest index speaks for its session; its advantage, read at its first policy
    token, goes to every policy token of the session. Rewards of the other rows are not looked at, and a final row that
    is fully masked gives its session 0. Every other estimator sees all rows as they are.

    Args:
        data: see `compute_advantage`.
        batch_keys: one key a row; the uid may contain underscores.
        adv_estimator: name in `labs.registry.estimators`.
        **settings: further arguments of `compute_advantage`.

    Raises:
        AssertedError: a key of another form.
    """
    if adv_estimator != "grpo":
        return compute_advantage(data, adv_estimator, **settings)
    if len(batch_keys) != data.rows:
        raise InputError(f"batch_keys holds {len(batch_keys)} keys, the batch has {data.rows} rows")
    session_of: list[str] = []
    final: dict[str, tuple[int, int]] = {}
    for row, key in enumerate(batch_keys):
        session, _, index = str(key).rpartition("_")
        if "_" not in session or not index.isdecimal():
            raise AssertedError(f"batch key {key!r} is not of the form uid_session_index")
        session_of.append(session)
        final[session] = max(final.get(session, (-1, row)), (int(index), row))
    rows = [row for _, row in final.values()]
    speakers = compute_advantage(data.select(rows), "grpo", **settings)
    first = speakers["response_mask"].ne(0).to(torch.uint8).argmax(dim=1, keepdim=True)
    scalar = speakers["advantages"].gather(1, first)
    place = {session: number for number, session in enumerate(final)}
    advantages = scalar[[place[session] for session in session_of]] * data["response_mask"]
    return data.replace(advantages=advantages, returns=advantages)


def _column(data: TokenBatch, name: str, estimator: str) -> Any:
    if name not in data:
        raise AssertedError(f"estimator {estimator} needs the column {name}; the batch has {', '.join(sorted(data))}")
    return data[name]


def _everything_else(
    data: TokenBatch, estimator: Callable[..., Any], name: str, gamma: float, lam: float, config: Any
) -> dict[str, Any]:
    columns: dict[str, Any] = {"config": config}
    takes = inspect.signature(estimator).parameters
    for parameter in takes:
        column = "uid" if parameter == "index" else parameter
        if column in data and parameter not in ("token_level_rewards", "response_mask"):
            columns[parameter] = data[column]
    if "batch" in takes and "non_tensor_batch" in takes:
        tensors = {n: c for n, c in data.items() if isinstance(c, Tensor)}
        columns |= {"batch": tensors, "non_tensor_batch": {n: c for n, c in data.items() if n not in tensors}}
    if "verl" not in estimator.meta:  # type: ignore[attr-defined]
        columns |= {n: v for n, v in {"gamma": gamma, "lam": lam}.items() if n in takes}
    for needed in estimator.needs:  # type: ignore[attr-defined]
        if needed not in columns:
            _column(data, "uid" if needed == "index" else needed, name)
    return columns


def _refuse_nan(columns: dict[str, Any]) -> None:
    for name in ("token_level_rewards", "values"):
        if name in columns and bool((bad := columns[name].isnan()).any()):
            row, position = np.argwhere(bad.cpu().numpy())[0]
            raise InputError(f"{name} is NaN at row {row}, position {position}; score every row or leave it out")
