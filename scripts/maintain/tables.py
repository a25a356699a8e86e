"""Write the tables of the ops that releases support, and of the kernels that they launch, for `scripts/support`."""

import csv
import io
from collections.abc import Mapping, Sequence

from fattn_probe.cases.device import cc_order
from fattn_probe.verdict.judge.support import NONE, Supported


def kernels_as_text(choices: Mapping[str, Mapping[str, str]], capabilities: Sequence[str]) -> str:
    """The text of `kernels.csv`, with rows sorted by case name."""
    out = io.StringIO()
    names = ["op", "case", "build", *capabilities]
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for op, row in sorted(choices.items(), key=lambda item: (item[1]["case"], item[0])):
        writer.writerow({"op": op, **row})
    return out.getvalue()


def support_as_text(support: Mapping[str, Supported], groups: Mapping[str, frozenset[str]]) -> str:
    """The text of `support.csv`, with rows sorted by case name."""
    numbers = sorted({number for known in support.values() for number in known.on})
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["op", "case", *numbers])
    for op, known in sorted(support.items(), key=lambda item: (item[1].case, item[0])):
        writer.writerow([op, known.case, *(_cell(known.on.get(number), groups) for number in numbers)])
    return out.getvalue()


def _cell(on: frozenset[str] | None, groups: Mapping[str, frozenset[str]]) -> str:
    if on is None:
        return ""
    words = [name for name, members in groups.items() if members and members <= on]
    rest = on.difference(*(groups[name] for name in words))
    return " ".join([*words, *sorted(rest, key=cc_order)]) or NONE
