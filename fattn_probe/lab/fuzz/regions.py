"""Regions of scenarios that have had bugs: each function changes a scenario so that it is in one."""

from collections.abc import Callable
from random import Random

from fattn_probe.lab.fuzz.shapes import LONG_FLOP, MOST_ELEMENTS, STRIDE, Settings, elements, flop

F16_MAX = 65504.0


def unpadded_far_below_zero(rng: Random, settings: Settings) -> None:
    """Logits far below zero with a partial last KV tile: a lane without a KV row must not enter the maximum."""
    settings["n_kv"] = rng.choice([1, 2, 3, 4]) * STRIDE + rng.choice([-200, -65, -31, -1, 1, 17, 100])
    settings["mask"] = rng.choice([{"kind": "none"}, {"kind": "causal"}])
    _plain(settings)
    logit = -rng.choice([30.0, 100.0, 1000.0, 5000.0])
    for name in ("Q", "K"):
        settings["data"][name] = {"kind": "far_below_zero", "logit": logit}


def products_near_the_f16_limit(rng: Random, settings: Settings) -> None:
    """Products of Q and K between the largest f16 and four times it: they fit float32 only."""
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
    """Whole KV tiles of -inf before open ones, for one query or a few: skipped data must not be needed later."""
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
    """Many output tiles over a long cache, so that one block does many KV steps."""
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
