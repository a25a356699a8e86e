"""`fattn-probe reproduce`: run a case, choose how to show its failure, and write a folder for a maintainer.

The folder has a README with the fault, its location and the command lines; a C++ file that uses ggml's API; and a GGUF
file with the case's inputs and the expected output.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.activity import Step, quiet
from fattn_probe.base.arrays import F64, Bytes, Floats
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import check_place, make_folder, whole_folder, write_text
from fattn_probe.cases.device import Target, is_amd
from fattn_probe.cases.op import Op
from fattn_probe.cases.op.case_file import Named, case_fields, case_tensors
from fattn_probe.cases.op.gguf_file import TensorData, f32, string, write_gguf
from fattn_probe.cases.op.op import PREC, Ne
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.ops.parse import OP
from fattn_probe.daily.reproduce.found import Found, find
from fattn_probe.daily.reproduce.ways import ADDED, Chooser, Chosen, Wanted, pattern_of
from fattn_probe.llama.source.git import UNCOMMITTED, git
from fattn_probe.machine.run.capture import inputs_of
from fattn_probe.machine.run.session import Session
from fattn_probe.verdict.judge.checks import Checks, is_huge
from fattn_probe.verdict.measure.limits import By, Limits

PROGRAM = "reproduce.cpp"
INPUTS = "inputs.gguf"
EDITS = "edits.patch"
"""The uncommitted changes of the checkout that ran."""
TEMPLATE = Path(__file__).with_name(PROGRAM)
SETTERS = "    // SETTERS\n"
HEADER = Path("ggml/include/ggml.h")
ACCUMULATOR = re.compile(r"\bggml_prec_set_acc\(")
"""The replacement for ggml_flash_attn_ext_set_prec, deprecated in 2026."""


def program_text(case: Named, root: Path) -> str:
    """The C++ file for a case and a source; the source's ggml.h determines the setters."""
    setters = "".join(f"    {line}\n" for line in setters_of(case.op, (root / HEADER).read_text(errors="replace")))
    name = " ".join(case.name.replace("\\", "/").split())  # a final backslash would continue the C++ comment
    return TEMPLATE.read_text().replace("NAME", name, 1).replace(SETTERS, setters)


def setters_of(op: Op, ggml_h: str) -> list[str]:
    """The calls for parameters that ggml_flash_attn_ext does not accept; raises InputError if ggml.h lacks a setter."""
    calls = []
    if op.params.prec != PREC["default"]:
        setter = "ggml_prec_set_acc" if ACCUMULATOR.search(ggml_h) else "ggml_flash_attn_ext_set_prec"
        known = "GGML_PREC_F32" if op.params.prec == PREC["f32"] else f"ggml_prec({op.params.prec})"
        calls.append((setter, known))
    if op.has_sinks:
        calls.append(("ggml_flash_attn_ext_add_sinks", 'operand(ctx, backend, file, "sinks")'))
    if op.params.n_kv_max:
        calls.append(("ggml_flash_attn_ext_set_n_kv_max", str(op.params.n_kv_max)))
    for setter, _ in calls:
        if setter not in ggml_h:
            raise InputError(f"this source's ggml has no {setter}, which the op needs")
    return [f"{setter}(dst, {argument});" for setter, argument in calls]


def write_inputs(case: Named, inputs: Mapping[str, Bytes], reference: F64, limits: Limits, path: Path) -> None:
    """Write a case file that also has the expected output and its limits.

    Tensors: `expected`, in dst's shape; `exact` if `expected` is not exact; `element_bound` and `row_bound`, if these
    limits exist. Key `reproduce.rmse_bound` is the limit for the whole output, `reproduce.by` the origin of the limits.
    """
    fields = case_fields(case.name, case.digest, case.op) | {
        "reproduce.rmse_bound": f32(limits.rmse),
        "reproduce.by": string(limits.by),
    }
    n_seq, n_q, n_head, hsv = case.op.sizes.dst
    dst, rows = (hsv, n_head, n_q, n_seq), (n_head, n_q, n_seq, 1)
    tensors = case_tensors(case.op, inputs) | {"expected": floats(limits.expected, dst)}
    if limits.by == "model":
        tensors["exact"] = floats(reference, dst)
    if limits.elements is not None:
        tensors["element_bound"] = floats(limits.elements, dst)
    if limits.rows is not None:
        tensors["row_bound"] = floats(limits.rows, rows)
    write_gguf(path, fields, tensors)


