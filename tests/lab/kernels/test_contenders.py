"""Kernels other than llama.cpp's: right for every shape, judged alike, refused with a reason; their table and times."""

import dataclasses
import json
import random
import re
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from fattn_probe.base.errors import BuildError, InputError
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import expand
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.cases.scenario.schema import Scenario
from fattn_probe.lab.kernels.compiled import CUDA, beginning, own, shipped
from fattn_probe.lab.kernels.contender import How, Output, Question
from fattn_probe.lab.kernels.extras import Attended
from fattn_probe.lab.kernels.names import Package, contender_of, contenders_of
from fattn_probe.lab.kernels.show import Contest, document, interval, render
from fattn_probe.lab.profile.roofline import Point, Roof
from fattn_probe.machine.run.outcome import Unsupported
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.measure.verdict import Status
from tests.as_user import fattn_probe
from tests.made import at_night, shown, target

MASKS = ({"kind": "none"}, {"kind": "causal"}, {"kind": "random"})
EARLY = Path(__file__).with_name("early.cu")


def case_of(**fields):
    entry = {"version": 1, "about": "test", "hsk": 64, "n_head": 2, "n_q": 5, "n_kv": 70, **fields}
    (case,) = expand(Scenario.model_validate(entry))
    return case


def rows(contenders, case, on="sim:h200", how=None):
    return list(Contest(Session(RunOptions(None)), contenders, how or How(), Checks()).rows([(case, [target(on)])]))


def test_names_are_known_or_files(tmp_path):
    llama, naive = contenders_of(["llama", "naive"])
    assert llama is None and naive == shipped("naive")
    with pytest.raises(InputError, match=r"no such kernel; nearest: naive; kernels: llama, naive, .*, torch, or FILE"):
        contenders_of(["naiv"])
    with pytest.raises(InputError, match=r"there is no file missing\.cu"):
        contender_of("missing.cu:f", print)
    (tmp_path / "k.cu").write_text("void f(int) {}")
    with pytest.raises(InputError, match="has no function g"):
        own(f"{tmp_path}/k.cu:g")
    with pytest.raises(InputError, match="is not the name of a function"):
        own(f"{tmp_path}/k.cu:f(); --")
    with pytest.raises(InputError, match=r"name a function of .*k\.cu after the colon, the one that launches"):
        own(f"{tmp_path}/k.cu:")
    (tmp_path / "k.cu").write_text("template <int N> __global__ void __launch_bounds__(N) k(int) {}\nint f(int);")
    with pytest.raises(InputError, match="k is a __global__ function; name the one that launches the kernel: it takes"):
        own(f"{tmp_path}/k.cu:k")
    assert own(f"{tmp_path}/k.cu:f").function == "f"
    with pytest.raises(InputError, match="--kernel torch:foo: no such kernel; torch has torch:math, torch:flash"):
        contender_of("torch:foo", print)
    with pytest.raises(InputError, match="--kernel naive:foo: no such kernel; naive has no variants"):
        contender_of("naive:foo", print)


def test_of_many_printed_lines_some_are_shown():
    assert beginning("a\nb\n") == "a\nb"
    assert beginning("a\n" * 70).splitlines() == ["a"] * 50 + ["... (70 lines)"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"logit_softcap": 10.0}, "the contract for kernels has no softcap"),
        ({"sinks": True, "max_bias": 8.0, "mask": {"kind": "causal"}}, "has no ALiBi slopes and no sinks"),
        ({"type_K": "q8_0", "type_V": "q8_0"}, "K is q8_0 and V q8_0: both must be f16, or both bf16"),
        ({"type_K": "f16", "type_V": "bf16"}, "K is f16 and V bf16"),
    ],
)
def test_an_op_that_a_kernel_is_not_given_is_unsupported(fields, reason):
    (row,) = rows([shipped("naive")], case_of(**fields))
    assert row.judgement.status is Status.UNSUPPORTED and reason in row.judgement.reason


