"""The exact reference relative to this machine's float64 matrix product and PyTorch: D=128, 32 heads, 512 x 8192."""

import resource
import time

import numpy as np
import pytest

from fattn_probe.cases.op import Params
from fattn_probe.cases.op.values import view_values
from fattn_probe.cases.scenario import expand, loads
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.verdict.truth.reference.adapter import reference_of
from fattn_probe.verdict.truth.reference.attention import attention

OP = "version: 1\nabout: a benchmark\nhsk: 128\nn_head: 32\nn_q: 512\nn_kv: 8192\n"
SQUARE, TIMES = 2048, 4  # about as much work as the reference, so other programs slow down both
KINDS = {
    "plain": "",
    "causal": "mask: {kind: causal}\n",
    "half masked": "mask: {kind: masked_tiles, leading: 4096}\n",
    "gqa 32/8": "n_head_kv: 8\n",
    "q8_0": "n_head_kv: 8\ntype_K: q8_0\n",
    "wide logits": "data: {Q: {kind: large_logits, logit: 200}}\n",
}
SEEN = {"causal": 1 - 256 / 8192, "half masked": 0.5}  # approximate share of unmasked logits
ROUNDS = 7


class Product:
    """Square float64 matrix products with all BLAS threads, each timed."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.a, self.b = rng.standard_normal((2, SQUARE, SQUARE))
        self.out = np.empty((SQUARE, SQUARE))
        self.wall, self.cpu = [], []

    def __call__(self):
        wall, cpu = time.perf_counter(), _cpu()
        for _ in range(TIMES):
            np.matmul(self.a, self.b, out=self.out)
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(_cpu() - cpu)

    @property
    def gflop(self):
        return TIMES * 2 * SQUARE**3 / 1e9


def _cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def beside_the_product(benchmark, function, gflop):
    """Time a function alternating with the product; compares the best rounds of both."""
    product, cpu = Product(), []
    product()

    def timed():
        before = _cpu()
        function()
        cpu.append(_cpu() - before)

    benchmark.pedantic(timed, setup=product, rounds=ROUNDS, warmup_rounds=1)
    best = benchmark.stats.stats.min
    rate = product.gflop / min(product.wall)
    benchmark.extra_info |= {
        "gflop": gflop,
        "gflop_s": gflop / best,
        "product_gflop_s": rate,
        "ratio": gflop / best / rate,
        "ratio_of_cpu_time": gflop / min(cpu) / (product.gflop / min(product.cpu)),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_reference(benchmark, kind):
    (case,) = expand(loads(OP + KINDS[kind]))
    inputs = make_inputs(case)
    beside_the_product(benchmark, lambda: reference_of(case.op, inputs), case.op.sizes.flop * SEEN.get(kind, 1.0) / 1e9)


def test_torch(benchmark):
    """PyTorch's CPU scaled_dot_product_attention in float64, on the same values, also alternating with the product."""
    torch = pytest.importorskip("torch")
    (case,) = expand(loads(OP))
    inputs = make_inputs(case)
    Q, K, V = (view_values(case.op.tensors[name], inputs) for name in "QKV")
    tensors = [torch.from_numpy(values) for values in (Q, K, V)]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    theirs = sdpa(*tensors, scale=case.op.params.scale).numpy().transpose(0, 2, 1, 3)
    np.testing.assert_allclose(theirs, attention(Q, K, V, params=Params(case.op.params.scale)), rtol=1e-10, atol=1e-12)
    beside_the_product(benchmark, lambda: sdpa(*tensors, scale=case.op.params.scale), case.op.sizes.flop / 1e9)
