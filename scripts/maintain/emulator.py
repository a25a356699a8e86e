"""Run AMD machine code without an AMD GPU: a code object from clang runs on the emulator from tinygrad's tests.

tinygrad generates the code for each instruction from AMD's own pseudocode, and tests it on hardware. Its emulator is
written for the output of tinygrad's compiler. This module adds what clang's code needs: a kernel's initial registers
(from its descriptor), jumps, and instructions for caches and timing, which do nothing here. tinygrad computes the
values of the instructions, with the corrections in tinygrad.patch. The exceptions are powers of two and, if the caller
asks for it, sums (amd_sums.py).
"""

import ctypes
import importlib
import mmap
import os
import re
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import yaml

from fattn_probe.base.arrays import Bytes
from fattn_probe.base.errors import InputError
from fattn_probe.base.process import run

TINYGRAD = "https://github.com/tinygrad/tinygrad"
COMMIT = "a9069c177a"
PATCH = Path(__file__).with_name("tinygrad.patch")
FAMILY = {"gfx942": "cdna", "gfx1100": "rdna3", "gfx1201": "rdna4"}
"""The emulator's instruction set for each architecture for which the attention kernels are compiled."""
NOTHING = re.compile(
    r"buffer_(gl[01]_inv|inv|wbl2)|global_(inv|wb|wbinv)|v_nop"
    r"|s_(barrier_signal|clause|delay_alu|nop|sendmsg|set_inst_prefetch_distance|setprio|sleep|wait(cnt)?(_\w+)?)"
)
DISASSEMBLED = re.compile(r"^\t(.*?) *// (\w+): (.*)$", re.MULTILINE)
PAIR = re.compile(r"\bv\[(\d+):(\d+)\]")
SCALARS = re.compile(r"\bs\[(\d+):\d+\]")
DESTINATION = re.compile(r"\S+ v\[?(\d+)(?::(\d+)\])?,")
EXP = re.compile(r"v_(?:exp_f32_e32|s_exp_f32) ([vs])(\d+), [vs](\d+)")
EXEC = 126
WORD = re.compile(r"\b[0-9A-F]{8}\b")
BARRIERS = frozenset({"s_barrier", "s_barrier_wait"})
APERTURES = {"src_private_base": 0xF0000001, "src_shared_base": 0xF0000002}
"""High words of generic addresses in a thread's scratch and a block's LDS; this process has no memory there."""
PC = 256
"""Index of the program counter in the emulator's scalar registers, in two words."""
END = (1 << 64) - 1
LDS = 1 << 16
# From the kernel descriptor (LLVM's AMDGPU usage guide): the pairs of scalar registers that a kernel asks for, in order
USER_REGISTERS = (
    (1, "buffer", 4),
    (2, "packet", 2),
    (4, "queue", 2),
    (8, "kernarg", 2),
    (16, "id", 2),
    (32, "flat", 2),
)
PRIVATE_SIZE = 64


Registers = npt.NDArray[np.uint32]
"""The vector registers of a wave, [register][lane]."""
Executes = Callable[[str, memoryview, Registers], bool]
"""Executes an instruction (LLVM's text) on scalar and vector registers; False if it does not handle the instruction."""


class WaveState(Protocol):
    """The registers of a wave, in the emulator's form."""

    sgpr_buf: Any
    vgpr_buf: Any
    accvgpr_buf: Any
    _sgpr_mv: memoryview
    _vgpr_mv: memoryview


@dataclass(frozen=True)
class Instruction:
    """A decoded instruction: its text as LLVM writes it, its size in bytes, and the emulator's function."""

    text: str
    size: int
    function: Any = None
    buffers: tuple[int, ...] = ()

    @property
    def mnemonic(self) -> str:
        """The first word."""
        return self.text.split(maxsplit=1)[0]


def load_tinygrad(folder: Path) -> ModuleType:
    """tinygrad's emulator with this project's corrections; clones tinygrad if it is missing."""
    if not folder.exists():
        run(["git", "clone", "-q", TINYGRAD, folder])
        run(["git", "-C", folder, "checkout", "-q", COMMIT])
        run(["git", "-C", folder, "apply", PATCH])
    os.environ.setdefault("CC", "clang-19")
    os.environ.setdefault("CACHEDB", str(folder / "instructions.db"))
    sys.path.insert(0, str(folder))
    return importlib.import_module("test.mockgpu.amd.emu")


