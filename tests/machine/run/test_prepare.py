"""The kernels of a run are known and compiled before it starts, or when an attempt lacks one."""

import errno
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from fattn_probe.base.errors import BuildError, InputError
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import expand, loads
from fattn_probe.llama.build import RUNNER, Build, BuildRequest, make
from fattn_probe.llama.build.key import MANIFEST as FILE
from fattn_probe.llama.build.key import MANIFESTS, Contents, folder_of, key_of, new_manifest
from fattn_probe.llama.build.sources import COMMON_PREFIX, CUDA, INSTANCES, LAUNCHES_PREFIX, launching_files
from fattn_probe.llama.launch.record import parse_launches
from fattn_probe.llama.source.patches import Patch
from fattn_probe.machine.run import prepare as required
from fattn_probe.machine.run import session as sessions
from fattn_probe.machine.run.command import Done, plan_cases
from fattn_probe.machine.run.outcome import Lost, Missing, Ran, RunResult, Unsupported
from fattn_probe.machine.run.prepare import (
    KernelReader,
    KernelsByOp,
    files_of_base,
    kernels_of,
    missing_files,
    prepare,
    process_count,
    required_kernels,
)
from fattn_probe.machine.run.session import MOST_RETRIES, RunOptions, Session
from fattn_probe.machine.run.simulator import Simulation
from tests.llama.build.test_key import GXX, MANIFEST
from tests.llama.build.tree import make_tree
from tests.made import CPU, H200, target

A100, ADA, GPU = target("sim:a100"), target("sim:l40s"), Target("cuda")
OP = "version: 1\nabout: x\nhsk: 64\nn_head: 2\nn_q: 3\nn_kv: 256\n"
CASES = expand(loads(OP + "matrix: {seed: [1, 2], n_q: [1, 8]}\n", "c.yaml"))
(Q8_V,) = expand(loads(OP + "type_V: q8_0\n", "c.yaml"))
SKIPPED = "_Z37ggml_cuda_flash_attn_ext_mma_f16_caseILi64ELi64ELi8ELi8EEvR25ggml_backend_cuda_contextP11ggml_tensor"
LAUNCHED = (
    '{"order":0,"kernel":"void flash_attn_ext_f16<80, 80, 8, 8, false>(int)","grid":[1,1,1],"block":[1,1,1],"shared":0}'
)


def ran(*launches, said=""):
    return Ran(RunResult("CUDA0", "H200", "", "", "wall", (), None), launches, said, 0.1)


@pytest.fixture
def cache(cache, monkeypatch):
    monkeypatch.setattr("fattn_probe.machine.run.prepare.unpacked_tables", lambda: None)
    return cache


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path)


@pytest.fixture
def built(monkeypatch):
    """The kernels and further files of each requested build, by the build's architecture, `dry` with the latter."""
    found = []

    def ensure(request, kernels=(), programs=(), dry=False, sources=(), architectures=(), **words):
        found.append((request.arch + " dry" * dry, [*(case.name for case in kernels), *sources, *architectures]))

    monkeypatch.setattr(sessions, "ensure", ensure)
    return found


@pytest.fixture
def planned(monkeypatch):
    """The numbers of ops that dry runs were made of; a case with one query needs a kernel, others another."""
    numbers = []

    def dry_runs(session, cases, target):
        numbers.append(len(cases))
        return {digest: ("mma 64,64,8,8",) if case.op.sizes.n_q == 1 else ("mma 80,80,8,8",)
                for digest, case in cases.items()}  # fmt: skip

    monkeypatch.setattr(required, "dry_runs", dry_runs)
    return numbers


def test_all_kernels_of_all_cases_are_one_build(cache, tree, built, planned):
    session = Session(RunOptions(tree))
    prepare(session, [(case, [H200]) for case in CASES])
    assert built == [("90", ["mma 64,64,8,8", "mma 80,80,8,8"])]
    assert planned == [2], "two of the four cases have the op of another one"
    assert f"{H200}/{RUNNER}" in session.builds


def test_other_types_than_f16_bring_their_conversions(cache, tree, built, planned):
    prepare(Session(RunOptions(tree)), [(CASES[0], [H200])])
    assert built == [("90", ["mma 64,64,8,8"])]
    prepare(Session(RunOptions(tree)), [(Q8_V, [H200])])
    assert built[1] == ("90", ["mma 80,80,8,8", "convert-to-f16.cu"])


