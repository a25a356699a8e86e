"""The arithmetic of the naive and the tiled kernel, for the error model: everything in f32, one CUDA block a row."""

from dataclasses import dataclass

from fattn_probe.launch.geometry import Part
from fattn_probe.launch.tiles import Tile
from fattn_probe.op import Op
from fattn_probe.truth.error_model.kernel import Kernel, Split
from fattn_probe.truth.error_model.rounding import SINGLE

RUNNING = (3, 4, 5, 6, 7)
"""The axes of `Block`'s arrays along which a step's sums share a running maximum: all within a step."""


@dataclass(frozen=True)
class OneBlock:
    """A cut in which one block takes all KV steps of a row."""

    steps: int
    group: int

    def tile_of(self, sequence: int, query: int, head: int) -> Tile:
        """The row itself."""
        z_KV, within = divmod(head, self.group)
        return sequence, z_KV, within, query

    def parts_of(self, tile: Tile) -> tuple[Part, ...]:
        """All steps."""
        return (Part(0, 0, self.steps, 1, True),)


def arithmetic_of(op: Op, name: str, keys: int) -> Kernel:
    """The arithmetic of a kernel that takes `keys` KV rows a step, and adds products one by one, fused."""
    s = op.sizes
    return Kernel(
        name=name,
        cut=OneBlock(-(-s.n_kv // keys), s.group),
        split=Split(1, keys, 1, 1, 1),
        accumulator=SINGLE,
        weights=SINGLE,
        q="f32",
        converts_K=False,
        converts_V=False,
        chain=(s.hsk / 3, s.hsk / 6),
        shares_maximum=RUNNING,
    )
