"""A warp of the mma kernel in NumPy: it leaves the readings that a debugger would, right or with a planted fault."""

import numpy as np

from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.daily.inspect.trace.checks import FLT_MAX_HALF, TracedOperands, warp_inputs
from fattn_probe.daily.inspect.trace.fragments import LANES, Fragment, WarpFragments
from fattn_probe.daily.inspect.trace.reference import judge_trace
from fattn_probe.llama.launch.tiles import TileWork
from tests.made import CAUSAL, case_of, shape

OFFSET = 3 * 0.6931
WIDE = (Fragment(16, 16, "float"), Fragment(16, 8, "half2"))
NARROW = (Fragment(16, 8, "float"), Fragment(16, 4, "half2"))
VOLTA = (Fragment(32, 8, "float"), Fragment(32, 4, "half2"))

SCENARIO = shape(64, 4, 2, 13, 300, CAUSAL)


def small_case(text=SCENARIO):
    case = case_of(text)
    return case, make_inputs(case)


CASE, INPUTS = small_case()


def f32(values):
    return np.asarray(values, np.float32)


class Warp:
    """Follows the kernel's order of quantities in f32 and f16. `fault(name, kb0, values)` may change any of them."""

    def __init__(self, case, inputs, fragments, work, *, nbatch_fa=64, fault=None):
        self.fragments, self.work, self.nbatch_fa = fragments, work, nbatch_fa
        self.inputs = warp_inputs(TracedOperands.of(case, inputs), work, fragments)
        self.fault = fault or (lambda name, kb0, values: values)
        self.numbers = nbatch_fa // fragments.np // fragments.kv_per_tile * fragments.KQ.ne
        self.DV = case.op.sizes.hsv
        self.readings = []

    def document(self):
        columns = self.fragments.state_columns() - self.fragments.first_column
        KQ = self.fragments.KQ_places(self.numbers)
        VKQ = self.fragments.VKQ_places(self.DV // self.fragments.d_per_tile * 2 * self.fragments.VKQ.ne)
        at_KQ = KQ.column - self.fragments.first_column, KQ.along
        at_VKQ = VKQ.column - self.fragments.first_column, VKQ.along
        maximum = f32(np.full(self.fragments.cols_per_warp, -FLT_MAX_HALF))
        rowsum = np.zeros((LANES, 2), np.float32)
        VKQ_C = np.zeros((self.fragments.cols_per_warp, self.DV), np.float16)
        own = np.unique(KQ.along)
        for kb0 in range(self.work.kb0_start, self.work.kb0_stop):
            at, valid = self.inputs.rows(kb0 * self.nbatch_fa + np.arange(self.nbatch_fa))
            logits = self.change("KQ", kb0, f32(self.inputs.Q @ (self.inputs.K[at] * valid[:, None]).T))
            state = {"KQ_max": maximum[columns], "KQ_rowsum": rowsum, "VKQ_C": VKQ_C[at_VKQ]}
            self.read("logits", kb0, {"KQ_C": logits[at_KQ]} | state)
            masked = logits if self.inputs.mask is None else f32(logits + self.inputs.mask[:, at])
            masked = np.where(valid, masked, -np.inf)
            new = self.change("KQ_max", kb0, np.maximum(maximum, masked[:, own].max(axis=1) + f32(OFFSET)))
            scale = self.change("KQ_max_scale", kb0, np.exp(f32(maximum - new)))
            P = self.change("P", kb0, np.exp(f32(masked - new[:, None])))
            lanes = [np.where(at_KQ[0] == columns[:, i, None], P[at_KQ], 0).sum(axis=1) for i in range(2)]
            rowsum = self.change("KQ_rowsum", kb0, f32(scale[columns] * rowsum + np.stack(lanes, axis=1)))
            maximum = new
            now = {"KQ_C": P[at_KQ], "KQ_max": new[columns], "KQ_rowsum": rowsum, "KQ_max_scale": scale[columns]}
            self.read("softmax", kb0, now)
            VKQ_C = self.change("VKQ rescaled", kb0, VKQ_C * scale.astype(np.float16)[:, None])
            self.read("rescaled", kb0, {"VKQ_C": VKQ_C[at_VKQ]})
            for first in range(0, len(own), 8):
                rows = own[first : first + 8]
                V = self.inputs.V[at[rows]] * valid[rows, None]
                weights = P[:, rows].astype(np.float16).astype(np.float64)
                VKQ_C = (VKQ_C.astype(np.float64) + weights @ V).astype(np.float16)
            VKQ_C = self.change("VKQ", kb0, VKQ_C)
        self.read("accumulated", None, {"KQ_max": maximum[columns], "KQ_rowsum": rowsum, "VKQ_C": VKQ_C[at_VKQ]})
        total = np.zeros_like(maximum)
        np.add.at(total, columns, rowsum)
        if self.inputs.sink is not None:
            new = np.maximum(maximum, f32(self.inputs.sink))
            scale = np.exp(f32(maximum - new))
            total = f32(scale * total + np.exp(f32(self.inputs.sink) - new))
            maximum, VKQ_C = new, VKQ_C * scale.astype(np.float16)[:, None]
        total = self.change("KQ_rowsum at the end", None, total)
        self.read("sunk", None, {"KQ_max": maximum[columns], "KQ_rowsum": total[columns], "VKQ_C": VKQ_C[at_VKQ]})
        return self.finished()

    def change(self, name, kb0, values):
        return self.fault(name, kb0, values.copy())

    def read(self, anchor, kb0, values):
        for lane in range(LANES - 1, -1, -1):
            mine = {
                name: (part[lane].view(np.uint16) if part.dtype == np.float16 else part[lane]).tolist()
                for name, part in values.items()
            }
            self.readings.append({"anchor": anchor, "lane": lane, "tile": 0, "kb0": kb0, "values": mine})

    def finished(self):
        fragments = self.fragments
        return {
            "function": "flash_attn_ext_f16_iter<64, 64, ...>",
            "template": {"ncols1": fragments.ncols1, "ncols2": fragments.ncols2, "nwarps": fragments.nwarps},
            "KQ": vars(fragments.KQ),
            "VKQ": vars(fragments.VKQ),
            "places": {anchor: f"fattn-mma-f16.cuh:{line}" for line, anchor in enumerate(("logits", "softmax"), 700)},
            "readings": self.readings,
            "stopped": [],
        }


def whole(jt=0, zt_gqa=0, kb0_stop=5, kb0_start=0):
    return TileWork(0, 1, zt_gqa, jt, kb0_start, kb0_stop)


def fragments_of(kind, ncols1, ncols2, warp=0, nwarps=4):
    KQ, VKQ = kind
    return WarpFragments(KQ, VKQ, ncols1, ncols2, nwarps, warp)


def judge(document, work, *, case=CASE, inputs=INPUTS, warp=0, offset=OFFSET, least=0.0):
    """What `judge_trace` makes of a warp of block 2, whose only tile is `work`."""
    return judge_trace(document, case, inputs, block=(2, 0, 0), warp=warp, tiles=[work], offset=offset, least=least)
