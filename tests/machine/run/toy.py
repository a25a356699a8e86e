"""A small case and its inputs, written out, so that these tests need no scenario file."""

from dataclasses import dataclass, field

import numpy as np

from fattn_probe.cases.op import Op, Params, Root, TensorView
from fattn_probe.cases.op.case_file import CaseFile

N_Q, N_KV, HEADS, KV_HEADS, D = 7, 64, 4, 2, 64


@dataclass
class Toy:
    """Roots that grow by `tensor`; `record` makes the case."""

    digest: str = "0123456789abcdef"
    roots: dict = field(default_factory=dict)
    tensors: dict = field(default_factory=dict)
    inputs: dict = field(default_factory=dict)

    def root(self, name, type, values):
        """Add an allocation holding `values`, whose shape is `ne` reversed."""
        self.roots[name] = Root(name, type, (*values.shape[::-1], 1, 1, 1)[:4])
        self.inputs[name] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)

    def tensor(self, name, type, values):
        """Add an operand with its own allocation."""
        self.root(name, type, values)
        root = self.roots[name]
        self.tensors[name] = TensorView(name, type, name, root.ne, root.nb, 0)

    def values(self, name):
        """An operand with its own float allocation, as an array in the shape of `ne` reversed."""
        root = self.roots[name]
        return self.inputs[name].view({"f32": np.float32, "f16": np.float16}[root.type]).reshape(root.ne[::-1])

    def record(self, **params):
        """The case of what was added."""
        op = Op(Params(**{"scale": D**-0.5} | params), self.tensors, self.roots)
        return CaseFile("toy", self.digest, op, self.inputs)


def gqa(rng, n_seq=1):
    """Seven queries of four heads on two K/V heads, with a causal mask."""
    toy = Toy()
    toy.tensor("Q", "f32", rng.uniform(-1, 1, (n_seq, HEADS, N_Q, D)).astype(np.float32))
    toy.tensor("K", "f16", rng.uniform(-1, 1, (n_seq, KV_HEADS, N_KV, D)).astype(np.float16))
    toy.tensor("V", "f16", rng.uniform(-1, 1, (n_seq, KV_HEADS, N_KV, D)).astype(np.float16))
    hidden = np.arange(N_KV)[None, :] > np.arange(N_Q)[:, None] + N_KV - N_Q
    toy.tensor("mask", "f16", np.where(hidden, -np.inf, 0.0).astype(np.float16)[None, None])
    return toy