def test_a_cpu_is_no_gpu():
    (row,) = rows([shipped("tiled")], case_of(), on="cpu")
    assert row.judgement.status is Status.UNSUPPORTED and "it needs a GPU" in row.judgement.reason


def test_causal_is_what_the_mask_says():
    def causal(**fields):
        case = case_of(**fields)
        return Question(case, make_inputs(case)).causal

    assert causal(mask={"kind": "causal"})
    assert causal(mask={"kind": "causal"}, n_kv=5)
    assert not causal()
    assert not causal(mask={"kind": "random"})
    assert not causal(mask={"kind": "causal"}, max_bias=8.0)


SIZES = st.fixed_dictionaries(
    {
        "hsk": st.integers(1, 32).map(lambda n: 8 * n),
        "n_head": st.sampled_from((1, 2, 4, 6)),
        "n_head_kv": st.sampled_from((1, 2)),
        "n_q": st.integers(1, 40),
        "n_kv": st.integers(40, 150),
        "mask": st.sampled_from(MASKS),
        "type_K": st.sampled_from(("f16", "bf16")),
    }
)


@pytest.mark.build
@pytest.mark.parametrize("kernel", ["tiled", *at_night("naive")])
@pytest.mark.parametrize("on", ["sim:h200", "sim:mi300x"])
@settings(max_examples=8, derandomize=True)
@given(fields=SIZES)
def test_ours_are_right_for_every_shape(kernel, on, fields):
    if fields["n_head"] % fields["n_head_kv"]:
        fields = {**fields, "n_head_kv": 1}
    (row,) = rows([shipped(kernel)], case_of(**fields, type_V=fields["type_K"]), on)
    judged = row.judgement
    assert judged.status is Status.PASS, judged.reason
    design = judged.verdict.design
    assert design is not None and design.by == "prediction" and design.error_by_bound < 1


@pytest.mark.build
def test_views_and_queries_that_see_nothing(tmp_path):
    layout = {"kind": "view", "permute": [0, 2, 1, 3], "rows": 300}
    case = case_of(
        n_q=9,
        n_kv=70,
        mask={"kind": "masked_rows", "every": 3},
        layout={"Q": {**layout, "rows": 9}, "K": layout, "V": layout},
    )
    for row in rows([shipped("naive"), shipped("tiled")], case):
        assert row.judgement.status is Status.PASS, row.judgement.reason
        assert not np.any(row.judgement.dst[:, ::3])  # the queries that see no KV row


@pytest.mark.build
def test_the_starter_runs_beside_llama_cpp_and_a_wrong_one_fails_with_the_cause(tmp_path):
    fattn_probe("kernel", "new", "my.cu", cwd=tmp_path)
    assert "already exists" in fattn_probe("kernel", "new", "my.cu", cwd=tmp_path, code=2).stderr
    kernels = "llama,my.cu:my_attention"
    done = fattn_probe("compare", "gqa", "--kernel", kernels, "--on", "sim:h200", "--json", cwd=tmp_path)
    llama, mine = json.loads(done.stdout)["rows"]
    assert (llama["contender"], mine["contender"]) == ("llama", "my.cu:my_attention")
    assert llama["status"] == mine["status"] == "pass" and mine["metrics"]["nmse"] < 1e-12
    assert mine["launches"][0]["kernel"] == "my_kernel" and mine["seconds"] == []
    assert llama["design"]["equal_bits"] == 1.0
    text = (tmp_path / "my.cu").read_text()
    (tmp_path / "my.cu").write_text(text.replace("j < op.visible(i) &&", "j < op.visible(i) - 1 &&"))
    done = fattn_probe("compare", "gqa", "--kernel", "my.cu:my_attention", "--on", "sim:h200", cwd=tmp_path, code=5)
    assert "the last visible KV row is left out" in done.stdout
    assert "gqa with my.cu:my_attention on sim:h200: NMSE" in " ".join(done.stdout.split())
    assert "comparisons failed: gqa with my.cu:my_attention on sim:h200\n" in done.stderr


