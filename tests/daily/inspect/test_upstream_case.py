"""What `inspect` takes: cases of upstream's program, parts of tensors, expected facts, undisturbed programs."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fattn_probe.base.errors import InputError, LostError
from fattn_probe.cases.device import Target
from fattn_probe.daily.inspect.command import mismatches
from fattn_probe.daily.inspect.examine import inspect_upstream
from fattn_probe.daily.inspect.facts import Choice, Facts
from fattn_probe.daily.inspect.tensors import parse_slice, part
from fattn_probe.daily.ops import rounds
from fattn_probe.daily.ops.parse import OpResult, OpsReport
from fattn_probe.llama.build import TEST_BACKEND_OPS, Build, at_rest


def listing(status, **other):
    results = (OpResult("FLASH_ATTN_EXT(hsk=64)", status),)
    return OpsReport(("test-backend-ops", "support"), results, None, "NVIDIA H200", 1.0, **other)


def choose(monkeypatch, report):
    monkeypatch.setattr(rounds, "run_ops_on", lambda *words, **options: report)
    session = SimpleNamespace(
        build_for=lambda target, program: SimpleNamespace(test_backend_ops="test-backend-ops"), env=lambda *words: {}
    )
    inspector: Any = SimpleNamespace(session=session)
    list(inspect_upstream(inspector, TEST_BACKEND_OPS, "hsk=64", [Target("cuda")]))


def test_a_case_that_the_device_does_not_support_and_a_listing_that_did_not_end(monkeypatch):
    with pytest.raises(InputError, match="supports none of the 1 cases"):
        choose(monkeypatch, listing("not-supported"))
    with pytest.raises(LostError, match="silent for 600 s"):
        choose(monkeypatch, listing("lost", stopped="silent for 600 s"))


FACTS = Facts(
    about={},
    choice=Choice("mma_f16", "flash_attn_ext_f16<64>", {"DKQ": 64}, {"nthreads": 128}),
    launch={"ntiles_dst": 2, "blocks_num": [8, 1, 1], "use_stream_k": True, "scale": 0.125},
)


@pytest.mark.parametrize(
    ("expect", "said"),
    [
        ({"ntiles_dst": 2, "DKQ": 64, "nthreads": 128}, []),
        ({"blocks_num": [8, 1, 1], "blocks_num.x": 8, "blocks_num.z": 1}, []),
        ({"use_stream_k": True, "scale": 0.125}, []),
        ({}, []),
        ({"ntiles_dst": 3, "DKQ": 64}, ["ntiles_dst: expected 3, found 2"]),
        ({"blocks_num.x": 92}, ["blocks_num.x: expected 92, found 8"]),
        ({"ntiles_dts": 2}, ["ntiles_dts: expected 2, but there is no such fact; the nearest is ntiles_dst"]),
    ],
)
def test_a_mismatch_shows_fact_expected_and_found_or_the_nearest_name(expect, said):
    assert mismatches(expect, FACTS) == said


def test_a_fact_that_is_not_there_is_not_null():
    (said,) = mismatches({"SM": None}, Facts(about={}))
    assert said.startswith("SM: expected None, but there is no such fact")


def test_another_process_that_links_does_not_change_what_a_debugger_reads(tmp_path):
    """ld removes its output and writes a new file; the debugger opens the old one by its name, after the program."""
    for name in ("bin/fattn-runner", "lib/libggml-cuda.so"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("old")
    manifest: Any = SimpleNamespace()
    with at_rest(Build(tmp_path, manifest)) as programs:
        library = tmp_path / "lib/libggml-cuda.so"
        library.unlink()
        library.write_text("new")
        assert (programs.folder / "lib/libggml-cuda.so").read_text() == "old"
        assert programs.runner.read_text() == "old"
    assert not programs.folder.exists()
    assert library.read_text() == "new"


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
