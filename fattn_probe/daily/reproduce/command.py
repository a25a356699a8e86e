"""`fattn-probe reproduce`: run a case, choose how to show its failure, and write a folder for a maintainer."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.activity import Step, quiet
from fattn_probe.base.arrays import Bytes
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import make_folder, whole_folder, write_text
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.reproduce.found import Found, find
from fattn_probe.daily.reproduce.program import INPUTS, PROGRAM, program_text, write_inputs
from fattn_probe.daily.reproduce.readme import readme
from fattn_probe.daily.reproduce.ways import ADDED, Chooser, Chosen, Wanted
from fattn_probe.machine.run.inputs import inputs_of
from fattn_probe.machine.run.session import Session
from fattn_probe.verdict.judge.checks import Checks, is_huge

README = "README.md"


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
"""The files in the folder, the judgement, and the way in which they show the failure."""


def reproduce(session: Session, request: ReproduceRequest, step: Step = quiet) -> Reproduction:
    """Write the folder, completely or not at all."""
    case, tree = request.case, session.options.tree
    check_folder(request.out)
    if tree is None:
        raise InputError("reproduce needs a llama.cpp tree: --source")
    if is_huge(case) or Checks().samples(case):
        raise InputError(f"{case.name}: this op is too large for its output to be checked whole, and to be sent")
    with inputs_of(case) as inputs:
        found = find(session, case, inputs, request.target, step)
        chooser = Chooser(session, tree, case.op, request.target, request.listed_on, request.timeout, step)
        chosen = chooser.choose(request.wanted, fails=found.fails)
        step("writing")
        return write(request, tree.root, inputs, found, chosen), found, chosen


def check_folder(out: Path) -> None:
    """InputError unless a folder is new or empty."""
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"{out}: the folder is not empty; --out needs a new one")
    if os.path.lexists(out) and not out.is_dir():
        raise InputError(f"{out} is a file; --out needs a new folder")


def write(
    request: ReproduceRequest, root: Path, inputs: Mapping[str, Bytes], found: Found, chosen: Chosen
) -> tuple[str, ...]:
    """Write the files beside the folder, and move them into place together; returns their names."""
    out, case = request.out.absolute(), request.case
    make_folder(out.parent, "--out")
    with whole_folder(out) as made:
        if chosen.way == "file":
            write_text(made / PROGRAM, program_text(case, root))
            write_inputs(case, inputs, found.reference, found.limits, made / INPUTS)
        if chosen.patch:
            write_text(made / ADDED, chosen.patch)
        write_text(made / README, readme(case, found, chosen, probe_line(request, chosen)))
    return tuple(sorted(path.name for path in out.iterdir()))


def probe_line(request: ReproduceRequest, chosen: Chosen) -> str:
    """The fattn-probe command that judges the same case; empty if no file contains the case."""
    if chosen.way != "file" and not request.told[0]:
        return ""
    on = [] if request.target is None else ["--on", str(request.target)]
    what = [INPUTS, *request.told[1:]] if chosen.way == "file" else list(request.told)
    return shlex.join(["fattn-probe", "compare", *what, *on])


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
    """The judgement, and the files."""
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
