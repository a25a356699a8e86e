"""A study as a replay: an algorithm step by step, on the same page as kernels."""

from dataclasses import replace
from itertools import groupby
from types import MappingProxyType

import numpy as np

from fattn_probe.daily.inspect.facts import Choice, Facts
from fattn_probe.daily.inspect.replay.replay import Lane, Replay, SourceLine, StepKind, Stretch
from fattn_probe.daily.inspect.replay.row_numbers import visible_shares
from fattn_probe.lab.study.command import Study
from fattn_probe.lab.study.draw import LANES, interval, stream_k_facts
from fattn_probe.lab.study.problem import StepRow, count
from fattn_probe.lab.study.schedules import Scheduled
from fattn_probe.lab.study.show import StepLines, about_of, steps_of, tile_words
from fattn_probe.llama.launch.tiles import BlockWork, Grid, TileWork

SIGNS = {"tile": "#", "store O, L": "O", "store part": "part", "combine": "+#", "S = QK^T": "S", "O = PV": "PV"}
SIGNS |= {"store O": "O", "store O, m, l": "O+", "O, l, m = 0": "0"}
"""The symbols for steps in pictures."""
SOFTMAX = ("S = Q K^T", "m = max(m, S)", "P = e^(S - m)", "rescale = e^(m_old - m)", "l = rescale l + sum of P")
LINES = {
    "tile": (*SOFTMAX, "O = rescale O", "O = O + P V"),
    "S = QK^T": SOFTMAX[:1],
    "store O, L": ("O = O / l, undivided tile",),
    "store part": ("store m, l of a part", "store O of a part"),
    "combine": ("add parts",),
    "store O": ("O = O / l",),
}
"""The steps of llama.cpp that correspond to a step of an algorithm."""
PARALLEL = ("fa2", "fa3")
"""Algorithms whose query tiles are independent blocks."""


def replay_of_study(study: Study, lines: StepLines = MappingProxyType({})) -> Replay:
    """The steps of the algorithm to show: a lane for each worker, then one for each tile whose parts are combined.

    `lines` are lines of llama.cpp: from the vec kernel for split-KV, otherwise from the mma kernel.
    """
    steps, about = steps_of(study), about_of(study.algorithm)
    tiles = sorted({step.queries for step in steps if step.what == "tile"})
    B_c = max(step.kv[1] - step.kv[0] for step in steps if step.what == "tile")
    head, name = study.subject.tensors, {"split-kv": "split", "stream-k": "block"}.get(study.algorithm, "block")
    kernels = ("vec", "combine") if study.algorithm == "split-kv" else ("mma", "fixup")
    found_lines: dict[str, tuple[SourceLine, ...]] = {}
    for what in dict.fromkeys(step.what for step in steps):
        places = [(step, place) for step, found in lines.items() for name in kernels if (place := found.get(name))]
        found_lines[what] = tuple(SourceLine(*one, "") for one in places if one[0] in LINES.get(what, ()))
    kinds = {what: StepKind(what, SIGNS.get(what, "·"), lines=some) for what, some in found_lines.items()}
    numbers = {what: number for number, what in enumerate(kinds)}
    found: dict[tuple[str, str], list[Stretch]] = {}
    joined: set[int] = set()
    if study.algorithm in PARALLEL:
        steps = tuple(replace(step, worker=tiles.index(step.queries)) for step in steps)
    for step in steps:
        tile = tiles.index(step.queries) if step.queries in tiles else -1
        if step.what == "combine":
            joined.add(tile)
        late = tile in joined and step.what != "tile"
        lane = (f"tile {tile}", f"tile={tile}") if late else (f"{name} {step.worker}", f"block={step.worker}")
        first = step.kv[0] // B_c if step.what == "tile" else step.worker
        traffic = (("all arrays", step.reads, step.writes),) if step.reads or step.writes else ()
        found.setdefault(lane, []).append(
            Stretch(numbers[step.what], tile, first, traffic=traffic, values=_values(step))
        )
    start = max((len(some) for (_, link), some in found.items() if link.startswith("block")), default=0)
    lanes = tuple(Lane(*key, tuple(some), 0 if key[1].startswith("block") else start) for key, some in found.items())
    B_r = tiles[0][1] - tiles[0][0]
    grid = Grid(count(head.n_kv, B_c), len(tiles), 1, 1, 1)
    facts = _facts(steps, tiles, grid, B_c) if study.algorithm != "stream-k" else stream_k_facts(study.subject)
    mask = None if head.mask is None else np.broadcast_to(head.mask, (head.n_q, head.n_kv)).astype(np.float32)
    made = Replay(
        title=f"{about['title']}: {study.case}, sequence {study.options.sequence}, head {study.options.head}",
        about={"source": about["source"], "tiles": tile_words(study)},
        kinds=tuple(kinds.values()),
        lanes=lanes,
        facts=facts if study.algorithm != "standard" else Facts({}),
        step_rows=B_c,
        n_kv=head.n_kv,
        tiles=tuple(f"queries {interval(one)}" for one in tiles),
        masks=tuple(visible_shares(mask, head.n_kv, B_c, B_r, grid.iter_k)),
        verdict=about["words"],
        unit="elements",
        caption="Steps in order: each colour is a tile of queries, each number a KV tile.",
        notes=("Values between loads and stores are on chip, not counted. Numbers are those of a tile's last query.",),
    )
    return made if study.scheduled is None else _scheduled(made, study.scheduled)


