"""Compare an engine with a recording of a real GPU: launches, bits, NMSE.

A recording is small: for each output it has the launches, the sha256, and at most SAMPLES of the floats, evenly spaced,
with which a disagreement can be measured. A recording of upstream's own list has hashes of the launches and the output
of each case.
"""

import csv
import gzip
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fattn_probe.base.arrays import F32
from fattn_probe.base.digest import short
from fattn_probe.base.errors import InputError
from fattn_probe.llama.launch.record import LaunchRecord, Names, Types, parse_launches
from fattn_probe.machine.run.capture import Capture
from fattn_probe.verdict.measure.metrics import digest_of, nmse

SAMPLES = 4096
DIGITS = 16
COLUMNS = ("case", "digest", "launches", "output")


@dataclass(frozen=True)
class Recorded:
    """One case of a recording; `digest` is the case's digest, `sample` is `dst.ravel()[::stride_of(dst.size)]`."""

    digest: str
    sha256: str
    sample: F32
    launches: tuple[LaunchRecord, ...]


@dataclass(frozen=True)
class Agreement:
    """An output compared with a recorded one: identical floats and NMSE over the sample, and whether all bits agree."""

    launches: bool
    all_bits: bool
    share: float
    nmse: float


def stride_of(elements: int) -> int:
    """The stride with which a sample has at most SAMPLES floats; it is odd, so that the sample reaches every column."""
    return max(1, -(-elements // SAMPLES)) | 1


def write_recording(captures: Sequence[Capture], path: Path, about: dict[str, str]) -> None:
    """Write PATH.json and PATH.npz; `about` has device, driver and date."""
    cases = {}
    for capture in captures:
        cases[capture.name] = {
            "digest": capture.digest,
            "sha256": digest_of(capture.dst),
            "launches": [launch.to_json() for launch in capture.launches],
        }
    samples = {item.name: item.dst.ravel()[:: stride_of(item.dst.size)] for item in captures}
    np.savez_compressed(path.with_suffix(".npz"), **samples)  # type: ignore[arg-type]
    path.with_suffix(".json").write_text(json.dumps({"about": about, "cases": cases}, indent=1) + "\n")


def read_recording(path: Path, types: Types, names: Names) -> tuple[dict[str, str], dict[str, Recorded]]:
    """A recording's description (`about`), and its cases by name."""
    try:
        text: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
        samples = dict(np.load(path.with_suffix(".npz")))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a recording of a GPU: {error}") from error
    cases = {
        name: Recorded(
            digest=value["digest"],
            sha256=value["sha256"],
            sample=samples[name],
            launches=parse_launches("\n".join(value["launches"]), types=types, names=names),
        )
        for name, value in text["cases"].items()
    }
    return text["about"], cases


def agreement(recorded: Recorded, dst: F32, launches: Sequence[LaunchRecord]) -> Agreement:
    """Compare an output and its launches with the recorded ones.

    NaN counts as equal to NaN. The NMSE omits equal non-finite elements, and is NaN if other elements are not finite.
    """
    here = dst.ravel()[:: stride_of(dst.size)]
    there = recorded.sample
    if here.shape != there.shape:
        raise InputError(f"the recorded output has a different size: {there.size} floats kept, not {here.size}")
    finite = np.isfinite(there) & np.isfinite(here)
    same = (here == there) | (np.isnan(here) & np.isnan(there))
    return Agreement(
        launches=tuple(launches) == recorded.launches,
        all_bits=digest_of(dst) == recorded.sha256,
        share=float(np.mean(same)),
        nmse=nmse(here[finite], there[finite].astype(np.float64)) if (same | finite).all() else float("nan"),
    )


class Hashes(NamedTuple):
    """Hashes of a case: the digest of its inputs, and 16 digits each of the sha256 of its launches and its output."""

    digest: str
    launches: str
    output: str


def hashes_of(digest: str, launches: str, output: str) -> Hashes:
    """The hashes of a case: its digest, its launches in words, the sha256 of its output."""
    return Hashes(digest, short(launches, DIGITS), output[:DIGITS])


def exported(lines: Iterable[str]) -> dict[str, Hashes]:
    """The cases with an output in the CSV of `history export`, by name."""
    return {
        row["case"]: hashes_of(row["digest"], row["launches"], row["output"]) for row in rows_of(lines) if row["output"]
    }


def rows_of(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """The rows of a CSV that has the columns of a recording."""
    rows = csv.DictReader(lines)
    try:
        if missing := set(COLUMNS) - set(rows.fieldnames or ()):
            raise InputError(f"not the CSV of `fattn-probe history export`: it has no column {min(missing)!r}")
        yield from rows
    except csv.Error as error:
        raise InputError(f"not the CSV of `fattn-probe history export`: {error}") from error


def write_hashes(hashes: Mapping[str, Hashes], path: Path) -> None:
    """Write PATH, a gzipped CSV."""
    with gzip.GzipFile(path, "wb", mtime=0) as packed, io.TextIOWrapper(packed, newline="") as text:
        table = csv.writer(text, lineterminator="\n")
        table.writerow(COLUMNS)
        table.writerows((name, *item) for name, item in sorted(hashes.items()))


def read_hashes(path: Path) -> dict[str, Hashes]:
    """The cases in a file that `write_hashes` wrote."""
    with gzip.open(path, "rt", newline="") as lines:
        return {row["case"]: Hashes(*(row[name] for name in Hashes._fields)) for row in rows_of(lines)}
