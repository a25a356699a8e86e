"""The checkout of a fork: where it branched off from upstream, and the attention files that changed since."""

import os.path
import re
import shutil
from pathlib import Path
from urllib.parse import quote

from fattn_probe.base.errors import InputError
from fattn_probe.base.process import run
from fattn_probe.llama.source.features import CUDA
from fattn_probe.llama.source.git import cleared

INCLUDED = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def git(root: Path, *words: str) -> str | None:
    """The output of git in a checkout, without the last line's end; None if it fails."""
    done = run(["git", "-C", root, *words], env=cleared(), failure=None)
    return done.stdout.rstrip("\n") if done.code == 0 else None


def commit_source(root: Path, commit: str) -> str:
    """The source specification of a commit in the repository of a checkout."""
    return f"git+file://{quote(git(root, 'rev-parse', '--show-toplevel') or str(root))}@{commit}"


def merge_base(root: Path, ref: str, head: str = "HEAD") -> str:
    """The last commit that a checkout's `head` shares with a branch or commit of its repository, as 40 digits."""
    if git(root, "rev-parse", "--verify", "--quiet", f"{head}^{{commit}}") is None:
        raise InputError(f"{root} is not a git checkout with a commit {head}, so it has no merge base with {ref}")
    if git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}") is None:
        raise InputError(f"{root} has no branch or commit {ref!r}; name one such as origin/master, or fetch it first")
    found = git(root, "merge-base", head, ref)
    if found is None:
        raise InputError(
            f"{root}: {head} and {ref} have no commit in common here; fetch their whole history "
            "(git fetch --unshallow; with actions/checkout, fetch-depth: 0)"
        )
    return found


def upstream_commit(root: Path, head: str = "HEAD", remote: str = "origin") -> str | None:
    """The merge base of `head` with the branch that a checkout follows, else with that of its remote; or None."""
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None
    for ref in ("@{upstream}", *(f"{remote}/{branch}" for branch in ("HEAD", "master", "main"))):
        if found := git(root, "merge-base", head, ref):
            return found
    return None


def changed_files(root: Path, base: str, head: str = "") -> list[str]:
    """The attention files that differ between a commit and `head`, or the working tree with its new files.

    Attention files are `fattn*`, their template instances, and the files of ggml-cuda that these include. Their names
    are relative to ggml-cuda.
    """
    ranges = [base, head] if head else [base]
    found = git(root, "diff", "--name-only", "--no-renames", "--relative", *ranges, "--", str(CUDA)) or ""
    fresh = "" if head else git(root, "ls-files", "--others", "--exclude-standard", "--", str(CUDA)) or ""
    names = {str(Path(name).relative_to(CUDA)) for name in f"{found}\n{fresh}".splitlines() if name}
    included = attention_files(root / CUDA) if names else frozenset()
    return sorted(name for name in names if name in included or Path(name).name.startswith("fattn"))


def attention_files(cuda: Path) -> frozenset[str]:
    """The files of attention in the folder ggml-cuda, and those there that they include."""
    left, found = [*cuda.glob("fattn*"), *cuda.glob("template-instances/fattn-*")], set[str]()
    while left:
        path = left.pop()
        name = os.path.relpath(path, cuda)
        if name not in found and path.is_file():
            found.add(name)
            left += [path.parent / other for other in INCLUDED.findall(path.read_text(errors="replace"))]
    return frozenset(found)
