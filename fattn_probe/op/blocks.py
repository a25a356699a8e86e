"""Memory that the files of a folder share: its blocks are stored once, in one file beside them.

A model's cache changes by a few rows from step to step, and all layers of a step have one mask.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fattn_probe.arrays import Bytes
from fattn_probe.errors import InputError
from fattn_probe.files import check_readable, writing

BLOCK = 1 << 14
"""Bytes: some rows of a cache."""
FILE = "blocks"


@dataclass
class Blocks:
    """The file of a folder's blocks, to which blocks are appended that it does not have.

    The first ones take the place of an old file.
    """

    folder: Path
    known: dict[bytes, int] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / FILE

    @property
    def nbytes(self) -> int:
        """Its size."""
        return len(self.known) * BLOCK

    def add(self, data: Bytes) -> list[int]:
        """Store bytes (1-D); returns the numbers of their blocks. The last one is filled up with zeros."""
        padded = np.zeros(-(-data.size // BLOCK) * BLOCK, np.uint8)
        padded[: data.size] = data
        numbers, fresh = [], []
        for block in padded.reshape(-1, BLOCK):
            digest = hashlib.blake2b(block.data, digest_size=16).digest()
            if digest not in self.known:
                self.known[digest] = len(self.known)
                fresh.append(block)
            numbers.append(self.known[digest])
        with writing(self.path), self.path.open("wb" if len(self.known) == len(fresh) else "ab") as file:
            for block in fresh:
                file.write(block.data)
        return numbers


def read_blocks(of: Path, numbers: Sequence[int], size: int) -> Bytes:
    """The first `size` bytes (1-D) of the blocks with these numbers in the folder of a file that shares them.

    InputError if the file of blocks is not there or too short.
    """
    path = of.parent / FILE
    if not path.is_file():
        raise InputError(f"{of}: a part of it is in {FILE}, a file that all ops of its folder share; it is not there")
    check_readable(path, "the blocks of captured ops")
    stored = np.memmap(path, np.uint8, "r")
    if (max(numbers) + 1) * BLOCK > stored.size or size > len(numbers) * BLOCK:
        raise InputError(f"{path}: ends before a block of {of.name}")
    return stored[: stored.size // BLOCK * BLOCK].reshape(-1, BLOCK)[list(numbers)].reshape(-1)[:size]
