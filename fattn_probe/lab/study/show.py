"""A study as text (rich) and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.figures import number_of
from fattn_probe.base.tables import Table, Word
from fattn_probe.lab.study.algorithms import Algorithm
from fattn_probe.lab.study.command import Backward, Study, problems
from fattn_probe.lab.study.draw import TilePicture, interval, standard_picture, stream_k_picture
from fattn_probe.lab.study.draw_schedule import schedule_lines
from fattn_probe.lab.study.formulas import Formula, FormulaSizes, FormulaTerm
from fattn_probe.lab.study.problem import count
from fattn_probe.lab.study.schedules import Scheduled
from fattn_probe.lab.study.show_precisions import precision_lines, precisions_json
from fattn_probe.lab.study.split_kv import split_ranges
from fattn_probe.lab.study.steps import JOINS, StepRow, Summary, rows_of, summary_of
from fattn_probe.llama.launch.tiles import ntiles

BAR = 10


@dataclass(frozen=True)
class About:
    """An algorithm's name, its source, and a one-sentence description."""

    title: str
    source: str
    words: str


ABOUT: Mapping[Algorithm, About] = {
    "standard": About(
        "Standard attention",
        "algorithm 0 of Dao et al. 2022, arXiv 2205.14135",
        "Three passes over the score matrix, which goes through slow memory as S and again as P.",
    ),
    "fa1": About(
        "FlashAttention-1",
        "algorithm 1 of Dao et al. 2022, arXiv 2205.14135",
        "Outer loop over K/V: a K/V tile stays on chip while all queries pass. Every tile loads O, l and m from slow"
        " memory, rescales and divides O, and stores them again.",
    ),
    "fa2": About(
        "FlashAttention-2",
        "algorithm 1 of Dao 2023, arXiv 2307.08691",
        "Outer loop over queries: a tile of queries stays on chip with its O, l and m while all K/V tiles pass. O is"
        " divided by l once, at the end, and L = m + log l is saved.",
    ),
    "fa3": About(
        "FlashAttention-3",
        "algorithm 2 of Shah et al. 2024, arXiv 2407.08608",
        "FlashAttention-2's arithmetic in another order: S of the next tile is computed before P V of this one, so that"
        " the softmax overlaps matrix products.",
    ),
    "split-kv": About(
        "Split-KV, with combine",
        "Dao et al. 2023, Flash-Decoding for long-context inference",
        "FlashAttention-2 on each piece of the KV rows, in parallel; the pieces are combined by their L.",
    ),
    "stream-k": About(
        "Stream-K, with fixup",
        "llama.cpp, ggml-cuda/fattn-mma-f16.cuh, after Osama et al. 2023, arXiv 2301.03598",
        "The KV steps of all output tiles in sequence, cut into equal shares. Where a tile is cut, each block stores O,"
        " m and l, and the fixup adds them up.",
    ),
}


def render(study: Study, most_steps: int) -> RenderableType:
    """The whole report, with at most `most_steps` steps."""
    about = ABOUT[study.algorithm]
    rows = steps_of(study)
    listed = [row for row in rows if row.visible]
    sections: dict[str, list[RenderableType]] = {
        "Schedule": [picture(study, rows)],
        "Steps": [step_table(study.algorithm, listed, most_steps), *step_words(study, len(listed))],
        "Warpgroups": [*schedule_lines(study.scheduled, most_steps)] if study.scheduled else [],
        "Rounding": [*precision_lines(study.precisions, study.results["standard"].out)] if study.precisions else [],
        "Slow memory, in elements": [
            traffic_table(study.formulas[study.algorithm], study.result.reads_total, study.result.writes_total),
            Text(traffic_words(study), "dim"),
        ],
        "Backward pass": backward_lines(study.backward) if study.backward else [],
        "All algorithms on this head": [all_table(study), *verdict(study)],
    }
    head = Group(
        Text.assemble((about.title, "bold green"), ("  " + about.source, "dim")),
        Text(about.words),
        Text(subject_words(study)),
    )
    return Group(head, *(Group(Text(f"\n{title}", "bold"), *parts) for title, parts in sections.items() if parts))


