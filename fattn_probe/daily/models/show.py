"""The table of captured ops: identical ops of several layers and steps share a row."""

from collections.abc import Iterable, Sequence
from types import MappingProxyType

from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.tables import Table
from fattn_probe.cases.op import Op
from fattn_probe.daily.models.program import size_text
from fattn_probe.daily.models.recorded_op import Index, IndexEntry
from fattn_probe.daily.models.statistics import PAGE, Statistics
from fattn_probe.daily.models.statistics import table as table_of
from fattn_probe.verdict.measure.wrong_rows import runs

COLUMNS = ("layers", "steps", "Q", "K", "V", "types", "params", "size")


def render(index: Index, folder: str, values: Statistics = MappingProxyType({})) -> RenderableType:
    """Render the ops with their properties, the statistics of their values if requested, and their folder."""
    groups: dict[tuple[str, ...], list[IndexEntry]] = {}
    for entry in index.entries:
        groups.setdefault((entry.offer.phase, *described(entry.op)), []).append(entry)
    table = Table(COLUMNS, tuple(row(words, entries) for words, entries in groups.items()), heading=("layers", "steps"))
    of_values = (Text(), table_of(values), Text(f"by head: {folder}/{PAGE}")) if values else ()
    return Group(table, *of_values, Text(), *(Text(line) for line in remarks(index, folder)))


def described(op: Op) -> tuple[str, ...]:
    """Shapes, types and parameters of an op."""
    Q, K, V = (op.tensors[name] for name in "QKV")
    extra = {name: op.tensors[name].type for name in ("mask", "sinks") if name in op.tensors}
    types = dict.fromkeys([K.type, V.type])
    params = {"softcap": op.params.logit_softcap, "max_bias": op.params.max_bias, "n_kv_max": op.params.n_kv_max}
    said = [*extra, *(f"{name} {value:g}" for name, value in params.items() if value)]
    said += ["V is a view of K"] if K.root == V.root else []
    shapes = ("x".join(map(str, view.ne)) for view in (Q, K, V))
    return (*shapes, "-".join(types), ", ".join(said))


def row(words: tuple[str, ...], entries: Sequence[IndexEntry]) -> tuple[str, ...]:
    """The table row of a group of identical ops."""
    phase, *rest = words
    layers, steps = (ranges({getattr(entry.offer, name) for entry in entries}) for name in ("layer", "step"))
    return (layers, f"{steps} {phase}", *rest, size_text(sum(entry.offer.bytes for entry in entries)))


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as ranges: `0, 5-7`."""
    found = runs(sorted(numbers))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def remarks(index: Index, folder: str) -> list[str]:
    """Notes on recorded and left-out ops."""
    said = [f"{len(index.entries)} ops, {size_text(index.bytes)}, in {folder}"]
    if index.left_out:
        said.append(f"{len(index.left_out)} ops did not fit in --budget, starting with {index.left_out[0]}")
    if index.run["finite"] is False:
        said.append("the model's logits have NaN or infinities")
    if (place := index.run.get("model_on", "cpu")) != "cpu":
        counts = {device: sum(ops.values()) for device, ops in index.run["ran_on"].items()}
        elsewhere = ", ".join(sorted(index.run["ran_on"].get("CPU", {})))
        share = f"; {counts['CPU']} of its {sum(counts.values())} ops ran on the CPU: {elsewhere}" if elsewhere else ""
        said.append(f"the model ran on {place}{share}")
    return said
