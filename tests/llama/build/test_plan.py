"""The files that a build compiles, its steps and their flags, and the trees that cannot be built."""

import platform
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.llama.build import CPU_RUNNER, RUNNER, TEST_BACKEND_OPS, BuildRequest, simulator_flags
from fattn_probe.llama.build.flags import SIM_QUICK, Flags
from fattn_probe.llama.build.key import CAPTURE, DEVICE_CAPTURE, Contents
from fattn_probe.llama.build.make import check_contents
from fattn_probe.llama.build.plan import CUDA_LIBRARY, Planner, case_file, case_text, common_text, launches_text
from fattn_probe.llama.build.simulator_flags import (
    ARITHMETIC,
    DEBUGGED,
    SIM_HOST,
    SIM_KERNELS,
    SIMULATOR,
    X86_V3,
    SimulatorFlags,
)
from fattn_probe.llama.build.sources import CONVERSIONS_TO_F16, common_files, launching_files, read_sources
from fattn_probe.llama.build.sources import CUDA as CUDA_FOLDER
from fattn_probe.llama.build.stamp import NATIVE
from fattn_probe.llama.build.toolchain import Toolchain
from fattn_probe.llama.source import KernelCase
from fattn_probe.llama.source.patches import Patch
from tests.llama.build.tree import LIBLLAMA, make_tree
from tests.llama.source.fake_index import write_tree

SIM = Toolchain("gcc", "g++", ("g++ 12",), "x86_64", Path("/cuda/include"))
CUDA = Toolchain(
    "gcc", "g++", ("g++ 12",), "x86_64", Path("/cuda/include"), Path("/cuda/bin/nvcc"), Path("libcudart.so.13")
)


def planned_with(toolchain, folder, contents, engine="sim", **request):
    wanted = BuildRequest(make_tree(folder), engine, **request)
    sources = read_sources(wanted.tree, wanted.quants, toolchain.machine)
    return Planner(Flags(wanted, toolchain, sources), contents).plan()


def plan_of(folder, contents, engine="sim", **request):
    return planned_with(SIM if engine == "sim" else CUDA, folder, contents, engine, **request)


def command(plan, output):
    return next(step.command for step in plan.steps if step.output == output)


def sources(plan):
    return [step.inputs[0] for step in plan.steps if step.rule == "compile"]


def links(plan):
    return [step.output for step in plan.steps if step.rule == "link"]


@pytest.mark.parametrize(("program", "uses", "other"), [(RUNNER, "cuda", "cpu"), (CPU_RUNNER, "cpu", "cuda")])
def test_a_runner_needs_one_backend(tmp_path, program, uses, other):
    plan = plan_of(tmp_path, Contents(("mma 64,64,8,8",), (), (program,)))
    assert links(plan) == [f"lib/libggml-{uses}.so", "lib/libggml-base.so", f"bin/{program}"]
    assert not [source for source in sources(plan) if f"ggml-{other}" in source]
    own = command(plan, f"obj/{uses}/native/runner/runner.cpp.o")
    assert f"-DGGML_USE_{uses.upper()}" in own and f"-DGGML_USE_{other.upper()}" not in own


def test_the_runner_is_built_without_what_it_does_not_call(tmp_path):
    plan = plan_of(tmp_path / "runner", Contents((), (), (RUNNER,)))
    base = [source for source in sources(plan) if source.startswith("overlay/") and "ggml-cuda" not in source]
    assert base == ["overlay/ggml/src/ggml.c"]
    added = plan_of(tmp_path / "added", Contents((), ("gguf.cpp", "convert.cu"), (RUNNER,)))
    assert {"overlay/ggml/src/gguf.cpp", "overlay/ggml/src/ggml-cuda/convert.cu"} <= set(sources(added))
    for programs in ((RUNNER, CPU_RUNNER), (TEST_BACKEND_OPS,)):
        whole = plan_of(tmp_path / programs[-1], Contents((), (), programs))
        assert {"overlay/ggml/src/gguf.cpp", "overlay/ggml/src/ggml-quants.c"} <= set(sources(whole))