def steps_of(study: Study) -> tuple[StepRow, ...]:
    """The steps of the head under study."""
    return rows_of(study.result.trace, study.options.head if study.algorithm == "stream-k" else 0)


def subject_words(study: Study) -> str:
    """The head, its sizes and its tiles."""
    sizes, group = FormulaSizes.of(study.subject.tensors), study.subject.op.shape.group
    shared = f" (K/V head {study.options.head // group}, {group} heads share it)" if group > 1 else ""
    which = f"{study.case}, sequence {study.options.sequence}, head {study.options.head}{shared}"
    head = f"N_q {sizes.N_q}, N_kv {sizes.N_kv}, d_k {sizes.d_k}, d_v {sizes.d_v}{', masked' if sizes.masked else ''}"
    return f"{which}\n{head}; {tile_words(study)}"


def tile_words(study: Study) -> str:
    """The tile sizes and their origin."""
    sizes, tiling, launch = FormulaSizes.of(study.subject.tensors), study.subject.tiling, study.subject.launch
    B_r, B_c = tiling.fa1 if study.algorithm == "fa1" else (tiling.B_r, tiling.B_c)
    tiles = f"B_r {B_r}, B_c {B_c}: T_r {count(sizes.N_q, B_r)}, T_c {count(sizes.N_kv, B_c)}"
    match study.algorithm:
        case "fa1" if study.options.tile_q is None and study.options.tile_kv is None:
            return f"{tiles}, from M = {study.options.memory} elements on chip"
        case "split-kv":
            return f"{tiles}, {len(split_ranges(sizes.N_kv, B_c, tiling.splits))} splits"
        case "stream-k":
            widths = f"ncols1 {launch.ncols1} queries x ncols2 {launch.ncols2} heads"
            tile = f"tiles of {widths}, nbatch_fa {launch.nbatch_fa}"
            read = study.options.inspected
            source = f"from {read}" if read else "shares by the kernel's arithmetic"
            work = f"{number_of(ntiles(launch.grid), 'tile')} of {launch.grid.iter_k} KV steps"
            return f"{tile};\n{number_of(len(launch.blocks), 'CUDA block')} on {work}, {source}"
        case "standard":
            return "no tiles"
    return tiles


def picture(study: Study, rows: Sequence[StepRow]) -> RenderableType:
    """The schedule."""
    match study.algorithm:
        case "standard":
            return standard_picture(study.result.reads, study.result.writes)
        case "stream-k":
            return stream_k_picture(study.subject)
    return TilePicture(rows, by_worker=study.algorithm == "split-kv")


def step_table(algorithm: Algorithm, rows: Sequence[StepRow], most: int) -> Table:
    """At most `most` steps, from the start and the end, with maximum and sum of the tile's last query."""
    worker = {"split-kv": "split", "stream-k": "block"}.get(algorithm)
    head = ("step", *([worker] if worker else []), "what", "queries", "KV rows")
    columns = (*head, "m", "l", "rescale", "m rose", "read", "write")
    most = most if len(rows) > most + 1 else len(rows)
    tail = most // 4 if len(rows) > most else 0
    lines: list[tuple[Word, ...]] = [_cells(row, worker is not None) for row in rows[: most - tail]]
    if len(rows) > most:
        said: list[Word] = [Text("⋮", "dim"), *([""] if worker else []), Text(f"{len(rows) - most} more", "dim")]
        lines.append((*said, *[""] * (len(columns) - len(said))))
    lines += [_cells(row, worker is not None) for row in rows[len(rows) - tail :]]
    return Table(columns, tuple(lines), frozenset(columns) - {"what"}, heading=head)


