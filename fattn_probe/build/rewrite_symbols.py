"""Tell the checker where the variables of device code lie that a file declares outside of functions and classes."""

from fattn_probe.build.rewrite_functions import header_start
from fattn_probe.cxx.tokens import Draft

KEYWORDS = ("__device__", "__constant__", "__managed__")
ATTRIBUTES = frozenset({"alignas", "__align__", "__attribute__", "decltype"})
ELSEWHERE = frozenset({"extern", "const", "constexpr", "template", "using", "typedef", "operator"})
"""Words of declarations that are left as they are: no memory here, or memory that nothing writes."""
TYPES = frozenset({"struct", "union", "class", "enum"})
STOPS = frozenset({"", "(", ")", "]", "}"})


def rewrite_symbols(draft: Draft) -> None:
    """Put `SIMT_GUARD(name)` behind the declaration of each variable (native/sim/symbols.h)."""
    seen: set[int] = set()
    for index in sorted(index for word in KEYWORDS for index in draft.where.get(word, ())):
        variables, end = _variables(draft, index)
        if end in seen or not variables or not _is_outside(draft, index):
            continue
        seen.add(end)
        storage = "static" if "static" in draft.words[header_start(draft, index) : end] else ""
        macros = (
            f"SIMT_GUARD{'_INITIALISED' if valued else ''}({storage}, {name})" for name, valued in variables.items()
        )
        draft.after(end, f" {' '.join(macros)}")


def _variables(draft: Draft, index: int) -> tuple[dict[str, bool], int]:
    """The variables that are declared with the keyword at `index`, each with whether it has a value; and the `;`."""
    start = header_start(draft, index)
    if draft.word(start - 1) == ">" or not ELSEWHERE.isdisjoint(draft.words[start:index]):
        return {}, index
    found: dict[str, bool] = {}
    name, angles = index, 0
    while (word := draft.word(index)) not in STOPS and word not in ELSEWHERE:
        if word in ATTRIBUTES and draft.word(index + 1) == "(":
            index = draft.behind(index + 1)
            continue
        angles += (word == "<") - (word == ">")
        if angles == 0 and (
            word in ("=", ",", ";") or (word == "{" and index == name + 1 and not _is_type(draft, name))
        ):
            end = _declarator_end(draft, index)
            found[draft.words[name]] = end > index
            if draft.word(end) == ";":
                return found, end
            index = end
        name = index if draft.is_name(index) else name
        index = draft.behind(index)
    return {}, index


def _is_type(draft: Draft, name: int) -> bool:
    """Whether the `{` behind a name defines a type."""
    return not TYPES.isdisjoint(draft.words[name - 1 : name + 1])


def _declarator_end(draft: Draft, index: int) -> int:
    """The `,` or `;` behind a variable's value, which begins at `index`."""
    while draft.word(index) not in (",", ";", ""):
        index = draft.behind(index)
    return index


def _is_outside(draft: Draft, index: int) -> bool:
    """Whether a token is in no braces but those of namespaces and `extern "C"`."""
    around = (brace for brace in draft.where.get("{", ()) if brace < index < draft.mates[brace])
    return all(_is_namespace(draft, brace) for brace in around)


def _is_namespace(draft: Draft, brace: int) -> bool:
    """Whether a `{` opens a namespace or the declarations of another language."""
    start = brace - 1
    while (draft.is_name(start) and draft.words[start] != "namespace") or draft.word(start) == "::":
        start -= 1
    return draft.word(start) == "namespace" or draft.word(start) == '"C"'
