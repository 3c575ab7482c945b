"""The Chinese README has the commands, figures and numbers of the English one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENGLISH = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")


def commands(text: str) -> set[str]:
    """Every command line, in a block or in a sentence, without the choice of language."""
    blocks = re.findall(r"```(?:bash|text|python)\n(.*?)```", text, re.DOTALL)
    lines = {line.strip() for block in blocks for line in block.splitlines() if line.strip()}
    lines |= set(re.findall(r"`((?:python|labs|VERL)[^`]*)`", text))
    return {line.replace(" --lang zh", "") for line in lines}


def test_the_chinese_readme_has_every_command() -> None:
    assert len(commands(ENGLISH)) >= 8
    missing = commands(ENGLISH) - commands(CHINESE)
    assert not missing, f"README.zh-CN.md lacks {sorted(missing)}"


def test_the_chinese_readme_has_the_same_pictures() -> None:
    pictures = [re.findall(r"!\[[^\]]*\]\(([^)]*)\)", text) for text in (ENGLISH, CHINESE)]
    assert pictures[0] == pictures[1]


def test_links_to_files_lead_somewhere() -> None:
    for target in re.findall(r"(?<!!)\[[^\]]*\]\(([^)#]+)\)", CHINESE):
        assert (ROOT / target).exists(), target
