"""What the recorded rows of TRL, torchrl and OpenRLHF do not pin: refusals, options in combination, and identities."""

import math

import pytest
import torch

from labs.entropy import AdaptiveEntropyController
from labs.errors import InputError
from labs.loss_probe import draw
from labs.registry import losses
from labs.surrogates import clip_shares, pessimistic, row_mean, vespo_weight

torch.set_num_threads(1)


def columns(seed=1, drift=0.3, **changed):
    case = draw(seed, drift, empty_row=True)
    return {"old_log_prob": case.old_log_prob, "log_prob": case.log_prob, "advantages": case.advantages[:, 0],
            "response_mask": case.response_mask.long(), **changed}  # fmt: skip


def value(name, given, **options):
    return float(losses[name](**given, **options)[0])


def test_trl_reductions_by_hand():
    given = columns()
    d = given["log_prob"] - given["old_log_prob"]
    per_token = pessimistic(d.exp(), given["advantages"].unsqueeze(1), 0.2, 0.2) * given["response_mask"]
    rows, counts = per_token.sum(-1), given["response_mask"].sum(-1)
    tokens, total = int(counts.sum()), float(per_token.sum())
    by_type = {t: value("trl_grpo", given, loss_type=t, max_completion_length=10) for t in ("bnpo", "dapo", "dr_grpo")}
    assert by_type == pytest.approx({"bnpo": total / tokens, "dapo": total / tokens, "dr_grpo": total / 40})
    assert value("trl_grpo", given, loss_type="dr_grpo") == pytest.approx(total / (4 * 6))
    # The empty fourth row stays in the mean over rows.
    assert value("trl_grpo", given, loss_type="grpo") == pytest.approx(float((rows / counts.clamp(min=1)).sum()) / 4)
    assert value("trl_grpo", given, loss_type="luspo") == pytest.approx(total / 4)
    assert value("trl_grpo", given, num_items_in_batch=50) == pytest.approx(total / 50)


def test_trl_divides_by_the_accumulation_while_training_only():
    given = columns()
    for kind in ("grpo", "dapo"):
        plain = value("trl_grpo", given, loss_type=kind)
        assert value("trl_grpo", given, loss_type=kind, gradient_accumulation_steps=4) == pytest.approx(plain / 4)
        evaluation = value("trl_grpo", given, loss_type=kind, gradient_accumulation_steps=4, training=False)
        assert evaluation == pytest.approx(plain)


def test_trl_bias_correction_changes_the_gradient_not_the_value_on_policy():
    given = columns(old_log_prob=None)
    reference = given["log_prob"] - 0.4
    found = {}
    for corrected in (True, False):
        leaf = given["log_prob"].clone().requires_grad_()
        loss, _ = losses["trl_grpo"](
            **given | {"log_prob": leaf}, beta=1.0, ref_log_prob=reference, use_bias_correction_kl=corrected
        )
        loss.backward()
        found[corrected] = loss.item(), leaf.grad
    assert found[True][0] == pytest.approx(found[False][0])
    assert not torch.allclose(found[True][1], found[False][1])


def test_trl_entropy_bonus_takes_a_controller():
    given, entropy = columns(), torch.rand(4, 6, dtype=torch.float64)
    off = value("trl_grpo", given, entropy=entropy)
    control = AdaptiveEntropyController(0.1, target=10.0)
    loss, metrics = losses["trl_grpo"](**given, entropy=entropy, entropy_coef=control)
    assert metrics["entropy_bonus"] == pytest.approx(metrics["entropy"])
    assert float(loss) == pytest.approx(off - 0.1 * metrics["entropy_bonus"])
    accumulated, _ = losses["trl_grpo"](**given, entropy=entropy, entropy_coef=0.1, gradient_accumulation_steps=4)
    assert float(accumulated) == pytest.approx(float(loss) / 4)
    control.update(11.0)
    loss, metrics = losses["trl_grpo"](**given, entropy=entropy, entropy_coef=control)
    assert float(loss) == pytest.approx(off)
    assert metrics["entropy_coef"] == 0.0


