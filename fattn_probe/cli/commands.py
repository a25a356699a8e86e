"""The table of commands; the module of a command is imported only when the command is used.

A command's parameter can be an object of flags (`setup.py`), which is expanded into its flags for typer.
"""

import copy
import csv
import functools
import gc
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib import import_module
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.text import Text
from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo

from fattn_probe.base.console import show
from fattn_probe.base.errors import InputError
from fattn_probe.base.signals import interruptible


@dataclass(frozen=True)
class Offered:
    """The flags of a flags object that a command offers, and the command's own defaults for them."""

    names: tuple[str, ...]
    defaults: Mapping[str, object]


def offered(*names: str, **defaults: object) -> Offered:
    """For `Annotated[Where, offered("on", "devices", on="cpu")]`: offers only these flags; without names, all flags."""
    return Offered(names, defaults)


def with_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command in typer's form: each flags object among its parameters becomes one parameter per flag."""
    parameters: dict[str, inspect.Parameter] = {}
    objects: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        kind, extras = getattr(hints[name], "__origin__", hints[name]), getattr(hints[name], "__metadata__", ())
        if not (isinstance(kind, type) and is_dataclass(kind)):
            parameters[name] = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
            continue
        found = _parameters(kind, next((extra for extra in extras if isinstance(extra, Offered)), offered()))
        if both := parameters.keys() & found.keys():
            raise TypeError(f"{command.__name__}: two parameters have the flag {', '.join(both)}")
        parameters |= found
        objects[name] = kind, list(found)

    def flat(**given: Any) -> Any:  # noqa: ANN401 - typer passes what the annotations say
        interruptible()
        for name, (kind, names) in objects.items():
            given[name] = kind(**{each: given.pop(each) for each in names})
        return command(**given)

    flat.__name__, flat.__doc__, flat.__module__ = command.__name__, command.__doc__, command.__module__
    flat.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    flat.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return flat


def _parameters(kind: type, offer: Offered) -> dict[str, inspect.Parameter]:
    """A parameter for each flag of a flags object that a command offers, under the object's heading."""
    hints, found = get_type_hints(kind, include_extras=True), {}
    for one in fields(kind):
        if offer.names and one.name not in offer.names:
            continue
        hint, info = hints[one.name].__origin__, copy.copy(hints[one.name].__metadata__[0])
        if isinstance(info, OptionInfo):
            info.rich_help_panel = kind.__doc__
        default = inspect.Parameter.empty if one.default is MISSING else one.default
        if one.default_factory is not MISSING:
            default = one.default_factory()
        found[one.name] = inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=offer.defaults.get(one.name, default),
            annotation=Annotated[hint, info],
        )
    if missing := {*offer.names, *offer.defaults} - found.keys():
        raise TypeError(f"{kind.__name__} has no flag {', '.join(sorted(missing))}")
    return found


@functools.cache
def commands() -> tuple[tuple[str, str, str, str], ...]:
    """Each command's group in `--help`, its name, its function as `module:attribute` of `cli`, and its help."""
    lines = (files("fattn_probe.cli") / "commands.csv").read_text(encoding="utf-8").splitlines()
    return tuple((group, name, place, about) for group, name, place, about in csv.reader(lines[1:]))


def wants_json(words: Sequence[str]) -> bool:
    """Whether a command line's words ask for JSON; words after `--` belong to the user's program."""
    return "--json" in words[: words.index("--") if "--" in words else None]


def show_help(ctx: typer.Context, option: object, wanted: bool) -> None:
    """Print a command's help (with --json, as a document), and exit."""
    if wanted and not ctx.resilient_parsing:
        text = ctx.get_help()
        show({"help": text}, lambda: Text(text, overflow="fold"), wants_json(sys.argv[1:]))
        raise typer.Exit


class Helped:
    """Mixin: a command whose help is printed in the same way as results."""

    def get_help_option(self, ctx: Any) -> Any:  # noqa: ANN401 - the classes of options are defined by click
        """The `--help` option."""
        if (option := super().get_help_option(ctx)) is not None:  # type: ignore[misc]
            option.callback = show_help
        return option


class Single(Helped, TyperCommand):
    """A command whose help groups the flags by their flags objects (`setup.py`)."""

    def parse_args(self, ctx: Any, args: Any) -> Any:  # noqa: ANN401
        """Parse the arguments; InputError for an empty path, which Python would read as the current folder."""
        words = "\0".join(("", *args, ""))
        try:
            rest = super().parse_args(ctx, args)
        except Exception as error:  # click's parser raises errors that do not name the command
            vars(error)["ctx"] = getattr(error, "ctx", None) or ctx
            raise
        for param in self.get_params(ctx):
            names = [""] if param.param_type_name == "argument" else [f"\0{name}" for name in param.opts]
            given, empty = ctx.params.get(param.name), any(f"{name}{sep}\0" in words for name in names for sep in "\0=")
            if empty and Path() in (given if isinstance(given, list) else [given]):
                raise InputError(
                    f"{ctx.command_path}: {param.opts[0]} is empty: name a path (`.` is the current folder)"
                )
        return rest

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """List arguments, the command's own options, and shared options, each group under its heading."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            own = "Arguments" if param.param_type_name == "argument" else "Options"
            heading = getattr(param, "rich_help_panel", None) or own
            if (record := param.get_help_record(ctx)) is not None:
                sections.setdefault(heading, []).append(record)
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


class Group(Helped, TyperGroup):
    """A command with subcommands."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """List the commands with their full help; click would show only its beginning."""
        rows = [(name, inspect.cleandoc(command.help or "")) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class LazyCommand(Single):
    """A command that is imported only when it gets its arguments; until then, it has just a name and help."""

    def __init__(self, name: str, place: str, about: str) -> None:
        super().__init__(name, help=about)
        self.place = place

    @functools.cached_property
    def loaded(self) -> Any:  # noqa: ANN401 - click defines the classes of commands; typer does not name them
        """The command itself, imported on first use."""
        module, _, attribute = self.place.partition(":")
        found = getattr(import_module(f"fattn_probe.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            found.info.cls, found.rich_markup_mode = Group, None
            for command in found.registered_commands:
                command.cls, command.callback = Single, command.callback and with_flags(command.callback)
            return typer.main.get_group(found)
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(self.name, cls=Single)(with_flags(found))
        return typer.main.get_command(single)

    def make_context(self, *args: Any, **rest: Any) -> Any:  # noqa: ANN401
        """The context in which click runs the command itself, shows its help, or completes its words."""
        loaded = self.loaded
        if not gc.isenabled():  # `main` turned garbage collection off; modules stay loaded, so skip them
            gc.freeze()
            gc.enable()
        return loaded.make_context(*args, **rest)


class Commands(Group):
    """The top-level group, with all commands."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        for _, name, place, about in commands():
            self.add_command(LazyCommand(name, place, about))

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """List the commands in their groups."""
        for title, group in groupby(commands(), lambda row: row[0]):
            with formatter.section(title):
                formatter.write_dl([(name, about) for _, name, _, about in group])
