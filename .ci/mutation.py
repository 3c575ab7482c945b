"""Mutation run over the algorithm layer: mutmut in a copy of the checkout, judged by `tests/mutation/survivors.md`.

    python .ci/mutation.py [PART ...] [--sample N] [--work FOLDER] [--children N] [--list]

PART is one of masked, kl, correction, losses, advantages (default: all). mutmut leaves decorated functions alone, and
every entry of a registry is decorated; so in the copy each `@decorator` above a function becomes an assignment below
it, which means the same to Python. Sentences of errors and `Metric(...)` declarations are not mutated (see
`[tool.mutmut]`). `--sample` draws that many mutants of each part at random (always the same) and states the interval
of the share that is killed. A folder given by `--work` keeps the copy between runs.

Exit code 1: a part has less than 90 % of its mutants killed. Survivors that nobody has judged are printed: kill or list
them.
"""
# ruff: noqa: T201

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "mutation" / "survivors.md"
#: Part -> its files, and the tests that belong to it. Other tests that reach it kill nothing more and cost minutes.
PARTS = {
    "masked": ("labs/masked.py", "masked golden"),
    "kl": ("labs/kl.py", "kl golden losses_trl"),
    "correction": ("labs/correction/*.py", "correction golden"),
    "losses": ("labs/losses/*.py", "losses losses_trl losses_whole golden"),
    "advantages": (
        "labs/advantages/*.py",
        "advantages advantages_contract advantages_dispatch advantages_recursion advantages_trl golden",
    ),
}
NEEDED = 0.90
#: How a mutant ended (see `mutation_runner.py`). One that runs out of time or out of the process is noticed as well as
#: by a failing test; one that no test reaches counts as a survivor.
KILLED, SLOW = {1}, {-24, -11, -9, -6}


def undecorated(source: str) -> str:
    """The same module with the decorators of its functions as assignments below them.

    mutmut puts mutants of a class method next to it, under names with a letter that is not ASCII; the table of presets,
    which is read off a class, must not take them for presets.
    """
    table = "isinstance(attribute, classmethod)"
    lines = source.replace(f"if {table}\n", f"if {table} and name.isascii()\n").splitlines(keepends=True)
    for node in reversed(ast.parse(source).body):
        if not isinstance(node, ast.FunctionDef) or not node.decorator_list:
            continue
        call = node.name
        for decorator in reversed(node.decorator_list):
            call = f"{ast.unparse(decorator)}({call})"
        lines[node.end_lineno : node.end_lineno] = [f"\n\n{node.name} = {call}\n"]
        first = node.decorator_list[0].lineno - 1
        lines[first : node.lineno - 1] = ["\n"] * (node.lineno - 1 - first)
    return "".join(lines)