def test_capture_has_libllama_with_the_wanted_architectures_and_stubs_for_the_others(tmp_path):
    write_tree(tmp_path, LIBLLAMA)
    plan = plan_of(tmp_path, Contents((), (), (CAPTURE,), architectures=("qwen2.cpp",)))
    assert links(plan) == ["lib/libggml-cpu.so", "lib/libggml-base.so", "bin/fattn-capture"]
    assert {source for source in sources(plan) if source.startswith("overlay/src/")} == {
        f"overlay/src/{name}.cpp" for name in ("models/qwen2", *(f"fattn-probe-libllama-{n}" for n in "12"))
    }
    assert "overlay/ggml/src/gguf.cpp" in sources(plan)
    program, stubs = command(plan, "bin/fattn-capture"), command(plan, "obj/fattn-capture-stubs.c")
    assert {"obj/src/fattn-probe-libllama-1.cpp.o", "obj/src/models/qwen2.cpp.o"} <= set(program) & set(stubs)
    assert "obj/generated/obj/fattn-capture-stubs.c.o" in program
    assert "-Ioverlay/include" in command(plan, "obj/src/models/qwen2.cpp.o")
    seldom = plan_of(tmp_path, Contents((), (), (CAPTURE,), architectures=("llama-memory-hybrid.cpp",)))
    assert set(sources(seldom)) - set(sources(plan)) == {"overlay/src/llama-memory-hybrid.cpp"}
    assert "-DGGML_USE_CPU" in command(plan, "obj/cpu/ggml-backend-reg.cpp.o")
    both = plan_of(tmp_path, Contents((), (), (CAPTURE, TEST_BACKEND_OPS), architectures=("qwen2.cpp",)))
    assert "-DGGML_USE_CUDA" in command(both, "obj/ggml-backend-reg.cpp.o")
    assert "-DGGML_USE_CUDA" not in command(both, "obj/cpu/ggml-backend-reg.cpp.o")


def test_a_program_for_whole_models_on_a_device_has_both_backends(tmp_path):
    write_tree(tmp_path, LIBLLAMA)
    contents = Contents((), ("rope.cu", "template-instances/mmf-instance-ncols_1.cu"), (CAPTURE, DEVICE_CAPTURE))
    assert contents.has_libllama
    plan = plan_of(tmp_path, contents, "cuda")
    program = command(plan, "bin/fattn-capture-cuda")
    assert {"lib/libggml-cuda.so", "lib/libggml-cpu.so", "lib/libcudart.so.13"} <= set(program)
    assert "obj/native/cuda/record_launches.cpp.o" in program
    assert "-DGGML_USE_CUDA" in command(plan, "obj/cuda-cpu/ggml-backend-reg.cpp.o")
    assert "lib/libggml-cuda.so" not in command(plan, "bin/fattn-capture")
    library = command(plan, "lib/libggml-cuda.so")
    assert {"obj/ggml-cuda/rope.cu.o", "obj/ggml-cuda/template-instances/mmf-instance-ncols_1.cu.o"} <= set(library)
    assert [
        sources(plan).count(file) for file in ("overlay/src/fattn-probe-libllama-1.cpp", "native/models/capture.cpp")
    ] == [1, 1]
    simulated = plan_of(tmp_path / "sim", Contents((), (), (RUNNER,)))
    assert not [source for source in sources(simulated) if "models/capture" in source]


def test_heavy_kernels_come_first_each_step_once_and_every_input_is_made_or_a_source(tmp_path):
    plan = plan_of(tmp_path, Contents(("mma 64,64,8,8",), ("scale.cu",), (RUNNER, CPU_RUNNER, TEST_BACKEND_OPS)))
    names = [source.rpartition("/")[2] for source in sources(plan)]
    assert names[:5] == ["fattn.cu", "fattn-probe-mma-64-64-8-8.cu", "ggml-cuda.cu", "convert.cu", "scale.cu"]
    outputs = [step.output for step in plan.steps]
    assert len(outputs) == len(set(outputs))
    plan = plan_of(tmp_path, Contents(("mma 64,64,8,8",), (), (RUNNER, TEST_BACKEND_OPS)), "cuda")
    made = {step.output for step in plan.steps} | {"lib/libcudart.so.13", "stubs.py"}
    needed = {path for step in plan.steps for path in (*step.inputs, *step.after)}
    assert {path for path in needed if not path.startswith(("overlay/", "native/"))} <= made


