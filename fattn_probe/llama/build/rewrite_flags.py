"""Turn bool template parameters that only conditions read ("flags") into function arguments.

    template<int DV, bool needs_fixup> static __device__ void process_tile(float * dst) { if (needs_fixup) { ... } }

g++ would compile `process_tile`, and everything inlined into it, once for each value. So the body moves to a function
that takes the flag as an argument, and the template only calls it. A kernel in fattn-mma-f16.cuh then compiles in half
the time, and one in fattn-tile.cuh for a single head in two thirds; the outputs have the same bits.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fattn_probe.llama.build.rewrite_kernels import argument_names
from fattn_probe.llama.cxx.functions import ONCE, Function, functions_with, template_of
from fattn_probe.llama.cxx.tokens import UNMATCHED, Draft, Span

BEFORE, AFTER = frozenset({"(", "!", "&&", "||", "=", ","}), frozenset({")", "&&", "||"})
"""The tokens before and after a flag in a condition."""
CONSTANT = frozenset({"constexpr", "static_assert", "case", "template", "using", "static"})
"""Words in statements whose conditions must be constant expressions."""
UNREPEATABLE = frozenset({"=", "...", "auto", "decltype"})
"""A function header with one of these is not rewritten: a default, a pack, a type deduced from the body."""
NESTED = r"\((?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*\)"
ASKED = re.compile(rf"SIMT_IS_CONSTANT{NESTED}")
"""The test that `rewrite_products` inserts."""


@dataclass(frozen=True)
class Template:
    """A function template: the spans of its template parameters, and the positions of those that are flags."""

    function: Function
    first: int
    parameters: tuple[Span, ...]
    flags: tuple[int, ...]

    def names(self, positions: tuple[int, ...]) -> list[str]:
        """The names of the template parameters at these positions."""
        return [self.function.parameters[position] for position in positions]

    @property
    def others(self) -> tuple[int, ...]:
        """The positions of the template parameters that are not flags."""
        return tuple(position for position in range(len(self.parameters)) if position not in self.flags)


@dataclass(frozen=True)
class TemplateCall:
    """A call with template arguments: the indices of its name and of the `(`, and the spans of the arguments."""

    at: int
    opener: int
    arguments: tuple[Span, ...]


def rewrite_flags(draft: Draft) -> None:
    """Move the bodies of a file's function templates with flags to functions that take the flags as arguments.

    A body may also pass its flag on as a flag of another such template. Overloads need the same template parameters.
    """
    callers = list(functions_with(draft, "__device__", "__global__"))
    found = dict[str, list[Template]]()
    for template in filter(None, (_template(draft, function) for function in functions_with(draft, "__device__"))):
        found.setdefault(template.function.name, []).append(template)
    found = {name: same for name, same in found.items() if len({it.function.parameters for it in same}) == 1}
    changed = True
    while changed:
        changed = False
        single = {place for caller in callers for place in _single(draft, caller, found)}
        for name, overloads in found.items():
            flags = overloads[0].flags
            left = tuple(at for at in flags if all(_is_flag(draft, one, at, found) for one in overloads))
            left = tuple(at for at in left if (name, at) not in single)
            changed = changed or left != flags
            found[name] = [replace(one, flags=left) for one in overloads]
    for template in (one for overloads in found.values() for one in overloads if one.flags):
        for call in _calls(draft, template.function, found):
            callee = found[draft.words[call.at]][0]
            passed = [draft.written(*call.arguments[position]) for position in callee.flags]
            draft.replace(call.at, f"{ONCE}{draft.words[call.at]}")
            last = max(position for position in callee.others if position < len(call.arguments))
            for position in callee.flags:  # with the comma after it, or before it if nothing follows
                start, stop = call.arguments[position]
                draft.blank(start - (position > last), stop + (position < last))
            draft.after(call.opener, ", ".join(passed) + "," * (draft.mates[call.opener] > call.opener + 1) + " ")
        _move(draft, template)


def _template(draft: Draft, function: Function) -> Template | None:
    """The template of a function whose body can be moved, with all bool parameters as flags; None for other ones."""
    first = template_of(draft, function.header)
    if first == UNMATCHED or draft.directives(first, function.start - 1):
        return None
    spans = draft.split(first + 2, function.header - 1)
    named = argument_names(draft, function)
    if (
        len(spans) != len(function.parameters)
        or not named
        or not UNREPEATABLE.isdisjoint(draft.words[first : function.start])
    ):
        return None
    flags = tuple(at for at, (start, stop) in enumerate(spans) if draft.words[start] == "bool" and stop == start + 2)
    return Template(function, first, spans, flags) if 0 < len(flags) < len(spans) else None


def _single(draft: Draft, caller: Function, found: Mapping[str, Sequence[Template]]) -> Iterator[tuple[str, int]]:
    """The flags (template name, position) to which a caller passes one of its template parameters that is not a flag.

    Such a parameter has a single value in a kernel's code, so these flags need not become arguments.
    """
    own = [template for template in found.get(caller.name, ()) if template.function == caller]
    flags = own[0].names(own[0].flags) if own else []
    for call in _calls(draft, caller, found):
        for position in found[draft.words[call.at]][0].flags:
            argument = draft.words[slice(*call.arguments[position])]
            if len(argument) == 1 and argument[0] in caller.parameters and argument[0] not in flags:
                yield draft.words[call.at], position


def _is_flag(draft: Draft, template: Template, position: int, found: Mapping[str, Sequence[Template]]) -> bool:
    """Whether a template parameter is only read by conditions that need not be constant, or passed on as a flag."""
    function = template.function
    passed = {
        call.arguments[at][0]
        for call in _calls(draft, function, found)
        for at in found[draft.words[call.at]][0].flags
        if call.arguments[at][1] == call.arguments[at][0] + 1
    }
    uses = draft.where.get(function.parameters[position], ())
    inside = (use for use in uses if function.arguments[0] <= use < function.stop)
    return all(use in passed or _is_condition(draft, use, function.start) for use in inside)


def _is_condition(draft: Draft, use: int, start: int) -> bool:
    """Whether a name is an operand of a condition that need not be a constant expression."""
    begin = next((index for index in range(use, start, -1) if draft.words[index] in ";{}"), start)
    in_brackets = any(draft.words[index] == "[" and draft.mates[index] > use for index in range(begin, use))
    around = draft.words[use - 1] in BEFORE and draft.word(use + 1) in AFTER
    return around and not in_brackets and CONSTANT.isdisjoint(draft.words[begin:use])


def _calls(draft: Draft, caller: Function, found: Mapping[str, Sequence[Template]]) -> Iterator[TemplateCall]:
    """The calls in a function's body to templates with flags, if the flags are explicit template arguments."""
    for name, (callee, *_) in found.items():
        for at in draft.where.get(name, ()):
            if caller.start <= at < caller.stop and draft.word(at + 1) == "<" and callee.flags:
                depth, index = 0, at + 1
                for index in draft.outer(at + 1, caller.stop):
                    depth += (draft.words[index] == "<") - (draft.words[index] == ">")
                    if depth == 0:
                        break
                arguments = draft.split(at + 2, index)
                others = len(arguments) - len(callee.flags)
                if draft.word(index + 1) == "(" and max(callee.flags) < len(arguments) and others > 0:
                    yield TemplateCall(at, index + 1, arguments)


