"""The FLASH_ATTN_EXT op: its sizes, its parameters, and its tensors in memory."""

from fattn_probe.cases.op.op import Op, Params, Sizes
from fattn_probe.cases.op.tensors import Ne, Root, TensorView

__all__ = ["Ne", "Op", "Params", "Root", "Sizes", "TensorView"]