def test_full_compiles_what_upstream_compiles(tmp_path):
    plan = plan_of(tmp_path, Contents(("mma 64,64,8,8",), (), (RUNNER,), full=True))
    names = [source.rpartition("/")[2] for source in sources(plan) if source.endswith(".cu")]
    assert "mmq-instance-q8_0.cu" in names
    assert "fattn-vec-instance-q8_0-q8_0.cu" in names
    assert "fattn-vec-instance-f16-q8_0.cu" not in names
    assert not [name for name in names if name.startswith("fattn-probe")]


def test_more_kernels_link_their_library_again_and_no_program(tmp_path):
    kernels, programs = ("mma 64,64,8,8",), (RUNNER, TEST_BACKEND_OPS)
    one, two = (
        {step.output: step for step in plan_of(tmp_path / str(len(more)), Contents(kernels, more, programs)).steps}
        for more in ((), ("scale.cu",))
    )
    remade = {output for output, step in two.items() if step != one.get(output)}
    again = remade | {output for output, step in two.items() if remade.intersection(step.inputs)}
    assert CUDA_LIBRARY in again and not any(output.startswith("bin/") for output in again)


def test_cuda_links_the_runtime_and_records_launches(tmp_path):
    plan = plan_of(tmp_path, Contents((), (), (RUNNER,)), "cuda")
    runner = command(plan, "bin/fattn-runner")
    assert "-rdynamic" in runner
    assert "obj/native/cuda/record_launches.cpp.o" in runner
    assert "lib/libcudart.so.13" in runner
    words = " ".join(word for step in plan.steps for word in step.command)
    assert "-lcublas" not in words
    assert "-lcuda" not in words
    assert "native/sim" not in words


@pytest.mark.parametrize(("flavour", "words"), [("release", ("-O3", "-DNDEBUG")), ("debug", ("-G", "-g", "-O0"))])
def test_nvcc_flavours(tmp_path, flavour, words):
    flags = command(
        plan_of(tmp_path, Contents((), (), (RUNNER,)), "cuda", flavour=flavour, arch="120a"), "obj/ggml-cuda/fattn.cu.o"
    )
    assert flags[0] == "nvcc"  # found in $PATH: it lies at another path in each environment
    assert set(words) <= set(flags)
    assert "-gencode=arch=compute_120a,code=sm_120a" in flags


@pytest.mark.parametrize(
    ("request_", "name", "shared"),
    [
        ({"arch": "120a"}, SIM_HOST, True),
        ({"arch": "120a"}, "sim/units/sim_kernels.cpp", True),
        ({"arch": "120a"}, "sim/tensor_core.cpp", True),
        ({"arch": "80"}, "sim/tensor_core.cpp", False),
        ({"arch": "70"}, "sim/units/sim_kernels.cpp", False),  # they do not run ahead there
        ({"arch": "70"}, SIM_HOST, True),
        ({"flavour": "check"}, SIM_HOST, True),
        ({"flavour": "check"}, "sim/units/sim_kernels.cpp", False),
        ({"flavour": "debug"}, SIM_HOST, True),
        ({"flavour": "debug"}, DEBUGGED, True),
    ],
)
def test_files_of_the_simulator_are_compiled_once_for_the_builds_that_do_not_change_them(
    tmp_path, request_, name, shared
):
    tree = make_tree(tmp_path)
    requests = BuildRequest(tree, **request_), BuildRequest(tree)
    made = [Flags(request, SIM, read_sources(tree, (), "x86_64")) for request in requests]
    one, other = (flags.simulator.native(name) for flags in made)
    assert (one == other) is shared