def test_trl_cispo_caps_at_epsilon_high_itself():
    given = columns(drift=0.0, old_log_prob=None)
    leaf = given["log_prob"].clone().requires_grad_()
    losses["trl_grpo"](**given | {"log_prob": leaf}, loss_type="cispo")[0].backward()
    tokens = given["response_mask"].sum()
    wanted = -0.2 * given["advantages"].unsqueeze(1) * given["response_mask"] / tokens
    torch.testing.assert_close(leaf.grad, wanted)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"loss_type": "ppo"}, "loss_type is 'ppo'; allowed: grpo"),
        ({"importance_sampling_level": "row"}, "allowed: token, sequence"),
        ({"beta": 0.1}, r"ref_log_prob is missing; these options need it as \(4, 6\)"),
        ({"top_entropy_quantile": 0.5}, "entropy is missing"),
        ({"entropy_coef": 0.5, "entropy": torch.zeros(4, 5)}, r"entropy has shape \(4, 5\)"),
        ({"rollout_is_weights": torch.ones(4, 3)}, "rollout_is_weights has shape"),
    ],
)
def test_trl_refuses_in_sentences(options, sentence):
    with pytest.raises(InputError, match=sentence):
        losses["trl_grpo"](**columns(), **options)


def test_advantages_by_row_and_by_token_are_the_same_loss():
    given = columns()
    spread = given | {"advantages": given["advantages"].unsqueeze(1).expand(4, 6)}
    assert value("trl_grpo", given) == pytest.approx(value("trl_grpo", spread))
    # With one term a row, the empty row is worth -A by row and 0 by token.
    for name in ("gmpo", "sequence_ppo"):
        difference = value(name, given) - value(name, spread)
        assert difference == pytest.approx(-float(given["advantages"][3]) / 4)


def test_gmpo_options():
    given, entropy = columns(), torch.rand(4, 6, dtype=torch.float64)
    reference = given["log_prob"] - 0.4
    with_kl, metrics = losses["gmpo"](**given, beta=0.5, ref_log_prob=reference, entropy=entropy)
    k3 = math.exp(-0.4) + 0.4 - 1
    assert metrics["kl"] == pytest.approx(k3)
    assert float(with_kl) == pytest.approx(value("gmpo", given) + 0.5 * 0.75 * k3)
    assert value("gmpo", given, gradient_accumulation_steps=2) == pytest.approx(value("gmpo", given) / 2)
    for options in ({"beta": 0.1}, {"top_entropy_quantile": 0.5}):
        with pytest.raises(InputError, match="is missing"):
            losses["gmpo"](**given, **options)


def test_sequence_ratio_from_the_sum_of_old_log_probs():
    given = columns()
    summed = given | {"old_log_prob": (given["old_log_prob"] * given["response_mask"]).sum(1)}
    assert value("sequence_ppo", given) == pytest.approx(value("sequence_ppo", summed))
    with pytest.raises(InputError, match="wrong length"):
        losses["sequence_ppo"](**given | {"old_log_prob": torch.zeros(3)})


def test_vespo_fades_out_at_both_ends():
    mask, good = torch.ones(1, 1), torch.ones(1, 1)
    at = lambda log_w, a: float(vespo_weight(a * good, torch.full((1, 1), log_w), mask))  # noqa: E731
    assert at(0.0, 1.0) == at(0.0, -1.0) == pytest.approx(1.0)
    for sign in (1.0, -1.0):
        assert at(6.0, sign) < 1e-6
        assert at(-6.0, sign) < 1e-3
    assert at(0.5, 1.0) == pytest.approx(math.exp(3 + 2 * 0.5 - 3 * math.exp(0.5)))
    assert at(0.5, -1.0) == pytest.approx(math.exp(2 + 3 * 0.5 - 2 * math.exp(0.5)))
    weights = torch.full((1, 1), math.exp(0.5))
    assert float(vespo_weight(good, torch.zeros(1, 1), mask, weights)) == pytest.approx(at(0.5, 1.0))


