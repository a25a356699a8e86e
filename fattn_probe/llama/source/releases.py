"""The releases on the package index that carry the attention kernels in their present form.

`releases.csv` lists them, with llama.cpp's build number, or the commit if the project names only that.
"""

import csv
import functools
import io
from dataclasses import dataclass
from importlib.resources import files

TABLE = "releases.csv"


@dataclass(frozen=True)
class Release:
    """A release: `build` is llama.cpp's build number, None if unknown; `commit` is that of llama.cpp, or empty."""

    project: str
    version: str
    build: int | None
    commit: str
    uploaded: str

    @property
    def source(self) -> str:
        """Its `--source`."""
        return f"pypi:{self.project}=={self.version}"


@functools.cache
def releases() -> tuple[Release, ...]:
    """All releases, by project, the oldest first."""
    rows = csv.reader(io.StringIO((files(__package__) / TABLE).read_text(encoding="utf-8")))
    next(rows)  # the names of the columns
    return tuple(
        Release(project, version, int(build) if build else None, commit, uploaded)
        for project, version, build, commit, uploaded in rows
    )


@functools.cache
def builds() -> tuple[int, ...]:
    """The known build numbers, in order."""
    return tuple(sorted({release.build for release in releases() if release.build is not None}))
