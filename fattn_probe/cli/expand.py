"""A parameter that is an object of flags (`options.py`), expanded into these flags for typer."""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

from typer.models import OptionInfo

from fattn_probe.base.signals import interruptible


@dataclass(frozen=True)
class Offered:
    """The flags of an object that a command offers, and its own defaults for these."""

    names: tuple[str, ...]
    defaults: Mapping[str, object]


def offered(*names: str, **defaults: object) -> Offered:
    """For `Annotated[Where, offered("on", "devices", on="cpu")]`: only these flags; without names, all of them."""
    return Offered(names, defaults)


def with_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command as typer reads it, with one parameter for each flag of the objects among its parameters."""
    parameters: dict[str, inspect.Parameter] = {}
    objects: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        kind, extras = getattr(hints[name], "__origin__", hints[name]), getattr(hints[name], "__metadata__", ())
        if not (isinstance(kind, type) and is_dataclass(kind)):
            parameters[name] = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
            continue
        offer = next((extra for extra in extras if isinstance(extra, Offered)), offered())
        found = _parameters(kind, offer)
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
    """A parameter for each flag of an object that a command offers, under the object's heading."""
    hints, found = get_type_hints(kind, include_extras=True), {}
    for one in fields(kind):
        if offer.names and one.name not in offer.names:
            continue
        hint, info = hints[one.name].__origin__, copy.copy(hints[one.name].__metadata__[0])
        if isinstance(info, OptionInfo):
            info.rich_help_panel = kind.__doc__
        found[one.name] = inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=offer.defaults.get(one.name, _default(one)),
            annotation=Annotated[hint, info],
        )
    if missing := {*offer.names, *offer.defaults} - found.keys():
        raise TypeError(f"{kind.__name__} has no flag {', '.join(sorted(missing))}")
    return found


def _default(one: Field[Any]) -> Any:  # noqa: ANN401 - of any type
    if one.default_factory is not MISSING:
        return one.default_factory()
    return inspect.Parameter.empty if one.default is MISSING else one.default