def _move(draft: Draft, template: Template) -> None:
    """Move a template's body to a function that takes its flags as arguments, and call that function.

    Where `rewrite_products` tests whether a condition is constant, the test covers both values of a flag used there.
    """
    function, flags = template.function, template.names(template.flags)
    for index in range(function.start, function.stop):
        text = draft.out[draft.places[index]]
        for flag in flags:
            text = ASKED.sub(partial(_answers, flag), text)
        draft.replace(index, text)
    parameters = ", ".join(draft.written(*template.parameters[position]) for position in template.others)
    arguments = ", ".join((*(f"const bool {flag}" for flag in flags), draft.written(*function.arguments)))
    head = draft.written(function.header, function.at)
    declared = f"template<{parameters}> [[gnu::noinline]] {head} {ONCE}{function.name}({arguments})"
    values = ", ".join(template.names(template.others))
    call = f"return {ONCE}{function.name}<{values}>({', '.join((*flags, *argument_names(draft, function)))});"
    draft.before(template.first, f"{declared}; ")
    draft.after(function.start - 1, f" {call} }} {declared} {{")


def _answers(flag: str, asked: re.Match[str]) -> str:
    """The test of whether a condition is constant, made for both values of a flag that is now an argument."""
    true, false = (re.sub(rf"\b{flag}\b", value, asked[0]) for value in ("true", "false"))
    return asked[0] if true == asked[0] else f"({flag} ? {true} : {false})"
