"""Rewrite `__shared__` declarations."""

from dataclasses import dataclass

from fattn_probe.llama.cxx.tokens import UNMATCHED, Draft, Spans

ATTRIBUTES = frozenset({"alignas", "__align__", "__attribute__"})


@dataclass(frozen=True)
class Declarator:
    """One declarator: its name, the `[` or end after it, and its end (`,` or `;`), as indices of code tokens."""

    name: int
    stop: int


def _skip_attributes(draft: Draft, index: int) -> int:
    while draft.word(index) in ATTRIBUTES and draft.word(index + 1) == "(" and draft.mates[index + 1] > index:
        index = draft.mates[index + 1] + 1
    return index


def _declarators(draft: Draft, start: int) -> list[Declarator]:
    """The declarators of a declaration whose type starts at `start`."""
    found: list[Declarator] = []
    angles, name, index = 0, start, start
    while (word := draft.word(index)) not in ("}", "=", ")", "]", ""):
        if word in ("[", "(", "{"):
            if draft.mates[index] == UNMATCHED:
                return []
            index = draft.mates[index]
        elif word in ("<", ">"):
            angles += 1 if word == "<" else -1
        elif word in (",", ";") and angles == 0 and name > start:
            found.append(Declarator(name, index))
        elif draft.is_name(index):
            name = index
        if word == ";":
            return found
        index += 1
    return []


def _dynamic(draft: Draft, declarator: Declarator, type_name: str) -> None:
    draft.blank(declarator.name + 1, declarator.stop)
    draft.before(declarator.name, "* const ")
    draft.after(declarator.name, f" = simt::dynamic_shared<{type_name}>()")


def _static(draft: Draft, declarator: Declarator, type_name: str) -> None:
    """Make a name a reference; array bounds get their own brackets, because a `>` in one would close the list."""
    bounds, index = "", declarator.name + 1
    while index < declarator.stop and draft.words[index] == "[":
        bounds += f"[({draft.written(index + 1, draft.mates[index])})]"
        index = draft.mates[index] + 1
    draft.before(declarator.name, "(&" if bounds else "& ")
    draft.after(declarator.name, ")" if bounds else "")
    draft.before(declarator.stop, f" = simt::static_shared<{type_name}{bounds}>([]{{}})")


def _type_with_a_name(draft: Draft, start: int, stop: int) -> str:
    """The type at [start, stop); one that is defined here gets its definition before the variables, and a name."""
    brace = next((index for index in range(start, stop) if draft.words[index] == "{"), None)
    if brace is None:
        return draft.written(start, stop)
    has_name = draft.is_name(brace - 1) and draft.words[brace - 1] not in ("struct", "union", "class")
    name = draft.words[brace - 1] if has_name else f"simt_shared_{draft.lines[start]}_{start}"
    draft.before(brace, "" if has_name else f" {name} ")
    draft.after(draft.mates[brace], f"; {name}")
    return name


def _of_file(draft: Draft, index: int, declarators: list[Declarator], type_name: str, device: Spans) -> None:
    """Move a file's `extern __shared__` declaration into each function behind it that names one of its variables."""
    draft.blank(index, declarators[-1].stop + 1)
    for name in (draft.words[declarator.name] for declarator in declarators):
        starts = [device.start_of(use) for use in draft.where.get(name, ()) if use > index]
        for body in {start for start in starts if start is not None}:
            draft.after(body, f" {type_name} * const {name} = simt::dynamic_shared<{type_name}>();")


def rewrite_shared(draft: Draft, device: Spans) -> None:
    """Rewrite the `__shared__` declarations of device code to references to the block's memory.

    Alignment attributes are removed, because references have none: the memory must be aligned for every type. A static
    array is identified by the type of an empty lambda, which is unique to each declaration and instantiation.
    """
    for index in draft.where.get("__shared__", ()):
        start = _skip_attributes(draft, index + 1)
        declarators = _declarators(draft, start)
        if not declarators:
            continue
        storage = draft.word(index - 1)
        if index not in device:
            if storage == "extern":
                _of_file(draft, index - 1, declarators, draft.written(start, declarators[0].name), device)
            continue
        type_name = _type_with_a_name(draft, start, declarators[0].name)
        draft.blank(index - (storage in ("extern", "static")), start)
        for declarator in declarators:
            (_dynamic if storage == "extern" else _static)(draft, declarator, type_name)