@pytest.mark.build
@pytest.mark.slow
def test_the_checker_finds_an_early_return_before_a_barrier():
    (row,) = rows([own(f"{EARLY}:early")], case_of(n_kv=96), how=How(check=True))
    found = row.judgement.finding
    assert row.judgement.status is Status.FAIL and found.kind == "uninitialized-shared"
    assert (Path(found.file).name, found.line, found.block, found.thread) == ("early.cu", 13, (1, 0, 0), (0, 0, 0))


@pytest.mark.build
def test_a_kernel_says_what_it_cannot_do():
    (row,) = rows([own(f"{EARLY}:early")], case_of(hsk=128))
    assert row.judgement.verdict.reason == "head sizes other than 64"
    (row,) = rows([own(f"{EARLY}:halves")], case_of(type_K="bf16", type_V="bf16"))
    assert row.judgement.verdict.reason == "it takes another type of K and V"


@pytest.mark.build
@pytest.mark.night
@pytest.mark.parametrize(("file", "on"), [("naive_and_tiled.cu", "sim:h200"), ("naive_and_tiled.hip", "sim:mi300x")])
def test_naive_and_tiled_are_a_program_too(file, on):
    words = ("bf16", "causal", "100", "40", "65", "256")
    said = fattn_probe("program", CUDA / file, "--on", on, "--", *words).stdout
    assert "N    d     naive     tiled  speedup max_abs_err" in said
    errors = re.findall(r"^ +(?:100   40|65  256) .*x +(\S+)$", said, re.MULTILINE)
    assert len(errors) == 2 and all(0 < float(error) < 1e-5 for error in errors)


HEAD = '#include <cstdlib>\n#include "attention.h"\nconst char * f(const attention<__half> & op)'


@pytest.mark.build
def test_what_does_not_compile_or_ends_is_said(tmp_path):
    (tmp_path / "k.cu").write_text(f"{HEAD} {{ abort(); }}\nint main() {{ return 0; }}\n")
    (row,) = rows([own(f"{tmp_path}/k.cu:f")], case_of())
    assert row.judgement.status is Status.LOST and "killed by SIGABRT" in row.judgement.reason
    (tmp_path / "k.cu").write_text(f"{HEAD} {{ return op.missing; }}\n")
    with pytest.raises(BuildError, match=r"k\.cu:3"):
        rows([own(f"{tmp_path}/k.cu:f")], case_of())


@pytest.mark.build
def test_a_refused_launch_is_the_kernels_fault_and_a_time_out_is_not(capfd):
    path = Path(__file__).with_name("own_faults.cu")
    contender = own(f"{path}:faulty")
    (row,) = rows([contender], case_of(n_q=6))
    assert row.judgement.status is Status.FAIL
    assert "launch-refused: a block of 2048 threads, where the GPU allows 1024" in row.judgement.verdict.reason
    found = row.judgement.finding
    assert (found.kernel, found.line) == ("spin", 10) and "drive" not in "".join(found.frames)
    (row,) = rows([contender], case_of(n_q=5), how=How(timeout=2))
    assert row.judgement.status is Status.LOST
    assert "own_faults.cu timed out after 2 s; its last launch was number 1, spin" in row.judgement.reason
    (row,) = rows([contender], case_of(n_q=1))
    assert row.judgement.status is Status.FAIL
    assert "own_faults.cu:faulty on sim:h200 prints:\nthread 0\n" in capfd.readouterr().err
    with pytest.raises(BuildError, match=r"must take a `const attention<KV> &` and return a `const char \*`"):
        rows([own(f"{path}:other")], case_of())


@dataclasses.dataclass(frozen=True)
class Unwilling:
    """A contender that computes nothing."""

    name: str = "unwilling"
    algorithm: str = ""

    def arithmetic(self, op):
        return None

    def run(self, question, target, how):
        return Unsupported("no")


