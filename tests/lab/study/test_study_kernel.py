"""The lines of llama.cpp for each step, and a row of a real kernel beside the papers' numbers."""

import json
import shutil
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from fattn_probe.base.errors import InputError
from fattn_probe.cli import app
from fattn_probe.lab.study.show import KERNELS, step_lines_of
from fattn_probe.llama.source.features import CUDA


def study(*words):
    done = CliRunner().invoke(app, ["study", *words, "--json"], catch_exceptions=False)
    return json.loads(done.stdout)


def test_every_step_has_a_line_in_every_kernel(tree):
    steps = step_lines_of(tree)
    assert len(steps) == 12
    files = {file for _, file in KERNELS.values()}
    texts = {name: (tree.root / CUDA / name).read_text().splitlines() for name in files}
    said = {}
    for step, places in steps.items():
        for kernel, place in places.items():
            name, _, line = place.partition(":")
            assert name == KERNELS[kernel][1]
            said[step, kernel] = texts[name][int(line) - 1]
    assert "mma(VKQ_C" in said["O = O + P V", "mma"]
    assert "KQ_sum[j]*KQ_max_scale + KQ_reg[j]" in said["l = rescale l + sum of P", "vec"]
    assert "scale_add*dst_add" in said["add parts", "fixup"]
    assert "thread_should_write" in said["store m, l of a part", "mma"]  # of the branch with 16 columns a warp


def test_a_line_is_found_by_what_it_says(tree, tmp_path):
    shutil.copytree(tree.root / CUDA, tmp_path / CUDA)
    path = tmp_path / CUDA / KERNELS["vec"][1]
    path.chmod(0o644)
    path.write_text("// one line more\n" + path.read_text().replace("dst_val /= KQ_sum", "dst_val = dst_val / KQ_sum"))
    before, after = (step_lines_of(of) for of in (tree, replace(tree, root=tmp_path)))
    number = int(before["S = Q K^T"]["vec"].partition(":")[2])
    assert after["S = Q K^T"]["vec"] == f"fattn-vec.cuh:{number + 1}"
    assert after["S = Q K^T"]["mma"] == before["S = Q K^T"]["mma"]
    assert after["O = O / l, undivided tile"]["vec"] is None


@pytest.mark.build
@pytest.mark.gdb
@pytest.mark.parametrize(
    ("case", "family", "steps"),
    [
        (("gqa", "--head", "1", "--devices", "docs/guide/tour/one-sm.yaml", "--against", "sim:one-sm"), "f16", 4),
        # CI follows warps of the other kinds to their output in inspect/test_trace_to_the_end.py.
        pytest.param(("gqa", "--head", "1", "--against", "sim:h200"), "f16", 8, marks=pytest.mark.night),
        pytest.param(
            ("q8-cache", "--case", "q8-cache-n_q=1", "--against", "sim:h200", "--steps", "4"),
            *("vec", 12),
            marks=pytest.mark.night,
        ),
        pytest.param(
            ("tile", "--case", "tile-hsk=40-n_q=1", "--against", "sim:h200", "--steps", "4"),
            *("tile", 7),
            marks=pytest.mark.night,
        ),
    ],
)
def test_a_kernel_has_the_numbers_of_the_papers(case, family, steps):
    found = study(*case)["against"]
    assert f"flash_attn_{'ext_' * (family != 'tile')}{family}<" in found["kernel"]
    assert len(found["states"]) == steps
    for state in found["states"]:
        assert state["kernel_m"] == pytest.approx(state["m"], abs=3e-3)
        assert state["kernel_l"] == pytest.approx(state["l"], rel=3e-3)
    if "sim:one-sm" in case:
        for name, most in (("rescale", 1e-4), ("kernel_rescale", 1e-3)):
            first, *factors = [state[name] for state in found["states"]]
            assert first is None
            assert factors == pytest.approx([0.7314, 1, 0.8826], abs=most)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gqa", "--against", "gpu"), "name one simulated GPU"),
        (("gqa", "--against", "sim:h200,sim:v100"), "name one simulated GPU"),
        (("gqa", "--source", "nowhere"), "nowhere"),
    ],
)
def test_a_target_or_source_that_cannot_be_used(words, said):
    with pytest.raises(InputError, match=said):
        study(*words)