@pytest.mark.parametrize(("one", "other", "apart"), [("gfx908", "gfx942", 1), ("gfx1100", "gfx942", len(SIMULATOR))])
def test_of_the_simulator_only_matrix_instructions_are_compiled_for_each_of_amd_s_architectures(one, other, apart):
    """Wavefronts of 64 lanes are apart from those of 32."""
    one, other = (SimulatorFlags(SIM, arch) for arch in (one, other))
    assert sum(one.native(name) != other.native(name) for name in SIMULATOR) == apart


@pytest.mark.parametrize(
    ("flavour", "flag", "kernel"),
    [("check", "-fsanitize=thread", "launches/fattn.cu.o"), ("coverage", "--coverage", "fattn.cu.o")],
)
def test_kernels_alone_are_instrumented_and_linked_with_coverage_s_counters(tmp_path, flavour, flag, kernel):
    plan = plan_of(tmp_path, Contents((), (), (RUNNER,)), flavour=flavour)
    found = {step.output for step in plan.steps if flag in " ".join(step.command)}
    assert {name for name in found if name.startswith("obj/")} == {f"obj/ggml-cuda/{kernel}"}
    assert (CUDA_LIBRARY in found) == (flavour == "coverage")


def test_sanitizers_are_on_every_compile_and_link(tmp_path):
    plan = plan_of(tmp_path, Contents((), (), (RUNNER,)), sanitize=("address", "undefined"))
    plain = [step.label for step in plan.steps if "-fsanitize=address,undefined" not in step.command]
    assert plain == ["stubs.c", "base-stubs.c"]
    assert all("address,undefined" in command(plan, f"obj/{name}") for name in plain)


def test_a_debug_build_shares_all_that_is_not_a_kernel(tmp_path):
    """But the part of the simulator that runs kernels, whose lanes run ahead in a release build only."""
    plans = [plan_of(tmp_path / each, Contents((), (), (RUNNER,)), flavour=each) for each in ("release", "debug")]
    commands = [{step.inputs[0]: step.command for step in plan.steps if step.rule == "compile"} for plan in plans]
    different = [source for source, command in commands[0].items() if commands[1].get(source) != command]
    assert different == [f"overlay/{CUDA_FOLDER}/launches/fattn.cu", "native/sim/units/sim_kernels.cpp"]
    assert commands[1].keys() - commands[0].keys() == {f"overlay/{CUDA_FOLDER}/fattn.cu"}


@pytest.mark.parametrize(("flavour", "without"), [("release", {"counters.cpp"}), ("coverage", set())])
def test_every_file_of_the_simulator_is_compiled_once(tmp_path, flavour, without):
    plan = plan_of(tmp_path, Contents((), (), (RUNNER,)), flavour=flavour)
    compiled = [Path(source) for source in sources(plan) if source.startswith("native/sim/")]
    units = [NATIVE.parent / path for path in compiled if path.parent.name == "units"]
    files = [path.name for path in compiled if path.parent.name == "sim"]
    files += [name for unit in units for name in re.findall(r'#include "(\w+\.cpp)"', unit.read_text())]
    assert sorted(files) == sorted({path.name for path in (NATIVE / "sim").glob("*.cpp")} - without)


def test_the_runner_is_not_compiled_last_and_the_architecture_is_told(tmp_path):
    """Ninja starts first what has the most steps behind it."""
    plan = plan_of(tmp_path, Contents((), (CONVERSIONS_TO_F16,), (RUNNER,)), arch="120a")
    conversions = command(plan, f"obj/ggml-cuda/{CONVERSIONS_TO_F16}.o")
    assert {"-DSIMT_ARCH=1200", "-D__CUDA_ARCH_LIST__=1200"} <= set(conversions)
    (stubs,) = [step for step in plan.steps if step.output == "obj/base-stubs.c"]
    assert "obj/cuda/native/runner/runner.cpp.o" in stubs.inputs
    assert "--provided obj/cuda/native/runner/runner.cpp.o" in " ".join(stubs.command)


