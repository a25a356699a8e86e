"""Assemble the facts from the debugger's output."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from fattn_probe.base.arrays import Bytes
from fattn_probe.cases.op import Op
from fattn_probe.daily.inspect.facts import Choice, Decision, KernelLaunch, TensorFacts, Value
from fattn_probe.llama.launch.families import BY_KERNEL, BY_NAME, Family, renamed_kernel
from fattn_probe.llama.launch.name import parse_kernel_name
from fattn_probe.llama.launch.record import Names, Types
from fattn_probe.llama.launch.tiles import BlockWork, Grid, Limits, TileWork, index_of, tiles_of
from fattn_probe.machine.debug.values import c_text, numbers
from fattn_probe.verdict.truth.reference.adapter import stored_rows

CUDA_EXCEPTIONS = {
    "CUDA_EXCEPTION_1": "illegal address",
    "CUDA_EXCEPTION_4": "illegal instruction",
    "CUDA_EXCEPTION_5": "address out of range",
    "CUDA_EXCEPTION_6": "misaligned address",
    "CUDA_EXCEPTION_10": "illegal address",
    "CUDA_EXCEPTION_12": "assertion",
    "CUDA_EXCEPTION_14": "illegal address",
}
"""cuda-gdb's exceptions for errors in a kernel, in the words of the cuda-gdb manual."""
OP_PARAMS = ("scale", "max_bias", "logit_softcap")
Raw = Mapping[str, Any]


