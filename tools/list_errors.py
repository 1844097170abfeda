"""Write docs/errors.md: every message that dslearn raises, where, and what to do.

    python tools/list_errors.py            # regenerate the page
    python tools/list_errors.py --check    # exit 1 when it is out of date

The messages come from the source (`raise SomeError("...")`, found by AST), so the page cannot miss
one. A helper that raises what its caller words is followed to its calls in the same file. The
last column is written by hand: the script keeps what is there, and gives new rows a default.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "errors.md"
CLASSES: dict[str, tuple[str, str]] = {
    "UsageError": ("arguments that make no sense", "Correct the argument named."),
    "ConfigError": ("a `config.json` that is not implemented or contradicts itself",
                    "Compare the field with the released `config.json`."),
    "CheckpointError": ("a directory whose tensors are not what its config says",
                        "Run `dslearn inspect DIR`; fetch again or rename what is listed."),
    "FormatError": ("numbers, blocks or tiles that the format cannot hold",
                    "Check shapes and dtypes at the call that is named last."),
    "StateError": ("a decoding state used past what it holds or remembers",
                   "Make a new state with a larger `max_len`, or roll back less far."),
    "BackendError": ("a backend that was asked for and cannot serve",
                     "`dslearn doctor` shows which backends this installation has."),
    "GraphError": ("a region that cannot be compiled as it stands, or not any more",
                   "See [regions](regions.md#when-a-region-is-refused)."),
    "KernelError": ("a kernel or its arguments that the hardware has no place for",
                    "See [kernels](kernels.md)."),
    "RuleError": ("a kernel that does what the hardware refuses; also an `AssertionError`",
                  "The rule it names is in [kernels](kernels.md#what-each-refusal-means)."),
    "BoundsError": ("an index or access pattern that leaves its tensor; also an `IndexError`",
                    "See [bounds](kernels.md#bounds)."),
    "ArgumentError": ("a call that the kernel language does not have; also a `TypeError`",
                      "See [arguments](kernels.md#arguments) and [register](kernels.md#register)."),
    "NkiValidationError": ("a launch, or a pair of cores, that is not valid",
                           "See [two cores](kernels.md#refusals-two-cores)."),
    "NotSupportedError": ("what trn2 or the stand-in does not do; also a `NotImplementedError`",
                          "See [NKI on Trainium2](reference/nki.md#not-on-trn2)."),
    "UnknownNameError": ("a name that NKI 0.6 does not have; also an `AttributeError`",
                         "See [name](kernels.md#name)."),
    "AttributeError": ("a name that does not exist", "Check the spelling; `dir` lists names."),
}  # fmt: skip
HEAD = """# Errors

Every message that dslearn raises, from the source. `{x}` stands for a value. All classes but
`AttributeError` derive from `dslearn.errors.DslearnError`, itself a `ValueError`; on the command
line the text alone appears, with exit code 2. Symptoms that are not errors of dslearn itself are
in [troubleshooting](troubleshooting.md).

Written by `python tools/list_errors.py`; the last column is edited by hand and kept.
"""


@dataclass(frozen=True, order=True)
class Message:
    """One message: its class, its text with `{expression}` for values, the module that raises."""

    kind: str
    template: str
    where: str
    rule: str = ""  # of a kernel's refusal: its section in docs/kernels.md


def template(node: ast.expr, given: dict[str, str] | None = None) -> str:
    """Text of a message expression; names in `given` are replaced by their text."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part, given) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return template(node.value, given) if _known(node.value, given) else _hole(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left, given) + template(node.right, given)
    if _known(node, given):
        assert isinstance(node, ast.Name) and given, "a known expression is a name"
        return given[node.id]
    return _hole(node)


def _known(node: ast.expr, given: dict[str, str] | None) -> bool:
    return isinstance(node, ast.Name) and bool(given) and node.id in (given or {})


def _hole(node: ast.expr) -> str:
    return "{" + ast.unparse(node) + "}"


def messages(package: Path = ROOT / "dslearn") -> list[Message]:
    """Every message raised below `package`, sorted by class, text and module."""
    found: set[Message] = set()
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package.parent).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bases = _bases(tree)
        for kind, text, rule in _in_module(tree):
            found.add(Message(bases.get(kind, kind), text, where, rule))
    return sorted(found)


def _bases(tree: ast.Module) -> dict[str, str]:
    """Exception classes that a module defines for itself -> the public class they refine."""
    classes = (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.bases)
    pairs = ((c.name, ast.unparse(c.bases[0])) for c in classes)
    return {name: base for name, base in pairs if base in CLASSES}


