"""Rollout correction: the one entry function and the presets."""

import numpy as np

from labs import correction


def _correct(config, inputs):
    weights, mask, metrics = correction.compute_rollout_correction_and_rejection_mask(**inputs, **config)
    return {"rollout_is_weights": weights, "modified_response_mask": mask, "metrics": metrics}


def _presets(config, _inputs):
    default = correction.RolloutCorrectionConfig()
    assert config["default"] == {name: str(getattr(default, name)) for name in config["default"]}
    table = [
        [name, *(str(getattr(make(), column)) for column in config["columns"][1:])]
        for name, make in correction.PRESETS.items()
    ]
    return {"table": np.array(table, dtype=object)}


ADAPTERS = {
    "verl.trainer.ppo.rollout_corr_helper.compute_rollout_correction_and_rejection_mask": _correct,
    "verl.trainer.config.algorithm.RolloutCorrectionConfig": _presets,
}

EXCUSED = {
    "rollout_corr.is_token.icepop_nothing_kept": "verl divides by zero when every weight is 0; the lab reports an "
    "effective sample size of 0 (tests/test_correction.py)",
}
