"""Do the tests have power? Break one thing at a time in a copy of the package and run them.

    python tools/mutate.py                     # all of tools/mutations.toml, some minutes
    python tools/mutate.py --only sink --only "top-k one less"
    python tools/mutate.py --list

Each mutation is a piece of text that is replaced in a temporary copy; the tests named beside it
run there until the first one fails. A line is printed per mutation and a table at the end. Exit
code 0: every mutation was noticed; 1: one survived, or could not be run; 2: wrong arguments.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tools" / "mutations.toml"
TESTS = "tests/model"
TWIN = ("test_twin.py::test_every_logit_agrees_where_nothing_is_quantised",)
COPIED = ("dslearn", "tests", "pyproject.toml")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "tiny", "*.safetensors")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.M)


@dataclass(frozen=True)
class Mutation:
    """Replace `old` by `new` in `dslearn/<file>`; one of `tests` below tests/model must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = TWIN


@dataclass(frozen=True)
class Outcome:
    """What the tests said: "killed", "SURVIVED" or "NOT RUN", and the test that failed first."""

    mutation: Mutation
    verdict: str
    test: str
    seconds: float


def read_list() -> list[Mutation]:
    """The committed list."""
    raw = tomllib.loads(LIST.read_text(encoding="utf-8"))["mutation"]
    return [Mutation(**row | {"tests": tuple(row.get("tests", TWIN))}) for row in raw]


def copy_project(target: Path) -> Path:
    """The package and its tests in a new directory, without weights and caches."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=LEFT_OUT)
        else:
            shutil.copy(source, target / name)
    return target


def mutated(text: str, mutation: Mutation) -> str:
    """`text` with the mutation in it; ValueError unless its old text is there exactly once."""
    count = text.count(mutation.old)
    if count != 1:
        raise ValueError(
            f"{mutation.name!r}: {mutation.old!r} occurs {count} times in {mutation.file}, must be "
            "once: bring tools/mutations.toml up to date"
        )
    return text.replace(mutation.old, mutation.new)


def run_tests(project: Path, tests: Sequence[str]) -> tuple[int, str]:
    """pytest in `project` until the first failure: exit code and output."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
    command += ["-p", "no:randomly", f"--rootdir={project}", "-c", str(project / "pyproject.toml")]
    ran = subprocess.run(
        [*command, *(f"{TESTS}/{test}" for test in tests)],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
    )
    return ran.returncode, ran.stdout + ran.stderr


def try_one(project: Path, mutation: Mutation) -> Outcome:
    """Put the mutation into the copy, run its tests, take it out again."""
    path = project / "dslearn" / mutation.file
    original, began = path.read_text(encoding="utf-8"), time.monotonic()
    path.write_text(mutated(original, mutation), encoding="utf-8")
    try:
        code, output = run_tests(project, mutation.tests)
    finally:
        path.write_text(original, encoding="utf-8")
    failed = FAILED.search(output)
    if code == 1 and failed:
        verdict, test = "killed", failed.group(1)
    elif code == 0:
        verdict, test = "SURVIVED", ""
    else:  # a mutation that does not even import says nothing about the tests
        verdict, test = "NOT RUN", output.strip().splitlines()[-1]
    return Outcome(mutation, verdict, test, time.monotonic() - began)


def chosen(names: Sequence[str]) -> list[Mutation]:
    """Mutations whose name contains one of `names`; all without names."""
    return [m for m in read_list() if not names or any(name in m.name for name in names)]


def work(mutations: Sequence[Mutation]) -> list[Outcome]:
    """Try them one after another in one copy, with a line of progress each."""
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        project = copy_project(Path(folder))
        unbroken = sorted({test for mutation in mutations for test in mutation.tests})
        print(f"the copy without a mutation: {len(unbroken)} test modules ...", flush=True)
        code, output = run_tests(project, unbroken)
        if code:
            print(output)
            raise SystemExit("the tests fail before anything is broken: repair that first")
        for number, mutation in enumerate(mutations, 1):
            outcomes.append(try_one(project, mutation))
            last = outcomes[-1]
            print(
                f"[{number}/{len(mutations)}] {last.verdict:<8} {mutation.name} "
                f"({last.seconds:.0f} s)",
                flush=True,
            )
    return outcomes


def table(outcomes: Sequence[Outcome]) -> str:
    """One row per mutation: name, file, verdict, first test that failed."""
    lines = ["| mutation | file | verdict | noticed first by |", "|---|---|---|---|"]
    lines += [
        f"| {o.mutation.name} | {o.mutation.file} | {o.verdict} | {o.test.split('/')[-1]} |"
        for o in outcomes
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, work, report; -> exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", action="append", default=[], help="part of a mutation's name")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    options = parser.parse_args(arguments)
    mutations = chosen(options.only)
    if not mutations:
        parser.error(f"no mutation's name contains {' or '.join(options.only)}; try --list")
    if options.list:
        print("\n".join(mutation.name for mutation in mutations))
        return 0
    outcomes = work(mutations)
    print("\n" + table(outcomes))
    left = [o.mutation.name for o in outcomes if o.verdict != "killed"]
    print(f"\n{len(outcomes) - len(left)} of {len(outcomes)} mutations noticed")
    if left:
        print("not noticed: " + ", ".join(left))
    return 1 if left else 0


if __name__ == "__main__":
    raise SystemExit(main())
