"""The trainer inside the pipeline: on policy it is the trainer; off policy every token has its own version."""

import math
from dataclasses import replace
from functools import cache
from itertools import islice

import numpy as np
import pytest
import torch

from labs.async_trainer import DENOMINATORS, METRICS, AsyncTrainer, judged, staleness
from labs.correction import RolloutCorrectionConfig
from labs.episodes import draw_tasks, play
from labs.errors import InputError
from labs.pipeline import catalogue
from labs.pipeline.model import simulate
from labs.pipeline.records import Ticket
from labs.pipeline.rules import Rules
from labs.pipeline.workload import Workload, lognormal_durations
from labs.policy import Policy
from labs.registry import environments
from labs.step import StepConfig
from labs.trainer import Trainer, TrainerConfig

TOKEN = RolloutCorrectionConfig(rollout_is="token", rollout_is_threshold=2.0)
SIZE = {"groups_per_update": 4, "group_size": 8, "verl_metrics": False}
SYNCHRONOUS = Rules(workers=8, batch_size=4, group_size=8, submission="budget", max_policy_lag=0)


def config(denominator="recomputed", step=None, **settings):
    weighted = {"correction": TOKEN} if denominator in ("proximal", "log_linear") else {}
    return TrainerConfig(step=StepConfig(**{**weighted, **(step or {})}), **{**SIZE, **settings})


def work(updates, seed=1, **settings):
    return Workload(lognormal_durations(4 * updates, 3.0, 1.0, seed, group_size=8), group_size=8, **settings)


def able(env):
    """A policy that succeeds now and then, so that there is something to learn from the first update on."""
    environment = environments[env]
    table = torch.zeros(environment.policy_shape, dtype=torch.float64)
    for stage, action in enumerate((0, 1, 1, 3) if env == "flaky_tools" else (0, 1, 3)):
        table[:, stage, action] = 2.0
    return Policy(table)


def learner_of(made, env="arithmetic", **settings):
    return AsyncTrainer(environments[env], made, seed=5, policy=able(env), **settings)


def trainer_of(made, updates, env="arithmetic"):
    trainer = Trainer(environments[env], made, seed=5, policy=able(env))
    return trainer, list(islice(trainer, updates))


def learn(rules=SYNCHRONOUS, updates=4, denominator="recomputed", env="arithmetic", made=None, **settings):
    learner = learner_of(config(denominator) if made is None else made, env, denominator=denominator, **settings)
    run = simulate(rules, work(updates), learner)
    return learner, run


def bits(policy):
    return policy.logits.numpy().tobytes()


@cache
def plain(lag=0, env="arithmetic", updates=4):
    return trainer_of(config(rollout_lag=lag), updates, env)


class TestOnPolicy:
    @pytest.mark.parametrize("denominator", DENOMINATORS)
    def test_without_lag_every_denominator_is_the_trainer_bit_for_bit(self, denominator):
        learner, run = learn(denominator=denominator)
        trainer, _ = plain()
        assert bits(learner.policy) == bits(trainer.policy) != bits(able("arithmetic"))
        assert all(t.lag == 0 for t in run.trajectories)
        for record in learner.records:
            assert record["largest_lag"] == 0
            assert record["sequence_ratio_max"] == record["effective_share"] == pytest.approx(1, abs=1e-12)

    def test_and_so_are_its_records(self):
        learner, _ = learn()
        for mine, theirs in zip(learner.records, plain()[1], strict=True):
            assert {name: mine[name] for name in theirs} == theirs

    @pytest.mark.parametrize(
        ("env", "settings", "step"),
        [
            ("flaky_tools", {}, {}),
            ("arithmetic", {"epochs": 2, "minibatches": 3, "optimiser": "adam", "learning_rate": 0.05}, {}),
            ("arithmetic", {"critic_epochs": 2}, {"estimator": "gae"}),
            ("arithmetic", {}, {"use_kl_in_reward": True, "loss": "gspo", "estimator": "rloo"}),
        ],
    )
    def test_with_other_settings_of_the_step(self, env, settings, step):
        made = config(step=step, **settings)
        trainer, _ = trainer_of(made, 3, env)
        assert bits(learn(updates=3, env=env, made=made)[0].policy) == bits(trainer.policy)

    def test_the_order_of_arrival_does_not_matter(self):
        one, two = (learn(SYNCHRONOUS.but(workers=n))[0] for n in (3, 32))
        assert bits(one.policy) == bits(two.policy)


