"""Show the facts of one inspection, or of two side by side, as text (rich) and as JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.tables import Flow, Table, labelled, listed
from fattn_probe.cases.device.origin import legend
from fattn_probe.daily.inspect.coverage import Coverage, check
from fattn_probe.daily.inspect.facts import Choice, Decision, Facts, KernelLaunch, TensorFacts, Value, cc_text
from fattn_probe.daily.inspect.view.work_picture import TerminalMap
from fattn_probe.llama.launch.tiles import BlockWork, TileWork

GROUPS = {
    "work": "gqa_ratio ntiles_x ntiles_z_gqa ntiles_dst ntiles_total ntiles_KV iter_k iter_j iter_z_gqa nbatch_fa",
    "blocks": "blocks_num block_dim nwarps warp_size nbytes_shared",
    "GPU": "cc nsm max_blocks_per_sm max_blocks",
    "division": "stream_k use_stream_k parallel_blocks tiles_nwaves tiles_efficiency_percent nblocks_stream_k "
    "blocks_per_wave nwaves_best efficiency_percent_best",
    "helpers": "fixup combine KV_max_scan scan_mask",
    "arguments": "n_kv n_kv_max use_sparse need_f16_K need_f16_V V_is_K_view scale max_bias logit_softcap m0 m1 "
    "n_head_log2",
}
"""Groups of launch variables; variables without a group come last."""
OCCUPANCY = "max_blocks_per_sm"


def spell(value: Value) -> str:
    """A value, as written in C++ source."""
    match value:
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            gap = ", " if any(isinstance(item, str) for item in value) else " "
            return gap.join(spell(item) for item in value)
        case float():
            return f"{value:.9g}"
        case _:
            return str(value)


def pairs(values: Mapping[str, Value], cell: int = 1) -> Flow:
    """Names and their values, one after the other on a line."""
    return Flow([(name, Text(spell(value))) for name, value in values.items()], cell)


def tensor_table(tensors: Sequence[TensorFacts]) -> Table:
    """The table of the op's tensors; `ne` and `nb` are in ggml's order."""
    rows = []
    for item in tensors:
        remarks = [] if item.ggml_name in ("", item.name) else [f'"{item.ggml_name}"']
        if item.view_src:
            remarks.append(f"view of {item.view_src}" + (f" + {item.view_offs}" if item.view_offs else ""))
        if not item.contiguous:
            remarks.append("not contiguous")
        rows.append((item.name, item.type, spell(item.ne), spell(item.nb), ", ".join(remarks)))
    return Table(("tensor", "type", "ne", "nb (bytes)", ""), tuple(rows), prose=frozenset({""}))


def kernel_table(kernels: Sequence[KernelLaunch]) -> Table:
    """The table of the kernels, in launch order."""
    rows = (
        (str(order), item.kernel, "x".join(map(str, item.grid)), "x".join(map(str, item.block)), f"{item.shared} B")
        for order, item in enumerate(kernels)
    )
    return Table(("", "kernel", "grid", "block", "shared"), tuple(rows), heading=("", "kernel"))


def decision_table(decisions: Sequence[Decision]) -> Table:
    """The table of conditions that the dispatch evaluated; the value of each part is on its own line."""
    rows = []
    for item in decisions:
        terms = "\n".join(f"{term.text} = {'?' if term.value is None else term.value}" for term in item.terms)
        rows.append((f"{item.file}:{item.line}", item.condition, "yes" if item.held else "no", terms))
    columns = ("evaluated at", "condition", "held", "with")
    return Table(columns, tuple(rows), prose=frozenset({"condition"}), heading=columns[:3])


def grouped(facts: Facts) -> dict[str, dict[str, Value]]:
    """The launch's variables, grouped by topic; an occupancy that is only assumed is marked."""
    launch = dict(facts.launch)
    if OCCUPANCY in launch:
        launch[OCCUPANCY] = facts.occupancy.marked(launch[OCCUPANCY])
    if isinstance(cc := launch.get("cc"), int):
        launch["cc"] = cc_text(cc)
    names = {group: [name for name in names.split() if name in launch] for group, names in GROUPS.items()}
    known = {name for group in names.values() for name in group}
    names["other"] = [name for name in launch if name not in known]
    return {group: {name: launch[name] for name in found} for group, found in names.items() if found}


