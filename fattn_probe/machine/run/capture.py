"""The files of a run: a case's input bytes, the part of an op to run, and the capture.

A capture is a GGUF file with all results of one run of one case.
"""

import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFValueType

from fattn_probe.base.arrays import I64, Bytes, Indices
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import scratch
from fattn_probe.cases.op import Sizes
from fattn_probe.cases.op.case_file import (
    CaseFile,
    Named,
    QuantBlocks,
    case_fields,
    case_of,
    case_tensors,
    read_case,
    share,
)
from fattn_probe.cases.op.gguf_file import TensorData, allocate_gguf, array, read_gguf, string, write_gguf, write_hollow
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.inputs import fill_root, make_inputs
from fattn_probe.llama.launch.record import LaunchRecord, Names, Types, parse_launches
from fattn_probe.llama.launch.selection import Selection
from fattn_probe.machine.run.outcome import Ran, read_dst

LARGE = 1 << 30
"""Inputs with at least this many bytes are kept in a file, not in memory."""


class FiledInputs(dict[str, Bytes]):
    """The bytes of a case's roots, mapped from a case file."""

    def __init__(self, file: Path, roots: Mapping[str, Bytes]) -> None:
        super().__init__(roots)
        self.file = file


def make_case_file(case: Case, path: Path) -> FiledInputs:
    """Write a case file, generating the inputs one head at a time, or copying those of a recorded case."""
    roots = {name: (root.type, root.stored.ne) for name, root in case.op.roots.items()}
    mapped = allocate_gguf(path, case_fields(case.name, case.digest, case.op), roots)
    recorded = make_inputs(case) if case.recorded else {}
    for name, memory in mapped.items():
        if case.recorded:
            memory[:] = recorded[name][: memory.size]
        else:
            fill_root(case, name, memory)
    return FiledInputs(path, read_case(path).inputs)


def make_dry_file(case: Case, path: Path) -> FiledInputs:
    """Write a case file for a dry run, without the bytes of its roots."""
    roots = {name: (root.type, root.stored.ne) for name, root in case.op.roots.items()}
    write_hollow(path, case_fields(case.name, case.digest, case.op), roots)
    return FiledInputs(path, {})


@contextmanager
def inputs_of(case: Case) -> Iterator[Mapping[str, Bytes]]:
    """The bytes of a case's roots; for a large case, in a temporary case file."""
    if sum(root.stored.nbytes for root in case.op.roots.values()) < LARGE:
        yield make_inputs(case)
        return
    with scratch() as folder:
        yield make_case_file(case, folder / "case.gguf")


@dataclass(frozen=True, eq=False)
class Part:
    """A part of an op: the blocks to run on a simulated GPU (a real GPU runs them all), and the `rows` of dst to read.

    Each entry of `rows` is the (sequence, query, head) of a row of dst.
    """

    selection: Selection
    rows: I64

    @property
    def share(self) -> float:
        """The fraction of the attention kernel's blocks that run."""
        attention = self.selection.launches[self.selection.attention]
        return attention.number / attention.of


def write_part(part: Part, sizes: Sizes, path: Path) -> None:
    """Write a part's file: for each launch, its grid, the number of ranges and the ranges; for dst, (offset, bytes)."""
    blocks = list[int]()
    for launch in part.selection.launches:
        blocks += [*launch.grid, len(launch.ranges), *chain(*launch.ranges)]
    sequence, query, head = part.rows.T
    places: Indices = np.unique((sequence * sizes.n_q + query) * sizes.n_head + head)
    row, dst = 4 * sizes.hsv, list[int]()
    for run in np.split(places, np.flatnonzero(np.diff(places) != 1) + 1):
        dst += [int(run[0]) * row, len(run) * row]
    fields = {"fattn.selection.blocks": blocks, "fattn.selection.dst": dst}
    write_gguf(path, {key: array(GGUFValueType.UINT64, values) for key, values in fields.items()}, {})


PROVENANCE = "fattn.provenance."


@dataclass(frozen=True, eq=False)
class Capture(CaseFile):
    """One run of one case.

    `dst` is float32 (n_seq, n_q, n_head, hsv), dst's `ne` reversed. `launches` are from the first run. `seconds`
    has the time of each repeat, measured by `clock` (`gpu` or `wall`, see RunResult); empty if nothing was timed.
    `provenance` records the source, build, device and versions.
    """

    dst: npt.NDArray[np.float32]
    launches: tuple[LaunchRecord, ...]
    clock: str
    seconds: tuple[float, ...]
    backend: str
    device: str
    provenance: Mapping[str, str]

    @property
    def median_seconds(self) -> float:
        """The median of the repeats' times."""
        return statistics.median(self.seconds)


def capture_of(case: Named, inputs: Mapping[str, Bytes], ran: Ran, provenance: Mapping[str, str]) -> Capture:
    """The capture of a completed run."""
    result = ran.result
    if result.dst is None:
        raise InputError(f"{case.name}: nothing was computed (--support-only), so there is nothing to capture")
    if result.digest != case.digest:
        raise InputError(f"{case.name}: the result is for case {result.digest}, not for {case.digest}")
    return Capture(
        name=case.name,
        digest=case.digest,
        op=case.op,
        inputs=inputs,
        dst=result.dst,
        launches=ran.launches,
        clock=result.clock,
        seconds=result.seconds,
        backend=result.backend,
        device=result.device,
        provenance=provenance,
    )


def write_capture(capture: Capture, path: Path, blocks: QuantBlocks | None = None) -> None:
    """Write a capture, completely or not at all; with `blocks`, large inputs go to the folder's file of blocks."""
    fields = case_fields(capture.name, capture.digest, capture.op) | {
        "fattn.run.backend": string(capture.backend),
        "fattn.run.device": string(capture.device),
        "fattn.run.clock": string(capture.clock),
        "fattn.launches": array(GGUFValueType.STRING, [launch.to_json() for launch in capture.launches]),
    }
    if capture.seconds:  # GGUF has no empty arrays
        fields["fattn.run.seconds"] = array(GGUFValueType.FLOAT64, capture.seconds)
    fields |= {PROVENANCE + key: string(value) for key, value in capture.provenance.items()}
    n_seq, n_q, n_head, hsv = capture.dst.shape
    bytes_of_dst = np.ascontiguousarray(capture.dst, dtype=np.float32).reshape(-1).view(np.uint8)
    tensors = case_tensors(capture.op, capture.inputs)
    if blocks is not None:
        fields |= share(tensors, blocks)
    tensors["dst"] = TensorData("f32", (hsv, n_head, n_q, n_seq), bytes_of_dst)
    write_gguf(path, fields, tensors)


def read_capture(path: Path, *, types: Types | None = None, names: Names | None = None) -> Capture:
    """Read a capture; InputError if the file is truncated or not a capture."""
    file = read_gguf(path)
    lines = "\n".join(file.several("fattn.launches", str))
    return Capture(
        **vars(case_of(file)),
        dst=read_dst(file),
        launches=parse_launches(lines, types=types, names=names),
        clock=file.one("fattn.run.clock", str),
        seconds=file.several("fattn.run.seconds", float),
        backend=file.one("fattn.run.backend", str),
        device=file.one("fattn.run.device", str),
        provenance=file.section(PROVENANCE),
    )
