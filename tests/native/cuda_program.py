"""Small CUDA programs, compiled for the simulator as llama.cpp's sources are."""

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import fattn_probe
from fattn_probe.build.flags import Flags
from fattn_probe.build.key import BuildRequest
from fattn_probe.build.overlay import NATIVE, known_ptx, native_files
from fattn_probe.build.rewrite import rewrite
from fattn_probe.build.toolchain import find_toolchain
from fattn_probe.device import load_devices
from fattn_probe.process import Completed
from fattn_probe.run.execute import symbolised
from fattn_probe.run.outcome import checker_fault
from fattn_probe.run.simulator import Simulation

FLAVOURS = ("release", "check")
SANITIZED = "sanitized"
FIXED = Simulation(threads=1)
PACKAGE = Path(fattn_probe.__file__).parent  # native/ lies here, as in a build folder
# The simulator's files that contain this are recompiled for each flavour.
MARKS = {"check": "check.h", SANITIZED: "__SANITIZE_ADDRESS__"}


def flags(flavour, arch="90"):
    sanitize = ("address", "undefined") if flavour == SANITIZED else ()
    nothing: Any = SimpleNamespace(quant_defines=())
    request = BuildRequest(nothing, "sim", "check" if flavour == "check" else "release", arch=arch, sanitize=sanitize)
    return Flags(request, find_toolchain("sim"), nothing)


def compile_object(command, source, target):
    subprocess.run([*command, "-c", source, "-o", target], cwd=PACKAGE, check=True)
    return target


@dataclass(frozen=True)
class Compiler:
    """Compiles programs; the simulator's own objects are compiled once, or once per flavour if it matters."""

    folder: Path

    def runtime(self, flavour):
        """(source, object) of the simulator's own files."""
        for name in native_files().sim:
            differs = flavour in MARKS and MARKS[flavour] in (NATIVE / name).read_text()
            mark = f"{flavour}-" if differs else ""
            yield name, self.folder / f"{mark}{Path(name).name}.o"

    def prepare(self, programs):
        """Compile the simulator and programs, (name, flavour) -> text, two compiles at a time."""
        jobs: dict[Path, tuple[list[str], str | Path]] = {}
        for (name, flavour), text in programs.items():
            source = self.folder / f"{name}.cu"
            source.write_text(rewrite(text, str(source), known_ptx()).text)
            jobs[self.folder / f"{flavour}-{name}.o"] = (flags(flavour).sim(), source)
        for flavour in ("release", *MARKS):
            for name, target in self.runtime(flavour):
                jobs.setdefault(target, (flags(flavour).sim_native(name), f"native/{name}"))
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda job: compile_object(job[1][0], job[1][1], job[0]), jobs.items()))
        return {(name, flavour): self.link(name, flavour, text) for (name, flavour), text in programs.items()}

    def link(self, name, flavour, text):
        objects = [self.folder / f"{flavour}-{name}.o", *(target for _, target in self.runtime(flavour))]
        path = self.folder / f"{name}-{flavour}"
        subprocess.run([*flags(flavour).link(f"bin/{name}"), *objects, "-lpthread", "-ldl", "-o", path], check=True)
        return Program(path, text)


@dataclass(frozen=True)
class Program:
    """A compiled program and the text of its source."""

    path: Path
    text: str

    def line(self, marker):
        """The number of the line that ends in `// marker`."""
        (number,) = [n for n, line in enumerate(self.text.splitlines(), 1) if line.endswith(f"// {marker}")]
        return number

    @property
    def rewritten(self):
        """The program as g++ compiles it."""
        return rewrite(self.text, self.path.name, known_ptx()).text

    def run(self, *words, stdin=b"", simulation=FIXED, portable=False, in_step=False, **variables):
        switches = {"FATTN_PROBE_SIM_PORTABLE": str(int(portable)), "FATTN_PROBE_SIM_IN_STEP": str(int(in_step))}
        env = simulation.env(load_devices()["h200"], "") | switches | variables
        done = subprocess.run(
            [self.path, *map(str, words)], input=stdin, env=env, capture_output=True, timeout=60, check=False
        )
        return Completed((str(self.path),), done.returncode, done.stdout, done.stderr.decode(), 0.0)

    def output(self, *words, stdin=b"", dtype=np.uint32, **options):
        """What the program writes on stdout, as an array; `options` are those of `run`."""
        done = self.run(*words, stdin=np.ascontiguousarray(stdin).tobytes(), **options)
        assert done.code == 0, done.stderr
        return np.frombuffer(done.stdout, dtype)

    def fault(self, *words, **options):
        """What the checker found, its frames symbolised; `options` are those of `run`."""
        done = self.run(*words, **options)
        fault = checker_fault(done)
        assert fault is not None, (done.code, done.stderr)
        return symbolised(fault)


def place(frame):
    """(function, line) of a symbolised frame."""
    match = re.fullmatch(r"(.*) at \S+:(\d+)(?: \(discriminator \d+\))?", frame)
    return match[1], int(match[2])