@pytest.mark.parametrize(("flavour", "more"), [("release", ()), ("check", SIM_KERNELS)])
def test_a_dry_build_has_no_simulator_that_runs_kernels_but_what_the_checkers_kernels_call(tmp_path, flavour, more):
    plan = plan_of(tmp_path, Contents((), (), (RUNNER,), dry=True), flavour=flavour)
    found = [source.removeprefix("native/") for source in sources(plan) if "native/sim" in source]
    assert found == [SIM_HOST, DEBUGGED, *more]


def test_in_a_debug_build_only_the_simulators_variables_have_types_and_the_cpu_backend_is_optimised(tmp_path):
    plan = plan_of(tmp_path, Contents((), (), (TEST_BACKEND_OPS,)), flavour="debug")
    assert "-O3" in command(plan, "obj/ggml-cpu/ggml-cpu.c.o")
    levels = {name: "-g1" in command(plan, f"obj/native/sim/{name}.cpp.o") for name in ("units/sim_host", "debugged")}
    assert levels == {"units/sim_host": True, "debugged": False}


@pytest.mark.parametrize(
    ("case", "file", "text"),
    [
        (
            KernelCase("mma", ("64", "64", "8", "8"), "MMA_F16"),
            "fattn-probe-mma-64-64-8-8.cu",
            '#include "../fattn-mma-f16.cuh"\n\nDECL_FATTN_MMA_F16_CASE(64, 64, 8, 8);\n',
        ),
        (
            KernelCase("vec", ("128", "GGML_TYPE_F16", "GGML_TYPE_Q8_0"), "VEC"),
            "fattn-probe-vec-128-f16-q8_0.cu",
            '#include "../fattn-vec.cuh"\n\nDECL_FATTN_VEC_CASE(128, GGML_TYPE_F16, GGML_TYPE_Q8_0);\n',
        ),
    ],
)
def test_each_case_has_its_own_file(case, file, text):
    assert (case_file(case.name), case_text(case)) == (file, text)


EVERY = [KernelCase("tile", (size, size), "TILE") for size in ("64", "80", "96", "112", "128")]
OF_FOUR, OF_ALL = (f"template-instances/fattn-probe-launches-of-{bits}.cu" for bits in ("f", "1f"))


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ((), ["of-1f"]),
        (("template-instances/fattn-probe-launches-64-64.cu",), ["of-1e"]),
        ((OF_FOUR,), ["128-128"]),
        ((OF_ALL,), []),
    ],
)
def test_kernels_of_several_head_sizes_share_the_file_that_launches_them(files, names):
    kernels = [replace(case, instance=("x",)) for case in EVERY]
    assert launching_files(kernels, EVERY, files) == tuple(
        f"template-instances/fattn-probe-launches-{name}.cu" for name in names
    )


def test_many_host_functions_are_compiled_side_by_side_those_of_one_width_together():
    every = [*EVERY, KernelCase("tile", ("192", "128"), "TILE")]
    for most, names in ((1, ["3f"]), (8, ["34", "b"])):
        found = launching_files(every, every, (), most)
        assert found == tuple(f"template-instances/fattn-probe-launches-of-{bits}.cu" for bits in names)


@pytest.mark.parametrize(
    ("text", "patches", "joined"),
    [
        ("void tiles() {\n    const int n = 1;\n}\n", (), True),
        ('#include "other.cuh"\n', (), False),
        ("static int n;\n", (), False),
        ("const int n = 1;\n", (), False),
        ("#define N 1\n", (), False),
        ("void tiles() {}\n", (Patch("tiles", Path(), "", (), "--- a/fattn-tile.cu\n"),), False),
    ],
)
def test_the_calls_of_tile_cases_are_a_part_of_fattn_cu_unless_names_could_clash(tmp_path, text, patches, joined):
    make_tree(tmp_path)
    (tmp_path / CUDA_FOLDER / "fattn-tile.cu").write_text(text)
    found = sources(plan_of(tmp_path, Contents((), (), (RUNNER,)), patches=patches))
    assert (f"overlay/{CUDA_FOLDER}/launches/fattn-tile.cu" not in found) is joined


