"""Memory that the files of a folder share: equal blocks are stored once, in a separate file.

A model's cache changes by a few rows from step to step, and all layers of a step have the same mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fattn_probe.base.arrays import Bytes
from fattn_probe.base.digest import hexdigest
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import check_readable, writing

BLOCK = 1 << 14
"""Bytes of a block: some rows of a cache."""
FILE = "blocks"


@dataclass
class QuantBlocks:
    """The file with a folder's blocks; new blocks are appended.

    The first blocks replace an old file.
    """

    folder: Path
    known: dict[str, int] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / FILE

    @property
    def nbytes(self) -> int:
        """Its size."""
        return len(self.known) * BLOCK

    def add(self, data: Bytes) -> list[int]:
        """Store bytes (1-D); returns the numbers of their blocks. The last block is padded with zeros."""
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
    """The first `size` bytes (1-D) of the blocks with these numbers in the folder of a file that shares them.

    InputError if the file of blocks is missing or too short, or if these numbers do not match `size`.
    """
    if len(numbers) != -(-size // BLOCK) or min(numbers, default=0) < 0:
        raise InputError(f"{of}: {len(numbers)} numbers of blocks do not store {size} bytes")
    path = of.parent / FILE
    if not path.is_file():
        raise InputError(f"{of}: a part of it is in {FILE}, a file that all ops of its folder share; it is missing")
    check_readable(path, "the blocks of captured ops")
    stored = np.memmap(path, np.uint8, "r")
    if (max(numbers) + 1) * BLOCK > stored.size:
        raise InputError(f"{path}: ends before a block of {of.name}")
    return stored[: stored.size // BLOCK * BLOCK].reshape(-1, BLOCK)[list(numbers)].reshape(-1)[:size]
