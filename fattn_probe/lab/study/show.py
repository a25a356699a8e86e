"""A study as text (rich) and as JSON, and the lines of llama.cpp that implement each step."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import numpy as np
import yaml
from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.arrays import F64
from fattn_probe.base.documents import plain
from fattn_probe.base.figures import number_of
from fattn_probe.base.tables import Table, Word
from fattn_probe.daily.inspect.anchors import COMMON, Anchor, locate
from fattn_probe.daily.inspect.replay.replay import line_patterns
from fattn_probe.daily.inspect.view.work_picture import TerminalMap
from fattn_probe.lab.study.against import Against, against_lines
from fattn_probe.lab.study.command import Study, problems
from fattn_probe.lab.study.draw import (
    MOST_ROWS,
    TilePicture,
    interval,
    schedule_lines,
    standard_picture,
    stream_k_facts,
)
from fattn_probe.lab.study.formulas import Formula, FormulaSizes, FormulaTerm
from fattn_probe.lab.study.papers import split_ranges
from fattn_probe.lab.study.problem import JOINS, StepRow, count, rows_of, summary_of
from fattn_probe.llama.launch.families import MMA_F16, TILE, VEC
from fattn_probe.llama.launch.tiles import ntiles
from fattn_probe.llama.source import Tree
from fattn_probe.llama.source.features import CUDA

STEPS = (
    "S = Q K^T",
    "m = max(m, S)",
    "P = e^(S - m)",
    "rescale = e^(m_old - m)",
    "l = rescale l + sum of P",
    "O = rescale O",
    "O = O + P V",
    "O = O / l, undivided tile",
    "store m, l of a part",
    "store O of a part",
    "add parts",
    "O = O / l",
)
KERNELS: Mapping[str, tuple[str, str]] = {
    "mma": (MMA_F16.name, MMA_F16.file),
    "tile": (TILE.name, TILE.file),
    "vec": (VEC.name, VEC.file),
    "fixup": (MMA_F16.name, COMMON),
    "combine": (TILE.name, COMMON),
}
"""The family of a kernel (a second kernel has the family of the first), and its file in ggml-cuda/."""


StepLines = Mapping[str, Mapping[str, str | None]]
"""The line (`fattn-vec.cuh:284`) of each step by kernel; None where the tree has no such line."""


def step_lines_of(tree: Tree) -> StepLines:
    """Find each step in a tree."""
    patterns = {(what, family, file): pattern for family, _, what, file, pattern in line_patterns()}
    of_step = {step: [name for name, where in KERNELS.items() if (step, *where) in patterns] for step in STEPS}
    anchors = tuple(
        Anchor(f"{step}: {name}", KERNELS[name][1], patterns[step, *KERNELS[name]], "")
        for step, names in of_step.items()
        for name in names
    )
    found = locate(tree.root / CUDA, anchors).locations
    return {
        step: {name: next(iter(found[f"{step}: {name}"]), None) for name in names} for step, names in of_step.items()
    }


def lines_table(steps: StepLines) -> Table:
    """The steps with their lines; `fixup` adds the parts of mma blocks, `combine` the parts of other kernels."""
    columns = {"mma": "fixup", "tile": "combine", "vec": "combine"}
    rows = (
        (step, *(places.get(name, places.get(after)) or "-" for name, after in columns.items()))
        for step, places in steps.items()
    )
    return Table(("step", *columns), tuple(rows))


BAR = 10
TITLES: Mapping[str, str] = {
    "f16-standard": "standard, f16",
    "f16-flash": "FlashAttention-2 and 3, f16",
    "fp8-standard": "standard, FP8, a scale for each tensor",
    "fp8-fa3": "FlashAttention-3, FP8",
    "fp8-no-blocks": "  without block quantisation",
    "fp8-no-rotation": "  without incoherent processing",
    "fp8-float32-sums": "  if sums were float32",
}
RULES = (
    "RMSE against float64 with the original Q, K and V. FP8 is e4m3; FlashAttention-3 adds its FP8 products as"
    " Hopper's tensor cores do, with 13 bits after the leading one; all other sums are in float32."
)


def render(
    study: Study, most_steps: int, lines: StepLines = MappingProxyType({}), against: Against | None = None
) -> RenderableType:
    """The whole report, with at most `most_steps` steps; with the lines of llama.cpp, and a kernel's row, if given."""
    about = about_of(study.algorithm)
    rows = steps_of(study)
    match study.algorithm:
        case "standard":
            picture: RenderableType = standard_picture(study.result.reads, study.result.writes)
        case "stream-k":
            picture = TerminalMap(stream_k_facts(study.subject), most=MOST_ROWS)  # `inspect`'s map of these tiles
        case _:
            picture = TilePicture(rows, by_worker=study.algorithm == "split-kv")
    sections: dict[str, list[RenderableType]] = {
        "Schedule": [picture],
        "Steps": [*step_lines(study, [row for row in rows if row.visible], most_steps)],
        "Warpgroups": [*schedule_lines(study.scheduled, most_steps)] if study.scheduled else [],
        "Rounding": [*precision_lines(study.precisions, study.results["standard"].out)] if study.precisions else [],
        "Slow memory, in elements": [*traffic_lines(study)],
        "Backward pass": [*backward_lines(study)],
        "All algorithms on this head": [*all_lines(study)],
        "In llama.cpp": [lines_table(lines)] if lines else [],
        "Paper and kernel": [*against_lines(against, study.results["standard"].out[-1])] if against else [],
    }
    options, group = study.options, study.subject.op.shape.group
    shared = f" (K/V head {options.head // group}, shared by {group} heads)" if group > 1 else ""
    head = Group(
        Text.assemble((about["title"], "bold green"), ("  " + about["source"], "dim")),
        Text(about["words"]),
        Text(f"{study.case}, sequence {options.sequence}, head {options.head}{shared}\n{tile_words(study)}"),
    )
    return Group(head, *(Group(Text(f"\n{title}", "bold"), *parts) for title, parts in sections.items() if parts))


