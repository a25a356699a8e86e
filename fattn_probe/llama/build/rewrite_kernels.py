"""Rewrite kernels and launches: `__global__`, `__launch_bounds__` and `<<<...>>>`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fattn_probe.base.errors import BuildError
from fattn_probe.llama.cxx.functions import BODIES, Function, functions, functions_with, template_of
from fattn_probe.llama.cxx.includes import INCLUDE
from fattn_probe.llama.cxx.tokens import UNMATCHED, Draft, Span

NEEDED = frozenset({"__host__", "constexpr", "auto"})
"""Keywords of device functions that keep their bodies, because launch bounds or a return type depend on the body."""
Bodies = Literal["all", "device", "kernels", "none"]
"""Which functions of a header keep their bodies: all, those that a kernel may call, the kernels, or none.

An object compiled without some bodies need not be recompiled if only those bodies change.
"""
VOID_POINTERS = (["void", "*"], ["const", "void", "*"], ["void", "const", "*"])


@dataclass(frozen=True)
class KernelInfo:
    """A kernel that a file defines; `first_line` is the line of its first statement."""

    name: str
    line: int
    first_line: int
    template_parameters: tuple[str, ...]


def _bounds(draft: Draft) -> list[Span]:
    """The spans of the `__launch_bounds__(...)` in a file."""
    starts = draft.where.get("__launch_bounds__", ())
    return [(it, draft.mates[it + 1] + 1) for it in starts if draft.word(it + 1) == "(" and draft.mates[it + 1] > it]


def _is_conditional(draft: Draft, start: int, stop: int) -> bool:
    """Whether the token at `stop` is outside the #if that contains the token at `start`."""
    depth = 0
    for directive in draft.directives(start, stop):
        if directive == "if":
            depth += 1
        elif depth == 0:
            return True
        elif directive == "endif":
            depth -= 1
    return False


def _describe(draft: Draft, function: Function) -> bool:
    """Move a kernel's launch bounds into its body; returns whether its header is free of preprocessor conditionals.

    Bounds under `#if` (as in mul_mat_q) become `#define`s of a macro that the body reads, so that the preprocessor
    still chooses. This needs a separate line for each branch; otherwise the bounds are unknown.
    """
    body, text = function.start - 1, ""
    bounds = [span for span in _bounds(draft) if function.header <= span[0] < body]
    arguments = [" ".join(draft.words[start + 2 : stop - 1]) for start, stop in bounds]
    own_lines = (
        draft.first_on_line(start) and draft.same_line(start, stop - 1) and not draft.same_line(start, stop)
        for start, stop in bounds
    )
    plain = not any(_is_conditional(draft, start, body) for start, _ in bounds)
    if plain:
        text = "".join(arguments[:1])
    elif len(bounds) > 1 and all(own_lines):
        text = f"simt_bounds_{function.name}_{draft.lines[function.at]}"
        for (start, _), argument in zip(bounds, arguments, strict=True):
            draft.replace(start, f"#define {text} {argument}")
    draft.after(body, f" if (simt::describe(__PRETTY_FUNCTION__, simt::bounds({text}))) return;")
    return plain and not draft.directives(function.header, body)


def argument_names(draft: Draft, function: Function) -> list[str]:
    """The names of a kernel's parameters; empty if any parameter has no name."""
    start, stop = function.arguments
    commas = [index for index in draft.outer(start, stop) if draft.words[index] == ","]
    ends = [index - 1 for index in (*commas, stop)] if start < stop else []
    named = all(draft.is_name(index) and draft.is_name(index - 1) | (draft.word(index - 1) in "*&") for index in ends)
    return [draft.words[index] for index in ends] if named else []


def _split(draft: Draft, function: Function, *, bodies: Bodies) -> bool:
    """Move a kernel's body to a function of the same name in the namespace BODIES, which the kernel calls.

    The two can then be in different objects. For "all" and "kernels", that function has a body; for "kernels", the
    kernel itself is omitted. Returns False, and changes nothing, if a parameter has no name or has a default.
    """
    first = template_of(draft, function.header)
    is_template = first != UNMATCHED
    first = first if is_template else function.header
    arguments = argument_names(draft, function)
    if "=" in draft.words[first : function.start] or not (arguments or function.arguments[0] == function.arguments[1]):
        return False
    whole = bodies in ("all", "kernels")
    parameters = draft.written(first, function.header) if is_template else "inline" if whole else ""
    declared = f"{parameters} void {function.name}({draft.written(*function.arguments)})"
    values = f"<{', '.join(function.parameters)}>" if is_template else ""
    call = f"{BODIES}::{function.name}{values}({', '.join(arguments)});"
    draft.before(first, f"namespace {BODIES} {{ {declared}; }} ")
    draft.after(function.start - 1, f" {call}")
    if bodies == "kernels":
        draft.replace(function.start - 1, f"namespace {BODIES} {{ {declared} {{")
    elif whole:
        draft.after(function.start - 1, f" }} namespace {BODIES} {{ {declared} {{")
    if whole:
        draft.after(function.stop, " }")
    return True


