"""What `inspect` takes: cases of upstream's program, parts of tensors, expected facts, undisturbed programs."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fattn_probe.base.errors import InputError, LostError, MachineError
from fattn_probe.cases.device import Target
from fattn_probe.daily.inspect import upstream
from fattn_probe.daily.inspect.command import mismatches
from fattn_probe.daily.inspect.facts import Choice, Facts
from fattn_probe.daily.inspect.inspector import MOST_ATTEMPTS, undisturbed
from fattn_probe.daily.inspect.tensors import parse_slice, part
from fattn_probe.daily.ops.parse import OpResult, OpsReport

CASE = "FLASH_ATTN_EXT(hsk=64)"


def listing(status, **other):
    results = (OpResult(CASE, status),)
    return OpsReport(("test-backend-ops", "support"), results, None, "NVIDIA H200", 1.0, **other)


def choose(monkeypatch, report):
    monkeypatch.setattr(upstream, "run_ops_on", lambda *words, **options: report)
    session = SimpleNamespace(
        build_for=lambda target, program: SimpleNamespace(test_backend_ops="test-backend-ops"), env=lambda *words: {}
    )
    inspector: Any = SimpleNamespace(session=session)
    upstream.inspect_upstream(inspector, "hsk=64", Target("cuda"))


def test_a_case_that_the_device_does_not_support(monkeypatch):
    with pytest.raises(InputError, match="supports none of the 1 cases"):
        choose(monkeypatch, listing("not-supported"))


def test_a_listing_that_did_not_end_is_lost(monkeypatch):
    with pytest.raises(LostError, match="silent for 600 s"):
        choose(monkeypatch, listing("lost", stopped="silent for 600 s"))


FACTS = Facts(
    about={},
    choice=Choice("mma_f16", "flash_attn_ext_f16<64>", {"DKQ": 64}, {"nthreads": 128}),
    launch={"ntiles_dst": 2, "blocks_num": [8, 1, 1], "use_stream_k": True, "scale": 0.125},
)


@pytest.mark.parametrize(
    "expect",
    [
        {"ntiles_dst": 2, "DKQ": 64, "nthreads": 128},
        {"blocks_num": [8, 1, 1], "blocks_num.x": 8, "blocks_num.z": 1},
        {"use_stream_k": True, "scale": 0.125},
        {},
    ],
)
def test_facts_that_hold(expect):
    assert mismatches(expect, FACTS) == []


@pytest.mark.parametrize(
    ("expect", "said"),
    [
        ({"ntiles_dst": 3, "DKQ": 64}, "ntiles_dst: expected 3, found 2"),
        ({"blocks_num.x": 92}, "blocks_num.x: expected 92, found 8"),
        ({"ntiles_dts": 2}, "ntiles_dts: expected 2, but there is no such fact; the nearest is ntiles_dst"),
    ],
)
def test_a_mismatch_shows_fact_expected_and_found_or_the_nearest_name(expect, said):
    assert mismatches(expect, FACTS) == [said]


def test_a_fact_that_is_not_there_is_not_null():
    (said,) = mismatches({"SM": None}, Facts(about={}))
    assert said.startswith("SM: expected None, but there is no such fact")


def extended(folder, times):
    """An attempt that another process disturbs so many times, by replacing a library; its result is its number."""
    (folder / "lib").mkdir()
    library = folder / "lib/libggml-cuda.so"
    attempts: list[int] = []
    library.write_text("0")

    def attempt():
        attempts.append(len(attempts))
        if len(attempts) <= times:
            part = library.with_suffix(".so.part")
            part.write_text(str(len(attempts)))
            part.replace(library)
        return attempts[-1]

    return attempt


def refused(attempt, times):
    """The same attempt, which raises as long as it is disturbed: a debugger that reads a replaced file refuses."""

    def raising():
        number = attempt()
        if number < times:
            raise MachineError("gdb refused: Dwarf Error: wrong version in compilation unit header")
        return number

    return raising


def test_an_error_of_a_disturbed_attempt_does_not_count(tmp_path):
    assert undisturbed(tmp_path, refused(extended(tmp_path, 2), 2)) == 2


def test_an_error_of_an_undisturbed_attempt_is_raised(tmp_path):
    with pytest.raises(MachineError, match="gdb refused"):
        undisturbed(tmp_path, refused(extended(tmp_path, 0), 1))


@pytest.mark.parametrize("times", [0, 1, MOST_ATTEMPTS - 1])
def test_an_attempt_is_repeated_until_nobody_extends_the_build(tmp_path, times):
    assert undisturbed(tmp_path, extended(tmp_path, times)) == times


def test_a_build_that_is_always_extended(tmp_path):
    with pytest.raises(LostError, match="another process extended"):
        undisturbed(tmp_path, extended(tmp_path, MOST_ATTEMPTS))


VALUES = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)  # ne = {5, 4, 3, 2}


def test_indices_are_in_the_order_of_ne():
    assert part(VALUES, parse_slice("K[4,0,2,1]")) == VALUES[1, 2, 0, 4]
    assert part(VALUES, parse_slice("K[-1]")).shape == (2, 3, 4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("K[5]", r"K has ne\[0\] = 5: there is no index 5"),
        ("K[0,4]", r"K has ne\[1\] = 4: there is no index 4"),
        ("K[:,:,-4]", r"K has ne\[2\] = 3: there is no index -4"),
        ("K[0,0,0,0,0]", "K has 4 dimensions: too many indices"),
    ],
)
def test_an_index_that_is_not_there_is_named_with_its_ne(text, said):
    """The message had NumPy's axis, which counts from the other end."""
    with pytest.raises(InputError, match=said):
        part(VALUES, parse_slice(text))