def _in_module(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    for node in ast.walk(tree):
        raised = node.exc if isinstance(node, ast.Raise) else getattr(node, "value", None)
        if not isinstance(node, ast.Raise | ast.Return):
            continue
        if not (isinstance(raised, ast.Call) and raised.args):
            continue
        kind = ast.unparse(raised.func).rpartition(".")[2]
        if not kind.endswith("Error"):
            continue
        inside = [f for f in functions if f.lineno <= node.lineno <= (f.end_lineno or 0)]
        worded = _worded_by_caller(inside[-1], raised.args[0]) if inside else []
        calls = _calls(tree, inside[-1].name) if worded else []
        for call in calls:
            yield kind, template(raised.args[0], _arguments(inside[-1], call)), _rule(raised)
        if not calls:
            yield kind, template(raised.args[0]), _rule(raised)


def _rule(raised: ast.Call) -> str:
    """The rule that an exception of `dslearn.sim.rules` names, '' if it names none here."""
    given = [k.value for k in raised.keywords if k.arg == "rule"] or raised.args[1:2]
    constant = given and isinstance(given[0], ast.Constant)
    return str(ast.literal_eval(given[0])) if constant else ""


def _worded_by_caller(function: ast.FunctionDef, message: ast.expr) -> list[str]:
    """Parameters that carry the words: a message made of nothing but them and punctuation."""
    names = [a.arg for a in function.args.args]
    used = [n.id for n in ast.walk(message) if isinstance(n, ast.Name) and n.id in names]
    words = re.sub(r"\{[^}]*\}", "", template(message))
    return used if used and not re.search(r"\w", words) else []


def _calls(tree: ast.Module, name: str) -> list[ast.Call]:
    calls = (n for n in ast.walk(tree) if isinstance(n, ast.Call))
    return [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == name]


def _arguments(function: ast.FunctionDef, call: ast.Call) -> dict[str, str]:
    names = [a.arg for a in function.args.args]
    pairs = [*zip(names, call.args, strict=False)]
    pairs += [(k.arg, k.value) for k in call.keywords if k.arg]
    return {name: template(value) for name, value in pairs}


def read_advice(text: str) -> dict[tuple[str, str], str]:
    """The hand-written column of an existing page: (class, message cell) -> advice."""
    advice, kind = {}, ""
    for line in text.splitlines():
        if line.startswith("## "):
            kind = line[3:].strip()
        cells = re.split(r"(?<!\\)\|", line)
        if len(cells) == 5 and not cells[1].startswith(("---", " message")):
            advice[kind, cells[1].strip()] = cells[3].strip()
    return advice


def cell(text: str) -> str:
    """`text` as inline code in a table cell, whatever backticks and bars it holds."""
    fence = "``" if "`" in text else "`"
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{' '.join(text.split())}{pad}{fence}".replace("|", "\\|")


def render(found: list[Message], advice: dict[tuple[str, str], str]) -> str:
    """The page: a section per class, a row per message."""
    order = [*CLASSES, *sorted({m.kind for m in found} - set(CLASSES))]
    parts = [HEAD]
    now = {(m.kind, cell(m.template)) for m in found}
    lost = {key: todo for key, todo in advice.items() if key not in now}
    for kind in order:
        texts = sorted({m.template for m in found if m.kind == kind})
        if not texts:
            continue
        what, default = CLASSES.get(kind, ("", "Read the message: it names the rule."))
        parts.append(f"\n## {kind}\n\n{what[:1].upper()}{what[1:]}.\n")
        parts.append("\n| message | raised in | what to do |\n|---|---|---|\n")
        for text in texts:
            homes = [f"`{m.where}`" for m in found if (m.kind, m.template) == (kind, text)]
            rules = {m.rule for m in found if (m.kind, m.template) == (kind, text)} - {""}
            usual = f"See [{min(rules)}](kernels.md#{min(rules)})." if rules else default
            todo = advice.get((kind, cell(text))) or _reworded(kind, cell(text), lost) or usual
            parts.append(f"| {cell(text)} | {', '.join(homes)} | {todo} |\n")
    return "".join(parts)


def _reworded(kind: str, text: str, lost: dict[tuple[str, str], str]) -> str | None:
    """Advice of a message that is gone and read almost like `text`: it was reworded."""
    texts = [old for old_kind, old in lost if old_kind == kind]
    close = difflib.get_close_matches(text, texts, n=1, cutoff=0.8)
    return lost[kind, close[0]] if close else None


def main() -> int:
    """Write the page, or with --check compare it."""
    parser = argparse.ArgumentParser(description="list every message dslearn raises")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    old = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    found = messages()
    new = render(found, read_advice(old))
    if check and new != old:
        print("docs/errors.md is out of date: python tools/list_errors.py", file=sys.stderr)
        return 1
    if not check:
        PAGE.write_text(new, encoding="utf-8")
    print(f"{len(found)} messages, {len(new.splitlines())} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
