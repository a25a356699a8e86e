"""Names and values in a terminal, with values written as in the source."""

from collections.abc import Mapping

from rich.text import Text

from fattn_probe.inspect.facts import Value
from fattn_probe.tables import Flow


def spell(value: Value) -> str:
    """A value, written as in the source."""
    match value:
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            gap = ", " if any(isinstance(item, str) for item in value) else " "
            return gap.join(spell(item) for item in value)
        case float():
            return f"{value:.9g}"
        case _:
            return str(value)


def pairs(values: Mapping[str, Value], cell: int = 1) -> Flow:
    """Names and their values in a row."""
    return Flow([(name, Text(spell(value))) for name, value in values.items()], cell)
