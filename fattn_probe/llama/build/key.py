"""A build's identity, contents, manifest and folder."""

import datetime
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fattn_probe.base.cache import cache_dir
from fattn_probe.base.documents import Document
from fattn_probe.base.errors import InputError
from fattn_probe.base.fingerprint import Fingerprint, Named
from fattn_probe.cases.device import arch_name, is_amd
from fattn_probe.llama.build.ccache import Objects
from fattn_probe.llama.build.stamp import own_stamp
from fattn_probe.llama.launch.architecture import is_arch, not_an_architecture
from fattn_probe.llama.source import KernelCase, Tree, digest_models, has_models
from fattn_probe.llama.source.features import probe
from fattn_probe.llama.source.patches import Patch, needed
from fattn_probe.llama.source.spec import is_release

Engine = Literal["sim", "cuda"]
Flavour = Literal["release", "debug", "check", "coverage", "count"]

RUNNER = "fattn-runner"
CPU_RUNNER = "fattn-runner-cpu"
TEST_BACKEND_OPS = "test-backend-ops"
CAPTURE = "fattn-capture"
DEVICE_CAPTURE = "fattn-capture-cuda"
WITH_LIBLLAMA = (CAPTURE, DEVICE_CAPTURE)
PROGRAMS = (RUNNER, CPU_RUNNER, TEST_BACKEND_OPS, *WITH_LIBLLAMA)
SANITIZERS = ("address", "undefined")
OWN_CHECKS = ("check", "count")
"""Flavours that use the hooks of g++'s thread sanitizer, which cannot be combined with its address sanitizer."""
MANIFEST = "manifest.json"
OVERLAY = "overlay"  # the source as compiled, in a build folder


@dataclass(frozen=True)
class BuildRequest:
    """A description of the build to find or create.

    `arch` is nvcc's number without sm_ ("90", "120a"), or an AMD name ("gfx942"). `patches` are unified diffs, applied
    to the overlay in order. `quants` are K-V type pairs ("q8_0-f16"), or ("all",): fattn.cu can then also choose
    their vec kernels, so each selection is a separate build.
    """

    tree: Tree
    engine: Engine = "sim"
    flavour: Flavour = "release"
    arch: str = "90"
    sanitize: tuple[str, ...] = ()
    patches: tuple[Patch, ...] = ()
    quants: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = [name for name in self.sanitize if name not in SANITIZERS]
        problems = [f"sanitizer {unknown[0]!r} is not one of {', '.join(SANITIZERS)}"] if unknown else []
        problems += filter(None, [not_with_address(self.flavour, self.sanitize)])
        if not is_arch(self.arch):
            problems.append(not_an_architecture(self.arch))
        if self.engine != "sim" and is_amd(self.arch):
            problems.append(f"{self.arch} is an AMD architecture: only the sim engine compiles for it")
        if self.engine != "sim" and self.sanitize:
            problems.append("--sanitize is for the sim engine (on a GPU, use compute-sanitizer)")
        if self.engine != "sim" and self.flavour not in ("release", "debug"):
            problems.append(f"the {self.flavour} flavour needs the sim engine")
        if problems:
            raise InputError("\n".join(problems))

    @property
    def applied(self) -> tuple[Patch, ...]:
        """All patches: first those that a build of this kind requires, then the requested ones."""
        return (*needed(self.tree, self.engine, self.flavour), *self.patches)

    @property
    def fingerprint(self) -> Fingerprint:
        """The contents and options of the build, without the compilers."""
        return Fingerprint(
            tree=self.tree.digest,
            patches=named(self.patches),
            needed=named(needed(self.tree, self.engine, self.flavour)),
            engine=self.engine,
            flavour=self.flavour,
            arch=self.arch,
            sanitize=self.sanitize,
            quants=self.quants,
        )


def kernels_apart(engine: str, flavour: str) -> bool:
    """Whether each kernel is compiled separately from the host function that launches it and from other kernels.

    False with nvcc; in debug builds, because a debugger looks for a kernel's lines where it is launched; and in
    coverage builds, which also count kernels that no case launches. If True, a build must not contain whole cases:
    their host functions lack the launch, and would replace those that have it.
    """
    return engine == "sim" and flavour not in ("debug", "coverage")


def as_compiled(kernels: Iterable[KernelCase], engine: str, flavour: str) -> list[KernelCase]:
    """The distinct kernels as a build contains them: whole cases if kernels are not compiled separately."""
    apart = kernels_apart(engine, flavour)
    return list(dict.fromkeys(kernel if apart else kernel.whole for kernel in kernels))


def not_with_address(flavour: str, sanitize: Iterable[str]) -> str:
    """The reason why a flavour cannot be built with these sanitizers; empty if it can."""
    if flavour not in OWN_CHECKS or "address" not in sanitize:
        return ""
    return (
        f"the {flavour} flavour cannot be combined with the address sanitizer: g++ does not support the two together; "
        "the check flavour finds out-of-bounds accesses by itself"
    )


def named(patches: Iterable[Patch]) -> Named:
    """The names of patches with the sha256 of their text."""
    return tuple((patch.name, patch.digest) for patch in patches)