def about_of(algorithm: str) -> dict[str, str]:
    """An algorithm's title, source and description."""
    found: dict[str, str] = yaml.safe_load((files("fattn_probe.lab.study") / "about.yaml").read_text())[algorithm]
    return found


def steps_of(study: Study) -> tuple[StepRow, ...]:
    """The steps of the head under study."""
    return rows_of(study.result.trace, study.options.head if study.algorithm == "stream-k" else 0)


def tile_words(study: Study) -> str:
    """The sizes of the head, and its tiles with their origin."""
    sizes, tiling, launch = FormulaSizes.of(study.subject.tensors), study.subject.tiling, study.subject.launch
    B_r, B_c = tiling.fa1 if study.algorithm == "fa1" else (tiling.B_r, tiling.B_c)
    tiles = f"B_r {B_r}, B_c {B_c}: T_r {count(sizes.N_q, B_r)}, T_c {count(sizes.N_kv, B_c)}"
    match study.algorithm:
        case "fa1" if study.options.tile_q is None and study.options.tile_kv is None:
            tiles += f", from M = {study.options.memory} elements on chip"
        case "split-kv":
            tiles += f", {len(split_ranges(sizes.N_kv, B_c, tiling.splits))} splits"
        case "stream-k":
            read = study.options.inspected
            source = f"from {read}" if read else "shares computed as in the kernel"
            work = f"{number_of(ntiles(launch.grid), 'tile')} of {launch.grid.iter_k} KV steps"
            tiles = f"tiles of ncols1 {launch.ncols1} queries x ncols2 {launch.ncols2} heads"
            tiles += f", nbatch_fa {launch.nbatch_fa};\n"
            tiles += f"{number_of(len(launch.blocks), 'block')} on {work}, {source}"
        case "standard":
            tiles = "no tiles"
    masked = ", masked" if sizes.masked else ""
    return f"N_q {sizes.N_q}, N_kv {sizes.N_kv}, d_k {sizes.d_k}, d_v {sizes.d_v}{masked}; {tiles}"


