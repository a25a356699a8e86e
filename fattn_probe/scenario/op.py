"""The op that flash attention is, whoever describes it."""

from typing import Protocol

from fattn_probe.op import Op as FlashAttention


class Op(Protocol):
    """A FLASH_ATTN_EXT: a scenario's case and a capture's record have what it says."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def digest(self) -> str: ...  # noqa: D102
    @property
    def op(self) -> FlashAttention: ...  # noqa: D102
