"""Make a build: write its files, run ninja, and store each kernel's resources as ptxas reports them."""

import functools
import json
import os
import re
import shutil
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from fattn_probe.base.cache import Growth, cache_dir
from fattn_probe.base.errors import BuildError, InputError
from fattn_probe.cases.device.origin import Resources
from fattn_probe.llama.build.ccache import STATS_LOG, ccache_env, read_objects
from fattn_probe.llama.build.ensure import RESOURCES, ensure, replacing_lock
from fattn_probe.llama.build.flags import Flags
from fattn_probe.llama.build.key import (
    MANIFEST,
    MANIFESTS,
    PROGRAMS,
    RUNNER,
    TEST_BACKEND_OPS,
    Build,
    BuildRequest,
    Contents,
    as_compiled,
    folder_of,
    kernels_apart,
    key_of,
    new_manifest,
)
from fattn_probe.llama.build.ninja import JobSlots, Report, run_ninja, silent, step_seconds
from fattn_probe.llama.build.overlay import OVERLAY_STAMP, prepare
from fattn_probe.llama.build.plan import BACKENDS, Planner, case_file
from fattn_probe.llama.build.precompiled import precompiled
from fattn_probe.llama.build.sources import (
    ARCHITECTURES,
    CUDA,
    GGML,
    INSTANCES,
    LIBLLAMA,
    PRODUCTS,
    SELDOM,
    UNIT_PREFIX,
    UNUSED,
    Sources,
    body_file,
    launches_file,
    read_sources,
)
from fattn_probe.llama.build.steps import Plan
from fattn_probe.llama.build.symbols import body_of, case_of, defining_class, defining_source, demangle, product_of
from fattn_probe.llama.build.toolchain import Toolchain, find_toolchain
from fattn_probe.llama.source import KernelCase, Tree, ggml_types

ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\w+)'"
    r"(?:(?!Compiling entry)[\s\S])*?(?P<local>\d+) bytes stack frame"
    r"(?:(?!Compiling entry)[\s\S])*?Used (?P<registers>\d+) registers(?P<rest>.*)"
)
SHARED = re.compile(r"(\d+) bytes smem")
TEST_SOURCE = "tests/test-backend-ops.cpp"
PREPARING = threading.Lock()
"""Lets only one thread at a time write the files of a build: eight threads at once, each with thousands of system
calls, contend for the interpreter's lock, and take twice as long as one after the other."""


def read_resources(folder: Path) -> dict[str, Resources]:
    """The resources of each kernel (by mangled name) in the logs of a build."""
    found: dict[str, Resources] = {}
    for log in sorted((folder / "obj").rglob("*.cu.o.log")):
        for entry in ENTRY.finditer(log.read_text(errors="replace")):
            shared = int(match[1]) if (match := SHARED.search(entry["rest"])) else 0
            found[entry["name"]] = Resources(int(entry["registers"]), shared, int(entry["local"]))
    return found


def extend(
    growth: Growth,
    request: BuildRequest,
    toolchain: Toolchain,
    contents: Contents,
    *,
    progress: Report,
    jobs: int | JobSlots | None,
    again: bool,
) -> Build:
    """Compile the parts of `contents` that a build folder lacks or, with `again`, all parts; the caller holds the lock.

    No runner can load the libraries while they are replaced. The manifest is written last.
    """
    folder = growth.folder
    env = build_env(growth, toolchain, again)
    known = step_seconds(folder.parent.glob(f"*-{request.engine}-sm*-{request.flavour}-*"))
    ninja = functools.partial(run_ninja, growth, report=progress, jobs=jobs, env=env, known=known)
    key = key_of(request, toolchain.versions)
    with PREPARING:
        sources = read_sources(request.tree, request.quants, toolchain.machine)
        apart = replace(sources, libllama={name: (name,) for names in sources.libllama.values() for name in names})
        if any((folder / f"obj/src/{name}.o").is_file() for name in apart.libllama):
            sources = apart
        check_contents(request.tree, contents, sources)
        prepare(growth, request, sources, contents)
        for name in ("bin", "lib", "obj"):
            (folder / name).mkdir(exist_ok=True)
        if toolchain.cudart and not (folder / "lib" / toolchain.cudart.name).is_file():
            growth.changed.add(f"lib/{toolchain.cudart.name}")
            shutil.copyfile(toolchain.cudart, folder / "lib" / toolchain.cudart.name)
        plan = make_plan(request, toolchain, contents, sources, heaviest_first(contents.kernels, known))
        growth.write("build.ninja", plan.render())
    if isinstance(jobs, JobSlots):
        jobs.begin()
    with precompiled(folder, plan, env, toolchain.versions):
        try:
            ninja(targets=plan.objects)
        except BuildError as error:
            if UNIT_PREFIX not in str(error):
                raise
            # Two files of libllama, or of a patch, may define the same name: compile each one separately.
            plan = make_plan(request, toolchain, contents, apart, heaviest_first(contents.kernels, known))
            growth.write("build.ninja", plan.render())
            ninja(targets=plan.objects)
    with replacing_lock(folder):
        ninja()
    if request.engine == "cuda":
        resources = {name: str(found) for name, found in read_resources(folder).items()}
        growth.write(RESOURCES, json.dumps(resources, indent=1) + "\n")
    manifest = new_manifest(request, key, contents)
    growth.write(MANIFEST, MANIFESTS.text(manifest))
    return Build(folder, manifest, request, read_objects(folder / STATS_LOG))


def heaviest_first(kernels: Iterable[str], known: Mapping[str, float]) -> tuple[str, ...]:
    """The kernel cases in the order to compile: unknown times first, then the longest in earlier builds."""
    return tuple(sorted(kernels, key=lambda name: -known.get(case_file(name), float("inf"))))