def test_vespo_ignores_the_weights_outside_the_mask():
    given = columns(advantages=torch.ones(4, 6, dtype=torch.float64))
    weights = torch.rand(4, 6, dtype=torch.float64) + 0.5
    other = torch.where(given["response_mask"].bool(), weights, 0.0)
    first, second = (value("vespo", given | {"rollout_is_weights": w}) for w in (weights, other))
    assert first == pytest.approx(second)
    assert first != pytest.approx(value("vespo", given))


def test_clip_shares_of_nothing_are_nan_at_the_ends():
    event, mask = torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, 3)
    shares = clip_shares(event, event, mask)
    assert math.isnan(shares["clip_ratio/low_min"])
    assert math.isnan(shares["clip_ratio/high_max"])
    assert shares["clip_ratio/low_mean"] == 0.0
    assert row_mean(torch.ones(2, 3), mask).tolist() == [0.0, 0.0]


def test_torchrl_rows_and_refusal():
    given = columns(advantages=torch.ones(4, 6, dtype=torch.float64))
    rows = losses["torchrl_grpo"](**given, loss_agg_mode="seq-mean-token-mean")[0]
    assert value("torchrl_grpo", given, prompt_mean=True) == pytest.approx(0.75 * float(rows))
    with pytest.raises(InputError, match="allowed: grpo, cispo"):
        losses["torchrl_grpo"](**given, objective="ppo")


def test_torchrl_cispo_has_no_gradient_on_a_clipped_token():
    one = torch.ones(1, 1)
    for name, options, wanted in (("torchrl_grpo", {"objective": "cispo"}, 0.0), ("cispo", {}, -1.2)):
        leaf = torch.full((1, 1), -0.5, requires_grad=True)
        losses[name](torch.full((1, 1), -3.0), leaf, one, one, **options)[0].backward()
        assert leaf.grad.item() == pytest.approx(wanted)


def test_torchrl_cispo_is_the_variant_without_stop_gradient():
    given, found = columns(advantages=2 * torch.rand(4, 6, dtype=torch.float64) - 1), []
    for name, options in (
        ("torchrl_grpo", {"objective": "cispo"}), ("cispo_variant", {"stop_gradient": False, "floor": 0.8}),
    ):  # fmt: skip
        leaf = given["log_prob"].clone().requires_grad_()
        loss, _ = losses[name](**given | {"log_prob": leaf}, **options)
        loss.backward()
        found.append((loss.item(), leaf.grad))
    assert found[0][0] == pytest.approx(found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1])


def gate(gating, level, mode, threshold, rollout, old=-1.0):
    one = torch.ones(1, 2, dtype=torch.float64)
    loss, metrics = losses["openrlhf_ppo"](
        old * one, old * one, one, one, is_correction_gating=gating, is_correction_level=level, is_correction_mode=mode,
        is_correction_threshold=threshold, rollout_log_probs=torch.tensor([rollout], dtype=torch.float64),
    )  # fmt: skip
    return -2 * float(loss), metrics["is_filter_ratio"]


