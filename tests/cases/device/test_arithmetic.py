import csv
from pathlib import Path

import numpy as np
import pytest

from fattn_probe.cases import device
from fattn_probe.llama.launch.architecture import AMD, generation_of
from tests.made import ROOT

LAYOUTS = Path(__file__).parents[2] / "native/data/amd_layouts.npz"
TABLE = Path(device.__file__).with_name("amd_arithmetic.csv")
"""How each instruction of each architecture rounds, as the simulator executes it, and how that is known.

`products` are added before the sum is rounded to the format of the results; none for integers, which are exact.
"""
ARITHMETIC = {(row["gfx"], row["instruction"]): row for row in csv.DictReader(TABLE.read_text().splitlines())}
GFX = ("gfx906", "gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1151", "gfx1200", "gfx1201")


@pytest.mark.parametrize("gfx", GFX)
def test_every_instruction_has_an_arithmetic(gfx):
    matrices = {tuple(key.split("/")[:2]) for key in np.load(LAYOUTS)}
    wanted = {name for of, name in matrices if of == gfx} | {"v_dot2_f32_f16"}
    assert wanted <= {name for of, name in ARITHMETIC if of == gfx}


def test_sources_and_products():
    for (_, name), how in ARITHMETIC.items():
        assert how["source"] in ("AMD", "paper", "assumed") and how["document"] and how["sums"]
        assert (not how["products"]) == ("i32" in name)


@pytest.mark.parametrize("gfx", [gfx for gfx in GFX if gfx not in ("gfx906", "gfx1030")])
def test_the_error_model_adds_as_many_products(gfx):
    name = "v_mfma_f32_16x16x16_f16" if gfx.startswith("gfx9") else "v_wmma_f32_16x16x16_f16"
    assert int(ARITHMETIC[gfx, name]["products"]) == generation_of(AMD + int(gfx[3:], 16)).group


def test_dot_products_are_published_for_rdna3_and_4():
    published = [gfx for gfx in GFX if ARITHMETIC[gfx, "v_dot2_f32_f16"]["source"] == "AMD"]
    assert published == ["gfx1100", "gfx1151", "gfx1201"]


def test_one_row_of_the_docs_says_how_each_instruction_is_known():
    lines = (ROOT / "docs/guide/error-model.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    table = [(value, gpus.split(", "), how) for value, gpus, how in (row for row in rows if len(row) == 3)]
    starts = {"AMD": "AMD: ", "paper": "a paper: ", "assumed": "assumed: "}
    for (gfx, name), found in ARITHMETIC.items():
        kind = "integers" if "i32" in name else name.split("_")[1]
        about = "products of integers" if kind == "integers" else "sums of "
        known = [
            how for value, gpus, how in table if about in value and kind in value.lower() and {gfx, "all"} & {*gpus}
        ]
        assert len(known) == 1 and known[0].startswith(starts[found["source"]]), (gfx, name, known)
