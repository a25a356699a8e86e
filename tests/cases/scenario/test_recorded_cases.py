"""Cases whose inputs are in a file, and scenarios like recorded ops: op, mask and statistics are the same."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.op.case_file import read_case, write_case
from fattn_probe.cases.scenario.cases import cases_of, recorded_case, resolve
from fattn_probe.cases.scenario.command import to_yaml
from fattn_probe.cases.scenario.fit import data_of, far_share, outliers, size_of_outliers, spread, statistics_of
from fattn_probe.cases.scenario.from_capture import from_capture, of_file
from fattn_probe.cases.scenario.inputs import make_inputs, root_bytes
from fattn_probe.daily.regress.suite import Entry
from fattn_probe.daily.regress.suite import cases_of as cases_of_entry
from fattn_probe.machine.run.capture import make_case_file
from fattn_probe.verdict.judge.checks import Checks
from tests.as_user import fattn_probe
from tests.made import CAUSAL, case_of, shape, shipped

DRAWN = shape(64, 2, 2, 5, 96, CAUSAL, "layout: {K: {kind: view, permute: [0, 2, 1, 3], rows: 128}}")


@pytest.fixture
def drawn():
    return case_of(DRAWN)


@pytest.fixture
def file(drawn, tmp_path):
    write_case(drawn, make_inputs(drawn), tmp_path / "layer-03.gguf")
    return tmp_path / "layer-03.gguf"


def test_a_recorded_case_is_the_case_that_was_written_and_is_judged_whole(drawn, file):
    case = recorded_case(file)
    assert (case.name, case.scenario, case.digest, case.op) == ("layer-03", "layer-03", drawn.digest, drawn.op)
    assert case.recorded and case.mask_kind == "recorded" and case.seed == 0
    for name, memory in make_inputs(drawn).items():
        np.testing.assert_array_equal(make_inputs(case)[name], memory)
        np.testing.assert_array_equal(root_bytes(case, name), memory)
    with pytest.raises(InputError, match=r"layer-03\.gguf: a recorded case contains its inputs"):
        _ = case.recipe
    assert not Checks().samples(case) and not Checks(sample=3).may_take_part(case)


def test_its_case_file_has_the_same_bytes(file, tmp_path):
    made = make_case_file(recorded_case(file), tmp_path / "copy.gguf")
    for name, memory in make_inputs(recorded_case(file)).items():
        np.testing.assert_array_equal(made[name], memory)


def test_its_case_file_reads_the_recorded_one_once(file, tmp_path, monkeypatch):
    """All tensors are read at once, shared blocks too, which are not mapped but copied into memory."""
    read = []

    def counted(path):
        read.append(path)
        return read_case(path)

    case = recorded_case(file)
    monkeypatch.setattr("fattn_probe.cases.scenario.inputs.read_case", counted)
    make_case_file(case, tmp_path / "copy.gguf")
    assert read == [file]


def test_a_folder_and_a_suite_may_have_recorded_cases_and_equal_names_are_told_apart(file):
    (file.parent / "drawn.yaml").write_text(DRAWN)
    assert [case.name for case in cases_of([file.parent])] == ["drawn", "layer-03"]
    assert [case.name for case in cases_of_entry(Entry(scenarios=["*.gguf"]), file.parent)] == ["layer-03"]
    other = file.parent / "other" / file.name
    other.parent.mkdir()
    other.write_bytes(file.read_bytes())
    names = [case.name for case in cases_of([file.parent, other])]
    assert names == ["drawn", f"{file.parent.name}-layer-03", "other-layer-03"]
    assert [case.name for case in cases_of([file, file])] == ["layer-03", "layer-03"]
    of_suite = cases_of_entry(Entry(scenarios=["*.gguf", "other/*.gguf", "*.gguf"]), file.parent)
    assert [case.name for case in of_suite] == [f"{file.parent.name}-layer-03", "other-layer-03"]


def test_all_mistakes_of_a_folder_are_said(file):
    file.write_bytes(file.read_bytes()[:-100])
    (file.parent / "bad.yaml").write_text("version: 1\n")
    with pytest.raises(InputError, match=r"(?s)bad\.yaml.*layer-03\.gguf"):
        cases_of([file.parent])


def cli(*words):
    return fattn_probe(*words).stdout


@pytest.mark.build
def test_a_capture_is_replayed_with_the_same_bits_and_other_commands_take_it_too(tmp_path):
    cli("run", "gqa", "--on", "sim:h200", "--captures", tmp_path)
    (file,) = tmp_path.iterdir()
    (again,) = json.loads(cli("compare", file, "--on", "sim:h200", "--json"))["rows"]
    (first,) = json.loads(cli("compare", "gqa", "--on", "sim:h200", "--json"))["rows"]
    assert again["status"] == "pass" and again["case"] == "gqa@sim-h200"
    assert (again["output"], again["digest"]) == (first["output"], first["digest"])
    assert again["design"]["equal_bits"] == 1.0
    assert "flash_attn_ext_f16<64,64,8,8" in cli("plan", file, "--on", "sim:h200")
    assert "All outputs and log-sum-exps agree" in cli("study", file)
    assert "recorded" in cli("scenario", "show", file)
    assert "tiled" in cli("compare", file, "--kernel", "llama,tiled", "--on", "sim:h200")


START = "version: 1\nabout: x\nhsk: 64\nn_head: 8\nn_head_kv: 2\nn_kv: 256\n"


def like(text):
    case = case_of(START + text)
    return case, from_capture(case.op, make_inputs(case), "like")


def places(op):
    return {
        name: (view.type, view.ne, view.offset, [nb for nb, n in zip(view.nb, view.ne, strict=True) if n > 1])
        for name, view in op.tensors.items()
    }


CACHE = "{kind: view, permute: [0, 2, 1, 3], rows: 512}"
OPS = [
    "n_q: 7",
    "n_q: 1\nmask: {kind: causal, past: 200}",
    "n_q: 40\nmask: {kind: causal, past: 150}\nsinks: true\nlogit_softcap: 30",
    "n_q: 16\nmask: {kind: sliding_window, window: 50}\nscale: 0.5",
    "n_q: 16\nmask: {kind: alibi}\nmax_bias: 8",
    "n_q: 16\nmask: {kind: sequences, count: 4, interleaved: true}",
    "n_q: 8\nn_seq: 3\nmask: {kind: causal}",
    "n_q: 4\nmask: {kind: masked_tiles, leading: 64, trailing: 32}",
    "n_q: 4\ntype_K: q8_0\ntype_V: q4_0\nprec: default",
    f"n_q: 7\nn_seq: 2\nmask: {{kind: causal}}\nlayout: {{K: {CACHE}, V: {CACHE}, mask: {{pad: 64, columns: 300}}}}",
    "n_q: 7\nhsv: 32\nlayout: {K: {kind: view, heads: 5, offset: 3, pad: 8}, V: {kind: view_of_K, offset: 9}}",
]


@pytest.mark.parametrize("text", OPS)
def test_the_op_and_the_mask_are_those_of_the_recording(text):
    case, found = like(text)
    made = resolve(found.scenario, "like", "like")
    assert made.op.params.stored == case.op.params.stored
    assert places(made.op) == places(case.op)
    if case.op.has_mask:
        assert np.array_equal(make_inputs(made)["mask"], make_inputs(case)["mask"])
    assert not [said for said in found.missing if "mask" in said or "layout" in said]
    assert case_of(to_yaml(found.scenario)).digest == made.digest


DATA = [
    ("{kind: uniform, scale: 2}", "uniform"),
    ("{kind: normal, scale: 0.3, mean: 0.1}", "normal"),
    ("{kind: constant, value: 0.25}", "constant"),
    ("{kind: fa3_outliers, scale: 0.5, outlier: 12, probability: 0.003}", "fa3_outliers"),
    ("{kind: extreme, magnitude: 30000}", "extreme"),
]


@pytest.mark.parametrize(("data", "kind"), DATA)
def test_the_statistics_of_V(data, kind):
    _, found = like(f"n_q: 16\ndata: {{V: {data}}}")
    recorded, made = found.recorded.tensors["V"], found.made.tensors["V"]
    assert found.scenario.data.V.kind == kind
    assert made.std == pytest.approx(recorded.std, rel=0.05)
    assert made.mean == pytest.approx(recorded.mean, abs=0.05 * (recorded.std or 1))
    if kind != "extreme":
        assert made.kurtosis == pytest.approx(recorded.kurtosis, rel=0.3)


@pytest.mark.parametrize("logit", [0.1, 5.0, 80.0])
def test_the_logits_are_as_wide_as_the_recorded_ones(logit):
    _, found = like(f"n_q: 16\ndata: {{Q: {{kind: large_logits, logit: {logit}}}, K: {{kind: normal}}}}")
    assert found.made.logit_std == pytest.approx(found.recorded.logit_std, rel=0.03)
    assert found.made.largest_weight == pytest.approx(found.recorded.largest_weight, rel=0.2)


def test_logits_of_related_operands_change_Q_and_say_so():
    """K has Q's direction, which independent data lack: their logits are narrower, so that Q is made wider."""
    case = case_of(START + "n_q: 16\ndata: {Q: {kind: normal}, K: {kind: normal}}")
    inputs = dict(make_inputs(case))
    Q = inputs["Q"].view(np.float32).reshape(8, 16, 64)
    inputs["K"].view(np.float16).reshape(2, 256, 64)[:] = np.tile(Q[[0, 4]], (1, 16, 1)).astype(np.float16)
    found = from_capture(case.op, inputs, "like")
    assert found.made.logit_std == pytest.approx(found.recorded.logit_std, rel=0.03)
    assert any(said.startswith("Q's width, set to match the logits") for said in found.missing)


