"""Mutants: what is changed, what is left alone, the original in its place, and the memory of which do not compile."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fattn_probe.base.errors import BuildError, InputError
from fattn_probe.lab.detect import schema
from fattn_probe.lab.detect.mutants import Mutant, mutate, switched_spans
from fattn_probe.lab.detect.schema import FILES, compiling, messages, suspects, switched
from fattn_probe.lab.detect.verdicts import documents
from fattn_probe.llama.build import BuildRequest
from fattn_probe.llama.cxx.tokens import draft_of, tokenize
from fattn_probe.llama.source.features import CUDA
from fattn_probe.llama.source.patches import find, plan
from tests.made import ROOT

KERNEL = (Path(__file__).parent / "kernel.cu").read_text()


def texts(source=KERNEL, **changes):
    return {str(mutant).partition(": ")[2] for mutant in mutate(source, "fattn-vec.cuh", **changes)[1]}


@pytest.mark.parametrize(
    "fault",
    [
        "relation: k < D / 2 -> k <= D / 2",
        "relation: j >= ne01 -> j > ne01",
        "guard dropped: j >= ne01 -> true",
        "jump: continue -> break",
        "wait dropped: __syncthreads ( ) -> nothing",
        "arithmetic: threadIdx . y * ncols1 + threadIdx -> threadIdx . y + ncols1 + threadIdx",
        "other name: j ) * nb11 -> j ) * nb21",
        "32 bits: Q + int64_t ( j ) -> Q + int ( j )",
        "warp forgotten: threadIdx . y * ncols1 + -> 0 * ncols1 +",
        "constant: < D / 2 -> < D / 3",
        "wait moved: __syncthreads ( ) -> after tile [ j *",
        "arithmetic: j * ncols1 + 1 -> j + ncols1 + 1",  # an index of what is assigned to
        "arithmetic: j + 4 -> j - 4",  # an argument of a call
        "arithmetic: 5.0f * n -> 5.0f + n",  # in a lambda
        "f16: load < ncols1 , ncols2 > ( row , k ) -> half(load < ncols1 , ncols2 > ( row , k ))",
        "32 bits: nb11 * j -> int(nb11 * j)",
        "template argument: < D , oob_check > ( row -> < D , !oob_check > ( row",
        "template argument: < D , ncols1 , ncols2 > ( j -> < D , ncols2, ncols1 > ( j",
    ],
)
def test_each_kind_of_fault(fault):
    assert fault in texts()


def test_each_mutant_has_its_function_and_what_must_be_constant_is_left_alone():
    found = [mutant.function for mutant in mutate(KERNEL + KERNEL.replace(" kernel(", " other("), "fattn-vec.cuh")[1]]
    half = len(found) // 2
    assert found == ["kernel"] * half + ["other"] * half
    lines = {mutant.line for mutant in mutate(KERNEL, "fattn-vec.cuh")[1]}
    assert not lines & {1, 2, 3, 4, 5}  # the head, constexpr, static_assert, an array's size
    assert not any("load < ncols2" in text or "ncols1 , ncols1" in text for text in texts())
    assert not any(text.startswith("arithmetic: const float") for text in texts())  # a pointer's star
    assert not any("j < 7" in text for text in texts())
    swapped = mutate("void f() { d = __builtin_amdgcn_mfma(a, b[1], d, 0, 2); }", "fattn.cu")[1]
    assert [mutant.before for mutant in swapped] == [", b [ 1 ] , d"]


@pytest.mark.parametrize(
    ("line", "fault", "both"),
    [
        ("x = a + b*c;", "+", ("a - b * c", "a + b * c")),
        ("if (j >= n || g[j] < 2) { x = 1; }", ">=", ("j > n", "j >= n")),  # j guards the index
        ("if (p && p->x < 3) { x = 1; }", "<", ("p && p -> x <= 3", "p && p -> x < 3")),
        ("if (p && p->x < 3) { x = 1; }", "&&", None),  # a wild pointer
        ("if (a || b && c) { x = 1; }", "||", ("a && b && c", "a || b && c")),  # binds other operands
        ("x = a[i + 1];", "+", ("i - 1", "i + 1")),
        ("x = a[i]*y + z;", "+", ("a [ i ] * y - z", "a [ i ] * y + z")),
        ("x = t->ne[0]*y;", "0", ("t -> ne [ 1 ] * y", "t -> ne [ 0 ] * y")),
        ("x = t->ne[3]*y;", "3", ("4", "3")),
        ("x = a/(b - c);", "-", ("a / ( b + c )", "a / ( b - c )")),
        ("x = a/(b + c);", "+", ("b - c", "b + c")),  # alone, since the divisor may be zero
        ("x = *(p + i) + 1;", "+", ("p - i", "p + i")),
        ("x = load(i + 1, j);", "+", ("i - 1", "i + 1")),
        ("x = load(i) + 1;", "+", None),
        ("x = max(i, 2*j) + 1;", "+", ("max ( i , 2 * j ) - 1", "max ( i , 2 * j ) + 1")),
        ("x = y*(n = 2) + 1;", "+", None),
    ],
)
def test_a_value_is_compared_with_the_faults_where_that_does_no_harm(line, fault, both):
    draft = draft_of(tokenize(f"void f() {{ {line} }}"))
    found = [change for changes in switched_spans(draft) for change in changes]
    part = {"+": "-", "-": "+", ">=": ">", "<": "<=", "&&": "||", "||": "&&", "0": "1", "3": "4"}[fault]
    assert both in [change.compared for change in found if f" {part} " in f" {change.after} "]


def test_the_comparison_is_in_the_switch_and_code_of_amd_gpus_alone_is_marked():
    text = mutate("void f() { x = a + b; }", "fattn.cu")[0]
    assert "simt::mutant(1, simt::unknown(1) && simt::differ((a - b), (a + b))) ? (a - b) : (a + b)" in text
    assert {mutant.line for mutant in mutate(KERNEL, "fattn-vec.cuh")[1] if mutant.amd} == {16, 17}


@pytest.mark.parametrize(
    ("directive", "amd"),
    [
        ("#ifdef RDNA3 // and RDNA3.5", {3}),
        ("#ifndef GGML_USE_HIP", {5}),
        ("#if !defined(GGML_USE_HIP) && !defined(GGML_USE_MUSA)", {5}),
        ("#if __CUDA_ARCH__ >= 800 && (defined(CDNA) || defined(AMD_WMMA_AVAILABLE))", {3}),
        ("#if defined(RDNA3) || defined(VOLTA_MMA_AVAILABLE)", set()),
        ("#if 1\n#elif defined(RDNA4)", {4}),
    ],
)
def test_code_that_only_builds_for_amd_gpus_have_is_marked(directive, amd):
    source = f"void f() {{\n{directive}\n    x = a + b;\n#else\n    x = a - b;\n#endif\n    x = a * b;\n}}"
    assert {mutant.line for mutant in mutate(source, "fattn.cu")[1] if mutant.amd} == amd


def test_mma_cuh_has_mutants_in_the_members_of_its_structs_that_only_amd_gpus_run():
    body = "static __device__ int get_i(const int l) { return l % 16; }"
    source = f"namespace n {{\nstruct tile {{\n#ifdef CDNA\n{body}\n#else\n{body}\n#endif\n}};\n}}"
    found = mutate(source, "mma.cuh")[1]
    assert {(mutant.line, mutant.function, mutant.amd) for mutant in found} == {(4, "get_i", True)}
    assert {mutant.line for mutant in mutate(source, "fattn-vec.cuh")[1]} == {4, 6}


def test_a_moved_wait_is_after_the_next_statement():
    number = next(item.id for item in mutate(KERNEL, "fattn-vec.cuh")[1] if item.operator == "wait moved")
    mutated = mutate(KERNEL, "fattn-vec.cuh")[0]
    at = f"if (simt::mutant({number})) {{ ; }} else "
    assert re.search(re.escape(at) + r"__syncthreads\(\);\n.*;" + re.escape(f" if (simt::mutant({number}))"), mutated)
    assert f"if (simt::mutant({number})) {{ __syncthreads ( ) ; }}" in mutated


def test_the_original_is_in_place_with_every_line():
    mutated, found = mutate(KERNEL, "fattn-vec.cuh")
    assert mutated.count("\n") == KERNEL.count("\n")
    switches = sorted({int(number) for number in re.findall(r"simt::mutant\((\d+)\b", mutated)})
    assert switches == [mutant.id for mutant in found]
    for mutant in found:
        assert re.search(rf"simt::mutant\({mutant.id}\b", mutated.split("\n")[mutant.line - 1])


def test_numbers_go_on_from_the_file_before_and_do_not_depend_on_what_is_left_out():
    every = mutate(KERNEL, "fattn-vec.cuh", 100)[1]
    out = frozenset({every[0].id, every[-1].id})
    text, same = mutate(KERNEL, "fattn-vec.cuh", 100, out)
    assert [mutant.id for mutant in every] == list(range(100, 100 + len(every)))
    assert same == every
    assert [m.digest for m in mutate(KERNEL, "fattn-vec.cuh")[1]] == [*dict.fromkeys(m.digest for m in every)]
    assert not any(re.search(rf"mutant\({number}\b", text) for number in out)
    every = mutate(KERNEL, "fattn-vec.cuh")[1]
    assert mutate(KERNEL, "fattn-vec.cuh", 1, frozenset(mutant.id for mutant in every))[0] == KERNEL


def test_faults_with_the_same_text_in_a_line_are_told_apart():
    twice = "void f() { a = g(nb11 * x, 1) - 2 - 2 - 2; }"
    found = [mutant for mutant in mutate(twice, "fattn.cu")[1] if mutant.before == "- 2 - 2 -"]
    assert len({mutant.digest for mutant in found}) == len(found)


def test_an_error_blames_other_names_the_nearest_line_or_the_arguments_of_a_template():
    found = mutate(KERNEL, "fattn-vec.cuh")[1]
    blamed = {mutant.id for mutant in found if mutant.line == 11 and mutant.operator == "other name"}
    assert suspects(found, {(("fattn-vec.cuh", 11),)}) == blamed
    assert suspects(found, {(("fattn-vec.cuh", 13),)}) == {m.id for m in found if m.line == 12 and m.operator == "f16"}
    (flag,) = (mutant for mutant in found if "!oob_check" in mutant.after)
    assert suspects(found, {(("fattn-vec.cuh", flag.line), ("fattn-vec.cuh", 11))}) == {flag.id}
    outer, inner = ("fattn-mma-f16.cuh", 636), ("fattn-mma-f16.cuh", 390)
    assert messages(OUTPUT) == {(outer, inner), (("fattn-vec.cuh", 12),)}


OUTPUT = """\
overlay/ggml-cuda/fattn-mma-f16.cuh: In instantiation of 'void load_tile() [with bool oob_check = true]':
overlay/ggml-cuda/fattn-mma-f16.cuh:636:47:   required from 'void iter()'
overlay/ggml-cuda/fattn-mma-f16.cuh:390:23: error: static assertion failed: OOB check
overlay/ggml-cuda/fattn-vec.cuh:12:3: error: 'nb99' was not declared in this scope
overlay/ggml-cuda/common.cuh:99:3: error: somewhere else
"""


@pytest.mark.network
def test_a_release_has_hundreds_of_mutants_in_each_file_and_the_patch_applies(tree):
    made = switched(tree, (), frozenset())
    assert min({name: sum(mutant.file == name for mutant in made.mutants) for name in FILES}.values()) > 300
    try:
        changed = plan(made.patches[-1], tree.root)
    except InputError as error:
        pytest.fail(str(error))
    assert {path.name for path in changed} == set(FILES)


@pytest.mark.network
def test_the_recorded_mutants_are_made_and_those_of_patched_sources(tree):
    recorded = {Mutant(**item["mutant"]).digest for item in documents(ROOT / "docs/measurements/mutants.jsonl.gz")}
    fault = find("faults/7465-tail-writes", tree)
    plain, made = (switched(tree, patches, frozenset()) for patches in ((), (fault,)))
    for_amd = {mutant.digest: mutant.amd for mutant in plain.mutants}
    assert {for_amd.get(digest) for digest in recorded} == {False}
    assert made.patches[0] == fault
    assert {item.digest for item in made.mutants} != {item.digest for item in plain.mutants}


KERNELS: Any = {"90": [SimpleNamespace(name="vec-64", family="vec")]}


@pytest.fixture
def same_files(cache, tmp_path):
    """A tree whose files are all one kernel, and an empty cache."""
    root = tmp_path / "tree"
    (root / CUDA).mkdir(parents=True)
    for name in FILES:
        (root / CUDA / name).write_text(KERNEL)
    return cast(Any, SimpleNamespace(root=root))


@pytest.fixture
def compiled(same_files, monkeypatch):
    """Each set of switches that was compiled; the second mutant does not compile."""
    rounds: list[set[int]] = []
    second = switched(same_files, (), frozenset()).mutants[1]

    def checked(release, kernels, left):
        (made,) = release.patches
        numbers = {int(number) for number in schema.SWITCH.findall(made.text)}
        rounds.append(numbers)
        errors = {((second.file, second.line),)} if second.id in numbers else set()
        return {(arch, "vec.cu"): (errors, set() if errors else numbers) for arch in kernels}

    monkeypatch.setattr(schema, "checked", checked)
    monkeypatch.setattr(schema, "suspects", lambda mutants, errors: frozenset({second.id}))
    return rounds


@pytest.fixture
def memory(same_files):
    """The document that remembers; none yet."""
    return lambda: next((same_files.root.parent / "cache/mutants").glob("*.document"))


def test_each_file_is_mutated_once(same_files, monkeypatch):
    seen = []

    def watched(text, file, *rest):
        seen.append(file)
        return mutate(text, file, *rest)

    monkeypatch.setattr(schema, "mutate", watched)
    every = switched(same_files, (), frozenset())
    assert seen == list(FILES)
    some = switched(same_files, (), frozenset({2, 3}))
    assert [item for item in every.mutants if item.id not in (2, 3)] == list(some.mutants)


def test_what_does_not_compile_is_found_once(same_files, compiled, memory):
    first, rounds = compiling(BuildRequest(same_files), KERNELS, print), len(compiled)
    assert 2 not in {mutant.id for mutant in first.mutants}
    assert compiling(BuildRequest(same_files), KERNELS, print) == first
    assert (rounds, len(compiled)) == (3, 3)  # with the second, without it, and then all kernels


def test_no_set_of_switches_is_made_twice(same_files, compiled, monkeypatch):
    made, switch = [], schema.switched

    def watched(tree, patches, without):
        made.append(without)
        return switch(tree, patches, without)

    monkeypatch.setattr(schema, "switched", watched)
    compiling(BuildRequest(same_files), KERNELS, print)
    assert made == [frozenset(), frozenset({2})]


def test_two_processes_that_find_out_at_once_remember_both(same_files, compiled, memory, monkeypatch):
    checked, others = schema.checked, [{"75": KERNELS["90"]}]

    def meanwhile(*arguments):
        if others:
            compiling(BuildRequest(same_files), others.pop(), print)
        return checked(*arguments)

    monkeypatch.setattr(schema, "checked", meanwhile)
    compiling(BuildRequest(same_files), KERNELS, print)
    remembered = json.loads(memory().read_text().partition("\n")[2])  # behind the first line
    assert {key[:2] for key in remembered if key[:2].isdecimal()} == {"75", "90"}


def test_an_error_that_is_no_mutant_s_ends_it(same_files, compiled, monkeypatch):
    monkeypatch.setattr(schema, "suspects", lambda mutants, errors: frozenset())
    with pytest.raises(BuildError, match="the switched sources do not compile"):
        compiling(BuildRequest(same_files), KERNELS, print)
