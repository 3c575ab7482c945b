"""The declared properties of every registered estimator, and that the battery sees a wrong declaration."""

import re
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labs.contract import PROBES, Breach, check_estimator, measure
from labs.contract_cases import draw_case, draw_mask
from labs.properties import Properties
from labs.registry import Registry, estimators

torch.set_num_threads(1)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", sorted(estimators))
@given(seed=st.integers(0, 2**31))
@settings(max_examples=2, deadline=None)
def test_every_estimator_keeps_the_contract_and_is_what_it_declares(name, seed):
    assert check_estimator(estimators[name], seeded(seed)) == []


@pytest.mark.parametrize("name", sorted(estimators))
def test_every_estimator_declares_itself(name):
    entry = estimators[name]
    assert isinstance(entry.meta["properties"], Properties)
    assert entry.meta["paper"]
    assert entry.meta["properties"].bias
    assert not entry.meta["properties"].groups or re.search(
        "group of one|lone row", estimators.path(name).read_text().lower()
    )


def other(value, name):
    """A wrong value for a field: another one that the battery can tell from it."""
    choices = [True, False] if isinstance(value, bool) else [*PROBES[name][1], PROBES[name][2]]
    return next(c for c in choices if c != value)


@pytest.mark.parametrize("name", ["grpo", "gae", "reinforce_plus_plus_reset", "optimal_token_baseline", "rloo"])
@pytest.mark.parametrize("what", sorted(PROBES))
def test_a_wrong_declaration_is_found(name, what):
    entry = estimators[name]
    truth = entry.meta["properties"]
    wrong = other(getattr(truth, what), what)
    findings = check_estimator(entry, seeded(), declared=replace(truth, **{what: wrong}))
    assert what in {f.what for f in findings}
    assert f"{what}={wrong!r}" in next(f.text for f in findings if f.what == what and "measured" in f.text)


def test_every_field_but_the_claim_about_expectation_is_measured():
    assert {f.name for f in fields(Properties)} - set(PROBES) == {"unbiased", "bias"}
    found, _ = measure(estimators["grpo"], seeded(), 6)
    assert set(found) == set(PROBES)


def good(token_level_rewards, response_mask, **_):
    advantages = token_level_rewards.sum(dim=-1, keepdim=True) * response_mask
    return advantages, advantages


def rude(token_level_rewards, response_mask, **_):
    token_level_rewards.mul_(2.0)
    return good(token_level_rewards, response_mask)


BROKEN = {
    "result": lambda token_level_rewards, response_mask, **_: token_level_rewards,
    "shape": lambda token_level_rewards, response_mask, **_: (token_level_rewards.sum(-1), token_level_rewards),
    "dtype": lambda token_level_rewards, response_mask, **_: (token_level_rewards.double(), token_level_rewards),
    "finite": lambda token_level_rewards, response_mask, **_: (token_level_rewards / 0, token_level_rewards),
    "deterministic": lambda token_level_rewards, response_mask, **_: (
        token_level_rewards * torch.rand(1), token_level_rewards
    ),
    "pure": rude,
    "mask dtype": lambda token_level_rewards, response_mask, **_: (
        token_level_rewards + float(response_mask.dtype == torch.int64), token_level_rewards
    ),
    "no gradient": good,
    "runs": lambda token_level_rewards, response_mask: (token_level_rewards, token_level_rewards),
}  # fmt: skip


@pytest.mark.parametrize("what", sorted(BROKEN))
def test_a_broken_estimator_is_told_what_is_broken(what):
    findings = check_estimator(BROKEN[what], seeded())
    assert what in {f.what for f in findings}
    assert all(f.text and f.batch for f in findings)


def nan_alone(token_level_rewards, response_mask, index, **_):
    if min((index == label).sum() for label in index) == 1:
        token_level_rewards = token_level_rewards / 0
    return good(token_level_rewards, response_mask)


def raises_alone(token_level_rewards, response_mask, index, **_):
    if min((index == label).sum() for label in index) == 1:
        raise KeyError("alone")
    return good(token_level_rewards, response_mask)