def test_what_no_distribution_can_say_is_said():
    case = case_of(START + "n_q: 16\nmask: {kind: causal, past: 100}")
    inputs = dict(make_inputs(case))
    K = inputs["K"].view(np.float16).reshape(2, 256, 64)
    K[1] *= np.float16(4)
    K += np.linspace(-1, 1, 64).astype(np.float16)
    inputs["mask"].view(np.float16).reshape(16, 256)[3, 50] = -np.inf
    said = "; ".join(from_capture(case.op, inputs, "like").missing)
    assert "K's heads: the widest is" in said
    assert "the means of K's channels" in said
    assert "the mask: 99.98 % of the entries of `causal` match the recorded ones" in said


def test_outliers_have_the_kurtosis_and_the_tails_and_few_elements_make_none():
    share, size = 0.002, 9.0
    t = share * size**2
    kurtosis = 3 * (1 + 2 * t + share * size**4) / (1 + t) ** 2
    assert size_of_outliers(kurtosis, share) == pytest.approx(size)
    assert list(outliers(kurtosis, far_share(share, size))) == pytest.approx([share, size], rel=0.2)
    few = spread(np.random.default_rng(3).standard_normal((1, 2, 64)))
    assert data_of(replace(few, kurtosis=3.6))["kind"] == "normal"
    assert data_of(replace(few, kurtosis=3.6, count=10**6))["kind"] == "fa3_outliers"