def build_env(growth: Growth, toolchain: Toolchain, again: bool) -> dict[str, str]:
    """The environment of a build's commands; first removes ccache's old report and, with `again`, all objects."""
    for name in (STATS_LOG, "obj", OVERLAY_STAMP) if again else (STATS_LOG,):
        growth.remove(name)
    shared = ccache_env(toolchain.versions) if toolchain.ccache else {}
    return {"PATH": toolchain.path} | shared | ({"CCACHE_RECACHE": "1"} if shared and again else {})


def check_contents(tree: Tree, contents: Contents, sources: Sources) -> None:
    """Raise InputError if the tree lacks any of the programs or kernels."""
    unknown = [name for name in contents.programs if name not in PROGRAMS]
    if unknown:
        raise InputError(f"unknown program {unknown[0]!r}; allowed: {', '.join(PROGRAMS)}")
    if TEST_BACKEND_OPS in contents.programs and not (tree.root / TEST_SOURCE).is_file():
        raise InputError(f"source {tree.spec!r}: this tree has no {TEST_SOURCE}, upstream's test of ops")
    if contents.has_libllama and not sources.libllama:
        raise InputError(f"source {tree.spec!r}: this tree has no libllama, which models need")
    if not sources.cpu and any("cpu" in BACKENDS[name] for name in contents.programs):
        raise InputError(
            f"source {tree.spec!r}: this tree's ggml CPU backend is too old for fattn-probe to build: "
            "ggml/src/ggml-cpu/CMakeLists.txt has no list GGML_CPU_SOURCES"
        )
    for name in contents.kernels:
        sources.kernel(name)


def make_plan(
    request: BuildRequest, toolchain: Toolchain, contents: Contents, sources: Sources, heaviest: tuple[str, ...] = ()
) -> Plan:
    """The plan for a build; `heaviest` is as in `Planner`."""
    if toolchain.cuda_include.is_relative_to(cache_dir()):  # so that commands are the same for any cache folder
        include = Path(os.path.relpath(toolchain.cuda_include, folder_of(request, key_of(request, toolchain.versions))))
        toolchain = replace(toolchain, cuda_include=include)
    return Planner(Flags(request, toolchain, sources), contents, heaviest).plan()


def plan_build(
    request: BuildRequest,
    kernels: Iterable[KernelCase] = (),
    programs: Iterable[str] = (RUNNER,),
    *,
    full: bool = False,
    sources: Iterable[str] = (),
) -> tuple[Path, Plan]:
    """The folder and the plan for a build from scratch; writes no files."""
    toolchain = find_toolchain(request.engine)
    contents = Contents(tuple(case.name for case in kernels), tuple(sources), tuple(programs), full)
    tree_sources = read_sources(request.tree, request.quants, toolchain.machine)
    check_contents(request.tree, contents, tree_sources)
    folder = folder_of(request, key_of(request, toolchain.versions))
    return folder, make_plan(request, toolchain, contents, tree_sources)


def add_missing(build: Build, symbol: str, progress: Report = silent) -> Build:
    """Add the source of a missing symbol to a build, and relink, after a program has called it (exit status 87).

    BuildError if no file of the tree defines the symbol, or if the build was opened without its source.
    """
    name, request, has = demangle(symbol), build.request, build.manifest.contents
    if request is None:
        raise BuildError(f"{build.folder} is an export without {name}: add it to the original build, and export again")
    sources = read_sources(request.tree, request.quants, find_toolchain(request.engine).machine)
    lacking = defining(name, request, sources)
    names = {*lacking.kernels, *lacking.sources, *lacking.architectures}
    if not names - {*has.kernels, *has.architectures, *has.sources, *sources.cuda}:
        raise BuildError(f"a program needs {name} ({symbol}), but no file of {request.tree.spec} defines it")
    return ensure(
        request,
        map(sources.kernel, lacking.kernels),
        has.programs,
        dry=has.dry,
        sources=lacking.sources,
        architectures=lacking.architectures,
        progress=progress,
    )


def defining(name: str, request: BuildRequest, sources: Sources) -> Contents:
    """The contents (one kernel or one file) that define a demangled function; empty if no file in the tree does.

    If kernels are compiled separately, a host function that launches them is in a separate file.
    """
    tree, types = request.tree, ggml_types(request.tree.root)
    if case := case_of(name, sources.cases, types):
        launches = launches_file(*case.sizes)
        if kernels_apart(request.engine, request.flavour) and not case.instance and sources.launched_by(launches):
            return Contents(sources=(launches,))
        return Contents(kernels=tuple(kernel.name for kernel in as_compiled([case], request.engine, request.flavour)))
    if body := body_of(name, types):
        return Contents(sources=(body_file(*body),))
    seldom = [path for path in sorted((tree.root / LIBLLAMA).glob("*.cpp")) if SELDOM.fullmatch(path.name)]
    models = [*sorted((tree.root / ARCHITECTURES).glob("*.cpp")), *seldom]
    if model := defining_class(name, models) or defining_source(name, seldom):
        return Contents(architectures=(model,))
    products = [path for family in PRODUCTS for path in sorted((tree.root / CUDA / INSTANCES).glob(f"{family}-*.cu"))]
    if instance := product_of(name, products, types):
        return Contents(sources=(f"{INSTANCES}/{instance}",))
    base = (path for unused in UNUSED if (path := tree.root / GGML / unused).is_file())
    file = defining_source(name, [*sorted((tree.root / CUDA).glob("*.cu")), *base])
    return Contents(sources=(file,)) if file else Contents()
