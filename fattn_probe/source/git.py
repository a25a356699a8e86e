"""A llama.cpp tree from a git repository, through the system's git."""

import re
import shutil
from pathlib import Path

from fattn_probe.errors import InputError
from fattn_probe.process import run
from fattn_probe.source.spec import GitSpec

TIMEOUT = 600.0
FULL_COMMIT = re.compile(r"[0-9a-f]{40}")
RELEASE_TAG = re.compile(r"b(\d+)")  # llama.cpp tags every build as b<build number>
# Nothing of the user's configuration: no hooks, no prompts for a password.
ENVIRONMENT = {"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1"}


def find_commit(spec: GitSpec) -> str:
    """The full commit that a ref means in its repository now."""
    if FULL_COMMIT.fullmatch(spec.ref):
        return spec.ref
    names = [f"refs/tags/{spec.ref}^{{}}", f"refs/tags/{spec.ref}", f"refs/heads/{spec.ref}"]
    listing = run(["git", "ls-remote", "--", spec.url, *names], env=ENVIRONMENT, timeout=TIMEOUT, failure=InputError)
    found = {name: commit for commit, name in (line.split("\t") for line in listing.stdout.splitlines())}
    for name in names:
        if name in found:
            return found[name]
    raise InputError(f"{spec.url} has no tag or branch {spec.ref!r} (a commit needs all 40 digits)")


def archive_commit(spec: GitSpec, commit: str, folder: Path) -> Path:
    """Fetch one commit without its history and write it as a tar file into `folder`."""
    repository, archive = folder / "git", folder / "tree.tar"
    run(["git", "init", "--quiet", "--bare", repository], env=ENVIRONMENT, timeout=TIMEOUT)
    fetch = ["git", "-C", str(repository), "fetch", "--quiet", "--depth=1", "--no-tags", "--", spec.url, commit]
    run(fetch, env=ENVIRONMENT, timeout=TIMEOUT, failure=InputError)
    run(["git", "-C", repository, "archive", "--output", archive, commit], env=ENVIRONMENT, timeout=TIMEOUT)
    return archive


def build_number_of_ref(ref: str) -> str:
    """The build number if the ref is one of llama.cpp's release tags, else `?`."""
    match = RELEASE_TAG.fullmatch(ref)
    return match[1] if match else "?"


def build_number_of_folder(root: Path) -> str:
    """The build number of a checkout, which is the number of its commits; `?` without a whole history."""
    if not (root / ".git").exists() or shutil.which("git") is None:
        return "?"
    shallow = run(["git", "-C", root, "rev-parse", "--is-shallow-repository"], failure=None)
    count = run(["git", "-C", root, "rev-list", "--count", "HEAD"], failure=None)
    return count.stdout.strip() if shallow.stdout.strip() == "false" and count.code == 0 else "?"
