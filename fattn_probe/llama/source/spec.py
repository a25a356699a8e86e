"""The values of `--source`: a release on a Python package index, a git commit, or a folder; and the known releases.

`releases.csv` lists the releases on the package index that contain the attention kernels in their present form, each
with llama.cpp's build number, or with its commit if the project states only the commit.
"""

import csv
import functools
import io
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from fattn_probe.base.errors import InputError

TABLE = "releases.csv"


@dataclass(frozen=True)
class Release:
    """A release on the index; `build` is llama.cpp's build number or None, `commit` llama.cpp's commit or empty."""

    project: str
    version: str
    build: int | None
    commit: str
    uploaded: str

    @property
    def source(self) -> str:
        """The value of `--source` for the release."""
        return f"pypi:{self.project}=={self.version}"


@functools.cache
def releases() -> tuple[Release, ...]:
    """All releases by project, oldest first."""
    rows = csv.reader(io.StringIO((files(__package__) / TABLE).read_text(encoding="utf-8")))
    next(rows)  # skip the header
    return tuple(
        Release(project, version, int(build) if build else None, commit, uploaded)
        for project, version, build, commit, uploaded in rows
    )


@functools.cache
def builds() -> tuple[int, ...]:
    """The known build numbers, in order."""
    return tuple(sorted({release.build for release in releases() if release.build is not None}))


DEFAULT_SOURCE = "pypi:xllamacpp==2026.10.11549"
UPSTREAM = "https://github.com/ggml-org/llama.cpp"
ALLOWED = "pypi:NAME==VERSION, git:REF, git+file:///PATH@REF, git+https://HOST/PATH@REF, or a folder"

# sha256 of the sdists with which fattn-probe is tested; other releases are verified with the index's digest.
PINS = {
    ("xllamacpp", "0.2.8"): "459ef121537e35e1841537f2ea5032b1715ea9b23e1326324511f57de51b6095",
    ("xllamacpp", "0.2.12"): "9a0f70368015eb2a3fe61bc5547f5baff0331553831eb98de895f1415f150407",
    ("xllamacpp", "2026.4.8672"): "aa412528d71ad73905b5111a26bec4c2d228c2e4d6220d20dff229934b2e93a3",
    ("xllamacpp", "2026.9.11063"): "37ad3d0389f1d65b68e7d341df86d55077158950a764801be94f955024afb759",
    ("xllamacpp", "2026.10.11549"): "c17ee1163006f70726abb9f72137830818f3d8cb60bfc34cb232d08428eaa22b",
}

RELEASE_TAG = re.compile(r"b(\d+)")  # llama.cpp tags every build as b<build number>
_PYPI = re.compile(r"pypi:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)")
_GIT_URL = re.compile(r"git\+(?P<url>(?:file|https)://[^@]+)@(?P<ref>.+)")
_REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]*")  # no dash first: git would read it as an option
_CALENDAR = re.compile(r"20\d\d\.\d+\.(?P<build>\d+)(\.\d+)?")


@dataclass(frozen=True)
class PypiSpec:
    """A release on the package index whose sdist contains a llama.cpp tree; `name` is normalised as in PEP 503."""

    name: str
    version: str

    @property
    def build_number(self) -> str:
        """The llama.cpp build number, from a calendar version of xllamacpp or from releases.csv; `?` if unknown."""
        match = _CALENDAR.fullmatch(self.version) if self.name == "xllamacpp" else None
        listed = (release.build for release in releases() if release.source == f"pypi:{self.name}=={self.version}")
        return match["build"] if match else str(next(listed, None) or "?")


@dataclass(frozen=True)
class GitSpec:
    """A commit, tag or branch of a git repository."""

    url: str
    ref: str


@dataclass(frozen=True)
class FolderSpec:
    """A folder with a llama.cpp tree."""

    path: Path


Spec = PypiSpec | GitSpec | FolderSpec


def is_release(text: str) -> bool:
    """Whether a source specification names a llama.cpp release with a known build number, which fixes the kernels."""
    match parse_spec(text):
        case PypiSpec() as release:
            return release.build_number != "?"
        case GitSpec(url, ref):
            return url == UPSTREAM and RELEASE_TAG.fullmatch(ref) is not None
        case FolderSpec():
            return False


def normalise_name(name: str) -> str:
    """A project's name as the index spells it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_spec(text: str) -> Spec:
    """Parse a source specification; InputError says what is allowed."""
    if match := _PYPI.fullmatch(text):
        return PypiSpec(normalise_name(match["name"]), match["version"])
    if text.startswith("git:"):
        return GitSpec(UPSTREAM, checked_ref(text, text.removeprefix("git:")))
    if match := _GIT_URL.fullmatch(text):
        return GitSpec(match["url"], checked_ref(text, match["ref"]))
    if text.startswith(("pypi:", "git+")) or not text.strip():
        hint = ""
        if text.startswith("pypi:") and "=" in text and "==" not in text:
            hint = f"; did you mean {text.replace('=', '==', 1)!r}?"
        elif text.startswith("pypi:") and "=" not in text:
            hint = f"; the version is missing, for example {DEFAULT_SOURCE!r}"
        elif text.startswith("git+") and "@" not in text:
            hint = f"; the commit is missing: {text + '@master'!r}"
        raise InputError(f"source {text!r} is not one of: {ALLOWED}{hint}")
    return FolderSpec(Path(text).expanduser())


def checked_ref(text: str, ref: str) -> str:
    """The ref, checked so that git can only read it as a ref; InputError if it is not a valid name."""
    if _REF.fullmatch(ref) and ".." not in ref:
        return ref
    raise InputError(f"source {text!r}: {ref!r} is not a commit, tag or branch name")
