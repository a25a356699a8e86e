"""`fattn-probe build`: finds the requested kernels, shows progress, and prints the finished build."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from fattn_probe.base.errors import InputError
from fattn_probe.base.figures import clock
from fattn_probe.base.tables import labelled
from fattn_probe.cases.device import arch_name
from fattn_probe.llama.build.key import Build, BuildRequest
from fattn_probe.llama.build.ninja import Progress, Report
from fattn_probe.llama.build.plan import kernel_of
from fattn_probe.llama.source import KernelCase, Tree, kernel_cases

BAR = 10


def find_kernel(tree: Tree, text: str) -> KernelCase:
    """The kernel case that `text` names: `mma 64,64,8,8`, `vec 128,f16,q8_0`, with or without GGML_TYPE_.

    For an unknown case, InputError lists the cases of the same family and head size.
    """
    family, _, rest = text.strip().partition(" ")
    wanted = [word.strip().removeprefix("GGML_TYPE_").lower() for word in rest.split(",")]
    cases = [case for case in kernel_cases(tree) if case.family == family]
    for case in cases:
        if [arg.removeprefix("GGML_TYPE_").lower() for arg in case.args] == wanted:
            return case
    near = [case.name for case in cases if case.args[0] == wanted[0]] or [case.name for case in cases]
    known = f"; it has {', '.join(near[:12])}" if near else "; the families are mma, tile, vec"
    raise InputError(f"{tree.spec} has no kernel {text!r}{known}")


def status_line(progress: Progress) -> Text:
    """The progress line: a bar, the finished and total steps, the time so far, the time left, the current step."""
    filled = BAR * progress.done // max(progress.total, 1)
    left = "" if progress.left is None else f", about {clock(progress.left)} left"
    return Text.assemble(
        ("━" * filled, "green"),
        ("━" * (BAR - filled), "dim"),
        f" {progress.done}/{progress.total}",
        (f" {clock(progress.seconds)}{left}", "dim"),
        f" {kernel_of(progress.label)}",
    )


def steps_done(progress: Progress) -> str:
    """The progress as text: `12 of 63 steps, 3:20, about 2:00 left`."""
    left = "" if progress.left is None else f", about {clock(progress.left)} left"
    return f"{progress.done} of {progress.total} steps, {clock(progress.seconds)}{left}"


def announced(console: Console, title: str) -> Report:
    """A `Report` that prints the title once, unless there is nothing to build."""
    said: list[str] = []

    def report(progress: Progress) -> None:
        if progress.total and not said:
            said.append(title)
            console.print(Text(f"{title}: {progress.total} steps"))

    return report


def title_of(request: BuildRequest) -> str:
    """A description of what is being built."""
    patches = f" with {', '.join(patch.name for patch in request.applied)}" if request.applied else ""
    return f"Building {request.tree.spec}{patches} for {request.engine}, {arch_name(request.arch)}, {request.flavour}"


def build_data(made: Build) -> dict[str, Any]:
    """A build as data for JSON."""
    manifest, built = made.manifest, made.manifest.fingerprint
    return {
        "folder": str(made.folder),
        "source": manifest.source,
        "build_number": manifest.build_number,
        "engine": built.engine,
        "flavour": built.flavour,
        "arch": built.arch,
        "sanitize": list(built.sanitize),
        "patches": list(manifest.patches),
        "compilers": list(built.compilers),
        "kernels": list(manifest.contents.kernels),
        "programs": [str(made.program(name)) for name in manifest.contents.programs],
        "full": manifest.contents.full,
        "objects": asdict(made.objects) if made.objects else None,
    }


def build_table(made: Build) -> RenderableType:
    """A build as a table, one line per property."""
    data = build_data(made)
    kernels = "all that upstream compiles" if data["full"] else ", ".join(data["kernels"]) or "none yet; runs add them"
    objects = made.objects
    made_now = f"{objects.compiled} compiled, {objects.reused} from ccache" if objects else "up to date"
    words = {
        "source": f"{data['source']} (llama.cpp b{data['build_number']})",
        "engine": f"{data['engine']}, {arch_name(data['arch'])}, {data['flavour']}",
        "kernels": kernels,
        "objects": made_now,
        "folder": data["folder"],
        "programs": ", ".join(Path(path).name for path in data["programs"]),
    }
    return labelled({name: Text(word, overflow="fold") for name, word in words.items()})