def _cells(row: StepRow, with_worker: bool) -> tuple[Word, ...]:
    head = [str(row.step), *([str(row.worker)] if with_worker else []), row.what, interval(row.queries)]
    words = [*head, interval(row.kv), *_state_cells(row), str(row.reads), str(row.writes)]
    return tuple(Text(word, "" if row.what in JOINS else "dim") for word in words)


def _state_cells(row: StepRow) -> list[str]:
    if row.maximum is None or row.total is None:
        return [""] * 4
    rescale = "" if row.rescale is None else f"{row.rescale:.3g}"
    return [f"{row.maximum:.4g}", f"{row.total:.4g}", rescale, f"{row.rose}/{row.again}" if row.again else ""]


def step_words(study: Study, listed: int) -> list[RenderableType]:
    """The steps omitted from the table, and the totals."""
    hidden = " Steps hidden by the mask change nothing and are not listed." if listed < len(study.result.trace) else ""
    words = f"m, l and rescale are those of the tile's last query.{hidden}"
    return [Text(words, "dim"), Text(summary_words(study))]


def summary_words(study: Study) -> str:
    """The number of tiles, and how often rescaling mattered."""
    found: Summary = summary_of(study.result.trace)
    hidden = f", {found.hidden} hidden by the mask" if found.hidden else ""
    tiles = f"{number_of(found.tiles, 'tile')}{hidden}"
    if not found.rows:
        return f"{tiles}; no row is revisited, so nothing is rescaled."
    share = f"{found.rose} of {found.rows} revisits of a row ({found.rose / found.rows:.1%})"
    return f"{tiles}. The maximum rose on {share}; only then does rescaling change anything."


def traffic_table(formula: Formula, reads: int, writes: int) -> Table:
    """The formula term by term, next to the count."""
    rows: list[tuple[Word, ...]] = []
    parts: tuple[tuple[str, tuple[FormulaTerm, ...], int, int], ...] = (
        ("read", formula.reads, formula.total_reads, reads),
        ("written", formula.writes, formula.total_writes, writes),
    )
    for what, terms, total, counted in parts:
        rows += [
            ("" if place else what, term.of, term.formula, f"{term.value:,}", "") for place, term in enumerate(terms)
        ]
        mark = ("=", "green") if total == counted else ("≠", "bold red")
        sums = Text(f"{total:,}", "bold"), Text.assemble(mark, (f" {counted:,}", "bold"))
        rows.append(("", Text("all", "bold"), "", *sums))
    columns = ("", "of", "formula", "elements", "counted")
    return Table(columns, tuple(rows), frozenset(columns[3:]), frozenset({"formula"}))


def backward_lines(found: Backward) -> list[RenderableType]:
    """The backward pass: its traffic, and its differences from the standard backward pass."""
    differences = ", ".join(f"{name} {value:.1e}" for name, value in found.differences.items())
    words = "Largest differences from the standard backward pass, relative to the largest gradient: "
    return [
        Text("Algorithm 2 of FlashAttention-2: P is recomputed from L, tile by tile, for a random dO."),
        traffic_table(found.formula, found.reads, found.writes),
        Text.assemble(words, (differences, "green" if found.equal else "bold red"), "."),
    ]


def traffic_words(study: Study) -> str:
    """The asymptotic order from the paper, and the sizes of the arrays for comparison."""
    formula, s = study.formulas[study.algorithm], FormulaSizes.of(study.subject.tensors)
    letters = {"split-kv": "s splits. ", "stream-k": "R rows (queries x heads) in all parts, F of them at a seam. "}
    sizes = f"S has {s.scores:,} elements, Q, K, V and O {(s.N_q + s.N_kv) * s.d:,}"
    return f"{letters.get(study.algorithm, '')}Asymptotically {formula.order}; {sizes}."


