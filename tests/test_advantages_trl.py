"""TRL's scoring beyond the recorded rows: hand-made numbers, NaN, single rows, importance ratios."""

import math

import pytest
import torch

from labs import trl
from labs.errors import InputError
from labs.registry import estimators

NAN = math.nan
INDEX = ["a", "a", "b", "b"]


def column(*scores):
    return torch.tensor(scores, dtype=torch.float64)[:, None]


def test_components_are_summed_with_weights_and_without_nan():
    parts = torch.tensor([[1.0, 2.0], [NAN, 2.0], [NAN, NAN]])
    assert trl.combine(parts, [1.0, 0.5])[:2].tolist() == [2.0, 1.0]
    assert trl.combine(parts)[2].isnan()
    with pytest.raises(InputError, match="3 numbers for 2"):
        trl.combine(parts, [1.0, 1.0, 1.0])


def test_scales_by_hand():
    scores = column(3.0, 1.0, 5.0, 4.0)
    group, _ = trl.grpo_scores(scores, INDEX)
    assert group.tolist() == pytest.approx([1 / (math.sqrt(2) + 1e-4), -1 / (math.sqrt(2) + 1e-4),
                                            0.5 / (math.sqrt(0.5) + 1e-4), -0.5 / (math.sqrt(0.5) + 1e-4)])  # fmt: skip
    batch_std = math.sqrt(((3 - 3.25) ** 2 + (1 - 3.25) ** 2 + (5 - 3.25) ** 2 + (4 - 3.25) ** 2) / 3)
    batch, std = trl.grpo_scores(scores, INDEX, scale_rewards="batch")
    assert std.tolist() == pytest.approx([batch_std] * 4)
    assert batch.tolist() == pytest.approx([x / (batch_std + 1e-4) for x in (1, -1, 0.5, -0.5)])
    assert trl.grpo_scores(scores, INDEX, scale_rewards="none")[0].tolist() == [1.0, -1.0, 0.5, -0.5]


def test_a_row_that_cannot_be_scored_steps_aside():
    advantages, _ = trl.grpo_scores(column(3.0, NAN, 5.0, 4.0), INDEX, scale_rewards="none")
    assert advantages.tolist() == [0.0, 0.0, 0.5, -0.5]
    assert trl.rloo_scores(column(3.0, NAN, 5.0, 4.0)[:, 0], INDEX).tolist() == [0.0, 0.0, 1.0, -1.0]
    assert trl.grpo_scores(column(NAN, NAN, 5.0, 4.0), INDEX)[0][:2].tolist() == [0.0, 0.0]


def test_rloo_whitens_on_request():
    plain = trl.rloo_scores(column(3.0, 1.0, 5.0, 4.0)[:, 0], INDEX)
    assert plain.tolist() == [2.0, -2.0, 1.0, -1.0]
    std = math.sqrt((4 + 4 + 1 + 1) / 3)
    white = trl.rloo_scores(column(3.0, 1.0, 5.0, 4.0)[:, 0], INDEX, normalize=True)
    assert white.tolist() == pytest.approx([x / (std + 1e-4) for x in plain.tolist()])


def test_normalise_then_sum_is_indifferent_to_the_scale_of_a_component():
    parts = torch.tensor([[1.0, 20.0], [0.0, 10.0], [2.0, 30.0], [0.0, 0.0]], dtype=torch.float64)
    one, _ = trl.grpo_scores(parts, INDEX, aggregation="normalize_then_sum")
    two, _ = trl.grpo_scores(parts * torch.tensor([1.0, 100.0]), INDEX, aggregation="normalize_then_sum")
    torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-3)
    assert one.mean().item() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(("scale", "aggregation"), [("median", "sum_then_normalize"), ("group", "max")])
def test_unknown_options_are_named(scale, aggregation):
    with pytest.raises(InputError, match=r"median|max"):
        trl.grpo_scores(column(1.0, 2.0), ["a", "a"], None, scale, aggregation)


