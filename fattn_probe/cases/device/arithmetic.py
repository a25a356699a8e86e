"""How AMD's instructions round, and how that is known (`amd_arithmetic.csv`)."""

import csv
import functools
import io
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal, cast

Source = Literal["AMD", "paper", "assumed"]


@dataclass(frozen=True)
class Arithmetic:
    """One instruction of one architecture, as the simulator executes it.

    `products` are added before the sum is rounded to the format of the results; 0 for integers, which are exact.
    `flushes`: denormal factors count as 0. `source` says whether AMD has published this, or a paper, named by
    `document`; without either it is `assumed`.
    """

    products: int
    flushes: bool
    sums: str
    source: Source
    document: str


@functools.cache
def amd_arithmetic() -> Mapping[tuple[str, str], Arithmetic]:
    """The instructions by architecture and name: ("gfx90a", "v_mfma_f32_16x16x16_f16")."""
    text = (files("fattn_probe.cases.device") / "amd_arithmetic.csv").read_text()
    return {
        (row["gfx"], row["instruction"]): Arithmetic(
            products=int(row["products"] or 0),
            flushes=row["denormals"] == "flushed",
            sums=row["sums"],
            source=cast(Source, row["source"]),
            document=row["document"],
        )
        for row in csv.DictReader(io.StringIO(text))
    }
