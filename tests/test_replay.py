"""Replay: what it shows of a run is what the run did."""

import math

import pytest

import labs
from labs import replay
from labs.agent import group_advantages
from labs.errors import InputError
from labs.experiment import Result
from labs.registry import environments, experiments
from labs.replay import terminal
from labs.settings import build
from labs.trainer import Trainer
from tests.command_line import QUICK, run

SMALL = {"updates": 12, "groups_per_update": 4, "group_size": 8, "evaluation_episodes": 20, "learning_rate": 20.0}
TRAIN = {**SMALL, "updates": 4, "estimator": "rloo"}


@pytest.fixture(scope="module")
def agent():
    return labs.run("agent", **SMALL)


@pytest.fixture(scope="module")
def rollout():
    return labs.run("rollout", tasks=40, workers=3, batch_size=4)


def test_an_update_of_the_learner(agent):
    number = replay.telling_updates(agent)[1]
    episodes = replay.of_update(agent, number)
    assert len(episodes) == 32
    rate = sum(episode.success for episode in episodes) / 32
    assert 0.1 < rate < 0.9
    assert rate == agent.metrics[number - 1]["train_success_rate"]
    assert sum(len(e.decisions) for e in episodes) / 32 == agent.metrics[number - 1]["train_mean_actions"]
    for group in {episode.group for episode in episodes}:
        mine = [episode for episode in episodes if episode.group == group]
        expected = group_advantages([episode.score for episode in mine])
        for episode, advantage in zip(mine, expected, strict=True):
            for step in episode.decisions:
                token = step.tokens[0]
                assert token.advantage == pytest.approx(advantage, abs=1e-9)
                # The learner's gradient: advantage times the gradient of the log-probability, over the trajectories.
                assert token.weight == pytest.approx(advantage / 32, abs=1e-9)
                assert (token.kind, token.text, token.version) == ("action", step.action, number - 1)
                assert (token.attention_mask, token.response_mask, token.loss_mask) == (1, 1, 1)
                assert math.fsum(step.probabilities.values()) == pytest.approx(1)
                assert math.log(step.probabilities[step.action]) == pytest.approx(step.log_probability)
                assert step.version == number - 1
                for reply in step.tokens[1:]:
                    assert (reply.kind, reply.version, reply.weight) == ("reply", None, 0)
                    assert (reply.attention_mask, reply.response_mask, reply.loss_mask) == (1, 0, 0)
        for episode in mine:
            tokens = [token for step in episode.decisions for token in step.tokens]
            assert [token.position for token in tokens] == list(range(len(tokens)))
            assert sum(token.reward for token in tokens) == episode.score


def test_tool_text_and_how_it_ended(agent):
    episode = next(e for e in replay.of_update(agent, replay.telling_updates(agent)[1]) if e.success)
    family, _, operands = episode.task.partition(" of ")
    left, right = map(int, operands.split(", "))
    read, compute, submit = episode.decisions
    assert read.reply == f"left={left} right={right}"
    assert compute.reply == f"scratchpad={left + right if family == 'sum' else left - right}"
    assert submit.reply == "[submitted]"
    assert [step.stage for step in episode.decisions] == ["start", "ready", "computed"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"estimator": "gae", "format_tokens": 2},
        {"use_kl_in_reward": True, "kl_target": 0.01, "kl_coef": 0.5},
        {"multi_turn_rows": True},
        {"rollout_lag": 1, "correction": "decoupled_token_is"},
        {"masks": ["high_entropy"], "options": ["high_entropy.top=0.3"], "denominators": "response_mask"},
        {"max_steps": 2, "truncation": "continue"},
    ],
    ids=lambda settings: ",".join(settings) or "default",
)
def test_an_update_of_the_trainer_is_the_one_it_made(settings):
    values = {**TRAIN, **settings}
    config = build(experiments["train"].Config, values)
    from experiments.train.running import trainer_config

    trainer = Trainer(environments["arithmetic"], trainer_config(config), seed=7)
    for _ in range(3):
        next(trainer)
    batch = trainer.batch
    result = Result(data={}, experiment="train", seed=7, config=dict(values))
    episodes = replay.of_update(result, 3)
    assert len(episodes) == len(trainer.episodes)
    seen = 0
    for episode in episodes:
        tokens = iter(token for step in episode.decisions for token in step.tokens)
        for row in episode.rows:
            real = batch["attention_mask"][row, -batch.width :].bool()
            for position in real.nonzero()[:, 0].tolist():
                token = next(tokens)
                assert token.position == position
                for name, value in (
                    ("token_level_rewards", token.reward), ("advantages", token.advantage),
                    ("returns", token.returns), ("response_mask", token.response_mask),
                    ("loss_mask", token.loss_mask), ("loss_weights", token.weight),
                ):  # fmt: skip
                    assert float(batch[name][row, position]) == pytest.approx(value, abs=1e-12), name
                version = int(batch["versions"][row, position])
                assert token.version == (None if version < 0 else version)
                seen += token.kind == "format"
    assert bool(seen) == ("format_tokens" in settings)