def test_the_entries_spread_the_scores_and_read_options_from_the_config():
    rewards, mask = torch.tensor([[0.0, 3.0], [1.0, 0.0], [5.0, 0.0], [4.0, 0.0]]), torch.tensor([[1, 0], [1, 1]] * 2)
    advantages, _ = estimators["trl_grpo"](rewards, mask, INDEX, config={"scale_rewards": "none"})
    assert advantages.tolist() == [[1.0, 0.0], [-1.0, -1.0], [0.5, 0.0], [-0.5, -0.5]]
    config = {"multi_objective_aggregation": "normalize_then_sum"}
    white, _ = estimators["trl_grpo"](rewards, mask, INDEX, config=config)
    want, _ = trl.grpo_scores(rewards.sum(dim=-1, keepdim=True), INDEX, aggregation="normalize_then_sum")
    assert torch.equal(white, want[:, None] * mask)


def test_rloo_takes_the_kl_off_the_score_after_the_clip():
    rewards, mask = torch.tensor([[9.0, 0.0], [1.0, 0.0]]), torch.tensor([[1, 1], [1, 0]])
    old, ref = torch.tensor([[0.5, 0.5], [1.0, 7.0]]), torch.zeros(2, 2)
    more = {"reward_clip_range": (-2.0, 2.0), "beta": 0.1, "old_log_probs": old, "ref_log_prob": ref}
    advantages, _ = estimators["trl_rloo"](rewards, mask, ["a", "a"], **more)
    # 2 - 0.1 = 1.9 against 1 - 0.1 = 0.9
    assert advantages[0].tolist() == pytest.approx([1.0, 1.0])
    with pytest.raises(AssertionError, match="ref_log_prob"):
        estimators["trl_rloo"](rewards, mask, ["a", "a"], beta=0.1)


def test_standardisation_has_a_floor_and_not_a_summand():
    rewards = torch.tensor([[1.0], [1.0 + 1e-6], [1.0]], dtype=torch.float64)
    advantages, _ = estimators["standardize_by_group"](rewards, torch.ones(3, 1), ["a", "a", "b"])
    assert advantages[:, 0].tolist() == pytest.approx([-0.5e-6 / 1e-4, 0.5e-6 / 1e-4, 0.0])
    advantages, _ = estimators["standardize_by_group"](2 * rewards, torch.ones(3, 1), ["a", "a", "b"], epsilon=1e-9)
    assert advantages[1, 0].item() == pytest.approx(math.sqrt(0.5))


def test_importance_ratios_by_hand():
    two, four, mask = math.log(2.0), math.log(4.0), torch.tensor([[1, 1, 0]])
    old, rollout = torch.tensor([[two, four, 5.0]], dtype=torch.float64), torch.zeros(1, 3, dtype=torch.float64)

    def ratio(mode, low=None, high=3.0, rollout=rollout):
        return trl.importance_ratio(old, rollout, mask, mode, low, high)[0].tolist()

    assert ratio("token_truncate") == pytest.approx([2, 3, 1])
    assert ratio("token_mask") == pytest.approx([2, 0, 1])
    assert ratio("token_truncate", 2.5) == pytest.approx([2.5, 3, 2.5])
    assert ratio("token_mask", 2.5, 5.0) == pytest.approx([0, 4, 0])
    assert ratio("sequence_truncate") == pytest.approx([3])
    assert ratio("sequence_mask") == [0]
    assert ratio("sequence_mask", None, 8.5) == pytest.approx([8])
    assert ratio("sequence_truncate", None, None) == pytest.approx([8])
    assert ratio("token_mask", None, None) == pytest.approx([2, 4, 1])
    unscored = torch.tensor([[NAN, 0.0, 0.0]], dtype=torch.float64)
    assert ratio("sequence_truncate", None, 9.0, unscored) == pytest.approx([4])
    with pytest.raises(InputError, match="geometric"):
        ratio("geometric")


def test_logged_numbers():
    rewards = torch.tensor([1.0, 3.0, NAN])
    out = trl.reward_metrics(rewards, torch.tensor([0.0, 1e-9, 0.5]))
    assert out["reward"].item() == 2.0
    assert out["reward_std"].item() == pytest.approx(math.sqrt(2))
    assert out["frac_reward_zero_std"].item() == pytest.approx(2 / 3)
    assert trl.nan_std(torch.tensor([1.0, NAN]), 0).item() == 0.0
