"""Coverage as a self-contained page: the annotated source."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fattn_probe.daily.inspect.view.page import environment
from fattn_probe.lab.detect.counts import LineCoverage, name_of
from fattn_probe.lab.detect.measure import Measured
from fattn_probe.lab.detect.show import cells_of, files_of, instance_columns, instance_rows, summary
from fattn_probe.llama.launch.families import BY_KERNEL
from fattn_probe.llama.source import Tree
from fattn_probe.llama.source.features import CUDA

THOUSAND = 1000


def page(found: Sequence[Measured], tree: Tree) -> str:
    """The page: a row per file with the shares of each suite, then the source with the counts of the first suite."""
    files = [
        {
            "name": name,
            "shares": list(cells_of(found, name)),
            "lines": list(annotated(tree.root / CUDA / name, name, found[0].coverage)),
        }
        for name in files_of(found)
    ]
    words = {
        "title": f"What {', '.join(item.suite for item in found)} execute{'s' * (len(found) == 1)}",
        "about": f"{tree.spec}. " + "; ".join(next(summary(item)) for item in found),
        "suites": [item.suite for item in found],
        "files": files,
        "instance_columns": instance_columns(found),
        "instance_rows": list(instance_rows(found)),
        "instances": [
            (function, on, str(share) if share.done else "never executed")
            for (_, function, on), share in sorted(found[0].coverage.functions.items())
            if name_of(function) in BY_KERNEL
        ],
    }
    return environment("fattn_probe.lab.detect").get_template("coverage.html.j2").render(words)


def annotated(path: Path, file: str, coverage: LineCoverage) -> Iterator[dict[str, Any]]:
    """Each line of a source file with its count, its kind for the colours, and its outcomes or why it is left out."""
    lines, left_out = coverage.files.get(file, {}), set(coverage.left_out(file))
    for number, text in enumerate(path.read_text(errors="replace").splitlines(), 1):
        line, count, kind, said = lines.get(number), "", "", ""
        if line is not None:
            count = short(line.count)
            kind = "never" if not line.count else "partly" if line.taken < len(line.branches) else ""
            said = "outcomes: " + ", ".join(map(short, line.branches)) if line.branches else ""
        if number in left_out:
            kind, said = "argued", f"left out: {coverage.unreachable[file, number]}"
        yield {"text": text, "count": count, "kind": kind, "said": said}


def short(count: int) -> str:
    """`812`, `15k`, `3M`: the size of a count."""
    for unit in ("", "k", "M", "G"):
        if count < THOUSAND:
            return f"{count}{unit}"
        count //= THOUSAND
    return f"{count}T"