def test_rows_that_no_query_sees_do_not_count():
    case = case_of(START + "n_q: 4\nmask: {kind: masked_tiles, trailing: 200}")
    inputs = dict(make_inputs(case))
    before = statistics_of(case.op, inputs)
    inputs["K"] = inputs["K"].copy()
    inputs["K"].view(np.float16).reshape(2, 256, 64)[:, 56:] = 1000
    assert statistics_of(case.op, inputs) == before
    assert before.unseen == pytest.approx(200 / 256)


def by_head(case, planes):
    """The op and the inputs of a case with a mask (planes, n_q, n_kv): head h reads plane h % planes."""
    view = case.op.tensors["mask"]
    ne = (*view.ne[:2], len(planes), 1)
    nb = (*view.nb[:2], view.nb[1] * view.ne[1], view.nb[1] * view.ne[1] * len(planes))
    op = replace(
        case.op,
        tensors={**case.op.tensors, "mask": replace(view, ne=ne, nb=nb)},
        roots={**case.op.roots, "mask": replace(case.op.roots["mask"], ne=ne)},
    )
    return op, {**make_inputs(case), "mask": np.ascontiguousarray(planes, np.float16).view(np.uint8).reshape(-1)}


def test_every_plane_of_a_mask_by_head_counts_and_one_that_differs_is_not_copied():
    case = case_of(START + "n_q: 4\nmask: {kind: masked_tiles}\ndata: {Q: {kind: constant, value: 0}}")
    planes = np.zeros((2, 4, 256))
    planes[0, :, 1:] = -np.inf
    found = statistics_of(*by_head(case, planes))
    assert found.unseen == 0.0
    assert found.largest_weight == pytest.approx((1 + 1 / 256) / 2)
    swapped = statistics_of(*by_head(case, planes[::-1]))
    assert swapped.unseen == 0.0
    assert swapped.largest_weight == pytest.approx(found.largest_weight)
    case = case_of(START + "n_q: 4\nmask: {kind: masked_tiles}")
    planes = np.zeros((2, 4, 256))
    planes[1, :, 128:] = -np.inf
    op, inputs = by_head(case, planes)
    missing = from_capture(op, inputs, "like").missing
    assert "the mask: it differs between heads, and a scenario's mask is the same for all heads" in missing
    assert "the mask: 75 % of the entries of `masked_tiles` match the recorded ones" in missing
    op, inputs = by_head(case, np.zeros((2, 4, 256)))
    alike = [said for said in from_capture(op, inputs, "like").missing if "mask" in said]
    assert alike == ["the layout of the mask: its shape, its strides or its offset"]


def test_a_file_with_NaN_is_refused(tmp_path):
    case = case_of(START + "n_q: 4")
    inputs = dict(make_inputs(case))
    inputs["V"].view(np.float16)[5] = np.nan
    write_case(case, inputs, tmp_path / "nan.gguf")
    with pytest.raises(InputError, match="V holds NaN"):
        of_file(tmp_path / "nan.gguf")


def test_shipped_scenarios(tmp_path):
    """A recording of a shipped case gives the case again."""
    case = shipped("gqa")
    write_case(case, make_inputs(case), tmp_path / "gqa.gguf")
    found = of_file(tmp_path / "gqa.gguf")
    assert found.scenario.name == "gqa"
    assert found.missing == ()
    assert places(resolve(found.scenario, "gqa", "gqa").op) == places(case.op)