def all_table(study: Study) -> Table:
    """Traffic and agreement of all algorithms, with a bar for the traffic per head."""
    per_head = {name: (one.reads_total + one.writes_total) / study.heads(name) for name, one in study.results.items()}
    most = max(per_head.values())
    rows: list[tuple[Word, ...]] = []
    for name, result in study.results.items():
        bar = Text("█" * max(1, round(BAR * per_head[name] / most)), "green" if name == study.algorithm else "dim")
        one = study.agreement[name]
        style = "bold" if name == study.algorithm else ""
        sums = (f"{result.reads_total:,}", f"{result.writes_total:,}", f"{per_head[name]:,.0f}")
        first, last = (
            (Text(word, style) for word in words) for words in ((name, *sums), (f"{one.out:.1e}", f"{one.lse:.1e}"))
        )
        rows.append((*first, bar, *last))
    rows.append(("reference", "", "", "", "", f"{study.agreement['reference'].out:.1e}", ""))
    columns = ("algorithm", "read", "written", "per head", "", "ΔO", "ΔL")
    return Table(columns, tuple(rows), frozenset(columns) - {"algorithm", ""})


def verdict(study: Study) -> list[RenderableType]:
    """Whether all algorithms agree, and why stream-K's traffic covers several heads."""
    heads = study.heads("stream-k")
    several = f" A tile of stream-k has {heads} heads, which read K and V together." if heads > 1 else ""
    what = Text(f"Largest differences from standard: ΔO relative to max |V|, ΔL to max(|L|, 1).{several}", "dim")
    wrong = problems(study)
    if wrong:
        return [what, Text("; ".join(wrong), "bold red")]
    agree = ("All outputs and log-sum-exps agree to 1e-12", "green")
    return [what, Text.assemble(agree, ", and every count equals its formula.")]


def study_json(study: Study) -> dict[str, Any]:
    """The JSON document (docs/guide/study.md); a number that is not finite is null."""
    sizes, launch = FormulaSizes.of(study.subject.tensors), study.subject.launch
    return {
        "case": study.case,
        "sequence": study.options.sequence,
        "head": study.options.head,
        "algorithm": study.algorithm,
        "sizes": asdict(sizes),
        "tiling": asdict(study.subject.tiling)
        | {
            "ncols1": launch.ncols1,
            "ncols2": launch.ncols2,
            "nbatch_fa": launch.nbatch_fa,
            "blocks": len(launch.blocks),
        },
        "summary": asdict(summary_of(study.result.trace)),
        "steps": [{key: _finite(value) for key, value in asdict(row).items()} for row in steps_of(study)],
        "algorithms": {name: _algorithm_json(study, name) for name in study.results},
        "schedule": None if study.scheduled is None else schedule_json(study.scheduled),
        "precisions": precisions_json(study.precisions),
        "backward": study.backward
        and {
            "reads": study.backward.reads,
            "writes": study.backward.writes,
            "equal": study.backward.equal,
            "formula": _formula_json(study.backward.formula),
            "differences": dict(study.backward.differences),
        },
        "reference": {"out": _finite(study.agreement["reference"].out)},
    }


def _algorithm_json(study: Study, name: Algorithm) -> dict[str, Any]:
    result, formula, one = study.results[name], study.formulas[name], study.agreement[name]
    return {
        "heads": study.heads(name),
        "reads": dict(result.reads),
        "writes": dict(result.writes),
        "formula": _formula_json(formula),
        "out": _finite(one.out),
        "lse": _finite(one.lse),
        "equal": one.equal,
    }


def schedule_json(found: Scheduled) -> dict[str, Any]:
    """The chosen schedule with its events, and the table of all schedules."""
    return {
        "plan": asdict(found.plan),
        "slots": found.timeline.slots,
        "deadlock": dict(found.timeline.deadlock),
        "broken": list(found.broken),
        "registers": asdict(found.registers),
        "events": [asdict(event) for event in found.timeline.events],
        "table": [asdict(one) for one in found.table],
    }


def _formula_json(formula: Formula) -> dict[str, Any]:
    return asdict(formula) | {"total_reads": formula.total_reads, "total_writes": formula.total_writes}


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not np.isfinite(value) else value