def test_dry_runs_need_a_part_of_a_build(cache, tree, built, monkeypatch):
    """The rest compiles beside the kernels."""
    monkeypatch.setattr(required, "reading", lambda *_: nullcontext(lambda items: {}))
    session = Session(RunOptions(tree))
    prepare(session, [(CASES[0], [H200])])
    prepare(session, [(Q8_V, [H200])])
    launches, to_f16 = "template-instances/fattn-probe-launches-64-64.cu", "convert-to-f16.cu"
    assert built == [("90 dry", [launches]), ("90", []), ("90 dry", [to_f16, launches]), ("90", [to_f16])]


def test_files_that_another_session_has_added_to_a_build_are_not_missing(cache, tree, tmp_path):
    folder, session = tmp_path / "build", Session(RunOptions(tree))
    (kernel,) = kernels_of(session, H200, ["op"], {"op": ("mma 64,64,8,8",)})
    session.builds[f"{H200}/{RUNNER}"] = Build(folder, MANIFEST, BuildRequest(tree))
    (file,) = missing_files(launching_files, session, [kernel], H200)
    folder.mkdir()
    (folder / FILE).write_text(MANIFESTS.text(replace(MANIFEST, contents=Contents(sources=(file,)))))
    assert missing_files(launching_files, session, [kernel], H200) == ()


def test_an_edit_needs_no_compiler_to_look_for_its_base(cache, tree, monkeypatch):
    """Its own build may be there, made by another machine's compiler."""

    def missing(engine):
        raise BuildError("g++ is not installed")

    monkeypatch.setattr(required, "find_toolchain", missing)
    assert files_of_base(Session(RunOptions(replace(tree, digest="edited"))), tree, H200) == ()


@pytest.mark.parametrize(("base", "cases"), [(True, True), (False, True), (True, False)])
def test_an_edit_begins_with_the_launching_files_of_the_base(cache, tree, monkeypatch, base, cases):
    monkeypatch.setattr(required, "find_toolchain", lambda engine: GXX)
    request = BuildRequest(tree)
    files = (f"{INSTANCES}/{LAUNCHES_PREFIX}of-5.cu", f"{INSTANCES}/{COMMON_PREFIX}of-5-1.cu")
    made = replace(MANIFEST, contents=Contents(sources=("convert-to-f16.cu", *files)))
    if base:
        folder = folder_of(request, key_of(request, GXX.versions))
        folder.mkdir(parents=True)
        (folder / FILE).write_text(MANIFESTS.text(made))
    edited = replace(tree, digest="edited")
    if not cases:
        edited = replace(edited, root=tree.root.with_name("edited"))
        shutil.copytree(tree.root, edited.root)
        next((edited.root / CUDA / INSTANCES).glob("fattn-mma-*.cu")).unlink()
    patch = Patch("mine", Path(), "", (), "")
    session = Session(RunOptions(edited, patches=(patch,)))
    assert files_of_base(session, tree, H200) == (files if base and cases else ())


@pytest.mark.parametrize(("changed", "plans"), [({}, [2]), ({"digest": "edited"}, [2, 2])], ids=["again", "edited"])
def test_the_first_build_has_the_kernels_of_before_and_after_an_edit_dry_runs_tell_whether_it_is_still_so(
    cache, tree, built, planned, changed, plans
):
    prepare(Session(RunOptions(tree)), [(case, [H200]) for case in CASES])
    prepare(Session(RunOptions(replace(tree, **changed))), [(case, [H200]) for case in CASES])
    assert planned == plans
    assert built[0] == built[1] == built[2]


def test_a_guessed_kernel_that_no_longer_compiles_is_no_error_until_a_case_needs_it(
    cache, tree, built, planned, monkeypatch
):
    prepare(Session(RunOptions(tree)), [(CASES[0], [H200])])
    compiles = Session.add_kernels

    def add_kernels(session, target, kernels, *others, **words):
        if "mma 64,64,8,8" in [case.name for case in kernels]:
            raise BuildError("static assertion failed: kernel config not defined")
        compiles(session, target, kernels, *others, **words)

    monkeypatch.setattr(Session, "add_kernels", add_kernels)
    edited = RunOptions(replace(tree, digest="edited"))
    with pytest.raises(BuildError, match="not defined"):
        prepare(Session(edited), [(CASES[0], [H200])])
    assert planned == [1, 1], "the dry run says that the case needs it"
    monkeypatch.setattr(required, "dry_runs", lambda session, cases, target: dict.fromkeys(cases, ("mma 80,80,8,8",)))
    prepare(Session(RunOptions(replace(tree, digest="edited again"))), [(CASES[0], [H200])])
    assert built[-1] == ("90", ["mma 80,80,8,8"])