class TestLag:
    @pytest.mark.parametrize("lag", [1, 3])
    def test_a_budget_of_batches_ahead_is_the_trainers_forced_lag_bit_for_bit(self, lag):
        # Rollouts shorter than training: batch b is made under version max(0, b - lag).
        rules = SYNCHRONOUS.but(workers=32, training_seconds=10.0, submission_batches=1.0 + lag, ingestion="train")
        learner = learner_of(config())
        simulate(rules, Workload([1.0] * (32 * 6), group_size=8), learner)
        assert [r["largest_lag"] for r in learner.records] == [min(lag, n) for n in range(6)]
        assert bits(learner.policy) == bits(plain(lag, updates=6)[0].policy)

    def test_tokens_carry_the_version_and_log_probability_of_their_moment(self):
        learner, run = learn(Rules(workers=16, batch_size=4, group_size=8, in_flight="mixed", ingestion="train"), 8)
        mixed = 0
        for t in run.trajectories:
            episodes, row, reward = t.payload
            n = int(episodes.decisions[row])
            versions = [t.version_at(k / 4) for k in range(n)]
            mixed += versions[0] != versions[-1]
            assert episodes.versions[row, :n].tolist() == versions
            assert reward == episodes.scores[row] == t.reward
            for k, version in enumerate(versions):
                table = learner._published[version].log_probs[episodes.families[row], episodes.environment.stage_of[
                    episodes.paths.states[row, k]]]  # fmt: skip
                assert episodes.log_probs[row, k] == float(table[episodes.paths.actions[row, k]])
        assert mixed > 5
        assert max(r["version_span"] for r in learner.records) > 0

    def test_mixed_versions_sample_from_the_mixture(self):
        # First decision by version 0 (uniform), the others by one that always does the right thing of a sum.
        environment = environments["arithmetic"]
        learner = AsyncTrainer(environment, config(groups_per_update=2, group_size=600), seed=5)
        table = torch.full(environment.policy_shape, -20.0, dtype=torch.float64)
        for stage, action in ((0, 0), (1, 1), (2, 3)):
            table[:, stage, action] = 20.0
        learner._published[1] = Policy(table, 1.0, 1)
        got = [learner.sample(Ticket(0, s, 0), lambda f: int(f >= 0.25)) for s in range(600)]
        # Success is reading first: 1/4. Five standard errors are 0.088.
        assert np.mean([s.reward for s in got]) == pytest.approx(0.25, abs=0.088)
        again = [learner.sample(Ticket(0, s, 1), lambda f: int(f >= 0.25)).reward for s in range(100)]
        assert again != [s.reward for s in got[:100]], "another attempt draws anew"

    @pytest.mark.parametrize("name", ["areal", "verl-fully-async", "pipelinerl", "trl"])
    def test_published_systems_train_and_count_every_sample(self, name):
        rules = catalogue.load(name).rules(workers=16, batch_size=4, group_size=8, training_seconds=2.0)
        learner, run = learn(rules, 5)
        trained = sum(t.status == "accepted" for t in run.trajectories)
        assert learner.records[-1]["samples"] == trained > 0
        curve = learner.curve()
        assert len(curve) == len(run.steps) + 1
        assert [row["seconds"] for row in curve[1:]] == [step.trained for step in run.steps]
        assert curve[-1]["success"] == learner.trainer._exact(learner.policy)

    def test_groups_without_contrast_are_filtered_and_made_again_with_new_draws(self):
        rules = Rules(workers=16, batch_size=2, group_size=8, filter="zero_variance", requeue="same", ingestion="train")
        learner, run = learn(rules, 4)
        groups = {}
        for t in run.trajectories:
            groups.setdefault((t.task, t.attempt), []).append(t)
        again = [members for (_, attempt), members in groups.items() if attempt]
        assert again
        for members in groups.values():
            rewards = {t.payload.reward for t in members}
            assert (len(rewards) == 1) == (members[0].status == "filtered")
        for members in again:
            task = members[0].task
            before = groups[task, members[0].attempt - 1]
            assert [t.payload.episodes.path(t.payload.row) for t in members] != [
                t.payload.episodes.path(t.payload.row) for t in before
            ]
        assert all(record["zero_advantage_groups"] == 0 for record in learner.records)

    @pytest.mark.parametrize("rule", ["abort_restart", "abort_resume"])
    def test_what_is_stopped_at_an_update_starts_again_or_goes_on_with_the_new_weights(self, rule):
        rules = Rules(workers=16, batch_size=2, group_size=8, in_flight=rule, ingestion="train")
        learner, run = learn(rules, 4)
        spans = [record["version_span"] for record in learner.records]
        assert (max(spans) > 0) == (rule == "abort_resume")
        assert any(t.attempt for t in run.trajectories) == (rule == "abort_restart")

    def test_published_weights_are_those_of_the_rule_that_counts_versions(self):
        rules = Rules(workers=8, batch_size=2, group_size=8, steps_per_sync=2, version_unit="step", ingestion="train")
        learner, run = learn(rules, 4)
        assert [version for _, version in run.publications] == [2, 4, 6, 8]
        assert [policy.version for policy in learner._published.values()] == [0, 2, 4, 6, 8]


