"""gcov's JSON, as g++ 12.2 wrote it for a vec kernel (shortened)."""

import json
import re

import pytest
import yaml

from fattn_probe.base.errors import InputError
from fattn_probe.daily.regress import entries
from fattn_probe.daily.regress.entries import Given
from fattn_probe.lab.detect.measure import folded, link_notes, on_simulated, parse
from fattn_probe.llama.build import Build
from fattn_probe.llama.source import KernelCase
from tests.cli.test_cli import probe

VEC = "_Z18flash_attn_ext_vecILi128ELi1EL9ggml_type1ELS0_1ELb0EEvPKc"
SOURCE = """\
    const int ic0 = blockIdx.x * ncols;
    for (int k = 0; k < n; ++k) {
        GGML_ASSERT(k > 0 || k < n);
        f(k); g(k);
        if (use && slope != 1.0f) {
}
"""


def branch(count, *, throw=False):
    return {"fallthrough": not throw, "count": count, "throw": throw}


def line(number, count, *branches):
    return {
        "line_number": number,
        "count": count,
        "branches": list(branches),
        "function_name": VEC,
        "unexecuted_block": False,
    }


LINES = [
    line(1, 128),
    line(2, 512, branch(384), branch(128)),
    line(3, 384, branch(384), branch(0)),
    line(4, 384, branch(384), branch(0)),
    line(5, 384, branch(384), branch(0, throw=True), branch(0), branch(384)),
    line(900, 1),
]
FUNCTION = {
    "name": VEC,
    "demangled_name": "void flash_attn_ext_vec<128, 1, (ggml_type)1, (ggml_type)1, false>(char const*)",
}
NEAR = "overlay/ggml/src/ggml-cuda/template-instances/../fattn-vec.cuh"


def counted(tmp_path, *files):
    (tmp_path / "fattn-vec.cuh").write_text(SOURCE)
    document = {"files": [{"file": name, "functions": [FUNCTION], "lines": LINES} for name in files]}
    return list(parse(document, tmp_path, {}))


def test_attention_sources_are_counted_and_nothing_else(tmp_path):
    found = counted(tmp_path, NEAR, "native/sim/warp.h", "overlay/ggml/src/ggml-cuda/common.cuh")
    assert {item.file for item in found} == {"fattn-vec.cuh"}
    assert [item.line for item in found] == [1, 2, 3, 4, 5]  # the rewriter appends lines that upstream does not have
    assert {item.function for item in found} == {"flash_attn_ext_vec<128,1,GGML_TYPE_F16,GGML_TYPE_F16,false>"}


def test_branches_are_those_that_the_source_has(tmp_path):
    by_line = {item.line: item.branches for item in counted(tmp_path, NEAR)}
    assert by_line[2] == (384, 128)
    assert by_line[3] == ()  # a correct program never takes the other outcome of an assertion
    assert by_line[4] == ()  # of an inlined function or the rewriter
    assert by_line[5] == (384,)  # without the exception of a call, and the outcome beside it


@pytest.mark.parametrize(
    ("text", "counts", "folds"),
    [
        ("for (int i = 0; i < n; ++i) {", (3, 0, 4, 1), (7, 1)),  # two copies of a lambda
        ("if (a && b) {", (3, 0, 2, 1), (3, 0, 2, 1)),
        ("if (a && b) {", (3, 0, 2, 1) * 3, (9, 0, 6, 3)),
        ("a && b &&", (1, 0, 1, 0, 2, 0, 2, 0), (3, 0, 3, 0)),
        ("return a && b;", (1, 0, 1, 0), (1, 0, 1, 0)),
        ("a || b ? c : d", (1, 2, 3, 4) * 2, (2, 4, 6, 8)),
        ("if (a) b = c ? d : e;", (1, 2, 3, 4), (1, 2, 3, 4)),
        ("if (a && b) {", (1, 0, 2, 0, 3, 0, 4, 0, 5, 0), (15, 0)),  # each of five copies knows a part of the condition
        ("if (a && b", (1, 0, 2, 0, 3, 0), (1, 0, 2, 0, 3, 0)),  # g++ counts the next line's condition here
        ("switch (type) {", (1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6)),
    ],
)
def test_the_outcomes_of_copies_add_up(text, counts, folds):
    assert folded(counts, text) == folds


def test_only_objects_of_this_run_are_counted(tmp_path):
    """A build has kernels of other runs too, and an interrupted compile leaves notes without an object."""
    objects = tmp_path / "build" / "obj" / "ggml-cuda"
    (objects / "template-instances").mkdir(parents=True)
    names = ("fattn.cu", *(f"template-instances/fattn-probe-vec-{size}-f16-f16.cu" for size in (64, 128, 256)))
    for name in names:
        (objects / f"{name}.gcno").touch()
    for name in names[:3]:  # the last compile was interrupted
        (objects / f"{name}.o").touch()
    wanted = [KernelCase("vec", (size, "GGML_TYPE_F16", "GGML_TYPE_F16"), "") for size in ("64", "256")]
    link_notes(Build(tmp_path / "build", None), tmp_path / "counters", wanted)
    linked = sorted(path.name for path in (tmp_path / "counters").rglob("*.gcno"))
    assert linked == ["fattn-probe-vec-64-f16-f16.cu.gcno", "fattn.cu.gcno"]


def suite(folder, *, on=("sim:h200",)):
    path = folder / "small.yaml"
    op = {"version": 1, "about": "vec", "hsk": 64, "n_head": 2, "n_kv": 256, "n_q": 1}
    (folder / "case.yaml").write_text(yaml.safe_dump(op))
    path.write_text(yaml.safe_dump({"version": 1, "about": "one", "scenarios": ["case.yaml"], "on": list(on)}))
    return path


def test_a_real_gpu_that_only_the_suite_asks_for_is_left_out(tmp_path, monkeypatch):
    """`mutate nightly` and `coverage nightly` work on a machine with a GPU too."""
    monkeypatch.setattr(entries, "has_gpu", lambda: True)
    path = suite(tmp_path, on=["gpu?", "sim:h200"])
    assert [str(target) for _, target in on_simulated("mutate", path, Given())] == ["sim:h200"]
    with pytest.raises(InputError, match="only simulated GPUs"):
        on_simulated("mutate", path, Given("gpu,sim:h200"))


@pytest.mark.build
@pytest.mark.network
@pytest.mark.night
def test_executed_and_other_lines_of_a_small_suite(tmp_path):
    page = tmp_path / "page.html"
    (found,) = json.loads(probe("coverage", str(suite(tmp_path)), "--html", str(page), "--json").stdout)["suites"]
    assert (found["cases"], found["lost"]) == (1, [])
    files = {file["file"]: file for file in found["files"]}
    vec = files["fattn-vec.cuh"]
    assert 0 < vec["lines"]["executed"] < vec["lines"]["of"]  # no ALiBi, no sinks
    assert 0 < vec["branches"]["executed"] < vec["branches"]["of"]
    assert files["fattn-tile.cu"]["lines"]["executed"] == 0
    executed = {item["function"] for item in found["instances"] if item["executed"]}
    assert any(re.fullmatch(r"flash_attn_ext_vec<64,1,.*,false>", name) for name in executed)
    assert not any(re.fullmatch(r"flash_attn_ext_vec<64,1,.*,true>", name) for name in executed)  # no softcap
    text = page.read_text()
    assert 'class="never"' in text
    assert "flash_attn_ext_vec" in text
    assert not re.search(r"<(?:script|link|img|iframe)\b", text)  # nothing is loaded
