"""Every registered policy loss: against scalar loops, against its own declaration, and in verl's surprising corners."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labs.contract_losses import check_loss
from labs.loss_probe import CONFIG, Case, Probe, draw, measure
from labs.masked import AGG_MODES
from labs.properties import Extremes, LossProperties
from labs.registry import losses
from tests.reference_losses import LOSSES, Batch

torch.set_num_threads(1)


def reference(name, case):
    """Value by the loops, and its derivative with respect to `new` alone by central differences."""

    def value(new):
        lists = [c.tolist() for c in (case.old_log_prob, new, case.log_prob, case.advantages, case.response_mask)]
        weights = None if case.rollout_is_weights is None else case.rollout_is_weights.tolist()
        return LOSSES[name](Batch(*lists, weights), case.loss_agg_mode)

    gradient = torch.zeros_like(case.log_prob)
    for row, token in case.response_mask.nonzero().tolist():
        step = torch.zeros_like(gradient)
        step[row, token] = 1e-6
        gradient[row, token] = (value(case.log_prob + step) - value(case.log_prob - step)) / 2e-6
    return value(case.log_prob), gradient


def test_every_loss_has_a_reference():
    assert set(LOSSES) == set(losses)


@pytest.mark.parametrize("name", sorted(LOSSES))
@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    drift=st.sampled_from([0.02, 0.3, 2.0]),
    mode=st.sampled_from(AGG_MODES),
    empty_row=st.booleans(),
    weighted=st.booleans(),
)
def test_equals_the_scalar_loops(name, seed, drift, mode, empty_row, weighted):
    case = draw(seed, drift, rows=3, width=4, empty_row=empty_row)
    small = 0.2 if name == "clip_cov" else 1.0
    weights = draw(seed + 1, 0.5, rows=3, width=4).log_prob.exp() * 3 if weighted else None
    case = replace(case, loss_agg_mode=mode, advantages=small * case.advantages, rollout_is_weights=weights)
    probe = Probe(losses[name])
    value, gradient = reference(name, case)
    assert probe.loss(case) == pytest.approx(value, rel=1e-6, abs=1e-7)
    torch.testing.assert_close(probe.gradient(case), gradient, rtol=1e-4, atol=1e-6 * max(1.0, abs(value)))


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_declares_what_it_does(name):
    assert losses[name].meta["properties"].extremes
    assert check_loss(losses[name]) == []


# The battery itself: a wrong loss is found, and a wrong declaration is.
def entry(per_token):
    """A policy loss: the masked mean of `per_token(old, new, advantages)`."""

    def loss(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights):
        matrix = per_token(old_log_prob, log_prob, advantages)
        return (matrix * response_mask).sum() / response_mask.sum(), {}

    return loss


def uses_the_whole_row(old, new, adv):
    return -adv.mean(-1, keepdim=True) * new


def writes_into_its_input(old, new, adv):
    return old.add_(1.0) * 0 - adv * new


def is_never_the_same_twice(old, new, adv, calls=[0]):  # noqa: B006
    calls[0] += 1
    return -adv * new * calls[0]


@pytest.mark.parametrize(
    ("per_token", "what", "text"),
    [
        (uses_the_whole_row, "blind outside the mask", "values outside the mask moved the loss"),
        (writes_into_its_input, "pure", "it changed its input old_log_prob in place"),
        (is_never_the_same_twice, "pure", "two equal calls"),
        (lambda old, new, adv: (old - old.detach()) * 0 - adv * new, "refuses bad shapes", "RuntimeError"),
    ],
)
def test_the_battery_finds_wrong_losses(per_token, what, text):
    found = {f.what: f.text for f in check_loss(entry(per_token))}
    assert text in found[what]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda mask: mask.sum(), "it returned Tensor"),
        (lambda mask: (mask.sum(-1), {}), "must be a scalar"),
        (lambda mask: (mask.sum(), {"x": mask.sum()}), "metrics are floats"),
    ],
)
def test_the_battery_finds_wrong_answers(answer, text):
    def loss(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights):
        return answer(response_mask)

    assert text in {f.what: f.text for f in check_loss(loss)}["returns"]


def test_the_battery_finds_a_wrong_declaration():
    declared = LossProperties(
        extremes=Extremes(good_up="grows", good_down="zero", bad_up="zero", bad_down="zero"), aggregation="token-sum"
    )
    found = {f.what: f.text for f in check_loss(losses["vanilla"], declared)}
    assert found["aggregation"] == "declared 'token-sum', measured 'honoured'"
    assert set(found) == {"aggregation", "extremes"}
    needy = {f.what: f.text for f in check_loss(losses["dro"], replace(declared, needs_config=()))}
    assert needy["needs_config"] == "declared (); without settings it raises"


def test_the_battery_reports_a_loss_that_breaks():
    def broken(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights):
        raise ZeroDivisionError("no reason")

    found = {f.what: f.text for f in check_loss(broken, losses["vanilla"].meta["properties"])}
    assert "ZeroDivisionError: no reason" in found["returns"]
    assert "cannot be measured" in found["declaration"]


def test_the_battery_finds_a_wrong_gradient():
    declared = LossProperties(
        extremes=Extremes(good_up="bounded", good_down="bounded", bad_up="bounded", bad_down="bounded")
    )
    held = entry(lambda old, new, adv: -adv * (new - old).exp().detach() * new)
    assert any(f.what == "gradient" for f in check_loss(held, declared))
    assert measure(held).stop_gradient


# verl's surprises.
def run(name, case, **config):
    return Probe(losses[name], {**CONFIG, **config}).call(case)


def test_clip_ratio_alone_is_inert():
    case = draw(1, 0.5)
    plain, alone = run("vanilla", case), run("vanilla", case, clip_ratio=0.5)
    nulled = run("vanilla", case, clip_ratio=0.5, clip_ratio_low=None, clip_ratio_high=None)
    assert plain == alone
    assert nulled[1]["actor/pg_clipfrac"] < plain[1]["actor/pg_clipfrac"]


@pytest.mark.parametrize("name", ["vanilla", "gspo", "clip_cov", "geo_mean", "luspo", "openrlhf_ppo", "trl_grpo"])
def test_a_token_without_advantage_counts_as_clipped_nowhere(name):
    ratios = torch.tensor([[0.1, 1.5, 9.0, 1.0]], dtype=torch.float64)
    old = torch.full((1, 4), -5.0, dtype=torch.float64)
    zero, one = torch.zeros(1, 4, dtype=torch.float64), torch.ones(1, 4, dtype=torch.float64)
    loss, metrics = Probe(losses[name]).call(Case(old, old + ratios.log(), zero, one))
    assert float(loss) == 0.0
    assert not any(v for n, v in metrics.items() if "clip" in n)


@pytest.mark.parametrize(
    ("name", "metric", "wanted"),
    [
        ("vanilla", "actor/pg_clipfrac", [1, 0, 1, 0, 0, 0]),
        ("gspo", "actor/pg_clipfrac", [1, 0, 1, 0, 0, 0]),
        ("luspo", "actor/pg_clipfrac", [1, 0, 1, 0, 0, 0]),
        ("openrlhf_ppo", "clip_ratio", [1, 0, 1, 0, 0, 0]),
        ("sequence_ppo", "clip_ratio/region_mean", [1, 0, 1, 0, 0, 0]),
        ("trl_grpo", "clip_ratio/region_mean", [1, 0, 1, 0, 0, 0]),
        ("cispo", "actor/pg_clipfrac", [1, 1, 1, 1, 0, 0]),
        ("cispo_variant", "actor/pg_clipfrac", [1, 1, 0, 0, 0, 0]),
        ("torchrl_grpo", "clip_fraction", [1, 1, 1, 1, 0, 0]),
        ("geo_mean", "actor/pg_clipfrac", [1, 0, 0, 1, 0, 0]),
        ("geo_mean", "actor/pg_clipfrac_lower", [0, 1, 1, 0, 0, 0]),
        ("vanilla", "actor/pg_clipfrac_lower", [0, 0, 0, 0, 0, 0]),
    ],
)
def test_which_of_six_rows_count_as_clipped(name, metric, wanted):
    ratios = torch.tensor([[1.5], [1.5], [0.5], [0.5], [1.1], [0.9]], dtype=torch.float64)
    signs = torch.tensor([[1.0], [-1.0], [-1.0], [1.0], [1.0], [-1.0]], dtype=torch.float64)
    old = torch.full((6, 1), -3.0, dtype=torch.float64)
    case = Case(old, old + ratios.log(), signs, torch.ones(6, 1, dtype=torch.float64))
    metrics = Probe(losses[name]).call(case)[1]
    assert metrics[metric] == pytest.approx(sum(wanted) / 6)
    if "actor/ppo_kl" in metrics:
        assert metrics["actor/ppo_kl"] == pytest.approx(-float(ratios.log().mean()))


def test_dppo_caps_the_ratio_at_three():
    case = Case(torch.tensor([[-5.0]]), torch.tensor([[-0.5]]), torch.tensor([[-1.0]]), torch.ones(1, 1))
    (gradient,) = Probe(losses["dppo_tv"]).gradient(case).tolist()
    assert gradient == [3.0]
    (gradient,) = Probe(losses["dppo_tv"], {"clip_ratio_c": 20.0}).gradient(case).tolist()
    assert gradient == [20.0]


def test_dppo_keeps_a_token_that_was_certain():
    """At p_old = 1 the second logarithm of the binary KL is kept finite by its epsilon."""
    case = Case(torch.zeros(1, 1), torch.full((1, 1), -0.1), -torch.ones(1, 1), torch.ones(1, 1))
    assert Probe(losses["dppo_kl"]).gradient(case).item() == pytest.approx(math.exp(-0.1))


@pytest.mark.parametrize(("name", "fixed"), [("sapo", True), ("geo_mean", True), ("gspo_080", True), ("gspo", False)])
def test_who_ignores_the_aggregation_mode(name, fixed):
    case = draw(2, 0.1)
    values = {Probe(losses[name]).loss(replace(case, loss_agg_mode=mode)) for mode in AGG_MODES}
    assert (len(values) == 1) is fixed


def test_nan_outside_the_mask_breaks_the_row_modes_alone():
    case = draw(4, 0.1)
    log_prob = torch.where(case.response_mask.bool(), case.log_prob, torch.nan)
    for mode in AGG_MODES:
        dirty = replace(case, log_prob=log_prob, loss_agg_mode=mode)
        assert math.isnan(Probe(losses["vanilla"]).loss(dirty)) is mode.startswith("seq")
        gradient = Probe(losses["vanilla"]).gradient(dirty)
        assert gradient.isfinite().all()


def test_an_all_masked_batch():
    case = replace(draw(4, 0.1), response_mask=torch.zeros(4, 6, dtype=torch.bool))
    assert math.isnan(run("vanilla", case)[0])
    assert float(run("vanilla", replace(case, loss_agg_mode="token-sum"))[0]) == 0.0
    assert not Probe(losses["vanilla"]).gradient(case).any()
    with pytest.raises(ValueError, match="valid"):
        run("bypass_mode", case)


def test_only_the_bounded_losses_clamp_the_log_ratio():
    case = Case(torch.tensor([[-40.0]]), torch.tensor([[-0.1]]), torch.tensor([[1.0]]), torch.ones(1, 1))
    assert float(run("sapo", case)[0]) == pytest.approx(-4.0)
    assert run("kl_cov", case)[1]["actor/ppo_kl"] == pytest.approx(39.9)
    assert run("vanilla", case)[1]["actor/ppo_kl"] == pytest.approx(-20.0)


def test_geo_mean_counts_empty_rows():
    case = draw(6, 0.1, empty_row=True)
    rows = slice(0, -1)
    without = replace(
        case, old_log_prob=case.old_log_prob[rows], log_prob=case.log_prob[rows], advantages=case.advantages[rows],
        response_mask=case.response_mask[rows],
    )  # fmt: skip
    assert Probe(losses["geo_mean"]).loss(case) == pytest.approx(0.75 * Probe(losses["geo_mean"]).loss(without))


def test_a_cispo_token_keeps_its_gradient_at_the_cap():
    case = Case(torch.tensor([[-3.0]]), torch.tensor([[-0.5]]), torch.tensor([[2.0]]), torch.ones(1, 1))
    assert Probe(losses["cispo"]).gradient(case).item() == pytest.approx(-1.2 * 2)

    def variant(**options):
        leaf = case.log_prob.clone().requires_grad_()
        losses["cispo_variant"](case.old_log_prob, leaf, case.advantages, case.response_mask, **options)[0].backward()
        return leaf.grad.item()

    assert variant(cap=5.0) == pytest.approx(-5.0 * 2)
    assert variant(cap=0.2) == pytest.approx(-0.2 * 2)
    assert variant(stop_gradient=False) == 0.0
    assert variant(anchor="rollout", rollout_log_probs=case.log_prob) == pytest.approx(-1.0 * 2)


def test_the_two_sided_bound_is_dual_clip():
    case = draw(8, 1.0)
    mine = Probe(losses["vanilla"], {"clip_ratio_c": 1.7}).gradient(case)
    leaf = case.log_prob.clone().requires_grad_()
    losses["trl_grpo"](case.old_log_prob, leaf, case.advantages, case.response_mask, delta=1.7)[0].backward()
    torch.testing.assert_close(mine, leaf.grad)


def test_clip_cov_draws_from_the_given_generator_alone():
    case = draw(11, 0.1, rows=6, width=8)
    columns = (case.old_log_prob, case.log_prob, 3 * case.advantages, case.response_mask)
    before = torch.get_rng_state()
    seeds = [
        losses["clip_cov"](*columns, generator=torch.Generator().manual_seed(s))[0].item() for s in (0, 0, 1, 2, 3)
    ]
    assert torch.equal(before, torch.get_rng_state())
    assert seeds[0] == seeds[1]
    assert len(set(seeds)) > 1
    losses["clip_cov"](*columns)
    assert not torch.equal(before, torch.get_rng_state())


def test_clip_cov_drops_a_lone_candidate():
    # Covariances with the means -1 and 0: token 0 has (2 - 0)(0 + 1) = 2, inside (1, 5); token 1 the same, clipped.
    log_prob = torch.tensor([[0.0, -2.0, -1.0]], dtype=torch.float64)
    advantages = torch.tensor([[2.0, -2.0, 0.0]], dtype=torch.float64)
    old = log_prob + torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
    case = Case(old, log_prob, advantages, torch.ones(1, 3, dtype=torch.float64))
    gradient = Probe(losses["clip_cov"]).gradient(case)
    assert gradient.tolist() == [[0.0, 0.0, 0.0]]
    assert run("clip_cov", case)[1]["actor/pg_clipfrac"] == pytest.approx(1 / 3)
    upper = Probe(losses["clip_cov"], {"policy_loss": {"clip_cov_ub": 1.9}}).gradient(case)
    assert upper[0, 0].item() == pytest.approx(-2 / 3)


def test_a_null_setting_of_the_covariance_losses_is_its_default():
    case = replace(_strong(), seed=3)
    nulls = dict.fromkeys(("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio"))
    for name in ("clip_cov", "kl_cov"):
        plain = Probe(losses[name], {"policy_loss": {"ppo_kl_coef": 1.0}}).gradient(case)
        null = Probe(losses[name], {"policy_loss": {**nulls, "ppo_kl_coef": None}}).gradient(case)
        assert torch.equal(plain, null)


def _strong():
    """8,000 tokens, so that 0.0002 of them is one and 0.0003 two, many with a covariance in (1, 5)."""
    case = draw(21, 0.05, rows=100, width=120)
    return replace(case, advantages=2 * case.advantages, response_mask=torch.ones_like(case.response_mask))


def test_no_old_log_probs_means_on_policy():
    case = draw(8, 1.0)
    leaf = case.log_prob.clone().requires_grad_()
    loss, metrics = losses["vanilla"](None, leaf, case.advantages, case.response_mask)
    loss.backward()
    tokens = case.response_mask.sum()
    torch.testing.assert_close(leaf.grad, -case.advantages * case.response_mask / tokens)
    assert metrics["actor/ppo_kl"] == 0.0
