"""A scenario similar to a recorded op: the same shape, types, layout and mask; random data with similar statistics."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.arrays import Bytes
from fattn_probe.base.errors import InputError
from fattn_probe.base.tables import Table
from fattn_probe.cases.op import Op
from fattn_probe.cases.op.case_file import read_case
from fattn_probe.cases.op.op import PREC, default_scale, type_size
from fattn_probe.cases.scenario.cases import resolve
from fattn_probe.cases.scenario.check import checked
from fattn_probe.cases.scenario.fit import (
    CHANCE,
    Settings,
    Statistics,
    data_of,
    layouts,
    lies,
    mask_layout_of,
    mask_like,
    offset_in_K,
    rounded,
    statistics_of,
)
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.cases.scenario.schema import Scenario

CLOSE = 0.02
"""Q is not rescaled if the relative difference between the logits' standard deviations is below this."""
ROUNDS = 3
HEADS, CHANNELS = 1.25, 0.1
"""Thresholds for reporting: largest / smallest head, and channel means relative to the standard deviation."""
UNLIKE, UNLIKE_WEIGHT = 0.1, 0.25
"""Standard deviations and largest weights are reported if they differ by more than these relative differences."""


@dataclass(frozen=True)
class CaptureLikeness:
    """A scenario made from a recorded op, the statistics of both, and the differences that remain (`missing`)."""

    scenario: Scenario
    recorded: Statistics
    made: Statistics
    missing: tuple[str, ...]


def from_capture(op: Op, inputs: Mapping[str, Bytes], name: str) -> CaptureLikeness:
    """The scenario similar to a recorded op; Q is scaled to match the standard deviation of the recorded logits."""
    recorded = statistics_of(op, inputs)
    missing: list[str] = []
    odd = [tensor for tensor, spread in recorded.tensors.items() if not math.isfinite(spread.std)]
    if odd:
        raise InputError(f"{name}: {', '.join(odd)} holds NaN or infinities, which no scenario can imitate")
    # The scenario as plain data; differences that it cannot express are added to `missing`.
    sizes, params = op.sizes, op.params
    prec = next((name for name, number in PREC.items() if number == params.prec), "f32")
    V_in_K = offset_in_K(op)
    data = {name: data_of(recorded.tensors[name]) for name in recorded.tensors if name != "V" or V_in_K is None}
    mask: Settings = {"kind": "none"}
    if op.has_mask:
        like, share, by_head = mask_like(op, inputs)
        if by_head:
            missing.append("the mask: it differs between heads, and a scenario's mask is the same for all heads")
        mask = {"kind": like.kind} | like.model_dump(mode="json", exclude_defaults=True)
        if share < 1:
            equal = f"{100 * share:.4g} % of the entries of `{like.kind}`"
            missing.append(f"the mask: {equal} match the recorded ones")
    optional = {
        "n_seq": (sizes.n_seq, 1),
        "scale": (params.scale, default_scale(sizes.hsk)),
        "max_bias": (params.max_bias, 0.0),
        "logit_softcap": (params.logit_softcap, 0.0),
        "prec": (prec, "f32"),
        "n_kv_max": (params.n_kv_max, 0),
        "sinks": (op.has_sinks, False),
    }
    settings = {
        **{name: getattr(sizes, name) for name in ("hsk", "hsv", "n_head", "n_head_kv", "n_q", "n_kv")},
        "type_K": op.type_K,
        "type_V": op.type_V,
        **{name: value for name, (value, default) in optional.items() if value != default},
        "mask": mask,
        "layout": layout_settings(op, V_in_K, missing),
        "data": data,
    }
    scenario, made = fitted({"version": 1, "about": f"like the recorded op {name}"[:200], **settings}, name, recorded)
    missing += list(differences(recorded, made))
    return CaptureLikeness(scenario, recorded, made, tuple(missing))


def of_file(path: Path) -> CaptureLikeness:
    """The scenario similar to the op in a capture or a case file; it is named after the file."""
    file = read_case(path)
    for name, view in file.op.tensors.items():
        if view.end > file.inputs[view.root].size or view.nb[0] != type_size(view.type):
            raise InputError(f"{path}: {name} does not fit its memory, {view.root}")
    return from_capture(file.op, file.inputs, path.stem)


