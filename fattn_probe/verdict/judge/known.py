"""Recognise upstream's known defects in failed cases, by the signs in known-defects.yaml.

The signs are strict: if anything else is wrong in the same kernel, the failure is not recognised. A recognised case
still fails. A defect counts as known only if both the code that ran and the release that it comes from have it.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType

import numpy as np
import yaml
from pydantic import Field

from fattn_probe.base.arrays import Bytes
from fattn_probe.cases.op import Op
from fattn_probe.cases.op.op import Root, TensorView, is_quantized, row_size
from fattn_probe.cases.scenario.spec import Spec
from fattn_probe.llama.launch.kernel import columns_of_tile
from fattn_probe.machine.run.outcome import Finding
from fattn_probe.verdict.judge.origin import Probe, ReleaseRange, SourceOrigin
from fattn_probe.verdict.truth.reference.adapter import stored_rows
from fattn_probe.verdict.truth.rounding_model.tile import scanned_ends

UPSTREAMS = "a known defect of llama.cpp"
UNKNOWN_RELEASE = "the code has it, but not every release does, and the release of this source is unknown"
UNPROBED = "to tell whether the code that ran has it, fattn-probe needs"


@dataclass(frozen=True)
class Known:
    """The result for a failure: the id of its known defect, or in `doubt` why a known defect may not be its cause.

    Both are empty if the failure is not a known defect.
    """

    id: str = ""
    doubt: str = ""


def best(found: Iterable[Known]) -> Known | None:
    """A known defect if there is one, otherwise a doubt; None if there is neither."""
    return max(found, key=lambda known: bool(known.id), default=None)


@dataclass(frozen=True)
class Failure:
    """The evidence of one failed case.

    `cc` is the GPU's compute capability (`7.0`), `kernel` the attention kernel, `finding` the fault that stopped the
    run, None for a wrong output. `only_masked_nan`: all wrong values are NaN in fully masked rows. `checks` are the
    names of the checks that a correct output fails. `inputs` are the bytes of the op's roots. `scanned`: an earlier
    kernel scanned the mask. `right_for` tells whether the output is correct for a different op, with the given roots in
    place of, or in addition to, those in `inputs`.
    """

    op: Op
    cc: str
    kernel: str = ""
    finding: Finding | None = None
    only_masked_nan: bool = False
    checks: tuple[str, ...] = ()
    inputs: Mapping[str, Bytes] = field(default_factory=dict, repr=False)
    scanned: bool = False
    right_for: Callable[[Op, Mapping[str, Bytes]], bool] = field(default=lambda op, memory: False, repr=False)


class Signs(Spec):
    """The signs of a defect in a failure; the header of the catalogue explains each key."""

    cc: list[str] = Field(default=[])
    kind: str = ""
    message: str = ""
    kernel: str = ""
    function: str = ""
    checks: list[str] = Field(default=[])
    when: list[str] = Field(default=[])
    code: list[Probe] = Field(default=[])

    def match(self, failure: Failure) -> bool:
        """Whether a failure shows all of these signs."""
        found = failure.finding
        functions = [frame.partition(" at ")[0].partition("<")[0] for frame in found.frames] if found else []
        return (
            (not self.cc or failure.cc in self.cc)
            and self.kind == (found.kind if found else "")
            and self.checks == list(failure.checks)
            and (not self.message or bool(found and re.search(self.message, found.message)))
            and (not self.kernel or bool(re.fullmatch(self.kernel, failure.kernel)))
            and (not self.function or any(re.fullmatch(self.function, name) for name in functions))
            and all(CONDITIONS[name](failure) for name in self.when)
        )


class Defect(Spec):
    """One defect: a sentence about it, the releases and the code that have it, and its signs."""

    id: str
    about: str
    since: int | None = None
    until: int | None = None
    code: list[Probe] = Field(default=[])
    signs: list[Signs]

    @property
    def releases(self) -> ReleaseRange:
        """The releases with this defect."""
        return ReleaseRange(self.since, self.until)

    def match(self, failure: Failure, origin: SourceOrigin) -> Known | None:
        """The result for a failure with the signs of this defect; None without these signs."""
        return best(filter(None, [self.judged(signs, origin) for signs in self.signs if signs.match(failure)]))

    def judged(self, signs: Signs, origin: SourceOrigin) -> Known | None:
        """The result from the code for a failure with these signs; None if the code that ran lacks the defect."""
        probes = (*self.code, *signs.code)
        in_tree, in_release = origin.tree_has(probes, self.releases), origin.release_has(probes, self.releases)
        if in_tree is False:
            return None
        if in_release is False:
            return Known(doubt=f"{self.id}, {UPSTREAMS}, which the release does not have: a change introduced it")
        if in_tree and in_release:
            return Known(self.id)
        why = UNKNOWN_RELEASE if in_tree else f"{UNPROBED} {', '.join(map(str, probes))}"
        return Known(doubt=f"maybe {self.id}, {UPSTREAMS}: {why}")


def fewer_than_32_columns(failure: Failure) -> bool:
    """Whether the kernel works on tiles of fewer than 32 columns."""
    columns = columns_of_tile(failure.kernel)
    return columns is not None and columns[0] * columns[1] < 32


def heads_are_padded(failure: Failure) -> bool:
    """Whether the kernel's last tile of a K/V head has more heads than Q has left."""
    columns = columns_of_tile(failure.kernel)
    return columns is not None and failure.op.sizes.group % columns[1] != 0


