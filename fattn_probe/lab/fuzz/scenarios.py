"""Draw random legal scenarios: a pure function of a seed and a number."""

from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

from fattn_probe.cases.scenario import Case, Scenario
from fattn_probe.cases.scenario.cases import resolve
from fattn_probe.cases.scenario.check import check

Settings = dict[str, Any]
"""A scenario as plain data, as in a YAML file, without `version` and `about`."""
Item = TypeVar("Item")

ORDINARY_FLOP = 16e6
"""The most operations in an ordinary case: about 0.04 s for a simulated tile or vec kernel."""
LONG_FLOP = 48e6
"""The most operations in a case with many KV rows or queries."""
LONG_SHARE = 0.15
MOST_ELEMENTS = 4 << 20
"""The most elements in K or V, which take time to generate and convert."""

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
"""FATTN_KQ_STRIDE: kernels with the GQA optimisation, and vec kernels, need n_kv to be a multiple of it."""


def choose(rng: Random, weights: dict[Item, float] | dict[Item, int]) -> Item:
    """One of the keys, by weight."""
    return rng.choices(list(weights), list(weights.values()))[0]


def draw_shape(rng: Random) -> Settings:
    """The sizes and types of an op that stays below the limits on operations and elements."""
    while True:
        hsk, hsv = choose(rng, HEAD_SIZES)
        heads = choose(rng, {1: 4, 2: 3, 3: 1, 4: 1, 5: 0.5})
        group = choose(rng, GROUPS_OF.get(hsk, GROUPS))
        found: Settings = {"hsk": hsk, "hsv": hsv, "n_head": heads * group, "n_head_kv": heads}
        found |= {"n_q": choose(rng, QUERIES if rng.random() < 0.92 else MANY_QUERIES), "n_kv": _rows(rng)}
        if rng.random() < 0.22:
            found["n_seq"] = choose(rng, {2: 4, 3: 2, 4: 1, 7: 0.2})
        whole = {name: weight for name, weight in TYPES.items() if hsk % 32 == hsv % 32 == 0 or name in FLOATS}
        K = choose(rng, whole)
        shape = found | {"type_K": K, "type_V": K if rng.random() < 0.85 else choose(rng, whole)}
        most = LONG_FLOP if rng.random() < LONG_SHARE else ORDINARY_FLOP
        if flop(shape) <= most and elements(shape) <= MOST_ELEMENTS:
            return shape


def flop(shape: Settings) -> float:
    """The number of operations for a shape."""
    hsv = shape.get("hsv", shape["hsk"])
    rows = shape["n_head"] * shape["n_q"] * shape["n_kv"] * shape.get("n_seq", 1)
    return float(2 * rows * (shape["hsk"] + hsv))


def elements(shape: Settings) -> int:
    """The number of elements in K."""
    found: int = shape["hsk"] * shape["n_kv"] * shape.get("n_head_kv", shape["n_head"]) * shape.get("n_seq", 1)
    return found


def _rows(rng: Random) -> int:
    """A number of KV rows: a multiple of the dispatch's stride, one more or less than whole tiles, or any number."""
    kind = rng.random()
    if kind < 0.6:
        return STRIDE * choose(rng, {1: 4, 2: 3, 3: 2, 4: 2, 5: 1, 7: 1, 8: 1.5, 16: 1.5, 20: 0.5, 32: 1, 48: 0.3})
    if kind < 0.8:
        near = rng.randint(1, 24) * choose(rng, {32: 1, 64: 2, 128: 1})
        return near + choose(rng, {-1: 1, 1: 1, 0: 1, 2: 0.5, 8: 0.5})
    return rng.randint(1, rng.choice([40, 300, 1100]))


FLOATS = frozenset({"f16", "bf16", "f32"})


REGION_SHARE = 0.3
"""The share of scenarios drawn from a region that has had bugs."""
MOST_FLOP = 100e6
"""The most operations in any case: about 0.25 s for a simulated tile or vec kernel."""
SOFTCAP = frozenset({128, 256, 512})
"""Head sizes whose kernels are compiled with a softcap."""


