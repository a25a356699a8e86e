"""The reasons why ggml or the op would reject a scenario: the assertions of ggml_flash_attn_ext and of its backends."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fattn_probe.cases.op.op import block_size
from fattn_probe.cases.scenario.data import Constant, Extreme, FarBelowZero, Uniform
from fattn_probe.cases.scenario.layout import View, ViewOfK, place, repeating
from fattn_probe.cases.scenario.mask import AnyMask, MaskShape, NoMask, Sparse, Sum, max_finite
from fattn_probe.cases.scenario.schema import Key, Scenario

MAX_BYTES = 2**40
F16_MAX = 65504


@dataclass(frozen=True)
class Refusal:
    """A mistake in a scenario: the key (path in the document) to change, what was found, and what is allowed."""

    path: Key
    reason: str

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.path)) or 'the file'}: {self.reason}"


def refusals(op: Scenario) -> list[Refusal]:
    """All reasons to reject an op; empty if it is valid."""
    checks = (_sizes, _overflow, _views, _mask, _data, _memory)
    return [refusal for check in checks for refusal in check(op)]


def divisors(number: int) -> list[int]:
    """All divisors of a number, in order."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _sizes(op: Scenario) -> Iterator[Refusal]:
    """Check the number of heads, and that rows of quantised tensors are whole blocks."""
    n_head_kv = op.n_head_kv or op.n_head
    if op.n_head % n_head_kv:
        fits = ", ".join(map(str, divisors(op.n_head)))
        yield Refusal(
            ("n_head_kv",),
            f"{n_head_kv} K/V heads do not divide {op.n_head} heads (the kernels assert Q->ne[2] % K->ne[2] == 0), "
            f"allowed: {fits}",
        )
    type_V, hsv = op.type_V or op.type_K, op.hsv or op.hsk
    sizes = [("hsk", "K", op.type_K, op.hsk)]
    if (type_V, hsv) != (op.type_K, op.hsk):
        sizes.append(("hsv" if op.hsv else "hsk", "V", type_V, hsv))
    for key, name, type_, size in sizes:
        block = block_size(type_)
        if size % block:
            near = -(-size // block) * block
            yield Refusal(
                (key,),
                f"{size} is not a whole number of {name}'s {type_} blocks of {block} elements, "
                f"allowed: multiples of {block}, such as {near}",
            )
    for name, type_ in (("K", op.type_K), ("V", type_V)):
        layout, block = getattr(op.layout, name), block_size(type_)
        if isinstance(layout, View) and layout.pad % block:
            reason = f"{layout.pad} is not a whole number of {type_} blocks, allowed: multiples of {block}"
            yield Refusal(("layout", name, "pad"), reason)


def _overflow(op: Scenario) -> Iterator[Refusal]:
    """Check that K and V do not overflow to infinity in f16, or in a type with f16 scales."""
    for name, type_ in (("K", op.type_K), ("V", op.type_V or op.type_K)):
        data = getattr(op.data, name)
        key, largest = "value", 0.0
        match data:
            case Uniform():
                key, largest = "scale", abs(data.mean) + data.scale
            case Constant():
                largest = abs(data.value)
            case Extreme():
                key, largest = "magnitude", max(data.magnitude, data.scale)
        if largest > F16_MAX and type_ not in ("f32", "bf16"):
            reason = f"values up to {largest:g} overflow to infinity in {type_}, allowed: up to {F16_MAX}"
            yield Refusal(("data", name, key), reason)


def _views(op: Scenario) -> Iterator[Refusal]:
    n_head_kv = op.n_head_kv or op.n_head
    sizes = {"Q": (op.n_q, op.n_head), "K": (op.n_kv, n_head_kv), "V": (op.n_kv, n_head_kv)}
    for name, (rows, heads) in sizes.items():
        view = getattr(op.layout, name)
        if not isinstance(view, View):
            continue
        if sorted(view.permute) != [0, 1, 2, 3]:
            reason = f"{view.permute} is not a permutation, allowed: each of 0 to 3 once"
            yield Refusal(("layout", name, "permute"), reason)
        elif view.permute[0] != 0:
            reason = (
                f"{view.permute} makes the elements of a row non-contiguous, which the op rejects "
                "(nb[0] must be the element's size), allowed: 0 first"
            )
            yield Refusal(("layout", name, "permute"), reason)
        if view.rows is not None and view.rows < view.offset + rows:
            least = f"allowed: at least offset + rows used = {view.offset} + {rows} = {view.offset + rows}"
            yield Refusal(("layout", name, "rows"), f"an allocation of {view.rows} rows is too small, {least}")
        if view.heads is not None and view.heads < heads:
            reason = f"an allocation of {view.heads} heads is too small, allowed: at least the {heads} used"
            yield Refusal(("layout", name, "heads"), reason)
    if not isinstance(op.layout.V, ViewOfK):
        return
    if op.type_V not in (None, op.type_K):
        yield Refusal(("type_V",), f"{op.type_V}, but V is a view of K, allowed: K's type, {op.type_K}")
    hsv, block, offset = op.hsv or op.hsk, block_size(op.type_K), op.layout.V.offset
    if hsv > op.hsk:
        yield Refusal(("hsv",), f"{op.hsv}, but V is a view of K's rows of {op.hsk}, allowed: at most {op.hsk}")
    elif offset + hsv > op.hsk or offset % block:
        reason = f"{offset} puts {hsv} elements of V outside K's {op.hsk} or across blocks"
        steps = f" in steps of {block}" if block > 1 else ""
        yield Refusal(("layout", "V", "offset"), f"{reason}, allowed: 0 to {op.hsk - hsv}{steps}")
    if "V" in op.data.model_fields_set:
        yield Refusal(("data", "V"), "given, but V is a view of K and has K's data, allowed: data.K only")


def _mask(op: Scenario) -> Iterator[Refusal]:
    if isinstance(op.mask, NoMask):
        if op.max_bias > 0:
            reason = f"{op.max_bias:g} without a mask (ggml asserts one), allowed: 0, or set `mask`"
            yield Refusal(("max_bias",), reason)
        if op.n_kv_max > 0:
            yield Refusal(("n_kv_max",), f"{op.n_kv_max}, but there is no mask to bound, allowed: 0, or set `mask`")
        return
    if op.n_kv_max > op.n_kv:
        yield Refusal(("n_kv_max",), f"{op.n_kv_max} is more than the {op.n_kv} KV rows, allowed: at most {op.n_kv}")
    yield from _sparse(op, op.mask, ("mask",))
    finite = max_finite(op.mask, MaskShape(op.n_kv, op.n_q, op.n_seq, op.seed, op.n_kv_max))
    if 0 < op.n_kv_max < finite:
        yield Refusal(
            ("n_kv_max",),
            f"{op.n_kv_max} must bound the finite entries of every mask row (ggml.h), and this {op.mask.kind} mask has "
            f"up to {finite}, allowed: {finite} to {op.n_kv}",
        )
    # A mask that is wider than K: entries after K's rows count as finite for n_kv_max.
    at, columns = ("layout", "mask", "columns"), op.layout.mask.columns
    if columns is not None and columns < op.n_kv:
        yield Refusal(at, f"{columns} is less than the {op.n_kv} KV rows, allowed: {op.n_kv} or more")
    elif columns is not None and op.n_kv_max:
        yield Refusal(at, f"{columns} with n_kv_max, which bounds the finite entries of a row, allowed: no `columns`")


def _sparse(op: Scenario, mask: AnyMask, path: tuple[str, ...]) -> Iterator[Refusal]:
    if isinstance(mask, Sum):
        for number, part in enumerate(mask.of):
            yield from _sparse(op, part, (*path, "of", str(number)))
    elif isinstance(mask, Sparse) and mask.finite is None and op.n_kv_max == 0:
        yield Refusal((*path, "finite"), "missing, and n_kv_max is 0, allowed: a number, or set n_kv_max")
    elif isinstance(mask, Sparse) and (mask.finite or 0) > op.n_kv:
        reason = f"{mask.finite} is more than the {op.n_kv} KV rows, allowed: at most {op.n_kv}"
        yield Refusal((*path, "finite"), reason)


def _data(op: Scenario) -> Iterator[Refusal]:
    if op.mask.kind == "sequences" and op.mask.count > (most := min(op.n_q, op.n_kv)):
        reason = f"{op.mask.count} sequences of {op.n_q} queries and {op.n_kv} KV rows, allowed: 1 to {most}"
        yield Refusal(("mask", "count"), reason)
    far = [name for name in ("Q", "K") if isinstance(getattr(op.data, name), FarBelowZero)]
    if len(far) == 1:
        other = "K" if far == ["Q"] else "Q"
        yield Refusal(
            ("data", other),
            f"{getattr(op.data, other).kind}, but far_below_zero needs Q and K to point in opposite directions, "
            "allowed: far_below_zero on both or neither",
        )


def _memory(op: Scenario) -> Iterator[Refusal]:
    """Check the sizes of allocations, as if all types were f32.

    An allocation that repeats can only hold random data outside its view.
    """
    hsv, n_head_kv = op.hsv or op.hsk, op.n_head_kv or op.n_head
    biggest = 4 * op.n_seq * max(op.n_kv, op.n_q) * op.n_head * max(op.hsk, hsv)
    if biggest > MAX_BYTES:
        yield Refusal(("n_kv",), f"the operands take {biggest / 2**40:.1f} TiB, allowed: up to 1 TiB each")
        return
    operands = {
        "Q": ("f32", (op.hsk, op.n_q, op.n_head, op.n_seq)),
        "K": (op.type_K, (op.hsk, op.n_kv, n_head_kv, op.n_seq)),
        "V": (op.type_V or op.type_K, (hsv, op.n_kv, n_head_kv, op.n_seq)),
    }
    mask = op.layout.mask
    sizes = {"mask": 4 * (mask.columns or op.n_kv) * (mask.offset + (op.n_q + mask.pad) * op.n_seq)}
    for name, (type_, ne) in operands.items():
        view = getattr(op.layout, name)
        if isinstance(view, View):
            allocated = (view.rows or view.offset + ne[1]) * (view.heads or ne[2])
            sizes[name] = 4 * op.n_seq * (ne[0] + view.pad) * allocated
            root, _ = place(name, type_, ne, view)
            if view.outside != "random" and repeating(root).period is not None:
                reason = f"{view.outside}, but an allocation of {root.nbytes / 2**30:.1f} GiB repeats its first rows"
                yield Refusal(("layout", name, "outside"), f"{reason}, allowed: random")
    for name, size in sizes.items():
        if size > MAX_BYTES:
            yield Refusal(("layout", name), f"an allocation of {size / 2**40:.1f} TiB, allowed: up to 1 TiB")
