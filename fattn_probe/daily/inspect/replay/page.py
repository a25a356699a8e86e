"""Replays as one page: pictures, the data as JSON, and a script that steps through them."""

import base64
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np
from markupsafe import Markup

from fattn_probe.base.arrays import F64
from fattn_probe.daily.inspect.replay.pictures import pictures_of
from fattn_probe.daily.inspect.replay.replay import Replay, Traffic
from fattn_probe.daily.inspect.replay.row_numbers import RowNumbers, RowSums
from fattn_probe.daily.inspect.trace.document import spelled
from fattn_probe.daily.inspect.view.page import environment
from fattn_probe.llama.launch.families import VEC
from fattn_probe.llama.launch.tiles import index_of

ROOM = "fattn_probe.daily.inspect.replay"


def replay_page(replays: Sequence[Replay], title: str) -> str:
    """One replay, or two side by side, as a self-contained page."""
    runs, pictures = [], []
    for number, replay in enumerate(replays):
        made = pictures_of(replay, f"run{number}")
        runs.append(document_of(replay) | {"layouts": {name: one["layout"] for name, one in made.items()}})
        pictures.append({name: one | {"svg": [*map(Markup, one["svg"])]} for name, one in made.items()})
    data = json.dumps(spelled(runs), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    script = (files(ROOM) / "templates" / "replay.js").read_text(encoding="utf-8")
    words = {"title": title, "replays": list(zip(replays, pictures, strict=True)), "data": Markup(data)}
    return environment(ROOM).get_template("replay.html.j2").render(words, script=Markup(script))


def document_of(replay: Replay) -> dict[str, Any]:
    """The data of a replay for the page's script."""
    traffics: dict[Traffic, int] = {}
    lanes = []
    for lane in replay.lanes:
        runs = []
        for one in lane.stretches:
            traffic = traffics.setdefault(one.traffic, len(traffics))
            runs.append([one.kind, one.tile, one.first, one.count, one.every, traffic, *filter(None, [one.values])])
        lanes.append({"name": lane.name, "link": lane.link, "start": lane.start, "runs": runs})
    geometry = replay.geometry
    return {
        "title": replay.title,
        "kinds": [vars(kind) | {"lines": [[*vars(line).values()] for line in kind.lines]} for kind in replay.kinds],
        "lanes": lanes,
        "traffics": list(traffics),
        "tiles": replay.tiles,
        "masks": replay.masks,
        "step_rows": replay.step_rows,
        "n_kv": replay.n_kv,
        "unit": replay.unit,
        "rows": [_row(replay, row) for row in replay.rows],
        "traced": [vars(one) | {"place": vars(one.place)} for one in replay.traced],
        "marked": replay.marked and vars(replay.marked) | {"place": vars(replay.marked.place)},
        "shape": geometry
        and {
            "ncols1": geometry.kernel.ncols1,
            "ncols2": geometry.kernel.ncols2,
            "group": geometry.group,
            "grid": vars(geometry.grid),
            "warps": geometry.kernel.warps,
            "chunk": replay.chunk,
            "sparse": geometry.kernel.sparse,
            "np": geometry.kernel.warps if geometry.kernel.family is VEC else geometry.kernel.warps_per_column,
        },
    }


def _row(replay: Replay, row: RowNumbers) -> dict[str, Any]:
    """A row's numbers: the kernel's arrays as float32 in base64, and their errors."""
    assert replay.geometry is not None
    sequence, query, head = row.row
    parts = []
    for part in row.parts:
        steps = part.steps
        kernel_P, exact_P = ([getattr(step, name) for step in steps] for name in ("kernel_P", "exact_P"))
        parts.append(
            {
                "block": part.block,
                "kb0": [step.kb0 for step in steps],
                "m": [[step.kernel.m, step.exact.m] for step in steps],
                "l": [[step.kernel.l, step.exact.l] for step in steps],
                "P": _arrays(kernel_P, exact_P),
                "P_sizes": [len(one) for one in exact_P],
                "VKQ": _arrays([step.kernel.VKQ for step in steps], [step.exact.VKQ for step in steps]),
                "end": _sums(part.kernel, part.exact),
            }
        )
    tile = index_of(replay.geometry.tile_of(*row.row), replay.geometry.grid)
    found = replay.outputs.get(row.row)
    out = {"kernel": _arrays([row.output], [row.exact]), "found": found is not None and _arrays([found], [row.exact])}
    return {"row": [sequence, query, head], "tile": tile, "parts": parts, "out": out}


def _sums(kernel: RowSums, exact: RowSums) -> dict[str, Any]:
    return {"m": [kernel.m, exact.m], "l": [kernel.l, exact.l], "VKQ": _arrays([kernel.VKQ], [exact.VKQ])}


def _arrays(kernel: Sequence[F64], exact: Sequence[F64]) -> list[str]:
    """Arrays one after the other, and their errors."""
    ours, right = (
        np.concatenate([np.asarray(one, np.float64) for one in each] or [np.zeros(0)]) for each in (kernel, exact)
    )
    with np.errstate(invalid="ignore", over="ignore"):
        return [base64.b64encode(one.astype("<f4").tobytes()).decode() for one in (ours, ours - right)]
