"""Rewrite declarations: `__shared__` ones, and those of clang's vector types (`ext_vector_type`), which g++ lacks."""

from fattn_probe.llama.cxx.tokens import UNMATCHED, Draft, Spans

ATTRIBUTES = frozenset({"alignas", "__align__", "__attribute__"})


def _declarators(draft: Draft, start: int) -> list[tuple[int, int]]:
    """The name and the end (`,` or `;`) of each declarator in a declaration whose type starts at `start`."""
    found: list[tuple[int, int]] = []
    angles, name, index = 0, start, start
    while (word := draft.word(index)) not in ("}", "=", ")", "]", ""):
        if word in ("[", "(", "{"):
            if draft.mates[index] == UNMATCHED:
                return []
            index = draft.mates[index]
        elif word in ("<", ">"):
            angles += 1 if word == "<" else -1
        elif word in (",", ";") and angles == 0 and name > start:
            found.append((name, index))
        elif draft.is_name(index):
            name = index
        if word == ";":
            return found
        index += 1
    return []


def _static(draft: Draft, name: int, stop: int, type_name: str) -> None:
    """Turn a name into a reference; array bounds get parentheses, because a `>` in one would end the template list."""
    bounds, index = "", name + 1
    while index < stop and draft.words[index] == "[":
        bounds += f"[({draft.written(index + 1, draft.mates[index])})]"
        index = draft.mates[index] + 1
    draft.before(name, "(&" if bounds else "& ")
    draft.after(name, ")" if bounds else "")
    draft.before(stop, f" = simt::static_shared<{type_name}{bounds}>([]{{}})")


def _type_with_a_name(draft: Draft, start: int, stop: int) -> str:
    """The type at [start, stop); a type defined here is moved before the variables, and named if it has no name."""
    brace = next((index for index in range(start, stop) if draft.words[index] == "{"), None)
    if brace is None:
        return draft.written(start, stop)
    has_name = draft.is_name(brace - 1) and draft.words[brace - 1] not in ("struct", "union", "class")
    name = draft.words[brace - 1] if has_name else f"simt_shared_{draft.lines[start]}_{start}"
    draft.before(brace, "" if has_name else f" {name} ")
    draft.after(draft.mates[brace], f"; {name}")
    return name


def rewrite_shared(draft: Draft, device: Spans) -> None:
    """Turn the `__shared__` declarations of device code into references to the block's memory.

    Alignment attributes are removed, because references cannot have them; the memory is aligned for every type. A
    static array is identified by the type of an empty lambda, which is unique to each declaration and instantiation.
    """
    for index in draft.where.get("__shared__", ()):
        start = index + 1
        while draft.word(start) in ATTRIBUTES and draft.word(start + 1) == "(" and draft.mates[start + 1] > start:
            start = draft.mates[start + 1] + 1
        declarators = _declarators(draft, start)
        if not declarators:
            continue
        storage = draft.word(index - 1)
        if index not in device:
            if storage == "extern":  # at file level: moves into each later function that uses one of its variables
                type_name = draft.written(start, declarators[0][0])
                draft.blank(index - 1, declarators[-1][1] + 1)
                for word in (draft.words[name] for name, _ in declarators):
                    starts = {device.start_of(use) for use in draft.where.get(word, ()) if use > index}
                    for body in (start for start in starts if start is not None):
                        draft.after(body, f" {type_name} * const {word} = simt::dynamic_shared<{type_name}>();")
            continue
        type_name = _type_with_a_name(draft, start, declarators[0][0])
        draft.blank(index - (storage in ("extern", "static")), start)
        for name, stop in declarators:
            if storage == "extern":
                draft.blank(name + 1, stop)
                draft.before(name, "* const ")
                draft.after(name, f" = simt::dynamic_shared<{type_name}>()")
            else:
                _static(draft, name, stop, type_name)


def rewrite_vectors(draft: Draft) -> None:
    """Turn a type T with `__attribute__((ext_vector_type(N)))` into `simt::ext_vector<T, N>`.

    The attribute precedes the type (`using half8 = ATTRIBUTE _Float16;`) or follows the name of a typedef
    (`typedef int8_t int8x4_t ATTRIBUTE;`).
    """
    for index in draft.where.get("ext_vector_type", ()):
        start, stop = index - 3, draft.mates[index - 2] + 1
        size = draft.written(index + 2, draft.mates[index + 1])
        first, last = stop, stop
        while draft.is_name(last + 1) or draft.word(last + 1) == "::":
            last += 1
        if not draft.is_name(first):
            last = start - 2
            first = next(place for place in range(last, -1, -1) if draft.word(place) == "typedef") + 1
        draft.blank(start, stop)
        draft.before(first, "simt::ext_vector<")
        draft.after(last, f", {size}>")
