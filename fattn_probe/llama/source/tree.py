"""A llama.cpp tree: its folder, its build number, and a digest of its relevant files."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fattn_probe.base.digest import hexdigest
from fattn_probe.llama.source.features import Features

LANDMARK = PurePosixPath("ggml/src/ggml-cuda/fattn.cu")
GGML_LANDMARK = LANDMARK.relative_to("ggml")
"""The path of the landmark in ggml's own repository, which has no folder `ggml` around `src`."""
OUTSIDE_GGML = frozenset({"LICENSE", "tests"})
"""Paths in ggml's repository that llama.cpp has outside its folder `ggml`."""

# The files needed to build ggml with its CPU and CUDA backends, and test-backend-ops. With the other backends, models,
# docs and the server, a tree would be ten times as large.
KEPT_FILES = frozenset({"LICENSE", "ggml/CMakeLists.txt", "tests/test-backend-ops.cpp"})
KEPT_FOLDERS = ("cmake", "ggml/cmake", "ggml/include", "ggml/src/ggml-cpu", "ggml/src/ggml-cuda")
FLAT_FOLDER = PurePosixPath("ggml/src")  # only the files directly in this folder; its subfolders are the backends
MODEL_LANDMARK = PurePosixPath("src/llama.cpp")
MODEL_FOLDERS = ("include", "src")
"""The additional folders needed to build libllama. They have a separate digest, and are not in ggml's repository."""


@dataclass(frozen=True)
class Tree:
    """A source; `root` is llama.cpp's folder, and is never written to.

    `build_number` is llama.cpp's (as in tag b11549), `?` if unknown. `digest` is the sha256 of the paths and contents
    of the kept files, except those of libllama, so trees with equal digests build the same kernels. `revision` is the
    commit of a checkout, and whether files differ from it; empty for other sources.
    """

    spec: str
    root: Path
    build_number: str
    digest: str
    features: Features
    revision: str = ""


def is_kept(path: PurePosixPath) -> bool:
    """Whether fattn-probe's builds need a file, given relative to llama.cpp's folder."""
    folders = (*KEPT_FOLDERS, *MODEL_FOLDERS)
    return str(path) in KEPT_FILES or path.parent == FLAT_FOLDER or any(map(path.is_relative_to, folders))


def kept_files(root: Path) -> Iterator[PurePosixPath]:
    """The kept files of a tree, without libllama's files, sorted by path."""
    candidates = [root / file for file in KEPT_FILES]
    candidates += (root / FLAT_FOLDER).iterdir() if (root / FLAT_FOLDER).is_dir() else ()
    for folder in KEPT_FOLDERS:
        candidates += (root / folder).rglob("*")
    yield from relative_files(root, candidates)


def model_files(root: Path) -> Iterator[PurePosixPath]:
    """The files of libllama in a tree, sorted by path; empty if the tree does not contain libllama."""
    if has_models(root):
        yield from relative_files(root, (path for folder in MODEL_FOLDERS for path in (root / folder).rglob("*")))


def has_models(root: Path) -> bool:
    """Whether a tree has libllama's source; ggml's own repository does not."""
    return (root / MODEL_LANDMARK).is_file()


def relative_files(root: Path, candidates: Iterable[Path]) -> list[PurePosixPath]:
    """The candidates that are files, sorted, relative to `root`."""
    return sorted(PurePosixPath(path.relative_to(root).as_posix()) for path in candidates if path.is_file())


def digest_tree(root: Path) -> str:
    """The sha256 of the paths and contents of the kept files, without libllama's files."""
    return digest_files(root, kept_files(root))


def digest_models(root: Path) -> str:
    """The sha256 of the paths and contents of libllama's files."""
    return digest_files(root, model_files(root))


def digest_files(root: Path, files: Iterable[PurePosixPath]) -> str:
    """The sha256 of the paths and contents of some files in a tree."""
    contents = ((path, (root / path).read_bytes()) for path in files)
    return hexdigest(b"%s\0%d\0%s" % (str(path).encode(), len(content), content) for path, content in contents)


def checkout_of(folder: Path) -> Path | None:
    """The llama.cpp checkout that contains a folder: the nearest folder, at or above it, with the kernels; or None."""
    return next((root for root in (folder, *folder.parents) if (root / LANDMARK).is_file()), None)