def mask_ends_inside_tile(failure: Failure) -> bool:
    """Whether the last query tile of the stopped kernel has more queries than the mask has rows."""
    mask = failure.op.tensors.get("mask")
    tile = re.fullmatch(r".*<(\d+)>", failure.kernel)
    if mask is None or tile is None:
        return False
    return -failure.op.sizes.n_q // int(tile[1]) * -int(tile[1]) > mask.ne[1]


def right_with_V_in_K(failure: Failure, column: int) -> bool:
    """Whether the output is correct for V in K's rows from `column` on, although the op has a different V."""
    K, sizes = failure.op.tensors["K"], failure.op.sizes
    if sizes.hsk <= sizes.hsv or (column and is_quantized(K.type)):
        return False
    offset = K.offset + row_size(K.type, column)
    V = TensorView("V", K.type, K.root, (sizes.hsv, *K.ne[1:]), K.nb, offset)
    return failure.op.tensors["V"] != V and failure.right_for(
        replace(failure.op, tensors={**failure.op.tensors, "V": V}), {}
    )


def right_with_narrow_mask(failure: Failure) -> bool:
    """Whether the mask is wider than K, and the output is correct for mask rows with a stride of n_kv.

    A scan of the mask uses the correct stride, and the kernel skips the KV rows that are masked for all queries
    according to the scan. With fewer masks than sequences, it is unknown what the scan reads.
    """
    op, sizes, mask = failure.op, failure.op.sizes, failure.op.tensors.get("mask")
    if mask is None or mask.ne[0] <= sizes.n_kv or (failure.scanned and mask.ne[3] < sizes.n_seq):
        return False
    narrow = replace(mask, ne=(sizes.n_kv, *mask.ne[1:]), nb=(mask.nb[0], sizes.n_kv * mask.nb[0], *mask.nb[2:]))
    read, there = (np.array(stored_rows(view, failure.inputs)) for view in (narrow, op.operands["mask"]))
    for sequence in range(sizes.n_seq if failure.scanned else 0):
        read[sequence, :, :, scanned_ends(there[sequence, 0], sizes.n_q)[0] :] = -np.inf
    root = Root("mask as read", mask.type, narrow.ne)
    view = replace(narrow, root=root.name, nb=root.nb, offset=0)
    other = replace(op, tensors={**op.tensors, "mask": view}, roots={**op.roots, root.name: root})
    return failure.right_for(other, {root.name: read.reshape(-1).view(np.uint8)})


def is_view_of_converted_K(op: Op) -> bool:
    """Whether V is part of K's rows but not from the first column, K is not f16, and K itself is not a view."""
    K, V = op.tensors["K"], op.tensors["V"]
    whole = K.offset == 0 and op.roots[K.root].ne == K.ne
    return K.type != "f16" and whole and V.root == K.root and V.offset > K.offset


