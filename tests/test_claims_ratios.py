"""Published claims on KL, ratios and corrections, computed exactly; see `tests.claims`."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from labs.correction import RolloutCorrectionConfig
from labs.exact import truth
from labs.exact_rows import Rows
from labs.kl import kl_penalty
from labs.policy import Policy
from labs.step import StepConfig, stages
from tests.claims import ONE, UNCLIPPED, UNIFORM, WIDE, W, digits, expected, own_estimator, own_estimators


@pytest.fixture(autouse=True)
def _own_estimators():
    with own_estimators():
        yield


def test_k13_the_first_loss_is_zero_only_for_row_means():
    config = {"estimator": "grpo_population", "loss": "vanilla"}
    values = {}
    for mode in ("token-mean", "seq-mean-token-mean"):
        rows = Rows.of(ONE, Policy.of(ONE, W), StepConfig(loss_agg_mode=mode, **config))
        total = 0.0
        for i, j in product(range(len(rows)), repeat=2):
            batch = rows.batch.select([i, j]).replace(uid=np.array(["g", "g"]))
            metrics: dict[str, float] = {}
            list(stages(batch, rows.config, metrics=metrics))
            total += rows.chance[i] * rows.chance[j] * metrics["actor/pg_loss"]
        values[mode] = total
    assert digits(values["token-mean"], -0.017417429)
    assert values["seq-mean-token-mean"] == pytest.approx(0, abs=1e-12)


def kl_estimates(p, q):
    p, q = torch.tensor(p, dtype=torch.float64), torch.tensor(q, dtype=torch.float64)
    found = [kl_penalty(p.log(), q.log(), name) for name in ("kl", "mse", "low_var_kl")]
    return [(float(p @ x), float(p @ x**2 - (p @ x) ** 2)) for x in found]


def test_k14_estimators_of_a_small_kl():
    k1, k2, k3 = kl_estimates((0.5, 0.3, 0.2), (0.4, 0.35, 0.25))
    assert k1 == (pytest.approx(0.020697861, rel=5e-8), pytest.approx(0.041555459, rel=5e-8))
    assert k2[0] == pytest.approx(0.02099193, rel=5e-7)
    assert k3 == (pytest.approx(0.020697861, rel=5e-8), pytest.approx(3.065926e-05, rel=5e-7))


def test_k14_estimators_of_a_large_kl():
    """Unbounded, k3 has mean 0.637 and variance 20 here; the cap at 10 that libraries put on it takes half the mean."""
    k1, k2, k3 = kl_estimates((0.99, 0.01), (0.5, 0.5))
    assert k1 == (pytest.approx(0.63714565, rel=5e-8), pytest.approx(0.20903975, rel=5e-8))
    assert k2[0] == pytest.approx(0.30749716, rel=5e-8)
    rare = np.log(0.01 / 0.5)
    k3_rare = np.exp(-rare) - 1 + rare
    assert k3[0] + 0.01 * (k3_rare - 10) == pytest.approx(0.63714565, rel=5e-8)
    common = (0.63714565 - 0.01 * k3_rare) / 0.99
    assert 0.01 * k3_rare**2 + 0.99 * common**2 - 0.63714565**2 == pytest.approx(19.958348, rel=5e-8)


def test_k15_which_kl_has_the_gradient_of_which_divergence():
    t = truth(ONE, W)
    reverse = t.trajectory_kl(UNIFORM)
    assert digits(reverse.value, 0.23313106)
    plain = expected(W).mean

    def compare(gradient):
        gap = np.linalg.norm(gradient - reverse.gradient) / np.linalg.norm(reverse.gradient)
        both = np.linalg.norm(gradient) * np.linalg.norm(reverse.gradient)
        return gap, (gradient * reverse.gradient).sum() / both

    for name, gap, cosine in (("mse", 0.201008, 0.98275231), ("low_var_kl", 0.16867298, 0.99613569)):
        found = expected(W, use_kl_loss=True, kl_loss_coef=1.0, kl_loss_type=name, reference=UNIFORM)
        relative, angle = compare(plain - found.mean)
        assert digits(relative, gap)
        assert digits(angle, cosine)
    in_reward = {"use_kl_in_reward": True, "kl_ctrl": {"type": "fixed", "kl_coef": 1.0}, "reference": UNIFORM}
    found = expected(W, estimator="reward_to_go", **in_reward)
    assert compare(plain - found.mean)[0] < 1e-12


def test_k16_the_sequence_ratio_is_no_importance_weight():
    t, mu = truth(ONE, W), truth(ONE, UNIFORM)
    chance = mu.kinds.probability(mu.log_probs)[0]
    ratio = (t.kinds.probability(t.log_probs)[0] / chance) ** (1 / t.kinds.decisions)
    assert digits(chance @ ratio, 0.97156311)
    assert digits(chance @ (ratio * t.kinds.reward[0]), 0.017574655)


SEQUENCE = RolloutCorrectionConfig(rollout_is="sequence", rollout_is_threshold=1e9)


TOKEN = RolloutCorrectionConfig(rollout_is="token", rollout_is_threshold=1e9)


@pytest.mark.parametrize(
    ("stale", "settings", "bias", "trace"),
    [
        (0.0, {"loss": "reinforce"}, 0.38395609, None),
        (0.0, {"loss": "vanilla", "loss_options": UNCLIPPED}, 0.25952118, 0.043221872),
        (0.0, {"loss": "gspo", "loss_options": WIDE}, 0.20197808, 0.042685878),
        (0.8, {"loss": "reinforce"}, 0.038215924, None),
        (0.8, {"loss": "vanilla", "loss_options": UNCLIPPED}, 0.036651044, None),
        (0.8, {"loss": "gspo", "loss_options": WIDE}, 0.007081141, None),
    ],
)
def test_k16_ratios_of_a_stale_policy(stale, settings, bias, trace):
    found = expected(W, old=stale * W, estimator="minus_j", **settings)
    assert digits(found.relative_bias, bias)
    assert trace is None or digits(found.trace, trace)


def test_k16_the_full_product_is_unbiased():
    found = expected(W, old=W, behaviour=UNIFORM, estimator="minus_j", correction=SEQUENCE)
    assert found.relative_bias < 1e-12
    assert digits(found.trace, 0.068195502)


@pytest.mark.parametrize(
    ("stale", "loss", "options", "bias"),
    [
        (0.0, "vanilla", {}, 0.59351745),
        (0.0, "cispo", {}, 0.33128465),
        (0.0, "cispo", {"clip_ratio_low": 1 - 1e-9, "clip_ratio_high": 0.28}, 0.30064253),
        (0.8, "vanilla", {}, 0.037273911),
        (0.8, "cispo", {}, 0.036655073),
    ],
)
def test_k17_clipping_and_capping(stale, loss, options, bias):
    found = expected(W, old=stale * W, estimator="minus_j", loss=loss, loss_options=options)
    assert digits(found.relative_bias, bias)


def test_k17_mean_squared_error_with_64_rows():
    for loss, value in (("vanilla", 0.00078993486), ("cispo", 0.00072165292)):
        found = expected(W, old=UNIFORM, estimator="minus_j", loss=loss, groups=64)
        assert digits((found.bias**2).sum() + found.trace, value)


@pytest.mark.parametrize(
    ("correction", "bias"),
    [
        ({"rollout_is": "sequence", "rollout_is_threshold": 2.0}, 0.013568114),
        ({"rollout_is": "token", "rollout_is_threshold": 2.0}, 0.25952118),
        # The window bounds rollout / training: a weight over 2 is a ratio under 1/2.
        (
            {
                "rollout_is": "sequence",
                "rollout_is_threshold": 1e9,
                "rollout_rs": "seq_sum_k1",
                "rollout_rs_threshold": "0.5_1e9",
            },
            0.041195044,
        ),
    ],
)
def test_k18_truncated_and_masked_weights(correction, bias):
    found = expected(W, behaviour=UNIFORM, estimator="minus_j", correction=RolloutCorrectionConfig(**correction))
    assert digits(found.relative_bias, bias)


@pytest.mark.parametrize(("stale", "coupled", "token"), [(0.6, 0.14399986, 0.07473548), (0.0, 0.58670467, 0.25952118)])
def test_k19_decoupled_ratios(stale, coupled, token):
    # The coupled form is centred at what the behaviour policy earns; the others do not depend on the constant.
    j = truth(ONE, stale * W).objective.value
    with own_estimator("minus_behaviour_j", lambda r: r - j):
        found = expected(W, old=stale * W, loss="vanilla", estimator="minus_behaviour_j")
    assert digits(found.relative_bias, coupled)
    base = {"estimator": "minus_j", "loss": "vanilla", "behaviour": stale * W}
    assert digits(expected(W, correction=TOKEN, **base).relative_bias, token)
    assert expected(W, correction=SEQUENCE, **base).relative_bias < 1e-12


@pytest.mark.parametrize(
    ("e", "gap", "alpha", "bound"),
    [
        (0.05, -2.7641713e-06, 0.011787221, 0.0012847293),
        (0.2, -4.6517265e-05, None, 0.020719584),
        (0.5, -0.00025845859, None, 0.13439632),
        (1.0, -0.0001122736, None, 0.61468961),
    ],
)
def test_k20_the_surrogate_is_second_order(e, gap, alpha, bound):
    new, old = truth(ONE, W), truth(ONE, (1 - e) * W)
    acting = new.probabilities[0, list(ONE.stage_of)]
    surrogate = (old.occupancy[0][..., None] * acting * old.decisions.advantage[0]).sum()
    found = new.objective.value - old.objective.value - surrogate
    assert found == pytest.approx(gap, rel=5e-7, abs=1e-15)
    distance = 0.5 * np.abs(new.probabilities - old.probabilities).sum(-1).max()
    # Of the decisions that exist: three, and at every reachable state.
    seen = old.occupancy[0] > 0
    largest = np.abs(old.decisions.advantage[0])[seen].max()
    assert 2 * 3 * 2 * distance**2 * largest == pytest.approx(bound, rel=5e-7)
    assert alpha is None or digits(distance, alpha)
    assert abs(found) <= bound
