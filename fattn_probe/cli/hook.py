"""The command line of `hook`, which runs a suite before git pushes commits that change attention files."""

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fattn_probe.base.console import NOTES, show
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import read_text, write_text
from fattn_probe.base.process import run_attached
from fattn_probe.cases import shipped
from fattn_probe.cli import flags
from fattn_probe.llama.source.git import changed_files, commit_source, git, merge_base, upstream_commit
from fattn_probe.llama.source.tree import checkout_of

MARK = "# fattn-probe: judges the attention kernels that a push changes. `git push --no-verify` skips it."
DEFAULT_SUITE = Path("quick")
hook_app = typer.Typer(
    help="A git hook that judges changed attention kernels before a push: install, run.", no_args_is_help=True
)


def here() -> Path:
    """The checkout that contains the current folder."""
    if (root := checkout_of(Path.cwd())) is None:
        raise InputError("this folder is not in a llama.cpp checkout: no parent folder has ggml/src/ggml-cuda/fattn.cu")
    return root


@hook_app.command("install")
def hook_install(suite_file: flags.SuiteFile = DEFAULT_SUITE, as_json: flags.Json = False) -> None:
    """Write the pre-push hook of the checkout that contains the current folder."""
    root = here()
    own = suite_file.is_relative_to(shipped.folder("suite"))
    word = shlex.quote(shipped.name_of("suite", suite_file) if own else str(suite_file.resolve()))
    hooks = git(root, "rev-parse", "--path-format=absolute", "--git-path", "hooks")
    if hooks is None:
        raise InputError(f"{root} is not a git checkout")
    path, line = Path(hooks) / "pre-push", f'exec "{sys.executable}" -m fattn_probe hook run {word} "$@"'
    if path.exists() and MARK not in read_text(path, "the hook"):
        raise InputError(f"{path} exists, and fattn-probe did not write it; add this line to it: {line}")
    write_text(path, f"#!/bin/sh\n{MARK}\n{line}\n")
    path.chmod(0o755)
    show({"hook": str(path)}, lambda: Text(f"wrote {path}"), as_json)


@hook_app.command("run")
def hook_run(
    suite_file: flags.SuiteFile = DEFAULT_SUITE,
    remote: Annotated[str, typer.Argument(help="The remote's name, from git.")] = "origin",
    url: Annotated[str, typer.Argument(help="The remote's address, from git.", hidden=True)] = "",
) -> None:
    """Run a suite on each pushed commit that changes attention files; git or pre-commit calls this."""
    root = here()
    for commit, old in dict(pushed()).items():
        new = git(root, "cat-file", "-e", f"{old}^{{commit}}") is None
        base = upstream_commit(root, commit, remote) if new else merge_base(root, old, commit)
        changed = changed_files(root, base, commit) if base else ["all, since no upstream is known"]
        if not changed:
            continue
        NOTES.print(f"fattn-probe: {commit[:9]} changes attention files: {', '.join(changed)}", soft_wrap=True)
        words = [sys.executable, "-m", "fattn_probe", "regress", str(suite_file), "--exitfirst"]
        code, _ = run_attached([*words, "--source", commit_source(root, commit)])
        if code:
            raise typer.Exit(code)


def pushed() -> Iterator[tuple[str, str]]:
    """Each pushed commit, with the tip of the remote branch (all zeros for a new branch); skips deleted branches."""
    if "PRE_COMMIT_TO_REF" in os.environ:
        yield os.environ["PRE_COMMIT_TO_REF"], os.environ.get("PRE_COMMIT_FROM_REF", "")
        return
    for line in sys.stdin:
        _, commit, _, old = line.split()
        if commit.strip("0"):
            yield commit, old
