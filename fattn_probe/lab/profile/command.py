"""Profile cases and programs on targets, and compare with the formula of FlashAttention-2."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from fattn_probe.base.errors import ComparisonError, InputError, LostError
from fattn_probe.base.files import scratch
from fattn_probe.cases.device import Device, Target, load_devices
from fattn_probe.cases.op import Op
from fattn_probe.cases.op.op import block_size, type_size
from fattn_probe.cases.scenario import Case
from fattn_probe.lab.profile.counts import Counts, Profile, Traffic, find_ncu, measure, parse, read_counts
from fattn_probe.lab.program.build import Program, maker
from fattn_probe.lab.program.execute import ProgramSettings, environment, execute
from fattn_probe.lab.study.formulas import FormulaSizes, flash_attention_2
from fattn_probe.lab.study.problem import count
from fattn_probe.llama.build import RUNNER
from fattn_probe.llama.launch.architecture import arch_number
from fattn_probe.llama.launch.constants import known_constants
from fattn_probe.llama.launch.geometry import division_origin, geometry_of
from fattn_probe.llama.launch.kernel import columns_of_tile
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.machine.run.capture import make_case_file
from fattn_probe.machine.run.command import describe
from fattn_probe.machine.run.outcome import Failed, Finding, Ran, RunOutcome, Unsupported, lost_message
from fattn_probe.machine.run.session import Session, gpu_name
from fattn_probe.machine.run.simulator import Simulation


def formula_traffic(op: Op, launches: Iterable[LaunchRecord]) -> tuple[Traffic, ...]:
    """Bytes by tensor of an attention kernel that follows FlashAttention-2; none without such a kernel.

    A tile has `ncols1` queries (B_r) of `ncols2` heads, which share K, V and the mask. dst is written once.
    """
    columns = next(filter(None, (columns_of_tile(launch.spelling) for launch in launches)), None)
    if columns is None:
        return ()
    s, (ncols1, ncols2) = op.sizes, columns
    formula = flash_attention_2(FormulaSizes(s.n_q, s.n_kv, s.hsk, s.hsv, op.has_mask), ncols1)
    elements = {term.of: term.value for term in formula.reads}
    heads = s.n_seq * s.n_head
    tiles = s.n_seq * s.n_head_kv * count(s.group, ncols2)
    read = {"Q": heads * elements["Q"], "mask": tiles * elements.get("mask", 0)}
    of_K = tiles * elements["K, V"] * s.hsk // (s.hsk + s.hsv)
    read |= {"K": of_K, "V": tiles * elements["K, V"] - of_K}
    kinds = {name: op.tensors[name].type for name in read if name in op.tensors}
    found = [Traffic(name, read[name] * type_size(kind) // block_size(kind), 0) for name, kind in kinds.items()]
    return (*found, Traffic("dst", 0, 4 * heads * s.n_q * s.hsv))


Profiled = tuple[str, tuple[Profile, ...]]
"""The name of a case or a program with its profiles, one for each target."""


def check_targets(targets: Sequence[Target]) -> None:
    """InputError if a target runs no kernels, or is an AMD GPU; MachineError for a GPU without ncu."""
    if any(target.engine == "cpu" for target in targets):
        raise InputError("profile --on cpu: ggml's CPU backend has no kernels to count")
    if amd := [target for target in targets if target.device is not None and target.device.gfx]:
        raise InputError(
            f"profile --on {amd[0]}: sectors, bank conflicts and occupancy are counted only by NVIDIA's rules"
        )
    if any(target.engine == "cuda" for target in targets):
        find_ncu()


def profile_case(simulated: Session, measured: Session, case: Case, targets: Sequence[Target]) -> Profiled:
    """Profile a case on each target: `simulated` is a session of builds with counters, `measured` of release builds."""
    with scratch() as folder:
        inputs = make_case_file(case, folder / "case.gguf")
        found = []
        for target in targets:
            session = simulated if target.engine == "sim" else measured
            outcome = session.run(case, inputs, target)
            if not isinstance(outcome, Ran):
                found.append(Profile(str(target), problem=reason(outcome, f"{case.name} on {target}")))
                continue
            launches = outcome.launches
            if target.engine == "sim":
                path = session.options.simulation.counts
                assert path is not None
                counts = read_counts(path, launches)
                path.unlink(missing_ok=True)  # the next run would append to it
            else:
                counts = under_ncu(session, inputs.file, target)
            formula = formula_traffic(case.op, launches)
            constants = known_constants(session.options.tree)
            device, division = target.device, None
            if device is not None:
                geometry = geometry_of(case.op, launches, arch_number(device.arch), constants) if constants else None
                division = division_origin(launches, device, geometry)
            found.append(Profile(str(target), known(counts, launches), "", case.op.sizes.flop, formula, division))
    return case.name, tuple(found)


def reason(outcome: RunOutcome, name: str) -> str:
    """The reason why an unsupported op has no counts; raises the matching error for any other outcome."""
    said = describe(outcome)
    match outcome:
        case Unsupported():
            return said
        case Finding() | Failed():
            raise ComparisonError(f"{name}: {said}")
    raise LostError(f"{name}: {said}")


def under_ncu(session: Session, case_file: Path, target: Target) -> tuple[Counts, ...]:
    """ncu's counts for one run of the runner."""
    types, names = session.kernel_words
    build = session.build_for(target)
    with scratch() as folder:
        words = ("--backend", target.backend, "--repeat", "1", "--warmup", "0")
        program = build.program(RUNNER)
        text = measure([program, case_file, folder / "out.gguf", *words], session.env(target), session.options.timeout)
    return parse(text, types=types, names=names)


def known(counts: Sequence[Counts], launches: Sequence[LaunchRecord]) -> tuple[Counts, ...]:
    """Counts with the recorded launch of the same kernel and position, which includes registers and shared memory."""
    left = list(launches)
    found = []
    for one in counts:
        same = next((launch for launch in left if launch.kernel == one.launch.kernel), None)
        if same is not None:
            left.remove(same)
        found.append(replace(one, launch=same or one.launch))
    return tuple(found)


def profile_program(
    program: Program, targets: Sequence[Target], settings: ProgramSettings, simulation: Simulation
) -> Profiled:
    """Profile a user's program on each target; ComparisonError for a finding, LostError if it fails."""
    found = []
    for target in targets:
        made = maker(target, "count" if target.engine == "sim" else "release").make(program)
        with scratch() as folder:
            counting = replace(simulation, counts=folder / "counts")
            run = execute(made, target, settings, counting)
            if run.finding is not None:
                raise ComparisonError(f"{program.path} on {target}: {describe(run.finding)}")
            if run.code != 0:
                raise LostError(lost_message(f"{program.path} on {target}", run.code, run.stderr))
            if target.engine == "sim":
                # nvcc never compiled this program, so its registers are unknown.
                launches = [replace(launch, regs=None) for launch in run.launches]
                found.append(Profile(str(target), read_counts(folder / "counts", launches)))
            else:
                env = environment(made, target, counting)
                text = measure([made.path, *settings.arguments], env, settings.timeout)
                found.append(Profile(str(target), known(parse(text), run.launches)))
    return str(program.path), tuple(found)


def device_of(target: Target) -> Device | None:
    """The figures of a target's GPU; a real GPU is looked up in the catalogue by its name."""
    if target.device is not None:
        return target.device
    name = gpu_name(target.gpu)
    return next((device for device in load_devices().values() if device.name == name), None)
