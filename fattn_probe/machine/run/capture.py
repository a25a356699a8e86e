"""The capture: all results of one run of one case, in one GGUF file."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFValueType

from fattn_probe.base.arrays import Bytes
from fattn_probe.base.errors import InputError
from fattn_probe.cases.op.case_file import CaseFile, Named, QuantBlocks, case_fields, case_of, case_tensors, share
from fattn_probe.cases.op.gguf_file import TensorData, array, read_gguf, string, write_gguf
from fattn_probe.llama.launch.record import LaunchRecord, Names, Types, parse_launches
from fattn_probe.machine.run.outcome import Ran, read_dst

PROVENANCE = "fattn.provenance."


@dataclass(frozen=True, eq=False)
class Capture(CaseFile):
    """One run of one case.

    `dst` is float32 (n_seq, n_q, n_head, hsv), dst's `ne` reversed; `launches` are those of the first run; `seconds`
    has the time of each repeat, measured by `clock` (`gpu` or `wall`, see RunResult), empty if nothing was timed;
    `provenance` says what ran where.
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
        """The median over the repeats."""
        return statistics.median(self.seconds)


def capture_of(case: Named, inputs: Mapping[str, Bytes], ran: Ran, provenance: Mapping[str, str]) -> Capture:
    """The capture of a case that completed."""
    result = ran.result
    if result.dst is None:
        raise InputError(f"{case.name}: nothing was computed (--support-only), so there is nothing to capture")
    if result.digest != case.digest:
        raise InputError(f"{case.name}: the result is of case {result.digest}, not of {case.digest}")
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
    """Write a capture completely or not at all; with `blocks`, its large inputs are in the folder's file of blocks."""
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
    """Read a capture; InputError for a truncated file, or one that is not a capture."""
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
