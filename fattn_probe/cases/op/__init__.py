"""The FLASH_ATTN_EXT op: its sizes, its parameters, and its tensors in memory."""

from fattn_probe.cases.op.op import Ne, Op, Params, Root, Sizes, TensorView

__all__ = ["Ne", "Op", "Params", "Root", "Sizes", "TensorView"]