def floats(values: Floats, ne: Ne) -> TensorData:
    """Values as a tensor of floats; values beyond the range of float32 become infinite."""
    with np.errstate(over="ignore"):
        return TensorData("f32", ne, np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8))


BUILD = "cmake -B build {option} && cmake --build build --target test-backend-ops"
TEST = f"build/bin/test-backend-ops test -b {{device}} -o {OP}"
NAMES = "source revision build_number patches device arch driver engine compilers fattn-probe"
EXACT = "The expected output is exact attention in float64, rounded to float32."
YARDSTICKS: dict[By, str] = {
    "prediction": f"{EXACT} The bounds cover the rounding of this kernel.",
    "model": "The expected output is that of a NumPy model that rounds as this kernel does. A correct kernel matches "
    "nearly all of its bits; compilers fuse a few operations differently.",
    "tolerance": f"{EXACT} The bound is a tolerance, because the kernel's arithmetic is not known.",
}


OTHER_KERNEL = "the bounds are for the kernel above, and a different kernel may exceed them and still be correct"
OTHER_DEVICE: dict[By, str] = {
    "prediction": OTHER_KERNEL,
    "model": OTHER_KERNEL,
    "tolerance": "the tolerance is the same for all devices",
}


def readme(case: Case, found: Found, chosen: Chosen, probe: str, edits: str = "") -> str:
    """The README, in Markdown; `probe` is the fattn-probe command that shows the same failure, or empty.

    `edits` is the name of the file with the source's uncommitted changes, empty without any.
    """
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
        "edits": edits,
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
    """Turn a string into a sentence: a capital letter, a full stop, and no Markdown line breaks."""
    line = " ".join(text.split())
    return line[:1].upper() + line[1:] + ("" if line.endswith(".") else ".")


def facts(found: Found) -> list[tuple[str, str]]:
    """(name, value) pairs for the versions, the device and the kernels."""
    told = [(name.replace("_", " "), value) for name in NAMES.split() if (value := found.provenance.get(name, ""))]
    judgement = found.judgement
    if judgement is None:
        return told
    launched = [(launch.spelling, launch.geometry) for launch in judgement.launches]
    told += [("kernel", f"`{spelling}`, {geometry}") for spelling, geometry in launched]
    if judgement.finding is not None and judgement.finding.kernel:
        told.append(("ended in", f"`{judgement.finding.kernel}`"))
    return told + ([("known defect", judgement.known)] if judgement.known else [])


def params(case: Case) -> str:
    """The op's parameters, in one line."""
    told: Mapping[str, float] = vars(case.op.params)
    return ", ".join(f"{name} = {value:.9g}" for name, value in told.items())


README = "README.md"
DIFF = ("diff", "--binary", "--no-color", "--no-ext-diff", "--relative", "HEAD")


@dataclass(frozen=True)
class ReproduceRequest:
    """The case to reproduce and how; `told` are the user's case, source and patches as command-line arguments.

    The case first runs on `target` (None: it does not run); upstream's test lists its cases on `listed_on`.
    """

    case: Case
    out: Path
    target: Target | None
    listed_on: Target
    wanted: Wanted = "auto"
    told: tuple[str, ...] = ()
    timeout: float = 600.0


Reproduction = tuple[Sequence[str], Found, Chosen]
"""The names of the files, the judgement, and the way in which the files show the failure."""


