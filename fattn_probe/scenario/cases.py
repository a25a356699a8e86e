"""A scenario's cases, each one fully resolved op, and their inputs."""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fattn_probe.arrays import F32, Bytes
from fattn_probe.op import Op, Params, Root, TensorView
from fattn_probe.op.ggml_types import block_size, encode, nan_blocks, row_size
from fattn_probe.op.op import PREC, default_scale
from fattn_probe.op.tensors import strided

from ..errors import InputError
from . import mask as masks
from .check import check
from .data import STREAMS, UNUSED, AnyData, Data, Logits, draw, stream
from .layout import Layout, View, ViewOfK, place, place_mask, view_of_K
from .mask import AnyMask, MaskShape, NoMask
from .matrix import names
from .schema import Inspect, Scenario, Tolerance

INPUTS_VERSION = 1  # part of every digest; increase it when the bytes of a case change


@dataclass(frozen=True)
class Case:
    """One fully resolved FLASH_ATTN_EXT op; field names are ggml's and the kernels'."""

    name: str
    scenario: str
    about: str
    op: Op
    mask: AnyMask
    layout: Layout
    data: Data
    seed: int
    tolerance: Tolerance
    inspect: Inspect
    expect: dict[str, Any]
    device: str | None

    @cached_property
    def digest(self) -> str:
        """16 hex digits that depend only on the op and the input bytes."""
        op = self.op
        told = asdict(op.sizes) | asdict(op.params) | {"type_K": op.type_K, "type_V": op.type_V, "sinks": op.has_sinks}
        told |= {key: getattr(self, key).model_dump(mode="json") for key in ("mask", "layout", "data")}
        text = json.dumps(told | {"seed": self.seed, "inputs_version": INPUTS_VERSION}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def mask_shape(self) -> MaskShape:
        """The sizes and the seed that the mask depends on."""
        sizes, sequences = self.op.sizes, self.op.tensors["mask"].ne[3] if self.op.has_mask else 1
        return MaskShape(sizes.n_kv, sizes.n_q, sequences, self.seed, self.op.params.n_kv_max)

    def data_of(self, name: str) -> tuple[AnyData, int]:
        """A tensor's distribution and seed."""
        data: AnyData = getattr(self.data, name)
        return data, self.seed if data.seed is None else data.seed


_AS_IS = {"about", "mask", "layout", "data", "seed", "tolerance", "inspect", "expect", "device"}


def expand(scenario: Scenario) -> list[Case]:
    """The cases of a scenario, in the order of its matrix; InputError if ggml or the op would reject one.

    Scenarios from `load` and `from_ops` are already checked.
    """
    if not scenario.cases:
        checked = check(scenario.model_dump(mode="json", exclude_unset=True))
        if checked.scenario is None:
            raise InputError("\n".join(f"{scenario.name}: {problem}" for problem in checked.problems))
        scenario = checked.scenario.named(scenario.name)
    case_names = names(scenario.name, [variation for variation, _ in scenario.cases])
    return [resolve(case, name, scenario.name) for (_, case), name in zip(scenario.cases, case_names, strict=True)]


def resolve(scenario: Scenario, name: str, file: str) -> Case:
    """The case of a checked scenario, without its matrix."""
    return Case(name=name, scenario=file, op=op_of(scenario), **{key: getattr(scenario, key) for key in _AS_IS})


def op_of(scenario: Scenario) -> Op:
    """The op of a scenario, without its matrix."""
    params = Params(
        scale=default_scale(scenario.hsk) if scenario.scale is None else float(np.float32(scenario.scale)),
        max_bias=scenario.max_bias,
        logit_softcap=scenario.logit_softcap,
        prec=PREC[scenario.prec],
        n_kv_max=scenario.n_kv_max,
    )
    roots, tensors = _place_all(scenario)
    return Op(params, tensors, roots)


def make_inputs(case: Case) -> dict[str, Bytes]:
    """The bytes of every root, 1-D uint8, the same for the same case everywhere.

    The op's values depend on shapes, data and seed, not on the layout: moving a tensor in memory moves its values.
    """
    return {name: root_bytes(case, name) for name in case.op.roots}


def root_bytes(case: Case, name: str) -> Bytes:
    """The bytes of one root."""
    memory = np.zeros(case.op.roots[name].nbytes, np.uint8)
    fill_root(case, name, memory)
    return memory


def fill_root(case: Case, name: str, memory: Bytes) -> None:
    """Generate the bytes of one root in `memory`, which holds zeros; one head at a time if possible."""
    if name == "mask":
        _fill_mask(case, memory)
    else:
        _fill_tensor(case, name, case.op.roots[name], memory)


def _place_all(op: Scenario) -> tuple[dict[str, Root], dict[str, TensorView]]:
    hsv, heads_kv, type_V = op.hsv or op.hsk, op.n_head_kv or op.n_head, op.type_V or op.type_K
    layout = op.layout
    placed = [
        place("Q", "f32", (op.hsk, op.n_q, op.n_head, op.n_seq), layout.Q),
        place("K", op.type_K, (op.hsk, op.n_kv, heads_kv, op.n_seq), layout.K),
    ]
    if isinstance(layout.V, ViewOfK):
        placed.append((placed[1][0], view_of_K(placed[1][1], hsv, layout.V)))
    else:
        placed.append(place("V", type_V, (hsv, op.n_kv, heads_kv, op.n_seq), layout.V))
    if not isinstance(op.mask, NoMask):
        placed.append(place_mask(op.n_kv, op.n_q, op.n_seq, layout.mask))
    if op.sinks:
        root = Root("sinks", "f32", (op.n_head, 1, 1, 1))
        placed.append((root, TensorView("sinks", "f32", "sinks", root.ne, root.nb, 0)))
    return {root.name: root for root, _ in placed}, {view.name: view for _, view in placed}


def _fill_tensor(case: Case, name: str, root: Root, memory: Bytes) -> None:
    view, layout = case.op.tensors[name], getattr(case.layout, name, None)
    outside = layout.outside if isinstance(layout, View) else "zero"
    if outside != "zero" or (block_size(root.type) > 1 and view.ne != root.ne):
        memory[:] = _whole_tensor(case, name, root, outside)
        return
    packed = np.lib.stride_tricks.as_strided(
        memory[view.offset :], (*view.ne[:0:-1], row_size(view.type, view.ne[0])), (*view.nb[:0:-1], 1)
    )
    data, seed = case.data_of(name)
    rng, logits = stream(seed, STREAMS[name]), Logits(case.op.params.scale, case.op.sizes.hsk)
    for place_ in np.ndindex(packed.shape[:2]):
        values = draw(data, name, (view.ne[1], view.ne[0]), rng, logits)
        packed[place_] = encode(values, view.type).reshape(packed.shape[2:])


def _whole_tensor(case: Case, name: str, root: Root, outside: str) -> Bytes:
    """The bytes of a root whose unused elements are not zero."""
    data, seed = case.data_of(name)
    logits, view = Logits(case.op.params.scale, case.op.sizes.hsk), case.op.tensors[name]
    flat: F32 = np.zeros(root.ne[::-1], np.float32).reshape(-1)
    if outside == "random":
        flat = draw(data, name, flat.shape, stream(seed, STREAMS[name] + UNUSED), logits)
    values = strided(flat, view)
    rng = stream(seed, STREAMS[name])
    for place_ in np.ndindex(values.shape[:2]):
        values[place_] = draw(data, name, values.shape[2:], rng, logits)
    packed = encode(flat.reshape(-1, root.ne[0]), root.type)
    return _poison(packed, root, view) if outside == "nan" else packed


def _poison(packed: Bytes, root: Root, view: TensorView) -> Bytes:
    """Fill every block outside the view with NaN."""
    block = block_size(root.type)
    touched = np.zeros(root.ne[::-1], bool).reshape(-1)
    strided(touched, view)[...] = True
    unused = ~touched.reshape(-1, block).any(axis=1)
    blocks = packed.reshape(unused.size, -1)
    blocks[unused] = nan_blocks(1, root.type)
    return packed


def _fill_mask(case: Case, memory: Bytes) -> None:
    halves, view = memory.view(np.float16), case.op.tensors["mask"]
    halves[:] = -np.inf
    values = strided(halves, view)
    for sequence, first, rows in masks.blocks(case.mask, case.mask_shape):
        values[sequence, 0, first : first + len(rows)] = rows
