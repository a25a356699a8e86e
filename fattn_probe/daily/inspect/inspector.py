"""Inspect one case: build it, run it under a debugger, read its memory, and assemble the facts."""

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fattn_probe.base.arrays import Bytes
from fattn_probe.base.errors import InputError, MachineError
from fattn_probe.base.files import scratch
from fattn_probe.base.process import Completed
from fattn_probe.base.workers import threads
from fattn_probe.cases.device import Target
from fattn_probe.cases.op.case_file import write_case
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.inspect import assemble
from fattn_probe.daily.inspect.anchors import Located, locate
from fattn_probe.daily.inspect.dispatch.decide import LAUNCH, decisions, plan_of, remembered_dispatch, visits_of
from fattn_probe.daily.inspect.dispatch.explain import explain
from fattn_probe.daily.inspect.dispatch.extract import Dispatch
from fattn_probe.daily.inspect.facts import Decision, Facts, KernelLaunch, MissingFacts
from fattn_probe.daily.inspect.procedures.warp import LANES
from fattn_probe.llama.build import RUNNER, TEST_BACKEND_OPS, Build, at_rest
from fattn_probe.llama.launch.tiles import limits_of
from fattn_probe.llama.source.features import CUDA
from fattn_probe.machine.debug.procedure import run_procedure
from fattn_probe.machine.debug.protocol import DebuggerError
from fattn_probe.machine.debug.session import DebugSession, require_debug_info
from fattn_probe.machine.run.outcome import Ending, Missing, Unsupported, read_result
from fattn_probe.machine.run.runner import LAUNCHES_ENV, ending_of, read_launches
from fattn_probe.machine.run.session import Session

Ended = Ending | Unsupported
Document = dict[str, Any]
READ_OP = "fattn_probe.daily.inspect.procedures.op:read_op"
DEBUGGERS = {"sim": "gdb", "cuda": "cuda-gdb"}
Read = tuple[Facts | Ended, tuple[Decision, ...]]
"""The result of one run, and the decisions of its dispatch, which exist even if no kernel was launched."""


@dataclass(frozen=True)
class InspectOptions:
    """The options of an inspection.

    `debugger` is a command line, empty for the engine's own (gdb, cuda-gdb). `python`: use the debugger's Python (None:
    if it has one). `blocks`: read the kernel's blocks. `transcript` is a file for the dialogue with the debugger.
    `deadline` (seconds) limits the whole inspection.
    """

    debugger: tuple[str, ...] = ()
    python: bool | None = None
    blocks: bool = True
    transcript: Path | None = None
    deadline: float = 600.0

    def debugger_on(self, target: Target) -> tuple[str, ...]:
        """The debugger's command line on a target."""
        return self.debugger or (DEBUGGERS[target.engine],)


@dataclass(frozen=True)
class Inspection:
    """The inspection of a case on a target: its facts, or how the program ended before the kernel launch.

    `name` is the case's name in a scenario or upstream; `reasons` are sentences on why this kernel was chosen.
    """

    name: str
    on: str
    result: Facts | Ended
    seconds: float
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Started:
    """A case's name, and the program of a build that runs this case; the debugger starts it in `folder`."""

    name: str
    program: str
    words: tuple[str, ...]
    folder: Path


def wave_of(target: Target) -> int:
    """The number of lanes per warp on a target's GPU."""
    return target.device.warpSize if target.device is not None else LANES


