"""Look at this machine: what is installed, what is missing and how to get it, and which file cannot be imported."""

from __future__ import annotations

from collections.abc import Iterator

import click


@click.command(short_help=__doc__)
def command() -> int:
    """Check Python, packages, the checkout and the results folder; exit code 1 when something will not work."""
    bad = False
    for level, what, text in (*_python(), *_packages(), *_checkout(), *_entries(), *_results()):
        bad |= level == "bad"
        click.echo(f"{level:<5} {what:<12} {text}")
    click.echo("\nsomething will not work; see the lines that begin with bad" if bad else "\nall is well")
    return int(bad)


Finding = tuple[str, str, str]


def _python() -> Iterator[Finding]:
    import os
    import sys

    version = sys.version.split()[0]
    good = sys.version_info >= (3, 11)
    yield "ok" if good else "bad", "python", version + ("" if good else "; the lab needs 3.11 or newer")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield "ok", "cores", f"{cores}; --seeds uses one process each"


def _packages() -> Iterator[Finding]:
    """Every requirement of the lab against what is installed; extras are notes."""
    import re
    from importlib import metadata

    try:
        required = metadata.requires("tabular-agent-rl-lab") or []
    except metadata.PackageNotFoundError:
        yield "bad", "lab", "not installed; run pip install -e . in the checkout"
        return
    for requirement in sorted(required, key=lambda text: ("extra" in text, text)):
        match = re.match(r"[A-Za-z0-9._-]+", requirement)
        name = match[0] if match else requirement
        wanted, _, marker = requirement.partition(";")
        extra = re.search(r"extra == ['\"](\w+)['\"]", marker)
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            if extra is None:
                yield "bad", name, f"missing; run pip install '{wanted.strip()}'"
            else:
                yield "note", name, f"not installed; pip install -e '.[{extra[1]}]' brings it"
            continue
        lowest = re.search(r">=([0-9.]+)", wanted)
        old = lowest is not None and _numbers(version) < _numbers(lowest[1])
        if old:
            yield "bad", name, f"{version} is too old; run pip install -U '{wanted.strip()}'"
        elif name == "torch" and "+cpu" not in version and _has_cuda_packages():
            yield "note", name, f"{version}, a CUDA build; the lab needs the CPU build only, which is gigabytes smaller"
        elif extra is None:
            yield "ok", name, version


def _numbers(version: str) -> tuple[int, ...]:
    import re

    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])


def _has_cuda_packages() -> bool:
    from importlib import metadata

    return any((d.metadata["Name"] or "").startswith("nvidia-") for d in metadata.distributions())


def _checkout() -> Iterator[Finding]:
    """The generic names `envs` and `experiments` have to be the checkout's own."""
    import importlib.util
    import os
    import shutil

    from labs.stamp import CODE, ROOT, code

    for name in CODE[1:]:
        spec = importlib.util.find_spec(name)
        place = os.path.dirname(spec.origin or "") if spec is not None else "nowhere"
        good = place == os.path.join(ROOT, name)
        hint = "" if good else f"; it should be {os.path.join(ROOT, name)}: another package of that name comes first"
        yield "ok" if good else "bad", name, place + hint
    said = code()
    if shutil.which("git") is None:
        yield "note", "git", "not installed; stamps will not name the commit"
    elif said["commit"] is None:
        yield "note", "git", f"{ROOT} is no git checkout; stamps will not name the commit"
    else:
        yield "ok", "git", f"commit {said['commit'][:12]}" + (", with changes" if said["dirty"] else "")


def _entries() -> Iterator[Finding]:
    """Every file of the registries can be imported."""
    import warnings

    from labs.registry import KINDS

    for plural, registry in KINDS.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sound = registry.sound()
        broken = [str(each.message) for each in caught if str(each.message).startswith("passed over: ")]
        for sentence in broken:
            yield "bad", plural, sentence.removeprefix("passed over: ")
        if not broken:
            yield "ok", plural, f"{len(sound)}, all can be imported"


def _results() -> Iterator[Finding]:
    import os
    import shutil

    place = os.path.abspath("results")
    parent = place if os.path.isdir(place) else os.path.dirname(place)
    free = shutil.disk_usage(parent).free / 2**20
    if not os.access(parent, os.W_OK):
        yield "bad", "results", f"{parent} cannot be written; use --results DIR"
    elif free < 100:
        yield "bad", "results", f"only {free:.0f} MiB free at {parent}"
    else:
        yield "ok", "results", f"{place}, {free / 1024:.1f} GiB free"
