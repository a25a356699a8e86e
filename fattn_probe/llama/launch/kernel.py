"""The attention kernel of a launch: its sizes, and its division of an output tile among warps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fattn_probe.llama.launch.architecture import AMD, RDNA4, generation_of, is_cdna
from fattn_probe.llama.launch.constants import Constants
from fattn_probe.llama.launch.families import BY_KERNEL, MMA_F16, Family
from fattn_probe.llama.launch.name import parse_kernel_name
from fattn_probe.llama.launch.record import Dim3, LaunchRecord


@dataclass(frozen=True)
class AttentionKernel:
    """One launch of an attention kernel.

    An output tile is `ncols1` queries x `ncols2` heads; a step is `nbatch_fa` KV rows. `type_K` and `type_V` are the
    types that the kernel reads (`f16`, `q8_0`), perhaps from converted copies of the tensors. A `sparse` kernel gathers
    the unmasked KV rows (`n_kv_max`). `blocks` is gridDim. A block has `warps` warps (blockDim.y; in tile and vec
    kernels, an AMD wave of 64 lanes counts as two), and `warps_per_column` of them (upstream's `np`) share each column.
    A warp works on `columns` columns. `sums_in_f32`: mma_f16 adds P*V in float32, not in f16. `max_offset` is added to
    a column's maximum (FATTN_KQ_MAX_OFFSET). `scanned`: an earlier kernel has found where the visible KV rows end.
    """

    family: Family
    spelling: str
    DKQ: int
    DV: int
    ncols1: int
    ncols2: int
    type_K: str
    type_V: str
    softcap: bool
    sparse: bool
    nbatch_fa: int
    blocks: Dim3
    warps: int
    columns: int
    sums_in_f32: bool
    max_offset: float
    scanned: bool

    @property
    def ncols(self) -> int:
        """The columns of a tile: queries times heads."""
        return self.ncols1 * self.ncols2

    @property
    def warps_per_column(self) -> int:
        """The number of a block's warps that share the KV rows of a column (mma_f16 and tile)."""
        return max(1, self.warps * min(self.columns, self.ncols) // self.ncols)


def attention_of(launches: Sequence[LaunchRecord], arch: int, constants: Constants) -> AttentionKernel | None:
    """The first attention kernel among the launches; None if there is none, or if the source lacks its sizes."""
    launch, family = next(((launch, launch.family) for launch in launches if launch.family), (None, None))
    if launch is None or family is None:
        return None
    named = family.named(launch.template_args)
    if not {*family.parameters[:4]} <= named.keys():
        return None
    D = named.get("D", "")
    DKQ, DV = int(named.get("DKQ", D)), int(named.get("DV", D))
    ncols1, ncols2 = columns_among(named)
    rows = family.nbatch_fa((DKQ, DV, ncols1 * ncols2), arch, constants, launch.block[0] * launch.block[1])
    if rows is None:
        return None
    return AttentionKernel(
        family=family,
        spelling=launch.spelling,
        DKQ=DKQ,
        DV=DV,
        ncols1=ncols1,
        ncols2=ncols2,
        type_K=_type(named.get("type_K", "f16")),
        type_V=_type(named.get("type_V", "f16")),
        softcap=named.get("use_logit_softcap") == "true",
        sparse=named.get("use_sparse") == "true",
        nbatch_fa=rows,
        blocks=launch.grid,
        warps=launch.block[1],
        columns=_columns(family, (DKQ, ncols1 * ncols2), arch, constants),
        # P*V is summed in float32 only on AMD: on CDNA, and on RDNA3 if DV is not a multiple of 32
        sums_in_f32=family is MMA_F16
        and (constants.cdna_in_f32 if is_cdna(arch) else AMD <= arch < RDNA4 and DV % 32 != 0),
        max_offset=constants.max_offset,
        scanned=any(launch.kernel == "flash_attn_mask_to_KV_max" for launch in launches),
    )


def columns_of_tile(spelling: str) -> tuple[int, int] | None:
    """(ncols1, ncols2) of an attention kernel; None for other kernels, or if the spelling lacks them."""
    name = parse_kernel_name(spelling)
    family = BY_KERNEL.get(name.base)
    named = family.arguments(tuple(value for _, value in name.args)) if family else {}
    return columns_among(named) if {"ncols1", "ncols"} & named.keys() else None


def columns_among(named: Mapping[str, str]) -> tuple[int, int]:
    """(ncols1, ncols2) among template arguments."""
    return int(named.get("ncols1") or named["ncols"]), int(named.get("ncols2", 1))


def _columns(family: Family, sizes: tuple[int, int], arch: int, constants: Constants) -> int:
    """The number of columns that one warp works on."""
    if family is not MMA_F16:
        return 1
    columns = generation_of(arch).columns
    narrow = arch < AMD and columns == 16 and (sizes[1] == 8 or sizes in constants.narrow)
    return 8 if narrow else columns


def _type(enumerator: str) -> str:
    return enumerator.removeprefix("GGML_TYPE_").lower()
