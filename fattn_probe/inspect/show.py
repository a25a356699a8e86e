"""Facts for people (rich) and for programs (JSON)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fattn_probe.inspect.coverage import Coverage, check
from fattn_probe.inspect.facts import BlockFacts, Choice, Facts, KernelLaunch, Missing, TensorFacts, TileWork, Value
from fattn_probe.inspect.pairs import Pairs, spell
from fattn_probe.inspect.terminal_map import TerminalMap

GROUPS = {
    "work": "gqa_ratio ntiles_x ntiles_z_gqa ntiles_dst ntiles_total ntiles_KV iter_k iter_j iter_z_gqa nbatch_fa",
    "blocks": "blocks_num block_dim nwarps warp_size nbytes_shared",
    "GPU": "cc nsm max_blocks_per_sm max_blocks",
    "division": "stream_k use_stream_k parallel_blocks tiles_nwaves tiles_efficiency_percent nblocks_stream_k",
    "around": "fixup combine KV_max_scan scan_mask",
}
"""Which launch variables belong together; those of no group come last."""

FINDINGS_SHOWN = 8
CELL = 12
TABLE: Any = {"box": SIMPLE_HEAD, "pad_edge": False, "show_edge": False}


def render(facts: Facts, reasons: Sequence[str] = (), *, verbose: bool = False) -> RenderableType:
    """Everything that was found, a section after the other; `verbose` shows every block, tile and condition.

    `reasons` are the decisions in sentences, as `explain` words them.
    """
    coverage = check(facts)
    sections: dict[str, list[RenderableType]] = {
        "Tensors": [tensor_table(facts.tensors), op_params_line(facts.op_params)] if facts.tensors else [],
        "Choice": choice_lines(facts.choice, reasons, verbose) if facts.choice else [],
        "Launch": launch_lines(facts.launch) if facts.launch else [],
        "Kernels launched": [kernel_table(facts.kernels)] if facts.kernels else [],
        "Division of work": map_lines(facts, coverage, verbose),
        "Blocks": [block_table(facts.blocks)] if verbose and facts.blocks else [],
        "Not found": missing_lines(facts.missing),
    }
    shown = [_section(title, parts) for title, parts in sections.items() if parts]
    return Group(header(facts.about), *shown)


def _section(title: str, parts: Sequence[RenderableType]) -> RenderableType:
    return Group(Text(f"\n{title}", "bold"), *parts)


def header(about: Mapping[str, str]) -> RenderableType:
    """The case and the device, then what else is known of the run."""
    head = Text(about.get("case", about.get("scenario", "")), "bold")
    if about.get("device"):
        head.append(f" on {about['device']}", "bold")
    rest = {key: value for key, value in about.items() if key not in ("case", "scenario", "device") and value}
    return Group(head, Pairs(rest)) if rest else head


def tensor_table(tensors: Sequence[TensorFacts]) -> Table:
    """The op's tensors; `ne` and `nb` in ggml's order."""
    table = Table("tensor", "type", "ne", "nb (bytes)", "", **TABLE)
    for tensor in tensors:
        shapes = (spell(tensor.ne), spell(tensor.nb))
        table.add_row(*(Text(word) for word in (tensor.name, tensor.type, *shapes, _remark(tensor))))
    return table


def _remark(tensor: TensorFacts) -> str:
    """Its own name, whose view it is, and whether there are gaps in it."""
    said = [] if tensor.ggml_name in ("", tensor.name) else [f'"{tensor.ggml_name}"']
    if tensor.view_src:
        said.append(f"view of {tensor.view_src}" + (f" + {tensor.view_offs}" if tensor.view_offs else ""))
    if not tensor.contiguous:
        said.append("not contiguous")
    return ", ".join(said)


def op_params_line(params: Mapping[str, Value]) -> RenderableType:
    """The op's parameters, decoded."""
    return _labelled({"op params": Pairs({name: value for name, value in params.items() if name != "op_params"})})


def choice_lines(choice: Choice, reasons: Sequence[str], verbose: bool) -> list[RenderableType]:
    """The kernel, its template arguments, its configuration, and why it is this one."""
    kernel = Text.assemble((choice.kernel, "bold green"), f"  ({choice.family})")
    rows: dict[str, RenderableType] = {"kernel": kernel, "template": Pairs(choice.template)}
    rows |= {"config": Pairs(choice.config)} if choice.config else {}
    rows |= {"because": _listed(reasons)} if reasons else {}
    return [_labelled(rows), *([decision_table(choice)] if verbose and choice.decisions else [])]


def _listed(sentences: Sequence[str]) -> RenderableType:
    """Sentences, each with a dash before it and its further lines indented."""
    table = Table.grid(padding=(0, 1, 0, 0))
    for sentence in sentences:
        table.add_row("-", Text(sentence))
    return table


def decision_table(choice: Choice) -> Table:
    """Every condition that the dispatch asked."""
    table = Table("asked at", "condition", "held", "with", **TABLE)
    for decision in choice.decisions:
        terms = "\n".join(f"{term.text} = {'?' if term.value is None else term.value}" for term in decision.terms)
        held = Text("yes", "green") if decision.held else Text("no", "dim")
        table.add_row(Text(f"{decision.file}:{decision.line}"), Text(decision.condition), held, Text(terms))
    return table