def memory(size: int) -> tuple[mmap.mmap, int]:
    """Zeroed memory, and its address; the emulator's global memory is the memory of this process."""
    area = mmap.mmap(-1, size)
    return area, ctypes.addressof(ctypes.c_char.from_buffer(area))


class CodeObject:
    """An ELF file from clang in memory, with the metadata of its kernels."""

    def __init__(self, path: Path, gfx: str) -> None:
        self.gfx, raw = gfx, path.read_bytes()
        at, size, count = *struct.unpack_from("<Q", raw, 32), *struct.unpack_from("<HH", raw, 54)
        headers = [struct.unpack_from("<IIQQQQQQ", raw, at + index * size) for index in range(count)]
        loads = [header for header in headers if header[0] == 1]
        self.memory, self.base = memory(max(address + length for _, _, _, address, _, _, length, _ in loads))
        for _, _, offset, address, _, length, _, _ in loads:
            self.memory[address : address + length] = raw[offset : offset + length]
        notes = run(["llvm-readelf-19", "--notes", path]).stdout
        document = notes[notes.index("---") : notes.index("\n...")]
        self.kernels = {kernel[".name"]: kernel for kernel in yaml.safe_load(document)["amdhsa.kernels"]}
        symbols = run(["llvm-readelf-19", "-s", "-W", path]).stdout
        self.symbols = {name: int(value, 16) for value, name in re.findall(r"\d+: ([0-9a-f]{16}) .* (\S+)\n", symbols)}
        relocations = run(["llvm-readelf-19", "-r", "-W", path]).stdout
        for place, addend in re.findall(r"^(\w+) .* R_AMDGPU_RELATIVE64 +(\w+)", relocations, re.MULTILINE):
            struct.pack_into("<Q", self.memory, int(place, 16), self.base + int(addend, 16))
        self.instructions = {}
        for text, place, words in DISASSEMBLED.findall(run(["llvm-objdump-19", "-d", path]).stdout):
            self.instructions[self.base + int(place, 16)] = Instruction(text, 4 * len(WORD.findall(words)))


@dataclass(frozen=True)
class Launch:
    """One launch: a kernel of a code object, its geometry, dynamic LDS in bytes, and its arguments as bytes."""

    code: CodeObject
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: Sequence[bytes]
    dynamic: int = 0

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The kernel's metadata."""
        found: Mapping[str, Any] = self.code.kernels[self.kernel]
        return found

    def kernarg(self) -> bytes:
        """The memory of the arguments: the kernel's own arguments, then those that the runtime adds."""
        sizes = dict(zip(("x", "y", "z"), zip(self.grid, self.block, strict=True), strict=True))
        hidden = {"hidden_grid_dims": 3, "hidden_dynamic_lds_size": self.dynamic}
        for axis, (blocks, threads) in sizes.items():
            hidden |= {f"hidden_block_count_{axis}": blocks, f"hidden_group_size_{axis}": threads}
        filled, own = bytearray(4096), iter(self.arguments)
        for argument in self.metadata[".args"]:
            kind, offset, size = argument[".value_kind"], argument[".offset"], argument[".size"]
            value = hidden.get(kind, 0).to_bytes(size, "little") if kind.startswith("hidden_") else next(own)
            if len(value) != size:
                raise InputError(f"{self.kernel}: argument at {offset} has {size} bytes, not {len(value)}")
            filled[offset : offset + size] = value
        if next(own, None) is not None:
            raise InputError(f"{self.kernel}: more arguments than the kernel has")
        return bytes(filled)


