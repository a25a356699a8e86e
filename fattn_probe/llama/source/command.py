"""Records and tables for `fattn-probe source list`, `get` and `show`."""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.text import Text

from fattn_probe.base.tables import Table
from fattn_probe.llama.source import Tree, kernel_cases, kernel_parameters, patches, store
from fattn_probe.llama.source.features import case_parameters
from fattn_probe.llama.source.spec import DEFAULT_SOURCE, PINS, PypiSpec

if TYPE_CHECKING:
    from fattn_probe.llama.source.download import Progress as Callback


def list_sources() -> list[dict[str, Any]]:
    """Every cached or pinned source, the default first; `root` and `digest` are None for a source outside the cache."""
    from_cache, rows = {entry.spec: (name, entry) for name, entry in store.entries().items()}, list[dict[str, Any]]()
    pinned = {f"pypi:{name}=={version}": PypiSpec(name, version).build_number for name, version in PINS}
    for spec in sorted({*pinned, *from_cache}, key=lambda spec: (spec != DEFAULT_SOURCE, spec)):
        name, entry = from_cache.get(spec, ("", None))
        row: dict[str, Any] = {"spec": spec, "build_number": entry.build_number if entry else pinned[spec]}
        row |= {"pinned": spec in pinned, "default": spec == DEFAULT_SOURCE}
        rows.append(row | {"root": str(store.tree_root(name)) if entry else None, "digest": entry and entry.digest})
    return rows


def details_of(tree: Tree) -> dict[str, Any]:
    """The data of `source show`: the tree with its features, its kernels, and the shipped patches that apply."""
    return asdict(tree) | {
        "root": str(tree.root),
        "kernels": [case.name for case in kernel_cases(tree)],
        "case_parameters": case_parameters(tree.root),
        "template_parameters": kernel_parameters(tree.root),
        "patches": sorted({patch.name for patch in patches.shipped() if patches.applies(patch, tree.root)}),
    }


def render_list(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The list of sources as a table."""
    columns = ("source", "build", "pinned", "in the cache")
    words = (
        (
            f"{row['spec']} (default)" if row["default"] else row["spec"],
            row["build_number"],
            "yes" if row["pinned"] else "",
            row["root"] or "no",
        )
        for row in rows
    )
    return Table(columns, tuple(words), prose=frozenset({"in the cache"}))


def render_details(details: Mapping[str, Any]) -> RenderableType:
    """The features, kernels by family and head size, template parameters and patches, as tables."""
    title = f"{details['spec']}: llama.cpp build {details['build_number']}, digest {details['digest'][:16]}"
    features = (
        (name, ", ".join(value) if isinstance(value, tuple) else str(value))
        for name, value in details["features"].items()
    )
    kernels = []
    pairs = [name.split(" ", 1) for name in details["kernels"]]
    for family, count in Counter(family for family, _ in pairs).items():
        sizes: dict[str, None] = {}  # `64`, or `576/512` if the sizes of K and V differ
        for DKQ, DV, *_ in ((*args.split(","), "") for kind, args in pairs if kind == family):
            sizes[f"{DKQ}/{DV}" if DV.isdigit() and DV != DKQ else DKQ] = None
        kernels.append((family, str(count), ",".join(details["case_parameters"].get(family, ())), " ".join(sizes)))
    parameters = ((kernel, ", ".join(names)) for kernel, names in details["template_parameters"].items())
    columns = ("kernel", "instances", "arguments", "head sizes")
    return Group(
        Text(title),
        Text(details["root"]),
        Table(("feature", "found"), tuple(features), prose=frozenset({"found"})),
        Table(columns, tuple(kernels), frozenset({"instances"}), frozenset({"head sizes"})),
        Table(
            ("__global__ kernel", "template parameters"), tuple(parameters), prose=frozenset({"template parameters"})
        ),
        Text(f"shipped patches that apply: {', '.join(details['patches']) or 'none'}"),
    )


@contextlib.contextmanager
def download_bar(console: Console) -> Iterator["Callback"]:
    """A progress callback that draws a bar on `console` once a download has begun."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    tasks = {}

    def report(what: str, done: int, total: int | None) -> None:
        if what not in tasks:
            bar.start()
            tasks[what] = bar.add_task(what, total=total)
        bar.update(tasks[what], completed=done, total=total)

    try:
        yield report
    finally:
        bar.stop()
