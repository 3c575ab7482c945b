"""Weights by denominator, against counts, enumeration and the whole batch."""

from functools import cache

import numpy as np
import pytest
import torch

from experiments import aggregation
from experiments.aggregation import measures
from labs.enumeration import trajectories
from labs.errors import InputError
from labs.exact import truth
from labs.experiment import execute
from labs.masked import AGG_MODES
from labs.registry import environments
from labs.settings import build
from labs.stats import t_interval


def config(**settings):
    return build(aggregation.Config, {**aggregation.TINY, **settings})


@cache
def result(seed=7, **settings):
    return execute("aggregation", config(**settings), seed)


def way(name, **settings):
    return next(row for row in result(**settings).data["ways"] if row["way"] == name)


class TestLedger:
    def test_every_weight_from_the_counts(self):
        found = result(groups=4, group_size=8)
        rows = found.data["ledger"]
        tokens, n = sum(row["action_tokens"] for row in rows), len(rows)
        width = max(row["action_tokens"] + row["tool_tokens"] for row in rows)
        for row in rows:
            length = row["action_tokens"]
            exact = {
                "token-mean": length / tokens,
                "token-sum": length,
                "seq-mean-token-sum": length / n,
                "seq-mean-token-mean": 1 / n,
                "constant": length / n / 8,
                "padded width": length / n / width,
            }
            assert row["weight"] == pytest.approx(exact, rel=1e-7)

    def test_the_longest_weighs_its_length_under_a_token_mean_and_the_same_under_a_row_mean(self):
        head = result(groups=4, group_size=8).headline
        assert head["length_ratio"] == 3
        assert head["token_mean_weight_ratio"] == pytest.approx(head["length_ratio"], rel=1e-12)
        assert way("seq-mean-token-mean", groups=4, group_size=8)["weight_ratio"] == pytest.approx(1, rel=1e-7)

    def test_replies_have_no_weight_and_move_only_the_padded_width(self):
        rows = result(groups=4, group_size=8).data["ledger"]
        assert len({row["tool_tokens"] for row in rows if row["action_tokens"] == 3}) > 1
        for name in measures.WAYS:
            assert len({round(row["weight"][name], 12) for row in rows if row["action_tokens"] == 3}) == 1

    def test_every_mode_of_the_loss_is_a_way(self):
        assert {mode for mode, _ in measures.WAYS.values()} == set(AGG_MODES)


class TestExact:
    def test_sums_keep_the_direction_with_the_factor_of_their_denominator(self):
        rows = 2 * aggregation.TINY["exact_group_size"]
        for name, scale in (("seq-mean-token-sum", 1), ("token-sum", rows), ("constant", 1 / 8)):
            assert way(name)["exact_cosine"] == pytest.approx(1, abs=1e-12)
            assert way(name)["exact_scale"] == pytest.approx(scale, rel=1e-9)

    def test_a_mean_over_the_row_by_enumeration_of_pairs(self):
        environment = environments["arithmetic"]
        policy = measures.policy(0.3)
        known = truth(environment, policy.logits.numpy())
        paths = trajectories(environment, environment.max_steps)
        total = np.zeros(environment.policy_shape)
        for f in range(2):
            own = next(c for c, k in enumerate(known.classes) if k.family == f)
            chance, reward = known.kinds.probability(known.log_probs[f]), known.kinds.reward[own]
            scores = known.kinds.scores(known.log_probs[f])
            for i in range(len(paths)):
                for j in range(len(paths)):
                    left, right = ((reward[i] - reward[j]) / len(paths[i].actions) * scores[i],
                                   (reward[j] - reward[i]) / len(paths[j].actions) * scores[j])  # fmt: skip
                    total[f] += chance[i] * chance[j] * (left + right) / 4
        true = known.objective.gradient
        cosine = (total * true).sum() / np.linalg.norm(total) / np.linalg.norm(true)
        assert way("seq-mean-token-mean")["exact_cosine"] == pytest.approx(cosine, abs=1e-10)
        assert cosine < 0.99

    def test_the_policy_succeeds_as_often_as_asked(self):
        known = truth(environments["arithmetic"], measures.policy(0.4).logits.numpy())
        assert known.success.value == pytest.approx(0.4, abs=0.03)


class TestSplits:
    @pytest.mark.parametrize("name", measures.WAYS)
    def test_counts_of_the_whole_are_exact(self, name):
        assert way(name, splits=(4,), groups=4, batches=1)["global_error"] < 1e-12

    def test_own_counts_by_hand(self):
        # Equal numbers of rows: row means agree, token means do not, and averaged sums are the sum over parts.
        settings = {"splits": (4,), "groups": 4, "group_size": 8, "batches": 2}
        assert way("seq-mean-token-sum", **settings)["local_error"] < 1e-12
        assert way("token-sum", **settings)["local_error"] == pytest.approx(3 / 4, abs=1e-12)
        assert way("token-mean", **settings)["local_error"] > 1e-3

    def test_one_part_has_no_error(self):
        acting = measures.policy(0.3)
        batch = measures.sample(config(groups=4, group_size=8), acting, torch.Generator().manual_seed(1))
        for name in measures.WAYS:
            step = measures.step(config(), name)
            assert measures.error(batch, acting, step, torch.arange(batch.rows), 1, whole=False) < 1e-12

    def test_the_conclusion_can_tell_and_cannot(self):
        words = [
            aggregation._conclusion(["token-sum"], 0.9, 1e-16, t_interval(v), "rloo")
            for v in ([0.1, 0.11], [-0.1, -0.11], [0.1, -0.1])
        ]
        assert "makes token-mean worse" in words[0]
        assert "makes token-mean better" in words[1]
        assert "2 batches cannot tell" in words[2]
        assert "no way of dividing keeps" in aggregation._conclusion([], 0.9, 1e-16, t_interval([0.1]), "rloo")


@pytest.mark.parametrize("splits", [(), (1,), (9,)])
def test_splits_that_split_nothing_or_too_much(splits):
    with pytest.raises(InputError, match="splits is"):
        config(splits=splits)
