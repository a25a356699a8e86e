"""The digest of the code that a run executes, of small objects that a compiler and a linker make here."""

import ctypes
import os
import subprocess

import pytest

from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.scenario import expand, loads
from fattn_probe.llama.build.sources import launching_files
from fattn_probe.llama.launch.families import BY_CASE
from fattn_probe.llama.launch.record import LaunchRecord, parse_launches
from fattn_probe.llama.source import KernelCase
from fattn_probe.machine.run import executed
from fattn_probe.machine.run.executed import ExecutedCode, is_added, is_boundary
from fattn_probe.machine.run.prepare import missing_files, required_kernels
from tests.stand_in import StandIn

FOLDER = "obj/ggml-cuda/template-instances/fattn-probe"
HEAD = """
enum ggml_type { F32, F16 };
struct ggml_backend_cuda_context;
struct ggml_tensor;
using Context = ggml_backend_cuda_context &;
template <int D, ggml_type K, ggml_type V> void ggml_cuda_flash_attn_ext_vec_case(Context, ggml_tensor *);
namespace simt_body { template <int D, int n, ggml_type K, ggml_type V, bool cap> int flash_attn_ext_vec(int x); }
"""
HOST = """
int called(Context c, ggml_tensor * t) {
    ggml_cuda_flash_attn_ext_vec_case<64, F16, F16>(c, t);
    ggml_cuda_flash_attn_ext_vec_case<128, F16, F16>(c, t);
    return 1;
}
"""
LAUNCH = """
template <int D, ggml_type K, ggml_type V> void ggml_cuda_flash_attn_ext_vec_case(Context, ggml_tensor * t) {
    const char * said[] = {__PRETTY_FUNCTION__, "D"};
    (void) said;
    (void) simt_body::flash_attn_ext_vec<D, 1, K, V, false>(D);
    if (!t) { (void) simt_body::flash_attn_ext_vec<D, 1, K, V, true>(D); }
}
"""
KERNEL = """
template <int n> [[gnu::noinline]] int shared(int x) { return x SHARED n; }
template <int D, int n, ggml_type K, ggml_type V, bool cap> int simt_body::flash_attn_ext_vec(int x) {
    return shared<3>(x) + D;
}
"""
FLAGS = {
    "host": ("-O2",),
    "launches": ("-O0", "-ftoplevel-reorder", "-fno-keep-static-consts", "-ffunction-sections", "-fmerge-constants"),
    "vec": ("-O2",),
}


def case(size):
    return KernelCase("vec", (size, "GGML_TYPE_F16", "GGML_TYPE_F16"), "VEC")


def launch(size):
    kernel = f"void flash_attn_ext_vec<{size}, 1, (ggml_type)1, (ggml_type)1, false>(int)"
    line = f'{{"order":0,"kernel":"{kernel}","grid":[1,1,1],"block":[1,1,1],"shared":0}}'
    return parse_launches(line, types={1: "GGML_TYPE_F16"})[0]


class Tree(StandIn):
    """A build's folder with a host's object, objects of launching code, and one for each kernel."""

    def __init__(self, folder):
        self.folder, self.root, self.paths = folder, folder, []

    def add(self, path, text):
        kind = path.rpartition("/")[2].removeprefix("fattn-probe-").partition("-")[0].removesuffix(".o")
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        command = ["g++", "-x", "c++", "-g1", "-fPIC", *FLAGS[kind], "-c", "-", "-o", str(target)]
        subprocess.run(command, input=HEAD + text, text=True, check=True)
        self.paths = [*(known for known in self.paths if known != path), path]

    def code(self, order=()):
        paths = order or sorted(self.paths, key=lambda path: (is_added(path), "launches" not in path))
        lines = [f"build lib/libggml-cuda.so: link {' '.join(paths)} obj/generated/stubs.c.o lib/libggml-base.so"]
        lines += ["build lib/libggml-base.so: link ", "build bin/fattn-runner: link lib/libggml-cuda.so"]
        (self.folder / "build.ninja").write_text("\n".join(lines) + "\n")
        return ExecutedCode.of(self.folder, self)

    def digests(self, order=()):
        code = self.code(order)
        return tuple(code.digest([launch(size)]) for size in ("64", "128"))


def instance(size):
    return f"{FOLDER}-vec-{size}.cu.o"


def kernel(size, shared="+", body=KERNEL):
    return (
        body.replace("SHARED", shared) + f"template int simt_body::flash_attn_ext_vec<{size}, 1, F16, F16, false>(int);"
    )


def launches(*sizes):
    return LAUNCH + "".join(
        f"template void ggml_cuda_flash_attn_ext_vec_case<{size}, F16, F16>(Context, ggml_tensor *);" for size in sizes
    )


@pytest.fixture
def build(tmp_path, monkeypatch):
    monkeypatch.setattr(executed, "known_cases", lambda tree: {case(size).name: case(size) for size in ("64", "128")})
    monkeypatch.setattr(executed, "ggml_types", lambda root: {1: "f16"})
    made = Tree(tmp_path)
    made.add("obj/host.o", HOST)
    made.add(f"{FOLDER}-launches-all.cu.o", launches(64, 128))
    for size in ("64", "128"):
        made.add(instance(size), kernel(size))
    return made


