"""llama.cpp trees from git repositories, with the system's git; and the commit where a checkout branched off."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from fattn_probe.base.errors import InputError
from fattn_probe.base.files import scratch, writing
from fattn_probe.base.process import run
from fattn_probe.llama.cxx.includes import included
from fattn_probe.llama.source.features import CUDA
from fattn_probe.llama.source.spec import RELEASE_TAG, GitSpec, releases

TIMEOUT = 600.0
FULL_COMMIT = re.compile(r"[0-9a-f]{40}")
KEPT_SETTINGS = re.compile(r"http\..+|credential\..+|core\.askpass|safe\.directory")
"""The user's connection settings: proxies, certificates, credentials."""
KEPT_VARIABLES = ("GIT_ASKPASS", "GIT_EXEC_PATH", "GIT_HTTP_", "GIT_PROXY_SSL_", "GIT_SSL_", "GIT_TRACE")
OWN_SETTINGS = {"core.hookspath": os.devnull, "core.attributesfile": os.devnull}
UNCOMMITTED = " with uncommitted changes"
Environment = dict[str, str | None]


@contextmanager
def environment() -> Iterator[Environment]:
    """The environment for git; it keeps only those user settings that affect the connection, not the content.

    So `url.insteadOf`, hooks, templates, filters, attributes and prompts are off, and so is a git hook's GIT_DIR.
    """
    with scratch() as folder:
        config = folder / "gitconfig"
        with writing(config):
            config.write_text("".join(settings()))
        yield {
            **cleared(),
            "GIT_CONFIG_GLOBAL": str(config),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": "file:https",
        }


def cleared() -> Environment:
    """Git's variables in this process's environment, marked for removal, except those for the connection."""
    return {name: None for name in os.environ if name.startswith("GIT_") and not name.startswith(KEPT_VARIABLES)}


def settings() -> Iterator[str]:
    """Our own settings, and those kept from the user and the machine, in the format of git's configuration files.

    A repository's own settings are left out. Settings are not passed on a command line: one may be a password.
    """
    listing = run(["git", "-C", "/", "config", "--list", "--includes", "--show-scope", "-z"], failure=None).stdout
    words, found = listing.split("\0"), [*OWN_SETTINGS.items()]
    for scope, item in zip(words[::2], words[1::2], strict=False):
        key, has_value, value = item.partition("\n")
        if scope in ("system", "global", "command") and KEPT_SETTINGS.fullmatch(key):
            found.append((key, value if has_value else "true"))
    for key, value in found:
        section, _, rest = key.partition(".")
        subsection, _, name = rest.rpartition(".")
        head = f"{section} {quoted(subsection)}" if subsection else section
        yield f"[{head}]\n\t{name} = {quoted(value)}\n"


def quoted(text: str) -> str:
    """A string, quoted for git's configuration files."""
    for character, written in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t")):
        text = text.replace(character, written)
    return f'"{text}"'


def find_commit(spec: GitSpec) -> str:
    """The full hash of the commit to which a ref in its repository currently points."""
    if FULL_COMMIT.fullmatch(spec.ref):
        return spec.ref
    names = [f"refs/tags/{spec.ref}^{{}}", f"refs/tags/{spec.ref}", f"refs/heads/{spec.ref}"]
    with environment() as env:
        listing = run(["git", "ls-remote", "--", spec.url, *names], env=env, timeout=TIMEOUT, failure=InputError)
    found = {name: commit for commit, name in (line.split("\t") for line in listing.stdout.splitlines())}
    for name in names:
        if name in found:
            return found[name]
    raise InputError(f"{spec.url} has no tag or branch {spec.ref!r} (a commit needs all 40 digits)")


def archive_commit(spec: GitSpec, commit: str, folder: Path) -> Path:
    """Fetch one commit without its history, and write it as a tar file to `folder`."""
    repository, archive = folder / "git", folder / "tree.tar"
    fetch = ["git", "-C", str(repository), "fetch", "--quiet", "--depth=1", "--no-tags", "--", spec.url, commit]
    with environment() as env:
        run(["git", "init", "--quiet", "--bare", "--template=", repository], env=env, timeout=TIMEOUT)
        run(fetch, env=env, timeout=TIMEOUT, failure=InputError)
        run(["git", "-C", repository, "archive", "--output", archive, commit], env=env, timeout=TIMEOUT)
    return archive