def tensors_of(raw: Mapping[str, Mapping[str, str]]) -> tuple[TensorFacts, ...]:
    """The op's tensors, from the fields that `procedures.op.read_tensor` read."""
    found = []
    for role, fields in raw.items():
        ne, nb = _integers(fields["ne"]), _integers(fields["nb"])
        kind = fields["type"].removeprefix("GGML_TYPE_")
        name, viewed = (c_text(fields.get(field, "")) for field in ("name", "view_name"))
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        contiguous, expected = nb[0] == size, size * (ne[0] // block)
        for extent, stride in zip(ne[1:], nb[1:], strict=True):
            contiguous = contiguous and (extent == 1 or stride == expected)
            expected *= extent
        offset = int(fields["view_offs"])
        found.append(TensorFacts(role, kind.lower(), tuple(ne), tuple(nb), name, viewed, offset, contiguous))
    return tuple(found)


def op_params_of(text: str) -> dict[str, Value]:
    """`op_params` as stored (ints), and decoded: three floats from their bits, then prec and n_kv_max."""
    words = _integers(text)
    floats = np.array(words[:3], np.int32).view(np.float32)
    decoded: dict[str, Value] = {name: float(str(value)) for name, value in zip(OP_PARAMS, floats, strict=True)}
    return {"op_params": words[:5]} | decoded | {"prec": words[3], "n_kv_max": words[4]}


def _integers(text: str) -> list[int]:
    """Parse an array of integers as gdb prints it; raises ValueError for anything else."""
    if not text.startswith("{"):
        raise ValueError(f"not an array as gdb prints it: {text}")
    return [int(number) for number in numbers(text)]


def variables_of(raw: Mapping[str, str]) -> dict[str, Value]:
    """Variables as JSON values: a dim3 as a list of three, a float32 as its shortest decimal, otherwise gdb's text."""
    return {name: _variable(text) for name, text in raw.items()}


def _variable(text: str) -> Value:
    text = re.sub(r"^@0x[0-9a-f]+: ", "", text)  # the address of what a lambda captures by reference
    if text in ("true", "false"):
        return text == "true"
    if text.startswith("{x = "):
        return numbers(text)
    try:
        return int(text)
    except ValueError:
        with suppress(ValueError):  # gdb prints a NaN with its bits in parentheses
            return float(str(np.float32(text.partition("(")[0])))
    return text


def choice_of(
    raw: Raw, decisions: tuple[Decision, ...], types: Types | None = None, names: Names | None = None
) -> Choice:
    """The kernel that `fattn_kernel` points to, and the configuration in the frame that chose it."""
    symbol = raw["kernel"].partition(" <")[2].removesuffix(">")
    name = parse_kernel_name(symbol or raw["kernel"], types=types, names=names)
    values = ",".join(value for _, value in name.args)
    family = BY_KERNEL.get(renamed_kernel(name.base, name.args, names) or name.base)
    return Choice(
        family=family.name if family else name.base,
        kernel=f"{name.base}<{values}>" if values else name.base,
        template={
            key: {"true": True, "false": False}.get(value, int(value) if value.lstrip("-").isdigit() else value)
            for key, value in name.args
            if key
        },
        config=variables_of(raw["config"]),
        decisions=decisions,
    )


def launch_facts(raw: Raw, kernels: Sequence[KernelLaunch], records: Sequence[Raw]) -> dict[str, Value]:
    """The variables of the launch and the running kernel, and facts from the fixup, combine and mask-scan kernels."""
    names = [launch.kernel for launch in kernels]
    fixups = [name for name in names if "stream_k_fixup" in name]
    kind = "none" if not fixups else "uniform" if "uniform" in fixups[0] else "general"
    around = {
        "fixup": kind,
        "combine": any("combine_results" in name for name in names),
        "KV_max_scan": any("mask_to_KV_max" in name for name in names),
    }
    first = next((record for record in records if record["at"] == "kbc"), {})
    running = {name: first[name] for name in ("iter_k", "iter_j", "iter_z_gqa") if name in first}
    return variables_of(raw["launch"]) | variables_of(raw.get("scoped", {})) | around | running


@dataclass(frozen=True)
class Tiling:
    """The context for the blocks' records: the chosen kernel, the launch's `blocks_num`, and each tensor's `ne`."""

    choice: Choice
    blocks_num: Sequence[int]
    ne: Mapping[str, Sequence[int]]

    @property
    def family(self) -> Family:
        """The chosen kernel's family."""
        return BY_NAME[self.choice.family]

    @property
    def gqa_ratio(self) -> int:
        """The number of Q heads per K/V head."""
        return self.ne["Q"][2] // self.ne["K"][2]

    @property
    def ncols2(self) -> int:
        """The number of Q heads in an output tile."""
        return int(self.choice.template.get("ncols2", 1))

    def lacks(self, record: Raw) -> set[str]:
        """The variables that a block's record lacks, since the source's kernel has other names for them."""
        if record["at"] == "kbc":
            needed = {"kbc", "kbc_stop"}
        elif record["at"] == "tile":
            needed = {"sequence", "jt", "kb0_start", "kb0_stop", "needs_fixup", "is_fixup"}
            needed |= {"zt"} if "zt" in record else {"z_KV", "zt_gqa"}
        else:
            needed = {"sequence", self.family.head_name, self.family.step_name, "ne11", "k_VKQ_max"}
        return needed - record.keys()

    def blocks(self, records: Sequence[Raw]) -> tuple[BlockWork, ...]:
        """The blocks of the attention kernel in order, from the records of each block's thread 0."""
        blocks: dict[int, BlockWork] = {}
        for record in records:
            x, y, z = record["blockIdx"]
            linear = x + self.blocks_num[0] * (y + self.blocks_num[1] * z)
            block = blocks.get(linear, BlockWork(linear, (x, y, z), None, None, ()))
            if record["at"] == "kbc":
                block = replace(block, kbc=record["kbc"], kbc_stop=record["kbc_stop"], sm=record.get("sm"))
            else:
                tile = self._stream_k(record) if record["at"] == "tile" else self._split_kv(record)
                block = replace(block, tiles=(*block.tiles, tile), sm=record.get("sm", block.sm))
            blocks[linear] = block
        return tuple(blocks[linear] for linear in sorted(blocks))

    def followed(self, records: Sequence[Raw], scanned: Raw | None) -> tuple[BlockWork, ...]:
        """The blocks of a kernel on a real GPU: each reported its `kbc`, and some reported a tile.

        The other tiles follow from `kbc` and from `scanned`, the result of scanning the mask.
        """
        grid = self.grid(records)
        if grid is None:
            return ()
        limits: Limits | None = None  # each sequence's last KV step per query tile, as the kernel computes it
        if scanned is not None:
            KV_max, rows = _integers(scanned["values"]), scanned["nbatch_fa"]
            masks = max(1, len(KV_max) // grid.iter_j)
            # a scanned mask ends with a complete step; the last step of a sparse kernel, which gathers, may be partial
            more = rows - 1 if scanned["sparse"] else 0
            limits = {
                (sequence, jt): (KV_max[sequence % masks * grid.iter_j + jt] + more) // rows
                for sequence in range(grid.ne03)
                for jt in range(grid.iter_j)
            }

        def place(work: TileWork) -> int:
            """The first KV step of a block's work on a tile, counted over all tiles."""
            return index_of(work.tile, grid) * grid.iter_k + work.kb0_start

        found = []
        for block in self.blocks(records):
            if block.kbc is not None and block.kbc_stop is not None:
                due = tiles_of(block.kbc, block.kbc_stop, grid, limits)
                works = {place(work): replace(work, read=False) for work in due}
                for work in block.tiles:
                    limit = works[place(work)].kb0_limit if place(work) in works else None
                    works[place(work)] = replace(work, kb0_limit=limit)
                block = replace(block, tiles=tuple(works[at] for at in sorted(works)))  # noqa: PLW2901
            found.append(block)
        return tuple(found)

    def _stream_k(self, record: Raw) -> TileWork:
        limits = [value for name, value in record.items() if name.startswith(("KV_max", "(KV_max"))]
        z_KV, zt_gqa = record.get("z_KV"), record.get("zt_gqa")
        if z_KV is None or zt_gqa is None:  # before 2026, a single index `zt` counts the head groups of all K/V heads
            z_KV, zt_gqa = divmod(record["zt"], self.gqa_ratio // self.ncols2)
        return TileWork(
            record["sequence"],
            z_KV,
            zt_gqa,
            record["jt"],
            record["kb0_start"],
            record["kb0_stop"],
            needs_fixup=bool(record["needs_fixup"]),
            is_fixup=bool(record["is_fixup"]),
            kb0_limit=limits[0] if limits else None,
        )

    def _split_kv(self, record: Raw) -> TileWork:
        """A vec or tile kernel's block: block y computes every `gridDim.y`-th KV step of its tile, starting at y."""
        x, y, _ = record["blockIdx"]
        z_KV, within = divmod(record[self.family.head_name], self.gqa_ratio)
        rows = record[self.family.step_name]  # KV rows in a step
        steps, limit = -(-record["ne11"] // rows), -(-record["k_VKQ_max"] // rows)
        found = TileWork(record["sequence"], z_KV, within // self.ncols2, x, y, limit, self.blocks_num[1])
        return replace(found, kb0_limit=limit) if limit < steps else found

    def grid(self, records: Sequence[Raw]) -> Grid | None:
        """The grid of output tiles and KV steps, from the first block's variables; None without them."""
        first: Raw = records[0] if records else {}
        groups = self.gqa_ratio // self.ncols2
        if {"iter_k", "iter_j"} <= first.keys():
            iter_z_gqa = first.get("iter_z_gqa", groups)
            return Grid(first["iter_k"], first["iter_j"], iter_z_gqa, self.ne["K"][2], self.ne["Q"][3])
        if "ne11" in first and self.family.step_name in first:
            iter_k = -(-first["ne11"] // first[self.family.step_name])
            return Grid(iter_k, self.blocks_num[0], groups, self.ne["K"][2], self.ne["Q"][3])
        return None


def mask_ends_of(op: Op, inputs: Mapping[str, Bytes]) -> tuple[tuple[int, ...], ...]:
    """The end of the KV rows that each query of each mask sees, in any head; 0 if the mask hides all rows."""
    mask = np.asarray(stored_rows(op.operands["mask"], inputs))[:, :, : op.sizes.n_q]
    seen = ~np.isinf(mask).all(axis=1)
    ends = np.where(seen.any(axis=-1), seen.shape[-1] - seen[..., ::-1].argmax(axis=-1), 0)
    return tuple(map(tuple, ends.tolist()))


def fault_of(records: Sequence[Raw]) -> str:
    """Describe why and where the kernel stopped early; empty if it completed."""
    record: Raw = records[-1] if records else {}
    if record.get("at") != "ended":
        return ""
    function, file, line = record["place"]
    what = CUDA_EXCEPTIONS.get(record["detail"], record["reason"])
    where = f" in {function.rpartition('::')[2].partition('<')[0]} at {file}:{line}" if function else ""
    return f"the kernel ended: {what} {record['detail']}".rstrip() + where