def copy(work: Path) -> None:
    """The tracked files into `work`, written only where they differ, so that mutmut sees what changed."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    mutated = {path for pattern, _ in PARTS.values() for path in ROOT.glob(pattern)}
    for name in filter(None, tracked.split("\0")):
        source, target = ROOT / name, work / name
        if not source.is_file():
            continue
        data = undecorated(source.read_text()).encode() if source in mutated else source.read_bytes()
        if not target.is_file() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            (work / "mutants" / name).unlink(missing_ok=True)


def mutants(work: Path, part: str) -> list[str]:
    """The names of the mutants of a part."""
    metas = sorted((work / "mutants").glob(PARTS[part][0] + ".meta"))
    return [name for meta in metas for name in json.loads(meta.read_text())["exit_code_by_key"]]


def prepare(work: Path) -> None:
    """Let mutmut write all mutants and find out which tests reach them (a run of one mutant does both)."""
    command = [tool("mutmut"), "run", "--max-children", "1", "labs.kl.x__k1__mutmut_1"]
    logged(command, work, work / "mutmut.log")


def run(work: Path, part: str, chosen: list[str], children: int) -> dict[str, int]:
    """How each of the chosen mutants ended."""
    names, out = work / f"{part}-names.json", work / f"{part}-verdicts.json"
    names.write_text(json.dumps(chosen))
    tests = [f"tests/test_{name}.py" for name in PARTS[part][1].split()]
    runner = [sys.executable, str(ROOT / ".ci" / "mutation_runner.py"), str(names), str(out), str(children)]
    logged([*runner, "-n0", "--hypothesis-profile=mutation", *tests], work / "mutants", work / f"{part}.log")
    found: dict[str, int] = json.loads(out.read_text())
    return found


def logged(command: list[str], folder: Path, file: Path) -> None:
    """Run a command whose output goes to a file; where it fails the end of that is shown."""
    with open(file, "w+") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if subprocess.run(command, cwd=folder, stdout=log, stderr=log, env=environment).returncode:
            log.seek(0)
            sys.exit("\n".join([f"failed: {command}", *log.read().replace("\r", "\n").splitlines()[-40:]]))


def change(work: Path, mutant: str) -> str:
    """`labs/x.py function: old line -> new line` of a mutant."""
    shown = subprocess.run(
        [tool("mutmut"), "show", mutant], cwd=work, check=True, capture_output=True, text=True
    ).stdout
    lines = [line for line in shown.splitlines() if re.match(r"[-+](?![-+]{2} )", line)]
    old, new = ([line[1:].strip() for line in lines if line[0] == sign] for sign in "-+")
    module, _, name = mutant.rpartition(".")
    function = re.sub(r"^x_|__mutmut_\d+$", "", name).replace("xǁ", "").replace("ǁ", ".")
    return f"{module}.{function}: {' '.join(old)} -> {' '.join(new)}"


def tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def listed() -> Counter[str]:
    """The survivors that are known and judged, as often as they are listed."""
    text = LIST.read_text() if LIST.is_file() else ""
    return Counter(re.findall(r"^- `(labs\..*)`$", text, flags=re.MULTILINE))


def interval(killed: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z, p = 1.96, killed / n
    middle, half = p + z * z / (2 * n), z * ((p * (1 - p) + z * z / (4 * n)) / n) ** 0.5
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def report(work: Path, part: str, found: dict[str, int], known: Counter[str], write: bool) -> bool:
    """Print and judge what became of the mutants of a part."""
    every = mutants(work, part)
    killed = sum(code in KILLED for code in found.values())
    slow = sum(code in SLOW for code in found.values())
    alive = [mutant for mutant, code in found.items() if code not in KILLED | SLOW]
    changes = Counter(change(work, mutant) for mutant in alive)
    unknown = changes - known
    share = (killed + slow) / max(len(found), 1)
    drawn = f" drawn from {len(every)} (95 % interval {{:.1%}} to {{:.1%}})" if len(found) < len(every) else ""
    print(
        f"{part}: {len(found)} mutants{drawn.format(*interval(killed + slow, len(found)))}, {killed} killed by a test, "
        f"{slow} by the clock, {len(alive)} survived: {share:.1%} killed, needed {NEEDED:.0%}; "
        f"{sum(unknown.values())} of the survivors not in the list",
        flush=True,
    )
    for text in sorted((changes if write else unknown).elements()):
        print(f"- `{text}`" if write else f"  not listed: {text}", flush=True)
    return bool(found) and share >= NEEDED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="mutants of each part (default: all)")
    parser.add_argument("--work", type=Path, help="folder of the copy; kept (default: new, removed)")
    parser.add_argument("--children", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--list", action="store_true", help="print every survivor as a line for the list")
    options = parser.parse_args()
    parts = options.parts or list(PARTS)
    if wrong := [part for part in parts if part not in PARTS]:
        parser.error(f"no part {', '.join(wrong)}; parts are {', '.join(PARTS)}")
    work = (options.work or Path(tempfile.mkdtemp(prefix="mutation-"))).resolve()
    try:
        copy(work)
        known, good = listed(), True
        prepare(work)
        for part in parts:
            every = sorted(mutants(work, part))
            chosen = random.Random(0).sample(every, min(options.sample or len(every), len(every)))
            good &= report(work, part, run(work, part, chosen, options.children), known, options.list)
        return 0 if good else 1
    finally:
        if options.work is None:
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
