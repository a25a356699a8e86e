"""Loops of xor shuffles, as one warp instruction for all steps (native/sim/shuffle.h)."""

import re

from fattn_probe.cxx.tokens import UNMATCHED, Draft, Spans

SHUFFLE = r"__shfl_xor_sync \( (?P<mask>\w+) , (?P<value>\w+) , (?P<offset>\w+) , (?P<width>\w+) \)"
HEADER = re.compile(r"for \( int (?P<offset>\w+) = (?P<first>.+?) ; (?P=offset) > 0 ; (?P=offset) >>= 1 \) \{")
SUM = re.compile(rf"(?P<result>\w+) \+= {SHUFFLE} ; \}}")
CALL = re.compile(rf"(?P<result>\w+) = (?P<function>\w+) \( (?P<own>\w+) , {SHUFFLE} \) ; \}}")

MOST_TOKENS = 24
"""Of a body that `SUM` or `CALL` matches."""


def rewrite_shuffles(draft: Draft, device: Spans) -> None:
    """Turn `x += __shfl_xor_sync(mask, x, offset, width)`, for offset, offset/2 ... 1, into one butterfly.

    Also for `x = f(x, __shfl_xor_sync(...))`. The loop stays and runs once: a pragma may stand before it. Other loops
    with shuffles are left as they are.
    """
    for start in draft.where.get("for", ()):
        close = draft.mates[start + 1]
        if start not in device or close == UNMATCHED or draft.word(close + 1) != "{":
            continue
        end = draft.mates[close + 1]
        if end == UNMATCHED or end - close > MOST_TOKENS:
            continue
        operation = _operation(" ".join(draft.words[start : close + 2]), " ".join(draft.words[close + 2 : end + 1]))
        if operation is not None:
            draft.replace(close - 2, "=")
            draft.replace(close - 1, "0")
            draft.blank(close + 2, end)
            draft.replace(close + 2, operation)


def _operation(header: str, body: str) -> str | None:
    """The statement that does all of a loop's steps at once, or None for any other loop."""
    turns, match = HEADER.fullmatch(header), SUM.fullmatch(body) or CALL.fullmatch(body)
    if turns is None or match is None:
        return None
    value = match["value"]
    own = match.groupdict().get("own") or value
    if match["result"] != value or own != value or match["offset"] != turns["offset"]:
        return None
    function = match.groupdict().get("function")
    result = f"{function}(own, other)" if function else "own + other"
    lanes = f"{match['mask']}, {value}, {match['offset']}, {match['width']}"
    return f"{value} = simt::butterfly({lanes}, [](auto own, auto other) {{ return {result}; }});"