def build_number_of_commit(spec: GitSpec, commit: str) -> str:
    """The build number of a release tag, or of a commit in a checkout on this machine; otherwise `?`."""
    if match := RELEASE_TAG.fullmatch(spec.ref):
        return match[1]
    url = urlsplit(spec.url)
    return build_number_of_folder(Path(unquote(url.path)), commit) if url.scheme == "file" else "?"


def build_number_of_folder(root: Path, commit: str = "HEAD") -> str:
    """The build number of a checkout: the number in its nearest `bNNNN` tag, plus the number of commits since.

    Without a tag, the number of commits if a listed release's commit is among them; otherwise `?` (a squashed fork).
    """
    if not (root / ".git").exists() or shutil.which("git") is None:
        return "?"
    if found := git(root, "describe", "--tags", "--long", "--match=b[0-9]*", "--exclude=b*[!0-9]*", commit):
        tag, since, _ = found.split("-")
        return str(int(tag.removeprefix("b")) + int(since))
    complete = git(root, "rev-parse", "--is-shallow-repository") == "false"
    commits = (git(root, "rev-list", commit) or "").split() if complete else []
    listed = {release.commit for release in releases()}  # by their first 12 digits
    return str(len(commits)) if any(commit[:12] in listed for commit in commits) else "?"


def git(root: Path, *words: str) -> str | None:
    """The output of git in a checkout, without the final newline; None if git fails."""
    done = run(["git", "-C", root, *words], env=cleared(), failure=None)
    return done.stdout.rstrip("\n") if done.code == 0 else None


def commit_source(root: Path, commit: str) -> str:
    """The source specification for a commit in a checkout's repository."""
    return f"git+file://{quote(git(root, 'rev-parse', '--show-toplevel') or str(root))}@{commit}"


def revision_of(root: Path) -> str:
    """A checkout's commit as `git describe` names it, and whether files differ from it; empty for other folders."""
    if not (root / ".git").exists() or shutil.which("git") is None:
        return ""
    found = git(root, "describe", "--tags", "--always", "--dirty", "--abbrev=12") or ""
    return found.replace("-dirty", UNCOMMITTED)


def merge_base(root: Path, ref: str, head: str = "HEAD") -> str:
    """The merge base of a checkout's `head` and a branch or commit, as 40 digits; InputError if there is none."""
    if git(root, "rev-parse", "--verify", "--quiet", f"{head}^{{commit}}") is None:
        raise InputError(f"{root} is not a git checkout with a commit {head}, so it has no merge base with {ref}")
    if git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}") is None:
        raise InputError(f"{root} has no branch or commit {ref!r}; name one (e.g. origin/master), or fetch it first")
    found = git(root, "merge-base", head, ref)
    if found is None:
        raise InputError(
            f"{root}: {head} and {ref} have no common ancestor in this checkout; fetch their whole history "
            "(git fetch --unshallow; with actions/checkout, fetch-depth: 0)"
        )
    return found


def upstream_commit(root: Path, head: str = "HEAD", remote: str = "origin") -> str | None:
    """The merge base of `head` and the checkout's upstream branch, or the remote's main branch; None without either."""
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None
    for ref in ("@{upstream}", *(f"{remote}/{branch}" for branch in ("HEAD", "master", "main"))):
        if found := git(root, "merge-base", head, ref):
            return found
    return None


def changed_files(root: Path, base: str, head: str = "") -> list[str]:
    """The attention files, new ones included, that differ between a commit and `head` (by default the working tree).

    Attention files, relative to ggml-cuda: `fattn*`, their template instances, and the files there that these include.
    """
    ranges = [base, head] if head else [base]
    found = git(root, "diff", "--name-only", "--no-renames", "--relative", *ranges, "--", str(CUDA)) or ""
    fresh = "" if head else git(root, "ls-files", "--others", "--exclude-standard", "--", str(CUDA)) or ""
    names = {str(Path(name).relative_to(CUDA)) for name in f"{found}\n{fresh}".splitlines() if name}
    included = attention_files(root / CUDA) if names else frozenset()
    return sorted(name for name in names if name in included or Path(name).name.startswith("fattn"))


def attention_files(cuda: Path) -> frozenset[str]:
    """The attention files in the folder ggml-cuda, and the files there that they include."""
    own = [*cuda.glob("fattn*"), *cuda.glob("template-instances/fattn-*")]
    return frozenset(str(path.relative_to(cuda)) for path in included(own, (), cuda))