@dataclasses.dataclass(frozen=True)
class Exact(Unwilling):
    """A contender without an error model: float64, and one wrong row of every sixteen."""

    name: str = "exact"
    off: float = 0.0

    def run(self, question, target, how):
        from fattn_probe.verdict.truth.reference.adapter import reference_of

        dst = reference_of(question.op, question.inputs).astype(np.float32)
        dst[:, ::16] *= 1 + self.off
        return Output(dst, (), (1e-3, 2e-3, 3e-3))


def test_a_kernel_without_an_error_model_is_judged_by_the_scenario_s_tolerance():
    good, bad, none = rows([Exact(), Exact(off=0.1), Unwilling()], case_of())
    assert [row.judgement.status for row in (good, bad, none)] == [Status.PASS, Status.FAIL, Status.UNSUPPORTED]
    assert "no error model for this kernel" in good.judgement.missing
    assert good.judgement.output != bad.judgement.output
    assert bad.judgement.diagnosis is not None
    assert good.seconds == ()  # a simulated GPU has no times


def timed(name="exact", seconds=(1e-3, 2e-3, 3e-3)):
    (row,) = rows([Exact(name=name)], case_of())
    judgement = dataclasses.replace(row.judgement, on="gpu", seconds=seconds)
    return dataclasses.replace(row, target=Target("cuda", None, 0), judgement=judgement)  # sim:h200's figures stay


def drawn(found, width=120):
    return shown(render(found, [shipped("naive")], maps=False), width=width)


def test_times_of_a_gpu_are_shown_with_their_interval_and_without_times_no_column():
    said = drawn([timed("one"), timed("two", (4e-3,))])
    assert "2000 µs" in said and "1000 to 3000" in said and "4000 µs" in said
    assert "TFLOP/s" in said and "algorithm of naive: fattn-probe study scenario --algorithm fa2" in said
    assert re.search(r"\d %", said) and "tensor cores and memory" in said
    assert said.count("scenario  ") == 1  # the case stands once above its kernels
    assert "TFLOP/s" not in drawn(rows([Exact()], case_of()))


@pytest.mark.parametrize(("target", "said"), [(Target("cuda", None, 0), False), (Target("cpu"), True)])
def test_where_a_package_ran_is_said_unless_it_was_the_gpu(target, said):
    package = Package("exact", lambda *_, **__: Attended(np.zeros(1)), "on this computer's CPU")
    row = dataclasses.replace(timed(), target=target)
    assert ("exact: on this computer's CPU" in shown(render([row], [package], maps=False))) == said


def test_the_share_of_the_roofline():
    roof = Roof(flops=1e12, bandwidth=1e9)
    assert Point("", 10**9, 10**9, 2.0).share(roof) == pytest.approx(0.5)  # 1 flop a byte: 1e9 a second at most
    assert Point("", 10**12, 1, 2.0).share(roof) == pytest.approx(0.5)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_nothing_is_cut(width):
    said = drawn([timed("kernel.cu:my_attention")], width)
    assert "kernel.cu:my_attention" in said and "pass" in said
    assert all(len(line) <= width for line in said.splitlines())


def test_the_document_has_each_kernel_s_times_and_the_interval_holds_the_median():
    (row,) = document([timed()])["rows"]
    assert row["contender"] == "exact" and row["seconds"] == [1e-3, 2e-3, 3e-3]
    assert row["launches"] == [] and row["status"] == "pass"
    assert row["flop"] == 2 * 2 * 5 * 70 * 128
    assert row["bytes"] == 4 * 2 * 5 * 64 + 2 * 2 * 2 * 70 * 64 + 4 * 2 * 5 * 64
    draw = random.Random(1)
    held = 0
    for _ in range(2000):
        low, high = interval([draw.random() for _ in range(20)])
        held += low <= 0.5 <= high
    assert 0.94 <= held / 2000 <= 0.99
    assert interval((3.0, 1.0)) == (1.0, 3.0)