class Emulator:
    """The emulator; compiled instructions are kept in tinygrad's folder.

    tinygrad executes only the instructions that no function in `own` executes.
    """

    def __init__(self, tinygrad: Path, own: Sequence[Executes]) -> None:
        self.emu, self.own = load_tinygrad(tinygrad), own

    def run(self, launch: Launch) -> int:
        """Run all blocks of a launch, one after another; returns the number of instructions."""
        code, metadata = launch.code, launch.metadata
        family = FAMILY[code.gfx]
        descriptor = code.symbols[metadata[".symbol"]]
        fixed, private = struct.unpack_from("<II", code.memory, descriptor)
        (offset,) = struct.unpack_from("<q", code.memory, descriptor + 16)
        _, _, rsrc2, properties, preload = struct.unpack_from("<IIIHH", code.memory, descriptor + 44)
        if fixed + launch.dynamic > LDS:
            raise InputError(f"{launch.kernel}: {fixed + launch.dynamic} bytes of LDS, at most {LDS}")
        arguments, kernarg = memory(4096)
        arguments[:] = launch.kernarg()
        packet, dispatched = memory(4096)  # HSA's dispatch packet
        threads_of_grid = (blocks * size for blocks, size in zip(launch.grid, launch.block, strict=True))
        struct.pack_into(
            "<6H3I2I", packet, 0, 0, 3, *launch.block, 0, *threads_of_grid, private, fixed + launch.dynamic
        )
        wave, threads, steps = metadata[".wavefront_size"], int(np.prod(launch.block)), 0
        if wave != self.emu._wave_size(family):
            raise InputError(f"{launch.kernel}: waves of {wave}, which the emulator does not support for {code.gfx}")
        pointers = {"kernarg": kernarg, "packet": dispatched}
        user = list(self._user_registers(launch, properties, preload, pointers, private))
        lds = np.zeros(LDS, np.uint8)
        for z, y, x in np.ndindex(launch.grid[::-1]):
            lds[:] = 0
            waves = []
            for first in range(0, threads, wave):
                scratch = np.zeros(max(private, 1) * wave, np.uint8)
                entry, block = code.base + descriptor + offset, (int(x), int(y), int(z))
                state = self.emu._init_wave(
                    entry, first, threads, *launch.block, kernarg, rsrc2, private, family, *block, user, wave
                )
                waves.append(self._wave(code, family, state, Private(lds, scratch, private, wave)))
            running = waves
            while running:  # run each wave until its next barrier
                done = [next(one, None) for one in running]
                running = [one for one, count in zip(running, done, strict=True) if count is not None]
                steps += sum(filter(None, done))
        return steps

    def _user_registers(
        self, launch: Launch, properties: int, preload: int, pointers: Mapping[str, int], private: int
    ) -> Iterator[int]:
        for bit, name, count in USER_REGISTERS:
            if properties & bit:
                at = pointers.get(name, 0)
                yield from (at & 0xFFFFFFFF, at >> 32, *(0,) * (count - 2))
        if properties & PRIVATE_SIZE:
            yield private
        words = np.frombuffer(launch.kernarg(), np.uint32)
        yield from map(int, words[preload >> 7 :][: preload & 0x7F])

    def _wave(self, code: CodeObject, family: str, state: WaveState, private: "Private") -> Iterator[int]:
        """Run a wave; yields the number of instructions at each barrier, and at its end."""
        places = [buffer._buf.va_addr for buffer in (state.sgpr_buf, state.vgpr_buf)]
        places += [0, private.lds.ctypes.data, private.scratch.ctypes.data, state.accvgpr_buf._buf.va_addr]
        buffers, scalars, steps = [ctypes.c_uint64(place) for place in places], state._sgpr_mv, 0
        vectors = np.frombuffer(state._vgpr_mv, np.uint32).reshape(-1, private.wave)
        while (at := scalars[PC] | scalars[PC + 1] << 32) != END:
            steps += 1
            item = code.instructions[at]
            if item.function is None and (to := jump(item, at, scalars)) is not None:
                scalars[PC], scalars[PC + 1] = to & 0xFFFFFFFF, to >> 32
                continue
            if item.function is None:
                (program, runtime), _ = self.emu._decode_at(at, family)
                item = Instruction(item.text, item.size, runtime.fxn, tuple(program.arg.globals))
                code.instructions[at] = item
            if any(executes(item.text, scalars, vectors) for executes in self.own):
                scalars[PC], scalars[PC + 1] = (at + item.size) & 0xFFFFFFFF, (at + item.size) >> 32
                continue
            restored = private.addressed(item, vectors) if item.text.startswith("flat_") else {}
            item.function(*(buffers[index] for index in item.buffers))
            for register, values in restored.items():
                vectors[register] = values
            if item.mnemonic in BARRIERS:
                yield steps
                steps = 0
        yield steps


