"""The examples of docs/nightly.md: their options exist, and the workflow is one."""

import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml

from fattn_probe.cli import app
from fattn_probe.regress.suite import cases_of, load_suite

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/nightly.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = sorted(set(re.findall(r"fattn-probe [^;`\"\n&>]+", "\n".join(body for _, body in BLOCKS))))


def test_there_are_examples():
    assert len(COMMANDS) > 8


@pytest.mark.parametrize("line", COMMANDS)
def test_an_examples_command_and_options_exist(line):
    command = typer.main.get_command(app)
    words = shlex.split(line.replace("#", "").split(" --why")[0])[1:]
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    known = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_the_workflow_is_yaml_with_two_jobs():
    (workflow,) = (yaml.safe_load(body) for kind, body in BLOCKS if kind == "yaml")
    assert list(workflow["jobs"]) == ["shard", "judge"]
    assert workflow["jobs"]["judge"]["needs"] == "shard"


@pytest.mark.parametrize("name", ["quick", "nightly"])
def test_a_shipped_suite_has_cases(name):
    path = ROOT / f"suites/{name}.yaml"
    assert len(cases_of(load_suite(path), path.parent)) > 300