def refuses_alone(token_level_rewards, response_mask, index, **_):
    if min((index == label).sum() for label in index) == 1:
        raise ValueError("a group of one has no baseline")
    return good(token_level_rewards, response_mask)


def nan_without_contrast(token_level_rewards, response_mask, **_):
    spread = token_level_rewards.sum(dim=-1).std()
    return good(token_level_rewards if spread > 0 else token_level_rewards / spread, response_mask)


def per_token(token_level_rewards, response_mask, **_):
    return (token_level_rewards * response_mask / response_mask.sum(dim=-1, keepdim=True)), response_mask.float()


def masks_its_input(token_level_rewards, response_mask, **_):
    return good(token_level_rewards.mul_(response_mask), response_mask)


@pytest.mark.parametrize(
    ("function", "what", "text"),
    [
        (nan_alone, "a group of one", "gives NaN or inf"),
        (raises_alone, "a group of one", "raises KeyError: 'alone'"),
        (nan_without_contrast, "equal scores", "gives NaN or inf"),
        (per_token, "a row without policy tokens", "gives NaN or inf"),
        (masks_its_input, "pure", "writes into its input token_level_rewards (rewards on masked positions)"),
    ],
)
def test_what_only_a_degenerate_batch_shows(function, what, text):
    findings = check_estimator(torch.no_grad()(function), seeded())
    assert {f.what for f in findings} == {what}
    assert text in findings[0].text
    if what == "pure":
        masked = findings[0].batch["response_mask"] == 0
        assert (findings[0].batch["token_level_rewards"][masked] == 0.5).all(), "the batch as it was handed in"


def test_a_degenerate_batch_may_be_refused_in_a_sentence():
    assert check_estimator(torch.no_grad()(refuses_alone), seeded()) == []


def test_a_forgotten_no_grad_does_not_hide_a_false_declaration():
    truth = estimators["grpo"].meta["properties"]
    findings = check_estimator(good, seeded(), declared=replace(truth, groups=False, group_of_one="no groups"))
    assert {"no gradient", "group_shift", "scale"} <= {f.what for f in findings}


def test_a_function_without_declaration_passes_on_the_contract_alone():
    assert check_estimator(torch.no_grad()(good), seeded()) == []


def test_needs_and_declaration_must_agree():
    @Registry("estimator", "labs.advantages").entry(properties=Properties(credit="trajectory", groups=True))
    @torch.no_grad()
    def lonely(token_level_rewards, response_mask, **_):
        return good(token_level_rewards, response_mask)

    findings = check_estimator(lonely, seeded())
    assert Breach("groups", "declares groups=True, but needs=() says otherwise (index)") in findings


def test_an_unknown_column_is_named():
    @Registry("estimator", "labs.advantages").entry(needs=("dreams",))
    def hopeful(token_level_rewards, response_mask, dreams, **_):
        return good(token_level_rewards, response_mask)

    with pytest.raises(ValueError, match="no column 'dreams'"):
        check_estimator(hopeful, seeded())


def test_the_first_batch_that_shows_a_fault_is_small():
    truth = estimators["grpo"].meta["properties"]
    findings = check_estimator(estimators["grpo"], seeded(), declared=replace(truth, zero_where_masked=False))
    assert findings
    findings = check_estimator(estimators["gae"], seeded(), declared=replace(truth, zero_where_masked=True))
    witness = next(f for f in findings if f.what == "zero_where_masked").batch
    assert witness["response_mask"].numel() <= 4 * 3


@given(seed=st.integers(0, 2**31), size=st.integers(0, 11))
@settings(max_examples=20, deadline=None)
def test_drawn_batches_are_what_they_say(seed, size):
    case = draw_case(seeded(seed), size)
    mask = case.response_mask
    assert (mask[:, 0] == 1).all()
    rewards = case.token_level_rewards
    assert ((rewards != 0).sum(dim=1) <= 1).all()
    assert (rewards[mask == 0] == 0).all()
    assert (case.sum_pi_squared <= 1 + 1e-6).all()
    solid = draw_mask(seeded(seed), 5, 6, holes=False)
    assert torch.equal(solid, solid.flip(1).cummax(1).values.flip(1))
