"""GGUF files as plain records: typed fields and tensors as raw bytes."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from fattn_probe.base.arrays import Bytes
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import check_readable, replacing, writing
from fattn_probe.cases.op.op import Ne

ARCHITECTURE = "fattn-probe"

T = TypeVar("T", str, int, float)
KINDS = {str: "text", int: "an integer", float: "a number"}


@dataclass(frozen=True)
class Field:
    """One typed value of a GGUF file; an array has the type of its elements."""

    type: GGUFValueType
    value: Any
    array: bool = False


@dataclass(frozen=True, eq=False)
class TensorData:
    """A contiguous tensor: ggml type name, `ne`, and its bytes in memory order (uint8, 1-D)."""

    type: str
    ne: Ne
    data: Bytes


@dataclass(frozen=True, eq=False)
class GgufFile:
    """The contents of a GGUF file; tensor bytes are mapped from the file, not copied."""

    path: Path
    fields: Mapping[str, Any]
    tensors: Mapping[str, TensorData]

    def one(self, key: str, kind: type[T]) -> T:
        """The value of a key; InputError if it is missing or has a different type."""
        if key not in self.fields:
            raise InputError(f"{self.path}: the key {key} is missing")
        return self._of_kind(key, self.fields[key], kind)

    def several(self, key: str, kind: type[T], number: int | None = None) -> tuple[T, ...]:
        """The elements of an array, empty if the key is missing; InputError for wrong types or a wrong `number`."""
        found = self.fields.get(key, [])
        if not isinstance(found, list) or number not in (None, len(found)):
            raise InputError(f"{self.path}: {key} is {found!r:.60}, expected {number or 'an array of'} elements")
        return tuple(self._of_kind(key, value, kind) for value in found)

    def _of_kind(self, key: str, value: object, kind: type[T]) -> T:
        if type(value) is not kind:  # a bool does not count as a number
            raise InputError(f"{self.path}: {key} has {value!r:.60}, expected {KINDS[kind]}")
        return value

    def section(self, prefix: str) -> dict[str, Any]:
        """The fields whose keys start with `prefix`; the result has the keys without it."""
        return {key.removeprefix(prefix): value for key, value in self.fields.items() if key.startswith(prefix)}


string, f32, i32, u32, u64 = (
    partial(Field, GGUFValueType[name]) for name in ("STRING", "FLOAT32", "INT32", "UINT32", "UINT64")
)
"""Constructors of fields with one value of the type."""


def array(type: GGUFValueType, values: Sequence[Any]) -> Field:
    """An array field; GGUF has no empty arrays, so `write_gguf` leaves out an empty one."""
    return Field(type, list(values), array=True)


def ggml_type(name: str) -> GGMLQuantizationType:
    """The gguf enumerator of a ggml type name such as `q8_0`."""
    try:
        return GGMLQuantizationType[name.upper()]
    except KeyError as error:
        raise InputError(f"{name} is not a ggml type of the installed gguf package") from error


def type_name(type: GGMLQuantizationType) -> str:
    """The name from ggml_type_name: lower-case, except the K of the K-quants (`q4_K`)."""
    name = type.name.lower()
    return name[:-1] + "K" if name.endswith("_k") else name


def byte_shape(type: GGMLQuantizationType, ne: Ne) -> tuple[int, ...]:
    """The shape of a tensor's bytes, outermost dimension first."""
    block, size = GGML_QUANT_SIZES[type]
    if ne[0] % block:
        raise InputError(f"ne[0] = {ne[0]} is not a multiple of {block}, the block of {type_name(type)}")
    return (ne[3], ne[2], ne[1], ne[0] // block * size)


def write_gguf(path: Path, fields: Mapping[str, Field], tensors: Mapping[str, TensorData]) -> None:
    """Write a GGUF file, completely or not at all."""
    for name, tensor in tensors.items():
        if tensor.data.nbytes != int(np.prod(byte_shape(ggml_type(tensor.type), tensor.ne))):
            raise InputError(f"{name}: {tensor.data.nbytes} bytes for a {tensor.type} tensor of ne {tensor.ne}")
    with writing(path), replacing(path) as part:
        writer = _header(part, fields, {name: (tensor.type, tensor.ne) for name, tensor in tensors.items()})
        try:
            for tensor in tensors.values():
                writer.write_tensor_data(tensor.data)
        finally:
            writer.close()


def allocate_gguf(path: Path, fields: Mapping[str, Field], roots: Mapping[str, tuple[str, Ne]]) -> dict[str, Bytes]:
    """Create a file of zero-filled tensors, given by type and `ne`; returns their bytes as writable mappings."""
    places, end = _places(path, fields, roots)
    with writing(path), path.open("r+b") as file:  # reserve the space now: if the disk were full,
        os.posix_fallocate(file.fileno(), 0, end)  # a later write would kill the process
    return {name: np.memmap(path, np.uint8, "r+", start, (size,)) for name, (start, size) in places.items()}


def write_hollow(path: Path, fields: Mapping[str, Field], roots: Mapping[str, tuple[str, Ne]]) -> None:
    """Create a sparse file of zero-filled tensors, which takes up almost no disk space."""
    os.truncate(path, _places(path, fields, roots)[1])


def _places(
    path: Path, fields: Mapping[str, Field], roots: Mapping[str, tuple[str, Ne]]
) -> tuple[dict[str, tuple[int, int]], int]:
    """Write a file's header; returns the start and size of each tensor, and the length of the whole file."""
    writer = _header(path, fields, roots)
    end, places = path.stat().st_size, {}
    for name, (type, ne) in roots.items():
        start, size = writer.ggml_pad(end, writer.data_alignment), int(np.prod(byte_shape(ggml_type(type), ne)))
        places[name] = start, size
        end = start + size
    writer.close()
    return places, writer.ggml_pad(end, writer.data_alignment)


def _header(path: Path, fields: Mapping[str, Field], roots: Mapping[str, tuple[str, Ne]]) -> GGUFWriter:
    """Write a file up to the tensors' bytes; the writer stays open."""
    writer = GGUFWriter(path, ARCHITECTURE)
    for key, field in fields.items():
        if not field.array:
            writer.add_key_value(key, field.value, field.type)
        elif field.value:
            writer.add_key_value(key, field.value, GGUFValueType.ARRAY, sub_type=field.type)
    for name, (type_, ne) in roots.items():
        type, shape = ggml_type(type_), byte_shape(ggml_type(type_), ne)
        writer.add_tensor_info(name, shape, np.dtype(np.uint8), int(np.prod(shape)), raw_dtype=type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    return writer


MOST_ELEMENTS = 1_000_000
"""Limit on array elements, keys and tensors: four times the largest vocabulary; each element is a Python object."""


BAD_BYTES = (ValueError, IndexError, KeyError, TypeError, OSError, RecursionError)
"""The exceptions that GGUFReader raises on damaged files."""


class BoundedReader(GGUFReader):
    """A GGUFReader with limits; GGUFReader itself does not stop at the end of a truncated file."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:  # noqa: ANN401
        if raw_type == GGUFValueType.ARRAY:
            _bounded(int(self._get(orig_offs + 4, np.uint64)[0]), "elements of an array")
        return super()._get_field_parts(orig_offs, raw_type)

    def _build_fields(self, offs: int, count: int) -> int:
        return int(super()._build_fields(offs, _bounded(int(count), "keys")))

    def _build_tensor_info(self, offs: int, count: int) -> Any:  # noqa: ANN401
        return super()._build_tensor_info(offs, _bounded(int(count), "tensors"))

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:  # noqa: ANN401
        if int(offset) + int(count) * np.dtype(dtype).itemsize > len(self.data):
            raise IndexError("unexpected end of file")
        return super()._get(offset, dtype, count, override_order)


def _bounded(number: int, what: str) -> int:
    if number > MOST_ELEMENTS:
        raise ValueError(f"{number} {what}, allowed: {MOST_ELEMENTS}")
    return number


@contextmanager
def reading(path: Path) -> Iterator[BoundedReader]:
    """A reader for a GGUF file; InputError if the file is truncated or not GGUF."""
    check_readable(path, "the GGUF file")
    try:
        yield BoundedReader(path)
    except BAD_BYTES as error:
        raise InputError(f"{path}: truncated, or not a GGUF file ({error})") from error


def read_gguf(path: Path) -> GgufFile:
    """Read a file written by this package or its runner; InputError if it is truncated or not a GGUF file."""
    with reading(path) as reader:
        fields = {name: field.contents() for name, field in reader.fields.items()}
        tensors = {}
        for found in reader.tensors:
            ne0, ne1, ne2, ne3 = [*(int(n) for n in found.shape), 1, 1, 1, 1][:4]
            data = found.data.reshape(-1).view(np.uint8)
            tensors[found.name] = TensorData(type_name(found.tensor_type), (ne0, ne1, ne2, ne3), data)
    return GgufFile(path, fields, tensors)
