"""Places where a 64-bit integer may be stored in 32 bits; the checker looks at the values (native/sim/conversion.h)."""

import re

from fattn_probe.cxx.tokens import Draft, Spans

NARROW = {"int": "int", "int32_t": "int", "unsigned": "unsigned", "uint32_t": "unsigned"}
OTHER_TYPES = frozenset({"long", "short", "unsigned"})
"""Words that make another type of an `int` after them."""
WRITTEN = re.compile(r" SIMT_INTO\(\w+\)")


def rewrite_conversions(draft: Draft, device: Spans) -> None:
    """Put `SIMT_INTO(type)` before the value of each `int name = value` in device code.

    Also for `unsigned` and the 32-bit types of <cstdint>. A value that is one token needs none: a literal, or a name,
    which seldom is an index.
    """
    for word, type_name in NARROW.items():
        for index in draft.where.get(word, ()):
            before, after = draft.word(index - 1), draft.word(index + 1)
            if index in device and before not in OTHER_TYPES and after not in OTHER_TYPES and _has_value(draft, index):
                draft.after(index + 2, f" SIMT_INTO({type_name})")


def without_conversions(text: str) -> str:
    """A rewritten text as it was before this pass, for patterns like `int kb0_stop = min`."""
    return WRITTEN.sub("", text)


def _has_value(draft: Draft, index: int) -> bool:
    """Whether `name = value` follows the type at `index`, with a value of more than one token."""
    declares = draft.is_name(index + 1) and draft.word(index + 2) == "=" and draft.word(index + 3) != "{"
    return declares and draft.word(index + 4) not in (";", ",")