def stale_batch(denominator, **settings):
    """A batch of version 0 in the hands of a trainer that has moved on."""
    learner = AsyncTrainer(environments["arithmetic"], config(denominator, **settings), seed=5, denominator=denominator)
    trainer = learner.trainer
    generator = torch.Generator().manual_seed(9)
    tasks = draw_tasks(trainer.environment, 4, generator)
    episodes = play(trainer.environment, trainer.policy, tasks, 8, generator=generator)
    with torch.no_grad():
        trainer.logits += torch.randn(trainer.logits.shape, generator=generator, dtype=torch.float64)
    trainer.number = 3
    return trainer, episodes, trainer.prepare(episodes, trainer.policy)


class TestDenominators:
    def test_what_each_divides_by(self):
        for denominator in DENOMINATORS:
            trainer, _, batch = stale_batch(denominator)
            mu, now = batch["rollout_log_probs"], trainer.policy.token_log_probs(batch["table_index"])
            expected = {"behaviour": mu, "log_linear": mu + 0.75 * (now - mu)}.get(denominator, now)
            torch.testing.assert_close(batch["old_log_probs"], expected, rtol=0, atol=1e-12)

    def test_proximal_weighs_by_the_truncated_ratio(self):
        trainer, episodes, batch = stale_batch("proximal")
        done = trainer._stages(episodes, trainer.policy, {})
        ratio = (batch["old_log_probs"] - batch["rollout_log_probs"]).exp().clamp(max=2.0)
        mask = batch["response_mask"].bool()
        torch.testing.assert_close(done["rollout_is_weights"][mask], ratio[mask])

    def test_none_is_the_gradient_without_any_ratio_at_every_minibatch(self):
        trainer, episodes, _ = stale_batch("none", epochs=3)
        done = trainer._stages(episodes, trainer.policy, {})
        for part in trainer._parts(done, 3, 1):
            now = trainer.policy.token_log_probs(part["table_index"])
            assert torch.equal(part["old_log_probs"], now)
            with torch.no_grad():
                trainer.logits += 0.1 * torch.ones_like(trainer.logits).cumsum(-1)

    def test_log_linear_follows_the_policy_and_weighs_anew(self):
        trainer, episodes, _ = stale_batch("log_linear", epochs=2)
        done = trainer._stages(episodes, trainer.policy, {})
        parts = trainer._parts(done, 2, 1)
        first = next(parts)
        with torch.no_grad():
            trainer.logits += torch.ones_like(trainer.logits).cumsum(-1)
        second = next(parts)
        mu = second["rollout_log_probs"]
        now = trainer.policy.token_log_probs(second["table_index"])
        mask = second["response_mask"].bool()
        torch.testing.assert_close(second["old_log_probs"][mask], (mu + 0.75 * (now - mu))[mask])
        weight = (0.75 * (now - mu)).exp().clamp(max=2.0)
        torch.testing.assert_close(second["rollout_is_weights"][mask], weight[mask])
        assert not torch.equal(first["old_log_probs"], second["old_log_probs"])

    def test_denominators_differ_once_there_is_lag(self):
        rules = SYNCHRONOUS.but(workers=32, training_seconds=10.0, submission_batches=3.0, ingestion="train")
        ends = set()
        for denominator in DENOMINATORS:
            made = config(denominator, epochs=2, learning_rate=12.0)
            ends.add(bits(learn(rules, 5, denominator, made=made)[0].policy))
        assert len(ends) == len(DENOMINATORS)

    @pytest.mark.parametrize(
        ("denominator", "settings", "says"),
        [
            ("fresh", {}, "the denominator is 'fresh'"),
            ("recomputed", {"step": {"correction": TOKEN}}, "the correction has weights"),
            ("proximal", {"step": {"correction": None}}, "the correction has no weights"),
            ("recomputed", {"rollout_lag": 1}, "rollout_lag"),
            ("recomputed", {"filter_groups": True}, "filter_groups"),
            (
                "recomputed",
                {"step": {"correction": replace(TOKEN, bypass_mode=True), "loss": "bypass_mode"}},
                "bypass_mode makes the behaviour policy the old one",
            ),
        ],
    )
    def test_what_does_not_go_together_is_refused(self, denominator, settings, says):
        with pytest.raises(InputError, match=says):
            AsyncTrainer(environments["arithmetic"], config(denominator, **settings), seed=1, denominator=denominator)

    def test_a_group_that_is_larger_than_the_learners_is_refused(self):
        with pytest.raises(InputError, match="group_size is 4"):
            learn(made=config(group_size=4))


