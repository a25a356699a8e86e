"""The table of what suites catch of the corpus, as a page of the docs."""

from collections.abc import Iterator, Sequence

from fattn_probe.detect.planted import Tried
from fattn_probe.source.faults import HistoricFault

HEAD = """\
# What the suites catch of the corpus

Made by `scripts/detection page`; do not edit. `scripts/detection faults` makes the results
([detection.md](detection.md)). Each fault is planted in b11549, and the cases of a suite that it can change are judged
until one gives it away, those with the least work first. `cause` is the first cause that the diagnosis of a wrong
output says. Seconds include compiling.
"""
MOST = 90  # characters of what was said


def page(corpus: Sequence[HistoricFault], results: Sequence[Tried]) -> str:
    """The page. A later result of a fault and suite replaces an earlier one; those of an older patch do not count."""
    known = {fault.patch.name: fault for fault in corpus}
    latest = {(item.suite, item.fault): item for item in results if current(item, known.get(item.fault))}
    suites = sorted({suite for suite, _ in latest})
    parts = [HEAD]
    for suite in suites:
        tried = [latest[suite, name] for name in known if (suite, name) in latest]
        parts.append(f"## {suite}\n\n{share(tried, len(known))}\n\n" + "\n".join(rows(tried, known)) + "\n")
    return "\n".join(parts)


def current(item: Tried | None, fault: HistoricFault | None) -> bool:
    """Whether a result is about the fault as it is now."""
    return item is not None and fault is not None and item.digest == fault.patch.changes


def share(tried: Sequence[Tried], total: int) -> str:
    """How many are caught."""
    caught = [item.caught for item in tried if item.caught is not None]
    left = f" {total - len(tried)} of the corpus's {total} were not tried." if len(tried) < total else ""
    percent = 100 * len(caught) / len(tried)
    return f"**{len(caught)} of {len(tried)} caught ({percent:.3g} %)**.{left}"


def rows(tried: Sequence[Tried], known: dict[str, HistoricFault]) -> Iterator[str]:
    """The table, those first that were not caught."""
    yield "| fault | family | by | case | cases | s | cause | said |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for item in sorted(tried, key=lambda item: item.caught is not None):
        fault, caught = known[item.fault], item.caught
        if caught is None:
            by, case, cause, said = "**not caught**", "", "", ""
        else:
            by, case, cause = caught.by, f"{caught.case} on {caught.on}", caught.cause or ""
            said = " ".join(caught.said.split())
            said = (said if len(said) <= MOST else f"{said[: MOST - 3]}...").replace("|", "\\|")
        cells = (item.fault, fault.family, by, case, str(item.cases), f"{item.seconds:.0f}", cause, said)
        yield f"| {' | '.join(cells)} |"
