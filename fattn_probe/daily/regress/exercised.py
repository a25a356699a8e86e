"""Coverage: the template instances that the last runs exercised, and the kinds of op that passed on each device."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fattn_probe.daily.regress.history import History
from fattn_probe.daily.regress.records import Run, StoredCase
from fattn_probe.llama.launch.families import FAMILIES, KernelMatrix
from fattn_probe.llama.launch.record import parse_launches
from fattn_probe.machine.run.prepare import kernel_key


@dataclass(frozen=True)
class ExercisedFamily:
    """The template instances of a kernel family as a matrix; `cells` maps (row, column) to case counts by device.

    A (row, column) missing from `cells` has no instance in the source; an empty cell is an instance without a case.
    """

    name: str
    down: str
    across: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[str, str], Mapping[str, int]]

    @property
    def exercised(self) -> int:
        """The number of exercised instances."""
        return sum(bool(devices) for devices in self.cells.values())

    @property
    def used_rows(self) -> tuple[str, ...]:
        """The rows with an exercised instance."""
        used = {row for (row, _), devices in self.cells.items() if devices}
        return tuple(row for row in self.rows if row in used)

    @property
    def unused_rows(self) -> tuple[str, ...]:
        """The rows without an exercised instance."""
        used = self.used_rows
        return tuple(row for row in self.rows if row not in used)


Ops = Mapping[tuple[str, ...], Mapping[str, tuple[int, int]]]
"""The numbers of cases that passed and that ran, by kind of op and device."""


def families(history: History, runs: Iterable[Run]) -> list[ExercisedFamily]:
    """The matrix of each family: the instances in the runs' sources, and exercised instances that no source lists."""
    names, used = set[str](), defaultdict[str, Counter[str]](Counter)
    for run in runs:
        names.update(history.kernels(run.identity))
        for text, cases in history.launches(run):
            launched = {" ".join((family, ",".join(args))) for family, args in map(kernel_key, parse_launches(text))}
            for name in launched - {" "}:
                used[name][run.identity.device] += cases
    names.update(used)
    found = []
    for family in FAMILIES:
        own = [name for name in names if _split(name)[0] == family.case]
        if own:
            places = {_place(name, family.matrix): used.get(name, Counter[str]()) for name in own}
            rows, columns = (_exercised_first(places, axis) for axis in (0, 1))
            found.append(ExercisedFamily(family.case, family.matrix.down, family.matrix.across, rows, columns, places))
    return found


def _exercised_first(places: Mapping[tuple[str, str], Mapping[str, int]], axis: int) -> tuple[str, ...]:
    """The sorted rows (axis 0) or columns (axis 1), those with an exercised instance first."""
    used = {place[axis] for place, devices in places.items() if devices}
    return tuple(sorted({place[axis] for place in places}, key=lambda name: (name not in used, _order(name))))


def _split(name: str) -> tuple[str, list[str]]:
    family, _, args = name.partition(" ")
    return family, args.split(",")


def _place(name: str, matrix: KernelMatrix) -> tuple[str, str]:
    """The row and column of a kernel case in its family's matrix."""
    args = [arg.removeprefix("GGML_TYPE_").lower() for arg in _split(name)[1]]
    return ", ".join(args[place] for place in matrix.rows), matrix.joint.join(args[place] for place in matrix.columns)


def _order(text: str) -> list[tuple[int, str]]:
    return [(int(word), "") if word.isdigit() else (0, word) for word in text.replace(",", " ").split()]


def ops_of(runs: Sequence[tuple[Run, Mapping[str, StoredCase], Mapping[str, str]]]) -> Ops:
    """The matrix of ops by device, from each run's cases and their statuses."""
    rows: dict[tuple[str, ...], dict[str, tuple[int, int]]] = {}
    for run, cases, statuses in runs:
        for name, case in cases.items():
            cells = rows.setdefault(kind_of(case), {})
            passed, seen = cells.get(run.identity.device, (0, 0))
            cells[run.identity.device] = (passed + (statuses[name] == "pass"), seen + 1)
    return dict(sorted(rows.items(), key=lambda item: [_order(word) for word in item[0]]))


def kind_of(case: StoredCase) -> tuple[str, ...]:
    """The kind of a case's op: head size, types, mask, other features."""
    op, sizes, params = case.op, case.op.sizes, case.op.params
    size = f"{sizes.hsk}" if sizes.hsk == sizes.hsv else f"{sizes.hsk}, {sizes.hsv}"
    types = op.type_K if op.type_K == op.type_V else f"{op.type_K}, {op.type_V}"
    more = {"sinks": op.has_sinks, "ALiBi": params.max_bias, "softcap": params.logit_softcap}
    more |= {"n_kv_max": params.n_kv_max}
    return size, types, case.mask, ", ".join(name for name, there in more.items() if there)