def test_targets_that_compile_are_prepared_although_others_do_not(cache, tree, built, planned, monkeypatch):
    compile_ = vars(sessions)["ensure"]

    def ensure(request, *others, **words):
        if request.arch == "80":
            raise BuildError("not declared")
        return compile_(request, *others, **words)

    monkeypatch.setattr(sessions, "ensure", ensure)
    work = [(CASES[0], [A100, H200])]
    assert prepare(Session(RunOptions(tree)), work, partly=True) == {"sim:a100": "sim:a100: not declared"}
    assert ("90", ["mma 64,64,8,8"]) in built
    with pytest.raises(BuildError, match=r"^sim:a100: not declared$"):
        prepare(Session(RunOptions(tree)), work)
    with pytest.raises(BuildError, match=r"^not declared$"):
        prepare(Session(RunOptions(tree)), [(CASES[0], [A100])], partly=True)


def test_another_gpu_is_planned_for_itself(cache, tree, built, planned):
    prepare(Session(RunOptions(tree)), [(CASES[0], [H200, A100, ADA])])
    assert planned == [1, 1, 1]
    assert {arch for arch, _ in built} == {"90", "80", "89"}


def test_tables_that_cannot_be_unpacked_end_the_run_before_its_first_case(cache, tree, built, planned, monkeypatch):
    def fails():
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fattn_probe.machine.run.prepare.unpacked_tables", fails)
    with pytest.raises(OSError, match="No space left"):
        prepare(Session(RunOptions(tree)), [(CASES[0], [H200])])


def test_a_build_made_elsewhere_and_the_cpu_need_no_kernels(cache, tree, built, planned):
    request = BuildRequest(tree)
    manifest = new_manifest(request, request.fingerprint, Contents())
    prepare(Session(RunOptions(tree, build=Build(cache, manifest))), [(CASES[0], [H200])])
    prepare(Session(RunOptions(None)), [(CASES[0], [H200])])
    prepare(Session(RunOptions(tree)), [(CASES[0], [CPU])])
    assert (built, planned) == ([], [])


def test_a_case_whose_dry_run_ends_badly_is_left_to_its_real_run(cache, tree, built, monkeypatch):
    monkeypatch.setattr(required, "dry_runs", lambda session, cases, target: {})
    assert required_kernels(Session(RunOptions(tree)), CASES, H200) == []


def test_patches_and_quants_have_kernels_of_their_own(tree):
    assert len({KernelsByOp.of(RunOptions(tree, quants=quants), H200).key for quants in ((), ("all",))}) == 2


def test_a_dry_run_tells_what_it_launched_and_what_it_skipped(tree):
    read = KernelReader(tree)
    said = f"ggml: a warning\nfattn-probe: missing symbol: {SKIPPED}\n"
    (launch,) = parse_launches(LAUNCHED, names={"flash_attn_ext_f16": ["DKQ", "DV", "ncols1", "ncols2", "softcap"]})
    assert read(Done(CASES[0], H200, ran(launch, said=said))) == ("mma 80,80,8,8,false", "mma 64,64,8,8")
    assert read(Done(CASES[0], H200, Unsupported("no"))) == ()
    assert read(Done(CASES[0], H200, Lost("exit status 1"))) is None


@pytest.mark.parametrize(("cases", "processes"), [(1, 1), (99, 1), (100, 2), (5000, 4)])
def test_many_dry_runs_share_the_processors(cases, processes, monkeypatch):
    monkeypatch.setattr(required, "cores", lambda: 4)
    assert process_count(cases) == processes


