"""Runs mutants inside one collected pytest session: a fork each, its tests in order of their time, until one fails.

mutmut's own runner starts and collects pytest for every mutant, which takes longer than the tests that kill it. The
mutants, the switch between them (`MUTANT_UNDER_TEST`) and which tests reach which function are mutmut's.
"""

import json
import math
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

SURVIVED, KILLED, UNREACHED = 0, 1, 33


class Runner:
    """A pytest plugin in place of the loop over tests.

    Args:
        mutants: names as mutmut gives them.
        stats: mutmut's record of which tests reach which function, and how long they take.
        children: processes at a time.
    """

    def __init__(self, mutants: list[str], stats: dict[str, Any], children: int) -> None:
        self.mutants, self.stats, self.children = mutants, stats, children
        self.verdicts: dict[str, int] = {}
        self.running: dict[int, str] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run every mutant; the tests were collected and passed before."""
        items = {item.nodeid: item for item in session.items}
        seconds, reach = self.stats["duration_by_test"], self.stats["tests_by_mangled_function_name"]
        for mutant in self.mutants:
            tests = sorted(reach.get(function(mutant), ()), key=lambda test: seconds.get(test, 0.0))
            chosen = [items[test] for test in tests if test in items]
            if not chosen:
                self.verdicts[mutant] = UNREACHED
                continue
            while len(self.running) >= self.children:
                self.collect()
            limit = 20 + math.ceil(10 * sum(seconds.get(item.nodeid, 0.0) for item in chosen))
            pid = os.fork()
            if pid == 0:
                child(session, mutant, chosen, limit)
            self.running[pid] = mutant
        while self.running:
            self.collect()
        return True

    def collect(self) -> None:
        """Wait for one child; a negative number is the signal that ended it."""
        pid, status = os.wait()
        self.verdicts[self.running.pop(pid)] = os.waitstatus_to_exitcode(status)


def function(mutant: str) -> str:
    """The mutated function of a mutant."""
    return mutant.replace("__init__.", "").rpartition("__mutmut_")[0]


def child(session: pytest.Session, mutant: str, items: list[Any], limit: int) -> None:
    """Run the tests under a mutant and end the process: 1 when one fails."""
    os.environ["MUTANT_UNDER_TEST"] = mutant.replace("__init__.", "")
    used = math.ceil(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used + limit, used + limit + 1))
    code = SURVIVED
    try:
        for item, following in zip(items, [*items[1:], None], strict=True):
            reports = runtestprotocol(item, log=False, nextitem=following)
            if any(report.failed for report in reports):
                code = KILLED
                break
    except BaseException:
        code = KILLED
    os._exit(code)


def main() -> int:
    """`mutation_runner.py NAMES.json OUT.json CHILDREN PYTEST_ARGUMENT...`, in mutmut's folder `mutants`."""
    names, out, children, *arguments = sys.argv[1:]
    sys.path.insert(0, os.getcwd())
    os.environ["MUTANT_UNDER_TEST"] = ""
    stats = json.loads(Path("mutmut-stats.json").read_text())
    runner = Runner(json.loads(Path(names).read_text()), stats, int(children))
    arguments += ["-q", "--rootdir=.", "-p", "no:cacheprovider", "--capture=no"]
    code = int(pytest.main(arguments, plugins=[runner]))
    Path(out).write_text(json.dumps(runner.verdicts))
    return 0 if len(runner.verdicts) == len(runner.mutants) else code or 1


if __name__ == "__main__":
    sys.exit(main())
