"""The dispatch of a tree, read from its source and stored in the cache, and the decisions that a run made.

The reader does not depend on the version of llama.cpp: it follows the functions from `ggml_cuda_flash_attn_ext`. The
next line that the program executed shows whether a condition held; if it cannot, the debugger's values do."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from fattn_probe.base.cache import Kind
from fattn_probe.base.digest import short
from fattn_probe.base.documents import Document
from fattn_probe.daily.inspect.dispatch.extract import DEFINES, FILES, Condition, Dispatch, Extract, Lines
from fattn_probe.daily.inspect.facts import Decision, Term
from fattn_probe.llama import cxx
from fattn_probe.llama.cxx.expressions import (
    POINTER,
    Logic,
    Macro,
    Reader,
    Truths,
    holds,
    read_macros,
    settle,
    truth_of_value,
    truths,
)
from fattn_probe.llama.cxx.functions import Function, SourceFile, read_source
from fattn_probe.llama.source.features import CUDA

OTHERWISE = "otherwise"
Values = Mapping[str, str | None]


@dataclass(frozen=True)
class Visit:
    """A line that the program executed, with the values of expressions before it (`values`) and after it (`after`)."""

    function: str
    file: str
    line: int
    values: Values
    after: Values


def visits_of(documents: Iterable[Mapping[str, Any]]) -> tuple[Visit, ...]:
    """Convert the visits that `trace_dispatch` recorded."""
    return tuple(Visit(**document) for document in documents)


def plan_of(dispatch: Dispatch, start: str = "run") -> dict[str, Any]:
    """The plan for `trace_dispatch`, as JSON: the lines to stop at, and the expressions to evaluate there."""
    asks: dict[str, list[str]] = {}
    constants: dict[str, list[str]] = {}  # for `if constexpr`, whose line has no code
    after: dict[str, tuple[Lines, str]] = {}
    for condition in dispatch.conditions:
        if condition.kind == "if constexpr":
            constants.setdefault(condition.function, []).extend(condition.logic.asks())
        for line in range(condition.lines[0], condition.lines[1] + 1):  # a debugger may stop first at any of these
            place = f"{condition.file}:{line}"
            asks.setdefault(place, []).extend(condition.logic.asks())
            if condition.variable:
                after[place] = condition.lines, condition.variable
    # Conditions call some functions in the entry's file, or a fork's header, so these get breakpoints. The walk steps
    # into templates in headers: their lines are in one compilation unit per kernel, and finding all takes seconds.
    first = dispatch.functions[0].file if dispatch.functions else ""
    plain = {name for name, parameters in dispatch.parameters.items() if not parameters}
    return {
        "start": start,
        "entry": dispatch.functions[0].location if dispatch.functions else "",
        "stops": [
            function.location
            for function in dispatch.functions[1:]
            if function.file == first or (function.file.endswith(".cuh") and function.name in plain)
        ],
        "functions": [
            {"file": function.file, "lines": function.lines, "calls": function.calls}
            | {"constants": list(dict.fromkeys(constants.get(function.name, [])))}
            for function in dispatch.functions
        ],
        "asks": {place: list(dict.fromkeys(expressions)) for place, expressions in asks.items() if expressions},
        "after": after,
    }


@dataclass(frozen=True)
class _Found:
    """A decision, and the visit at which it was made."""

    at: int
    decision: Decision
    condition: Condition


def decisions(conditions: Sequence[Condition], visits: Sequence[Visit]) -> tuple[Decision, ...]:
    """The decisions in order; each condition in a loop appears once, marked as held if it ever held."""
    found = [item for condition in conditions for item in _of_condition(condition, visits)]
    found.sort(key=lambda item: (item.at, item.condition.lines))
    loops: dict[tuple[str, int], _Found] = {}  # by condition: the first decision that held, else the last
    once: list[_Found] = []
    for item in found:
        key = item.decision.file, item.decision.line
        if not (item.condition.in_loop or item.condition.kind == "while"):
            once.append(item)
        elif key not in loops or not loops[key].decision.held:
            loops[key] = item
    for item in loops.values():
        if item.decision.held:
            once.append(item)
        elif item.decision.leads_to != "continue":
            once.append(replace(item, decision=replace(item.decision, terms=())))  # the last values are misleading
    kept: list[Decision] = []
    for item in sorted(once, key=lambda item: (item.at, item.condition.lines)):
        decision, last = item.decision, kept[-1] if kept else None
        named = last is not None and last.held and last.leads_to == decision.leads_to
        if decision.condition != OTHERWISE or not named:  # otherwise the preceding condition already names it
            kept.append(decision)
    terms = [term for decision in kept for term in decision.terms if term.value is not None and "(" in term.text]
    calls = {term.text: term.value for term in terms}  # the result of a call is also valid for other decisions
    return tuple(
        replace(
            decision, terms=tuple(replace(term, value=term.value or calls.get(term.text)) for term in decision.terms)
        )
        for decision in kept
    )


def _of_condition(condition: Condition, visits: Sequence[Visit]) -> Iterator[_Found]:
    if condition.kind == "outcome":
        for first, _ in _askings(condition, visits):
            yield _Found(first, _decision(condition, True, OTHERWISE, condition.leads_to, ()), condition)
        return
    for first, last in _askings(condition, visits):
        found = _asked(condition, _merged(condition, visits[first : last + 1]), visits[last + 1 :])
        if found:  # placed after the functions that it calls, even if the debugger misses the return to its line
            here = (index for index in range(last + 1, len(visits)) if visits[index].function == visits[last].function)
            yield _Found(next(here, last + 1) - 1, found, condition)
    if condition.kind == "if constexpr":
        yield from _passed(condition, visits)


def _inside(line: int, lines: Lines | None) -> bool:
    return lines is not None and lines[0] <= line <= lines[1]


def _askings(condition: Condition, visits: Sequence[Visit]) -> Iterator[tuple[int, int]]:
    """The first and last visit of each evaluation of a condition; functions that it calls may come in between."""
    first: int | None = None
    last = 0
    for index, visit in enumerate(visits):
        if visit.file == condition.file and _inside(visit.line, condition.lines):
            first, last = index if first is None else first, index
        elif first is not None and visit.function == visits[first].function:
            yield first, last
            first = None
    if first is not None:
        yield first, last


def _merged(condition: Condition, visits: Sequence[Visit]) -> Visit:
    """Merge all visits to a condition's lines into one visit."""
    own = [visit for visit in visits if visit.file == condition.file and _inside(visit.line, condition.lines)]
    values = {name: value for visit in own for name, value in visit.values.items()}
    after = {name: value for visit in own for name, value in visit.after.items()}
    return replace(own[0], values=values, after=after)


