"""A llama.cpp tree: its folder, its build number, and a digest of the files that matter."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fattn_probe.base.digest import hexdigest
from fattn_probe.llama.source.features import Features

LANDMARK = PurePosixPath("ggml/src/ggml-cuda/fattn.cu")
GGML_LANDMARK = LANDMARK.relative_to("ggml")
"""The path of this file in ggml's own repository, which has no folder `ggml` around its `src`."""
OUTSIDE_GGML = frozenset({"LICENSE", "tests"})
"""Files of ggml's repository that llama.cpp has outside its folder `ggml`."""

# The files for building ggml with its CPU and CUDA backends and test-backend-ops. The other backends, models, docs and
# the server would make a tree ten times as large.
KEPT_FILES = frozenset({"LICENSE", "ggml/CMakeLists.txt", "tests/test-backend-ops.cpp"})
KEPT_FOLDERS = ("cmake", "ggml/cmake", "ggml/include", "ggml/src/ggml-cpu", "ggml/src/ggml-cuda")
FLAT_FOLDER = PurePosixPath("ggml/src")  # only files directly in it: its folders are the backends
MODEL_LANDMARK = PurePosixPath("src/llama.cpp")
MODEL_FOLDERS = ("include", "src")
"""The additional files for building libllama. They have a separate digest, and ggml's repository lacks them."""


@dataclass(frozen=True)
class Tree:
    """A source: `root` is the folder of llama.cpp and is never written to.

    `build_number` is llama.cpp's own (as in tag b11549), `?` if unknown. `digest` is a sha256 over the paths and
    contents of the kept files without those of libllama, so trees with the same digest build the same kernels.
    """

    spec: str
    root: Path
    build_number: str
    digest: str
    features: Features


def is_kept(path: PurePosixPath) -> bool:
    """Whether fattn-probe needs a file (relative to llama.cpp's folder) for its builds."""
    folders = (*KEPT_FOLDERS, *MODEL_FOLDERS)
    return str(path) in KEPT_FILES or path.parent == FLAT_FOLDER or any(map(path.is_relative_to, folders))


def kept_files(root: Path) -> Iterator[PurePosixPath]:
    """The kept files of a tree, without those of libllama, sorted by path."""
    candidates = [root / file for file in KEPT_FILES]
    candidates += (root / FLAT_FOLDER).iterdir() if (root / FLAT_FOLDER).is_dir() else ()
    for folder in KEPT_FOLDERS:
        candidates += (root / folder).rglob("*")
    yield from relative_files(root, candidates)


def model_files(root: Path) -> Iterator[PurePosixPath]:
    """The files of libllama in a tree, sorted by path; none if the tree lacks libllama."""
    if has_models(root):
        yield from relative_files(root, (path for folder in MODEL_FOLDERS for path in (root / folder).rglob("*")))


def has_models(root: Path) -> bool:
    """Whether a tree has libllama's source, which ggml's own repository lacks."""
    return (root / MODEL_LANDMARK).is_file()


def relative_files(root: Path, candidates: Iterable[Path]) -> list[PurePosixPath]:
    """Those paths that are files, relative to a tree, sorted."""
    return sorted(PurePosixPath(path.relative_to(root).as_posix()) for path in candidates if path.is_file())


def digest_tree(root: Path) -> str:
    """The sha256 of the paths and contents of the kept files, without those of libllama."""
    return digest_files(root, kept_files(root))


def digest_models(root: Path) -> str:
    """The sha256 of the paths and contents of libllama's files."""
    return digest_files(root, model_files(root))


def digest_files(root: Path, files: Iterable[PurePosixPath]) -> str:
    """The sha256 of the paths and contents of files of a tree."""
    contents = ((path, (root / path).read_bytes()) for path in files)
    return hexdigest(b"%s\0%d\0%s" % (str(path).encode(), len(content), content) for path, content in contents)


def checkout_of(folder: Path) -> Path | None:
    """The llama.cpp checkout that contains a folder: the nearest folder with the kernels, at or above it, or None."""
    return next((root for root in (folder, *folder.parents) if (root / LANDMARK).is_file()), None)