@dataclass(frozen=True)
class Inspector:
    """Inspects cases with the builds of a session."""

    session: Session
    options: InspectOptions

    def inspect(self, case: Case, inputs: Mapping[str, Bytes], target: Target) -> Inspection:
        """Run one case under the debugger, up to the kernel launch and through its blocks, and read the facts."""
        with self.place(case, inputs) as folder:
            found = self._inspect(Started(case.name, RUNNER, self.words(target), folder), target)
        facts = found.result
        if not isinstance(facts, Facts) or not limits_of(facts.blocks):
            return found
        return replace(found, result=replace(facts, mask_ends=assemble.mask_ends_of(case.op, inputs)))

    def inspect_upstream(self, case: str, words: Sequence[str], target: Target) -> Inspection:
        """Inspect the case that the arguments `words` of upstream's test-backend-ops select."""
        with scratch() as folder:
            return self._inspect(Started(case, TEST_BACKEND_OPS, tuple(words), folder), target)

    def words(self, target: Target) -> tuple[str, ...]:
        """The runner's arguments."""
        return ("case.gguf", "out.gguf", "--backend", target.backend)

    def _inspect(self, started: Started, target: Target) -> Inspection:
        began = time.monotonic()

        def attempt(build: Build) -> Read | Missing:
            with at_rest(build) as programs:
                return self._read(build, programs, started, target)

        read = self.session.completing(started.name, target, started.program, attempt)
        assert not isinstance(read, Missing)
        result, decided = read
        parameters = self.dispatch(self.session.build_for(target, started.program)).parameters
        amd = target.device is not None and bool(target.device.gfx)
        reasons = tuple(explain(decided, parameters, amd=amd))
        return Inspection(started.name, str(target), result, time.monotonic() - began, reasons)

    def procedure(self, procedure: str, plan: Document, folder: Path, target: Target) -> Document | Ended:
        """Run another procedure on the program of an inspected case; adds to `plan` what all procedures need."""
        build = self.session.build_for(target, RUNNER)
        env = self.session.env(target) | {LAUNCHES_ENV: str(folder / "launches")}
        started = Started("", RUNNER, self.words(target), folder)

        with at_rest(build) as programs:
            with self._debugging(programs, started, env, target) as debugging:
                raw = self._run(debugging, procedure, self._plan(build, target) | plan)
            return self._ending(raw["ended"], debugging, started) if raw.get("ended") else raw

    def _run(self, debugging: DebugSession, procedure: str, plan: Document) -> Document:
        options = self.options
        try:
            found: Document = run_procedure(debugging, procedure, plan, options.deadline, inside=options.python)
        except DebuggerError as error:
            raise MachineError(f"{debugging.debugger[0]} refused: {error}") from error
        return found

    def _plan(self, build: Build, target: Target) -> Document:
        anchors = {name: list(found) for name, found in self.located(build).locations.items()}
        dispatch = plan_of(self.dispatch(build))
        gfx = target.device.gfx if target.device is not None else ""
        # the layout of sums in an AMD GPU's matrix instructions (`trace.fragments.AMD_ROWS`); empty for NVIDIA
        matrix = {"gfx9": "mfma", "gfx11": "rdna3", "gfx12": "rdna4"}.get(gfx[:-2], "")
        gpu = {"simulated": target.engine == "sim", "wave": wave_of(target), "matrix": matrix}
        return {"anchors": anchors, "dispatch": dispatch} | gpu

    @contextmanager
    def place(self, case: Case, inputs: Mapping[str, Bytes]) -> Iterator[Path]:
        """A temporary folder with the case's file, for as long as its program runs."""
        with scratch() as folder:
            write_case(case, inputs, folder / "case.gguf")
            yield folder

    def _read(self, build: Build, programs: Build, started: Started, target: Target) -> Read | Missing:
        launches = started.folder / "launches"
        launches.unlink(missing_ok=True)
        env = self.session.env(target, started.program) | {LAUNCHES_ENV: str(launches)}
        with threads(1) as pool:  # reads the source while the debugger starts
            planned = pool.submit(self._plan, build, target)
            with self._debugging(programs, started, env, target) as debugging:
                plan = planned.result() | {"blocks": self.options.blocks}
                raw = self._run(debugging, READ_OP, plan)
                version = debugging.execute("show version").splitlines()[0]
        if "ended" not in raw:
            manifest = build.manifest
            about = {
                "case": started.name,
                "source": manifest.source,
                "build_number": manifest.build_number,
                "patches": " ".join(manifest.patches),
                "engine": manifest.fingerprint.engine,
                "flavour": manifest.fingerprint.flavour,
                "device": str(target),
                "debugger": version,
            }
            facts = self._assemble(raw, build, launches, about)
            return facts, facts.choice.decisions if facts.choice else ()
        result = self._ending(raw["ended"], debugging, started)
        if isinstance(result, Missing):
            return result
        if isinstance(result, Unsupported) and not raw["visits"]:
            require_debug_info(build.folder / "lib/libggml-cuda.so")
            # an unsupported op only reaches the backend's check for support, so walk from there
            functions = self.dispatch(build).functions
            asked = next((each.location for each in functions if each.name.endswith("get_best_fattn_kernel")), None)
            walk = plan["dispatch"] | ({"entry": asked} if asked else {})
            with self._debugging(programs, started, env, target) as debugging:
                raw = self._run(debugging, READ_OP, plan | {"dispatch": walk})
        return result, self._decided(build, raw)

    def _decided(self, build: Build, raw: Document) -> tuple[Decision, ...]:
        return decisions(self.dispatch(build).conditions, visits_of(raw["visits"]))

    @contextmanager
    def _debugging(
        self, programs: Build, started: Started, env: Mapping[str, str], target: Target
    ) -> Iterator[DebugSession]:
        """Start a debugger session with the program.

        On a GPU, a launch returns only when its kernel has finished, so at the host's next line the kernel has run.
        """
        env = {**env, "CUDA_LAUNCH_BLOCKING": "1"} if target.engine == "cuda" else env
        with DebugSession(
            self.options.debugger_on(target),
            programs.program(started.program),
            started.words,
            env=env,
            cwd=started.folder,
            deadline=self.options.deadline,
            transcript=self.options.transcript,
        ) as debugging:
            if target.engine == "sim":  # the simulator itself reports an access outside a tensor
                debugging.execute("handle SIGSEGV SIGBUS nostop noprint pass")
            yield debugging

    def located(self, build: Build) -> Located:
        """The locations in a build's source at which an inspection stops."""
        return locate(self.source(build) / CUDA)

    def dispatch(self, build: Build) -> Dispatch:
        """The conditions of a build's dispatch; InputError if the source lacks LAUNCH, where an inspection stops."""
        found = remembered_dispatch(self.source(build))
        if LAUNCH not in found.parameters:
            said = f"{build.manifest.source} has no function {LAUNCH}, which launches llama.cpp's attention kernels"
            raise InputError(f"{said}: the debugger would not know where to stop")
        return found

    def source(self, build: Build) -> Path:
        """The tree as it was compiled; its line numbers match the debug info."""
        if build.sources is None:
            raise InputError(f"{build.folder} has no sources beside it; `fattn-probe build --export` copies them")
        return build.sources

    def _ending(self, ended: list[str], debugging: DebugSession, started: Started) -> Ended:
        """Describe how the program ended before it launched an attention kernel."""
        reason, detail, function = ended
        code = -int(signal.Signals[detail]) if reason == "signal" else int(detail or 0)
        done = Completed((started.program,), code, debugging.stdout, debugging.stderr, 0.0)
        if (ending := ending_of(done)) is not None:
            return ending
        out = started.folder / "out.gguf"
        unsupported = read_result(out).unsupported if out.is_file() else ""
        return Unsupported(
            unsupported or f"the program ended{f' in {function}' * bool(function)} without an attention kernel"
        )

    def _assemble(self, raw: dict[str, Any], build: Build, launches: Path, about: Mapping[str, str]) -> Facts:
        simulated = build.manifest.fingerprint.engine == "sim"
        types, names = self.session.kernel_words
        kernels = tuple(
            KernelLaunch(record.spelling, record.grid, record.block, record.shared, record.origin)
            for record in read_launches(launches, types=types, names=names)
        )
        choice = assemble.choice_of(raw, self._decided(build, raw), types, names)
        records = [record for record in raw.get("blocks", []) if record["at"] not in ("ended", "KV_max")]
        scanned = next((record for record in raw.get("blocks", []) if record["at"] == "KV_max"), None)
        launch = assemble.launch_facts(raw, kernels, records)
        tensors = assemble.tensors_of(raw["tensors"])
        tiling = assemble.Tiling(choice, launch["blocks_num"], {tensor.name: tensor.ne for tensor in tensors})
        missing, lacking = self.located(build).missing, sorted(set().union(*map(tiling.lacks, records)))
        if lacking:
            records = [record for record in records if not tiling.lacks(record)]
            missing += (MissingFacts("blocks", f"the kernel has no variables named {', '.join(lacking)}"),)
        return Facts(
            about=about,
            tensors=tensors,
            op_params=assemble.op_params_of(raw["op_params"]),
            choice=choice,
            launch=launch,
            kernels=kernels,
            grid=tiling.grid(records),
            blocks=tiling.blocks(records) if simulated else tiling.followed(records, scanned),
            missing=missing,
            fault=assemble.fault_of(raw.get("blocks", [])),
        )