def _asked(condition: Condition, visit: Visit, following: Sequence[Visit]) -> Decision | None:
    behind = next((later for later in following if later.function == visit.function), None)
    if condition.kind == "switch":  # found by the value's case label, or by the line that the program executed next
        value = visit.values.get(condition.logic.ask)
        labelled = [(case, str(value)) for case in condition.cases if value is not None and value in case.labels]
        entered = [
            (case, ", ".join(case.labels)) for case in condition.cases if behind and _inside(behind.line, case.lines)
        ]
        for case, label in [*labelled, *entered][:1]:
            chosen_by = (Term(condition.text, value),) if value is not None else ()
            return _decision(condition, True, f"switch ({condition.text}) case {label}", case.leads_to, chosen_by)
        return None
    if condition.kind == "macro":  # a call that led the program into another function
        inside = next((later for later in following[:1] if later.function != visit.function), None)
        return _decision(condition, True, condition.text, inside.function, ()) if inside else None
    known = truths(condition.logic, visit.values)
    held = holds(condition.logic, known)
    if condition.kind == "value":
        value, chosen = visit.after.get(condition.variable), condition.leads_to.partition(" = ")[2]
        if chosen == "true":
            held = truth_of_value(value) if truth_of_value(value) is not None else held
        elif held is None and value is not None:
            held = value == chosen
    elif behind is not None and condition.body is not None and condition.body[0] > condition.lines[1]:
        held = behind.file == condition.file and _inside(behind.line, condition.body)  # whether the body was entered
    if held is None:
        return None
    settle(condition.logic, held, known)
    terms = tuple(_terms(condition.logic, known, visit.values))
    return _decision(condition, held, condition.text, condition.leads_to, terms)


def _decision(condition: Condition, held: bool, text: str, leads_to: str, terms: tuple[Term, ...]) -> Decision:
    return Decision(condition.function, condition.file, condition.lines[0], text, held, leads_to, terms)


def _passed(condition: Condition, visits: Sequence[Visit]) -> Iterator[_Found]:
    """The decisions of an `if constexpr`, which leaves no code: it held if the program entered its body.

    It did not hold if the program skipped the body; but a body inside `#if` may not have been compiled.
    """
    body = condition.body or condition.lines
    entry: dict[str, Visit] = {}
    for index, (before, behind) in enumerate(pairwise(visits)):
        entry.setdefault(before.function, before)
        if before.function != behind.function or before.file != condition.file or before.line >= condition.lines[0]:
            continue
        over = behind.line > body[1] and _inside(before.line, condition.around) and not condition.guarded
        if _inside(behind.line, body) or (over and _inside(behind.line, condition.around)):
            held = _inside(behind.line, body)
            values = entry[before.function].values
            known = truths(condition.logic, values)
            settle(condition.logic, held, known)
            terms = tuple(_terms(condition.logic, known, values))
            yield _Found(index, _decision(condition, held, condition.text, condition.leads_to, terms), condition)


