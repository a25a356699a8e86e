"""The commands in README, docs and workflows: their flags, scenarios, suites and patches exist."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer

from fattn_probe.base.errors import InputError
from fattn_probe.cases import shipped
from fattn_probe.cases.scenario import expand, load
from fattn_probe.cases.scenario.cases import cases_of
from fattn_probe.cli import app
from fattn_probe.cli.flags import scenario_path, suite_path
from fattn_probe.llama.source import patches
from tests.as_user import completed
from tests.made import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
QUOTED = re.compile(r"```\w*\n(.*?)```|(?<!`)`(fattn-probe [^`]+)`", re.DOTALL)
COMMAND = re.compile(r"fattn-probe [a-z][^;>|&\n]*")
PLACEHOLDER = re.compile(r"\b[A-Z_]{2,}\b|\.\.\.|[\[\]\\]")
OF_UPSTREAM = {"tests/test-backend-ops.cpp"}
VARIABLE = re.compile(r"\$\{\{[^}]*\}\}|\$\w+")


def commands(page):
    """The complete commands of a page: none with a placeholder such as SCENARIO."""
    text = page.read_text()
    quoted = text if page in WORKFLOWS else "\n".join(block or inline for block, inline in QUOTED.findall(text))
    found = [re.split(r" {2,}\(| +#", line)[0].strip() for line in COMMAND.findall(quoted)]
    found = [line.strip('"') if line.count('"') % 2 else line for line in found]
    found = [VARIABLE.sub("1", line.replace("${{ matrix.suite }}", "nightly")) for line in found]
    return sorted({line for line in found if not PLACEHOLDER.search(line)})


LINES = [pytest.param(line, id=f"{page.stem}: {line}") for page in PAGES + WORKFLOWS for line in commands(page)]


def test_the_documents_have_commands():
    assert len(LINES) > 30


@pytest.mark.parametrize("line", LINES)
def test_a_command_can_be_parsed(line, monkeypatch):
    monkeypatch.chdir(ROOT)
    command, words = typer.main.get_command(app), shlex.split(line)[1:]
    while hasattr(command, "commands") and words:
        command = command.commands[words.pop(0)]
        command = getattr(command, "loaded", command)
    if words:
        context = command.make_context(line, words)
        for name in context.params.get("patch") or []:
            assert patches.named(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_file_that_is_named_exists(page):
    text = page.read_text()
    named = set(re.findall(r"\b((?:scenarios|suites|patches)/[\w./-]+\.(?:yaml|patch))\b", text))
    named |= set(re.findall(r"`((?:tests|scripts|fattn_probe|suites|docs|patches)/[\w./-]+)`", text)) - OF_UPSTREAM
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.stem)
def test_a_link_leads_to_a_page_and_a_heading(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    dead = []
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
        path = (page.parent / target) if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            dead.append(f"{target}#{anchor}")
    assert dead == []


@pytest.mark.parametrize("words", [("scripts/words",), ("scripts/reference", "--check")])
def test_no_page_has_a_phrase_that_no_native_would_write_and_the_reference_is_what_the_program_says(words):
    """If this fails: scripts/words FILE names the phrases of a file; scripts/reference writes the reference."""
    done = completed(*words[1:], script=ROOT / words[0])
    assert done.returncode == 0, done.stdout


def test_the_guide_is_short():
    pages = [page.read_text() for page in (ROOT / "docs/guide").glob("*.md")]
    written = [re.sub(r"```.*?```", "", page, flags=re.DOTALL) for page in pages]  # by a person: no code or output
    assert sum(bool(line.strip()) for text in written for line in text.splitlines()) <= 2000
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100
    assert len(rows_of("docs/glossary.md", "^(?!word|---)")) <= 40


@pytest.mark.parametrize("page", [*(ROOT / "docs/guide").glob("*.md"), *(ROOT / "docs/reference").glob("*.md")])
def test_dates_and_timings_are_with_the_measurements(page):
    text = page.read_text()
    assert re.findall(r"(?<!such as )\b20\d\d-\d\d-\d\d\b|\d s of (?:CPU|processor) time|\d s on two", text) == []


def rows_of(page, first):
    """The cells of the rows of a page's tables whose first cell matches."""
    lines = [line.strip()[1:-1].split("|") for line in (ROOT / page).read_text().splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in cells] for cells in lines]
    return [cells for cells in rows if re.search(first, cells[0])]


