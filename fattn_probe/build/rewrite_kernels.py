"""Rewrite kernels and launches: `__global__`, `__launch_bounds__` and `<<<...>>>`."""

from collections.abc import Sequence
from dataclasses import dataclass

from fattn_probe.build.rewrite_functions import Function, function_at, template_parameters
from fattn_probe.cxx.tokens import UNMATCHED, Draft

TAKES_A_KERNEL = ("cudaLaunchKernel", "cudaFuncSetAttribute", "cudaFuncSetCacheConfig")
VOID_POINTERS = (["void", "*"], ["const", "void", "*"], ["void", "const", "*"])


@dataclass(frozen=True)
class KernelInfo:
    """A kernel that a file defines; `first_line` is that of its first statement."""

    name: str
    line: int
    first_line: int
    template_parameters: tuple[str, ...]


@dataclass(frozen=True)
class _Bounds:
    """A `__launch_bounds__(...)`, as indices of code tokens; `conditional` if it is inside an #if."""

    start: int
    stop: int
    conditional: bool


def _is_conditional(draft: Draft, start: int, stop: int) -> bool:
    """Whether the token at `stop` is outside of the #if that the one at `start` is in."""
    depth = 0
    for directive in draft.directives(start, stop):
        if directive == "if":
            depth += 1
        elif depth == 0:
            return True
        elif directive == "endif":
            depth -= 1
    return False


def _bounds(draft: Draft, function: Function, stop: int) -> list[_Bounds]:
    indices = [index for index in draft.where.get("__launch_bounds__", ()) if function.start <= index < stop]
    ends = [_bounds_end(draft, index) for index in indices]
    return [_Bounds(i, end, _is_conditional(draft, i, stop)) for i, end in zip(indices, ends, strict=True) if end > i]


def _strip(draft: Draft) -> None:
    """Remove every `__launch_bounds__(...)` from the text."""
    for index in draft.where.get("__launch_bounds__", ()):
        draft.blank(index, _bounds_end(draft, index))


def _bounds_end(draft: Draft, index: int) -> int:
    """The token after the brackets of the `__launch_bounds__` at `index`, or `index` if it has none."""
    has_brackets = draft.word(index + 1) == "(" and draft.mates[index + 1] != UNMATCHED
    return draft.mates[index + 1] + 1 if has_brackets else index


def _has_own_line(draft: Draft, bound: _Bounds) -> bool:
    inside, behind = (bound.start, bound.stop - 1), (bound.start, bound.stop)
    return draft.first_on_line(bound.start) and draft.same_line(*inside) and not draft.same_line(*behind)


def _arguments(draft: Draft, bound: _Bounds) -> str:
    return " ".join(draft.words[bound.start + 2 : bound.stop - 1])


def _describe(draft: Draft, function: Function, body: int) -> None:
    """Move a kernel's launch bounds into its body.

    Bounds under `#if` (those of mul_mat_q) become `#define`s of a macro that the body reads, so the preprocessor still
    chooses. This needs a separate line for each branch; otherwise the bounds are unknown.
    """
    bounds, arguments = _bounds(draft, function, body), ""
    if not any(bound.conditional for bound in bounds):
        arguments = "".join(_arguments(draft, bound) for bound in bounds[:1])
    elif len(bounds) > 1 and all(_has_own_line(draft, bound) for bound in bounds):
        arguments = f"simt_bounds_{draft.words[function.name]}_{draft.lines[function.name]}"
        for bound in bounds:
            draft.replace(bound.start, f"#define {arguments} {_arguments(draft, bound)}")
    draft.after(body, f" if (simt::describe(__PRETTY_FUNCTION__, simt::bounds({arguments}))) return;")


def rewrite_kernels(draft: Draft) -> tuple[KernelInfo, ...]:
    """Strip launch bounds everywhere, and make every kernel's body begin with its description."""
    _strip(draft)
    kernels = []
    for index in draft.where.get("__global__", ()):
        function = function_at(draft, index)
        if function is None or function.body is None:
            continue
        _describe(draft, function, function.body)
        name, line, first = draft.words[function.name], draft.lines[function.name], draft.lines[function.body + 1]
        kernels.append(KernelInfo(name, line, first, template_parameters(draft, function)))
    return tuple(kernels)


