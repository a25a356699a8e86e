"""The action and the hook of a llama.cpp fork, by running what they say in a fresh folder."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig

import pytest
import yaml

from tests.test_wheel import PARTS, ROOT, checked

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
SUITE = """version: 1
about: two cases of one kernel
scenarios: [cases/*.yaml]
on: ["sim:h200"]
"""
FAULT = ROOT / "patches/faults/21159-fixup-first-block.patch"
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")


def steps(words, folder, values, env):
    """Run a composite action's `run` steps as GitHub does, after a failure only those with `if: always()`.

    Returns the exit code of the first step that failed, and what all of them said.
    """

    def filled(text):
        return EXPRESSION.sub(lambda match: values[match[1]], text)

    code, said = 0, ""
    for step in words:
        if "run" not in step or (code and step.get("if") != "always()"):
            continue
        assert step["shell"] == "bash" and "${{" not in step["run"], "inputs reach a shell as variables only"
        own = {name: filled(text) for name, text in step.get("env", {}).items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=folder / filled(step.get("working-directory", ".")),
            env=env | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        code, said = code or done.returncode, said + done.stdout
    return code, said


def test_the_action_is_thin_pinned_and_needs_no_rights():
    text = (ROOT / "action.yml").read_text()
    uses = [step["uses"] for step in ACTION["runs"]["steps"] if "uses" in step]
    assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", name) for name in uses)
    assert len(re.findall(r"uses: \S+@\w{40}  # v\d+\.\d+\.\d+$", text, re.MULTILINE)) == len(uses)
    workflows = "".join(path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml"))
    assert [name for name in uses if name not in workflows] == [], "as our own workflows"
    assert "token" not in text and "secrets" not in text
    assert len(ACTION["runs"]["steps"]) <= 6


def test_the_hook_of_pre_commit_runs_before_a_push_only():
    (hook,) = HOOKS
    assert (hook["stages"], hook["pass_filenames"], hook["language"]) == (["pre-push"], False, "python")
    assert re.search(hook["files"], "ggml/src/ggml-cuda/fattn.cu") and not re.search(hook["files"], "src/llama.cpp")


def git(folder, *words):
    return checked(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", folder, *words], folder).strip()


@pytest.fixture
def fork(tmp_path, tree):
    """A clone of a repository with a release's tree, on a branch of its own, with a suite of two cases."""
    upstream, folder = tmp_path / "upstream", tmp_path / "a fork"
    shutil.copytree(tree.root, upstream)
    checked(["chmod", "-R", "u+w", upstream], tmp_path)
    (upstream / "cases").mkdir()
    for name in ("gqa", "sinks"):
        shutil.copy(ROOT / f"scenarios/{name}.yaml", upstream / "cases")
    (upstream / "tiny.yaml").write_text(SUITE)
    git(tmp_path, "init", "--quiet", "--initial-branch=master", upstream)
    git(upstream, "add", "--all")
    git(upstream, "commit", "--quiet", "--message=a release")
    git(tmp_path, "clone", "--quiet", upstream, folder)
    git(folder, "switch", "--quiet", "--create=own")
    return folder


def commit(folder):
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=a change")


@pytest.fixture
def installed(tmp_path):
    """The environment of a job whose only Python is a fresh one, and the folder of the action."""
    action = tmp_path / "action"
    for part in (*PARTS, "action.yml"):
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, action / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, action)
    checked([sys.executable, "-m", "venv", "--without-pip", tmp_path / "python"], tmp_path)
    (site,) = (tmp_path / "python").glob("lib/python*/site-packages")
    # Its requirements are there already, pip too: test_wheel.py installs them.
    (site / "requirements.pth").write_text(sysconfig.get_path("purelib"))
    dropped = ("PYTHONPATH", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if name not in dropped}
    env |= {"PATH": f"{tmp_path / 'python/bin'}:{env['PATH']}", "GITHUB_RUN_ID": "1"}
    return action, env | {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"), "GITHUB_ACTIONS": "true"}


@pytest.mark.build
@pytest.mark.network
@pytest.mark.slow
def test_a_broken_branch_is_reported_with_case_cause_and_place(fork, installed, tmp_path):
    action, env = installed
    values = {f"inputs.{name}": about["default"] for name, about in ACTION["inputs"].items()}
    values |= {"inputs.suite": "tiny.yaml", "inputs.base": "origin/master", "runner.temp": str(tmp_path)}
    values |= {"inputs.arguments": f"{values['inputs.arguments']} --workers 2", "github.action_path": str(action)}
    base = f"{git(fork, 'rev-parse', 'HEAD')[:9]}, the merge base with origin/master"
    summary, out = tmp_path / "summary.md", tmp_path / "fattn-probe"
    (fork / "README.md").write_text("nothing of attention\n")
    commit(fork)
    code, said = steps(ACTION["runs"]["steps"], fork, values, env)
    assert code == 0, said
    assert f"no attention file differs from {base}: nothing to run" in summary.read_text()
    checked(["git", "-C", fork, "apply", FAULT], fork)
    commit(fork)
    installed_before = [step for step in ACTION["runs"]["steps"] if "pip install" not in step.get("run", "")]
    code, said = steps(installed_before, fork, values, env)
    assert code == 6, said
    assert f"Attention files that differ from {base}: fattn-common.cuh. Changed code: " in summary.read_text()
    assert "flash_attn_stream_k_fixup_uniform (fattn-common.cuh:788)" in summary.read_text()
    row = next(line for line in summary.read_text().splitlines() if line.startswith("| gqa | **new failure** |"))
    assert "was pass: not as designed" in row and "cause: one KV tile is left out" in row
    assert "<failure" in (out / "junit.xml").read_text()
    page = (out / "report.html").read_text()
    assert "new failure" in page and base in page


@pytest.mark.build
@pytest.mark.network
def test_a_push_that_breaks_a_kernel_is_refused(fork):
    """git runs the installed hook, on the pushed commit and not on the working tree."""
    probe = [sys.executable, "-m", "fattn_probe", "hook", "install", str(fork / "tiny.yaml")]
    subprocess.run(probe, cwd=fork, check=True)
    push = ["git", "-C", fork, "push", "--quiet", "origin", "own"]
    (fork / "README.md").write_text("nothing of attention\n")
    commit(fork)
    assert "attention" not in subprocess.run(push, check=True, capture_output=True, text=True).stderr
    checked(["git", "-C", fork, "apply", FAULT], fork)
    commit(fork)
    checked(["git", "-C", fork, "apply", "--reverse", FAULT], fork)
    done = subprocess.run(push, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "changes attention files: fattn-common.cuh" in done.stderr
    assert "gqa" in done.stdout and "one KV tile is left out" in " ".join(done.stdout.split())
    assert git(fork, "rev-parse", "origin/own") == git(fork, "rev-parse", "HEAD~1")