def test_what_readme_says_that_quick_detects_is_measured():
    """The page has what follows from the verdicts (tests/maintain/test_scripts.py)."""
    text = " ".join((ROOT / "README.md").read_text().split())
    said = re.search(r"`quick` detects at least ([\d.]+) % of ([\d,]+) planted faults", text)
    assert said is not None
    (_, number, share), *_ = [row for row in rows_of("docs/measurements/detection.md", "^all$") if row[1].isdigit()]
    assert (said[2], said[1]) == (f"{int(number):,}", share.partition(" %")[0])


def test_what_readme_says_was_compared_is_recorded():
    """The cases of a file are recorded if all of them are; upstream's list has those that the simulator finishes."""
    cases = {path: expand(load(path)) for path in sorted((ROOT / "scenarios").rglob("*.yaml"))}
    recorded = json.loads((ROOT / "tests/data/h200.json").read_text())["cases"]
    compared = [path for path in cases if path.parent == ROOT / "scenarios"]
    names = [case.name for path in compared for case in cases[path]]
    assert {*names} <= {*recorded}
    text = " ".join((ROOT / "README.md").read_text().split())
    said = re.search(r"for (\d+) of the (\d+) shipped scenario files \((\d+) cases\) and for ([\d,]+) cases", text)
    assert said is not None
    assert [int(word.replace(",", "")) for word in said.groups()] == [len(compared), len(cases), len(names), 3680]
    assert f"22 files directly in `scenarios/`. The other {len(cases) - len(compared)} of the {len(cases)}" in " ".join(
        (ROOT / "docs/measurements/agreement.md").read_text().split()
    )


def test_a_path_wins_over_a_name_which_may_be_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shipped.find("scenario", "gqa") == ROOT / "scenarios/gqa.yaml"
    (tmp_path / "gqa").mkdir()
    assert shipped.find("scenario", "gqa") == Path("gqa")
    assert shipped.find("scenario", "known-faults") == ROOT / "scenarios/known-faults"


@pytest.mark.parametrize(
    ("kind", "word", "said"),
    [
        ("scenario", "k-strid", "did you mean known-faults/k-stride"),
        ("scenario", "faults/k-strid", "did you mean known-faults/k-stride"),
        ("scenario", "nowhere/gqa.yaml", "did you mean gqa"),
        ("scenario", "x", "`fattn-probe scenario list` lists them"),
        ("scenario", "../scenarios/gqa", "did you mean gqa"),
        ("scenario", "x" * 5000, "File name too long"),
        ("scenario", "queries-n_q=9-n_head=11", "did you mean queries-n_q=9-n_head=1?"),
        ("scenario", f"{ROOT}/scenarios/gqa.yaml/gqb", "did you mean .*/scenarios/gqa.yaml/gqa?"),
        ("suite", "quik", "did you mean quick"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(kind, word, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=said):
        (scenario_path if kind == "scenario" else suite_path)(word)


def test_a_case_is_found_by_the_name_that_a_suite_reports():
    names = [case.name for case in cases_of([*ROOT.glob("scenarios/**/*.yaml"), *ROOT.glob("suites/*/*.yaml")])]
    assert len({*names}) == len(names), "a name has two cases"
    for name in ("unpadded-kv-n_kv=17", "queries-n_q=9-n_head=1", next(name for name in names if "." in name)):
        assert [case.name for case in cases_of([scenario_path(name)])] == [name]