@dataclass(frozen=True)
class Private:
    """A wave's memory without global addresses: the block's LDS, and the wave's scratch of `size` bytes per thread."""

    lds: Bytes
    scratch: Bytes
    size: int
    wave: int

    def addressed(self, item: Instruction, vectors: Registers) -> dict[int, Registers]:
        """Replace a load's generic addresses with addresses in this process; returns the registers to restore."""
        if not item.text.startswith("flat_load_"):
            raise InputError(f"the emulator does not support {item.text} in LDS or scratch")
        first, last = (int(number) for number in PAIR.findall(item.text)[-1])
        addresses = vectors[first].astype(np.uint64), vectors[last]
        bases = {
            "src_private_base": self.scratch.ctypes.data + self.size * np.arange(self.wave, dtype=np.uint64),
            "src_shared_base": np.uint64(self.lds.ctypes.data),
        }
        found = addresses[0] | addresses[1].astype(np.uint64) << np.uint64(32)
        for name, high in APERTURES.items():
            found = np.where(addresses[1] == high, bases[name] + addresses[0], found)
        destination = DESTINATION.match(item.text)
        written = range(int(destination[1]), int(destination[2] or destination[1]) + 1) if destination else ()
        kept = {register: vectors[register].copy() for register in (first, last) if register not in written}
        vectors[first], vectors[last] = found & np.uint64(0xFFFFFFFF), found >> np.uint64(32)
        return kept


def powers(text: str, scalars: memoryview, vectors: Registers) -> bool:
    """Compute v_exp_f32 and v_s_exp_f32, correctly rounded; False for other instructions.

    AMD only states that the hardware's result is within 1 ulp; tinygrad computes a different polynomial.
    """
    match = EXP.fullmatch(text)
    if match is None:
        return False
    kind, to, source = match[1], int(match[2]), int(match[3])
    bits = vectors[source] if kind == "v" else np.array([scalars[source]], np.uint32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        found = np.exp2(bits.view(np.float32).astype(np.float64)).astype(np.float32)
    found[np.abs(found) < np.finfo(np.float32).tiny] = 0  # the hardware has no denormal results
    if kind == "v":
        active = active_lanes(scalars, vectors)
        vectors[to][active] = found.view(np.uint32)[active]
    else:
        scalars[to] = int(found.view(np.uint32)[0])
    return True


def active_lanes(scalars: memoryview, vectors: Registers) -> npt.NDArray[np.bool_]:
    """The lanes of a wave that execute an instruction."""
    lanes = np.arange(vectors.shape[1], dtype=np.uint64)
    return (np.uint64(scalars[EXEC] | scalars[EXEC + 1] << 32) >> lanes & np.uint64(1)).astype(bool)


def jump(item: Instruction, at: int, scalars: memoryview) -> int | None:
    """The position at which the program continues after a jump that the emulator lacks; None for other instructions."""
    following, mnemonic = at + item.size, item.mnemonic
    if NOTHING.fullmatch(mnemonic):
        return following
    if aperture := APERTURES.get(item.text.rpartition(" ")[2]):
        if mnemonic != "s_mov_b64":
            raise InputError(f"the emulator does not support {item.text}")
        pair = int(SCALARS.findall(item.text)[0])
        scalars[pair], scalars[pair + 1] = 0, aperture
        return following
    if mnemonic not in ("s_getpc_b64", "s_setpc_b64", "s_swappc_b64"):
        return None
    pairs = [int(first) for first in SCALARS.findall(item.text)]
    to = following if mnemonic == "s_getpc_b64" else scalars[pairs[-1]] | scalars[pairs[-1] + 1] << 32
    if mnemonic != "s_setpc_b64":
        scalars[pairs[0]], scalars[pairs[0] + 1] = following & 0xFFFFFFFF, following >> 32
    return int(to)
