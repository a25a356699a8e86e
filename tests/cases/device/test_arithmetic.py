from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from fattn_probe.cases.device.arithmetic import Source, amd_arithmetic

LAYOUTS = Path(__file__).parents[2] / "native/data/amd_layouts.npz"
GFX = ("gfx906", "gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1151", "gfx1200", "gfx1201")


@pytest.mark.parametrize("gfx", GFX)
def test_every_instruction_has_an_arithmetic(gfx):
    matrices = {tuple(key.split("/")[:2]) for key in np.load(LAYOUTS)}
    wanted = {name for of, name in matrices if of == gfx} | {"v_dot2_f32_f16"}
    assert wanted <= {name for of, name in amd_arithmetic() if of == gfx}


def test_sources_and_products():
    for (_, name), how in amd_arithmetic().items():
        assert how.source in get_args(Source) and how.document and how.sums
        assert (how.products == 0) == ("i32" in name)


def test_how_the_gpus_sum():
    products = {gfx: how.products for (gfx, name), how in amd_arithmetic().items() if name.endswith("_16x16x16_f16")}
    assert products == {
        **{"gfx908": 4, "gfx90a": 4, "gfx942": 8},
        **{"gfx1100": 2, "gfx1151": 2, "gfx1200": 4, "gfx1201": 4},
    }
    assert [gfx for gfx in GFX if amd_arithmetic()[gfx, "v_dot2_f32_f16"].source == "AMD"] == [
        "gfx1100",
        "gfx1151",
        "gfx1201",
    ]
