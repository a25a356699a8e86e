"""Advice on what to do next, as commands to paste."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fattn_probe.cases.scenario.files import RECORDED
from fattn_probe.daily.triage.guilty import (
    AsDesigned,
    AttentionOverflows,
    AttentionWrong,
    Innocent,
    NotFinite,
    OtherOpWrong,
    PartsWithout,
    Unknown,
)
from fattn_probe.daily.triage.verdict import TriageResult
from fattn_probe.llama.source import DEFAULT_SOURCE


@dataclass(frozen=True)
class Advice:
    """One piece of advice: the reason, and the command if there is one."""

    why: str
    command: str = ""


def flags_of(source: str = DEFAULT_SOURCE, patches: Sequence[str] = (), devices: Path | None = None) -> list[str]:
    """The flags by which a further command selects the same build and devices."""
    words = [] if source == DEFAULT_SOURCE else ["--source", source]
    words += [word for patch in patches for word in ("--patch", patch)]
    return words + ([] if devices is None else ["--devices", str(devices)])


def advice_of(result: TriageResult, folder: Path, flags: Sequence[str]) -> list[Advice]:
    """The advice for a result whose case files are in a folder, the most useful first."""
    files = [str(folder / f"{case}{RECORDED}") for case in result.cases]
    guilty, out = result.answer.guilty, ("--out", f"{folder}-reproduced")
    match guilty:
        case AttentionWrong(target=target):
            return [
                fattn("see what is wrong, and where", "compare", files, target, flags),
                fattn("see what the kernel does", "inspect", files, target, flags),
                fattn("write a reproduction for a maintainer", "reproduce", files, target, flags, *out),
            ]
        case AttentionOverflows(target=target):
            return [
                fattn("see the error model's explanation", "compare", files, target, flags),
                fattn("see where the first value leaves the range", "inspect", files, target, flags, "--find-nan"),
            ]
        case OtherOpWrong(node=node):
            return [Advice("let upstream's own test judge this op", f"test-backend-ops test -o {node.op}")]
        case NotFinite() | PartsWithout():
            return around(result, files, flags)
        case AsDesigned():
            target = next(found.on for found in result.judgements if found.warning)
            return [fattn("see the error that the kernel's arithmetic causes", "compare", files, target, flags)]
        case Innocent() | Unknown():
            return []


def around(result: TriageResult, files: Sequence[str], flags: Sequence[str]) -> list[Advice]:
    """Advice on a tensor of the model's own run: examine the model, and the attention of the layer."""
    found, guilty = [], result.answer.guilty
    if isinstance(guilty, NotFinite):
        found.append(Advice("look at the model: its values leave the range of a type, whatever runs attention"))
    if isinstance(guilty, PartsWithout):
        found.append(Advice("look at the graph: the inputs of attention, with and without flash attention"))
    if any(op.found for op in result.ops if op.case in result.cases):
        found.append(fattn("judge the layer's attention", "compare", files[:1], result.targets[0], flags))
    return found


def fattn(why: str, command: str, files: Sequence[str], target: str, flags: Sequence[str], *rest: str) -> Advice:
    """A command of fattn-probe on case files and a target."""
    words = ["fattn-probe", command, *files, "--on", target, *flags, *rest]
    return Advice(why, shlex.join(words))
