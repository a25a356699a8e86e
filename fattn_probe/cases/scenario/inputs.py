"""The inputs of cases, byte by byte; a change of the bytes needs a new `cases.INPUTS_VERSION`."""

import numpy as np

from fattn_probe.base.arrays import F32, Bytes
from fattn_probe.cases.op import Root
from fattn_probe.cases.op.case_file import read_case
from fattn_probe.cases.op.encoding import encode, nan_blocks
from fattn_probe.cases.op.ggml_types import block_size, row_size
from fattn_probe.cases.op.repeated import whole
from fattn_probe.cases.op.values import strided
from fattn_probe.cases.scenario import mask_rows
from fattn_probe.cases.scenario.cases import Case, Recording
from fattn_probe.cases.scenario.draw import STREAMS, UNUSED, Logits, draw, stream
from fattn_probe.cases.scenario.layout import View


def make_inputs(case: Case) -> dict[str, Bytes]:
    """The bytes of every root, 1-D uint8, the same for the same case everywhere.

    The op's values depend on shapes, data and seed, not on the layout: moving a tensor in memory moves its values.
    """
    if isinstance(case.source, Recording):
        return dict(read_case(case.source.path).inputs)
    return {name: root_bytes(case, name) for name in case.op.roots}


def root_bytes(case: Case, name: str) -> Bytes:
    """The bytes of one root."""
    if isinstance(case.source, Recording):
        return read_case(case.source.path).inputs[name]
    root = case.op.roots[name]
    memory = np.zeros(root.stored.nbytes, np.uint8)
    fill_root(case, name, memory)
    return whole(root, memory)


def fill_root(case: Case, name: str, memory: Bytes) -> None:
    """Generate the stored bytes of a root in `memory`, which contains zeros; not for recorded cases.

    One head at a time if possible.
    """
    root, n_kv = case.op.roots[name], case.op.sizes.n_kv
    if name == "mask" and root.period is not None:
        rows, queries = memory.view(np.float16).reshape(-1, root.ne[0]), mask_rows.queries_read(case)
        rows[:, :n_kv], rows[:, n_kv:] = mask_rows.some_rows(case.recipe.mask, case.mask_shape, 0, queries), 0
    elif name == "mask":
        halves = memory.view(np.float16)
        halves[:] = -np.inf
        values = strided(halves, case.op.tensors["mask"])
        for sequence, first, rows in mask_rows.blocks(case.recipe.mask, case.mask_shape):
            own = values[sequence, 0, first : first + len(rows)]
            own[:, :n_kv], own[:, n_kv:] = rows, 0
    elif root.period is None:
        _fill_tensor(case, name, root, memory)
    else:
        # Rows in the order of memory, whatever the layout.
        data, seed = case.recipe.data_of(name)
        logits = Logits(case.op.params.scale, case.op.sizes.hsk)
        values = draw(data, name, (root.stored.ne[1], root.stored.ne[0]), stream(seed, STREAMS[name]), logits)
        memory[:] = encode(values, root.stored.type)


def _fill_tensor(case: Case, name: str, root: Root, memory: Bytes) -> None:
    view, layout = case.op.tensors[name], getattr(case.recipe.layout, name, None)
    outside = layout.outside if isinstance(layout, View) else "zero"
    if outside != "zero" or (block_size(root.type) > 1 and view.ne != root.ne):
        memory[:] = _whole_tensor(case, name, root, outside)
        return
    packed = np.lib.stride_tricks.as_strided(
        memory[view.offset :], (*view.ne[:0:-1], row_size(view.type, view.ne[0])), (*view.nb[:0:-1], 1)
    )
    data, seed = case.recipe.data_of(name)
    rng, logits = stream(seed, STREAMS[name]), Logits(case.op.params.scale, case.op.sizes.hsk)
    for place_ in np.ndindex(packed.shape[:2]):
        values = draw(data, name, (view.ne[1], view.ne[0]), rng, logits)
        packed[place_] = encode(values, view.type).reshape(packed.shape[2:])


def _whole_tensor(case: Case, name: str, root: Root, outside: str) -> Bytes:
    """The bytes of a root whose unused elements are not zero."""
    data, seed = case.recipe.data_of(name)
    logits, view = Logits(case.op.params.scale, case.op.sizes.hsk), case.op.tensors[name]
    flat: F32 = np.zeros(root.ne[::-1], np.float32).reshape(-1)
    if outside == "random":
        flat = draw(data, name, flat.shape, stream(seed, STREAMS[name] + UNUSED), logits)
    values = strided(flat, view)
    rng = stream(seed, STREAMS[name])
    for place_ in np.ndindex(values.shape[:2]):
        values[place_] = draw(data, name, values.shape[2:], rng, logits)
    packed = encode(flat.reshape(-1, root.ne[0]), root.type)
    if outside == "nan":  # every block outside the view
        touched = np.zeros(root.ne[::-1], bool).reshape(-1)
        strided(touched, view)[...] = True
        unused = ~touched.reshape(-1, block_size(root.type)).any(axis=1)
        packed.reshape(unused.size, -1)[unused] = nan_blocks(1, root.type)
    return packed
