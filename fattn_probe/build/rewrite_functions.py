"""Find functions in CUDA C++, and which of them are device code."""

from dataclasses import dataclass

from fattn_probe.cxx.tokens import UNMATCHED, Draft, Spans, spans_of

NOT_A_NAME = frozenset({"__launch_bounds__", "__attribute__", "__align__", "alignas", "decltype", "noexcept"})


@dataclass(frozen=True)
class Function:
    """A function's header, as indices of code tokens.

    `start` is the first of its specifiers (not `template`), `name` its name (without template arguments), and `body`
    the `{` of its definition, or None for a declaration.
    """

    start: int
    name: int
    body: int | None


def header_start(draft: Draft, index: int) -> int:
    """The first specifier of the declaration to which the specifier at `index` belongs."""
    while index > 0:
        before = index - 1
        mate = draft.mates[before]
        if draft.is_name(before):
            index = before
        elif draft.words[before] == ")" and mate > 0 and draft.words[mate - 1] in NOT_A_NAME:
            index = mate - 1
        elif draft.words[before] == "]" and mate > 0 and draft.word(mate + 1) == "[":
            index = mate
        else:
            break
    return index


def _is_member_brace(draft: Draft, index: int) -> bool:
    """Whether a `{` after a constructor's colon initialises a member instead of opening the body."""
    return draft.is_name(index - 1) or draft.words[index - 1] == ">"


def _body(draft: Draft, index: int) -> int | None:
    """The `{` of the function whose header holds `index`, or None if it is a declaration or a variable."""
    colon = False
    while index < len(draft.words):
        word, mate = draft.words[index], draft.mates[index]
        if word in ("(", "[") or (word == "{" and colon and _is_member_brace(draft, index)):
            if mate == UNMATCHED:
                return None
            index = mate
        elif word == "{":
            return index if mate != UNMATCHED else None
        elif word in (";", "}", ")") or (word == "=" and draft.words[index - 1] != "operator"):
            return None
        colon = colon or word == ":"
        index += 1
    return None


def _name(draft: Draft, index: int) -> int | None:
    """The name before a header's parameter list."""
    while index < len(draft.words) and draft.words[index] not in (";", "{", "}"):
        if draft.words[index] == "=" and draft.words[index - 1] != "operator":
            return None
        if draft.words[index] == "(":
            if draft.words[index - 1] not in NOT_A_NAME:
                angles = draft.words[index - 1] == ">"
                return max(draft.back_over_angles(index - 1), 1) - 1 if angles else index - 1
            index = max(draft.mates[index], index)
        index += 1
    return None


def function_at(draft: Draft, index: int) -> Function | None:
    """The function that the specifier at `index` (`__global__`, `__device__`) declares, or None for a variable."""
    name = _name(draft, index)
    if name is None:
        return None
    return Function(header_start(draft, index), name, _body(draft, index))


def template_parameters(draft: Draft, function: Function) -> tuple[str, ...]:
    """The names of a function's template parameters, in order; empty if it is not a template."""
    close = function.start - 1
    if close < 0 or draft.words[close] != ">":
        return ()
    start = draft.back_over_angles(close)
    if start <= 0 or draft.words[start - 1] != "template":
        return ()
    return tuple(_parameter_names(draft, start + 1, close))


def _parameter_names(draft: Draft, start: int, stop: int) -> list[str]:
    """The last identifier before each parameter's `,` or `=`."""
    names: list[str] = []
    last, in_default, index = "", False, start
    while index < stop:
        word = draft.words[index]
        if word in ("(", "[", "{") and draft.mates[index] > index:
            index = draft.mates[index]
        elif word == ",":
            names, last, in_default = [*names, last], "", False
        elif word == "=":
            in_default = True
        elif not in_default and draft.is_name(index):
            last = word
        index += 1
    return [name for name in [*names, last] if name]


def device_spans(draft: Draft, *, host_too: bool = False) -> Spans:
    """The bodies of device functions and lambdas; `host_too`: of `__host__ __device__` ones too."""
    ranges = []
    for specifier in ("__device__", "__global__"):
        for index in draft.where.get(specifier, ()):
            function = function_at(draft, index)
            if function is None or function.body is None:
                continue
            if host_too or "__host__" not in draft.words[function.start : function.body]:
                ranges.append((function.body, draft.mates[function.body]))
    return spans_of(ranges)