def occupancy_legend(facts: Facts) -> list[str]:
    """The meaning of the occupancy's mark; empty if the occupancy has no mark."""
    return legend([facts.occupancy]) if OCCUPANCY in facts.launch else []


def block_table(blocks: Sequence[BlockWork]) -> Table:
    """The table of blocks, with a row per tile and names from the source; a block without tiles has one row."""
    stream_k = any(block.kbc is not None for block in blocks)
    with_SM = any(block.sm is not None for block in blocks)
    own = ["block", *["blockIdx"] * (not stream_k), *["SM"] * with_SM, *["kbc", "kbc_stop"] * stream_k]
    columns = (*own, "sequence", "z_KV", "zt_gqa", "jt", "kb0", "")
    rows: list[tuple[str, ...]] = []
    for block in blocks:
        words = {
            "block": str(block.block),
            "blockIdx": spell(block.blockIdx),
            "SM": "-" if block.sm is None else str(block.sm),
            "kbc": str(block.kbc),
            "kbc_stop": str(block.kbc_stop),
        }
        first = [words[name] for name in own]
        if not block.tiles:
            rows.append((*first, *([""] * 5), "no work"))
        for work in block.tiles:
            flags = [name for name in ("needs_fixup", "is_fixup") if getattr(work, name)]
            flags += [] if work.kb0_limit is None else [f"kb0_limit {work.kb0_limit}"]
            rows.append((*first, *map(str, work.tile), steps_in_words(work), " ".join(flags)))
            first = [""] * len(own)
    return Table(columns, tuple(rows), frozenset(columns) - {"kb0", ""})


def steps_in_words(work: TileWork) -> str:
    """The KV steps of a block on a tile: `3:8`, or `3:8:2` for every second one."""
    turn = f":{work.kb0_step}" if work.kb0_step != 1 else ""
    return f"{work.kb0_start}:{work.kb0_stop}{turn}"


def covered(coverage: Coverage) -> str:
    """The verdict, in words, on work without coverage findings."""
    hidden = f" ({coverage.skipped} more are hidden by the mask)" if coverage.skipped else ""
    done = coverage.steps - coverage.skipped
    return f"each of {done} KV steps is done exactly once{hidden}, and every part is added"


FINDINGS_SHOWN = 8
CELL = 12


def render(facts: Facts, reasons: Sequence[str] = (), *, verbose: bool = False) -> RenderableType:
    """Show all facts, section by section; `verbose` shows every block, tile and condition.

    `reasons` explain the decisions in sentences; they come from `explain`.
    """
    coverage, notes = check(facts), occupancy_legend(facts)
    if (facts.about.get("engine"), facts.about.get("flavour")) == ("cuda", "debug"):
        notes.append(
            "nvcc -G uses more registers: in a release build, more blocks may fit on an SM, and share the work"
        )
    params = {name: value for name, value in facts.op_params.items() if name != "op_params"}
    sections: dict[str, list[RenderableType]] = {
        "Tensors": [tensor_table(facts.tensors)] if facts.tensors else [],
        "Op params": [pairs(params)] if params else [],
        "Choice": choice_lines(facts.choice, reasons, verbose) if facts.choice else [],
        "Launch": [launch_lines(facts), *(Text(note, "dim") for note in notes)] if facts.launch else [],
        "Kernels launched": [kernel_table(facts.kernels)] if facts.kernels else [],
        "Division of work": map_lines(facts, coverage, verbose),
        "Blocks": [block_table(facts.blocks)] if verbose and facts.blocks else [],
        "Fault": [Text(facts.fault, "bold red")] if facts.fault else [],
        "Missing": [Text.assemble((item.facts, "yellow"), f": {item.why}") for item in facts.missing],
    }
    shown = [Group(Text(f"\n{title}", "bold"), *parts) for title, parts in sections.items() if parts]
    rest = {key: value for key, value in facts.about.items() if key not in ("case", "device") and value}
    return Group(Text(title_of(facts.about), "bold"), *([pairs(rest)] if rest else []), *shown)


