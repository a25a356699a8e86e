"""Explain decisions in short sentences: why this kernel was chosen, and the conditions that other kernels needed."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fattn_probe.daily.inspect.dispatch.decide import OTHERWISE
from fattn_probe.daily.inspect.facts import Decision, cc_text
from fattn_probe.llama.cxx.expressions import Logic, Reader, Truths, lacking
from fattn_probe.llama.cxx.tokens import draft_of, tokenize

CALL = re.compile(r"(?:\w+ = )?(\w+)(?:<(.*)>)?$")
ASSIGNED = re.compile(r"(\w+) = ([^<]+)$")
NESTED = re.compile(r"if \((.*)\) (\S.*)$")
SWITCH = re.compile(r"switch \((.*)\) case (.*)$")
QUOTIENT = re.compile(r"(\d+)\s*([*/])\s*(\d+)$")
COMPARED = re.compile(r" (==|!=|<|>|<=|>=) ")
NO_KERNEL = re.compile(r"GGML_ABORT|return \w+_NONE$")
OF_AMD = re.compile(r"\bamd_|_IS_(AMD|RDNA|CDNA|GCN)|_CC_(RDNA|CDNA|GCN)")
OF_NVIDIA = re.compile(r"\b(volta|turing|ampere|blackwell)_|_IS_NVIDIA|_CC_(PASCAL|VOLTA|TURING|AMPERE|ADA|BLACK|DGX)")
RETURN = "return "
Parameters = Mapping[str, Sequence[str]]


def explain(decisions: Iterable[Decision], parameters: Parameters, *, amd: bool = False) -> list[str]:
    """Write one sentence per choice: for each function, first the deciding conditions, then the rejected choices.

    Choices that apply only to the other vendor's GPUs are left out; `amd`: this is an AMD GPU.

    `parameters` are template parameters by function (`Dispatch.parameters`): names for a call's values, `ncols2 = 8`.
    """
    functions: dict[str, list[_Read]] = {}
    for decision in decisions:
        functions.setdefault(decision.function, []).append(_read(decision))
    said: list[str] = []
    for read in functions.values():
        function = _Function(read, parameters, OF_NVIDIA if amd else OF_AMD)
        said += [*function.why(), *function.why_not()]
    return list(dict.fromkeys(said))


@dataclass(frozen=True)
class _Read:
    """A decision with its parsed condition and the values of its variables."""

    decision: Decision
    logic: Logic
    known: Truths
    values: Mapping[str, str]

    def shown(self, parts: Iterable[Logic]) -> dict[str, str]:
        """The variables in some parts of the condition, with their values."""
        texts = [text for piece in parts for atom in piece.atoms() for text, _ in atom.variables]
        return {text: self.values[text] for text in dict.fromkeys(texts) if text in self.values}


def _read(decision: Decision) -> _Read:
    draft = draft_of(tokenize(decision.condition))
    truths = {"true": True, "false": False}
    known = {term.text: truths.get(term.value or "") for term in decision.terms}
    values = {term.text: term.value for term in decision.terms if term.value and term.value not in truths}
    values |= {"cc": cc_text(int(values["cc"]))} if values.get("cc", "").isdecimal() else {}
    return _Read(decision, Reader(draft, {}).logic(0, len(draft.words)), known, values)


class _Function:
    """The decisions of one function. `final` is its last effect, `bound` the function's template arguments.

    `foreign` matches a condition that only the other vendor's GPUs fulfil.
    """

    def __init__(self, read: Sequence[_Read], parameters: Parameters, foreign: re.Pattern[str]) -> None:
        self.read, self.parameters, self.foreign = read, parameters, foreign
        ends = [item.decision.leads_to for item in read if item.decision.held and item.decision.leads_to]
        self.final = ends[-1] if ends else ""
        self.bound = {name: value for item in read for name, value in item.values.items() if name.isidentifier()}
        self.said: set[str] = set()

    def why(self) -> Iterator[str]:
        """The conditions that held and led to the function's result."""
        reasons = [item for item in self.read if item.decision.held and item.decision.condition != OTHERWISE]
        for item in reasons:
            leads_to = item.decision.leads_to
            effect = "" if self.overruled(item) else self.effect(leads_to, new=True)
            if effect and not _is_bool(leads_to) and not NESTED.match(leads_to):
                yield f"{_held(item)}, so {effect}"
        effect = self.effect(self.final)
        if effect and all(item.decision.leads_to != self.final for item in reasons) and any(self.passed_over()):
            yield f"nothing else held, so {effect}"

    def why_not(self) -> Iterator[str]:
        """The choices that were overruled, and the conditions that the rejected choices needed."""
        for item in filter(self.overruled, self.read):
            yield f"{self.effect(item.decision.leads_to)} was next: {_held(item)}"
        every = [item for item in self.read if not item.decision.held]
        missed = {part.text for item in every for part in lacking(item.logic, item.known)}
        for item in every:
            match = ASSIGNED.match(item.decision.leads_to)
            if match and _is_bool(item.decision.leads_to) and match[1] in missed and not self.needs_other_gpu(item):
                yield f"{match[1]} is false: it needs {self.needs(item, '')}"
        for item, effect, inner in self.passed_over():
            yield f"{effect} needed {self.needs(item, inner)}"

    def overruled(self, item: _Read) -> bool:
        """Whether a condition held, but a different statement in its body decided first."""
        leads_to = item.decision.leads_to
        return item.decision.held and leads_to.startswith(RETURN) and leads_to != self.final

    def passed_over(self) -> Iterator[tuple[_Read, str, str]]:
        """Yield conditions that did not hold, each with its effect and its nested condition, if any."""
        for item in self.read:
            nested = NESTED.match(item.decision.leads_to)
            leads_to = nested[2] if nested else item.decision.leads_to
            effect = self.effect(leads_to)
            dull = ASSIGNED.match(leads_to) or NO_KERNEL.match(leads_to) or leads_to == self.final
            if item.decision.held or not effect or dull or self.needs_other_gpu(item):
                continue
            lacks = lacking(item.logic, item.known)
            variables = {text for piece in lacks for atom in piece.atoms() for text, _ in atom.variables}
            own = self.parameters.get(item.decision.function, ())  # the template arguments are fixed by now
            if not variables or not variables.issubset(own):
                yield item, effect, nested[1] if nested else ""

    def needs_other_gpu(self, item: _Read) -> bool:
        """Whether the condition needs another vendor's GPU."""
        lacks = lacking(item.logic, item.known)
        return any(part.kind != "or" and self.foreign.search(part.text) for part in lacks)

    def needs(self, item: _Read, inner: str) -> str:
        """An unmet condition and the actual value: `Q->ne[1] == 1; it is 7`."""
        parts, texts = list[Sequence[Logic]](), list[str]()
        lacks = lacking(item.logic, item.known)
        for part in lacks:
            every = part.children if part.kind == "or" else (part,)
            children = [child for child in every if not self.foreign.search(child.text)] or every
            several = len(children) > 1
            text = " || ".join(f"({one.text})" if one.kind == "and" and several else one.text for one in children)
            texts.append(f"({text})" if several and (len(lacks) > 1 or inner) else text)
            parts.append(children)
        texts += [inner] * bool(inner)
        text, shown = " and ".join(texts), item.shown(child for part in parts for child in part)
        if len(shown) != 1:
            return text + _listed(shown)
        ((name, value),) = shown.items()
        plain = len(texts) == 1 and text.startswith(name) and COMPARED.match(text, len(name))
        return f"{text}; {'it' if plain else name} is {value}"

    def effect(self, leads_to: str, new: bool = False) -> str:
        """A statement's choice: an enumerator, template arguments, a variable; with `new`, only new values."""
        chosen = [leads_to.removeprefix(RETURN)] if leads_to.startswith(RETURN) else [*self.arguments(leads_to)]
        chosen = [text for text in chosen if not (new and text in self.said)]
        self.said.update(chosen if new else ())
        return ", ".join(chosen)

    def arguments(self, leads_to: str) -> Iterator[str]:
        """The arguments of a call's template parameters, without those that the caller only passes on."""
        match = CALL.match(leads_to)
        if ASSIGNED.match(leads_to):
            yield leads_to
        elif match and match[2]:
            values = (value.strip() for value in match[2].split(","))
            for name, value in zip(self.parameters.get(match[1], ()), values, strict=False):
                if name != value and not value.startswith("("):  # a cast is the debugger's notation, not the source's
                    yield f"{name} = {_computed(value, self.bound)}"


def _is_bool(leads_to: str) -> bool:
    return leads_to.endswith(" = true")


def _held(item: _Read) -> str:
    match = SWITCH.match(item.decision.condition)
    if match:
        return f"{match[1]} is {match[2]}"
    text, shown = item.decision.condition, item.shown([item.logic])
    news = {name: value for name, value in shown.items() if f"{name} == {value}" not in text}
    return f"{text} held{_listed(news)}"


def _listed(values: Mapping[str, str]) -> str:
    return f" ({', '.join(f'{name} = {value}' for name, value in values.items())})" if values else ""


def _computed(text: str, bound: Mapping[str, str]) -> str:
    """An expression with its value, `64/ncols2 = 8`, if the function's own arguments are known."""
    known = re.sub(r"\b[^\W\d]\w*\b", lambda match: bound.get(match[0], match[0]), text)
    match = QUOTIENT.match(known)
    if match is None or (match[2] == "/" and match[3] == "0"):
        return text
    left, right = int(match[1]), int(match[3])
    return f"{text} = {left // right if match[2] == '/' else left * right}"
