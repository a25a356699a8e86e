"""Random shapes: head sizes, heads, types, queries and KV rows, weighted towards those that have had bugs."""

from random import Random
from typing import Any, TypeVar

Settings = dict[str, Any]
"""A scenario as plain data, as in a YAML file, without `version` and `about`."""
Item = TypeVar("Item")

MOST_FLOP = 16e6
"""Operations of an ordinary case: 0.04 s of a simulated tile or vec kernel."""
LONG_FLOP = 48e6
"""Operations of a case with many KV rows or queries."""
LONG_SHARE = 0.15
MOST_ELEMENTS = 4 << 20
"""Limit for the elements of K or V, which take time to generate and convert."""

HEAD_SIZES: dict[tuple[int, int], float] = {
    (64, 64): 5,
    (128, 128): 5,
    (256, 256): 2,
    (576, 512): 2,
    (40, 40): 1,
    (72, 72): 1,
    (80, 80): 1,
    (96, 96): 1,
    (112, 112): 1,
    (192, 128): 1,
    (320, 256): 0.7,
    (512, 512): 0.7,
    (48, 48): 0.05,  # not supported
}
"""(hsk, hsv) of the CUDA kernels, with their weights."""
GROUPS = {1: 4, 2: 3, 3: 1, 4: 3, 5: 1, 6: 1, 7: 1.5, 8: 3, 12: 0.5, 16: 1, 20: 0.3}
"""Query heads per K/V head."""
GROUPS_OF = {
    192: {8: 2, 16: 2, 24: 0.3, 6: 0.1},
    320: {32: 1, 64: 0.1, 16: 0.05},
    512: {2: 1, 4: 1, 8: 1, 3: 0.5, 16: 0.5, 1: 0.1},
    576: {16: 2, 4: 1, 8: 1, 20: 1, 32: 0.5, 12: 0.5, 128: 0.1, 1: 0.05},
}
"""Query heads per K/V head for head sizes whose kernels need several."""
TYPES = {"f16": 10, "q8_0": 2, "q4_0": 1, "bf16": 1, "f32": 0.8, "q5_0": 0.4, "q5_1": 0.4, "q4_1": 0.4, "iq4_nl": 0.05}
FEW_QUERIES = {1: 5, 2: 3, 3: 2, 4: 2, 5: 1, 6: 1, 7: 1.5, 8: 2, 9: 1}
QUERIES = FEW_QUERIES | {11: 1, 15: 1, 16: 1.5, 17: 1.5, 25: 1, 31: 0.5, 32: 1, 33: 1, 40: 1, 63: 0.5, 64: 1, 65: 1}
MANY_QUERIES = {100: 1, 128: 1, 200: 1, 257: 1, 512: 0.5, 1024: 1, 1030: 1}
STRIDE = 256
"""FATTN_KQ_STRIDE: kernels with the GQA optimisation, and vec kernels, need a multiple of it."""


def choose(rng: Random, weights: dict[Item, float] | dict[Item, int]) -> Item:
    """One of the keys, by weight."""
    return rng.choices(list(weights), list(weights.values()))[0]


def draw_shape(rng: Random) -> Settings:
    """The sizes and types of an op that stays below the limits of operations and elements."""
    while True:
        hsk, hsv = choose(rng, HEAD_SIZES)
        heads = choose(rng, {1: 4, 2: 3, 3: 1, 4: 1, 5: 0.5})
        group = choose(rng, GROUPS_OF.get(hsk, GROUPS))
        found: Settings = {"hsk": hsk, "hsv": hsv, "n_head": heads * group, "n_head_kv": heads}
        found |= {"n_q": choose(rng, QUERIES if rng.random() < 0.92 else MANY_QUERIES), "n_kv": _rows(rng)}
        if rng.random() < 0.22:
            found["n_seq"] = choose(rng, {2: 4, 3: 2, 4: 1, 7: 0.2})
        shape = found | _types(rng, hsk, hsv)
        most = LONG_FLOP if rng.random() < LONG_SHARE else MOST_FLOP
        if flop(shape) <= most and elements(shape) <= MOST_ELEMENTS:
            return shape


def flop(shape: Settings) -> float:
    """The operations of a shape."""
    hsv = shape.get("hsv", shape["hsk"])
    rows = shape["n_head"] * shape["n_q"] * shape["n_kv"] * shape.get("n_seq", 1)
    return float(2 * rows * (shape["hsk"] + hsv))


def elements(shape: Settings) -> int:
    """The elements of K."""
    found: int = shape["hsk"] * shape["n_kv"] * shape.get("n_head_kv", shape["n_head"]) * shape.get("n_seq", 1)
    return found


def _rows(rng: Random) -> int:
    """KV rows: whole strides of the dispatch, or one more or less than whole tiles, or any number."""
    kind = rng.random()
    if kind < 0.6:
        return STRIDE * choose(rng, {1: 4, 2: 3, 3: 2, 4: 2, 5: 1, 7: 1, 8: 1.5, 16: 1.5, 20: 0.5, 32: 1, 48: 0.3})
    if kind < 0.8:
        near = rng.randint(1, 24) * choose(rng, {32: 1, 64: 2, 128: 1})
        return near + choose(rng, {-1: 1, 1: 1, 0: 1, 2: 0.5, 8: 0.5})
    return rng.randint(1, rng.choice([40, 300, 1100]))


def _types(rng: Random, hsk: int, hsv: int) -> Settings:
    """The types of K and V whose blocks fit the head sizes."""
    whole = {name: weight for name, weight in TYPES.items() if hsk % 32 == hsv % 32 == 0 or name in FLOATS}
    K = choose(rng, whole)
    V = K if rng.random() < 0.85 else choose(rng, whole)
    return {"type_K": K, "type_V": V}


FLOATS = frozenset({"f16", "bf16", "f32"})
