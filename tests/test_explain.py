"""An explanation is the arithmetic that ran: evaluated, it gives the tensor's entry, for every stage and entry."""

import pytest
import torch

from labs.correction import RolloutCorrectionConfig
from labs.errors import InputError
from labs.explain import logit_lines, render, trace
from labs.registry import environments, estimators, losses
from labs.step import StepConfig, stages
from labs.trainer import Trainer, TrainerConfig
from tests.arithmetic import evaluate

ENVIRONMENT = environments["arithmetic"]
NAMES = (list(ENVIRONMENT.families), list(ENVIRONMENT.stages), list(ENVIRONMENT.actions))
LOSS_OPTIONS = {"dro": {"dro_beta": 0.1}}


def prepared(seed=3, **step):
    """A batch with right and wrong rows, an old policy that is not uniform, and its settings."""
    config = TrainerConfig(step=StepConfig(**step), groups_per_update=4, group_size=4, learning_rate=3.0)
    trainer = Trainer(ENVIRONMENT, config, seed=seed)
    with torch.no_grad():
        for family, tool in enumerate((1, 2)):  # good enough that groups are mixed
            for stage, action in enumerate((0, tool, 3)):
                trainer.logits[family, stage, action] = 2.0
    trainer.past[0] = trainer.policy
    episodes, _ = trainer.collect()
    return trainer, trainer.prepare(episodes, trainer.policy), config.step


def places(batch):
    """An action, an observation and the last position of a right and of a wrong row."""
    rows = [int(batch["scores"].argmax()), int(batch["scores"].argmin())]
    return [(row, t) for row in rows for t in (0, 1, batch.width - 1)]


def check(batch, config, at, generator):
    found = trace(batch, config, at, generator=generator().manual_seed(5))
    *_, (_, done) = stages(batch, config, generator=generator().manual_seed(5))
    assert {s.column for s in found} >= {"advantages", "loss_weights"}
    for step in found:
        assert evaluate(step.text) == pytest.approx(step.value, rel=1e-5, abs=1e-7, nan_ok=True), step.text
    last = {s.column: s for s in found}
    for name, step in last.items():
        assert step.value == pytest.approx(float(done[name][step.index]), rel=1e-5, abs=1e-7, nan_ok=True), name
    return found


@pytest.mark.parametrize("name", list(estimators))
@pytest.mark.slow
def test_every_estimator(name):
    _, batch, config = prepared(estimator=name)
    for at in places(batch)[:4]:
        check(batch, config, at, torch.Generator)


@pytest.mark.parametrize("name", list(losses))
@pytest.mark.slow
def test_every_loss(name):
    options = LOSS_OPTIONS.get(name, {})
    correction = {"correction": RolloutCorrectionConfig()} if name == "bypass_mode" else {}
    try:
        _, batch, config = prepared(loss=name, loss_options=options, **correction)
    except InputError as error:
        pytest.fail(f"{name}: {error}")
    noise = 0.4 * torch.rand(batch["old_log_probs"].shape, generator=torch.Generator().manual_seed(1))
    mask = batch["response_mask"]
    extra = {"ref_log_prob": batch["old_log_probs"] - noise * mask}
    batch = batch.replace(log_prob=batch["old_log_probs"] + noise * mask, **extra)
    for at in places(batch)[:4]:
        check(batch, config, at, torch.Generator)


def test_kl_correction_and_rejection_are_explained():
    _, batch, config = prepared(
        use_kl_in_reward=True,
        kl_penalty="k3",
        kl_ctrl={"kl_coef": 0.1},
        correction=RolloutCorrectionConfig(rollout_is="token", rollout_rs="seq_mean_k1", rollout_rs_threshold=1.5),
    )
    noise = 0.5 * torch.rand(batch["old_log_probs"].shape, generator=torch.Generator().manual_seed(1))
    mask = batch["response_mask"]
    batch = batch.replace(
        rollout_log_probs=batch["old_log_probs"] - noise * mask, ref_log_prob=batch["old_log_probs"] + noise * mask
    )
    found = check(batch, config, places(batch)[0], torch.Generator)
    by = {(s.stage, s.column): s.text for s in found}
    assert "ref_log_prob[" in by["kl", "token_level_rewards"]
    assert "rollout_log_probs[" in by["correction", "rollout_is_weights"]


def test_advantage_says_group_mean_and_denominator():
    _, batch, config = prepared(estimator="grpo")
    row = int(batch["scores"].argmax())
    text = "\n".join(render(trace(batch, config, (row, 0)), "advantages"))
    assert " / 4" in text, "the group's mean is over four rows"
    assert "1e-06" in text, "epsilon is shown"
    assert "labs/advantages/grpo.py" in text, "the line of code is named"


def test_the_gradient_of_the_table_is_the_sum_of_what_is_explained():
    trainer, batch, config = prepared(estimator="rloo")
    *_, (_, done) = stages(batch, config)
    total = torch.zeros(ENVIRONMENT.policy_shape, dtype=torch.float64)
    for i in range(batch.rows):
        for t in range(batch.width):
            lines = logit_lines(done, trainer.policy, (i, t), NAMES)
            if lines[0].startswith("no logit"):
                continue
            family, stage = divmod(int(done["table_index"][i, t]) // 4, 3)
            for a, line in enumerate(lines[1:]):
                total[family, stage, a] += evaluate(line.strip())
    log_prob = trainer.policy.token_log_probs(batch["table_index"])
    logits = trainer.logits
    weighted = (done["loss_weights"] * type(trainer.policy)(logits).token_log_probs(batch["table_index"])).sum()
    (gradient,) = torch.autograd.grad(weighted, logits)
    assert log_prob.shape == done["loss_weights"].shape
    torch.testing.assert_close(total, gradient)


def test_refusals():
    _, batch, config = prepared()
    with pytest.raises(InputError, match=r"place 99,0 is outside the batch; it has rows 0 to 15"):
        trace(batch, config, (99, 0))
    with pytest.raises(InputError, match=r"column is 'advantage'; allowed: .*advantages"):
        list(render(trace(batch, config, (0, 0)), "advantage"))
