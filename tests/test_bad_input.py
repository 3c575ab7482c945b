"""What is no tensor, no label, no setting: every public entry point says what, where, and what is allowed."""

import inspect

import numpy as np
import pytest
import torch

import labs
from labs import kl, masked
from labs.errors import InputError
from labs.registry import estimators, losses

ROWS, WIDTH = 4, 3
COLUMNS = {
    "token_level_rewards": torch.ones(ROWS, WIDTH),
    "response_mask": torch.ones(ROWS, WIDTH, dtype=torch.int64),
    "index": np.array(list("aabb"), dtype=object),
    "values": torch.zeros(ROWS, WIDTH),
    "reward_baselines": torch.zeros(ROWS),
    "config": {"gamma": 1.0, "norm_adv_by_std_in_grpo": True},
}
ALWAYS = ("token_level_rewards", "response_mask", "config")
TABLE = torch.zeros(ROWS, WIDTH)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("token_level_rewards", np.ones((ROWS, WIDTH)), "token_level_rewards is ndarray; it must be a tensor"),
        ("token_level_rewards", [[1.0] * WIDTH] * ROWS, "token_level_rewards is list"),
        ("token_level_rewards", None, "token_level_rewards is NoneType"),
        ("response_mask", None, "response_mask is NoneType; it must be a tensor"),
        ("response_mask", np.ones((ROWS, WIDTH)), "response_mask is ndarray"),
    ],
)
@pytest.mark.parametrize("name", ["gae", "grpo", "opo", "remax", "reinforce_plus_plus", "trl_rloo", "vtrace"])
def test_an_estimator_takes_tensors(name, column, value, said):
    function = estimators[name]
    given = {n: COLUMNS.get(n, TABLE) for n in (*ALWAYS, *function.needs)}
    with pytest.raises(InputError, match=said):
        function(**{**given, column: value})


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (None, "index is None; it takes the group labels of the 4 rows"),
        (np.array([["a", "b"]] * ROWS, dtype=object), "it takes one label a row"),
        (np.array(["a"]), "index holds 1 group labels, the batch has 4 rows"),
    ],
)
@pytest.mark.parametrize("name", ["grpo", "rloo", "rloo_vectorized", "opo", "dr_grpo"])
def test_groups_take_one_label_a_row(name, index, said):
    with pytest.raises(InputError, match=said):
        estimators[name](**{**{n: COLUMNS[n] for n in (*ALWAYS, "index")}, "index": index})


def test_optional_columns_stay_optional():
    given = {n: COLUMNS[n] for n in (*ALWAYS, "index")}
    assert estimators["trl_rloo"](**given, old_log_probs=None)[0].shape == (ROWS, WIDTH)
    with pytest.raises(InputError, match="old_log_probs is NoneType"):
        estimators["optimal_token_baseline"](**given, old_log_probs=None, sum_pi_squared=TABLE)


@pytest.mark.parametrize("config", ["abc", 3, ["clip_ratio"]])
def test_a_config_is_a_mapping_or_an_object(config):
    with pytest.raises(InputError, match="it takes None, a mapping or an object with its fields"):
        losses["vanilla"](TABLE, TABLE, TABLE, torch.ones_like(TABLE), "token-mean", config)


def test_aggregation_and_kl_take_tensors_of_one_shape():
    with pytest.raises(TypeError, match="loss_mask is NoneType"):
        masked.agg_loss(TABLE, None, "token-mean")
    with pytest.raises(RuntimeError, match=r"loss_mat is \(4, 3\), loss_mask is \(2, 3\)"):
        masked.agg_loss(TABLE, torch.ones(2, WIDTH), "seq-mean-token-sum")
    with pytest.raises(InputError, match="ref_logprob is NoneType"):
        kl.kl_penalty(TABLE, None, "kl")
    with pytest.raises(InputError, match="kl_penalty is None; allowed: kl, k1"):
        kl.kl_penalty(TABLE, TABLE, None)


@pytest.mark.parametrize(("seeds", "said"), [([], "seeds is empty"), (["a"], "seed is 'a'"), ([-1], "seed is -1")])
def test_seeds_from_python(seeds, said):
    with pytest.raises(InputError, match=said):
        labs.run("agent", seeds=seeds, updates=1)


DISCOUNTED = [n for n in sorted(estimators) if "gamma" in inspect.signature(estimators[n]).parameters]


@pytest.mark.parametrize("name", DISCOUNTED)
def test_a_discount_is_a_number(name):
    given = {n: COLUMNS.get(n, TABLE) for n in ("token_level_rewards", "response_mask", *estimators[name].needs)}
    given = {n: c[:, 0] if n in ("truncated", "bootstrap_values") else c for n, c in given.items()}
    with pytest.raises(InputError, match="gamma is 'much'; it must be a number"):
        estimators[name](**given, config={}, gamma="much")
