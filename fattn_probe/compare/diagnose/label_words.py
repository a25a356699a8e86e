"""Words for sets of queries, heads, columns, tiles and so on; `chosen` is sorted and not empty."""

from collections.abc import Sequence

from fattn_probe.compare.judge.wrong_rows import ranges

LISTED = 4


def along(one: str, many: str, total: int, chosen: Sequence[int]) -> str:
    """Places on an axis: `head 3`, `queries >= 64`, `every head but 2`."""
    first, last, number = chosen[0], chosen[-1], len(chosen)
    if number == 1:
        return f"{one} {first}" + (f", the last of {total}" if first == total - 1 > 1 else "")
    missing = total * (total - 1) // 2 - sum(chosen)
    if number == total - 1 and 0 < missing < total - 1:
        return f"every {one} but {missing}"
    if last - first == number - 1:
        if last == total - 1:
            return f"{many} >= {first}"
        return f"{many} < {last + 1}" if first == 0 else f"{many} {first}..{last}"
    return f"{many} {ranges(chosen)}"


def every(one: str, symbol: str, step: int, chosen: Sequence[int]) -> str:
    """Remainders: `every 8th column (d % 8 = 3)`."""
    if len(chosen) == 1:
        return f"every {ordinal(step)} {one} ({symbol} % {step} = {chosen[0]})"
    return f"{symbol} % {step} in {ranges(chosen)}"


def within(one: str, group: str, size: int, chosen: Sequence[int]) -> str:
    """Places within groups: `the last query of each tile of 8`."""
    if list(chosen) == [size - 1]:
        return f"the last {one} of each {group} of {size}"
    if list(chosen) == [0]:
        return f"the first {one} of each {group} of {size}"
    return f"{one} {ranges(chosen)} of each {group} of {size}"


def either(yes: str, no: str, chosen: Sequence[int]) -> str:
    """A property that rows have (label 1) or lack (label 0)."""
    return yes if 1 in chosen else no


def named(each: Sequence[str], chosen: Sequence[int]) -> str:
    """Labels with their own words: `the seam between blocks 46 and 47`."""
    more = f" and {len(chosen) - LISTED} more" if len(chosen) > LISTED else ""
    return ", ".join(each[label] for label in chosen[:LISTED]) + more


def ordinal(number: int) -> str:
    """An ordinal: `8th`."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else endings.get(number % 10, 'th')}"
