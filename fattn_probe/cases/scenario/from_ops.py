"""Convert the name of a FLASH_ATTN_EXT case in test-backend-ops into a scenario for the same op."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fattn_probe.base.errors import InputError
from fattn_probe.cases.op.op import TYPE_NAMES, block_size, default_scale
from fattn_probe.cases.scenario.check import checked, nearest
from fattn_probe.cases.scenario.schema import Scenario

# Until April 2026, test_flash_attn_ext::vars() had type_KV; now: type_K, type_V, kv_view, v_is_view_of_k, n_kv_max.
COMMON = ["hsk", "hsv", "nh", "nr23", "kv", "nb", "mask", "sinks", "max_bias", "logit_softcap", "prec", "permute"]
OLD = [*COMMON, "type_KV"]
NEW = [*COMMON, "type_K", "type_V", "kv_view", "v_is_view_of_k", "n_kv_max"]
# The defaults of test_flash_attn_ext's constructor, in the notation of a case's name.
DEFAULTS = {
    "hsk": "128",
    "hsv": "128",
    "nh": "32",
    "nr23": "[1,1]",
    "kv": "96",
    "nb": "8",
    "mask": "1",
    "sinks": "0",
    "max_bias": "0",
    "logit_softcap": "0",
    "prec": "f32",
    "permute": "[0,1,2,3]",
    "type_KV": "f16",
    "type_K": "f16",
    "type_V": "f16",
    "kv_view": "1",
    "v_is_view_of_k": "0",
    "n_kv_max": "0",
}
OPTIONAL = ["q_range"]  # test_flash_attn_ext_large_logits, since October 2026
NAME = re.compile(r"FLASH_ATTN_EXT\((?P<vars>[^()]*)\)")
ASSIGNMENT = re.compile(r"\s*(?P<key>[^=,\[\]]+?)\s*=\s*(?P<value>\[[^\]]*\]|[^,]*)\s*(?:,|$)")


_TWO = r"[1-9][0-9]{0,17}"
_VALUES: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    **dict.fromkeys(
        ("hsk", "hsv", "nh", "kv", "nb", "q_range"),
        (r"(?=\d{1,18}$)0*[1-9]\d*", "a whole number of at least 1", int),
    ),
    "n_kv_max": (r"\d{1,18}", "a whole number of at least 0", int),
    **dict.fromkeys(("mask", "sinks", "kv_view", "v_is_view_of_k"), ("[01]", "0 or 1", "1".__eq__)),
    **dict.fromkeys(
        ("max_bias", "logit_softcap"), (r"\d{1,30}(\.\d*)?(e[-+]?\d\d?)?", "a number of at least 0", float)
    ),
    **dict.fromkeys(("type_K", "type_V", "type_KV"), ("|".join(TYPE_NAMES), ", ".join(TYPE_NAMES), str)),
    "nr23": (rf"\[{_TWO},\s*{_TWO}\]", "two whole numbers, such as [4,1]", json.loads),
    "prec": ("f32|def", "f32 or def", {"f32": "f32", "def": "default"}.__getitem__),
    "permute": (r"\[0,\s*(1,\s*2|2,\s*1),\s*3\]", "[0,1,2,3] or [0,2,1,3]", json.loads),
}
"""For each parameter: the pattern of its value, the allowed values in words, and the conversion."""


@dataclass(frozen=True)
class OpsCase:
    """The parameters of test_flash_attn_ext, under their own names; names in the old form are translated."""

    hsk: int
    hsv: int
    nh: int
    nr23: list[int]
    kv: int
    nb: int
    mask: bool
    sinks: bool
    max_bias: float
    logit_softcap: float
    prec: str
    permute: list[int]
    type_K: str
    type_V: str
    kv_view: bool
    v_is_view_of_k: bool
    n_kv_max: int
    q_range: int = 1


def from_ops(text: str, *, separate_V: bool = False) -> Scenario:
    """The scenario for a case such as `FLASH_ATTN_EXT(hsk=64,hsv=64,nh=4,...)`; InputError lists its mistakes.

    As in test_flash_attn_ext::build_graph, K and V are views into an allocation that is twice as large in dimension 1
    of memory, and sizes are padded to whole blocks. Names in the old form do not say whether V is a view of K: for
    576/512, V became a view between releases 0.2.8 and 0.2.12 of xllamacpp; `separate_V` selects the earlier behaviour.
    Omitted parameters have upstream's defaults (see `defaults_in`). Values have upstream's distributions, but come from
    a different generator, because upstream's generator has no seed.
    """
    case = parse_ops(text, separate_V=separate_V)
    blocks = ((case.hsk, block_size(case.type_K)), (case.hsv, block_size(case.type_V)))
    hsk, hsv = (-(-size // block) * block for size, block in blocks)
    heads, permute, view = case.nh, case.permute, case.kv_view
    Q = _layout(permute, heads * case.nr23[0], case.nb, view=False)
    K = _layout(permute, heads, case.kv, view=view)
    V: dict[str, Any] | None = {"kind": "view_of_K"} if case.v_is_view_of_k else K
    layout = {name: value for name, value in (("Q", Q), ("K", K), ("V", V)) if value is not None}
    match = NAME.search(text)
    assert match is not None
    short = match["vars"].replace("0.000000", "0").replace(" ", "")
    settings = {
        "version": 1,
        "about": f"test-backend-ops {short if len(short) <= 180 else short[:177] + '...'}",
        "hsk": hsk,
        "hsv": hsv,
        "n_head": case.nh * case.nr23[0],
        "n_head_kv": case.nh,
        "n_q": case.nb,
        "n_kv": case.kv,
        "n_seq": case.nr23[1],
        "type_K": case.type_K,
        "type_V": case.type_V,
        **({"scale": default_scale(case.hsk)} if hsk != case.hsk else {}),
        "max_bias": case.max_bias,
        "logit_softcap": case.logit_softcap,
        "prec": case.prec,
        "n_kv_max": case.n_kv_max,
        "sinks": case.sinks,
        "mask": {"kind": ("sparse" if case.n_kv_max else "random") if case.mask else "none"},
        **({"layout": layout} if layout else {}),
        **({"data": {"Q": {"kind": "uniform", "scale": float(case.q_range)}}} if case.q_range != 1 else {}),
    }
    return checked(settings, "ops", "FLASH_ATTN_EXT(...)")


def parse_ops(text: str, *, separate_V: bool = False) -> OpsCase:
    """The parameters in a case's name, with upstream's defaults for omitted ones; reports all mistakes together."""
    match = NAME.search(text)
    if not match:
        allowed = "FLASH_ATTN_EXT(hsk=64,hsv=64,...)"
        raise InputError(f"{text.strip()!r} is not a case of test-backend-ops, allowed: {allowed}")
    pairs, problems = [(m["key"], m["value"]) for m in ASSIGNMENT.finditer(match["vars"])], []
    given = dict(pairs)
    allowed_keys = [*(OLD if "type_KV" in given else NEW), *OPTIONAL]
    for key, value in pairs:
        if key not in allowed_keys:
            problems.append(f"{key}: unknown key, allowed: {', '.join(allowed_keys)}" + nearest(key, allowed_keys))
        elif [name for name, _ in pairs].count(key) > 1:
            problems.append(f"{key}: given twice, allowed: once")
        elif not re.fullmatch(_VALUES[key][0], value):
            hint = nearest(value, list(TYPE_NAMES)) if key.startswith("type_") else ""
            problems.append(f"{key}: found {value[:60]!r}, allowed: {_VALUES[key][1]}{hint}")
    if problems:
        raise InputError("\n".join(f"FLASH_ATTN_EXT(...): {problem}" for problem in problems))
    values = {key: _VALUES[key][2](value) for key, value in (defaults_in(text) | given).items()}
    if "type_KV" in values:
        values["type_K"] = values["type_V"] = values.pop("type_KV")
        is_view = (values["hsk"], values["hsv"]) == (576, 512) and not separate_V
        values |= {"kv_view": True, "v_is_view_of_k": is_view, "n_kv_max": 0}
    return OpsCase(**values)


def defaults_in(text: str) -> dict[str, str]:
    """The parameters that a case's name omits, with upstream's defaults, written as in a name."""
    match = NAME.search(text)
    given = {m["key"] for m in ASSIGNMENT.finditer(match["vars"])} if match else set()
    return {key: DEFAULTS[key] for key in (OLD if "type_KV" in given else NEW) if key not in given}


def _layout(permute: list[int], heads: int, rows: int, *, view: bool) -> dict[str, Any] | None:
    """The layout from create_permuted: with `view`, dimension 1 of memory (rows, or heads if permuted) is doubled."""
    if permute == [0, 1, 2, 3] and not view:
        return None
    layout: dict[str, Any] = {"kind": "view", "permute": permute}
    if view:
        layout |= {"rows": 2 * rows} if permute[1] == 1 else {"heads": 2 * heads}
    return layout
