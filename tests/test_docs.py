"""The pages are true: links resolve, terms are defined, messages listed, sizes right."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tools import list_errors, readme_sizes

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
# Bold words that label a part of a page and are no terms.
LABELS = re.compile(
    r"prerequisites?|in this notebook you will learn|takeaway|summary|predict\b.*|exercise\b.*"
    r"|difficulty|figure\b.*|alt|break it.*|shapes?|note|warning|answer|question\b.*|claim"
    r"|library|kernels|next|time|minutes|try it|further reading|no trainium here"
)


def prose(path: Path) -> str:
    """Markdown of a page or of a notebook's text cells, without code blocks and inline code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as they are made on the usual hosts."""
    titles = re.findall(r"^#+ +(.+)$", prose_with_code(path), re.M)
    return {re.sub(r"[^\w\- ]", "", t.lower()).strip().replace(" ", "-") for t in titles}


def prose_with_code(path: Path) -> str:
    return re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)


def glossary() -> list[tuple[str, str, str]]:
    """Rows of the glossary: term, meaning, where to read on."""
    rows = [line.split("|") for line in GLOSSARY.splitlines() if line.startswith("| ")]
    return [(r[1].strip(), r[2].strip(), r[3].strip()) for r in rows[1:]]


def singular(term: str) -> str:
    """A term as it is looked up: lower case, no remark in brackets, no plural."""
    plain = re.sub(r"\s*\(.*?\)", "", " ".join(term.casefold().split())).strip(" .,:;!?")
    return re.sub(r"(?<=[^su])s$", "", plain)


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS], ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_are_relative_and_resolve(path):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if target.startswith(("attachment:", "data:")):
            continue
        if re.match(r"\w+:", target):
            broken.append(f"{target} leaves the repository")
            continue
        name, _, anchor = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        if not there.exists() or not there.is_relative_to(ROOT):
            broken.append(f"{target} does not exist")
        elif anchor and there.suffix == ".md" and anchor not in anchors(there):
            broken.append(f"{target}: no such heading")
    assert not broken, broken


def test_the_glossary_is_sorted_complete_and_points_somewhere():
    rows = glossary()
    assert len(rows) > 80
    terms = [term.casefold() for term, _, _ in rows]
    assert terms == sorted(terms), "sort the glossary"
    assert len(set(terms)) == len(terms), "a term is defined twice"
    for term, meaning, see in rows:
        assert len(meaning.split()) >= 2, f"{term}: say what it means"
        places = re.findall(r"`([^`]+)`", see)
        assert places, f"{term}: name a place"
        lost = [p for p in places if not any((base / p).exists() for base in HOMES)]
        assert not lost, f"{term}: {lost} does not exist"


HOMES = (ROOT / "dslearn", ROOT)


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS], ids=lambda p: p.relative_to(ROOT).as_posix())
def test_bold_terms_are_in_the_glossary(path):
    known = {singular(term) for term, _, _ in glossary()}
    bold = {singular(term) for term in re.findall(r"\*\*([^*\n]+)\*\*", prose(path))}
    words = {term for term in bold if re.search(r"[a-z]{2}", term)}
    lost = sorted(t for t in words - known if not LABELS.fullmatch(t))
    assert not lost, f"bold but not in docs/glossary.md: {lost}"


def test_errors_page_lists_every_message():
    page = list_errors.PAGE.read_text(encoding="utf-8")
    found = list_errors.messages()
    assert len(found) > 50
    for message in found:
        assert list_errors.cell(message.template) in page, f"not listed: {message}"
    fresh = list_errors.render(found, list_errors.read_advice(page))
    assert page == fresh, "docs/errors.md is out of date: python tools/list_errors.py"


def test_every_message_says_what_was_given_or_what_to_do():
    for message in list_errors.messages():
        said = len(message.template.split()) >= 2 or "{error}" in message.template
        assert said, f"too short: {message}"
        assert message.kind in list_errors.CLASSES, f"describe {message.kind} in list_errors.py"


