"""The files that hosting and editors read: workflows, issue forms, hooks, pinned checkers."""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")}
FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")


def commands(job):
    return [step["run"] for step in job["steps"] if "run" in step]


def test_ci_and_release_run_what_a_contributor_runs():
    assert set(WORKFLOWS) == {"ci", "nightly", "release"}
    assert ".ci/run" in commands(WORKFLOWS["ci"]["jobs"]["check"])
    release = commands(WORKFLOWS["release"]["jobs"]["release"])
    assert release.index(".ci/run") < release.index("pipx run build")


def test_the_night_is_judged_after_its_shards():
    jobs = WORKFLOWS["nightly"]["jobs"]
    assert jobs["judge"]["needs"] == "shard"
    assert any("--shard ${{ matrix.shard }}/4" in line for line in commands(jobs["shard"]))
    assert jobs["shard"]["strategy"]["matrix"]["shard"] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_has_no_more_rights_than_it_uses(name):
    assert WORKFLOWS[name]["permissions"] == {"contents": "write" if name == "release" else "read"}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_is_whole(path):
    form = yaml.safe_load(path.read_text())
    assert form["name"] and form["description"]
    identifiers = [field["id"] for field in form["body"]]
    assert len(set(identifiers)) == len(identifiers)
    assert all(field["attributes"]["label"] for field in form["body"])


def test_no_folder_of_tests_is_left_out(pytestconfig):
    folders = {name for path in (ROOT / "tests").rglob("test_*.py") for name in path.relative_to(ROOT).parts[:-1]}
    patterns = pytestconfig.getini("norecursedirs")
    assert not [name for name in folders if any(fnmatch(name, pattern) for pattern in patterns)]


def test_checkers_are_pinned():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert all("==" in requirement for requirement in extras["lint"])


def test_hooks_run_the_environments_own_checkers():
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repo["repo"] == "local"
    assert all(hook["entry"].startswith(".venv/bin/") for hook in repo["hooks"])