def draw(seed: int, number: int) -> Settings:
    """The settings of a legal scenario, the same for the same seed and number."""
    rng = Random(f"{seed}/{number}")
    while True:
        settings = _draw(rng)
        if flop(settings) <= MOST_FLOP and checked(settings) is not None:
            return settings


def checked(settings: Settings) -> Scenario | None:
    """The scenario with these settings; None if ggml or the op would refuse it."""
    return check({"version": 1, "about": "a random case"} | settings)[0]


def case_of(settings: Settings, name: str) -> Case:
    """The case for valid settings."""
    scenario = checked(settings)
    assert scenario is not None, settings
    return resolve(scenario, name, name)


def simplest(settings: Settings) -> Settings:
    """The settings without those that have their default values."""
    own = {"hsv": settings["hsk"], "n_head_kv": settings["n_head"], "type_V": settings.get("type_K", "f16")}
    defaults = own | {"n_seq": 1, "type_K": "f16", "layout": {}, "data": {}, "seed": 0}
    return {key: value for key, value in settings.items() if key not in defaults or value != defaults[key]}


def _draw(rng: Random) -> Settings:
    settings = draw_shape(rng)
    settings["seed"] = rng.randrange(1000)
    _draw_params(rng, settings)
    settings["mask"] = draw_mask(rng, settings)
    found: dict[str, Settings] = {"mask": {}}
    # Scanned masks mostly have rows padded to 64, because the scan reads the rows of whole query tiles.
    scanned = settings["n_kv"] % STRIDE == 0 and (settings["n_q"] >= 1024 or settings.get("n_seq", 1) > 1)
    if rng.random() < (0.97 if scanned else 0.3):
        found["mask"]["pad"] = 64 if scanned else rng.choice([2, 16, 32, 64])
    if rng.random() < 0.1:
        found["mask"]["offset"] = rng.randint(1, 70)
    if settings.get("n_seq", 1) > 1 and rng.random() < 0.3:
        found["mask"]["per_sequence"] = False
    if rng.random() < 0.35:
        found["Q"] = _view(rng, "f32", settings["n_head"], settings["n_q"])
    if rng.random() < 0.5:
        for name in ("K", "V"):
            found[name] = _view(rng, settings[f"type_{name}"], settings["n_head_kv"], settings["n_kv"])
    hsk, hsv = settings["hsk"], settings["hsv"]
    if (hsk > hsv and rng.random() < 0.9) or (hsk == hsv and rng.random() < 0.03):
        found["V"] = {"kind": "view_of_K"}
        if rng.random() < 0.1:
            found["V"]["offset"] = 32 * rng.randint(0, (hsk - hsv) // 32)
    settings["layout"] = {name: layout for name, layout in found.items() if layout}
    settings["data"] = _data(rng)
    if rng.random() < REGION_SHARE:
        region: Callable[[Random, Settings], None] = rng.choice(REGIONS)
        region(rng, settings)
    if settings["layout"].get("V", {}).get("kind") == "view_of_K":
        settings["type_V"] = settings["type_K"]
        settings["data"].pop("V", None)
    if settings["mask"]["kind"] == "none":
        settings["layout"].pop("mask", None)
    elif "n_kv_max" not in settings and rng.random() < 0.05:
        columns = settings["n_kv"] + rng.choice([1, 8, 64, 256])
        settings["layout"]["mask"] = settings["layout"].get("mask", {}) | {"columns": columns}
    return simplest(settings)


def _draw_params(rng: Random, settings: Settings) -> None:
    if rng.random() < 0.15:
        settings["scale"] = round(rng.choice([rng.uniform(0.01, 0.4), 1.0]), 4)
    if rng.random() < (0.15 if settings["hsk"] in SOFTCAP else 0.02):
        settings["logit_softcap"] = float(rng.choice([10, 30, 50]))
    if rng.random() < 0.15:
        settings["sinks"] = True
    if rng.random() < 0.05:
        settings["prec"] = "default"


def draw_mask(rng: Random, settings: Settings) -> Settings:
    """A mask; sets `max_bias` and `n_kv_max` in the settings if it needs them."""
    n_q, n_kv = settings["n_q"], settings["n_kv"]
    sequences = min(n_q, n_kv, rng.randint(2, 5))
    masks: dict[str, float] = {
        "causal": 6, "none": 2, "sliding_window": 3, "sequences": 3, "blocks": 1, "masked_tiles": 3, "random": 2,
        "alibi": 1.5, "sparse": 0.7, "masked_rows": 0.15, "sum": 1,
    }  # fmt: skip
    kind = choose(rng, masks)
    found: Settings = {"kind": kind}
    match kind:
        case "causal" if rng.random() < 0.15:
            found["past"] = rng.randint(0, n_kv)
        case "sliding_window":
            found["window"] = rng.randint(1, n_kv)
        case "sequences":
            found |= {"count": sequences, "interleaved": rng.random() < 0.4, "causal": rng.random() < 0.7}
        case "blocks":
            found |= {"q": rng.choice([1, 4, 16, 64]), "kv": rng.choice([32, 64, 128, 256, 100])}
            found["fraction"] = rng.choice([0.1, 0.25, 0.5])
        case "masked_tiles":
            found["leading"] = rng.randint(0, n_kv // 2) if rng.random() < 0.7 else 0
            found["trailing"] = rng.randint(0, (n_kv - 1) // 2) if rng.random() < 0.5 else 0
        case "random":
            found |= {"scale": rng.choice([0.5, 1.0, 5.0]), "blocks": rng.choice([0.0, 0.2])}
        case "alibi":
            settings["max_bias"] = rng.choice([1.0, 4.0, 8.0])
            found["causal"] = rng.random() < 0.7
        case "sparse":
            settings["n_kv_max"] = found["finite"] = rng.randint(1, max(1, min(n_kv, 256)))
        case "masked_rows":
            found |= {"every": rng.randint(2, 5), "first": rng.randint(0, 2)}
        case "sum":
            window = {"kind": "sliding_window", "window": rng.randint(1, n_kv)}
            found["of"] = [{"kind": "causal"}, rng.choice([window, {"kind": "random", "blocks": 0.0}])]
    return found


def _view(rng: Random, type_: str, heads: int, rows: int) -> Settings:
    """A view into a larger allocation; few have rows that are not aligned to 16 bytes."""
    found: Settings = {"kind": "view"}
    if rng.random() < 0.55:
        found["permute"] = rng.choice([[0, 2, 1, 3], [0, 2, 1, 3], [0, 1, 3, 2], [0, 3, 1, 2], [0, 2, 3, 1]])
    if rng.random() < 0.4:
        found["offset"] = rng.choice([1, 3, 32, 100])
    if rng.random() < 0.3:
        found["heads"] = heads + rng.randint(1, 3)
    if rng.random() < 0.3:
        found["rows"] = found.get("offset", 0) + rows + rng.choice([1, 64, 300])
    if rng.random() < 0.25:
        if type_ not in FLOATS:
            found["pad"] = 32 * rng.randint(1, 3)
        elif rng.random() < 0.9:
            found["pad"] = 8 * rng.randint(1, 4)
        else:  # keep rows of Q aligned to 8 bytes: q-stride, a known defect, cannot be recognised from an output
            found["pad"] = {"f32": 2, "f16": 4, "bf16": 4}[type_]
    found["outside"] = choose(rng, {"nan": 3, "random": 4, "zero": 1})
    return found


def _data(rng: Random) -> Settings:
    found = {"Q": _numbers(rng), "K": _numbers(rng), "V": _numbers(rng)}
    mean = rng.choice([0.1, 1.0, -1.0, 3.0])
    match rng.random():
        case p if p < 0.2:
            found["V"] = {"kind": "uniform", "scale": 0.1, "mean": mean}
        case p if p < 0.3:
            found["V"] = {"kind": "normal", "scale": 0.3, "mean": mean}
        case p if p < 0.4:
            found["V"] = {"kind": "uniform", "scale": round(2.0 ** rng.uniform(-8, 8), 4)}
        case p if p < 0.43:
            found["V"] = {"kind": "constant", "value": mean}
    if rng.random() < 0.15:
        found["Q"] = {"kind": "large_logits", "logit": round(2.0 ** rng.uniform(0, 6), 2)}
    if rng.random() < 0.1:
        found["sinks"] = {"kind": rng.choice(["normal", "uniform"]), "scale": rng.choice([0.5, 3.0])}
    if rng.random() < 0.05:
        found["V"]["seed"] = rng.randrange(100)
    return {name: data for name, data in found.items() if data != {"kind": "uniform"}}


def _numbers(rng: Random) -> Settings:
    width = round(2.0 ** rng.uniform(-2, 1.5), 3)
    return rng.choices(
        [
            {"kind": "uniform"},
            {"kind": "uniform", "scale": width},
            {"kind": "normal"},
            {"kind": "normal", "scale": width},
            {"kind": "fa3_outliers"},
            {"kind": "constant", "value": width / 4},
        ],
        [6, 2, 4, 2, 2, 0.3],
    )[0]


F16_MAX = 65504.0


def unpadded_far_below_zero(rng: Random, settings: Settings) -> None:
    """Logits far below zero with a partial last KV tile: a lane without a KV row must not affect the maximum."""
    settings["n_kv"] = rng.choice([1, 2, 3, 4]) * STRIDE + rng.choice([-200, -65, -31, -1, 1, 17, 100])
    settings["mask"] = rng.choice([{"kind": "none"}, {"kind": "causal"}])
    _plain(settings)
    logit = -rng.choice([30.0, 100.0, 1000.0, 5000.0])
    for name in ("Q", "K"):
        settings["data"][name] = {"kind": "far_below_zero", "logit": logit}


def products_near_the_f16_limit(rng: Random, settings: Settings) -> None:
    """Products of Q and K between the largest f16 and four times that: they fit only in float32."""
    factor = F16_MAX * rng.uniform(0.2, 4)
    width = round((factor / settings["hsk"]) ** 0.5, 2)
    kind = rng.choice(["uniform", "normal"])
    settings["data"] |= {"Q": {"kind": kind, "scale": width}, "K": {"kind": kind, "scale": width}}
    settings["scale"] = round(rng.choice([1.0, 8.0 / width**2]), 8)
    settings.pop("logit_softcap", None)


def extreme_values(rng: Random, settings: Settings) -> None:
    """A few elements of V near the largest f16."""
    magnitude = rng.choice([1000.0, 10000.0, 30000.0])
    settings["data"]["V"] = {"kind": "extreme", "magnitude": magnitude, "probability": rng.choice([0.001, 0.01])}


def masked_before_open(rng: Random, settings: Settings) -> None:
    """Whole KV tiles of -inf before visible ones, for one or a few queries: skipped data must not be needed later."""
    _few(rng, settings, rows=rng.choice([4, 8, 16]) * STRIDE)
    n_kv = settings["n_kv"]
    window = {"kind": "sliding_window", "window": rng.randint(1, n_kv // 2)}
    tiles = {"kind": "masked_tiles", "leading": rng.randint(n_kv // 4, n_kv - 1)}
    sequences = {"kind": "sequences", "count": min(settings["n_q"], 3), "interleaved": False}
    settings["mask"] = rng.choice([window, tiles, sequences])
    _plain(settings)


def many_parallel_blocks(rng: Random, settings: Settings) -> None:
    """One query and few heads over a long cache: more parallel blocks than half the threads that combine them."""
    hsk = rng.choice([64, 64, 128])
    settings |= {"hsk": hsk, "hsv": hsk, "n_head": 1, "n_head_kv": 1, "n_seq": 1}
    _few(rng, settings, rows=rng.choice([20, 33, 40, 64]) * STRIDE)
    settings["n_q"] = 1


def many_steps_in_a_block(rng: Random, settings: Settings) -> None:
    """Many output tiles over a long cache, so that one block processes many KV steps."""
    settings |= {"n_q": rng.choice([2, 8, 16, 33, 64]), "n_kv": rng.choice([8, 12, 16]) * STRIDE}
    while settings["n_q"] > 1 and flop(settings) > LONG_FLOP:
        settings["n_q"] //= 2
    _fit(settings)


def scanned_mask(rng: Random, settings: Settings) -> None:
    """Several sequences, or 1024 queries, and a mask that hides whole scan steps."""
    settings["n_kv"] = rng.choice([2, 4, 6, 9]) * STRIDE
    if rng.random() < 0.7:
        settings["n_seq"] = rng.choice([2, 3])
    else:
        settings |= {"n_q": rng.choice([1024, 1025]), "n_head": settings["n_head"] // settings["n_head_kv"]}
        settings["n_head_kv"] = 1
    _fit(settings)
    n_kv = settings["n_kv"]
    settings["mask"] = rng.choice(
        [
            {"kind": "causal", "past": rng.randint(0, n_kv // 2)},
            {"kind": "masked_tiles", "trailing": rng.randint(n_kv // 4, n_kv - 1)},
            {"kind": "masked_tiles", "leading": rng.randint(0, n_kv // 2), "trailing": rng.randint(0, n_kv // 2 - 1)},
            {"kind": "sliding_window", "window": rng.randint(1, n_kv)},
        ]
    )
    settings["layout"]["mask"] = {"pad": 64}
    _plain(settings)


def latent_attention(rng: Random, settings: Settings) -> None:
    """V as a view of K, which is itself a view with an offset."""
    hsk, hsv = rng.choice([(576, 512), (576, 512), (320, 256)])
    group = 32 if hsk == 320 else rng.choice([4, 8, 16, 20])
    settings |= {"hsk": hsk, "hsv": hsv, "n_head": group, "n_head_kv": 1, "n_q": rng.choice([1, 2, 3, 4, 9])}
    settings |= {"n_kv": rng.choice([1, 2, 3]) * STRIDE, "n_seq": rng.choice([1, 1, 2])}
    settings["mask"] = {"kind": "causal"}
    _plain(settings)
    view = {"kind": "view", "offset": rng.choice([1, 64, 100]), "outside": "nan"}
    settings["layout"] = {"K": view, "V": {"kind": "view_of_K"}, "mask": {"pad": 64}}
    settings["type_K"] = rng.choice(["f16", "f16", "q8_0", "q4_0", "bf16"])


def sparse_gather(rng: Random, settings: Settings) -> None:
    """A sparse mask on a cache that is long enough for the kernels that gather KV rows."""
    hsk, hsv, group = rng.choice([(256, 256, 8), (256, 256, 6), (576, 512, 16), (512, 512, 8)])
    settings |= {"hsk": hsk, "hsv": hsv, "n_head": group, "n_head_kv": 1, "n_seq": 1}
    settings |= {"n_q": rng.choice([1, 1, 2, 5, 9]), "n_kv": rng.choice([16, 17, 20]) * STRIDE, "type_V": "f16"}
    _plain(settings)
    settings |= {"type_K": "f16", "n_kv_max": rng.choice([1, 16, 40, 128, 200])}
    settings["mask"] = {"kind": "sparse"}
    settings["layout"] = {"V": {"kind": "view_of_K"}} if hsk > hsv else {}
    settings.pop("logit_softcap", None)
    _fit(settings)


REGIONS: tuple[Callable[[Random, Settings], None], ...] = (
    unpadded_far_below_zero,
    products_near_the_f16_limit,
    extreme_values,
    masked_before_open,
    many_parallel_blocks,
    many_steps_in_a_block,
    scanned_mask,
    latent_attention,
    sparse_gather,
)


def _plain(settings: Settings) -> None:
    """Remove settings that only the former mask needed."""
    settings.pop("max_bias", None)
    settings.pop("n_kv_max", None)


def _few(rng: Random, settings: Settings, rows: int) -> None:
    """One query or a few, and this many KV rows."""
    settings |= {"n_q": rng.choice([1, 1, 2, 3]), "n_kv": rows}
    _fit(settings)


def _fit(settings: Settings) -> None:
    """Reduce the K/V heads, then the KV rows, until a case is small enough."""
    if elements(settings) > MOST_ELEMENTS or flop(settings) > LONG_FLOP:
        settings |= {"n_head": settings["n_head"] // settings["n_head_kv"], "n_head_kv": 1}
    while settings["n_kv"] > STRIDE and (elements(settings) > MOST_ELEMENTS or flop(settings) > LONG_FLOP):
        settings["n_kv"] -= STRIDE
