"""Do the simulator's tests have power? Switch its checks off, one at a time.

    python tools/mutate_checks.py                     # all checks, some minutes
    python tools/mutate_checks.py --only psum-bank    # a rule, or part of a place
    python tools/mutate_checks.py --list

A check is found in the source of dslearn/sim, three kinds of it: a `raise`; one of the conditions
that are joined by `or` in front of a `raise`; a call of a function that only checks. All of them
get a switch while the modules are imported. The tests of tests/sim run once and tell which check
refused something in which test; then, for every check, those tests run with it off, each time in a
process of its own, until one fails. Exit code 0: every check was noticed; 1: one was not; 2: wrong
arguments. Needs `os.fork`: Linux or macOS.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

from sim_checks import OTHERS, SWITCH, Check, switched

ROOT = Path(__file__).resolve().parents[1]
TESTS = [str(p) for p in sorted((ROOT / "tests" / "sim").iterdir()) if p.name not in OTHERS]
QUIET = ("-q", "--no-header", "--tb=no", "--disable-warnings", "-p", "no:cacheprovider",
         "-p", "no:randomly", "-p", "no:xdist", f"--rootdir={ROOT}")  # fmt: skip
SECONDS = 120  # for the tests of one check


class Switch:
    """What the changed modules call: `off` is the number of the check that does nothing."""

    def __init__(self) -> None:
        self.off = -1
        self.test = ""
        self.hits: dict[int, dict[str, None]] = defaultdict(dict)

    def on(self, number: int) -> bool:
        """Whether check `number` is in force."""
        return self.off != number

    def refuses(self, number: int) -> bool:
        """The same, noting that the running test got here."""
        if self.on(number):
            self.hits[number][self.test] = None
        return self.on(number)

    def holds(self, number: int, value: Any) -> Any:
        """A condition's value, noting where it is true."""
        if value:
            self.hits[number][self.test] = None
        return value


class Loader(SourceFileLoader):
    """Loads a file of the simulator with its switches."""

    codes: dict[str, CodeType]
    switch: Switch

    def get_code(self, fullname: str) -> CodeType:
        """The changed code."""
        return self.codes[self.path]

    def exec_module(self, module: ModuleType) -> None:
        """Give the module the switch before it runs."""
        setattr(module, SWITCH, self.switch)
        super().exec_module(module)


class Importer(MetaPathFinder):
    """Finds the files of the simulator before anybody else does."""

    def __init__(self, codes: dict[str, CodeType], switch: Switch) -> None:
        self.loader = type("Switched", (Loader,), {"codes": codes, "switch": switch})

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The usual place, with the other loader."""
        spec = PathFinder.find_spec(name, path) if name.startswith("dslearn.sim") else None
        if spec is None or spec.origin not in self.loader.codes:
            return None
        spec.loader = self.loader(name, spec.origin)
        return spec


class Watcher:
    """A plugin of pytest: tells the switch which test runs."""

    def __init__(self, switch: Switch) -> None:
        self.switch = switch

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Called before each test."""
        self.switch.test = item.nodeid


def run(arguments: Sequence[str], plugins: Sequence[object] = ()) -> int:
    """pytest in this process, silent: exit code."""
    saved, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        return int(pytest.main([*QUIET, *arguments], plugins=list(plugins)))
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)
        os.close(nowhere)


def verdict(number: int, check: Check, switch: Switch) -> str:
    """Whether one of the tests that saw the check refuse fails without it, or never ends."""
    child = os.fork()
    if not child:
        signal.alarm(SECONDS)  # ends the process: two cores may wait for each other for ever
        switch.off = number
        os._exit(run(["-x", *check.tests]))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {0: "SURVIVED", 1: "noticed", -signal.SIGALRM: "noticed"}.get(code, f"NOT RUN ({code})")


def work(wanted: Sequence[str], tests: Sequence[str]) -> Iterator[Check]:
    """Every check whose text contains one of `wanted` (all without), with its verdict."""
    found, codes = switched()
    switch = Switch()
    sys.meta_path.insert(0, Importer(codes, switch))
    code = run(tests, [Watcher(switch)])
    if code:
        raise SystemExit(f"the tests fail ({code}) before a check is off: repair that first")
    for number, check in enumerate(found):
        if wanted and not any(word in str(check) for word in wanted):
            continue
        check.tests = list(switch.hits[number])
        if check.tests:
            check.verdict = verdict(number, check, switch)
        yield check


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, work, report; -> exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", action="append", default=[], help="a rule, or part of a place")
    parser.add_argument("--tests", action="append", help="test files, by default tests/sim")
    parser.add_argument("--list", action="store_true", help="print the checks and stop")
    options = parser.parse_args(arguments)
    chosen = [
        c for c in switched()[0] if not options.only or any(w in str(c) for w in options.only)
    ]
    if not chosen:
        parser.error(f"no check's place or rule contains {' or '.join(options.only)}; try --list")
    if options.list:
        print("\n".join(map(str, chosen)))
        return 0
    sys.path.insert(0, str(ROOT))
    done = []
    for check in work(options.only, options.tests or TESTS):
        done.append(check)
        if check.verdict != "noticed":
            print(f"{check.verdict:<11} {check}", flush=True)
    print("\n" + table(done))
    left = sum(check.verdict != "noticed" for check in done)
    print(f"\n{len(done) - left} of {len(done)} checks noticed")
    return 1 if left else 0


def table(done: Sequence[Check]) -> str:
    """One row per rule: its checks, and how many the tests noticed."""
    rows: dict[str, list[Check]] = defaultdict(list)
    for check in done:
        rows[check.rule or "several"].append(check)
    lines = ["| rule | checks | noticed |", "|---|---|---|"]
    for rule, checks in sorted(rows.items()):
        lines.append(f"| {rule} | {len(checks)} | {sum(c.verdict == 'noticed' for c in checks)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
