"""The README of a reproduction: what is wrong, where, and the command lines."""

import shlex
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fattn_probe.cases.device import is_amd
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.ops.parse import OP
from fattn_probe.daily.reproduce.found import Found
from fattn_probe.daily.reproduce.program import INPUTS, PROGRAM
from fattn_probe.daily.reproduce.ways import ADDED, Chosen, pattern_of
from fattn_probe.verdict.measure.limits import By

BUILD = "cmake -B build {option} && cmake --build build --target test-backend-ops"
TEST = f"build/bin/test-backend-ops test -b {{device}} -o {OP}"
NAMES = ("source", "build_number", "patches", "device", "arch", "driver", "engine", "compilers", "fattn-probe")
EXACT = "The expected output is exact attention in float64, rounded to float32."
YARDSTICKS: dict[By, str] = {
    "prediction": f"{EXACT} The bounds cover the rounding of this kernel.",
    "model": "The expected output is that of a NumPy model that rounds as this kernel does. A correct kernel matches "
    "nearly all of its bits; compilers fuse a few operations differently.",
    "tolerance": f"{EXACT} The bound is a tolerance, since no kernel's arithmetic is known here.",
}


OTHER_KERNEL = "the bounds are those of the kernel above, and a different one may exceed them and be correct"
OTHER_DEVICE: dict[By, str] = {
    "prediction": OTHER_KERNEL,
    "model": OTHER_KERNEL,
    "tolerance": "the tolerance is the same for all",
}


def readme(case: Case, found: Found, chosen: Chosen, probe: str) -> str:
    """The text, in Markdown; `probe` is the fattn-probe command that shows the same failure, or empty."""
    judgement = found.judgement
    diagnosis = None if judgement is None else judgement.diagnosis
    arch = found.provenance.get("arch", "")
    amd = is_amd(arch)
    option, device = (f"-DGGML_HIP=ON -DGPU_TARGETS={arch}", "ROCm0") if amd else ("-DGGML_CUDA=ON", "CUDA0")
    words: dict[str, Any] = {
        "case": case.name,
        "fails": found.fails,
        "verdict": "" if judgement is None else judgement.status.value,
        "on": found.provenance.get("device", ""),
        "reason": "" if judgement is None else sentence(judgement.reason.partition("\n")[0]),
        "stack": "" if judgement is None else judgement.reason.partition("\n")[2].rstrip(),
        "no_output": judgement is not None and found.output is None,
        "simulated": judgement is not None and found.provenance.get("device", "").startswith("sim:"),
        "facts": list(facts(found)),
        "way": chosen.way,
        "option": option,
        "api": "HIP" if amd else "CUDA",
        "build": BUILD.format(option=option),
        "test": ""
        if chosen.way == "file"
        else f"{TEST.format(device=device)} -p {shlex.quote(pattern_of(chosen.case))}",
        "patch": ADDED,
        "program": PROGRAM,
        "inputs": INPUTS,
        "on_cpu": found.provenance.get("device") == "cpu",
        "shown": "" if chosen.shown is None else sentence(str(chosen.shown)).rstrip("."),
        "other": OTHER_DEVICE[found.limits.by],
        "expected": YARDSTICKS[found.limits.by],
        "worst": found.worst() if found.fails else [],
        "patterns": [] if diagnosis is None else [str(pattern) for pattern in diagnosis.patterns],
        "tensors": list(case.op.tensors.values()),
        "params": params(case),
        "reasons": chosen.reasons,
        "probe": probe,
    }
    environment = Environment(
        loader=PackageLoader("fattn_probe.daily.reproduce"), undefined=StrictUndefined, keep_trailing_newline=True
    )
    return environment.get_template("README.md.j2").render(words)


def sentence(text: str) -> str:
    """A text with a capital and a full stop, and without Markdown's line breaks."""
    line = " ".join(text.split())
    return line[:1].upper() + line[1:] + ("" if line.endswith(".") else ".")


def facts(found: Found) -> list[tuple[str, str]]:
    """Versions, device and kernels by name."""
    told = [(name.replace("_", " "), value) for name in NAMES if (value := found.provenance.get(name, ""))]
    judgement = found.judgement
    if judgement is None:
        return told
    launched = [(launch.spelling, launch.geometry) for launch in judgement.launches]
    told += [("kernel", f"`{spelling}`, {geometry}") for spelling, geometry in launched]
    if judgement.finding is not None and judgement.finding.kernel:
        told.append(("ended in", f"`{judgement.finding.kernel}`"))
    return told + ([("known defect", judgement.known)] if judgement.known else [])


def params(case: Case) -> str:
    """The op's parameters in a line."""
    told: Mapping[str, float] = vars(case.op.params)
    return ", ".join(f"{name} = {value:.9g}" for name, value in told.items())