def test_staleness_by_hand():
    trainer, _, batch = stale_batch("recomputed")
    found = staleness(batch, trainer.policy, 3)
    assert set(found) <= {metric.name for metric in METRICS}
    assert found["token_lag"] == found["largest_lag"] == 3
    assert found["version_span"] == 0
    mask, width = batch["response_mask"].bool(), batch.rows
    now = trainer.policy.token_log_probs(batch["table_index"])
    w = [math.exp(sum((n - m)[k].item() for k in range(len(keep)) if keep[k])) for n, m, keep in
         zip(now, batch["rollout_log_probs"], mask, strict=True)]  # fmt: skip
    assert found["sequence_ratio_max"] == pytest.approx(max(w))
    assert found["effective_share"] == pytest.approx(sum(w) ** 2 / (width * sum(x * x for x in w)))


def environment_scores(sampled, environment):
    return float(judged(sampled.episodes, environment)[sampled.row])


class TestVerifier:
    """The target may drift: what was right when an episode ended need not be right when it trains."""

    @staticmethod
    def other():
        environment = environments["arithmetic"]
        rights = environment.families
        return replace(environment, families={"sum": rights["difference"], "difference": rights["sum"]})

    def test_scores_are_those_of_their_time_unless_judged_again(self):
        environment, other = environments["arithmetic"], self.other()
        rules = SYNCHRONOUS.but(workers=32, training_seconds=10.0, submission_batches=3.0, ingestion="train")
        seen = {}
        for rescore in (False, True):
            settings = {"rescore": rescore, "verifier": lambda n: other if n >= 2 else environment}
            learner = learner_of(config(), **settings)
            scores, update = [], learner.trainer.update
            learner.trainer.update = lambda e, u=update, s=scores, a=learner: (s.append(a.trainer.scores), u(e))[1]
            run = simulate(rules, Workload([1.0] * (32 * 4), group_size=8), learner)
            seen[rescore] = scores
        assert seen[False][:2] == seen[True][:2]
        # Batch 2 was finished before the target changed and trains after it: whoever was right then is wrong now.
        batch = sorted((t for t in run.trajectories if t.exit.update == 2), key=lambda t: (t.task, t.sample))
        payloads = [t.payload for t in batch]
        assert seen[False][2] == [environment_scores(p, environment) for p in payloads]
        assert seen[True][2] == [environment_scores(p, other) for p in payloads]
        assert seen[False][2] != seen[True][2]

    def test_success_is_that_of_the_present_target(self):
        other = self.other()
        learner = AsyncTrainer(environments["arithmetic"], config(), seed=5, verifier=lambda n: other)
        table = torch.full(other.policy_shape, -20.0, dtype=torch.float64)
        for family, tool in ((0, 2), (1, 1)):
            for stage, action in ((0, 0), (1, tool), (2, 3)):
                table[family, stage, action] = 20.0
        assert learner.trainer._exact(Policy(table)) == pytest.approx(1.0, abs=1e-12)
        generator = torch.Generator().manual_seed(1)
        episodes = play(environments["arithmetic"], Policy(table), draw_tasks(other, 4, generator), generator=generator)
        assert episodes.scores.tolist() == [0.0] * 4
        assert judged(episodes, other).tolist() == [1.0] * 4