def test_a_comment_changes_no_kernels_digest_and_a_change_of_a_body_that_of_its_runs_alone(build):
    before = build.digests()
    assert None not in before
    assert before[0] != before[1]
    build.add("obj/host.o", "// a line more\n" + HOST)
    build.add(instance("64"), "\n" + kernel("64") + "// at the end")
    build.add(f"{FOLDER}-launches-all.cu.o", launches(64, 128) + "static constexpr int more[] = {1, 2, 3};")
    assert build.digests() == before
    build.add(instance("64"), kernel("64").replace("+ D", "+ D + 1"))
    after = build.digests()
    assert after[0] not in (None, before[0])
    assert after[1] == before[1]


def test_a_change_of_the_host_or_of_what_launches_changes_the_digests_of_all_that_run_it(build):
    before = build.digests()
    build.add("obj/host.o", HOST.replace("return 1", "return 2"))
    host = build.digests()
    assert set(host).isdisjoint({*before, None})
    build.add(f"{FOLDER}-launches-all.cu.o", launches(64, 128).replace("(D);\n    if", "(D + 1);\n    if"))
    assert set(build.digests()).isdisjoint({*host, None})


def test_code_that_launches_is_the_same_whatever_else_is_in_its_file(build):
    before = build.digests()
    build.paths.remove(f"{FOLDER}-launches-all.cu.o")
    build.add(f"{FOLDER}-launches-128.cu.o", launches(128))
    assert build.digests() == (None, before[1]), "the other is not there"


def test_an_inline_function_is_the_one_that_the_linker_takes(build):
    """Each object has a copy of `shared`, weak: the library has the first one, also for the other kernel."""
    build.add(instance("64"), kernel("64", "-"))
    plus, minus = kernel("128", "+"), kernel("128", "-")
    orders = {}
    for first, second in (("64", "128"), ("128", "64")):
        order = ["obj/host.o", f"{FOLDER}-launches-all.cu.o", instance(first), instance(second)]
        build.add(instance("128"), plus)
        mixed = build.digests(order)
        library = build.folder / f"{first}.so"
        subprocess.run(
            ["g++", "-shared", "-Wl,-Bsymbolic-functions", *order, "-o", library], cwd=build.folder, check=True
        )
        build.add(instance("128"), minus)
        orders[first] = (mixed[1], build.digests(order)[1], called(library, "128"))
    assert orders["64"][0] == orders["64"][1], "its own copy is not what runs"
    assert orders["128"][0] != orders["128"][1]
    assert [values[2] for values in orders.values()] == [128 + 10 - 3, 128 + 10 + 3]


def test_an_inline_function_of_the_host_is_that_of_every_kernel(build):
    """Other ops' files of the same build, for example norm.cu, have copies of the simulator's inline functions."""
    own = build.digests()
    host = HOST + KERNEL.replace("SHARED", "+") + "int other(int x) { return shared<3>(x); }"
    build.add("obj/host.o", host)
    before = build.digests()
    assert None not in before and set(before).isdisjoint(own)
    build.add(instance("64"), kernel("64", "-"))
    assert build.digests() == before, "its own copy is not what runs"
    build.add("obj/host.o", host.replace("x + n", "x - n"))
    assert set(build.digests()).isdisjoint({*before, None})


def called(library, size):
    """What a kernel of a linked library returns for 10."""
    symbol = f"_ZN9simt_body18flash_attn_ext_vecILi{size}ELi1EL9ggml_type1ELS1_1ELb0EEEii"
    return ctypes.CDLL(str(library), mode=os.RTLD_LAZY)[symbol](10)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (instance("64"), kernel("64") + "struct Now { Now(); }; static Now now;"),
        (instance("64"), kernel("64") + HOST),
        (f"{FOLDER}-vec-body-more.cu.o".replace("vec-body", "body"), "int more;"),
    ],
    ids=["code at load", "a launch", "a kernel without a family"],
)
def test_nothing_is_told_where_parts_of_a_build_depend_on_one_another(build, path, text):
    FLAGS["body"] = FLAGS["vec"]
    build.add(path, text)
    assert build.digests() == (None, None)


def test_a_kernel_that_is_not_there_or_a_damaged_object_tells_nothing(build):
    assert build.code().digest([launch("256")]) is None
    assert build.code().digest([]) is None
    path = build.folder / instance("64")
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ValueError, match="not an object"):
        build.code()


@pytest.mark.build
@pytest.mark.network
def test_in_a_real_build_kernels_are_in_objects_of_their_own(session, tree):
    """No body of a kernel is in an object of the host, and every kernel with its launching code has a digest."""
    target = parse_target("sim:gtx1060", load_devices())  # no model runs on it, and test_generations.py builds it
    cases = expand(
        loads("version: 1\nabout: x\nhsk: 64\nn_head: 2\nn_q: 1\nn_kv: 256\nmatrix: {n_q: [1, 8]}\n", "c.yaml")
    )
    kernels = required_kernels(session, cases, target)
    session.add_kernels(target, kernels, sources=missing_files(launching_files, session, kernels, target))
    code = ExecutedCode.of(session.build_for(target).folder, tree)
    defined = {path: [name for name in one.symbols if is_boundary(name)] for _, path, one in code._objects}
    assert not [path for path, names in defined.items() if names and not is_added(path)]
    names = [kernel.name.partition(" ") for kernel in kernels]
    for family, values in ((BY_CASE[family], words.split(",")) for family, _, words in names):
        one = LaunchRecord(0, family.kernel, tuple(("", value) for value in values), (1, 1, 1), (1, 1, 1), 0)
        assert code.digest([one]) is not None
