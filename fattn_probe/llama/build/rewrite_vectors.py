"""Rewrite clang's vector types (`ext_vector_type`), which g++ lacks."""

from fattn_probe.llama.cxx.tokens import Draft

ATTRIBUTE = "ext_vector_type"


def rewrite_vectors(draft: Draft) -> None:
    """Turn a type T with `__attribute__((ext_vector_type(N)))` into `simt::ext_vector<T, N>`.

    The attribute precedes the type (`using half8 = ATTRIBUTE _Float16;`) or follows the name of a typedef
    (`typedef int8_t int8x4_t ATTRIBUTE;`).
    """
    for index in draft.where.get(ATTRIBUTE, ()):
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
