"""Every command of COMPLAINTS.md prints what stands there."""

import re

import pytest

from tests import complaints

BLOCKS = list(complaints.blocks())
#: Answered in a fraction of a second each; 0 are the course's own tasks.
QUICK = {0, 14, 18}
#: Said to be out of reach, with a reason.
OUT_OF_REACH = {6, 12, 15}


def test_all_twenty_are_answered_or_said_to_be_out_of_reach():
    answered = {number for number, _, _ in BLOCKS if number}
    assert answered | OUT_OF_REACH == set(range(1, 21))
    assert not answered & OUT_OF_REACH
    last = complaints.FILE.read_text(encoding="utf-8").split("## What these rules cannot express")[1]
    assert {int(n) for n in re.findall(r"^- (\d+) ", last, re.M)} == OUT_OF_REACH


@pytest.mark.parametrize(("number", "command", "output"), [b for b in BLOCKS if b[0] in QUICK])
def test_a_quick_answer_is_what_the_command_prints(number, command, output, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert complaints.said(command) == output
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("number", "command", "output"), [b for b in BLOCKS if b[0] not in QUICK])
def test_an_answer_is_what_the_command_prints(number, command, output):
    assert complaints.said(command) == output
