"""The smallest configuration of the lab that shows the fault of a finding: written, run, and summed up.

A check's `reproduce(finding)` names an experiment and settings. The settings go to `reproduce-<check>.json`, so that
the run can be made again with `python -m labs.run --experiment NAME --config FILE`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from labs import jobs
from labs.experiment import execute
from labs.registry import checks
from labs.store import check_writable, dumps, write

if TYPE_CHECKING:
    from labs.evidence import Finding

SEED = 7


def reproduce(finding: Finding, folder: str = ".") -> dict[str, Any] | None:
    """Write and run it; None when the check has no such configuration for this finding.

    Returns:
        `check`, `experiment`, `set`, `file`, `command`, and what came out: `lines` (the experiment's summary and
        conclusion, exact where it says so) and `headline`.

    Raises:
        InputError: the folder cannot be written.
    """
    hook = getattr(checks[finding.check], "reproduce", None) if finding.check in checks else None
    wanted = hook(finding) if hook is not None else None
    if wanted is None:
        return None
    path = os.path.normpath(os.path.join(folder, f"reproduce-{finding.check}.json"))
    check_writable(path, "--reproduce")
    config = jobs.configure(wanted["experiment"], values=wanted["set"])
    write(path, dumps(dict(wanted["set"])) + "\n")
    result = execute(wanted["experiment"], config, SEED)
    return {
        "check": finding.check,
        "experiment": wanted["experiment"],
        "set": dict(wanted["set"]),
        "file": path,
        "command": f"python -m labs.run --experiment {wanted['experiment']} --config {path} --seed {SEED}",
        "lines": [*result.summary, *([result.conclusion] if result.conclusion else [])],
        "headline": dict(result.headline),
    }
