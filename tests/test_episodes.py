"""Episodes, their tokens and the columns entries need: ragged rows, tool replies, sessions, resumption, evaluation."""

import math
from pathlib import Path as File

import numpy as np
import pytest
import torch

from envs.arithmetic import arithmetic
from labs import agent
from labs.batch import TokenBatch
from labs.columns import complete
from labs.critic import ValueTable
from labs.enumeration import trajectories
from labs.environment import Environment, Path, Task, score
from labs.episodes import draw_tasks, evaluate, exact_outcomes, join, pack, play, resume
from labs.errors import InputError
from labs.policy import Policy
from labs.registry import environments
from labs.scores import response_lengths
from labs.tokens import FORMAT, PAD, action_id, prompt_id, reply_id, sessions

NAMES = list(environments)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def leaning(environment: Environment, seed: int = 0) -> Policy:
    """A policy that mostly does what is allowed, so that episodes are long and of many lengths."""
    logits = torch.rand(environment.policy_shape, generator=generator(seed), dtype=torch.float64)
    for state, stage in enumerate(environment.stage_of):
        for a, cell in enumerate(environment.outcomes[state]):
            if cell[0].end != "invalid_action":
                logits[:, stage, a] += 1.0
    return Policy(logits, version=3)


def some(environment: Environment, rows: int = 60, **options):
    g = generator(1)
    tasks = draw_tasks(environment, rows // 4, g)
    return play(environment, leaning(environment), tasks, 4, generator=g, **options)


@pytest.mark.parametrize("name", ["arithmetic", "arithmetic3", "flaky_tools", "routes"])
def test_on_the_learners_recorded_draws_the_episodes_are_its_own_one_for_one(name: str) -> None:
    environment = environments[name]
    record: list[agent.Draws] = []
    updates = list(agent.train(environment, seed=2, updates=4, record=record))
    logits = agent.uniform_logits(environment)
    for update, draws in zip(updates, record, strict=True):
        policy = Policy.of(environment, logits)
        seen = play(
            environment, policy, draws.tasks, 16, uniforms=draws.uniforms, outcome_uniforms=draws.outcome_uniforms
        )
        stream = [u for pair in zip(draws.uniforms, draws.outcome_uniforms, strict=True) for u in merged(*pair)]
        source = iter(stream)
        for group, task in enumerate(draws.tasks):
            rows = agent.cumulative(agent.policy_table(logits))[environment.family_index(task.family)]
            steps = environment.max_steps
            paths = agent.sample_episodes(environment, rows, lambda s=source: next(s), steps, 16)
            assert [seen.path(group * 16 + i) for i in range(16)] == paths
        assert seen.successes.mean() == update.success_rate
        assert seen.decisions.mean() == update.mean_actions
        logits = update.logits


def merged(uniforms: list[float], outcomes: list[float]) -> list[float]:
    """The draws of one row in the order in which the single form reads them."""
    return [x for pair in zip(uniforms, outcomes, strict=True) for x in pair if not math.isnan(x)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("format_tokens", "trailing"), [(0, False), (2, False), (1, True)])
def test_every_row_of_tokens_reads_back_as_its_path(name: str, format_tokens: int, trailing: bool) -> None:
    environment = environments[name]
    episodes = some(environment, max_steps=3)
    batch = episodes.tokens(format_tokens=format_tokens, trailing_reply=trailing)
    policy = leaning(environment)
    _, S, A = environment.policy_shape
    lengths = response_lengths(batch).tolist()
    assert batch.width == max(lengths)
    assert len(set(lengths)) > 2, "rows must be ragged for this test to mean anything"
    for row in range(len(episodes)):
        path, family = episodes.path(row), int(episodes.families[row])
        ids, mask, log_probs, versions, index, rows = [], [], [], [], [], []
        after = [*path.states[1:], path.last]
        for step, (state, action) in enumerate(zip(path.states, path.actions, strict=True)):
            table_row = family * S + environment.stage_of[state]
            ids += [action_id(action)] + [FORMAT] * format_tokens
            mask += [1] * (1 + format_tokens)
            log_probs += [float(policy.log_probs.reshape(-1)[table_row * A + action])] + [0.0] * format_tokens
            versions += [3] * (1 + format_tokens)
            index += [table_row * A + action] + [-1] * format_tokens
            rows += [table_row] * (1 + format_tokens)
            final = step + 1 == len(path.actions)
            if not final or (trailing and path.end == "timeout"):
                n = environment.states[after[step]].tokens
                ids += [reply_id(environment, after[step])] * n
                for column, nothing in ((mask, 0), (log_probs, 0.0), (versions, -1), (index, -1), (rows, -1)):
                    column += [nothing] * n
        n = len(ids)
        assert lengths[row] == n
        for column, expected, nothing in (
            ("responses", ids, PAD), ("response_mask", mask, 0), ("loss_mask", mask, 0),
            ("rollout_log_probs", log_probs, 0.0), ("versions", versions, -1), ("table_index", index, -1),
            ("row_index", rows, -1),
        ):  # fmt: skip
            assert batch[column][row].tolist() == pytest.approx([*expected, *[nothing] * (batch.width - n)])
        assert batch["attention_mask"][row].tolist() == [1] * batch["prompts"].shape[1] + [1] * n + [0] * (
            batch.width - n
        )
        assert batch["prompts"][row, 0] == prompt_id(environment, family)
        assert float(batch["scores"][row]) == score(environment, episodes.tasks[row], path.actions, path.last, path.end)
        assert bool(batch["truncated"][row]) == (path.end == "timeout")
        assert bool(batch["terminated"][row]) != bool(batch["truncated"][row])
        assert float(batch["valid"][row]) == (path.end != "invalid_action")
        assert int(batch["turns"][row]) == len(path.actions)
        assert int(batch["last_row"][row]) == family * S + environment.stage_of[path.last]


def test_rows_of_a_task_share_a_label_that_never_reads_as_a_number() -> None:
    episodes = some(arithmetic)
    labels = episodes.uid.tolist()
    assert [labels.count(u) for u in dict.fromkeys(labels)] == [4] * 15
    assert not any(u.isdigit() for u in labels)
    for u in set(labels):
        assert len({episodes.tasks[i] for i, label in enumerate(labels) if label == u}) == 1


def test_a_batch_saves_and_loads(tmp_path: File) -> None:
    batch = some(environments["long_observations"]).tokens()
    batch.save(tmp_path / "b.npz")
    found = TokenBatch.load(tmp_path / "b.npz")
    assert all(
        torch.equal(found[n], c) if isinstance(c, torch.Tensor) else (found[n] == c).all() for n, c in batch.items()
    )


@pytest.mark.parametrize("name", NAMES)
def test_sessions_split_a_row_into_its_turns(name: str) -> None:
    environment = environments[name]
    episodes = some(environment, 24)
    whole, split = episodes.tokens(format_tokens=1), sessions(episodes, format_tokens=1)
    assert split.rows == episodes.decisions.sum()
    assert split.width == 2
    keys = [str(k).rsplit("_", 2) for k in split["session_keys"]]
    place = 0
    for row in range(len(episodes)):
        n = int(episodes.decisions[row])
        prompt = whole["prompts"].shape[1]
        text = torch.cat([whole["prompts"][row], whole["responses"][row]])
        starts = (whole["table_index"][row] >= 0).nonzero().ravel().tolist()
        for turn in range(n):
            uid, session, index = keys[place]
            assert (uid, int(session), int(index)) == (episodes.uid[row], row % 4, turn)
            assert split["uid"][place] == uid
            seen = split["prompts"][place][split["attention_mask"][place][:-2].bool()]
            assert torch.equal(seen, text[: prompt + starts[turn]])
            assert split["prompts"][place][: -len(seen)].abs().sum() == 0, "prompts are padded on the left"
            assert torch.equal(split["responses"][place], whole["responses"][row, starts[turn] : starts[turn] + 2])
            final = turn == n - 1
            assert float(split["scores"][place]) == (float(whole["scores"][row]) if final else 0.0)
            assert bool(split["terminated"][place]) == (final and bool(whole["terminated"][row]))
            assert bool(split["truncated"][place]) == (final and bool(whole["truncated"][row]))
            place += 1
    assert split["response_mask"].sum() == whole["response_mask"].sum()
    assert split["rollout_log_probs"].sum() == pytest.approx(float(whole["rollout_log_probs"].sum()))


def test_a_cut_episode_goes_on_under_the_newer_policy_and_remembers_the_older() -> None:
    environment = environments["flaky_tools"]
    old, new = leaning(environment), Policy(leaning(environment, 5).logits, version=9)
    g = generator(2)
    first = play(environment, old, draw_tasks(environment, 40, g), 2, generator=g, max_steps=2)
    cut = first.select(first.paths.truncated)
    assert 0 < len(cut) < len(first)
    draws = torch.rand(2, len(cut), 2, generator=generator(3), dtype=torch.float64).numpy()
    whole = resume(cut, new, uniforms=draws[0], outcome_uniforms=draws[1], max_steps=2)
    for row in range(len(cut)):
        path, before = whole.path(row), cut.path(row)
        assert path.states[:2] == before.states
        assert path.actions[:2] == before.actions
        assert path.states[2] == before.last
        n = len(path.actions)
        assert whole.versions[row].tolist() == [3, 3, *[9] * (n - 2), *[-1] * (4 - n)]
        family = int(whole.families[row])
        for step, (state, action) in enumerate(zip(path.states, path.actions, strict=True)):
            policy = old if step < 2 else new
            expected = float(policy.log_probs[family, environment.stage_of[state], action])
            assert whole.log_probs[row, step] == pytest.approx(expected)
    batch = whole.tokens()
    assert {3, 9} <= set(batch["versions"].unique().tolist())
    with pytest.raises(InputError, match="has ended; only truncated rows can be resumed"):
        resume(first, new, generator=g)


def test_waiting_rows_of_another_length_leave_no_gap_when_they_go_on() -> None:
    table = Policy.uniform(arithmetic)
    task = Task("sum", (1, 2))
    read, none = [0.1, 0.3], [0.1]
    short = play(arithmetic, table, [task], uniforms=[none], max_steps=1, prefix="a")
    long = play(arithmetic, table, [task], uniforms=[read], max_steps=2, prefix="b")
    both = join([short, long])
    assert both.paths.actions.tolist() == [[0, -1], [0, 1]]
    done = resume(both, table, uniforms=[[0.3, 0.9], [0.9, 0.9]], max_steps=2)
    assert [done.path(i) for i in range(2)] == [Path((0, 1, 2), (0, 1, 3), 2, "submitted")] * 2
    assert done.successes.all()
    assert done.uid.tolist() == ["a0", "b0"]


def test_joining_and_selecting_keep_rows_whole() -> None:
    parts = [some(arithmetic, 8, max_steps=n, prefix=f"p{n}-") for n in (1, 3, 2)]
    both = join(parts)
    assert [both.path(i) for i in range(len(both))] == [p.path(i) for p in parts for i in range(len(p))]
    assert both.scores.tolist() == [s for p in parts for s in p.scores]
    some_rows = both.select([5, 1])
    assert [some_rows.path(i) for i in range(2)] == [both.path(5), both.path(1)]
    assert some_rows.tasks == (both.tasks[5], both.tasks[1])
    with pytest.raises(InputError, match="no episodes to join"):
        join([])


def test_enumerated_trajectories_become_a_batch_with_their_exact_probabilities() -> None:
    environment = environments["flaky_tools"]
    policy = leaning(environment)
    found = trajectories(environment, 4)
    task = Task("sum", (2, 3))
    batch = pack(environment, [task] * len(found), found, policy, ["g"] * len(found)).tokens()
    chance = batch["rollout_log_probs"].sum(-1).exp() * torch.tensor(
        [t.probability for t in found], dtype=torch.float64
    )
    assert float(chance.sum()) == pytest.approx(1.0)
    exact = exact_outcomes(environment, policy, operands=(2, 3), max_steps=4)
    other = pack(environment, [Task("difference", (2, 3))] * len(found), found, policy, ["h"] * len(found)).tokens()
    chances = other["rollout_log_probs"].sum(-1).exp() * torch.tensor(
        [t.probability for t in found], dtype=torch.float64
    )
    success = (chance * batch["success"]).sum() / 2 + (chances * other["success"]).sum() / 2
    assert float(success) == pytest.approx(exact.success)


def test_evaluation_sampled_greedy_and_at_a_temperature() -> None:
    policy = leaning(arithmetic)
    for mode, temperature in (("sampled", 1.0), ("sampled", 0.3), ("greedy", 1.0)):
        found = evaluate(
            arithmetic, policy.at(temperature), generator=generator(4), episodes=4000, operands=(5, 9), mode=mode
        )
        p = found.exact.success
        assert abs(found.success_rate - p) <= 4.5 * math.sqrt(p * (1 - p) / 4000)
        assert found.mean_actions == pytest.approx(found.exact.actions, abs=0.1)
        assert found.mean_score == found.success_rate
        assert found.invalid_rate + found.timeout_rate <= 1 - found.success_rate
        assert all(5 <= x <= 9 for task in found.episodes.tasks for x in task.operands)
    greedy = evaluate(arithmetic, policy, generator=generator(4), episodes=8, mode="greedy")
    assert (greedy.episodes.log_probs == 0).all()
    assert exact_outcomes(arithmetic, policy.at(0.05)).success != exact_outcomes(arithmetic, policy).success


def test_columns_are_what_the_tables_say() -> None:
    environment = environments["flaky_tools"]
    old, reference = leaning(environment), leaning(environment, 7)
    g = generator(8)
    values = torch.rand(2, 4, generator=g, dtype=torch.float64)
    episodes = play(environment, old, draw_tasks(environment, 10, g), 3, generator=g, max_steps=2)
    batch = episodes.tokens(format_tokens=1)
    names = ("old_log_probs", "ref_log_prob", "entropy", "sum_pi_squared", "values", "bootstrap_values",
             "reward_baselines", "tool_rewards", "quality")  # fmt: skip
    tasks = dict(zip(episodes.uid.tolist(), episodes.tasks, strict=True))
    full = complete(
        batch, names, old=old, reference=reference, critic=ValueTable(values), environment=environment, tasks=tasks,
        generator=g, max_steps=2,
    )  # fmt: skip
    assert torch.equal(full["old_log_probs"], batch["rollout_log_probs"])
    for row in range(batch.rows):
        for t in range(batch.width):
            index, owner = int(batch["table_index"][row, t]), int(batch["row_index"][row, t])
            chosen, formed = index >= 0, index < 0 <= owner
            expected = float(reference.log_probs.reshape(-1)[index]) if chosen else 0.0
            assert float(full["ref_log_prob"][row, t]) == pytest.approx(expected)
            expected = float(old.entropy.reshape(-1)[owner]) if chosen else 0.0
            assert float(full["entropy"][row, t]) == pytest.approx(expected)
            expected = float(old.sum_pi_squared.reshape(-1)[owner]) if chosen else float(formed)
            assert float(full["sum_pi_squared"][row, t]) == pytest.approx(expected)
            expected = float(values.reshape(-1)[owner]) if chosen or formed else 0.0
            assert float(full["values"][row, t]) == expected
        cut = bool(batch["truncated"][row])
        last = int(batch["last_row"][row])
        assert float(full["bootstrap_values"][row]) == (float(values.reshape(-1)[last]) if cut else 0.0)
        assert float(full["quality"][row]) == 1 / int(batch["turns"][row])
        path = episodes.path(row)
        calls = [a for s, a in zip(path.states, path.actions, strict=True)
                 if environment.outcomes[s][a][0].end is None]  # fmt: skip
        assert full["tool_rewards"][row] == [1.0] * len(calls)
    assert complete(full, names, old=reference) is not full
    assert torch.equal(complete(full, names, old=reference)["old_log_probs"], full["old_log_probs"]), (
        "what is there stays"
    )


def test_the_greedy_baseline_is_the_score_of_the_greedy_policy_on_the_same_task() -> None:
    environment = environments["arithmetic3"]
    policy = Policy.uniform(environment)
    # Greedy: read, multiply, submit, which is right for 2 + 2 and for every product.
    for stage, action in enumerate((0, 3, 4)):
        policy.logits[:, stage, action] = 1.0
    tasks = [Task("sum", (2, 2)), Task("sum", (2, 3)), Task("product", (4, 5)), Task("difference", (3, 1))]
    episodes = play(environment, policy, tasks, 3, generator=generator())
    by_uid = dict(zip(episodes.uid.tolist(), episodes.tasks, strict=True))
    batch = complete(episodes.tokens(), ("reward_baselines",), old=policy, environment=environment, tasks=by_uid)
    assert batch["reward_baselines"].tolist() == [1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("values", "no critic was given"),
        ("ref_log_prob", "no reference policy was given"),
        ("reward_baselines", "needs the environment and the tasks"),
        ("teacher_log_probs", "column teacher_log_probs is needed, and neither the batch has it nor can it be made"),
    ],
)
def test_a_column_that_cannot_be_made_is_named(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        complete(some(arithmetic, 8).tokens(), (name,), old=leaning(arithmetic))


def test_bad_requests_are_refused() -> None:
    g, uniform = generator(), Policy.uniform(arithmetic)
    for call, message in (
        (lambda: play(arithmetic, uniform, [], generator=g), "there are 0 tasks"),
        (lambda: play(arithmetic, uniform, [Task("sum", (1, 1))], 0, generator=g), "group size is 0"),
        (lambda: play(arithmetic, uniform, [Task("sum", (1, 1))]), "need a generator, or the draws themselves"),
        (lambda: play(arithmetic, uniform, [Task("sun", (1, 1))], generator=g), "did you mean sum"),
        (lambda: play(arithmetic, uniform, [Task("sum", (1, 1))], generator=g, max_steps=0), "max_steps is 0"),
        (lambda: draw_tasks(arithmetic, 2, g, (5, 4)), "operands are 5 to 4"),
        (lambda: some(arithmetic, 8).tokens(format_tokens=-1), "format_tokens is -1"),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_families_alternate_from_where_they_stopped() -> None:
    families = [t.family for t in draw_tasks(arithmetic, 3, generator(), first=1)]
    assert families == ["difference", "sum", "difference"]
    tasks = draw_tasks(arithmetic, 2000, generator())
    low, high = arithmetic.train_operands
    seen = np.array([t.operands for t in tasks])
    assert (seen.min(), seen.max()) == (low, high)
