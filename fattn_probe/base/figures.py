"""Readable numbers, times, durations and lists."""

from collections.abc import Collection, Sequence


def times(value: float, digits: int = 3) -> str:
    """A factor as text: `0.133`, `12.3`, `1,230`, or `1.23e+06` for a million or more.

    The caller adds "times" or "x".
    """
    rounded = f"{value:.{digits}g}"
    return f"{float(rounded):,.0f}" if 100 <= value < 1e6 else rounded


def number_of(count: int, noun: str) -> str:
    """A number with its noun: `1 case`, `1962 cases`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def first_of(items: Sequence[object], most: int, *, counted: bool = True) -> str:
    """The first `most` items: `a, b and 3 more`, or `a, b, ...` if the others are not `counted`."""
    words, more = ", ".join(map(str, items[:most])), len(items) - most
    return words if more <= 0 else f"{words} and {more} more" if counted else f"{words}, ..."


def extent(numbers: Collection[int]) -> str:
    """The range of the numbers: `0 to 3`, or `3` if they are all equal."""
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least} to {most}"


def factor(value: float, digits: int = 4) -> str:
    """A factor as text, with enough digits to distinguish it from 1: `0.5`, `1.00003`."""
    while f"{value:.{digits}g}" == "1" and abs(value - 1) > 1e-9:
        digits += 1
    return times(value, digits)


def minute(started: str) -> str:
    """An ISO timestamp, shortened to the minute: `2026-11-22 04:40`."""
    return started[:16].replace("T", " ")


def clock(seconds: float) -> str:
    """A duration in minutes and seconds, with hours if necessary."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
