"""Coverage as a self-contained page: the annotated source."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fattn_probe.detect.counts import Coverage
from fattn_probe.detect.measure import Measured
from fattn_probe.detect.show import percent, shares_of, summary
from fattn_probe.inspect.view.page import environment
from fattn_probe.source import Tree
from fattn_probe.source.features import CUDA

THOUSAND = 1000


def page(found: Sequence[Measured], tree: Tree) -> str:
    """The page: a row per file with the shares of each suite, then the source with the counts of the first suite."""
    names = sorted({name for item in found for name in item.coverage.files})
    files = [
        {
            "name": name,
            "shares": [percent(share) for share in shares_of(found, name)],
            "lines": list(annotated(tree.root / CUDA / name, name, found[0].coverage)),
        }
        for name in names
    ]
    words = {
        "title": f"What {', '.join(item.suite for item in found)} execute{'s' * (len(found) == 1)}",
        "about": f"{tree.spec}. " + "; ".join(next(summary(item)) for item in found),
        "suites": [item.suite for item in found],
        "files": files,
    }
    return environment("fattn_probe.detect").get_template("coverage.html.j2").render(words)


def annotated(path: Path, file: str, coverage: Coverage) -> Iterator[dict[str, Any]]:
    """Each line of a source file with its count, its kind for the colours, and its outcomes or why it is left out."""
    lines, left_out = coverage.files.get(file, {}), set(coverage.left_out(file))
    for number, text in enumerate(path.read_text(errors="replace").splitlines(), 1):
        line = lines.get(number)
        if line is None:
            yield {"text": text, "count": "", "kind": "", "said": ""}
            continue
        partly = line.taken < len(line.branches)
        outcomes = "outcomes: " + ", ".join(map(short, line.branches)) if line.branches else ""
        if number in left_out:
            why = f"left out: {coverage.unreachable[file, number]}"
            yield {"text": text, "count": short(line.count), "kind": "argued", "said": why}
            continue
        yield {
            "text": text,
            "count": short(line.count),
            "kind": "never" if not line.count else "partly" if partly else "",
            "said": outcomes,
        }


def short(count: int) -> str:
    """`812`, `15k`, `3M`: the size of a count."""
    for unit in ("", "k", "M", "G"):
        if count < THOUSAND:
            return f"{count}{unit}"
        count //= THOUSAND
    return f"{count}T"
