"""The flags of every command: names, types, defaults, help and completion stay as tests/data/flags.json has them.

`python -m tests.cli.test_flags` writes the file again, after a change that is meant.
"""

import ast
import inspect
import json
from collections import Counter
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest
import typer
from typer.models import ArgumentInfo, OptionInfo
from typer.testing import CliRunner

from fattn_probe.cli.commands import commands, offered, with_flags
from tests.made import ROOT

RECORDED = ROOT / "tests/data/flags.json"
MOST_PARAMETERS = 10
PLAIN = vars(typer.Option()) | {"default": None}
OURS = {"default", "param_decls", "rich_help_panel"}
IN_ANOTHER_LANGUAGE = {"triton_kernel.py"}
"""A Triton kernel's parameters are what its launch passes."""


@dataclass(frozen=True)
class Words:
    """Some words"""

    name: Annotated[str, typer.Option(help="A name.")] = ""
    number: Annotated[int, typer.Option(help="A number.")] = 3
    many: Annotated[list[str], typer.Option(help="More.")] = field(default_factory=list)


def functions():
    """(words, function) of every command."""
    for _, name, place, _ in commands():
        module, _, attribute = place.partition(":")
        found = getattr(import_module(f"fattn_probe.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            yield from (
                (f"{name} {command.name}", with_flags(command.callback)) for command in found.registered_commands
            )
        else:
            yield name, with_flags(found)


def plain(value):
    """A value of a flag's description as JSON has it; a function is its name."""
    if callable(value):
        return value.__name__
    return [plain(item) for item in value] if isinstance(value, list | tuple) else str(value)


def type_name(kind):
    """A type's name, the same in all versions of Python."""
    parts = [type_name(part) for part in get_args(kind)]
    if not parts:
        return getattr(kind, "__name__", str(kind))
    return " | ".join(parts) if get_origin(kind) is not list else f"list of {parts[0]}"


def flags_of(function):
    """What typer is told of a command's flags, by their spelling: type, default, help, completion and so on."""
    hints, found = get_type_hints(function, include_extras=True), {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind, info = hints[name], next(iter(getattr(hints[name], "__metadata__", ())), None)
        told, words = (vars(info), [info.default, *(info.param_decls or ())]) if info else ({}, [])
        own = "--" + name.replace("_", "-") if isinstance(info, OptionInfo) else name
        spelled = " ".join(word for word in words if isinstance(word, str)) or own
        found[spelled] = {key: plain(value) for key, value in told.items() if key not in OURS and value != PLAIN[key]}
        found[spelled]["type"] = type_name(get_args(kind)[0] if info else kind)
        found[spelled]["default"] = None if parameter.default is parameter.empty else plain(parameter.default)
    return found


def recorded():
    """The flags of all commands, each on a line of its own."""
    lines = [
        json.dumps([words, spelled, told], sort_keys=True)
        for words, function in functions()
        for spelled, told in flags_of(function).items()
    ]
    return "[\n" + ",\n".join(sorted(lines)).replace(str(Path.home()), "~") + "\n]\n"


def test_the_flags_of_the_commands_are_the_recorded_ones():
    assert json.loads(recorded()) == json.loads(RECORDED.read_text())


def test_an_argument_of_several_words_has_no_list_as_its_default():
    """Click before 8.3 refuses one, which typer 0.19 to 0.21 may come with."""
    arguments = [
        (words, name, parameter.default)
        for words, function in functions()
        for name, parameter in inspect.signature(function).parameters.items()
        if isinstance(next(iter(getattr(parameter.annotation, "__metadata__", ())), None), ArgumentInfo)
    ]
    assert len(arguments) > 20
    assert [item for item in arguments if isinstance(item[2], list)] == []


def test_each_sentence_of_help_stands_once():
    helps = [
        keyword.value.value
        for path in sorted((ROOT / "fattn_probe/cli").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"typer.Option", "typer.Argument"}
        for keyword in node.keywords
        if keyword.arg == "help" and isinstance(keyword.value, ast.Constant)
    ]
    assert [text for text, number in Counter(helps).items() if number > 1] == []
    assert len(helps) > 100


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (["--name", "b"], ("b", 3, [])),
        (["--many", "x", "--many", "y"], ("a", 3, ["x", "y"])),
        (["--number", "7"], None),
    ],
)
def test_an_object_stands_for_the_flags_that_a_command_offers(asked, given):
    """The command has its own default for `--name`, and no `--number`."""
    found = []

    def command(words: Annotated[Words, offered("name", "many", name="a")]) -> None:
        found.append((words.name, words.number, words.many))

    app = typer.Typer()
    app.command()(with_flags(command))
    assert (found, CliRunner().invoke(app, asked).exit_code) == (([given], 0) if given else ([], 2))


@pytest.mark.parametrize("extras", [offered("nmae"), offered(nmae="b")])
def test_a_flag_that_an_object_does_not_have_is_refused(extras):
    def command(words: Annotated[Words, extras]) -> None:
        """A command."""

    with pytest.raises(TypeError, match="Words has no flag nmae"):
        with_flags(command)


def test_two_objects_with_one_flag_are_refused():
    def command(words: Words, more: Words) -> None:
        """A command."""

    with pytest.raises(TypeError, match="two parameters have the flag"):
        with_flags(command)


def parameters(function):
    """How many parameters a function has, `self` and `cls` included."""
    found = function.args
    return len([*found.posonlyargs, *found.args, *found.kwonlyargs])


def test_no_function_has_more_than_ten_parameters():
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {parameters(node)}"
        for path in sorted((ROOT / "fattn_probe").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and parameters(node) > MOST_PARAMETERS
        if path.name not in IN_ANOTHER_LANGUAGE
    ]
    assert found == []


if __name__ == "__main__":
    RECORDED.write_text(recorded())