def test_openrlhf_gates_by_hand():
    drift = [-1.0, -1.5]  # pi_old / pi_rollout = 1 and e^0.5 = 1.65
    assert gate("ratio", "token", "mask", (0.5, 1.5), drift) == pytest.approx((1.0, 0.5))
    assert gate("ratio", "token", "clip", (0.5, 1.5), drift) == pytest.approx((2.5, 0.5))
    # The row's geometric mean e^0.25 passes; the survivors keep their raw weights.
    assert gate("ratio", "seq", "mask", (0.5, 1.5), drift) == pytest.approx((1 + math.exp(0.5), 0.0))
    assert gate("ratio", "seq", "mask", (0.5, 1.2), drift) == pytest.approx((0.0, 1.0))
    distance = math.exp(-1.0) - math.exp(-1.5)
    assert gate("tv", "token", "mask", (0.0, distance - 0.01), drift) == pytest.approx((1.0, 0.5))
    assert gate("tv", "seq", "mask", (0.0, distance / 2 + 0.01), drift) == pytest.approx((1 + math.exp(0.5), 0.0))
    p, q = math.exp(-1.5), math.exp(-1.0)
    kl = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    assert gate("binary_kl", "token", "mask", (0.0, kl - 1e-6), drift)[1] == 0.5
    assert gate("binary_kl", "token", "mask", (0.0, kl + 1e-6), drift)[1] == 0.0


def test_openrlhf_defaults():
    one, drift = torch.ones(1, 4, dtype=torch.float64), torch.tensor([[0.49, 0.51, 4.9, 5.1]], dtype=torch.float64)
    columns = (-3 * one, -3 * one, one, one)
    loss, metrics = losses["openrlhf_ppo"](*columns, is_correction_level="token", rollout_log_probs=-3 - drift.log())
    # The default band [0.5, 5] drops the first and the last; the others keep their raw weights.
    assert float(loss) == pytest.approx(-(0.51 + 4.9) / 4)
    assert metrics["is_filter_ratio"] == 0.5
    far = (-3 * one, -1 * one, -one, one)
    assert float(losses["openrlhf_ppo"](*far)[0]) == pytest.approx(math.exp(2))
    assert float(losses["openrlhf_ppo"](*far, dual_clip=1.5)[0]) == pytest.approx(1.5)


def test_torchrl_has_no_lower_bound_at_a_clip_of_one():
    one = torch.ones(1, 1, dtype=torch.float64)
    loss, metrics = losses["torchrl_grpo"](
        -one, -9 * one, -one, one, config={"clip_ratio_low": 1.0}, objective="cispo"
    )  # fmt: skip
    assert float(loss) == pytest.approx(math.exp(-8))
    assert metrics["clip_fraction"] == 0.0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"policy_loss_type": "cispo"}, "policy_loss_type"),
        ({"is_correction_level": "row"}, "is_correction_level"),
        ({"is_correction_level": "seq", "is_correction_mode": "clip"}, "mode clip needs"),
        ({"is_correction_level": "token", "is_correction_gating": "tv"}, "bounded from above"),
        ({"is_correction_level": "token"}, "rollout_log_probs is missing"),
        ({"dual_clip": 1.0}, "over 1"),
    ],
)
def test_openrlhf_refuses_in_sentences(options, sentence):
    given = columns(advantages=torch.ones(4, 6, dtype=torch.float64))
    with pytest.raises(InputError, match=sentence):
        losses["openrlhf_ppo"](**given, **options)


def test_openrlhf_gspo_uses_the_rollout_policy_when_gated():
    given = columns(advantages=torch.ones(4, 6, dtype=torch.float64))
    plain = value("openrlhf_ppo", given, policy_loss_type="gspo")
    swapped = given | {"old_log_prob": given["log_prob"]}
    gated = value(
        "openrlhf_ppo",
        swapped,
        policy_loss_type="gspo",
        is_correction_level="token",
        rollout_log_probs=given["old_log_prob"],
    )
    assert gated == pytest.approx(plain)


def test_cispo_variant_refuses_in_sentences():
    given = columns(advantages=torch.ones(4, 6, dtype=torch.float64))
    for options, sentence in (
        ({"anchor": "reference"}, "allowed: old, rollout"),
        ({"anchor": "rollout"}, "needs rollout_log_probs"),
        ({"cap": 0.5, "floor": 0.8}, "0 <= floor <= cap"),
    ):
        with pytest.raises(InputError, match=sentence):
            losses["cispo_variant"](**given, **options)