def title_of(about: Mapping[str, str]) -> str:
    """The title of an inspection: `gqa on sim:h200`."""
    return " on ".join(about[key] for key in ("case", "device") if about.get(key))


def choice_lines(choice: Choice, reasons: Sequence[str], verbose: bool) -> list[RenderableType]:
    """The kernel, its template arguments, its configuration, and the reasons for choosing it."""
    kernel = Text.assemble((choice.kernel, "bold green"), f"  ({choice.family})")
    rows: dict[str, RenderableType] = {"kernel": kernel, "template": pairs(choice.template)}
    rows |= {"config": pairs(choice.config)} if choice.config else {}
    rows |= {"because": listed(reasons)} if reasons else {}
    asked: list[RenderableType] = [Text(), decision_table(choice.decisions)] if verbose else []
    return [labelled(rows), *asked]


def launch_lines(facts: Facts) -> RenderableType:
    """The launch's variables, grouped by topic."""
    return labelled({group: pairs(values, CELL) for group, values in grouped(facts).items()})


def map_lines(facts: Facts, coverage: Coverage | None, verbose: bool) -> list[RenderableType]:
    """The map and the verdict on it."""
    if coverage is None:
        return []
    works = [work for block in facts.blocks for work in block.tiles]
    read = sum(work.read for work in works)
    how = f"{read} of {len(works)} tiles were read when the kernel processed them; the others follow from kbc"
    seen = [Text(how, "dim")] if read < len(works) else []
    return [TerminalMap(facts, coverage, None if verbose else 24), verdict(coverage), *seen]


def verdict(coverage: Coverage) -> RenderableType:
    """A line that says whether every KV step is done exactly once; then one line per problem."""
    if coverage.passes:
        return Text.assemble(("coverage: ", "bold"), ("pass", "green"), f", {covered(coverage)}")
    head = Text.assemble(
        ("coverage: ", "bold"),
        ("fail", "bold red"),
        f", {len(coverage.findings)} finding{'s' * (len(coverage.findings) > 1)}",
    )
    shown = listed([finding.message for finding in coverage.findings[:FINDINGS_SHOWN]])
    left = Counter(finding.kind for finding in coverage.findings[FINDINGS_SHOWN:])
    rest = [Text(f"- and {number} more: {kind}", "dim") for kind, number in left.items()]
    return Group(head, shown, *rest)


