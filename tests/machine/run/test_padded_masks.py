"""A ggml that asks for mask rows in multiples of 64 gets them, and the verdict is on the rows that the op has."""

import pytest

from fattn_probe.llama.source import resolve
from fattn_probe.llama.source.spec import releases
from tests.as_user import answer
from tests.made import shape

ASKS = "pypi:pywhispercpp==1.4.1"  # whisper.cpp of late 2025
WIDE = shape(64, 4, 4, 5, 256, "n_seq: 2", "mask: {kind: random}", "layout: {mask: {columns: 320}}")


@pytest.mark.build
@pytest.mark.night
@pytest.mark.network
def test_its_cases_pass(tmp_path):
    wide = tmp_path / "wide.yaml"
    wide.write_text(WIDE)
    rows = answer("compare", "gqa", "decode", str(wide), "--on", "sim:h200", "--source", ASKS, code=0)["rows"]
    assert [row["status"] for row in rows] == ["pass"] * 3


@pytest.mark.network
@pytest.mark.night
@pytest.mark.parametrize("source", [release.source for release in releases()])
def test_a_tree_has_the_constant_if_it_asks(source):
    """The runner pads where ggml.h has GGML_KQ_MASK_PAD."""
    ggml = resolve(source).root / "ggml"
    asks = "GGML_ASSERT(mask->ne[1] >= GGML_PAD(q->ne[1], GGML_KQ_MASK_PAD)" in (ggml / "src/ggml.c").read_text()
    assert ("#define GGML_KQ_MASK_PAD" in (ggml / "include/ggml.h").read_text()) == asks