CONDITIONS: Mapping[str, Callable[[Failure], bool]] = MappingProxyType(
    {
        "fewer than 32 columns": fewer_than_32_columns,
        "rows of a K or V in f16 or bf16 not aligned to 16 bytes": lambda failure: unaligned(
            failure.op, halves(failure.op), 16
        ),
        "rows of K and V aligned to 16 bytes": lambda failure: not unaligned(failure.op, "KV", 16),
        "rows of Q not aligned to 8 bytes": lambda failure: unaligned(failure.op, "Q", 8),
        "rows of Q aligned to 8 bytes": lambda failure: not unaligned(failure.op, "Q", 8),
        "head size 512 or 576 with a GQA ratio that is not a multiple of 4": lambda failure: (
            failure.op.sizes.hsk in (512, 576) and failure.op.sizes.group % 4 != 0
        ),
        "rows of Q not aligned to 16 bytes": lambda failure: unaligned(failure.op, "Q", 16),
        "rows of Q aligned to 16 bytes": lambda failure: not unaligned(failure.op, "Q", 16),
        "a softcap with a head size whose kernels have none": lambda failure: (
            failure.op.params.logit_softcap != 0 and failure.op.sizes.hsk not in (128, 256, 512)
        ),
        "one mask for several sequences": lambda failure: (
            failure.op.has_mask and failure.op.tensors["mask"].ne[3] < failure.op.sizes.n_seq
        ),
        "only NaN in fully masked rows": lambda failure: failure.only_masked_nan,
        "K quantised with head size 64": lambda failure: is_quantized(failure.op.type_K) and failure.op.sizes.hsk == 64,
        "a q8_0 K or V that is not aligned to 4 bytes": lambda failure: any(
            failure.op.tensors[name].type == "q8_0" and failure.op.tensors[name].offset % 4 for name in "KV"
        ),
        "a mask that ends inside a query tile": mask_ends_inside_tile,
        "a head size of V that is not a multiple of 64": lambda failure: failure.op.sizes.hsv % 64 != 0,
        "heads of K and V of different sizes": lambda failure: failure.op.sizes.hsk != failure.op.sizes.hsv,
        "a GQA ratio that is not a multiple of ncols2": heads_are_padded,
        "a mask of more than 2^31 entries": lambda failure: (
            failure.op.has_mask and math.prod(failure.op.tensors["mask"].ne) > 1 << 31
        ),
        "an output of 2^30 elements or more": lambda failure: math.prod(failure.op.sizes.dst) >= 1 << 30,
        "Q of more than 2 GiB": lambda failure: is_large(failure.op, "Q"),
        "K or V of more than 2 GiB": lambda failure: is_large(failure.op, "KV"),
        "V is a later part of a K that is not f16": lambda failure: is_view_of_converted_K(failure.op),
        "correct if V is the end of K's rows": lambda failure: right_with_V_in_K(
            failure, failure.op.sizes.hsk - failure.op.sizes.hsv
        ),
        "correct if the rows of a wider mask were n_kv entries apart": right_with_narrow_mask,
        "correct if V is the start of K's rows": lambda failure: right_with_V_in_K(failure, 0),
    }
)


def is_large(op: Op, names: str) -> bool:
    """Whether one of these tensors takes more than 2 GiB of memory."""
    return any(op.roots[op.tensors[name].root].nbytes > 1 << 31 for name in names)


def halves(op: Op) -> list[str]:
    """Which of K and V are in f16 or bf16; kernels convert other types, or read them block by block."""
    return [name for name in "KV" if op.tensors[name].type in ("f16", "bf16")]


def unaligned(op: Op, names: Iterable[str], size: int) -> bool:
    """Whether a stride of one of these tensors is not a multiple of `size` bytes."""
    return any(stride % size for name in names for stride in op.tensors[name].nb[1:])


@cache
def defects() -> Mapping[str, Defect]:
    """The catalogue, by id."""
    entries = yaml.safe_load((files("fattn_probe.verdict.judge") / "known-defects.yaml").read_text())
    return MappingProxyType({id: Defect.model_validate(entry | {"id": id}) for id, entry in entries.items()})


def known_defect(failure: Failure, origin: SourceOrigin) -> Known:
    """The known defect that causes a failure, or may cause it."""
    return best(filter(None, (defect.match(failure, origin) for defect in defects().values()))) or Known()


def by_defect(known: Iterable[str]) -> list[str]:
    """One sentence for each known defect, from the ids of the cases' defects (empty for no defect).

    `46 fail because of volta-columns, a known defect of llama.cpp: on Volta the dispatch chooses an mma kernel of ...`
    """
    about = {id: f": {defect.about}" for id, defect in defects().items()}
    return [
        f"{number} fail{'s' * (number == 1)} because of {id}, {UPSTREAMS}{about.get(id, '')}"
        for id, number in Counter(filter(None, known)).items()
    ]


def named(known: str, reason: str) -> str:
    """The reason for a failure; it begins with the known defect if the failure is one."""
    return f"{known}, {UPSTREAMS}: {reason}" if known else reason
