"""Random cases over kernels, types, masks and distributions, each small enough for the simulator (50 MFLOP at most)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fattn_probe.errors import InputError
from fattn_probe.scenario import Case, expand
from fattn_probe.scenario.schema import Scenario

MFLOP = 50


@dataclass(frozen=True)
class Shape:
    """Head sizes and heads, the query counts to choose from (which pick the kernel), and K/V types by probability."""

    hsk: int
    n_head: int
    n_head_kv: int
    n_q: tuple[int, ...]
    types: tuple[str, ...] = ("f16",)
    hsv: int | None = None


CAST = ("f16", "f16", "f16", "f32", "bf16", "q8_0", "q4_0")
"""Types of K and V of kernels that convert to f16."""

SHAPES = {
    "sim:h200": (
        Shape(64, 14, 2, (5, 7, 8), CAST),
        Shape(64, 8, 2, (6, 8, 12, 16), CAST),
        Shape(64, 6, 6, (20, 33, 50), CAST),
        Shape(128, 8, 2, (2, 5, 8, 16), CAST),
        Shape(128, 8, 1, (6, 8), CAST),
        Shape(128, 4, 4, (5, 8, 12, 16), CAST),
        Shape(128, 8, 2, (1,)),
        Shape(128, 8, 4, (1,), ("f16", "q8_0", "q8_0")),
        Shape(128, 4, 2, (2,), ("q8_0",)),
        Shape(256, 4, 2, (6, 8), CAST),
        Shape(576, 16, 1, (3, 4), ("f16",), 512),
        Shape(40, 4, 2, (1, 3, 8), CAST),
    ),
    "sim:rtx4070": (Shape(64, 14, 2, (5, 7, 8), CAST), Shape(64, 8, 1, (5, 8), CAST)),
    "sim:rtx3090ti": (Shape(64, 5, 5, (5, 8), CAST),),
    "sim:rtx2060": (
        Shape(128, 8, 2, (2, 5, 8), CAST),
        Shape(64, 8, 1, (3, 4), CAST),
        Shape(128, 8, 2, (1,), ("q8_0",)),
    ),
    "sim:v100": (
        Shape(64, 4, 4, (8, 16, 40), CAST),
        Shape(128, 8, 2, (2, 8, 16), CAST),
        Shape(128, 4, 4, (3, 8), CAST),
    ),
    "sim:gtx1060": (Shape(64, 4, 2, (3, 8, 16), CAST), Shape(128, 4, 2, (1, 2), ("q8_0",)), Shape(128, 4, 4, (3, 9))),
}
WEIGHTS = {"sim:h200": 10, "sim:rtx4070": 3, "sim:rtx3090ti": 2, "sim:rtx2060": 3, "sim:v100": 4, "sim:gtx1060": 3}


def random_cases(seed: int, count: int, devices: tuple[str, ...] = tuple(SHAPES)) -> Iterator[tuple[Case, str]]:
    """(case, target) pairs, the same for the same arguments; a case that ggml would refuse is drawn again."""
    rng = np.random.default_rng(seed)
    weights = np.array([WEIGHTS[device] for device in devices], float)
    made = 0
    while made < count:
        device = str(rng.choice(devices, p=weights / weights.sum()))
        entry = _scenario(SHAPES[device][rng.integers(len(SHAPES[device]))], rng, made)
        try:
            (case,) = expand(Scenario.model_validate(entry).named(f"random-{seed}-{made}"))
        except InputError:
            continue
        made += 1
        yield case, device


def _scenario(shape: Shape, rng: np.random.Generator, number: int) -> dict[str, Any]:
    hsv = shape.hsv or shape.hsk
    n_q = int(rng.choice(shape.n_q))
    most = MFLOP * 1e6 / (2 * shape.n_head * n_q * (shape.hsk + hsv))
    steps = [n for n in (256, 512, 768, 1024, 2048, 4096, 8192) if n <= most] or [256]
    n_kv = int(rng.choice(steps))
    gathers = shape.n_head > shape.n_head_kv or n_q == 1 or shape.hsk == 40
    if not gathers and rng.random() < 0.2:
        n_kv -= int(rng.integers(1, 250))
    type_K = str(rng.choice(shape.types))
    entry: dict[str, Any] = {
        "version": 1,
        "about": "random",
        "hsk": shape.hsk,
        "hsv": hsv,
        "n_head": shape.n_head,
        "n_head_kv": shape.n_head_kv,
        "n_q": n_q,
        "n_kv": n_kv,
        "type_K": type_K,
        "sinks": bool(rng.random() < 0.15),
        "seed": number,
        "data": _data(rng),
        "mask": _mask(rng, n_q, n_kv, gathers),
    }
    if shape.hsv is not None:
        entry["layout"] = {"V": {"kind": "view_of_K"}}
    if shape.hsk in {128, 256} and rng.random() < 0.15:
        entry["logit_softcap"] = float(rng.choice([20.0, 50.0]))
    if rng.random() < 0.1:
        entry["scale"] = float(rng.uniform(0.02, 0.3))
    return entry


def _data(rng: np.random.Generator) -> dict[str, Any]:
    width = float(np.exp2(rng.uniform(-2, 1.5)))
    kinds: list[dict[str, Any]] = [
        {"kind": "uniform"},
        {"kind": "uniform", "scale": width},
        {"kind": "normal"},
        {"kind": "normal", "scale": width},
        {"kind": "fa3_outliers"},
    ]
    q = [*kinds, {"kind": "large_logits", "logit": float(np.exp2(rng.uniform(0, 6)))}]
    mean = float(rng.choice([0.1, 0.5, 1.0, -1.0, 3.0]))
    v = [
        *kinds,
        {"kind": "uniform", "scale": 0.1, "mean": mean},
        {"kind": "normal", "scale": 0.3, "mean": mean},
        {"kind": "uniform", "scale": float(np.exp2(rng.uniform(-8, 8)))},
    ]
    k = kinds[int(rng.integers(len(kinds)))]
    return {"Q": q[int(rng.integers(len(q)))], "K": k, "V": v[int(rng.integers(len(v)))]}


def _mask(rng: np.random.Generator, n_q: int, n_kv: int, needed: bool) -> dict[str, Any]:
    masks: list[dict[str, Any]] = [
        {"kind": "causal"},
        {"kind": "causal"},
        {"kind": "sliding_window", "window": int(rng.integers(1, n_kv))},
        {"kind": "random"},
        {"kind": "masked_tiles", "leading": int(rng.integers(0, n_kv // 2))},
        {"kind": "sequences", "count": 2, "interleaved": bool(rng.random() < 0.5)},
    ]
    if not needed:
        masks += [{"kind": "none"}, {"kind": "none"}]
    return masks[int(rng.integers(len(masks)))]