def reproduce(session: Session, request: ReproduceRequest, step: Step = quiet) -> Reproduction:
    """Write the folder, completely or not at all."""
    case, tree = request.case, session.options.tree
    check_folder(request.out)
    if tree is None:
        raise InputError("reproduce needs a llama.cpp tree: --source")
    if is_huge(case) or Checks().samples(case):
        raise InputError(f"{case.name}: this op is too large to send, or to check in full")
    with inputs_of(case) as inputs:
        found = find(session, case, inputs, request.target, step)
        chooser = Chooser(session, tree, case.op, request.target, request.listed_on, request.timeout, step)
        chosen = chooser.choose(request.wanted, fails=found.fails)
        step("writing")
        return write(request, tree.root, inputs, found, chosen), found, chosen


def check_folder(out: Path) -> None:
    """Raise InputError unless a folder is new or empty, MachineError if it cannot be written."""
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"{out}: the folder is not empty; --out needs a new one")
    if os.path.lexists(out) and not out.is_dir():
        raise InputError(f"{out} is a file; --out needs a new folder")
    check_place(out)


def write(
    request: ReproduceRequest, root: Path, inputs: Mapping[str, Bytes], found: Found, chosen: Chosen
) -> tuple[str, ...]:
    """Write the files to a temporary folder, then move it into place; returns their names."""
    out, case = request.out.absolute(), request.case
    make_folder(out.parent, "--out")
    with whole_folder(out) as made:
        if chosen.way == "file":
            write_text(made / PROGRAM, program_text(case, root))
            write_inputs(case, inputs, found.reference, found.limits, made / INPUTS)
        if chosen.patch:
            write_text(made / ADDED, chosen.patch)
        what = [INPUTS, *request.told[1:]] if chosen.way == "file" else list(request.told)
        on = [] if request.target is None else ["--on", str(request.target)]
        # the arguments that judge the same case, if a file contains it
        probe = shlex.join(["fattn-probe", "compare", *what, *on]) if chosen.way == "file" or request.told[0] else ""
        edits = git(root, *DIFF) if found.provenance.get("revision", "").endswith(UNCOMMITTED) else None
        if edits:
            write_text(made / EDITS, f"{edits}\n")
        write_text(made / README, readme(case, found, chosen, probe, EDITS if edits else ""))
    return tuple(sorted(path.name for path in out.iterdir()))


def document(request: ReproduceRequest, made: Reproduction) -> dict[str, Any]:
    """The JSON document; docs/guide/reproduce.md lists its keys."""
    files, found, chosen = made
    judgement = found.judgement
    shown = None if chosen.shown is None else {"runs": chosen.shown.runs, "failed": chosen.shown.failed}
    return {
        "folder": str(request.out),
        "files": list(files),
        "case": request.case.name,
        "digest": request.case.digest,
        "way": chosen.way,
        "upstream_case": chosen.case or None,
        "upstream": shown,
        "reasons": list(chosen.reasons),
        "on": found.provenance.get("device"),
        "status": None if judgement is None else judgement.status.value,
        "reason": None if judgement is None else judgement.reason,
        "kernel": None if judgement is None else judgement.kernel or None,
        "known": None if judgement is None else judgement.known or None,
        "judged_by": found.limits.by,
    }


def render(request: ReproduceRequest, made: Reproduction) -> RenderableType:
    """Render the judgement and the list of files."""
    files, found, chosen = made
    judgement, case = found.judgement, request.case.name
    if judgement is None:
        said = f"{case} was not run (--on runs it): nothing is known to be wrong"
    else:
        said = f"{case} on {judgement.on}: {judgement.status}: {judgement.reason.partition(chr(10))[0]}"
    lines = [Text(said, "red" if found.fails else "")]
    lines += [Text(f"not a {reason}", "dim") for reason in chosen.reasons]
    if chosen.shown is not None:
        lines.append(Text(f"{chosen.way}: {chosen.shown}"))
    return Group(*lines, Text(f"wrote {request.out}: {', '.join(files)}"))