def rewrite_kernels(draft: Draft, *, bodies: Bodies = "all", split: bool = False) -> tuple[KernelInfo, ...]:
    """Strip all launch bounds, and make every kernel begin with a call that describes it.

    `split` moves the bodies of kernels to separate functions. Functions not among the `bodies` lose their bodies, so a
    change in a body does not change the text. BuildError for a kernel whose body cannot be moved and would be lost.
    """
    for start, stop in _bounds(draft):
        draft.blank(start, stop)
    kernels = []
    for function in functions_with(draft, "__global__"):
        plain = _describe(draft, function)
        apart = split and plain and _split(draft, function, bodies=bodies)
        if bodies != "all" and split and not apart:
            raise BuildError(
                f"the kernel {function.name} cannot be compiled separately from its host function: each parameter "
                "must have a name and no default, and its launch bounds must not depend on an #if"
            )
        if bodies == "none":
            draft.erase(function.start, function.stop)
        lines = draft.lines[function.at], draft.lines[function.start]
        kernels.append(KernelInfo(function.name, *lines, function.parameters))
    for function in functions_with(draft, "__device__") if bodies == "none" else ():
        if NEEDED.isdisjoint(draft.words[function.header : function.at]):
            draft.erase(function.start, function.stop)
            draft.replace(function.start - 1, ";")
            draft.replace(function.stop, "")
    return tuple(kernels)


def keep_device_functions(draft: Draft) -> None:
    """Remove the bodies of kernels, and of host functions after the last device function.

    After that function, newlines are removed too, so a body's length does not matter: no line of device code follows.
    """
    last = max((function.stop for function in functions_with(draft, "__device__")), default=0)
    kernels = {function.start for function in functions_with(draft, "__global__")}
    for function in functions(draft):
        behind = function.start > last
        if function.start in kernels or (behind and NEEDED.isdisjoint(draft.words[function.header : function.at])):
            draft.erase(function.start, function.stop, lines=not behind)


def keep_kernels(draft: Draft) -> None:
    """Remove everything except kernels and directives; the file is included after the whole header.

    `#include`s are removed too, because the convert.cuh of 2025 cannot be included twice.
    """
    spans = [(draft.places[it.start - 1], draft.places[it.stop]) for it in functions_with(draft, "__global__")]
    kept = {place for first, last in spans for place in range(first, last + 1)}
    for place, (kind, text) in enumerate(draft.tokens):
        if place not in kept and (kind != "directive" or INCLUDE.match(text)):
            draft.out[place] = "\n" * text.count("\n")


def rewrite_pointers(draft: Draft) -> None:
    """Remove the cast to `void *` or `const void *` from a kernel that is the first argument of a runtime function.

    The simulator needs the kernel's type, which has the types of its arguments.
    """
    casts = [(*edge, type_) for type_ in VOID_POINTERS for edge in ((["("], [")"]), (["reinterpret_cast", "<"], [">"]))]
    for name in ("cudaLaunchKernel", "cudaFuncSetAttribute", "cudaFuncSetCacheConfig"):
        for index in draft.where.get(name, ()):
            for opening, closing, type_ in casts:
                stop = index + 2 + len(opening) + len(type_) + len(closing)
                if draft.words[index + 1 : stop] == ["(", *opening, *type_, *closing]:
                    draft.blank(index + 2, stop)


def rewrite_launches(draft: Draft, kernels: Sequence[KernelInfo] = ()) -> None:
    """Rewrite `f<<<grid, block, shared, stream>>>(args)` as a call; every token stays in place.

    The kernel is wrapped in a lambda, because a template whose arguments are deduced from `args` has no address. If the
    kernel is one of `kernels`, with all template arguments given, its type shows how the arguments are converted.
    """
    for bracket in draft.where.get("<<<", ()):
        end = bracket + 1  # the first of the three `>` that close the `<<<`
        while draft.words[end : end + 3] not in ([">", ">", ">"], []):
            end = max(end, draft.mates[end]) + 1
        if end >= len(draft.words):
            continue
        # The first token of the expression before the `<<<`: `f`, `f<int>`, `ns::f`, `p->f`, `(f)`, `f[i]`.
        index = bracket - 1
        while index > 0:
            if draft.words[index] == ">":
                index = draft.back_over_angles(index) - 1
            while draft.word(index) in (")", "]") and draft.mates[index] > 0:
                index = draft.mates[index] - draft.is_name(draft.mates[index] - 1)
            if draft.word(index - 1) not in ("::", ".", "->"):
                break
            index -= 2 if draft.is_name(index - 2) else 1
        callee = max(index, 0)
        # The expression's text if it names one kernel of the file with all its template arguments; otherwise empty.
        angle = next((index for index in range(callee, bracket) if draft.words[index] == "<"), bracket)
        given = len(draft.split(angle + 1, bracket - 1)) if angle < bracket else 0
        plain = all(draft.is_name(index) or draft.words[index] == "::" for index in range(callee, angle))
        named = [kernel for kernel in kernels if kernel.name == draft.word(angle - 1)]
        complete = plain and len(named) == 1 and len(named[0].template_parameters) == given
        signature = draft.written(callee, bracket) if complete else ""
        call = f"simt::launch_as({signature}, " if signature else "simt::launch_kernel("
        draft.before(callee, f"{call}[=](auto... simt_a) {{ ")
        draft.replace(bracket, "(SIMT_ARGUMENT(simt_a)...); }, ")
        draft.replace(end, ")")
        draft.blank(end + 1, end + 3)
