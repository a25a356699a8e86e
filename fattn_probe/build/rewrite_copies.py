"""Copies of whole vectors, which the checker sees as one access each (native/sim/whole.h)."""

from fattn_probe.cxx.tokens import UNMATCHED, Draft, Spans

VECTORS = frozenset({"int2", "int4", "uint2", "uint4", "float2", "float4"})


def rewrite_copies(draft: Draft, device: Spans) -> None:
    """Put `SIMT_WHOLE()` around both sides of each `((int4 *) to)[i] = ((const int4 *) from)[i];` in device code."""
    for equals in draft.where.get("=", ()):
        if equals not in device or draft.word(equals - 1) != "]":
            continue
        left = draft.mates[draft.mates[equals - 1] - 1]
        right = _end_of_element(draft, equals + 1)
        if _end_of_element(draft, left) == equals - 1 and right != UNMATCHED and draft.word(right + 1) == ";":
            for start, end in ((left, equals - 1), (equals + 1, right)):
                draft.before(start, "SIMT_WHOLE(")
                draft.after(end, ")")


def _end_of_element(draft: Draft, start: int) -> int:
    """The last token of the `((int4 *) pointer)[i]` at `start`, or UNMATCHED if something else is there."""
    vector = start + 3 if draft.word(start + 2) == "const" else start + 2
    cast = draft.word(start) == "(" == draft.word(start + 1) and draft.word(vector) in VECTORS
    if not cast or (draft.word(vector + 1), draft.word(vector + 2)) != ("*", ")"):
        return UNMATCHED
    bracket = draft.mates[start] + 1
    return draft.mates[bracket] if draft.word(bracket) == "[" else UNMATCHED