def facts_json(facts: Facts, reasons: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON document of an inspection; docs/guide/inspect.md lists its keys."""
    coverage = check(facts)
    document: dict[str, Any] = asdict(replace(facts, mask_ends=()))
    del document["mask_ends"]
    for launch, entry in zip(facts.kernels, document["kernels"], strict=True):
        entry["origin"] = str(launch.origin)
    if facts.choice is not None:
        document["choice"]["reasons"] = list(reasons)
    return document | {"coverage": None if coverage is None else {"passes": coverage.passes} | asdict(coverage)}


ABSENT = "-"


@dataclass(frozen=True)
class SideBySide:
    """Two inspections and their differences; `equal` is the number of equal facts.

    `facts` are (name, a, b), with None where a side lacks that fact. `decisions` are (function, condition, a, b), where
    a and b are "yes", "no", "not asked", or "yes, no" if the dispatch evaluated the condition twice.
    """

    a: Facts
    b: Facts
    facts: tuple[tuple[str, Value, Value], ...]
    decisions: tuple[tuple[str, str, str, str], ...]
    equal: int

    @property
    def titles(self) -> tuple[str, str]:
        """The two titles: case and device, plus another property if these are the same."""
        titles = (title_of(self.a.about), title_of(self.b.about))
        telling = [name for name in self.a.about if self.a.about[name] != self.b.about.get(name)]
        if titles[0] != titles[1] or not telling:
            return titles
        first, second = (side.about.get(telling[0], ABSENT) or f"no {telling[0]}" for side in (self.a, self.b))
        return f"{titles[0]}, {first}", f"{titles[1]}, {second}"


def side_by_side(a: Facts, b: Facts) -> SideBySide:
    """Compare two inspections by the names of their facts, in the order of the first inspection."""
    first, second = a.flat(), b.flat()
    both = first | second
    facts = tuple(
        (name, first.get(name), second.get(name))
        for name in both
        if first.get(name) != second.get(name) or (name in first) != (name in second)
    )
    answers, others = _answers(a), _answers(b)
    pairs = ((key, answers.get(key, "not asked"), others.get(key, "not asked")) for key in answers | others)
    decisions = tuple((*key, one, other) for key, one, other in pairs if one != other)
    return SideBySide(a, b, facts, decisions, len(both) - len(facts))


def _answers(facts: Facts) -> dict[tuple[str, str], str]:
    """The outcomes by function and condition, without line numbers, because the sources may differ."""
    answers: dict[tuple[str, str], list[str]] = {}
    for decision in facts.choice.decisions if facts.choice else ():
        key = (decision.function, decision.condition)
        answers.setdefault(key, []).append("yes" if decision.held else "no")
    return {key: ", ".join(held) for key, held in answers.items()}


def render_side_by_side(both: SideBySide, *, verbose: bool = False) -> RenderableType:
    """Show the differences in two columns, the number of equal facts, and the two maps."""
    titles = both.titles
    parts: list[RenderableType] = [Text(f"{titles[0]}  |  {titles[1]}", "bold"), Text()]
    if both.facts:
        parts.append(_table("fact", titles, both.facts))
    parts += [Text(line, "dim") for line in (said(both), *occupancies(both))]
    if both.decisions:
        rows = [(f"{condition}\n  in {function}", a, b) for function, condition, a, b in both.decisions]
        parts += [Text(), _table("condition", titles, rows)]
    for title, facts in zip(titles, (both.a, both.b), strict=True):
        lines = map_lines(facts, check(facts), verbose)
        parts += [Text(f"\nDivision of work: {title}", "bold"), *lines] if lines else []
    return Group(*parts)


def said(both: SideBySide) -> str:
    """The number of equal and of different facts, in words."""
    differ = f"{len(both.facts)} differ{'s' if len(both.facts) == 1 else ''}" if both.facts else "none differs"
    return f"{both.equal} fact{' is' if both.equal == 1 else 's are'} equal, {differ}"


def occupancies(both: SideBySide) -> list[str]:
    """Notes on those of the two occupancies that are only assumed; they affect the division of work."""
    sides = zip(both.titles, (both.a, both.b), strict=True)
    return [f"{title}: {OCCUPANCY} {line}" for title, facts in sides for line in occupancy_legend(facts)]


def _table(what: str, titles: tuple[str, str], rows: Sequence[tuple[str, Value, Value]]) -> Table:
    words = ((Text(name, "cyan"), marked(a, b), marked(b, a)) for name, a, b in rows)
    return Table((what, *titles), tuple(words), prose=frozenset(titles))


def marked(value: Value, other: Value) -> Text:
    """A value in which the differences from the other value are highlighted."""
    if value is None:
        return Text(ABSENT)
    if not (isinstance(value, list) and isinstance(other, list) and len(value) == len(other)):
        # Break the line before a kernel's template arguments, and between kernels.
        items = value if isinstance(value, list) and any(isinstance(item, str) for item in value) else [value]
        return Text("\n".join(spell(item).replace("<", "\n  <", 1) for item in items), "bold magenta")
    pairs = zip(value, other, strict=True)
    return Text(" ").join(Text(spell(mine), "bold magenta" if mine != theirs else "") for mine, theirs in pairs)


def side_by_side_json(both: SideBySide) -> dict[str, Any]:
    """JSON with keys a, b (their `about`), equal, facts (fact, a, b), decisions (function, condition, a, b)."""
    return {
        "a": dict(both.a.about),
        "b": dict(both.b.about),
        "equal": both.equal,
        "facts": [dict(zip(("fact", "a", "b"), row, strict=True)) for row in both.facts],
        "decisions": [dict(zip(("function", "condition", "a", "b"), row, strict=True)) for row in both.decisions],
    }
