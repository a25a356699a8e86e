"""A source's configuration functions are read as C++ reads them; what the reader cannot decide is unknown."""

import pytest

from fattn_probe.llama.launch.architecture import CDNA3, RDNA3, RDNA4
from fattn_probe.llama.launch.constants import configurations, constants_of, headers_of
from fattn_probe.llama.source.features import CUDA, probe
from fattn_probe.llama.source.tree import Tree

ROW = "    GGML_CUDA_FATTN_MMA_CONFIG_CASE(128, 128, {ncols}, 128, 2, {rows}, 64, 64, 64, 1, true);"
OLD = ROW.format(ncols=64, rows=64)
NEW = ROW.format(ncols=64, rows=128)
SIZES = (128, 128, 64)


def function(suffix, *lines, end="fattn_mma_config(32, 1, 0, 0, 0, 0, 0, false)"):
    head = f"static constexpr fattn_mma_config ggml_cuda_fattn_mma_get_config_{suffix}(const int DKQ, const int DV) {{"
    return "\n".join((head, *lines, f"    return {end};", "}", ""))


def constants(folder, own="", **functions):
    """The constants of a source whose mma configurations have the row OLD, with some functions' lines replaced."""
    (folder / CUDA).mkdir(parents=True)
    lines = dict.fromkeys(("ampere", "rdna", "cdna"), (OLD,)) | {"turing": (), "volta": ()} | functions
    text = "".join(function(suffix, *some) for suffix, some in lines.items()) + own
    (folder / CUDA / "fattn-mma-f16.cuh").write_text(text)
    (folder / CUDA / "fattn-tile.cuh").write_text(function("nvidia_fp16") + function("nvidia_fp32"))
    (folder / CUDA / "fattn-common.cuh").write_text("")
    return constants_of(Tree("here", folder, "?", "x", probe(folder)))


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ((NEW, f"// {OLD}"), 128),
        ((f"/* {OLD} */", NEW), 128),
        (("#if 0", OLD, "#endif", NEW), 128),
        (("#if 0", OLD, "#else", NEW, "#endif"), 128),
        ((NEW, OLD), 128),
        ((ROW.format(ncols=64, rows="2*64"),), 128),
        ((ROW.format(ncols="2 * 32", rows=128),), 128),
        ((ROW.format(ncols=64, rows="256/2"),), None),
        ((ROW.format(ncols=64, rows="rows_per_step"),), None),
        ((ROW.format(ncols=64, rows="2*(64)"),), None),
        (("#ifdef GGML_HIP_FAST", NEW, "#else", OLD, "#endif"), None),
        (("    if (DV > 64) {", NEW, "    }", OLD), None),
        ((ROW.format(ncols="some_columns", rows=128), OLD), None),
    ],
)
def test_a_row_is_read_as_in_c_and_is_unknown_where_it_depends_on_more(lines, found, tmp_path):
    read = constants(tmp_path, ampere=lines)
    for arch in (70, 75, 90):  # Turing and Volta share the row
        assert read.mma_of(SIZES, arch) == (found and (found, 128))
    assert read.mma_of(SIZES, CDNA3) == (64, 128)


@pytest.mark.parametrize(
    ("suffix", "line", "known"),
    [
        ("rdna4", NEW, {90, CDNA3}),
        ("rdna4", OLD, {90, CDNA3, RDNA3, RDNA4}),
        ("rdna4", ROW.format(ncols=32, rows=128), {90, CDNA3, RDNA3, RDNA4}),
        ("blackwell", NEW, set()),
    ],
)
def test_a_function_of_the_sources_own_leaves_the_rows_that_it_may_replace_unknown(suffix, line, known, tmp_path):
    read = constants(tmp_path, own=function(suffix, line, end="ggml_cuda_fattn_mma_get_config_rdna(DKQ, DV)"))
    found = {arch: read.mma_of(SIZES, arch) for arch in (90, CDNA3, RDNA3, RDNA4)}
    assert found == {arch: (64, 128) if arch in known else None for arch in found}


def test_a_turing_function_with_conditions_is_unknown_but_ampere_is_not(tmp_path):
    read = constants(tmp_path, turing=("    if (ncols > 32) {", NEW, "    }"))
    assert (read.mma_of(SIZES, 75), read.mma_of(SIZES, 90), read.mma_of(SIZES, 70)) == (None, (64, 128), (64, 128))


def test_tables_may_be_in_a_header_that_the_kernels_file_includes(tmp_path):
    before = constants(tmp_path)
    kernels = tmp_path / CUDA / "fattn-mma-f16.cuh"
    kernels.rename(kernels.with_name("fattn-mma-config.cuh"))
    kernels.write_text('#include "fattn-mma-config.cuh"\n')
    assert constants_of(Tree("here", tmp_path, "?", "x", probe(tmp_path))) == before
    assert headers_of(tmp_path, kernels.name) == ["fattn-mma-f16.cuh", "fattn-mma-config.cuh"]


def test_the_rows_of_each_function_are_listed_without_comments():
    text = function("rdna4", NEW, f"// {OLD}", ROW.format(ncols="n", rows="2*32"))
    assert configurations(text) == {
        "rdna4": [(128, 128, 64, 128, 2, 128, 64, 64, 64, 1, 1), (128, 128, -1, 128, 2, 64, 64, 64, 64, 1, 1)]
    }
