"""Rewrite kernels and launches: `__global__`, `__launch_bounds__` and `<<<...>>>`."""

from dataclasses import dataclass

from fattn_probe.build.rewrite_functions import Function, function_at, template_parameters
from fattn_probe.cxx.tokens import UNMATCHED, Draft


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


def rewrite_launches(draft: Draft) -> None:
    """Rewrite `f<<<grid, block, shared, stream>>>(args)` to a call; every token stays in place.

    The kernel is wrapped in a lambda, because a template whose arguments are deduced from `args` has no address.
    """
    for bracket in draft.where.get("<<<", ()):
        end = _launch_end(draft, bracket)
        if end is None:
            continue
        draft.before(_callee(draft, bracket), "simt::launch_kernel([=](auto... simt_a) { ")
        draft.replace(bracket, "(SIMT_ARGUMENT(simt_a)...); }, ")
        draft.replace(end, ")")
        draft.blank(end + 1, end + 3)
