"""Reproducible random numbers of the tensors' distributions."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fattn_probe.base.arrays import F32
from fattn_probe.cases.scenario.data import (
    AnyData,
    Constant,
    Extreme,
    Fa3Outliers,
    FarBelowZero,
    LargeLogits,
    Normal,
    Uniform,
)

STREAMS = {"Q": 1, "K": 2, "V": 3, "mask": 4, "sinks": 5}

FLOATS_A_STEP = 8  # float32 values per step of Philox, which makes four 64-bit numbers

UNUSED = 16  # added to a tensor's stream for the memory outside its view


@dataclass(frozen=True)
class Logits:
    """The op's scale and head size, which scale a product of Q and K to a logit."""

    scale: float
    hsk: int


class Normals(Protocol):
    """A source of uniform and normal numbers."""

    def random(self, size: tuple[int, ...], dtype: type[np.float32]) -> F32:
        """Uniform numbers in [0, 1)."""

    def standard_normal(self, size: tuple[int, ...], dtype: type[np.float32]) -> F32:
        """Standard normal numbers."""


def stream(seed: int, number: int, counter: tuple[int, int] = (0, 0), *, steps: int = 0) -> np.random.Generator:
    """The random stream of (seed, tensor, two counters): the same on every machine, independent of other streams.

    It skips the first `steps` steps of Philox, each of which gives FLOATS_A_STEP uniform float32 values.
    """
    position = np.array([steps, 0, *counter], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=np.array([seed, number], dtype=np.uint64), counter=position))


@dataclass
class Window:
    """A part of each of several runs of `length` uniform numbers, without generating the numbers before it.

    `run` is the next run; the part begins at number `first` of each run. A number is the upper 24 of 32 bits, the same
    as from Generator.random, but faster.
    """

    seed: int
    number: int
    run: int
    length: int
    first: int

    def random(self, size: tuple[int, ...], dtype: type[np.float32]) -> F32:
        """The part of the next run, with as many numbers as `size` asks for."""
        steps, beside = divmod(self.run * self.length + self.first, FLOATS_A_STEP)
        self.run += 1
        count = math.prod(size)
        numbers = stream(self.seed, self.number, steps=steps).integers(0, 2**64, (beside + count + 1) // 2, np.uint64)
        bits = numbers.astype("<u8", copy=False).view("<u4")[beside : beside + count] >> np.uint32(8)
        values = bits.astype(dtype)
        values *= np.float32(2**-24)
        return values.reshape(size)


def draw(data: AnyData, name: str, shape: tuple[int, ...], rng: Normals, logits: Logits) -> F32:
    """Random floats of a tensor's distribution, float32, any shape; a `Window` is enough for the kinds in RUNS."""
    match data:
        case Uniform():
            values = rng.random(shape, np.float32)
            values *= 2
            values -= 1
        case Normal():
            values = rng.standard_normal(shape, np.float32)
        case Constant():
            return np.full(shape, data.value, np.float32)
        case Fa3Outliers():
            chosen = rng.random(shape, np.float32) < data.probability
            values = rng.standard_normal(shape, np.float32)
            values += chosen * np.float32(data.outlier) * rng.standard_normal(shape, np.float32)
        case LargeLogits():
            width = data.logit / (logits.scale * np.sqrt(logits.hsk))
            return np.float32(width) * rng.standard_normal(shape, np.float32)
        case FarBelowZero():
            mean = np.sqrt(-data.logit / (logits.scale * logits.hsk)) * (1 if name == "Q" else -1)
            return np.float32(mean) + np.float32(data.scale) * rng.standard_normal(shape, np.float32)
        case Extreme():
            values = np.float32(data.scale) * (2 * rng.random(shape, np.float32) - 1)
            chosen = rng.random(shape, np.float32) < data.probability
            return np.where(chosen, np.copysign(np.float32(data.magnitude), values), values)
    if data.scale != 1.0:  # mean + scale * values, in float32 and in place
        values *= np.float32(data.scale)
    if data.mean != 0.0:
        values += np.float32(data.mean)
    return values


RUNS = {"constant": 0, "uniform": 1, "extreme": 2}
"""Uniform numbers per element, by kind; other kinds use normal numbers, which need a varying number of steps."""

SEVERAL_RUNS = {"fa3_outliers"}
"""Kinds that need several passes over a head's elements, so they cannot be generated row by row."""
