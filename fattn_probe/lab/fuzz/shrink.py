"""Shrink a failing scenario: simplify one setting at a time as long as it fails in the same way."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

from fattn_probe.lab.fuzz.scenarios import checked, simplest
from fattn_probe.lab.fuzz.shapes import STRIDE, Settings

MOST_TRIES = 300
Place = tuple[str, ...]
OPTIONAL = ("layout", "data", "n_seq", "sinks", "logit_softcap", "scale", "prec", "n_kv_max", "max_bias", "type_V")
"""Settings that can be removed separately, those with the largest effect first."""
SIZES = ("n_kv", "n_q", "n_seq")
FIXED = frozenset({"hsk", "hsv", "n_head", "n_head_kv", "seed", *SIZES})
"""Numbers that `_numbers` does not change: they choose the kernel, or have their own rule."""


def shrink(settings: Settings, fails: Callable[[Settings], bool], tries: int = MOST_TRIES) -> Settings:
    """The smallest legal scenario found that `fails`, as the given one does; at most `most` are tried."""
    seen = [settings]
    found = True
    while found:
        found = False
        for candidate in candidates(settings):
            if candidate in seen or checked(candidate) is None:
                continue
            if len(seen) > tries:
                return settings
            seen.append(candidate)
            if fails(candidate):
                settings, found = candidate, True
                break
    return settings


def candidates(settings: Settings) -> Iterator[Settings]:
    """Simpler scenarios, each by one change, the largest changes first; not all are legal."""
    for change in (_without, _masks, _inner, _heads, _sizes, _types, _numbers):
        for candidate in change(settings):
            simple = simplest(candidate)
            if simple != settings:
                yield simple


def _without(settings: Settings) -> Iterator[Settings]:
    """Remove a complete setting; with the mask, also everything that needs one."""
    if "mask" in settings:
        layout = {name: view for name, view in settings.get("layout", {}).items() if name != "mask"}
        yield _drop(settings, "mask", "max_bias", "n_kv_max") | {"layout": layout}
    for key in OPTIONAL:
        if key in settings:
            yield _drop(settings, key)
    if settings.get("seed"):
        yield settings | {"seed": 0}


def _masks(settings: Settings) -> Iterator[Settings]:
    """With a simpler kind of mask."""
    mask = settings.get("mask", {"kind": "none"})
    if mask["kind"] not in ("none", "causal"):
        yield _drop(settings, "max_bias", "n_kv_max") | {"mask": {"kind": "causal"}}
    for part in mask.get("of", ()):
        yield settings | {"mask": part}


def _inner(settings: Settings) -> Iterator[Settings]:
    """Without a part of the mask, the layout or the data."""
    for place, value in _leaves(settings):
        if len(place) > 2 and place[-1] == "kind" and value != "uniform":
            yield _changed(settings, place[:-1], None)
    for place, value in _leaves(settings):
        if len(place) > 1 and place[-1] != "kind":
            yield _changed(settings, place, None)
        elif place[:1] == ("data",) and value != "uniform":
            yield _changed(settings, place[:-1], {"kind": "uniform"})


def _heads(settings: Settings) -> Iterator[Settings]:
    """With fewer K/V heads, then with fewer heads for each."""
    heads: int = settings.get("n_head_kv") or settings["n_head"]
    group = settings["n_head"] // heads
    for fewer in _smaller(heads):
        yield settings | {"n_head": fewer * group, "n_head_kv": fewer}
    for fewer in _smaller(group):
        yield settings | {"n_head": heads * fewer, "n_head_kv": heads}


def _sizes(settings: Settings) -> Iterator[Settings]:
    for key in SIZES:
        size: int = settings.get(key) or 1
        strides = [STRIDE * number for number in _smaller(size // STRIDE)] if key == "n_kv" else []
        for fewer in [*strides, *_smaller(size)]:
            yield settings | {key: fewer}


def _types(settings: Settings) -> Iterator[Settings]:
    if settings.get("type_K", "f16") != "f16":
        yield settings | {"type_K": "f16", "type_V": "f16"}
        yield settings | {"type_K": "f16"}


def _numbers(settings: Settings) -> Iterator[Settings]:
    """With smaller whole numbers, and rounder others."""
    for place, value in _leaves(settings):
        if place[-1] in FIXED or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if isinstance(value, int):
            for fewer in _smaller(value):
                yield _changed(settings, place, fewer)
        elif value != (rounder := float(f"{value:.1g}")):
            yield _changed(settings, place, rounder)


def _smaller(number: int) -> Iterator[int]:
    """1, half of it, three quarters, one less."""
    yield from dict.fromkeys(n for n in (1, number // 2, 3 * number // 4, number - 1) if 1 <= n < number)


def _leaves(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:  # noqa: ANN401 - YAML's values
    """The values in nested mappings, with their keys; a list counts as one value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*place, key))
    else:
        yield place, value


def _changed(settings: Settings, place: Place, value: object) -> Settings:
    """A copy with a different value at a place, or without the place if the value is None."""
    found = copy.deepcopy(settings)
    inner = found
    for key in place[:-1]:
        inner = inner[key]
    if value is None:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return found


def _drop(settings: Settings, *keys: str) -> Settings:
    return {key: value for key, value in settings.items() if key not in keys}
