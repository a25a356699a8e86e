"""The registers of all warps of a block, in a file of NumPy's."""

import json

import numpy as np

from fattn_probe.daily.inspect.trace.checks import TracedOperands, warp_inputs
from fattn_probe.daily.inspect.trace.fragments import block_arrays, write_arrays
from tests.daily.inspect.traced import CASE, INPUTS, WIDE, Warp, fragments_of, whole

WORK = whole()


def written(path, documents):
    write_arrays(block_arrays(documents, (WORK,), {"case": "small"}), path)
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def warps_of_a_block():
    """Four warps, which share 16 columns: 8 queries of 2 heads."""
    fragments = [fragments_of(WIDE, 8, 2, warp) for warp in range(4)]
    return {at: Warp(CASE, INPUTS, one, WORK).document() for at, one in enumerate(fragments)}


def test_the_warps_of_a_block_hold_all_of_KQ(tmp_path):
    arrays = written(tmp_path / "block.npz", warps_of_a_block())
    assert arrays["kb0"].tolist() == [0, 1, 2, 3, 4]
    assert arrays["warp"].tolist() == [0, 1, 2, 3]
    assert (arrays["z_KV"] == 1).all()
    assert json.loads(str(arrays["about"])) == {"case": "small"}
    assert arrays["before.KQ_C"].shape == (5, 4, 32, arrays["KQ_C.column"].shape[-1])
    assert (arrays["before.KQ_C"].dtype, arrays["after.VKQ_C"].dtype) == (np.float32, np.float16)

    inputs = warp_inputs(TracedOperands.of(CASE, INPUTS), WORK, fragments_of(WIDE, 8, 2, 0))
    KQ = np.full((16, 64), np.nan)
    KQ[arrays["KQ_C.column"], arrays["KQ_C.kv_row"]] = arrays["before.KQ_C"][2]
    assert np.allclose(KQ, inputs.Q @ inputs.K[128:192].T, atol=1e-5)
    columns, d = arrays["VKQ_C.column"], arrays["VKQ_C.d"]
    places = set(zip(columns[0].flat, d[0].flat, strict=True))
    assert places == {(column, at) for column in range(16) for at in range(64)}
    assert np.array_equal(arrays["after.VKQ_C"][0], arrays["before.VKQ_C"][1])


def test_unread_registers_are_nan(tmp_path):
    documents = warps_of_a_block()
    lost = documents[1]["readings"]
    lost[:] = [reading for reading in lost if (reading["anchor"], reading["kb0"]) != ("rescaled", 3)]
    rescaled = written(tmp_path / "block.npz", documents)["rescaled.VKQ_C"]
    assert np.isnan(rescaled[3, 1]).all()
    assert np.isfinite(rescaled[3, 0]).all()
