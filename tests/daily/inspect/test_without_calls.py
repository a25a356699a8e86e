"""A gdb that cannot call functions of the program (gdb 13 on a CPU with AMX, here a stand-in) is enough to inspect."""

import json
from pathlib import Path

import numpy as np
import pytest

from fattn_probe.machine.run.capture import read_capture
from tests.as_user import completed

pytestmark = [pytest.mark.build, pytest.mark.gdb, pytest.mark.network]

GQA = Path(__file__).parents[3] / "scenarios/gqa.yaml"
STAND_IN = "gdb -iex 'set may-call-functions off'"
LINE = "float KQ_max_new@fattn-mma-f16.cuh"
REFUSED = "Cannot call functions in the program: may-call-functions is off."


INTERFACES = pytest.mark.parametrize(
    "interface", [(), pytest.param(("--mi",), marks=pytest.mark.night)], ids=["", "mi"]
)


def probe(*words, **options):
    return completed(*words, "--debugger", STAND_IN, **options)


def inspect(*words):
    return probe("inspect", GQA, "--on", "sim:h200", *words)


@INTERFACES
def test_every_look_at_an_op(interface, tmp_path):
    done = inspect(
        *("--values", "K[:4,0,1]", "--captures", tmp_path, "--trace", "--find-nan"),
        *("--break", LINE, "--print", "kb0", "--at", "block=2,warp=1", "--json", *interface),
    )
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["inspections"]
    assert found["facts"]["launch"]["ntiles_dst"] == 2
    assert len(found["facts"]["blocks"]) == 8
    assert {item["name"]: item["differing"] for item in found["bytes"]} == {"Q": 0, "K": 0, "V": 0, "mask": 0}
    assert np.shape(found["values"]["K[:4,0,1]"]) == (1, 4)
    assert np.isfinite(read_capture(Path(found["capture"])).dst).all()
    assert found["trace"]["first_deviation"] is None
    assert [stop["values"]["kb0"] for stop in found["stops"]] == ["2"]
    assert found["not_finite"] is None


def test_the_live_debugger():
    done = probe("debug", GQA, "--on", "sim:h200", input="fattn tile\nbt\nquit\n")
    assert done.returncode == 0, done.stderr
    assert "block (0, 0, 0)" in done.stdout
    assert "std::apply" not in done.stdout
    assert "fattn-mma-f16.cuh:" in done.stdout


@INTERFACES
def test_expressions_without_a_value_have_their_reason(interface):
    wanted = ("kb0", "KQ_maxx", "nosuchvar", "ggml_nbytes(0)")
    done = inspect("--break", LINE, *(word for text in wanted for word in ("--print", text)), *interface)
    assert done.returncode == 2
    assert "kb0 = 0" in done.stdout
    place = r"flash_attn_ext_f16_iter at fattn-mma-f16.cuh:"
    said = [line for line in done.stderr.splitlines() if line.startswith("--print")]
    near, unknown, call = (line.partition(" has no value in ")[2] for line in said)
    assert all(line.startswith(place) for line in (near, unknown, call))
    assert 'No symbol "KQ_maxx" in current context. Similar names in scope: KQ_max, KQ_max_new' in near
    assert 'No symbol "nosuchvar" in current context. In scope: ' in unknown
    assert call.endswith(REFUSED)


def test_an_expression_needs_a_place():
    done = inspect("--print", "kb0")
    assert done.returncode == 2
    assert "--print 'kb0' needs --break 'PATTERN@FILE'" in done.stderr
