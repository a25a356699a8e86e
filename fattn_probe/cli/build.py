"""The command line of `build`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe.base.console import NOTES, show
from fattn_probe.cases.scenario.cases import cases_of
from fattn_probe.cli import flags, setup
from fattn_probe.cli.commands import offered
from fattn_probe.cli.setup import BuildFlags
from fattn_probe.llama.build import RUNNER, TEST_BACKEND_OPS, BuildRequest, ensure
from fattn_probe.llama.build import command as building
from fattn_probe.llama.build import export as export_build
from fattn_probe.llama.build.key import Engine
from fattn_probe.llama.build.sources import CONVERSIONS
from fattn_probe.machine.run.prepare import kernels_of_build, required_sources
from fattn_probe.machine.run.session import gpu_arch, has_gpu


@dataclass(frozen=True)
class BuildContents:
    """Contents of the build"""

    kernel: Annotated[list[str] | None, typer.Option(help='A kernel such as "mma 64,64,8,8"; repeatable.')] = None
    full: Annotated[bool, typer.Option("--full", help="Compile every kernel that upstream compiles.")] = False
    ops: Annotated[bool, typer.Option("--ops", help="Also build test-backend-ops.")] = False
    again: Annotated[
        bool, typer.Option("--no-ccache", help="Recompile everything, and replace the objects in ccache.")
    ] = False


def build(
    paths: flags.MaybeScenarios = None,
    *,
    engine: Annotated[
        Engine | None, typer.Option(help="sim or cuda; default: cuda if there is a GPU or --arch, else sim.")
    ] = None,
    arch: Annotated[
        str,
        typer.Option(
            help="GPU architecture, such as 90, 120a, or (with --engine sim) gfx1100; default: this machine's GPU."
        ),
    ] = "",
    compiled: BuildContents,
    export: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Copy the finished build to a new folder, to run it on another machine."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands without running them.")] = False,
    chosen: Annotated[BuildFlags, offered("source", "patch", "debug", "check", "sanitize", "quants")],
    as_json: flags.Json = False,
) -> None:
    """Build llama.cpp's CUDA backend with the kernels that scenarios need; without scenarios, later runs add them."""
    tree = setup.tree_of(chosen)
    engine = engine or ("cuda" if arch or has_gpu() else "sim")
    request = BuildRequest(
        tree,
        engine,
        setup.flavour_of(chosen),
        arch=arch or (gpu_arch(0) if has_gpu() else "90"),
        sanitize=setup.words(chosen.sanitize),
        patches=setup.patches_of(chosen, tree),
        quants=setup.words(chosen.quants),
    )
    kernels = [building.find_kernel(tree, text) for text in compiled.kernel or []]
    cases = cases_of(paths) if paths else []
    kernels += kernels_of_build(request, cases, setup.build_progress(NOTES)) if cases else []
    programs = (RUNNER, TEST_BACKEND_OPS) if compiled.ops or engine == "cuda" else (RUNNER,)
    sources = required_sources(cases)
    if dry_run:
        from fattn_probe.llama.build.make import plan_build  # imports for compiling only

        folder, plan = plan_build(request, kernels, programs, full=compiled.full, sources=sources)
        lines = [f"in {folder}:", *plan.commands]
        show({"folder": str(folder), "commands": list(plan.commands)}, lambda: "\n".join(lines), as_json)
        return
    made = ensure(
        request,
        kernels,
        programs,
        full=compiled.full,
        sources=(CONVERSIONS,) if export else sources,  # runs cannot add to an export
        progress=setup.build_progress(NOTES, building.title_of(request)),
        again=compiled.again,
    )
    made = export_build(made, export) if export else made
    show(building.build_data(made), lambda: building.build_table(made), as_json)