@pytest.mark.parametrize(
    ("added", "flavour", "compiled"),
    [((), "release", "convert-to-f16.cu"), (("convert.cu",), "release", "convert.cu"), ((), "debug", "convert.cu")],
)
def test_other_conversions_than_those_to_f16_are_added_when_a_run_misses_one(tmp_path, added, flavour, compiled):
    plan = plan_of(tmp_path, Contents((), ("convert-to-f16.cu", *added), (RUNNER,)), flavour=flavour)
    assert [source for source in sources(plan) if "convert" in source] == [f"overlay/{CUDA_FOLDER}/{compiled}"]


def test_tensor_cores_are_compiled_for_each_generation_and_not_for_amd(tmp_path):
    firsts = re.findall(r"SIMT_ARCH >= (\d+)", (NATIVE / "sim/tensor_core_avx512.h").read_text())
    assert firsts == [str(first) for first in simulator_flags.TENSOR_CORE_GENERATIONS if first]
    found = sources(plan_of(tmp_path, Contents((), (), (RUNNER,)), arch="gfx942"))
    assert not {f"native/{name}" for name in simulator_flags.TENSOR_CORES}.intersection(found)


def test_a_build_with_a_file_that_launches_its_kernels_has_no_other_for_that(tmp_path):
    found = read_sources(make_tree(tmp_path), (), "x86_64")
    every = f"template-instances/fattn-probe-launches-of-{2 ** len(found.cases) - 1:x}.cu"
    assert found.launched_by(every) == list(found.cases.values())
    plan = plan_of(tmp_path, Contents(("mma 64,64,8,8,false,false,false",), (every,), (RUNNER,)))
    assert [source for source in sources(plan) if "launches-" in source] == [f"overlay/{CUDA_FOLDER}/{every}"]


def test_builds_share_what_does_not_depend_on_the_gpu_or_on_the_choice_of_vec_kernels(tmp_path):
    name = "mma 64,64,8,8,false,false,false"
    contents = Contents((name,), (), (RUNNER,))
    plans = [
        plan_of(tmp_path / "hopper", contents),
        plan_of(tmp_path / "pascal", contents, arch="61"),
        plan_of(tmp_path / "quants", contents, quants=("f16-q8_0",)),
    ]
    backend, own, dispatch = (
        [command(plan, f"obj/ggml-cuda/{file}.o") for plan in plans]
        for file in ("ggml-cuda.cu", f"template-instances/{case_file(name)}", "launches/fattn.cu")
    )
    assert backend[0] == backend[1] == backend[2]
    assert (own[0] == own[1], own[0] == own[2]) == (False, True)
    assert len(set(dispatch)) == 3  # it launches kernels, whose __launch_bounds__ depend on the architecture


BESIDE = {
    "flash_attn_mask_to_KV_max": ("ncols1",),
    "flash_attn_stream_k_fixup": ("D", "ncols1", "ncols2"),  # beside stream-K kernels
    "flash_attn_combine_results": ("D",),
    "flash_attn_new": ("other",),
}
"""The kernels of fattn-common.cuh; of the last one, no instance is known."""
MMA, TILE, OTHER_TILE = (
    KernelCase(family, tuple(sizes.split()), "X", tuple(instance.split()))
    for family, sizes, instance in (
        ("mma", "192 128 8 2", "192 128 8 2 true"),
        ("tile", "64 64", "64 64 4 1 false"),
        ("tile", "64 64", "64 64 16 1 false"),
    )
)


def bodies(text):
    return set(re.findall(r"&simt_body::flash_attn_(?:\w+_)?(\w+<.*>),$", text, re.MULTILINE))