def _terms(logic: Logic, known: Truths, values: Values) -> Iterator[Term]:
    """Yield each atomic part with its truth value, then its variables except pointers, whose values explain nothing."""
    seen: set[str] = set()
    for atom in logic.atoms():
        truth = known.get(atom.text)
        found = [Term(atom.text, None if truth is None else str(truth).lower())]
        found += [Term(text, values.get(ask)) for text, ask in atom.variables]
        for term in found:
            if term.text not in seen and not (term.value and POINTER.match(term.value)):
                seen.add(term.text)
                yield term


ENTRY = "ggml_cuda_flash_attn_ext"
LAUNCH = "launch_fattn"
CONTEXT = "ggml_backend_cuda_context"
ENUM = re.compile(r"\benum\s+(?:class\s+|struct\s+)?(\w+)")


def read_dispatch(root: Path) -> Dispatch:
    """Read the dispatch of the tree at `root` (llama.cpp's folder)."""
    texts = {path.name: path.read_text(errors="replace") for path in sorted((root / CUDA).glob(FILES))}
    defines = [(root / path).read_text(errors="replace") for path in DEFINES if (root / path).is_file()]
    return dispatch_of(texts, read_macros(defines))


def dispatch_of(texts: Mapping[str, str], macros: Mapping[str, Macro]) -> Dispatch:
    """Read the dispatch from the text of source files, by file name."""
    enums = frozenset(name for text in texts.values() for name in ENUM.findall(text))
    files = [read_source(name, text) for name, text in texts.items()]
    chosen = list(_reachable(files, enums))
    names = frozenset(function.name for _, function in chosen)
    leading = {  # the macros that call a function of the dispatch
        file.name: frozenset(macro for macro in file.macros if not names.isdisjoint(_in_macro(file, macro)))
        for file in files
    }
    extracts = [
        Extract(file.name, function, Reader(file.draft, macros), file.depths, leading[file.name])
        for file, function in chosen
    ]
    headers_last = sorted(files, key=lambda file: file.name.endswith(".cuh"))  # a function in a .cu file is local
    return Dispatch(
        tuple(extract.function_record() for extract in extracts),
        tuple(condition for extract in extracts for condition in extract.conditions()),
        {name: function.parameters for file in headers_last for name, function in file.functions.items()},
    )


def _reachable(files: Iterable[SourceFile], enums: frozenset[str]) -> Iterator[tuple[SourceFile, Function]]:
    """The functions that can be reached from the entry, and that take the context or return a choice."""
    known = {name: (file, function) for file in files for name, function in file.functions.items() if name != LAUNCH}
    waiting, seen = [ENTRY] * (ENTRY in known), {ENTRY}
    while waiting:
        file, function = known[waiting.pop(0)]
        takes_context = function.returns == "void" and CONTEXT in file.draft.words[slice(*function.arguments)]
        if function.returns in enums or takes_context:
            yield file, function
        words = dict.fromkeys(file.draft.words[function.start : function.stop])
        mentioned = [name for word in words for name in (word, *_in_macro(file, word))]
        new = [name for name in dict.fromkeys(mentioned) if name in known and name not in seen]
        seen.update(new)
        waiting.extend(new)


def _in_macro(file: SourceFile, name: str) -> set[str]:
    """The names in the bodies of a macro and of all macros that it uses, directly or indirectly."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = file.macros.get(waiting.pop(), frozenset()) - found
        found |= new
        waiting.extend(new)
    return found


DISPATCH = Kind("dispatch", "the dispatch")
DOCUMENT = Document("a dispatch", Dispatch)
READERS = (Path(cxx.__file__).parent, Path(__file__).parent)
"""The folders with the code that reads a dispatch; this code is part of the cache key."""


@cache
def remembered_dispatch(root: Path) -> Dispatch:
    """The dispatch of the tree at `root`, read once per process, and cached for the same source and reader.

    A read-only cache is not an error, and a damaged document is replaced.
    """
    key = digest_of(root)
    if found := DOCUMENT.remembered(DISPATCH, key):
        return found

    dispatch = read_dispatch(root)
    DOCUMENT.remember(DISPATCH, key, dispatch)
    return dispatch


def digest_of(root: Path) -> str:
    """A digest of everything that the dispatch of a tree depends on: the source, and the code that reads it."""
    sources = [*sorted((root / CUDA).glob(FILES)), *(root / path for path in DEFINES if (root / path).is_file())]
    readers = [path for folder in READERS for path in sorted(folder.glob("*.py"))]
    files = ((path.name, path.read_bytes()) for path in (*sources, *readers))
    return short((f"{name} {len(data)}\0".encode() + data for name, data in files), 32)
