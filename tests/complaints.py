"""The commands of `labs/pipeline/COMPLAINTS.md` and their outputs; `python -m tests.complaints` writes them again."""

import re
import shlex
from pathlib import Path

from tests.command_line import run

FILE = Path(__file__).resolve().parent.parent / "labs" / "pipeline" / "COMPLAINTS.md"
_BLOCK = re.compile(r"```console\n\$ (python -m labs .*)\n((?:.*\n)*?)```\n")


def blocks():
    """`(number of the complaint, command, output)` of every block of the file."""
    text = FILE.read_text(encoding="utf-8")
    heads = [(match.start(), int(match[1])) for match in re.finditer(r"^## (\d+)\. ", text, re.M)]
    for match in _BLOCK.finditer(text):
        number = max((head for head in heads if head[0] < match.start()), default=(0, 0))[1]
        yield number, match[1], match[2]


def said(command):
    """What a command prints, on both streams, as a terminal would show it."""
    found = run(*shlex.split(command)[3:], whole=True)
    return found.out + found.err


def main():
    text = FILE.read_text(encoding="utf-8")
    FILE.write_text(_BLOCK.sub(lambda m: f"```console\n$ {m[1]}\n{said(m[1])}```\n", text), encoding="utf-8")


if __name__ == "__main__":
    main()