def test_the_error_lister_reads_every_form(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text(
        "def f(x):\n"
        "    raise UsageError('plain: ' f'x={x!r}' + ' | end')\n"
        "def need(ok, what, rule):\n"
        "    if not ok:\n"
        "        raise errors.ConfigError(f'{what}: {rule}')\n"
        "need(1, f'n={n}', 'must be even')\n"
        "need(0, 'k', rule='must be odd')\n"
        "class OwnError(StateError): ...\n"
        "raise OwnError('of its own')\n"
    )
    found = {(m.kind, m.template) for m in list_errors.messages(package)}
    assert found == {
        ("UsageError", "plain: x={x} | end"),
        ("ConfigError", "n={n}: must be even"),
        ("ConfigError", "k: must be odd"),
        ("StateError", "of its own"),
    }
    advised = {("UsageError", list_errors.cell("plain: x={x} | end")): "Turn it off."}
    page = list_errors.render(list_errors.messages(package), advised)
    assert "| `plain: x={x} \\| end` | `package/a.py` | Turn it off. |" in page
    assert list_errors.read_advice(page).items() >= advised.items()


def test_readme_sizes_are_right_within_ten_percent():
    text = README.read_text(encoding="utf-8")
    assert readme_sizes.BEGIN in text and readme_sizes.END in text
    problems = readme_sizes.wrong(text)
    assert not problems, f"README.md: sizes are out of date: tools/readme_sizes.py: {problems}"
    off = text.replace(" | tests/ |", "").replace("`tests/`", "`texts/`")
    assert any(problem.startswith("tests:") for problem in readme_sizes.wrong(off))


def test_readme_notebook_table_is_true():
    text = README.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| ([^|]+) \|.*\| (here|planned) \|$", text, re.M)
    assert [int(row[0]) for row in rows] == list(range(1, 10))
    linked = {row[0]: re.findall(r"\((notebooks/.*?)\)", row[1]) for row in rows}
    here = {path for row in rows for path in linked[row[0]] if row[2] == "here"}
    assert sum(map(len, linked.values())) == len(here), "a planned notebook is linked"
    assert here == {path.relative_to(ROOT).as_posix() for path in NOTEBOOKS}


def test_readme_python_runs(capsys):
    if not (ROOT / "dslearn" / "data" / "tiny" / "config.json").exists():
        pytest.skip("tiny is not here")
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) == 1
    names: dict[str, Any] = {}
    exec(compile(blocks[0], "README.md", "exec"), names)
    assert capsys.readouterr().out.strip(), "generate printed nothing"
    assert names["logits"].shape[:2] == names["ids"].shape and names["state"].position == 3


def test_docstrings_cite_sections_that_exist():
    names = r"(?:\"[^\"]+\"(?:,?\s+and\s+|,\s+)?)+"
    cited = re.compile(rf"(docs/[\w/]+\.md)(?:,\s+(?:sections?\s+)?({names}))?")
    lost = []
    for path in sorted((ROOT / "dslearn").rglob("*.py")):
        for page, sections in cited.findall(path.read_text(encoding="utf-8")):
            if not (ROOT / page).exists():
                lost.append(f"{path.name}: {page} does not exist")
                continue
            titles = re.findall(r"^#+ +(.+)$", (ROOT / page).read_text(encoding="utf-8"), re.M)
            for section in re.findall(r"\"([^\"]+)\"", sections):
                name = " ".join(section.split())
                if not any(name in title for title in titles):
                    lost.append(f"{path.name}: {page} has no section {name!r}")
    assert not lost, "\n".join(lost)


def test_the_repository_stays_small():
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    sizes = {path: path.stat().st_size for path in files if path.is_file()}
    assert sum(sizes.values()) < 20e6, f"{sum(sizes.values()) / 1e6:.1f} MB tracked, at most 20"
    big = [p.name for p, size in sizes.items() if size > 4e6 and p.suffix != ".safetensors"]
    assert not big, f"over 4 MB and no checkpoint shard: {big}"
