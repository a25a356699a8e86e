"""Mutants of literal sources: what is changed, what is left alone, and that the original stays in place."""

import re

import pytest

from fattn_probe.cxx.tokens import draft_of, tokenize
from fattn_probe.detect.mutants import mutate
from fattn_probe.detect.schemata import FILES, suspects, switched
from fattn_probe.errors import InputError
from fattn_probe.source.patches import plan

KERNEL = """\
template <int D, int ncols1, int ncols2> // D == head size
static __global__ void kernel(const float * Q, const int ne01, const int64_t nb11, const int64_t nb21) {
    constexpr int nwarps = D/32;
    static_assert(D % 32 == 0, "bad D");
    __shared__ float tile[D/2];
    const int j = threadIdx.y*ncols1 + threadIdx.x; // a * b
    for (int k = 0; k < D/2; k += 32) {
        if (j >= ne01) {
            continue;
        }
        const float * row = Q + int64_t(j)*nb11;
        tile[k] += load<ncols1, ncols2>(row, k);
    }
    __syncthreads();
    return f<D, ncols1>(tile[0] < 1.0f);
}
"""


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
    ],
)
def test_each_kind_of_fault(fault):
    assert fault in texts()


def test_what_must_be_constant_and_template_arguments_are_left_alone():
    lines = {mutant.line for mutant in mutate(KERNEL, "fattn-vec.cuh")[1]}
    assert not lines & {1, 2, 3, 4, 5}  # the head, constexpr, static_assert, an array's size
    assert not any("load < ncols2" in text or "ncols1 , ncols1" in text for text in texts())
    assert not any(text.startswith("arithmetic: const float") for text in texts())  # a pointer's star


def code(text):
    return draft_of(tokenize(text)).words


def test_the_original_is_in_place_with_every_line():
    mutated, found = mutate(KERNEL, "fattn-vec.cuh")
    assert mutated.count("\n") == KERNEL.count("\n")
    assert [int(number) for number in re.findall(r"simt::mutant\((\d+)\)", mutated)] == [mutant.id for mutant in found]
    for mutant in found:
        assert f"simt::mutant({mutant.id})" in mutated.split("\n")[mutant.line - 1]


def test_numbers_go_on_from_the_file_before_and_do_not_depend_on_what_is_left_out():
    every = mutate(KERNEL, "fattn-vec.cuh", 100)[1]
    out = frozenset({every[0].id, every[-1].id})
    text, some = mutate(KERNEL, "fattn-vec.cuh", 100, out)
    assert [mutant.id for mutant in every] == list(range(100, 100 + len(every)))
    assert some == every[1:-1]
    assert not any(f"mutant({number})" in text for number in out)


def test_a_source_without_its_mutants_is_unchanged():
    every = mutate(KERNEL, "fattn-vec.cuh")[1]
    assert mutate(KERNEL, "fattn-vec.cuh", 1, frozenset(mutant.id for mutant in every))[0] == KERNEL


def test_digests_do_not_depend_on_numbers():
    one, other = (mutate(KERNEL, "fattn-vec.cuh", first)[1] for first in (1, 50))
    assert [mutant.digest for mutant in one] == [mutant.digest for mutant in other]
    assert len({mutant.digest for mutant in one}) > 0.9 * len(one)


def test_an_error_blames_other_names_first_and_the_nearest_line_before_it():
    found = mutate(KERNEL, "fattn-vec.cuh")[1]
    blamed = {mutant.id for mutant in found if mutant.line == 11 and mutant.operator == "other name"}
    assert suspects(found, {("fattn-vec.cuh", 11)}) == blamed
    assert suspects(found, {("fattn-vec.cuh", 13)}) == blamed  # line 12 has none


@pytest.mark.network
def test_a_release_has_hundreds_of_mutants_in_each_file_and_the_patch_applies(tree):
    made = switched(tree, frozenset())
    counts = {name: sum(mutant.file == name for mutant in made.mutants) for name in FILES}
    assert min(counts.values()) > 300
    try:
        changed = plan(made.patch, tree.root)
    except InputError as error:
        pytest.fail(str(error))
    assert {path.name for path in changed} == set(FILES)