def rewrite_pointers(draft: Draft) -> None:
    """Remove the cast of a kernel to `void *`, `const void *` as the first argument of a function of the runtime.

    Its type says what the arguments are.
    """
    for name in TAKES_A_KERNEL:
        for index in draft.where.get(name, ()):
            stop = _void_cast_end(draft, index + 2) if draft.word(index + 1) == "(" else None
            if stop is not None:
                draft.blank(index + 2, stop)


def _void_cast_end(draft: Draft, index: int) -> int | None:
    """The token after the `(void *)` or `reinterpret_cast<void *>` at `index`; None if there is no such cast."""
    named = draft.word(index) == "reinterpret_cast"
    start = index + 1 + named
    opening, closing = ("<", ">") if named else ("(", ")")
    for words in VOID_POINTERS:
        stop = start + len(words)
        if draft.words[start - 1 : stop + 1] == [opening, *words, closing]:
            return stop + 1
    return None


def _callee(draft: Draft, bracket: int) -> int:
    """The first token of the expression before a `<<<`: `f`, `f<int>`, `ns::f`, `p->f`, `(f)`, `f[i]`."""
    index = bracket - 1
    while index > 0:
        if draft.words[index] == ">":
            index = draft.back_over_angles(index) - 1
        while draft.word(index) in (")", "]") and draft.mates[index] > 0:
            index = draft.mates[index] - draft.is_name(draft.mates[index] - 1)
        if draft.word(index - 1) not in ("::", ".", "->"):
            break
        index -= 2 if draft.is_name(index - 2) else 1
    return max(index, 0)


def _launch_end(draft: Draft, bracket: int) -> int | None:
    """The first of the three `>` that close a `<<<`."""
    index = bracket + 1
    while index + 2 < len(draft.words):
        if draft.words[index : index + 3] == [">", ">", ">"]:
            return index
        index = max(index, draft.mates[index]) + 1
    return None


def _template_arguments(draft: Draft, start: int, stop: int) -> int:
    """How many template arguments are between the `<` and the `>` of [start, stop)."""
    commas, depth = 0, 0
    for index in draft.outer(start + 1, stop - 1):
        depth += (draft.words[index] == "<") - (draft.words[index] == ">")
        commas += draft.words[index] == "," and depth == 0
    return commas + 1


def _signature(draft: Draft, start: int, stop: int, kernels: Sequence[KernelInfo]) -> str:
    """The tokens [start, stop) if they name one kernel of the file with all its template arguments; else empty."""
    angle = next((index for index in range(start, stop) if draft.words[index] == "<"), stop)
    given = _template_arguments(draft, angle, stop) if angle < stop else 0
    plain = all(draft.is_name(index) or draft.words[index] == "::" for index in range(start, angle))
    named = [kernel for kernel in kernels if kernel.name == draft.word(angle - 1)]
    complete = plain and len(named) == 1 and len(named[0].template_parameters) == given
    return draft.written(start, stop) if complete else ""


def rewrite_launches(draft: Draft, kernels: Sequence[KernelInfo] = ()) -> None:
    """Rewrite `f<<<grid, block, shared, stream>>>(args)` to a call; every token stays in place.

    The kernel is wrapped in a lambda, because a template whose arguments are deduced from `args` has no address. One of
    `kernels` whose template arguments are all there has one, whose type says to what the arguments are converted.
    """
    for bracket in draft.where.get("<<<", ()):
        end = _launch_end(draft, bracket)
        if end is None:
            continue
        callee = _callee(draft, bracket)
        signature = _signature(draft, callee, bracket, kernels)
        call = f"simt::launch_as({signature}, " if signature else "simt::launch_kernel("
        draft.before(callee, f"{call}[=](auto... simt_a) {{ ")
        draft.replace(bracket, "(SIMT_ARGUMENT(simt_a)...); }, ")
        draft.replace(end, ")")
        draft.blank(end + 1, end + 3)
