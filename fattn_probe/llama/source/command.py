"""`fattn-probe source list`, `get` and `show`: their records and tables."""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.text import Text

from fattn_probe.base.tables import Table
from fattn_probe.llama.source import kernel_cases, patches, resolve, store, template_parameters
from fattn_probe.llama.source.features import Features, case_parameters
from fattn_probe.llama.source.spec import DEFAULT_SOURCE, PINS

if TYPE_CHECKING:
    from fattn_probe.llama.source.download import Progress as Callback


@dataclass(frozen=True)
class SourceRow:
    """A source that is in the cache or pinned; `root` and `digest` are None while it is not in the cache."""

    spec: str
    build_number: str
    pinned: bool
    default: bool
    root: str | None
    digest: str | None


@dataclass(frozen=True)
class SourceSummary:
    """The result of `source get`."""

    spec: str
    root: str
    build_number: str
    digest: str
    era: str


@dataclass(frozen=True)
class SourceDetails:
    """The result of `source show`: features, kernels, and the shipped patches that apply."""

    spec: str
    root: str
    build_number: str
    digest: str
    features: Features
    kernels: tuple[str, ...]
    case_parameters: dict[str, list[str]]
    template_parameters: dict[str, list[str]]
    patches: tuple[str, ...]


def list_sources() -> list[SourceRow]:
    """Every cached or pinned source, the default first."""
    from_cache = {entry.spec: (name, entry) for name, entry in store.entries().items()}
    pinned = {f"pypi:{name}=={version}" for name, version in PINS}
    rows = [source_row(spec, spec in pinned, from_cache.get(spec)) for spec in sorted(pinned | set(from_cache))]
    return sorted(rows, key=lambda row: not row.default)


def source_row(spec: str, pinned: bool, cached: tuple[str, store.SourceEntry] | None) -> SourceRow:
    """One row of the list."""
    default = spec == DEFAULT_SOURCE
    if cached is None:
        return SourceRow(spec, "?", pinned, default, None, None)
    name, entry = cached
    return SourceRow(spec, entry.build_number, pinned, default, str(store.tree_root(name)), entry.digest)


def get_source(spec: str, progress: "Callback | None" = None, *, unverified: bool = False) -> SourceSummary:
    """Fetch a source if it is not in the cache; `unverified` as for `resolve`."""
    tree = resolve(spec, progress, unverified=unverified)
    return SourceSummary(tree.spec, str(tree.root), tree.build_number, tree.digest, tree.features.era)


def show_source(spec: str, progress: "Callback | None" = None) -> SourceDetails:
    """Fetch a source if it is not in the cache, and describe it."""
    tree = resolve(spec, progress)
    fitting = {patch.name for patch in patches.shipped() if patches.applies(patch, tree.root)}
    return SourceDetails(
        spec=tree.spec,
        root=str(tree.root),
        build_number=tree.build_number,
        digest=tree.digest,
        features=tree.features,
        kernels=tuple(case.name for case in kernel_cases(tree)),
        case_parameters=case_parameters(tree.root),
        template_parameters=template_parameters(tree),
        patches=tuple(sorted(fitting)),
    )


def render_list(rows: list[SourceRow]) -> RenderableType:
    """The list as a table."""
    columns = ("source", "build", "pinned", "in the cache")
    words = (
        (
            f"{row.spec} (default)" if row.default else row.spec,
            row.build_number,
            "yes" if row.pinned else "",
            row.root or "no",
        )
        for row in rows
    )
    return Table(columns, tuple(words), prose=frozenset({"in the cache"}))


def render_summary(summary: SourceSummary) -> RenderableType:
    """Two lines: the build and the folder."""
    return Text(f"{summary.spec}: llama.cpp build {summary.build_number}, era {summary.era}\n{summary.root}")


def render_details(details: SourceDetails) -> RenderableType:
    """Features, kernels by family and head size, template parameters, and patches."""
    title = f"{details.spec}: llama.cpp build {details.build_number}, digest {details.digest[:16]}"
    parts: list[RenderableType] = [Text(title), Text(details.root), features_table(details.features)]
    parts += [kernels_table(details.kernels, details.case_parameters), parameters_table(details.template_parameters)]
    return Group(*parts, Text(f"shipped patches that apply: {', '.join(details.patches) or 'none'}"))


def features_table(features: Features) -> Table:
    """The features, one per row."""
    rows = (
        (name, ", ".join(value) if isinstance(value, tuple) else str(value)) for name, value in asdict(features).items()
    )
    return Table(("feature", "found"), tuple(rows), prose=frozenset({"found"}))


def kernels_table(kernels: tuple[str, ...], parameters: Mapping[str, list[str]]) -> Table:
    """The number of instances by family and head size (or pair of types)."""
    pairs = [name.split(" ", 1) for name in kernels]
    rows = []
    for family, count in Counter(family for family, _ in pairs).items():
        sizes = dict.fromkeys(head_sizes(args) for kind, args in pairs if kind == family)
        rows.append((family, str(count), ",".join(parameters.get(family, ())), " ".join(sizes)))
    columns = ("kernel", "instances", "arguments", "head sizes")
    return Table(columns, tuple(rows), frozenset({"instances"}), frozenset({"head sizes"}))


def head_sizes(args: str) -> str:
    """`64`, or `576/512` where K and V differ."""
    DKQ, DV, *_ = (*args.split(","), "")
    return f"{DKQ}/{DV}" if DV.isdigit() and DV != DKQ else DKQ


def parameters_table(parameters: dict[str, list[str]]) -> Table:
    """Each kernel's template parameters."""
    rows = ((kernel, ", ".join(names)) for kernel, names in parameters.items())
    columns = ("__global__ kernel", "template parameters")
    return Table(columns, tuple(rows), prose=frozenset(columns[1:]))


@contextlib.contextmanager
def download_bar(console: Console) -> Iterator["Callback"]:
    """A progress callback that draws a bar on `console` from the first byte of a download on."""
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