def test_held_out_episodes_are_the_stored_ones(agent):
    episodes = replay.held_out(agent)
    assert len(episodes) == len(agent.trajectories) == 8
    for episode, row in zip(episodes, agent.trajectories, strict=True):
        assert [step.action for step in episode.decisions] == [step["action"] for step in row["steps"]]
        assert episode.score == row["reward"]
        assert all(len(step.probabilities) == 4 and not step.tokens for step in episode.decisions)
    changed = {**agent.trajectories[0]}
    changed["steps"] = [{**step, "log_probability": -0.5} for step in changed["steps"]]
    (other,) = replay.held_out(Result(data=agent.data, trajectories=[changed]))
    assert all(not step.probabilities for step in other.decisions), "another temperature than the table's"


def test_updates_and_groups_worth_seeing():
    rows = [{"train_success_rate": rate} for rate in (0.0, 0.1, 0.45, 0.9, 1.0)]
    assert replay.telling_updates(Result(data={}, metrics=rows)) == [1, 3, 5]
    assert replay.telling_updates(Result(data={}, metrics=rows[:1])) == [1]
    assert replay.telling_updates(Result(data={}, metrics=[{"other": 1.0}])) == [1]
    assert replay.telling_updates(Result(data={})) == []
    make = lambda group, success: replay.Episode(  # noqa: E731
        number=0, group=group, task="", decisions=(), end="", success=success, score=0.0
    )
    found = replay.clearest_group([make("a", False), make("b", True), make("a", False), make("b", False)])
    assert {episode.group for episode in found} == {"b"}
    assert replay.clearest_group([]) == []


def test_a_pipeline(rollout):
    both = replay.schedules(rollout)
    assert [each.name for each in both] == ["synchronous", "asynchronous"]
    for schedule in both:
        steps = [row for row in rollout.metrics if row["schedule"] == schedule.name]
        assert [(start, end, size) for start, end, size in schedule.steps] == [
            (row["start"], row["end"], row["size"]) for row in steps
        ]
        assert schedule.workers == 3
        assert schedule.seconds == pytest.approx(rollout.data[schedule.name]["simulated_seconds"])
        lines = list(terminal.gantt(schedule))
        assert len(lines) == 5
        assert all(len(line) <= terminal.WIDTH + 10 for line in lines[1:])
        assert lines[-1].count("#") > 0
        assert any("x" in line for line in lines[1:4]) == bool(rollout.headline["rejected"] and schedule is both[1])
    early = list(terminal.gantt(both[1], 0.0, 2.0))
    assert early[0].startswith("asynchronous, 0.000 to 2.000")
    life = "\n".join(terminal.trajectory(both[1], 0))
    row = both[1].rows[0]
    assert f"{row['end']:.3f} s  it ends" in life
    assert f"lag {row['lag']}" in life
    assert replay.schedules(Result(data={}, trajectories=[{"steps": []}])) == []
    alone = Result(data={}, experiment="own", trajectories=rollout.trajectories)
    assert [each.name for each in replay.schedules(alone)] == ["own"]


