"""What a training run left behind, in any format: readers (`labs/dumps/`) yield it, checks (`labs/checks/`) use it.

A reader turns a file into `Step`s, one at a time, so that a file of any size is read in bounded memory. A check is a
module of `labs/checks/` that is called with each step in turn and keeps what it must remember between steps in a
dictionary of its own:

- its docstring: the question it answers;
- `CODE`: where it stands in the course's checklist and among the reports (`"C5"`, `"E3"`); checks run in this order;
- `NEEDS`: alternatives, each a tuple of names that must all be there (columns, scalars or facts);
- `UNLOCK`: what to log so that the check can run, in one sentence;
- `check(step, memory) -> Iterator[Finding]`, and optionally `finish(memory) -> Iterator[Finding]` after the last step;
- `BAD` and `GOOD`: examples by name, each a function without arguments that returns a list of steps, made by the lab
  with the fault switched on or off; the check must fire on every bad one and be silent on every good one;
- optionally `reproduce(finding) -> dict | None`: the smallest settings of an experiment of the lab that show the
  same fault, as `{"experiment": NAME, "set": {key: value}}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: `certain`: arithmetic on the file proves it. `likely`: the usual cause of what was seen. `possible`: worth a look.
Sure = Literal["certain", "likely", "possible"]

#: `fault`: something is wrong. `note`: worth knowing and not wrong; it never makes `diagnose` exit with 1.
Kind = Literal["fault", "note"]


@dataclass(frozen=True, kw_only=True)
class Where:
    """The place of a finding; None where it does not apply. Rows and tokens count from 0, lines from 1."""

    file: str | None = None
    line: int | None = None
    step: int | None = None
    row: int | None = None
    token: int | None = None

    def __str__(self) -> str:
        """`rollout/12.jsonl line 3, step 12, row 2, token 7`."""
        head = " ".join(
            [*([self.file] if self.file else []), *([f"line {self.line}"] if self.line is not None else [])]
        )
        rest = [f"{name} {value}" for name in ("step", "row", "token") if (value := getattr(self, name)) is not None]
        return ", ".join([*([head] if head else []), *rest])


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    Attributes:
        kind: see `Kind`; "silent" and "fires" speak of faults alone.
        check: the check's name, filled in by `labs.diagnosis`.
        what: what was seen, in one sentence with its numbers.
        where: the first place it was seen.
        share: how much of the batch, as `3 of 12 groups (25 %)`.
        why: why it matters, in one sentence.
        advice: what to try, in one sentence.
        sure: see `Sure`.
        numbers: the numbers of the sentence, by name, for machines and for `reproduce`.
    """

    what: str
    where: Where
    share: str
    why: str
    advice: str
    sure: Sure
    numbers: Mapping[str, float] = field(default_factory=dict)
    check: str = ""
    kind: Kind = "fault"


@dataclass(kw_only=True, eq=False)
class Step:
    """What one training step left.

    Attributes:
        source: the file it came from.
        format: the reader's name.
        step: the training step, None when the file does not say.
        rows: B; 0 when there are only scalars.
        columns: by verl's name, `[B]` (numbers, or `object` for text) or `[B, T]`, padded on the right with mask 0.
            `uid` (group id), `prompt`, `output`, `gts`, `score` (sum of `rm_scores`), `session`, `index`,
            `parts/<name>` (a reward part), `length` (tokens), `characters` (of the output, where tokens are unknown),
            `finish_reason` (`stop`, `length`, `abort`), `version`, `advantage` (one a row), `duration` and `accepted`
            (of a rollout), `micro_batch` (number of the part of the batch that the row was in), `log_prob` and
            `entropy` (of the current policy), `tool_mask` and `completion_mask` (TRL's),
            and the tensors under the names of `labs.batch.TokenBatch`.
        scalars: logged numbers under verl's names (`critic/advantages/max`); other libraries' names stand as logged.
        facts: what the file or the user states: `n` (group size), `estimator`, `loss_mode`, `max_response_length`,
            `beta`, `actions` (size of the action space), `validation` (True when it is not training data),
            `loss_agg_mode`, `eos` and `pad` (token ids), `overlong_buffer`, `max_lag`, `kl_loss_type`; from the reader
            `origin` and `run` (which run the step belongs to), `current_version` and `grouped_by`.
        lines: the line of each row in its file, from 1.
        found: what the reader itself found wrong with the file.
        notes: what the reader assumed or left out, and what the user may state, in sentences.
    """

    source: str
    format: str
    step: int | None = None
    rows: int = 0
    columns: dict[str, NDArray[Any]] = field(default_factory=dict)
    scalars: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    lines: NDArray[Any] | None = None
    found: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def has(self, *names: str) -> bool:
        """True when every name is a column, a scalar or a fact of this step; `parts/*` is any name that starts so."""
        known = (self.columns, self.scalars, self.facts)
        return all(
            any(one.startswith(name[:-1]) for place in known for one in place)
            if name.endswith("/*")
            else any(name in place for place in known)
            for name in names
        )

    def at(self, row: int | None = None, token: int | None = None) -> Where:
        """The place of a row, and of a token of it, in this step."""
        line = int(self.lines[row]) if self.lines is not None and row is not None else None
        return Where(file=self.source, line=line, step=self.step, row=row, token=token)
