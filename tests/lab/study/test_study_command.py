"""The `study` command: text, JSON, rejected input, the lines of llama.cpp for each step, and a real row."""

import json
import shutil
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from fattn_probe.base.errors import ComparisonError, InputError
from fattn_probe.cases.op import Op
from fattn_probe.cases.scenario import expand, load
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.cli import app
from fattn_probe.cli.commands import with_flags
from fattn_probe.cli.study import study
from fattn_probe.daily.inspect.facts import Choice, Facts
from fattn_probe.daily.inspect.view.show import facts_json
from fattn_probe.lab.study import command
from fattn_probe.lab.study.command import ALGORITHMS, StudyOptions, op_of_case, raise_if_different, study_case
from fattn_probe.lab.study.precisions import VARIANTS, errors
from fattn_probe.lab.study.show import KERNELS, render, step_lines_of, study_json
from fattn_probe.lab.study.stream_k import divide, read_launch
from fattn_probe.llama.launch.tiles import blocks_in_turn
from fattn_probe.llama.source.features import CUDA
from fattn_probe.verdict.truth.reference.adapter import reference_of
from tests.made import SCENARIOS, shown


def case_of(name, place=0):
    return expand(load(SCENARIOS / f"{name}.yaml"))[place]


@cache
def studied(name):
    return study_case(case_of(name), "fa2", StudyOptions(backward=name == "gqa"))


def rendered(done, width, steps=16):
    return shown(render(done, steps), width)


@pytest.fixture
def invoke():
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(with_flags(study))
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_prints_its_steps_and_that_all_agree(invoke, algorithm):
    done = invoke(SCENARIOS / "gqa.yaml", "--algorithm", algorithm, "--tile-kv", 32, "--head", 9)
    assert done.exit_code == 0, done.output
    assert "head 9 (K/V head 1, shared by 7 heads)" in done.output
    assert "All outputs and log-sum-exps agree to 1e-12" in done.output


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", ["gqa", "prefill", "sliding-window", "decode", "streamk-fractional"])
def test_nothing_is_cut_off_in_a_terminal_of_common_width(name, algorithm, width):
    lines = rendered(replace(studied(name), algorithm=algorithm), width).splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines if not line.startswith(("TMA", "products", "softmax")))
    assert len(lines) < 110


def test_the_schedule_numbers_the_tiles_in_the_order_of_the_algorithm():
    case = case_of("gqa")
    drawn = {
        name: rendered(study_case(case, name, StudyOptions(tile_q=4, tile_kv=64)), 80).splitlines()
        for name in ("fa1", "fa2")
    }
    rows = {
        name: [line.replace("↑", " ").split() for line in lines if line[:3] in ("0-3", "4-6")]
        for name, lines in drawn.items()
    }
    assert rows["fa1"] == [["0-3", "1", "3", "5", "7"], ["4-6", "2", "4", "6", "8"]]
    assert rows["fa2"] == [["0-3", "1", "2", "3", "4"], ["4-6", "5", "6", "7", "8"]]


def test_first_and_last_steps_are_listed_and_those_of_hidden_tiles_are_omitted():
    done = study_case(case_of("sliding-window"), "fa2", StudyOptions())
    text = rendered(done, 80)
    hidden = study_json(done)["summary"]["hidden"]
    assert text.count("╱") == hidden + 1  # and once in the legend
    assert hidden > 20
    assert "not listed" in text
    done = study_case(case_of("decode"), "split-kv", StudyOptions())
    lines = rendered(done, 80, steps=8).splitlines()
    firsts = [line.split()[0] for line in lines[lines.index("Steps") + 3 :] if line.strip()]
    listed = [word for word in firsts if word == "⋮" or word.isdigit()]
    number = len(done.result.trace)
    assert listed[:9] == ["1", "2", "3", "4", "5", "6", "⋮", str(number - 1), str(number)]