def step_lines(study: Study, rows: Sequence[StepRow], most: int) -> Iterator[RenderableType]:
    """At most `most` steps, from the start and the end, with maximum and sum of the tile's last query; the totals."""
    worker = {"split-kv": "split", "stream-k": "block"}.get(study.algorithm)
    head = ("step", *([worker] if worker else []), "what", "queries", "KV rows")
    columns = (*head, "m", "l", "rescale", "m rose", "read", "write")
    most = most if len(rows) > most + 1 else len(rows)
    tail = most // 4 if len(rows) > most else 0
    lines: list[tuple[Word, ...]] = []
    for row in [*rows[: most - tail], *rows[len(rows) - tail :]]:
        words = [str(row.step), *([str(row.worker)] if worker else []), row.what, interval(row.queries)]
        state = [""] * 4
        if row.maximum is not None and row.total is not None:
            rescale = "" if row.rescale is None else f"{row.rescale:.3g}"
            rose = f"{row.rose}/{row.again}" if row.again else ""
            state = [f"{row.maximum:.4g}", f"{row.total:.4g}", rescale, rose]
        words += [interval(row.kv), *state, str(row.reads), str(row.writes)]
        lines.append(tuple(Text(word, "" if row.what in JOINS else "dim") for word in words))
    if len(rows) > most:
        said: list[Word] = [Text("⋮", "dim"), *([""] if worker else []), Text(f"{len(rows) - most} more", "dim")]
        lines.insert(most - tail, (*said, *[""] * (len(columns) - len(said))))
    yield Table(columns, tuple(lines), frozenset(columns) - {"what"}, heading=head)
    trace = study.result.trace
    hidden = " Steps hidden by the mask change nothing and are not listed." if len(rows) < len(trace) else ""
    yield Text(f"m, l and rescale are those of the tile's last query.{hidden}", "dim")
    found = summary_of(trace)
    tiles = number_of(found["tiles"], "tile") + (f", {found['hidden']} hidden by the mask" if found["hidden"] else "")
    if found["rows"]:
        share = f"{found['rose']} of {found['rows']} revisits of a row ({found['rose'] / found['rows']:.1%})"
        yield Text(f"{tiles}. The maximum rose on {share}; only then does rescaling change anything.")
    else:
        yield Text(f"{tiles}; no row is revisited, so nothing is rescaled.")


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


def traffic_lines(study: Study) -> Iterator[RenderableType]:
    """The traffic, its asymptotic order from the paper, and the sizes of the arrays for comparison."""
    formula, s = study.formulas[study.algorithm], FormulaSizes.of(study.subject.tensors)
    yield traffic_table(formula, study.result.reads_total, study.result.writes_total)
    letters = {"split-kv": "s splits. ", "stream-k": "R rows (queries x heads) in all parts, F of them at a seam. "}
    sizes = f"S has {s.scores:,} elements, Q, K, V and O {(s.N_q + s.N_kv) * s.d:,}"
    yield Text(f"{letters.get(study.algorithm, '')}Asymptotically {formula.order}; {sizes}.", "dim")


def backward_lines(study: Study) -> Iterator[RenderableType]:
    """The backward pass, if it was computed: its traffic, and its differences from the standard backward pass."""
    if found := study.backward:
        yield Text("Algorithm 2 of FlashAttention-2: P is recomputed from L, tile by tile, for a random dO.")
        yield traffic_table(found.formula, found.reads, found.writes)
        differences = ", ".join(f"{name} {value:.1e}" for name, value in found.differences.items())
        words = "Largest differences from the standard backward pass, relative to the largest gradient: "
        yield Text.assemble(words, (differences, "green" if found.equal else "bold red"), ".")


def all_lines(study: Study) -> Iterator[RenderableType]:
    """Traffic and agreement of all algorithms, with a bar for the traffic per head; whether they agree."""
    per_head = {name: (one.reads_total + one.writes_total) / study.heads(name) for name, one in study.results.items()}
    most = max(per_head.values())
    rows: list[tuple[Word, ...]] = []
    for name, result in study.results.items():
        one, shown = study.agreement[name], name == study.algorithm
        sums = (f"{result.reads_total:,}", f"{result.writes_total:,}", f"{per_head[name]:,.0f}")
        first, last = (
            (Text(word, "bold" if shown else "") for word in words)
            for words in ((name, *sums), (f"{one.out:.1e}", f"{one.lse:.1e}"))
        )
        bar = Text("█" * max(1, round(BAR * per_head[name] / most)), "green" if shown else "dim")
        rows.append((*first, bar, *last))
    rows.append(("reference", "", "", "", "", f"{study.agreement['reference'].out:.1e}", ""))
    columns = ("algorithm", "read", "written", "per head", "", "ΔO", "ΔL")
    yield Table(columns, tuple(rows), frozenset(columns) - {"algorithm", ""})
    heads = study.heads("stream-k")
    several = f" A tile of stream-k has {heads} heads, which read K and V together." if heads > 1 else ""
    yield Text(f"Largest differences from standard: ΔO relative to max |V|, ΔL to max(|L|, 1).{several}", "dim")
    if wrong := problems(study):
        yield Text("; ".join(wrong), "bold red")
    else:
        agree = ("All outputs and log-sum-exps agree to 1e-12", "green")
        yield Text.assemble(agree, ", and every count equals its formula.")