def key_of(request: BuildRequest, compilers: tuple[str, ...]) -> Fingerprint:
    """The fingerprint of a request with these compilers; its property `build` names the folder.

    It includes fattn-probe's own files. Otherwise two checkouts that share a cache would rebuild the same folder in
    turn, each while the other runs programs in it.
    """
    return replace(request.fingerprint, compilers=compilers, stamp=own_stamp())


def folder_of(request: BuildRequest, key: Fingerprint) -> Path:
    """The folder of a build in the cache."""
    marks = [request.flavour, *sorted(request.sanitize), *(patch.name for patch in request.applied)]
    number = f"b{request.tree.build_number}" if request.tree.build_number.isdigit() else "local"
    name = re.sub(
        r"[^\w.+-]", "_", "-".join([number, request.engine, arch_name(request.arch).replace("_", ""), *marks])
    )
    return cache_dir() / "builds" / f"{name[:100]}-{key.build}"


@dataclass(frozen=True)
class Contents:
    """The contents of a build folder; they only grow.

    `kernels` are names of kernel cases ("mma 64,64,8,8") or of single kernels of a case, `sources` names of additional
    files of ggml-cuda/ and ggml-base, `architectures` files of libllama that only some models need. `libllama` is the
    digest of libllama's source, empty in a build without it. A `dry` build can launch kernels, but not run them.
    """

    kernels: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    full: bool = False
    dry: bool = False
    architectures: tuple[str, ...] = ()
    libllama: str = ""

    def union(self, other: "Contents") -> "Contents":
        """The combined contents."""
        return Contents(
            tuple(dict.fromkeys(self.kernels + other.kernels)),
            tuple(dict.fromkeys(self.sources + other.sources)),
            tuple(dict.fromkeys(self.programs + other.programs)),
            self.full or other.full,
            self.dry and other.dry,
            tuple(dict.fromkeys(self.architectures + other.architectures)),
            other.libllama or self.libllama,
        )

    @property
    def has_libllama(self) -> bool:
        """Whether libllama is among the contents."""
        return any(name in self.programs for name in WITH_LIBLLAMA)

    def for_tree(self, tree: Tree) -> "Contents":
        """The contents with the digest of a tree's libllama, or without libllama's programs if the tree lacks it."""
        if not self.has_libllama:
            return self
        if has_models(tree.root):
            return replace(self, libllama=digest_models(tree.root))
        programs = tuple(name for name in self.programs if name not in WITH_LIBLLAMA)
        return replace(self, programs=programs, architectures=(), libllama="")


@dataclass(frozen=True)
class Manifest:
    """The contents of manifest.json; it is written last, so a folder with a manifest is complete.

    `fingerprint` identifies what was compiled, the compilers, and those of fattn-probe's files that builds depend on.
    """

    source: str
    build_number: str
    fingerprint: Fingerprint
    contents: Contents
    date: str

    @property
    def patches(self) -> tuple[str, ...]:
        """The names of all applied patches."""
        return tuple(name for name, _ in (*self.fingerprint.needed, *self.fingerprint.patches))

    @property
    def released(self) -> bool:
        """Whether the kernels are those of an unchanged llama.cpp release: no folder, no fork, no patches."""
        return not self.patches and is_release(self.source)


def new_manifest(request: BuildRequest, key: Fingerprint, contents: Contents) -> Manifest:
    """The manifest of a build that has just finished."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Manifest(request.tree.spec, request.tree.build_number, key, contents, now)


def from_first_version(plain: dict[str, Any]) -> dict[str, Any]:
    """Convert a manifest of version 1, which had no fingerprint; the oldest ones also lack digests of patches."""
    names = plain.pop("patches")
    digests = plain.pop("patch_digests", None) or [""] * len(names)
    return plain | {"fingerprint": plain | {"patches": list(zip(names, digests, strict=True))}}


MANIFESTS = Document("a build's manifest", Manifest, version=2, indent=2, from_first=from_first_version)


@dataclass(frozen=True)
class Build:
    """A finished build; `request` is None for a build opened from a folder.

    `objects` counts the objects that were compiled for it; None if it already existed.
    """

    folder: Path
    manifest: Manifest
    request: BuildRequest | None = None
    objects: Objects | None = None

    def program(self, name: str) -> Path:
        """The path of a program; InputError if this build does not have it."""
        path = self.folder / "bin" / name
        if not path.is_file():
            has = ", ".join(self.manifest.contents.programs)
            raise InputError(f"the build in {self.folder} has no {name}; it has {has}")
        return path

    @property
    def runner(self) -> Path:
        """The path of fattn-runner for the engine's device."""
        return self.program(RUNNER)

    @property
    def test_backend_ops(self) -> Path:
        """The path of upstream's test-backend-ops, with the engine's device and the CPU backend."""
        return self.program(TEST_BACKEND_OPS)

    @property
    def sources(self) -> Path | None:
        """The folder of the compiled source, with unchanged line numbers; None if it is not beside the programs."""
        root = self.folder / OVERLAY
        return root if root.is_dir() else None

    @property
    def tree(self) -> Tree | None:
        """The tree in `sources`; None if there is no such folder."""
        made, root = self.manifest, self.sources
        return Tree(made.source, root, made.build_number, made.fingerprint.tree, probe(root)) if root else None

    def env(self) -> dict[str, str]:
        """Environment variables for the programs: no fusion of ops, which would call ops that are not built."""
        return {"GGML_CUDA_DISABLE_FUSION": "1"}