def _values(step: StepRow) -> tuple[tuple[str, float], ...]:
    """The softmax of the tile's last query after a step, and how many rows it rescaled."""
    if step.maximum is None or step.total is None:
        return ()
    found = [("maximum m", step.maximum), ("row sum l", step.total)]
    found += [("rescale e^(m before − m)", step.rescale)] if step.rescale is not None else []
    return (
        *found,
        ("rows with earlier sums", float(step.again or 0)),
        ("of these, maximum rose", float(step.rose or 0)),
    )


def _facts(steps: tuple[StepRow, ...], tiles: list[tuple[int, int]], grid: Grid, B_c: int) -> Facts:
    """The division of tiles among workers, in the form used for CUDA blocks."""
    done = sorted((step for step in steps if step.what == "tile"), key=lambda step: step.worker)
    blocks = []
    for worker, some in groupby(done, key=lambda step: step.worker):
        cells = sorted((tiles.index(step.queries), step.kv[0] // B_c) for step in some)
        runs: list[TileWork] = []
        for jt, kb0 in cells:
            if runs and runs[-1].jt == jt and runs[-1].kb0_stop == kb0:
                runs[-1] = replace(runs[-1], kb0_stop=kb0 + 1)
            else:
                runs.append(TileWork(0, 0, 0, jt, kb0, kb0 + 1))
        blocks.append(BlockWork(worker, (worker, 0, 0), 0, 0, tuple(runs)))  # a worker's share is only these
    return Facts({}, choice=Choice("mma_f16", "", {}, {"nbatch_fa": B_c}), grid=grid, blocks=tuple(blocks))


def _scheduled(replay: Replay, scheduled: Scheduled) -> Replay:
    """FlashAttention-3: lanes for the units of each warpgroup, in slots; a softmax has the values of its tile."""
    numbers = {(one.tile, one.first): one.values for lane in replay.lanes for one in lane.stretches if one.values}
    kinds = [StepKind("waits", ""), *(StepKind(what, sign, about) for what, sign, about in WORK)]
    places = {kind.name: at for at, kind in enumerate(kinds)}
    events: dict[tuple[str, str], list[Stretch]] = {}
    softmax = (event.actor for event in scheduled.timeline.events if event.what == "P")
    groups = {who: at for at, who in enumerate(sorted(set(softmax)))}
    for event in scheduled.timeline.events:
        name = f"{LANES[event.unit]} {event.actor}"
        lane = events.setdefault((name, f"lane={name.replace(' ', '-')}"), [])
        at = sum(one.count for one in lane)
        if event.start > at:
            lane.append(Stretch(0, -1, 0, event.start - at, 0))
        tile = groups.get(event.actor, -1)
        values = numbers.get((tile, event.tile or 0), ()) if event.what == "P" else ()
        lane.append(Stretch(places[event.what], tile, event.tile or 0, event.end - event.start, 0, values=values))
    lanes = tuple(Lane(name, link, tuple(some)) for (name, link), some in events.items())
    caption = "Slots of the schedule: loads (TMA), products (tensor cores) and softmax of each warpgroup."
    return replace(replay, kinds=tuple(kinds), lanes=lanes, caption=caption)


WORK = (
    ("Q", "Q", "loads the queries"),
    ("K", "K#", "loads a tile of K into the ring"),
    ("V", "V#", "loads a tile of V into the ring"),
    ("S", "S#", "S = Q K^T of a tile"),
    ("P", "#", "softmax of a tile"),
    ("PV", "PV#", "O + P V of a tile"),
)
"""The work of FlashAttention-3's warpgroups: name, symbol, meaning."""