def study_json(study: Study) -> dict[str, Any]:
    """The JSON document (docs/guide/study.md); a number that is not finite is null."""
    launch, scheduled, backward = study.subject.launch, study.scheduled, study.backward
    tiling = {"ncols1": launch.ncols1, "ncols2": launch.ncols2, "nbatch_fa": launch.nbatch_fa}
    found: dict[str, Any] = plain(
        {
            "case": study.case,
            "sequence": study.options.sequence,
            "head": study.options.head,
            "algorithm": study.algorithm,
            "sizes": FormulaSizes.of(study.subject.tensors),
            "tiling": plain(study.subject.tiling) | tiling | {"blocks": len(launch.blocks)},
            "summary": summary_of(study.result.trace),
            "steps": steps_of(study),
            "algorithms": {
                name: plain(study.agreement[name])
                | {
                    "equal": study.agreement[name].equal,
                    "heads": study.heads(name),
                    "reads": result.reads,
                    "writes": result.writes,
                    "formula": formula_json(study.formulas[name]),
                }
                for name, result in study.results.items()
            },
            "schedule": scheduled
            and {
                "plan": scheduled.plan,
                "slots": scheduled.timeline.slots,
                "deadlock": scheduled.timeline.deadlock,
                "broken": scheduled.broken,
                "registers": scheduled.registers,
                "events": scheduled.timeline.events,
                "table": scheduled.table,
            },
            "precisions": [{"variant": name, "rmse": rmse} for name, rmse in rmse_of(study.precisions)],
            "backward": backward
            and plain(backward) | {"equal": backward.equal, "formula": formula_json(backward.formula)},
            "reference": {"out": study.agreement["reference"].out},
        }
    )
    return found


def formula_json(formula: Formula) -> dict[str, Any]:
    """The terms of a formula and their sums."""
    return {**plain(formula), "total_reads": formula.total_reads, "total_writes": formula.total_writes}


def rmse_of(squares: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """The variants with the roots of their mean square errors."""
    return ((name, float(np.sqrt(square))) for name, square in squares.items())


def precision_lines(squares: Mapping[str, float], exact: F64) -> Iterator[RenderableType]:
    """The variants' errors on a scenario's head."""
    size = float(np.sqrt(np.mean(exact**2)))
    found = rmse_of(squares)
    rows = ((TITLES[name], f"{rmse:.2e}", f"{rmse / size:.3%}" if size else "") for name, rmse in found)
    yield Table(("attention", "RMSE", "of RMS(O)"), tuple(rows), frozenset({"RMSE", "of RMS(O)"}))
    yield Text(RULES, "dim")


def render_table3(found: Mapping[str, Any]) -> RenderableType:
    """Table 3 next to the paper's table."""
    rows: list[tuple[Word, ...]] = []
    for row in found["table"]:
        rmse, known = row["rmse"], row["paper"]
        paper = ("", "") if known is None else (f"{known:.1e}", f"{rmse / known - 1:+.0%}")
        rows.append((TITLES[row["variant"]], f"{rmse:.2e}", f"{row['spread']:.0e}", *paper))
    columns = ("attention", "RMSE", "±", "paper", "")
    words = (
        f"{found['heads']} heads, {found['queries']} queries each, {found['rows']} KV rows, "
        f"head size {found['head_size']}, no mask"
    )
    return Group(
        Text.assemble(("Table 3 of FlashAttention-3", "bold green"), ("  Shah et al. 2024, arXiv 2407.08608", "dim")),
        Text(f"Q, K, V from N(0, 1) + N(0, 100) Bernoulli(0.001); {words}"),
        Table(columns, tuple(rows), frozenset(columns) - {"attention"}),
        Text(f"± is a standard error over the heads. {RULES}", "dim"),
    )
