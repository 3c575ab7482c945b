"""A run in words: what limits it, where time and samples went, how old they were, theory, and what was assumed.

`sections` gives the report as lines by section; a change from one run to the next can be read off it, because every
number of the throughput's two identities (`labs.pipeline.measures`) is printed.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from labs.pipeline.accounting import Run
from labs.pipeline.catalogue import System, spell
from labs.pipeline.measures import journey
from labs.pipeline.records import ACCEPTED, STATUSES

#: The sections, in the order in which they are printed.
SECTIONS = ("system", "outcome", "limits", "time", "waits", "lag", "bias", "theory", "hazards", "assumed", "table")

#: Of a line of prose, behind the section's name.
WIDTH = 110

#: What workers and trainer can wait for, in words.
WAITS = {
    "task": "no task left",
    "submission": "submission gate",
    "concurrency": "concurrency gate",
    "queue full": "room in the queue",
    "drain": "drain before an update",
    "sync": "weight sync",
    "down": "dead",
    "data": "a batch to be complete",
    "hold": "groups in the making that a step would make too old",
    "evaluation": "evaluation",
}
_UNITS = {"sync": "publications", "step": "optimiser steps", "sample": "trained samples"}


def sections(run: Run, numbers: Mapping[str, float], more: Mapping[str, Any], system: System) -> dict[str, list[str]]:
    """The report by section.

    Args:
        run: what happened.
        numbers: its `labs.pipeline.measures.measures`.
        more: `work` (the workload in words), `changed` (rule to value, where it is not the file's), `bias`, `theory`
            and, where settings were varied, `table` (rows).
        system: whose rules it has.
    """
    changed = more["changed"]
    # Where somebody has set the rule, the file assumes nothing about it.
    kept = [line.removeprefix("assumed: ") for line in system.assumptions() if line.split()[1] not in changed]
    return {
        "system": [
            system.title,
            f"source: {system.source}",
            f"apart: {system.apart}",
            "changed: "
            + (", ".join(f"{name} = {spell(value)}" for name, value in changed.items()) or "no rule of the file"),
            more["work"],
        ],
        "outcome": _outcome(run, numbers),
        "limits": _limits(run, numbers),
        "time": _time(run),
        "waits": _waits(run),
        "lag": _lag(run, numbers),
        "bias": _bias(more["bias"]),
        "theory": _theory(more["theory"]),
        "hazards": list(run.hazards) or ["none found"],
        "assumed": kept or ["nothing: every rule was read in the source, or set"],
        "table": table(more.get("table", ())),
    }


def lines(told: Mapping[str, Sequence[str]], show: Sequence[str] = SECTIONS) -> list[str]:
    """The chosen sections as lines: the section's name in front of its first line."""
    out = []
    for name in SECTIONS:
        if name in show and told.get(name):
            out += [f"{name if i == 0 else '':<9}{line}" for i, line in enumerate(told[name])]
    return out


def _outcome(run: Run, m: Mapping[str, float]) -> list[str]:
    counts = {status: sum(run.lags(status).values()) for status in STATUSES}
    left = ", ".join(f"{n:,} {status}" for status, n in counts.items() if n and status != ACCEPTED)
    lost, doubled = m["lost_tasks"], m["doubled_tasks"]
    return [
        f"{run.work.tasks:,} tasks, {len(run.trajectories):,} trajectories: {counts[ACCEPTED]:,} trained"
        + (f", {left}" if left else ""),
        f"tasks of which nothing trained: {lost:,.0f}; tasks that were made more than once: {doubled:,.0f}",
        f"{m['seconds']:,.3f} simulated s, {m['steps']:,.0f} steps, {len(run.publications):,} publications; "
        f"up to the last start {m['steady_per_second']:.4g} trained/s, over all of it",
        f"{m['trained_per_second']:.4g} trained/s = {run.rules.workers:,} workers x {m['workers_busy']:.1%} busy x "
        f"{m['useful']:.1%} of that trained / {m['mean_trained_seconds']:.3g} s a trained rollout",
        f"{'':{len(format(m['trained_per_second'], '.4g'))}}           = {m['step_size']:.4g} a step x "
        f"{m['trainer_busy']:.1%} trainer busy / {run.rules.training_seconds:.3g} s a step",
    ]


def _limits(run: Run, m: Mapping[str, float]) -> list[str]:
    rules = run.rules
    speed = sum(size * speed for size, speed in rules.pools) if rules.pools else rules.workers
    offered = [run.work.duration(t.task, t.sample) for t in run.trajectories]
    least = rules.batch_size * rules.group_size * sum(offered) / len(offered) / speed
    train, generate = rules.training_seconds + rules.sync_seconds / rules.steps_per_sync, m["generate_seconds"]
    slower = "generation" if generate > train else "training"
    found = [
        f"a batch takes {train:.3g} s to train and publish, and all workers {least:.3g} s to generate, "
        f"{generate:.3g} s with what is thrown away or made again: {slower} is slower{held_up(m, slower)}",
    ]
    blocked = _shares(_pools(run), run.seconds, ("busy", "task"))
    held = [f"{WAITS[what]} {share:.1%}" for what, share in blocked if share >= 0.0005]
    found.append("workers are held back by " + (", ".join(held) if held else "nothing"))
    ending = _shares(_pools(run), run.seconds, [*WAITS.keys() - {"task"}, "busy"])
    if ending and ending[0][1] >= 0.0005:
        found[-1] += f"; they have no task left for {ending[0][1]:.1%} of their time, as the last rollouts end"
    waits = _shares([(run.trainer_seconds, 1)], run.seconds, ("busy",))
    held = [f"{WAITS[what]} {share:.1%}" for what, share in waits if share >= 0.0005]
    found.append("the trainer is held back by " + (", ".join(held) if held else "nothing"))
    made = run.generated()
    total = sum(made.values()) + run.prefill_seconds
    wasted = {status: seconds for status, seconds in made.items() if status != ACCEPTED and seconds}
    if run.prefill_seconds:
        wasted["computed again"] = run.prefill_seconds
    lost = ", ".join(f"{what} {seconds / total:.1%}" for what, seconds in sorted(wasted.items(), key=lambda w: -w[1]))
    found.append(f"generated and not trained: {lost or 'nothing'}")
    found.append(f"while the trainer trains, {m['overlap']:.1%} of the workers generate")
    return found


def held_up(m: Mapping[str, float], slower: str) -> str:
    """What to add where the slower side is idle most of the time, so that its speed does not set the pace."""
    busy = m["workers_busy" if slower == "generation" else "trainer_busy"]
    return "" if busy >= 0.5 else f", yet busy only {busy:.1%} of the time: what it waits for sets the pace"


def _time(run: Run) -> list[str]:
    found = []
    for name, shares in run.time_budget().items():
        parts = sorted(
            ((what, s) for what, s in shares.items() if s > 0), key=lambda part: (part[0] != "busy", -part[1])
        )
        text = " + ".join(f"{what} {share:.4f}" for what, share in parts)
        found.append(f"{name:<8} {text} = {sum(shares.values()):.4f}")
    return found


def _waits(run: Run) -> list[str]:
    waits, where = run.waits(), journey(run)
    whole = run.rules.workers * run.seconds or 1.0
    path = " + ".join(
        f"{words} {where[name]:.3f}"
        for name, words in (
            ("rollout", "rollout"), ("sibling", "siblings"), ("queue", "queue"), ("training", "training step"),
        ) if name != "sibling" or run.rules.group_size > 1
    )  # fmt: skip
    return [
        f"sample in queue    {where['queue']:.3f} s on average, of what trained",
        f"trainer blocked    {waits['trainer_blocked']:,.1f} s of {run.seconds:,.1f} s",
        f"generator blocked  {waits['generator_blocked']:,.1f} worker s of {whole:,.1f}",
        f"a trained sample   {path} = {sum(where.values()):.3f} s",
    ]


def _lag(run: Run, m: Mapping[str, float]) -> list[str]:
    rules, trained = run.rules, run.lags(ACCEPTED)
    rest = run.lags() - trained
    bound = rules.max_policy_lag
    enforced = {"reject": f"at most {bound} trains", "wait": f"at most {bound} trains", "train": "no bound is enforced"}
    found = [
        f"counted in {_UNITS[rules.version_unit]}, from the oldest weights of a trajectory to those its step starts "
        f"from; {enforced[rules.ingestion]}",
        f"trained: {_histogram(trained)}; mean {m['lag_mean']:.3f}, largest {m['lag_max']:.0f}",
    ]
    if rest:
        found.append(f"not trained: {_histogram(rest)}")
    if rules.version_unit != "step":
        found.append(f"in optimiser steps: mean {m['step_lag_mean']:.3f}, largest {m['step_lag_max']:.0f}")
    if m["mixed_share"]:
        spans = [len({v for v, _ in t.spans or ()}) or 1 for t in run.trajectories if t.status == ACCEPTED]
        counts = {k: spans.count(k) / len(spans) for k in sorted(set(spans))}
        text = ", ".join(f"{k}: {share:.1%}" for k, share in list(counts.items())[:8])
        found.append(f"versions in one trajectory: {text}{', ...' if len(counts) > 8 else ''}")
        found.append(
            f"token lag: mean {m['token_lag_mean']:.3f} over the tokens that trained, of which long rollouts have more"
        )
    return found


def _histogram(count: Mapping[int, int]) -> str:
    total = sum(count.values())
    if not total:
        return "nothing"
    shown = sorted(count.items())
    text = ", ".join(f"{lag}: {n / total:.1%}" for lag, n in shown[:8])
    rest = sum(n for _, n in shown[8:])
    return text + (f", older: {rest / total:.1%}" if rest else "")


def _bias(bias: Mapping[str, Any]) -> list[str]:
    found = []
    for what, unit in (("duration", "s"), ("difficulty", "success rate"), ("reward", "")):
        if what in bias:
            one, two = bias[what]["offered"], bias[what]["trained"]
            found.append(
                f"{what}: trained mean {two['mean']:.3f}, offered {one['mean']:.3f} {unit}".rstrip()
                + f"; 90th percentile {two['quantiles']['0.9']:.3f} of {one['quantiles']['0.9']:.3f}"
            )
    quarters = ", ".join(f"{share:.1%}" for share in bias["trained_by_duration"])
    found.insert(1, f"share that trained by quarter of the duration, the shortest first: {quarters}")
    return found


def _theory(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    found = [f"{'formula':<36} {'predicted':>10} {'simulated':>10}  conditions"]
    sets: list[str] = []
    for row in rows:
        if row["condition"] not in sets:
            sets.append(row["condition"])
        mark = chr(ord("a") + sets.index(row["condition"]))
        predicted = "diverges" if row["predicted"] is None else f"{row['predicted']:.5g}"
        holds = "hold" if row["holds"] else "FAIL: " + "; ".join(row["broken"])
        found.append(f"{row['name']:<36} {predicted:>10} {row['simulated']:>10.5g}  [{mark}] {holds}")
    for i, text in enumerate(sets):
        found += textwrap.wrap(f"[{chr(ord('a') + i)}] {text}", WIDTH, subsequent_indent=" " * 4)
    return found


#: Columns of the table: measure, heading, format.
COLUMNS = (
    ("trained_per_second", "trained/s", ".4g"), ("steady_per_second", "steady/s", ".4g"),
    ("kept", "kept", ".1%"), ("lag_mean", "lag", ".3f"),
    ("lag_max", "max", ".0f"), ("step_lag_mean", "in steps", ".2f"), ("workers_busy", "workers", ".1%"),
    ("useful", "useful", ".1%"), ("trainer_busy", "trainer", ".1%"), ("overlap", "overlap", ".1%"),
    ("queue_seconds", "queue s", ".2f"), ("sync_wait_seconds", "sync s", ".2f"),
    ("generator_blocked", "held", ".1%"),
)  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Settings that were varied, one row a setting: how much trains, how old it is, who is busy, who waits."""
    if not rows:
        return []
    cells = [["", *(heading for _, heading, _ in COLUMNS)]]
    for row in rows:
        if row.get("refused"):
            cells.append([row["setting"], row["refused"]])
        else:
            cells.append([row["setting"], *(format(row[name], form) for name, _, form in COLUMNS)])
    full = [row for row in cells if len(row) > 2]
    widths = [max(len(row[i]) for row in (cells if i == 0 else full)) for i in range(len(cells[0]))]
    return [
        "  ".join(
            cell if len(row) == 2 and i else f"{cell:<{widths[i]}}" if i == 0 else f"{cell:>{widths[i]}}"
            for i, cell in enumerate(row)
        ).rstrip()
        for row in cells
    ]


def _pools(run: Run) -> list[tuple[dict[str, float], int]]:
    sizes = [size for size, _ in run.rules.pools] or [run.rules.workers]
    return list(zip(run.worker_seconds, sizes, strict=True))


def _shares(
    pools: Sequence[tuple[Mapping[str, float], int]], seconds: float, without: Sequence[str]
) -> list[tuple[str, float]]:
    """What was waited for, the largest share first."""
    total = sum(size for _, size in pools) * seconds
    sums: dict[str, float] = {}
    for pool, _ in pools:
        for what, spent in pool.items():
            if what not in without:
                sums[what] = sums.get(what, 0.0) + spent
    return sorted(
        ((what, spent / total if total else 0.0) for what, spent in sums.items()), key=lambda w: (-w[1], w[0])
    )
