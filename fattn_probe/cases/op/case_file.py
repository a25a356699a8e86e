"""The case file, which the runner reads: one fully resolved op and its input bytes.

The files in a folder share data: identical blocks are stored once, in a separate file. Only a few rows of a model's
cache change from step to step, and all layers of a step have the same mask.
"""

import ctypes
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from gguf import GGUFValueType

from fattn_probe.base.arrays import Bytes
from fattn_probe.base.digest import hexdigest
from fattn_probe.base.errors import InputError, MachineError
from fattn_probe.base.files import check_readable, writing
from fattn_probe.cases.op import Ne, Op, Params, Root, TensorView
from fattn_probe.cases.op.gguf_file import (
    Field,
    GgufFile,
    TensorData,
    array,
    f32,
    i32,
    read_gguf,
    string,
    u32,
    u64,
    write_gguf,
)
from fattn_probe.cases.op.op import TYPE_NAMES

BLOCK = 1 << 14
"""Bytes in a block: a few rows of a cache."""
FILE = "blocks"


@dataclass
class QuantBlocks:
    """The file of shared blocks in a folder; new blocks are appended.

    The first blocks to be added replace the file from an earlier run.
    """

    folder: Path
    known: dict[str, int] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self.folder / FILE

    @property
    def nbytes(self) -> int:
        """The size of the file."""
        return len(self.known) * BLOCK

    def add(self, data: Bytes) -> list[int]:
        """Store bytes (1-D), with the last block padded with zeros; returns the numbers of their blocks."""
        padded = np.zeros(-(-data.size // BLOCK) * BLOCK, np.uint8)
        padded[: data.size] = data
        numbers, fresh = [], []
        for block in padded.reshape(-1, BLOCK):
            digest = hexdigest(block.data)
            if digest not in self.known:
                self.known[digest] = len(self.known)
                fresh.append(block)
            numbers.append(self.known[digest])
        with writing(self.path), self.path.open("wb" if len(self.known) == len(fresh) else "ab") as file:
            for block in fresh:
                file.write(block.data)
        return numbers


def read_blocks(of: Path, numbers: Sequence[int], size: int) -> Bytes:
    """The first `size` bytes (1-D) of the blocks with these numbers, from the file of blocks beside `of`.

    InputError if that file is missing or too short, or if there are too many or too few numbers for `size`.
    """
    if len(numbers) != -(-size // BLOCK) or min(numbers, default=0) < 0:
        raise InputError(f"{of}: {len(numbers)} block numbers do not match {size} bytes")
    path = of.parent / FILE
    if not path.is_file():
        raise InputError(f"{of}: part of it is in {FILE}, which all ops in its folder share, but that file is missing")
    check_readable(path, "the blocks of captured ops")
    stored = np.memmap(path, np.uint8, "r")
    if (max(numbers) + 1) * BLOCK > stored.size:
        raise InputError(f"{path}: the file ends before a block that {of.name} needs")
    return stored[: stored.size // BLOCK * BLOCK].reshape(-1, BLOCK)[list(numbers)].reshape(-1)[:size]


NOTHING, READ = 0, 1
SHARED, PRIVATE, FIXED, ANONYMOUS, NO_RESERVE = 0x01, 0x02, 0x10, 0x20, 0x4000


def whole(root: Root, stored: Bytes) -> Bytes:
    """All bytes of a root, expanded from the stored part; read-only if they repeat."""
    return stored if root.period is None else repeated(stored, root.nbytes)


def repeated(part: Bytes, size: int) -> Bytes:
    """`size` bytes (1-D, read-only) that repeat `part`, which consists of whole pages.

    The same pages of memory are mapped repeatedly. MachineError if the system refuses.
    """
    file = os.memfd_create("fattn-probe")
    try:
        with os.fdopen(os.dup(file), "wb") as pages:
            pages.write(np.ascontiguousarray(part).data)
        return np.asarray(_Pages(file, part.size, size))
    finally:
        os.close(file)


class _Pages:
    """An address range that maps a file's pages repeatedly; released with the last array that uses it."""

    def __init__(self, file: int, period: int, size: int) -> None:
        self._system = ctypes.CDLL(None, use_errno=True)
        self._system.mmap.restype = ctypes.c_void_p
        self._system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        self._system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._size = size
        self._start = self._map(None, size, NOTHING, PRIVATE | ANONYMOUS | NO_RESERVE, -1)
        for offset in range(0, size, period):
            self._map(self._start + offset, min(period, size - offset), READ, SHARED | FIXED, file)
        self.__array_interface__ = {"data": (self._start, True), "shape": (size,), "typestr": "|u1", "version": 3}

    def _map(self, address: int | None, size: int, access: int, how: int, file: int) -> int:
        found: int = self._system.mmap(address, size, access, how, file, 0)
        if found == ctypes.c_void_p(-1).value:
            said = os.strerror(ctypes.get_errno())
            raise MachineError(f"a tensor of {self._size} bytes cannot be mapped into memory: {said}")
        return found

    def __del__(self) -> None:
        if hasattr(self, "_start"):
            self._system.munmap(self._start, self._size)


VERSION = 1
ADDRESSES = 1 << 47
"""The size of a process's address space in bytes, used as a limit on a tensor's number of elements."""


@dataclass(frozen=True, eq=False)
class CaseFile:
    """The contents of a case file: a case's name and digest, its op, and the bytes of each root by name."""

    name: str
    digest: str
    op: Op
    inputs: Mapping[str, Bytes]


class Named(Protocol):
    """The parts of a case that a case file contains."""

    @property
    def name(self) -> str:
        """The name of the case."""

    @property
    def digest(self) -> str:
        """The digest of the case, see `scenario.Case`."""

    @property
    def op(self) -> Op:
        """The op of the case."""


def write_case(case: Named, inputs: Mapping[str, Bytes], path: Path) -> None:
    """Write a case file, completely or not at all; `inputs` maps each root's name to its bytes."""
    write_gguf(path, case_fields(case.name, case.digest, case.op), case_tensors(case.op, inputs))


def case_fields(name: str, digest: str, op: Op) -> dict[str, Field]:
    """The fields of a case file."""
    fields = {
        "fattn.version": u32(VERSION),
        "fattn.case": string(name),
        "fattn.digest": string(digest),
        "fattn.scale": f32(op.params.scale),
        "fattn.max_bias": f32(op.params.max_bias),
        "fattn.logit_softcap": f32(op.params.logit_softcap),
        "fattn.prec": i32(op.params.prec),
        "fattn.n_kv_max": i32(op.params.n_kv_max),
    }
    for tensor, view in op.tensors.items():
        fields[f"fattn.{tensor}.root"] = string(view.root)
        fields[f"fattn.{tensor}.ne"] = array(GGUFValueType.INT64, view.ne)
        fields[f"fattn.{tensor}.nb"] = array(GGUFValueType.UINT64, view.nb)
        fields[f"fattn.{tensor}.offset"] = u64(view.offset)
    for root in op.roots.values():
        if root.period is not None:
            fields[f"fattn.root.{root.name}.ne"] = array(GGUFValueType.INT64, root.ne)
    return fields


def case_tensors(op: Op, inputs: Mapping[str, Bytes]) -> dict[str, TensorData]:
    """The tensors of a case file: the roots, or one period of each root that repeats."""
    stored = {name: root.stored for name, root in op.roots.items()}
    return {name: TensorData(root.type, root.ne, inputs[name][: root.nbytes]) for name, root in stored.items()}


def share(tensors: dict[str, TensorData], blocks: QuantBlocks) -> dict[str, Field]:
    """Move large tensors to the file of blocks; returns the fields that replace them."""
    fields: dict[str, Field] = {}
    for name in [name for name, tensor in tensors.items() if tensor.data.size > BLOCK]:
        tensor = tensors.pop(name)
        fields[f"fattn.shared.{name}.type"] = string(tensor.type)
        fields[f"fattn.shared.{name}.ne"] = array(GGUFValueType.INT64, tensor.ne)
        fields[f"fattn.shared.{name}.blocks"] = array(GGUFValueType.UINT32, blocks.add(tensor.data))
    return fields


def read_case(path: Path) -> CaseFile:
    """Read a case file; the bytes are mapped from the file, read-only."""
    return case_of(read_gguf(path))


def case_of(file: GgufFile) -> CaseFile:
    """The case in a case file or a capture."""
    if file.fields.get("fattn.version") != VERSION:
        found = file.fields.get("fattn.version", "no such key")
        raise InputError(f"{file.path}: not a fattn-probe case file (fattn.version: {found}, expected {VERSION})")
    names = [name for name in ("Q", "K", "V", "mask", "sinks") if f"fattn.{name}.root" in file.fields]
    # The tensors of a case file, including those whose bytes are in the file of blocks.
    tensors = dict(file.tensors)
    for key in file.section("fattn.shared."):
        name, _, what = key.rpartition(".")
        if what == "blocks":
            type, ne = (
                _type(file, name, file.one(f"fattn.shared.{name}.type", str)),
                _ne(file, f"fattn.shared.{name}.ne"),
            )
            numbers = file.several(f"fattn.shared.{key}", int)
            tensors[name] = TensorData(type, ne, read_blocks(file.path, numbers, Root(name, type, ne).nbytes))
    views = {name: _view(file, tensors, name) for name in names}
    roots = {}
    for name in {view.root: None for view in views.values()}:
        tensor, key = tensors[name], f"fattn.root.{name}.ne"
        repeats = key in file.fields
        ne, period = (_ne(file, key), tensor.data.size) if repeats else (tensor.ne, None)
        roots[name] = Root(name, tensor.type, ne, period)
    params = Params(
        scale=file.one("fattn.scale", float),
        max_bias=file.one("fattn.max_bias", float),
        logit_softcap=file.one("fattn.logit_softcap", float),
        prec=file.one("fattn.prec", int),
        n_kv_max=file.one("fattn.n_kv_max", int),
    )
    inputs = {name: whole(root, tensors[name].data) for name, root in roots.items()}
    case, digest = file.one("fattn.case", str), file.one("fattn.digest", str)
    return CaseFile(case, digest, Op(params, views, roots), inputs)


def _ne(file: GgufFile, key: str) -> Ne:
    ne0, ne1, ne2, ne3 = found = file.several(key, int, 4)
    if min(found) < 1 or math.prod(found) >= ADDRESSES:
        raise InputError(
            f"{file.path}: {key} is {found}, expected sizes of at least 1 and a tensor that fits in the address space"
        )
    return ne0, ne1, ne2, ne3


def _type(file: GgufFile, name: str, type: str) -> str:
    if type not in TYPE_NAMES:
        raise InputError(f"{file.path}: {name} has type {type}, allowed: {', '.join(TYPE_NAMES)}")
    return type


def _view(file: GgufFile, tensors: Mapping[str, TensorData], name: str) -> TensorView:
    root = file.one(f"fattn.{name}.root", str)
    if root not in tensors:
        raise InputError(f"{file.path}: there is no tensor {root}, the root of {name}")
    nb0, nb1, nb2, nb3 = file.several(f"fattn.{name}.nb", int, 4)
    return TensorView(
        name=name,
        type=_type(file, name, tensors[root].type),
        root=root,
        ne=_ne(file, f"fattn.{name}.ne"),
        nb=(nb0, nb1, nb2, nb3),
        offset=file.one(f"fattn.{name}.offset", int),
    )
