"""Random scenarios: a pure function of a seed and a number, and all legal."""

from collections.abc import Callable
from random import Random

from fattn_probe.cases.scenario import Case, Scenario
from fattn_probe.cases.scenario.cases import resolve
from fattn_probe.cases.scenario.check import check
from fattn_probe.lab.fuzz.regions import REGIONS
from fattn_probe.lab.fuzz.shapes import FLOATS, STRIDE, Settings, choose, draw_shape, flop

REGION_SHARE = 0.3
"""The share of scenarios in a region that has had bugs."""
MOST_FLOP = 100e6
"""Operations of any case: 0.25 s of a simulated tile or vec kernel."""
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
    """The scenario of some settings; None if ggml or the op would refuse it."""
    return check({"version": 1, "about": "a random case"} | settings).scenario


def case_of(settings: Settings, name: str) -> Case:
    """The case of legal settings."""
    scenario = checked(settings)
    assert scenario is not None, settings
    return resolve(scenario, name, name)


def simplest(settings: Settings) -> Settings:
    """The same scenario without the settings that equal their defaults."""
    found = dict(settings)
    for key, default in (("hsv", found["hsk"]), ("n_head_kv", found["n_head"]), ("type_V", found.get("type_K", "f16"))):
        if found.get(key) == default:
            del found[key]
    for key, value in DEFAULTS.items():
        if found.get(key) == value:
            del found[key]
    return found


DEFAULTS = {"n_seq": 1, "type_K": "f16", "layout": {}, "data": {}, "seed": 0}


def _draw(rng: Random) -> Settings:
    settings = draw_shape(rng)
    settings["seed"] = rng.randrange(1000)
    settings |= _params(rng, settings)
    settings["mask"] = draw_mask(rng, settings)
    found: dict[str, Settings] = {"mask": _mask_layout(rng, settings)}
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


def _params(rng: Random, shape: Settings) -> Settings:
    found: Settings = {}
    if rng.random() < 0.15:
        found["scale"] = round(rng.choice([rng.uniform(0.01, 0.4), 1.0]), 4)
    if rng.random() < (0.15 if shape["hsk"] in SOFTCAP else 0.02):
        found["logit_softcap"] = float(rng.choice([10, 30, 50]))
    if rng.random() < 0.15:
        found["sinks"] = True
    if rng.random() < 0.05:
        found["prec"] = "default"
    return found


def draw_mask(rng: Random, settings: Settings) -> Settings:
    """A mask; sets `max_bias` and `n_kv_max` of the settings if it needs them."""
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


def _mask_layout(rng: Random, settings: Settings) -> Settings:
    """Padding of the mask: mostly 64 if its rows are scanned, because the scan reads the rows of whole query tiles."""
    found: Settings = {}
    scanned = settings["n_kv"] % STRIDE == 0 and (settings["n_q"] >= 1024 or settings.get("n_seq", 1) > 1)
    if rng.random() < (0.97 if scanned else 0.3):
        found["pad"] = 64 if scanned else rng.choice([2, 16, 32, 64])
    if rng.random() < 0.1:
        found["offset"] = rng.randint(1, 70)
    if settings.get("n_seq", 1) > 1 and rng.random() < 0.3:
        found["per_sequence"] = False
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
        found["pad"] = _pad(rng, type_)
    found["outside"] = choose(rng, {"nan": 3, "random": 4, "zero": 1})
    return found


def _pad(rng: Random, type_: str) -> int:
    """Elements between rows. Rows of Q stay aligned to 8 bytes: an output does not reveal the known defect q-stride."""
    if type_ not in FLOATS:
        return 32 * rng.randint(1, 3)
    if rng.random() < 0.9:
        return 8 * rng.randint(1, 4)
    return {"f32": 2, "f16": 4, "bf16": 4}[type_]


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
