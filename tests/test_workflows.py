"""The files that hosting and editors read: workflows, issue forms, hooks, pinned checkers."""

import re
import tomllib
from fnmatch import fnmatch

import pytest
import yaml

from tests.made import ROOT

WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")}
FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")


def commands(job):
    return [step["run"] for step in job["steps"] if "run" in step]


def test_ci_and_release_run_what_a_contributor_runs():
    assert set(WORKFLOWS) == {"ci", "nightly", "release"}
    assert ".ci/run" in commands(WORKFLOWS["ci"]["jobs"]["check"])
    jobs = WORKFLOWS["release"]["jobs"]
    assert ".ci/run" in commands(jobs["test"])
    assert "pipx run build" in commands(jobs["build"])
    assert jobs["publish"]["needs"] == ["test", "build"]


def test_the_night_is_judged_after_its_shards():
    jobs = WORKFLOWS["nightly"]["jobs"]
    assert jobs["judge"]["needs"] == "shard"
    assert any("--shard ${{ matrix.shard }}/4" in line for line in commands(jobs["shard"]))
    assert jobs["shard"]["strategy"]["matrix"] == {"suite": ["nightly", "nightly-amd"], "shard": [1, 2, 3, 4]}


@pytest.mark.parametrize("part", ["tests", "verdict"])
def test_what_is_not_ci_s_runs_each_night(part):
    assert commands(WORKFLOWS["nightly"]["jobs"][part])[-1] == f"scripts/nightly {part}"


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_has_no_more_rights_than_it_uses_and_pins_its_actions(name):
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    rights = {job: found["permissions"] for job, found in WORKFLOWS[name]["jobs"].items() if "permissions" in found}
    assert rights == ({"publish": {"contents": "write"}} if name == "release" else {})
    steps = [step for job in WORKFLOWS[name]["jobs"].values() for step in job["steps"] if "uses" in step]
    for step in steps:
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step["uses"]), step
        if step["uses"].startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
    text = (ROOT / f".github/workflows/{name}.yml").read_text()
    assert len(re.findall(r"uses: \S+@\w{40}  # v\d+\.\d+\.\d+$", text, re.MULTILINE)) == len(steps)


def test_the_job_that_may_write_runs_no_code_of_the_repository():
    """A test, or a package of an index, that was tampered with could publish what it liked."""
    job = WORKFLOWS["release"]["jobs"]["publish"]
    assert [step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step] == ["actions/download-artifact"]
    (command,) = commands(job)
    assert command.startswith("gh release create ")


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


def test_checkers_read_every_script():
    """Those in Python have no suffix, by which checkers find files."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    ours = {
        path.name for path in (ROOT / "scripts").iterdir() if path.is_file() and '/python" "$0"' in path.read_text()
    }
    (pattern,) = tools["ruff"]["extend-include"]
    assert set(pattern.removeprefix("scripts/{").removesuffix("}").split(",")) == ours
    assert {f"scripts/{name}" for name in ours} <= set(tools["mypy"]["files"])


def test_checkers_are_pinned_and_hooks_run_the_environments_own():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert all("==" in requirement for requirement in extras["lint"])
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repo["repo"] == "local"
    assert all(hook["entry"].startswith(".venv/bin/") for hook in repo["hooks"])