def launch_lines(launch: Mapping[str, Value]) -> list[RenderableType]:
    """The launch's variables by what they are about."""
    grouped = {group: [name for name in names.split() if name in launch] for group, names in GROUPS.items()}
    known = {name for names in grouped.values() for name in names}
    grouped["other"] = [name for name in launch if name not in known]
    shown = {group: Pairs({name: launch[name] for name in names}, CELL) for group, names in grouped.items() if names}
    return [_labelled(shown)]


def _labelled(rows: Mapping[str, RenderableType]) -> RenderableType:
    """Rows with a label before each."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", width=9, no_wrap=True)
    table.add_column()
    for label, content in rows.items():
        table.add_row(label, content)
    return table


def kernel_table(kernels: Sequence[KernelLaunch]) -> Table:
    """The kernels in the order of their launches."""
    table = Table("", "kernel", "grid", "block", "shared", **TABLE)
    for order, launch in enumerate(kernels):
        grid, block = ("x".join(map(str, dim)) for dim in (launch.grid, launch.block))
        table.add_row(str(order), Text(launch.kernel), grid, block, f"{launch.shared} B")
    return table


def map_lines(facts: Facts, coverage: Coverage | None, verbose: bool) -> list[RenderableType]:
    """The map and the verdict on it."""
    if coverage is None:
        return []
    return [TerminalMap(facts, coverage, None if verbose else 24), verdict(coverage)]


def verdict(coverage: Coverage) -> RenderableType:
    """Whether every KV step is done exactly once, in a line; what is amiss, a line each."""
    if coverage.passes:
        return Text.assemble(("coverage: ", "bold"), ("pass", "green"), f", {covered(coverage)}")
    head = Text.assemble(("coverage: ", "bold"), ("fail", "bold red"), f", {len(coverage.findings)} found")
    shown = [Text(f"  {finding.message}") for finding in coverage.findings[:FINDINGS_SHOWN]]
    left = Counter(finding.kind for finding in coverage.findings[FINDINGS_SHOWN:])
    rest = [Text(f"  and {number} more of the kind {kind}", "dim") for kind, number in left.items()]
    return Group(head, *shown, *rest)


def covered(coverage: Coverage) -> str:
    """The good verdict in words."""
    hidden = f", {coverage.skipped} of them hidden by the mask" if coverage.skipped else ""
    return f"each of {coverage.steps} KV steps{hidden} is done exactly once, and every part is added"


def block_table(blocks: Sequence[BlockFacts]) -> Table:
    """Every block, and its tiles by the source's names."""
    stream_k = any(block.kbc is not None for block in blocks)
    sms = any(block.sm is not None for block in blocks)
    columns = {"block": True, "blockIdx": not stream_k, "SM": sms, "kbc": stream_k, "kbc_stop": stream_k}
    table = Table(**TABLE)
    for name, there in columns.items():
        if there:
            table.add_column(name, justify="right")
    for name in ("sequence", "z_KV", "zt_gqa", "jt", "kb0", ""):
        table.add_column(name, justify="left" if name == "" else "right")
    for block in blocks:
        for row in _block_rows(block, [name for name, there in columns.items() if there]):
            table.add_row(*row)
    return table


def _block_rows(block: BlockFacts, columns: Sequence[str]) -> Iterator[list[str]]:
    """A line for each of a block's tiles; one also if it has none."""
    words = {
        "block": str(block.block),
        "blockIdx": " ".join(map(str, block.blockIdx)),
        "SM": "-" if block.sm is None else str(block.sm),
        "kbc": str(block.kbc),
        "kbc_stop": str(block.kbc_stop),
    }
    first = [words[name] for name in columns]
    if not block.tiles:
        yield [*first, *([""] * 5), "no work"]
    for place, work in enumerate(block.tiles):
        yield [*(first if place == 0 else [""] * len(first)), *map(str, work.tile), _steps(work), _flags(work)]


def _steps(work: TileWork) -> str:
    turn = f":{work.kb0_step}" if work.kb0_step != 1 else ""
    return f"{work.kb0_start}:{work.kb0_stop}{turn}"


def _flags(work: TileWork) -> str:
    said = [name for name in ("needs_fixup", "is_fixup") if getattr(work, name)]
    return " ".join(said + ([] if work.kb0_limit is None else [f"kb0_limit {work.kb0_limit}"]))


def missing_lines(missing: Iterable[Missing]) -> list[RenderableType]:
    """What could not be had, and why."""
    return [Text.assemble((item.facts, "yellow"), f": {item.why}") for item in missing]


def facts_json(facts: Facts, reasons: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON document of an inspection, as docs/inspect.md lists it."""
    coverage = check(facts)
    document: dict[str, Any] = asdict(facts)
    if facts.choice is not None:
        document["choice"]["reasons"] = list(reasons)
    return document | {"coverage": None if coverage is None else {"passes": coverage.passes} | asdict(coverage)}
