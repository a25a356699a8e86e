"""Small CUDA programs, compiled for the simulator as llama.cpp's sources are."""

import os
import re
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fattn_probe.base.cache import Growth, cache_dir, lock_beside
from fattn_probe.base.process import Completed
from fattn_probe.cases.device import load_devices
from fattn_probe.llama.build.flags import SIM_QUICK
from fattn_probe.llama.build.make import build_env
from fattn_probe.llama.build.ninja import run_ninja
from fattn_probe.llama.build.overlay import known_ptx, write_native
from fattn_probe.llama.build.rewrite import rewrite
from fattn_probe.llama.build.simulator_flags import SIMULATOR, SimulatorFlags
from fattn_probe.llama.build.steps import BuildStep, Plan, compile_step
from fattn_probe.llama.build.toolchain import find_toolchain
from fattn_probe.machine.run.frames import symbolised
from fattn_probe.machine.run.outcome import checker_finding
from fattn_probe.machine.run.simulator import Simulation
from tests.native import sanitizer

FLAVOURS = ("release", "check")
SANITIZED = "sanitized"
FIXED = Simulation(threads=1)


def flags(flavour, arch="90", folder=None):
    """The compiler commands of a flavour, run in `folder` if one is given."""
    sanitize = ("address", "undefined") if flavour == SANITIZED else ()
    toolchain = find_toolchain("sim")
    if folder is not None:
        toolchain = replace(toolchain, cuda_include=Path(os.path.relpath(toolchain.cuda_include, folder)))
    return SimulatorFlags(toolchain, arch, "check" if flavour == "check" else "release", sanitize)


def compile_programs(texts, flavour, arch="90", sim=SIMULATOR):
    """Compile programs, texts by file name, and link each with the simulator or `sim`, some of its files; their paths.

    It is done as in a build, in a folder as deep in the cache, so the objects of the simulator are those of builds.
    """
    folder = cache_dir() / "tests" / "-".join(filter(None, (flavour, arch, sanitizer.SANITIZER)))
    made = flags(flavour, arch, folder)
    folder.mkdir(parents=True, exist_ok=True)

    def compiled(source, command):
        return compile_step(source, f"obj/{source}.o", command, ccache=bool(made.toolchain.ccache))

    growth = Growth(folder)
    with lock_beside(folder):
        write_native(growth)
        more = (*sanitizer.flags(), *sanitizer.own_names())
        steps = [compiled(f"native/{name}", (*made.native(name), *more)) for name in sim]
        runtime = [step.output for step in steps]
        for name, text in texts.items():
            cuda = name.endswith(".cu")
            growth.write(name, rewrite(text, name, known_ptx()).text if cuda else text)
            own = compiled(name, made.device(*SIM_QUICK) if cuda else made.native(sim[0]))
            steps.append(own)
            kernels = own.output
            if sanitizer.SANITIZER:
                kernels = f"{own.output}.renamed.o"
                steps.append(BuildStep("link", kernels, (own.output,), sanitizer.renaming(own.output, kernels)))
            inputs = (kernels, *runtime)
            link = (made.toolchain.cxx, *made.sanitizers, *sanitizer.flags(), "-rdynamic", *inputs)
            program = f"bin/{Path(name).stem}"
            steps.append(BuildStep("link", program, inputs, (*link, "-lm", "-ldl", "-lpthread", "-o", program)))
        (folder / "build.ninja").write_text(Plan(tuple(steps)).render())
        run_ninja(growth, env=build_env(growth, made.toolchain, again=False))
    return [folder / "bin" / Path(name).stem for name in texts]


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

    def run(self, *words, stdin=b"", simulation=FIXED, device="h200", portable=False, in_step=False, **variables):
        switches = {"FATTN_PROBE_SIM_PORTABLE": str(int(portable)), "FATTN_PROBE_SIM_IN_STEP": str(int(in_step))}
        env = simulation.env(load_devices()[device], "") | sanitizer.options() | switches | variables
        timeout = 60 * sanitizer.TIMES_SLOWER
        done = subprocess.run(
            [self.path, *map(str, words)], input=stdin, env=env, capture_output=True, timeout=timeout, check=False
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
        fault = checker_finding(done)
        assert fault is not None, (done.code, done.stderr)
        return symbolised(fault)


def place(frame):
    """(function, line) of a symbolised frame."""
    match = re.fullmatch(r"(.*) at \S+:(\d+)(?: \(discriminator \d+\))?", frame)
    return match[1], int(match[2])
