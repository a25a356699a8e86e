"""The command line of `kernel`, and of `compare --kernel`."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe.base.activity import Activity
from fattn_probe.base.console import NOTES, OUT, show
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import write_text
from fattn_probe.base.tables import Table
from fattn_probe.cli import flags, setup
from fattn_probe.cli.setup import BuildFlags
from fattn_probe.lab.kernels.compiled import CUDA
from fattn_probe.lab.kernels.contender import How
from fattn_probe.lab.kernels.names import KNOWN, contenders_of
from fattn_probe.lab.kernels.show import Contest, document, render
from fattn_probe.machine.run.command import Work
from fattn_probe.machine.run.session import RunOptions
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.judge.judgement import raise_if_failed

kernel_app = typer.Typer(help="The attention kernels for compare --kernel: list, new.", no_args_is_help=True)


@kernel_app.command("list")
def kernel_list(as_json: flags.Json = False) -> None:
    """List the kernels that `compare --kernel` supports."""
    own = "FILE.cu:NAME", "your own: a function NAME that launches it (`fattn-probe kernel new`)", "sim (AMD too), gpu"
    table = Table(("kernel", "what it is", "runs on"), (*KNOWN, own), prose=frozenset({"what it is"}))
    show([dict(zip(("name", "about", "runs"), item, strict=True)) for item in KNOWN], lambda: table, as_json)


@kernel_app.command("new")
def kernel_new(
    file: Annotated[Path, typer.Argument(help="The file to write, such as my.cu.", metavar="FILE.cu")],
) -> None:
    """Write an attention kernel with comments, as a starting point."""
    if file.exists():
        raise InputError(f"{file} already exists: choose a different name")
    write_text(file, (CUDA / "starter.cu").read_text().replace("FILE", str(file)))
    OUT.print(f"wrote {file}; the contract is {CUDA / 'attention.h'}", soft_wrap=True)
    kernels = shlex.quote(f"llama,{file}:my_attention")
    OUT.print(f"try it: fattn-probe compare gqa --kernel {kernels}", soft_wrap=True)


def compare_kernels(
    kernel: str, build: BuildFlags, work: Work, checks: Checks, how: How, *, maps: bool, as_json: bool
) -> None:
    """Judge several kernels on the same cases; llama.cpp's sources are fetched only if its kernels take part."""
    with Activity(NOTES) as activity:
        building = activity.beside(setup.build_progress(NOTES, "compiling"), lambda one: one.done < one.total)
        contenders = contenders_of(setup.words(kernel), building)
        llama = any(contender is None for contender in contenders)
        activity.total = setup.number_of(work) * len(contenders)
        options = RunOptions(None)
        if llama:
            options = replace(setup.run_options(build), simulation=how.simulation, timeout=how.timeout)
        session = setup.prepared_session(options, work if llama else (), activity)
        rows = []
        for row in Contest(session, contenders, how, checks, activity.step).rows(work):
            activity.count(row.judgement.status)
            rows.append(row)
    show(document(rows), lambda: render(rows, contenders, maps=maps), as_json)
    raise_if_failed([row.named for row in rows])
