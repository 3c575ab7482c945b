"""What a check names to show a fault again is an experiment of the lab that takes those settings and runs."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from labs.experiment import execute
from labs.registry import checks, experiments
from labs.settings import build
from tests.test_checks import BAD, MODULES, findings

#: Checks whose faults lie outside of what the lab computes: files, formats, engines that give no number.
WITHOUT = {"file_integrity", "non_finite", "reward_parts", "reward_verifier", "score_sums", "step_order"}


@cache
def named() -> dict[str, set[str]]:
    """Every configuration that a finding on a bad example names, as JSON, and the checks that name it."""
    made: dict[str, set[str]] = {}
    for name, example in BAD:
        module = MODULES[name]
        if hasattr(module, "reproduce"):
            for finding in findings(name, module.BAD[example]()):
                wanted = module.reproduce(finding)
                if wanted is not None:
                    made.setdefault(json.dumps(wanted, sort_keys=True), set()).add(name)
    return made


def test_every_check_but_those_of_files_can_be_reproduced() -> None:
    reproduced = set().union(*named().values())
    assert reproduced | WITHOUT == set(checks)
    assert not reproduced & WITHOUT


def test_settings_are_accepted_as_they_are() -> None:
    for text in named():
        wanted = json.loads(text)
        assert set(wanted) == {"experiment", "set"}
        build(experiments[wanted["experiment"]].Config, wanted["set"])


@pytest.mark.slow
def test_settings_run() -> None:
    for text in named():
        wanted: dict[str, Any] = json.loads(text)
        module = experiments[wanted["experiment"]]
        quick = {**getattr(module, "TINY", {}), **wanted["set"]}
        result = execute(wanted["experiment"], build(module.Config, quick), 7)
        assert result.headline, text