def test_the_file_of_one_kernel_has_only_its_body():
    assert case_file(MMA.name) == "fattn-probe-mma-192-128-8-2-true.cu"
    text = case_text(MMA)
    assert text.startswith('#include "../fattn-x.cuh"\n') and bodies(text) == {"f16<192, 128, 8, 2, true>"}


@pytest.mark.parametrize(
    ("kernels", "name", "expected"),
    [
        ((MMA,), "1-0", {"max<8>", "fixup<128, 8, 2>", "results<128>"}),
        ((TILE, OTHER_TILE), "2-14", {"max<4>", "max<16>", "results<64>"}),  # no stream-K
        ((MMA, TILE), "3-4", {"max<4>", "max<8>", "fixup<128, 8, 2>", "results<64>", "results<128>"}),
    ],
)
def test_the_kernels_that_run_beside_others_have_a_file_each_of_them_once(kernels, name, expected):
    every = [MMA.whole, TILE.whole]
    (file,) = common_files(kernels, every)
    assert file == f"template-instances/fattn-probe-common-of-{name}.cu"
    text = common_text(file, [kernel.whole for kernel in kernels], BESIDE)
    assert bodies(text) == expected
    assert text.count("max<") + text.count("fixup<") + text.count("results<") == len(expected)
    assert text.startswith('#include "../fattn-common.cuh"\n#include "../kernels/fattn-common.cuh"\n')
    assert not common_files(kernels, every, [file]), "a build with this file needs no other"


def test_a_build_gets_a_further_file_for_the_kernels_that_its_files_lack():
    every, file = [MMA.whole, TILE.whole], "template-instances/fattn-probe-common-of-{}.cu".format
    assert common_files((MMA, TILE, OTHER_TILE), every, [file("3-4")]) == (file("2-10"),)
    assert common_files((MMA.whole,), every) == (), "a whole case has them"


def test_a_kernel_on_its_own_is_launched_by_the_file_of_its_head_size_in_every_flavour(tmp_path):
    contents = Contents(("mma 64,64,8,8,false,false,false",), (), (RUNNER,))
    commands = set()
    for flavour in ("release", "check", "count"):
        plan = plan_of(tmp_path / flavour, contents, flavour=flavour)
        names = [source.rpartition("/")[2] for source in sources(plan)]
        wanted = ["fattn-probe-mma-64-64-8-8-false-false-false.cu", "fattn-probe-launches-64-64.cu"]
        assert [name for name in names if name.startswith("fattn-probe-") and "-common-" not in name] == wanted
        commands.add(command(plan, "obj/ggml-cuda/template-instances/fattn-probe-launches-64-64.cu.o"))
    assert [[word for word in words if word.startswith("-O")][-1] for words in commands] == ["-O0"] * 2  # check's own


def test_the_file_of_all_kernel_cases_has_each_header_once():
    cases = [KernelCase("mma", ("64", "64", n, "8"), "MMA_F16") for n in ("1", "2")]
    assert launches_text(cases) == (
        '#include "../launches/fattn-mma-f16.cuh"\n\n'
        "DECL_FATTN_MMA_F16_CASE(64, 64, 1, 8);\nDECL_FATTN_MMA_F16_CASE(64, 64, 2, 8);\n"
    )


def test_only_a_build_with_mutants_has_their_switches(tmp_path):
    mutants = Patch("mutants", Path("mutants.patch"), "", (), "")
    plain, switched = (
        command(plan_of(tmp_path, Contents((), (), (RUNNER,)), patches=patches), "obj/ggml-cuda/launches/fattn.cu.o")
        for patches in ((), (mutants,))
    )
    assert "native/sim/mutant.h" not in plain
    assert "-include native/sim/mutant.h" in " ".join(switched)


