"""The op that flash attention is, whoever describes it."""

from collections.abc import Mapping
from typing import Protocol

from .layout import TensorView


class Op(Protocol):
    """A FLASH_ATTN_EXT: a scenario's case and a capture's record have what it says."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def digest(self) -> str: ...  # noqa: D102
    @property
    def scale(self) -> float: ...  # noqa: D102
    @property
    def max_bias(self) -> float: ...  # noqa: D102
    @property
    def logit_softcap(self) -> float: ...  # noqa: D102
    @property
    def tensors(self) -> Mapping[str, TensorView]: ...  # noqa: D102
