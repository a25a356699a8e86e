"""A llama.cpp tree: its folder, its build number, and a digest of the files that matter."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fattn_probe.source.features import Features

LANDMARK = PurePosixPath("ggml/src/ggml-cuda/fattn.cu")
GGML_LANDMARK = LANDMARK.relative_to("ggml")
"""The same file in ggml's own repository, which has no folder `ggml` around its `src`."""
OUTSIDE_GGML = frozenset({"LICENSE", "tests"})
"""What lies beside llama.cpp's folder `ggml`, and not in it, of the files that ggml's repository has too."""

# What building ggml with its CPU and CUDA backends and test-backend-ops reads. The other backends, models, docs and
# the server would make a tree ten times as large.
KEPT_FILES = frozenset({"LICENSE", "ggml/CMakeLists.txt", "tests/test-backend-ops.cpp"})
KEPT_FOLDERS = ("cmake", "ggml/cmake", "ggml/include", "ggml/src/ggml-cpu", "ggml/src/ggml-cuda")
FLAT_FOLDER = PurePosixPath("ggml/src")  # only its own files: its folders are the backends


@dataclass(frozen=True)
class Tree:
    """A source: `root` is the folder of llama.cpp and is never written to.

    `build_number` is llama.cpp's own (as in tag b11549), `?` where nothing tells it. `digest` is a sha256 over the
    paths and contents of the kept files, so two trees with one digest build the same.
    """

    spec: str
    root: Path
    build_number: str
    digest: str
    features: Features


def is_kept(path: PurePosixPath) -> bool:
    """Whether a file, relative to llama.cpp's folder, belongs to what fattn-probe builds from."""
    return (
        str(path) in KEPT_FILES
        or path.parent == FLAT_FOLDER
        or any(path.is_relative_to(folder) for folder in KEPT_FOLDERS)
    )


def kept_files(root: Path) -> Iterator[PurePosixPath]:
    """The kept files that a tree has, sorted by path."""
    candidates = [root / file for file in KEPT_FILES]
    candidates += (root / FLAT_FOLDER).iterdir() if (root / FLAT_FOLDER).is_dir() else ()
    for folder in KEPT_FOLDERS:
        candidates += (root / folder).rglob("*")
    yield from sorted(PurePosixPath(path.relative_to(root).as_posix()) for path in candidates if path.is_file())


def digest_tree(root: Path) -> str:
    """The sha256 of the kept files' paths and contents."""
    digest = hashlib.sha256()
    for path in kept_files(root):
        content = (root / path).read_bytes()
        digest.update(b"%s\0%d\0" % (str(path).encode(), len(content)))
        digest.update(content)
    return digest.hexdigest()


def in_llama_cpp(path: PurePosixPath) -> PurePosixPath:
    """The place in a llama.cpp tree of a file of ggml's own repository: `ggml/src/ggml.c` of `src/ggml.c`."""
    return path if path.parts[0] in OUTSIDE_GGML else "ggml" / path


def find_tree(folder: Path) -> Path | None:
    """llama.cpp's folder in or below an unpacked source, or None."""
    nested = (folder, folder / "thirdparty/llama.cpp", folder / "vendor/llama.cpp")
    return next((root for root in nested if (root / LANDMARK).is_file()), None)