@pytest.mark.parametrize(
    ("file", "text", "macro"),
    [
        (f"{CUDA_FOLDER}/fattn-tile.cuh", None, r"DECL_FATTN_TILE_CASE\(DKQ, DV\)"),
        # March 2025: one head size
        (
            f"{CUDA_FOLDER}/fattn-mma-f16.cuh",
            "#define DECL_FATTN_MMA_F16_CASE(D, ncols1, ncols2) void mma()",
            "DECL_FATTN_MMA_F16",
        ),
        (
            f"{CUDA_FOLDER}/fattn-vec.cuh",
            "// #define DECL_FATTN_VEC_CASE(D, type_K, type_V) void vec()",
            "DECL_FATTN_VEC_CASE",
        ),
    ],
)
def test_a_tree_with_other_attention_kernels_is_refused_in_one_sentence(tmp_path, file, text, macro):
    tree = make_tree(tmp_path)
    (tmp_path / file).unlink()
    if text:
        (tmp_path / file).write_text(text)
    with pytest.raises(
        InputError, match=rf"\A.*does not know this tree's attention kernels: .* does not define {macro}.*\Z"
    ):
        read_sources(tree, (), "x86_64")


def test_a_tree_of_2024_is_refused_for_its_kernels_although_files_are_elsewhere(tmp_path):
    tree = make_tree(tmp_path)
    for name in (f"{CUDA_FOLDER}/fattn-tile.cuh", f"{CUDA_FOLDER}/ggml-cuda.cu", "ggml/src/ggml-cpu/CMakeLists.txt"):
        (tmp_path / name).unlink()
    with pytest.raises(InputError, match="does not know this tree's attention kernels"):
        read_sources(tree, (), "x86_64")


def test_upstreams_test_of_a_tree_without_it_is_one_sentence(tmp_path):
    tree = make_tree(tmp_path)
    sources, contents = read_sources(tree, (), "x86_64"), Contents((), (), (TEST_BACKEND_OPS,))
    check_contents(tree, contents, sources)
    (tmp_path / "tests/test-backend-ops.cpp").unlink()
    with pytest.raises(InputError, match=r"'path:small': this tree has no tests/test-backend-ops\.cpp"):
        check_contents(tree, contents, sources)


def test_the_cpu_backend_has_what_attention_and_models_call(tmp_path):
    files = read_sources(make_tree(tmp_path), (), "x86_64").cpu
    assert files == ("ggml-cpu/ggml-cpu.c", "ggml-cpu/amx/amx.cpp", "ggml-cpu/arch/x86/quants.c")


def test_a_cpu_backend_without_a_list_of_its_files_is_one_sentence_where_it_is_needed(tmp_path):
    tree = make_tree(tmp_path)
    (tmp_path / "ggml/src/ggml-cpu/CMakeLists.txt").write_text("add_library(ggml-cpu ggml-cpu.c)\n")
    sources = read_sources(tree, (), "x86_64")
    check_contents(tree, Contents((), (), (RUNNER,)), sources)
    for program in (CPU_RUNNER, TEST_BACKEND_OPS):
        with pytest.raises(InputError, match=r"'path:small': .*CMakeLists\.txt has no list GGML_CPU_SOURCES"):
            check_contents(tree, Contents((), (), (program,)), sources)


LOOP = """
float dot(const float * values, const int * columns, const float * x, int n) {
    float sum = 0.0f;
    for (int i = 0; i < n; i++) {
        sum += values[i] * x[columns[i]];
    }
    return sum;
}
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="fused multiply-adds have other names here")
@pytest.mark.parametrize("tuning", ["-mtune=generic", "-mtune=znver3"])
@pytest.mark.parametrize("flavour", ["release", "check", "count"])
def test_a_sum_of_products_in_a_loop_is_fused_whatever_the_processor(tuning, flavour):
    """g++ 13 tunes `generic` as older ones tune `znver3`: it would keep the product and the sum apart."""
    flags = (*simulator_flags.SIM_OPTIMISATION[flavour], *(SIM_QUICK if flavour == "release" else ()))
    words = ["g++", *flags, *X86_V3, *ARITHMETIC, tuning, "-S", "-x", "c++", "-", "-o-"]
    made = subprocess.run(words, input=LOOP, capture_output=True, text=True, check=True).stdout
    assert "vfmadd" in made and "vmulss" not in made