def test_json_has_every_step_and_every_count(invoke):
    done = invoke(SCENARIOS / "gqa.yaml", "--algorithm", "fa1", "--tile-q", 4, "--tile-kv", 64, "--backward", "--json")
    found = json.loads(done.stdout, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert found["sizes"] == {"N_q": 7, "N_kv": 256, "d_k": 64, "d_v": 64, "masked": True}
    assert [step["what"] for step in found["steps"]] == ["O, l, m = 0", *["tile"] * 8]
    assert found["steps"][1]["kv"] == [0, 64]
    assert set(found["algorithms"]) == set(ALGORITHMS)
    for one in found["algorithms"].values():
        assert one["equal"]
        assert sum(one["reads"].values()) == one["formula"]["total_reads"]
    assert set(found["backward"]["differences"]) == {"dQ", "dK", "dV"}


def test_numbers_that_are_not_finite_are_null_in_JSON():
    steps = study_json(study_case(case_of("sliding-window"), "fa2", StudyOptions()))["steps"]
    assert steps[0]["maximum"] is None
    assert steps[0]["total"] == 0.0
    assert not steps[0]["visible"]


@pytest.mark.parametrize("name", ["gqa", "alibi", "softcap", "sinks", "mla", "q8-cache", "unpadded-kv", "logits"])
def test_every_kind_of_scenario_equals_the_reference_of_compare(name):
    case = case_of(name)
    done = study_case(case, "fa2", StudyOptions(head=case.op.sizes.n_head - 1))
    raise_if_different(done)
    expected = reference_of(case.op, make_inputs(case))[0, :, case.op.sizes.n_head - 1]
    np.testing.assert_allclose(command.of_head(done.result, done.subject)[0], expected, rtol=0, atol=1e-12)


def test_all_invalid_options_are_reported_in_one_message():
    case = case_of("gqa")
    with pytest.raises(InputError, match=r"--head 14: gqa has heads 0 to 13\n--sequence 1: gqa has sequences 0 to 0"):
        study_case(case, "fa2", StudyOptions(head=14, sequence=1))
    long = Op.contiguous(replace(case.op.sizes, n_q=8192, n_kv=1048576), case.op.params, ("f16", "f16"))
    with pytest.raises(InputError, match="8192 x 1048576 scores are too many"):
        study_case(replace(case, op=long), "fa2", StudyOptions())


def test_a_difference_raises_ComparisonError():
    done = study_case(case_of("gqa"), "fa2", StudyOptions(backward=True))
    raise_if_different(done)
    off = replace(done.agreement["fa3"], out=1e-9)
    with pytest.raises(ComparisonError, match="fa3 differs"):
        raise_if_different(replace(done, agreement={**done.agreement, "fa3": off}))
    result = replace(done.results["fa1"], reads={"K": 1})
    with pytest.raises(ComparisonError, match="the reads and writes of fa1 differ from its formula"):
        raise_if_different(replace(done, results={**done.results, "fa1": result}))
    with pytest.raises(ComparisonError, match="gradients differ"):
        raise_if_different(replace(done, backward=replace(done.backward, differences={"dQ": 1e-9})))


def test_json_of_fa3_has_the_events_of_its_warpgroups(invoke):
    words = ("--algorithm", "fa3", "--tile-q", 4, "--stages", 1, "--json")
    found = json.loads(invoke(SCENARIOS / "gqa.yaml", *words).stdout)["schedule"]
    assert (found["plan"]["T_c"], found["plan"]["consumers"], found["plan"]["schedule"]) == (4, 2, "both")
    assert found["deadlock"] == {}
    assert found["broken"] == []
    assert {event["what"] for event in found["events"]} == {"Q", "K", "V", "S", "P", "PV"}
    assert found["slots"] == max(event["end"] for event in found["events"])
    stuck = json.loads(invoke(SCENARIOS / "gqa.yaml", *words, "--ring", "pairs").stdout)["schedule"]
    assert stuck["deadlock"]["WG1"] == ["K1 full"]
    taken = {(one["schedule"], one["ring"], one["producer"]): one["slots"] for one in stuck["table"]}
    assert taken["both", "pairs", True] is None
    assert taken["both", "apart", True] == found["slots"]
    assert study_json(studied("gqa"))["schedule"] is None


def test_the_errors_of_f16_and_fp8_are_shown_when_asked_for(invoke):
    done = invoke(SCENARIOS / "gqa.yaml", "--fp8", "--json")
    errors = {one["variant"]: one["rmse"] for one in json.loads(done.stdout)["precisions"]}
    assert set(errors) == set(VARIANTS)
    assert errors["f16-flash"] < errors["fp8-fa3"]
    assert "without incoherent processing" in invoke(SCENARIOS / "gqa.yaml", "--fp8").output
    assert study_json(studied("gqa"))["precisions"] == []


def test_the_arrays_of_a_case_are_float64():
    op = op_of_case(case_of("sinks"))
    assert {array.dtype for array in (op.Q, op.K, op.V, op.mask, op.sinks)} == {np.dtype(np.float64)}


def test_an_overflow_of_f16_is_null_in_JSON():
    op = op_of_case(case_of("gqa"))
    subject = replace(studied("gqa").subject, op=replace(op, V=op.V * 1e6))
    found = errors(subject.tensors, command.run("standard", subject).out, subject.tiling.B_r, subject.tiling.B_c)
    listed = study_json(replace(studied("gqa"), precisions=found))["precisions"]
    (standard,) = [one for one in listed if one["variant"] == "f16-standard"]
    assert standard["rmse"] is None


def test_study_needs_a_scenario_or_a_table(invoke):
    with pytest.raises(InputError, match="study needs a SCENARIO"):
        raise invoke().exception
    with pytest.raises(InputError, match="--table3 generates its own data"):
        raise invoke(SCENARIOS / "gqa.yaml", "--table3", 1).exception


@pytest.mark.slow
def test_table_3_is_measured_by_the_command(invoke):
    found = json.loads(invoke("--table3", 1, "--json").stdout)["table3"]
    assert (found["heads"], found["rows"], found["head_size"]) == (1, 8448, 128)
    assert [row["variant"] for row in found["table"]] == list(VARIANTS)


def test_a_schedule_that_breaks_a_rule_raises_ComparisonError():
    done = study_case(case_of("gqa"), "fa3", StudyOptions())
    raise_if_different(done)
    assert done.scheduled
    with pytest.raises(ComparisonError, match="breaks the rules of its ring"):
        raise_if_different(replace(done, scheduled=replace(done.scheduled, broken=("K1 overwrites K0",))))


def inspection(launch, case="gqa", **template):
    choice = Choice("mma_f16", "flash_attn_ext_f16", {"ncols1": 4, "ncols2": 8, **template}, {"nbatch_fa": 32})
    facts = facts_json(Facts({"case": case}, choice=choice, grid=launch.grid, blocks=launch.blocks))
    return {"inspections": [{"case": case, "facts": facts}, {"case": "lost", "facts": None}]}


def test_the_blocks_of_an_inspected_launch_are_used(invoke, tmp_path):
    launch = divide(op_of_case(case_of("gqa")).shape, 4, 32, 13)
    file = tmp_path / "gqa.json"
    file.write_text(json.dumps(inspection(launch), default=str))
    assert read_launch(file, "gqa", op_of_case(case_of("gqa")).shape) == launch
    done = invoke(SCENARIOS / "gqa.yaml", "--algorithm", "stream-k", "--inspected", file)
    assert done.exit_code == 0, done.output
    assert "13 blocks on 4 tiles of 8 KV steps" in done.output
    assert "ncols1 4 queries x ncols2 8 heads, nbatch_fa 32" in done.output


def test_files_that_hold_no_launch_of_the_case_are_refused(tmp_path):
    shape = op_of_case(case_of("gqa")).shape
    launch = divide(shape, 4, 32, 13)
    in_turn = replace(launch, blocks=blocks_in_turn((4, 1, 8), launch.grid))
    file = tmp_path / "facts.json"
    with pytest.raises(InputError, match="No such file"):
        read_launch(file, "gqa", shape)
    for text, message in (
        ("{", "is not the output of"),
        ("[]", "is not the output of"),
        (json.dumps(inspection(launch, "other"), default=str), "has no facts of case gqa; it has other"),
        (json.dumps(inspection(launch, use_sparse=True), default=str), "gathers its KV rows"),
        (json.dumps(inspection(divide(replace(shape, n_kv=64), 4, 32, 2)), default=str), "does not fit gqa"),
        (json.dumps(inspection(in_turn), default=str), "flash_attn_ext_f16 has no stream-K shares"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=message):
            read_launch(file, "gqa", shape)


def answered(*words):
    return json.loads(CliRunner().invoke(app, ["study", *words, "--json"], catch_exceptions=False).stdout)


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
        # CI follows warps of the other kinds to their output in inspect/test_trace_sim.py.
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
    found = answered(*case)["against"]
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
        answered(*words)
