"""Decisions in short words for people: why this kernel, and what another one would have needed."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from fattn_probe.build.tokens import draft_of, tokenize
from fattn_probe.inspect.decide import OTHERWISE
from fattn_probe.inspect.expressions import Reader
from fattn_probe.inspect.facts import Decision
from fattn_probe.inspect.logic import Logic, Truths, lacking

CALL = re.compile(r"(\w+)(?:<(.*)>)?$")
ASSIGNED = re.compile(r"(\w+) = (.+)$")
QUOTIENT = re.compile(r"(\d+)\s*([*/])\s*(\d+)$")
NO_KERNEL = re.compile(r"GGML_ABORT|return \w+_NONE$")
Parameters = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class _Read:
    """A decision with its condition taken apart and the values of its variables."""

    decision: Decision
    logic: Logic
    values: Mapping[str, str]

    @property
    def known(self) -> Truths:
        told = {"true": True, "false": False}
        return {term.text: told.get(term.value or "") for term in self.decision.terms}

    def shown(self, parts: Iterable[Logic]) -> dict[str, str]:
        """The variables of some parts, with their values."""
        texts = [part.text for piece in parts for atom in piece.atoms() for part in atom.parts]
        return {text: self.values[text] for text in dict.fromkeys(texts) if text in self.values}


def explain(decisions: Iterable[Decision], parameters: Parameters) -> list[str]:
    """One sentence a choice: first what decided in each function, then what it passed over.

    `parameters` are the template parameters of the functions by name, which say what a call has chosen: `ncols2 = 8`.
    """
    said: list[str] = []
    for _, group in groupby(sorted_by_function(decisions), key=lambda decision: decision.function):
        read = [_read(decision) for decision in group]
        final = next(
            (item.decision.leads_to for item in reversed(read) if item.decision.held and item.decision.leads_to), ""
        )
        bound = _bound(read)
        said += [*_why(read, final, parameters, bound), *_why_not(read, final, parameters, bound)]
    return list(dict.fromkeys(said))


def sorted_by_function(decisions: Iterable[Decision]) -> list[Decision]:
    """Those of a function together, functions in the order in which they decided first."""
    ordered = list(decisions)
    order = list(dict.fromkeys(decision.function for decision in ordered))
    return sorted(ordered, key=lambda decision: order.index(decision.function))


def _read(decision: Decision) -> _Read:
    draft = draft_of(tokenize(decision.condition))
    logic = Reader(draft, {}).logic(0, len(draft.words))
    told = {term.text: term.value for term in decision.terms}
    values = {text: value for text, value in told.items() if value not in (None, "true", "false")}
    return _Read(decision, logic, {text: value for text, value in values.items() if value is not None})


def _bound(read: Iterable[_Read]) -> dict[str, str]:
    """The template arguments that a function's conditions have told."""
    return {name: value for item in read for name, value in item.values.items() if name.isidentifier()}


def _why(read: Sequence[_Read], final: str, parameters: Parameters, bound: Mapping[str, str]) -> Iterator[str]:
    """The conditions that held and led to where the function ended."""
    reasons = [item for item in read if item.decision.held and item.decision.condition != OTHERWISE]
    decisive = [item for item in reasons if item.decision.leads_to == final and final]
    for item in reasons:
        effect = _effect(item.decision.leads_to, parameters, bound)
        overruled = item.decision.leads_to.startswith("return ") and item.decision.leads_to != final
        if not effect or overruled or _is_value(item.decision):
            continue
        if item.decision.condition.startswith("switch "):
            yield f"{item.decision.condition}, so {effect}"
        else:
            yield f"{item.decision.condition} held{_listed(item.shown([item.logic]))}, so {effect}"
    effect = _effect(final, parameters, bound)
    if (
        effect
        and not decisive
        and any(_effect(i.decision.leads_to, parameters, bound) for i in read if not i.decision.held)
    ):
        yield f"nothing else held, so {effect}"


def _why_not(read: Sequence[_Read], final: str, parameters: Parameters, bound: Mapping[str, str]) -> Iterator[str]:
    """What the choices that were passed over would have needed."""
    missed = {part.text for item in read if not item.decision.held for part in lacking(item.logic, item.known)}
    for item in read:
        decision = item.decision
        effect = _effect(decision.leads_to, parameters, bound)
        if decision.held or not effect or NO_KERNEL.match(decision.leads_to) or decision.leads_to == final:
            continue
        needed = lacking(item.logic, item.known)
        if _is_value(decision):
            name, value = ASSIGNED.match(decision.leads_to).groups()  # type: ignore[union-attr]
            if value == "true" and name in missed:
                yield f"{name} is false: it needs {_needs(item, needed)}"
        elif not ASSIGNED.match(decision.leads_to):
            yield f"{effect} needed {_needs(item, needed)}"


def _is_value(decision: Decision) -> bool:
    return decision.leads_to.endswith(" = true")


def _needs(item: _Read, needed: Sequence[Logic]) -> str:
    """`Q->ne[1] == 1; it is 7`."""
    text = " and ".join(f"({part.text})" if part.kind == "or" and len(needed) > 1 else part.text for part in needed)
    shown = item.shown(needed)
    if len(shown) == 1:
        ((name, value),) = shown.items()
        subject = "it" if text.startswith(name) and len(needed) == 1 else name
        return f"{text}; {subject} is {value}"
    return text + _listed(shown)


def _listed(values: Mapping[str, str]) -> str:
    return f" ({', '.join(f'{name} = {value}' for name, value in values.items())})" if values else ""


def _effect(leads_to: str, parameters: Parameters, bound: Mapping[str, str]) -> str:
    """What a statement chooses: a kernel's enumerator, template arguments, a variable's value; empty if nothing new."""
    if leads_to.startswith("return "):
        return leads_to.removeprefix("return ")
    if ASSIGNED.match(leads_to):
        return "" if "<" in leads_to else leads_to
    match = CALL.match(leads_to)
    names = parameters.get(match[1], ()) if match else ()
    arguments = [argument.strip() for argument in (match[2] or "").split(",")] if match else []
    chosen = zip(names, arguments, strict=False)
    return ", ".join(f"{name} = {_computed(value, bound)}" for name, value in chosen if name != value)


def _computed(text: str, bound: Mapping[str, str]) -> str:
    """`64/ncols2 = 8` where the function's own arguments are known."""
    known = re.sub(r"\b[^\W\d]\w*\b", lambda match: bound.get(match[0], match[0]), text)
    match = QUOTIENT.match(known)
    if match is None or (match[2] == "/" and match[3] == "0"):
        return text
    left, right = int(match[1]), int(match[3])
    return f"{text} = {left // right if match[2] == '/' else left * right}"