@pytest.mark.build
def test_dry_runs_of_the_simulator_compile_no_kernel(monkeypatch):
    """In one process and in two; each names the kernel that the launch records of a real run have."""
    from fattn_probe.llama.source import DEFAULT_SOURCE, resolve

    monkeypatch.setattr(KernelsByOp, "read", lambda self: {})
    monkeypatch.setattr(KernelsByOp, "write", lambda self, names: None)
    steps = []
    session = Session(RunOptions(resolve(DEFAULT_SOURCE)), lambda progress: steps.append(progress.label))
    session.build_for(H200)
    before = len(steps)
    found = required_kernels(session, CASES, H200)
    vec = "vec 64,1,GGML_TYPE_F16,GGML_TYPE_F16,false"
    assert [case.name for case in found] == [vec, "mma 64,64,8,1,false,false,false"]
    monkeypatch.setattr(required, "process_count", lambda cases: 2)
    assert required_kernels(session, CASES, H200) == found
    assert not [label for label in steps[before:] if label.startswith(("fattn-probe-mma", "fattn-probe-vec"))]
    dry = Session(RunOptions(session.options.tree, simulation=Simulation(dry=True, skip_kernels=True)))
    (done,) = plan_cases(dry, [(CASES[0], [H200])])
    assert isinstance(done.result, Ran)
    assert done.result.result.dst is None


@pytest.mark.parametrize(("flavour", "dry"), [("check", "check"), ("debug", "release"), ("coverage", "release")])
def test_a_build_of_whole_cases_has_no_other_code_that_launches_their_kernels(monkeypatch, cache, tree, flavour, dry):
    """gdb stopped in the launching code that dry runs need, which has no lines of the kernel's body."""

    class Made(Exception):
        pass

    def ensure(request, *_, **words):
        raise Made(request.flavour, [name for name in words["sources"] if "launches" in name] != [])

    monkeypatch.setattr(sessions, "ensure", ensure)
    with pytest.raises(Made) as made:
        required_kernels(Session(RunOptions(tree, flavour=flavour)), CASES, H200)
    assert made.value.args == (dry, True)


def test_the_kernels_of_an_op_have_the_names_by_which_a_build_has_them(tree):
    names = {
        "one": ("mma 80,80,8,8,false", "mma 64,64,8,8"),
        "two": ("mma 80,80,8,8,true", "mma 80,80,8,8,false", "mma 1"),
    }
    apart = {"one": ("mma 80,80,8,8,false", "mma 64,64,8,8"), "two": ("mma 80,80,8,8,true", "mma 80,80,8,8,false")}
    whole = {"one": ("mma 80,80,8,8", "mma 64,64,8,8"), "two": ("mma 80,80,8,8",)}
    debug = RunOptions(tree, flavour="debug")
    for on, options, expected in (
        (H200, RunOptions(tree), apart),
        (H200, debug, whole),
        (GPU, RunOptions(tree), whole),
    ):
        assert required.compiled_names(Session(options), on, names) == expected


@pytest.fixture
def session(monkeypatch):
    """A session whose builds are the symbols compiled into them."""
    monkeypatch.setattr(sessions, "ensure", lambda request, *kernels, **rest: ())
    monkeypatch.setattr(make, "add_missing", lambda build, symbol, progress: (*build, symbol))
    return Session(RunOptions(cast(Any, "a tree")))


def test_each_missing_kernel_is_compiled_in_once_and_kept(session):
    attempts = []

    def attempt(build):
        attempts.append(build)
        return next((Missing(symbol) for symbol in "ab" if symbol not in build), Lost("done"))

    assert session.completing("case", CPU, "program", attempt) == Lost("done")
    assert attempts == [(), ("a",), ("a", "b")]
    assert session.build_for(CPU, "program") == ("a", "b")


@pytest.mark.parametrize(
    ("name", "needs"),
    [("sim:rtx4090", "a build for sim, sm_89"), ("gpu", "a build for cuda"), ("sim:h200", ""), ("cpu", "")],
)
def test_a_given_build_is_for_one_engine_and_one_architecture(tmp_path, name, needs):
    """On another GPU, llama.cpp chose other kernels than such a GPU runs."""
    session = Session(RunOptions(None, build=Build(tmp_path, MANIFEST)))
    chosen = target(name)
    if needs:
        with pytest.raises(InputError, match=f"is a build for sim, sm_90, but {chosen} needs {needs}"):
            session.build_for(chosen)
    else:
        assert session.build_for(chosen).manifest is MANIFEST


def test_a_kernel_that_stays_missing_ends_with_its_name(session):
    with pytest.raises(BuildError, match=f"gqa: after {MOST_RETRIES} kernels the build still lacks _Z4name"):
        session.completing("gqa", CPU, "program", lambda build: Missing("_Z4name"))
