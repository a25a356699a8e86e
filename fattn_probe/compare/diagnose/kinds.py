"""The vocabulary of a diagnosis: every cause that it can say has one of these identifiers."""

KINDS = {
    "kv-left-out": "KV rows that should count do not",
    "kv-weight": "KV rows count with a wrong weight, as when they are counted twice",
    "kv-beyond": "memory behind the last KV row is read, or counts",
    "kv-hidden": "KV rows that the mask hides count",
    "share": "what one CUDA block contributes to a tile that several share is lost, or combined wrongly",
    "mask-ignored": "the mask, or its finite part, is ignored",
    "mask-elsewhere": "the mask is read at another row, column or sequence",
    "k-elsewhere": "K is read at another place: other rows, columns, heads or sequences",
    "v-elsewhere": "V is read at another place, or something else is read for V",
    "k-values": "the values of a quantised K are unpacked wrongly",
    "v-values": "some columns of V have wrong values",
    "tile-layout": "tiles of K and V are written in one layout and read in another",
    "row-elsewhere": "another row's answer is written there",
    "sink": "the sink counts a wrong number of times",
    "softcap": "the softcap is ignored or applied wrongly",
    "alibi": "the slope of ALiBi is wrong",
    "scale": "the logits are scaled",
    "output-scale": "the output is scaled by one factor",
    "rounding": "values are rounded more than by design",
    "overflow": "values exceed the range of f16",
    "masked-tile": "the running maximum of a fully masked KV step is used: NaN",
    "maximum": "the maximum that the softmax subtracts is not that of the row: all weights underflow",
    "zero": "the output is zero",
    "unwritten": "elements are never written",
    "unwritten-read": "memory that nobody wrote is read; simulated GPUs only, whose fresh memory is NaN",
}

NONE = "none"
"""The label of a fault of which no wrong output shows the cause, such as a race."""