def layout_settings(op: Op, V_in_K: int | None, missing: list[str]) -> dict[str, Settings]:
    """The layouts of the non-contiguous operands."""
    found: dict[str, Settings] = {}
    for name in "QK" if V_in_K is not None else "QKV":
        settings = next((it for it in layouts(op.tensors[name]) if lies(op.tensors[name], it)), None)
        if settings is None:
            missing.append(f"the layout of {name}: its strides {op.tensors[name].nb} or its offset")
        elif settings["kind"] != "contiguous":
            found[name] = settings
    if V_in_K is not None:
        found["V"] = {"kind": "view_of_K", "offset": V_in_K}
    if op.has_mask:
        mask = mask_layout_of(op)
        if mask is None:
            missing.append("the layout of the mask: its shape, its strides or its offset")
        elif mask:
            found["mask"] = mask
    return found


def fitted(settings: Settings, name: str, recorded: Statistics) -> tuple[Scenario, Statistics]:
    """The scenario with Q scaled to match the width of the recorded logits, and its statistics."""
    for number in range(ROUNDS + 1):
        scenario = checked(settings, name, f"{name}: no scenario can express this op")
        case = resolve(scenario, name, name)
        made = statistics_of(case.op, make_inputs(case))
        factor = recorded.logit_std / made.logit_std if made.logit_std and recorded.logit_std else 1.0
        if number == ROUNDS or abs(factor - 1) <= CLOSE or "scale" not in settings["data"]["Q"]:
            break
        settings["data"]["Q"] = {
            key: rounded(value * factor) if key in ("scale", "mean") else value
            for key, value in settings["data"]["Q"].items()
        }
    return scenario, made


def differences(recorded: Statistics, made: Statistics) -> Iterator[str]:
    """The differences between the recorded and the generated data, as messages."""
    for name, spread in recorded.tensors.items():
        own = made.tensors[name]
        if spread.heads > HEADS * own.heads:
            said = f"the widest is {spread.heads:.3g} times as wide as the narrowest; in the scenario, all are the same"
            yield f"{name}'s heads: {said}"
        if spread.channels > CHANNELS * spread.std:
            said = f"{spread.channels:.3g}, root mean square; in the scenario, all channels have the same mean"
            yield f"the means of {name}'s channels: {said}"
        chance = CHANCE / math.sqrt(2 * spread.count)
        if abs(own.std - spread.std) > (UNLIKE + chance) * spread.std:
            why = ", set to match the logits" if name == "Q" else ""
            yield f"{name}'s width{why}: {spread.std:.3g} recorded, {own.std:.3g} generated"
    if abs(made.largest_weight - recorded.largest_weight) > UNLIKE_WEIGHT * recorded.largest_weight:
        said = f"{recorded.largest_weight:.3g} recorded, {made.largest_weight:.3g} generated"
        yield f"the largest softmax weight of a row, averaged over rows: {said}"
    if recorded.unseen > made.unseen:
        yield f"the contents of the {100 * recorded.unseen:.3g} % of KV rows that no query sees"


def figures(found: CaptureLikeness) -> Iterator[tuple[str, float, float]]:
    """The name of each statistic, its value in the recorded data, and its value in the generated data."""
    for name, spread in found.recorded.tensors.items():
        for figure in ("mean", "std", "largest", "kurtosis"):
            yield f"{name} {figure}", getattr(spread, figure), getattr(found.made.tensors[name], figure)
    for figure in ("logit_std", "logit_largest", "largest_weight"):
        yield figure.replace("_", " "), getattr(found.recorded, figure), getattr(found.made, figure)


def to_json(found: CaptureLikeness) -> dict[str, Any]:
    """The document for `--json`: `name`, `scenario`, `figures` by name (`recorded`, `made`) and `missing`."""
    pairs = {name: {"recorded": a, "made": b} for name, a, b in figures(found)}
    scenario = found.scenario.model_dump(mode="json", exclude_unset=True)
    return {"name": found.scenario.name, "scenario": scenario, "figures": pairs, "missing": list(found.missing)}


def render(found: Sequence[CaptureLikeness]) -> RenderableType:
    """Recorded and generated statistics side by side, and the differences that a scenario cannot express."""
    parts: list[RenderableType] = []
    for one in found:
        rows = tuple((name, f"{recorded:.4g}", f"{made:.4g}") for name, recorded, made in figures(one))
        parts += [
            Text(one.scenario.name, "bold"),
            Table(("", "recorded", "made"), rows, frozenset({"recorded", "made"})),
        ]
        parts += [Text(f"not copied: {missing}") for missing in one.missing]
        parts.append(Text())
    return Group(*parts[:-1])