@pytest.mark.slow
def test_a_pipeline_that_trains_is_simulated_again_with_its_decisions():
    module = experiments["staleness"]
    run = labs.run("staleness", **module.TINY)
    assert replay.schedules(run, again=False) == []
    found = {schedule.name: schedule for schedule in replay.schedules(run)}
    assert found
    for name, schedule in found.items():
        rejected = sum(row["status"] == "rejected" for row in schedule.rows) / len(schedule.rows)
        (own,) = [
            row
            for row in run.data["systems"]
            if (row["system"], row["denominator"], row["run"]) == (name, "recomputed", 0)
        ]
        assert rejected == own["rejected"]
        assert schedule.seconds / 3600 == pytest.approx(own["hours"])
        for row in schedule.rows:
            assert row["steps"][0]["stage"] == "start"
            assert all(step["log_probability"] <= 0 for step in row["steps"])
            assert {step["policy_version"] for step in row["steps"]} <= {version for version, _ in row["spans"]}
            assert row["steps"][-1]["reply"].startswith("[")
            assert (row["reward"] > 0) <= (row["steps"][-1]["reply"] == "[submitted]")
    life = "\n".join(terminal.trajectory(schedule, 0))
    assert "decision 1 at start" in life


def test_what_cannot_be_replayed(agent, rollout):
    with pytest.raises(InputError, match="updates 1 to 12"):
        replay.of_update(agent, 13)
    with pytest.raises(InputError, match="trains no policy"):
        replay.of_update(rollout, 1)


def test_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*QUICK, "--no-figures").code == 0
    assert run("--experiment", "rollout", "--set", "tasks=16", "--no-figures").code == 0
    ((agent,), (rollout,)) = (list((tmp_path / "results" / name).iterdir()) for name in ("agent", "rollout"))
    listed = run("replay", str(agent), "--update", "2", whole=True)
    assert listed.code == 0, listed.err
    assert listed.out.count("\n  episode ") == 192
    shown = run("replay", str(agent), "--update", "2", "--episode", "1", whole=True).out
    assert "policy version 1" in shown
    assert "<- sampled" in shown
    assert "attention  response  loss" in shown
    assert "held-out" in run("replay", str(agent), "--held-out", whole=True).out
    assert "asynchronous" in run("replay", str(rollout), whole=True).out
    assert "synchronous, 0.000" in run("replay", str(rollout), "--schedule", "synchronous", whole=True).out
    assert "it ends" in run("replay", str(rollout), "--episode", "3", whole=True).out
    for wrong, sentence in (
        ((str(tmp_path),), "no folder of a complete run"),
        ((str(agent), "--update", "9"), "updates 1 to 3"),
        ((str(agent), "--episode", "500"), "episodes 0 to 191"),
        ((str(rollout), "--schedule", "synchronos"), "did you mean synchronous"),
        ((str(rollout), "--episode", "16"), "trajectories 0 to 15"),
        ((str(rollout), "--held-out"), "keeps no episodes"),
        ((str(rollout), "--from", "3", "--to", "2"), "must be above --from"),
    ):
        said = run("replay", *wrong, whole=True)
        assert said.code == 2
        assert sentence in said.err


def test_stepping_waits_and_goes_back(agent, capsys, monkeypatch):
    import io

    from labs.commands.replay import _walk

    episode = next(e for e in replay.of_update(agent, replay.telling_updates(agent)[1]) if len(e.decisions) == 3)
    monkeypatch.setattr("sys.stdin", io.StringIO("\nb\n\nq\n"))
    _walk(terminal, episode, True)
    said = capsys.readouterr()
    assert [line[:11] for line in said.out.splitlines() if line.startswith("step")] == [
        "step 1 of 3", "step 2 of 3", "step 1 of 3", "step 2 of 3",
    ]  # fmt: skip
    assert said.err.count("Enter next") == 4
