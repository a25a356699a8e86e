"""Two captures of one op, read from files: the differences have tiles and blocks, by each capture's launches."""

import dataclasses
import json

import numpy as np
import pytest

from fattn_probe.cli.compare import compare_files
from fattn_probe.machine.run.capture import read_capture, write_capture
from fattn_probe.verdict.diagnose.difference import compare_captures
from fattn_probe.verdict.present.tables import difference_as_json, render_difference
from tests.made import CAUSAL, captured, case_of, shape, shown, target

pytestmark = [pytest.mark.build, pytest.mark.network]


def one(session, n_q, on="sim:h200", text="", n_kv=2048):
    return captured(session, case_of(shape(64, 8, 2, n_q, n_kv, CAUSAL) + text), target(on))


def read_back(capture, path, spoil=lambda dst: None):
    dst = capture.dst.copy()
    spoil(dst)
    write_capture(dataclasses.replace(capture, dst=dst), path)
    return read_capture(path)


def test_a_tile_that_differs_is_named_with_its_blocks_and_equal_captures_have_none(session, tmp_path, capsys):
    capture = one(session, 64)

    def spoil(dst):
        dst[0, 16:32, 4:8] *= np.float32(1.5)

    a, b = read_back(capture, tmp_path / "a.gguf"), read_back(capture, tmp_path / "b.gguf", spoil)
    found = compare_captures(a, b)
    for cut in found.cuts:
        assert cut.tiles == ((0, 1, 0, 1),)
        assert cut.of == 8
        assert cut.blocks == found.worst[0].a.blocks
    assert {(row.a.tile, row.b.tile) for row in found.worst} == {((0, 1, 0, 1), (0, 1, 0, 1))}
    assert all(row.b.value == np.float32(1.5) * np.float32(row.a.value) for row in found.worst)
    assert f"all of the seams of blocks {found.cuts[0].blocks[0]} to {found.cuts[0].blocks[-1]}" in found.reason
    document = json.loads(json.dumps(difference_as_json(found), allow_nan=False))
    assert document["cuts"][0]["tiles"] == [{"sequence": 0, "z_KV": 1, "zt_gqa": 0, "jt": 1}]
    assert document["rows"][0]["a"]["blocks"] == list(found.cuts[0].blocks)
    assert "1 of 8 output tiles (tile 0, 1, 0, 1), computed by block" in shown(render_difference(found))
    paths = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    found = compare_captures(*(read_back(capture, path) for path in paths))
    assert (found.cuts, found.worst) == ((None, None), ())
    compare_files(paths, as_json=True)
    assert json.loads(capsys.readouterr().out)["status"] == "pass"


@pytest.mark.slow
def test_two_gpus_a_kernel_without_stream_k_and_the_cpu_divide_the_output_differently(session, tmp_path):
    h200 = read_back(one(session, 8, n_kv=8192), tmp_path / "a.gguf")
    other = read_back(one(session, 8, "sim:h200-5", n_kv=8192), tmp_path / "b.gguf")
    found = compare_captures(h200, other, ("h200", "h200-5"))
    assert [len(cut.blocks) for cut in found.cuts] == [h200.launches[0].grid[0], other.launches[0].grid[0]]
    assert found.worst[0].a.blocks != found.worst[0].b.blocks
    text = "type_K: q8_0\n"
    vec = read_back(one(session, 1, text=text), tmp_path / "a.gguf")
    cpu = read_back(one(session, 1, "cpu", text), tmp_path / "b.gguf")
    assert vec.launches
    found = compare_captures(vec, cpu)
    assert found.cuts[1] is None
    assert found.cuts[0].blocks
    assert (found.worst[0].b.tile, found.worst[0].b.blocks) == (None, ())
