"""Every estimator against its transcription."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests import reference_advantages as ref
from tests.advantages import QUICK, batches, close, run, tensor

torch.set_num_threads(1)


GROUPED = {
    "grpo": ref.grpo,
    "grpo_vectorized": ref.grpo,
    "dr_grpo": lambda r, m, i: ref.grpo(r, m, i, normalise=False),
    "grpo_population": ref.grpo_population,
    "rloo": ref.rloo,
    "rloo_vectorized": lambda r, m, i: ref.rloo(r, m, i, lone="zero"),
    "trl_rloo": lambda r, m, i: ref.rloo(r, m, i, lone="zero"),
    "opo": ref.opo,
    "gpg": ref.gpg,
    "reinforce_plus_plus_baseline": ref.reinforce_plus_plus_baseline,
    "gdpo": ref.gdpo,
}


def contrast(b):
    """Scores rounded to a grid, so that no group is equal up to rounding and a spread is never tiny."""
    return b | {"r": [[round(x * 2) / 2 for x in row] for row in b["r"]]}


@pytest.mark.parametrize("name", sorted(GROUPED))
@given(b=batches())
@QUICK
def test_grouped_estimators_are_their_formulas(name, b):
    b = contrast(b)
    advantages, returns = run(name, b)
    # The vectorised forms hold their statistics in float32.
    close(advantages, GROUPED[name](b["r"], b["mask"], b["index"]), 1e-5)
    assert returns is advantages


@given(b=batches(pairs=True), normalise=st.booleans())
@QUICK
def test_passk_is_its_formula(b, normalise):
    b = contrast(b)
    advantages, _ = run("grpo_passk", b, config={"norm_adv_by_std_in_grpo": normalise})
    want = ref.grpo_passk(b["r"], b["mask"], b["index"], normalise=normalise)
    # A tie at the top is worth 0 whoever is called the winner.
    close(advantages, want)


@given(b=batches())
@QUICK
def test_gdpo_places_components_on_the_last_attended_token_and_weights_them(b):
    rows, width = len(b["r"]), len(b["r"][0])
    parts = [[round(x) / 2 for x in b["baselines"]], [float(x > 0) for x in b["bootstrap"]]]
    config = {"gdpo_reward_keys": ["a", "b"], "gdpo_reward_weights": [1.0, 0.25]}
    attention = torch.ones(rows, 3 + width, dtype=torch.int64)
    advantages, _ = run(
        "gdpo", b, config=config, batch={"prompts": attention[:, :3], "attention_mask": attention},
        non_tensor_batch={"a": np.array(parts[0]), "b": np.array(parts[1])},
    )  # fmt: skip
    assert advantages.dtype == torch.float32
    close(advantages, ref.gdpo(b["r"], b["mask"], b["index"], parts, [1.0, 0.25]), 2e-4)


@given(b=batches())
@QUICK
def test_gae_is_its_formula_whitened(b):
    advantages, returns = run("gae", b, values=tensor(b["values"]), gamma=b["gamma"], lam=b["lam"])
    want = ref.gae(b["r"], b["values"], b["mask"], b["gamma"], b["lam"])
    close(returns, np.asarray(want) + np.asarray(b["values"]))
    close(advantages, ref.whiten(want, b["mask"]), 1e-5)


@given(b=batches())
@QUICK
def test_gae_variants_are_their_formulas(b):
    values, gamma, lam = tensor(b["values"]), b["gamma"], b["lam"]
    masked_r, masked_v = ref.times(b["r"], b["mask"]), ref.times(b["values"], b["mask"])
    stepped, returns = run("gae_step", b, values=values, gamma=gamma, lam=lam)
    close(stepped, ref.gae_plain(masked_r, masked_v, gamma, lam))
    close(returns, stepped + tensor(masked_v))
    inside = [[float(any(row[t:])) for t in range(len(row))] for row in b["mask"]]
    ignored, _ = run("gae_ignore", b, values=values, gamma=gamma, lam=lam)
    close(ignored, ref.gae_plain(ref.times(b["r"], inside), ref.times(b["values"], inside), gamma, lam))


@given(b=batches())
@QUICK
def test_truncated_rows_bootstrap_and_terminated_rows_do_not(b):
    behind = [v if cut else 0.0 for v, cut in zip(b["bootstrap"], b["cut"], strict=True)]
    more = {"values": tensor(b["values"]), "truncated": torch.tensor(b["cut"]), "gamma": b["gamma"], "lam": b["lam"]}
    more["bootstrap_values"] = tensor(b["bootstrap"])
    want = ref.times(ref.gae(b["r"], b["values"], b["mask"], b["gamma"], b["lam"], behind), b["mask"])
    advantages, returns = run("gae_truncated", b, **more)
    close(advantages, want)
    close(returns, np.array(want) + np.array(ref.times(b["values"], b["mask"])))
    again, target = run("td_lambda", b, **more)
    close(again, want)
    close(target, returns)


@given(b=batches())
@QUICK
def test_vtrace_is_its_formula(b):
    behind = [v if cut else 0.0 for v, cut in zip(b["bootstrap"], b["cut"], strict=True)]
    advantages, targets = run(
        "vtrace", b, values=tensor(b["values"]), old_log_probs=tensor(b["old"]), rollout_log_probs=tensor(b["rollout"]),
        truncated=torch.tensor(b["cut"]), bootstrap_values=tensor(b["bootstrap"]), gamma=b["gamma"],
        rho_max=1.5, c_max=0.8,
    )  # fmt: skip
    want = ref.vtrace(b["r"], b["values"], b["mask"], b["old"], b["rollout"], b["gamma"], 1.5, 0.8, behind)
    close(advantages, want[0])
    close(targets, want[1])


@given(b=batches())
@QUICK
def test_returns_are_their_formulas(b):
    gamma = b["gamma"]
    for name in ("reinforce_plus_plus", "reinforce_plus_plus_reset", "reward_to_go"):
        advantages, returns = run(name, b, config={"gamma": gamma})
        want = getattr(ref, name)(b["r"], b["mask"], gamma)
        close(advantages, want[0], 1e-5)
        close(returns, want[1])
    advantages, returns = run("remax", b, reward_baselines=tensor(b["baselines"]))
    want = ref.remax(b["r"], b["mask"], b["baselines"])
    close(advantages, want[0])
    close(returns, want[1])


@pytest.mark.parametrize("name", ["optimal_token_baseline", "tir_optimal_token_baseline"])
@given(b=batches(), tail=st.booleans(), weighted=st.booleans())
@QUICK
def test_optimal_baselines_are_their_formulas(name, b, tail, weighted):
    weights = b["weights"] if weighted else None
    advantages, returns = run(
        name, b, old_log_probs=tensor(b["old"]), sum_pi_squared=tensor(b["squares"]), handle_zero_tail=tail,
        rollout_is_weights=None if weights is None else tensor(weights), epsilon=0.5,
    )  # fmt: skip
    # w may be negative here, so a large epsilon keeps the denominators away from 0.
    want = getattr(ref, name)(b["r"], b["mask"], b["index"], b["old"], b["squares"], weights, tail, 0.5)
    if max(abs(x) for row in want[0] for x in row) < 50:
        close(advantages, want[0])
    close(returns, want[1])
