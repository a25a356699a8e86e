"""The native runner on ggml's CPU backend, of the oldest and the newest era."""

from dataclasses import replace

import numpy as np
import pytest

from fattn_probe.cases.op import Params, Root, TensorView
from fattn_probe.cases.op.case_file import write_case
from fattn_probe.llama import source
from fattn_probe.llama.build import CPU_RUNNER, BuildRequest, ensure
from fattn_probe.llama.launch.selection import Selection
from fattn_probe.machine.run.capture import Part, write_part
from fattn_probe.machine.run.outcome import Failed, Lost, Ran, Unsupported
from fattn_probe.machine.run.runner import Command, RunFiles, RunnerEndedError
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.verdict.truth.reference.attention import attention
from tests.machine.run import toy
from tests.made import H200

pytestmark = [pytest.mark.build, pytest.mark.network]
CPU = ("--backend", "CPU")
ERA_A = "pypi:xllamacpp==0.2.8"
NO_N_KV_MAX = Unsupported("this ggml has no ggml_flash_attn_ext_set_n_kv_max")
SOURCES = [  # ggml's CPU backend is compiled for each
    pytest.param(ERA_A, id="era-a", marks=pytest.mark.night),
    pytest.param(source.DEFAULT_SOURCE, id="default", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=SOURCES)
def runner(request):
    return ensure(BuildRequest(source.resolve(request.param)), programs=(CPU_RUNNER,)).program(CPU_RUNNER)


@pytest.fixture
def go(runner, tmp_path):
    """Write a toy case and run it."""

    def go(gqa, *args, **params):
        write_case(gqa.record(**params), gqa.inputs, tmp_path / "case.gguf")
        return Command(runner, [*CPU, *args], timeout=60).run(RunFiles(tmp_path / "case.gguf", tmp_path / "out.gguf"))

    return go


def nmse(gqa, outcome, **params):
    assert isinstance(outcome, Ran), outcome
    Q, K, V, mask = (gqa.values(name) for name in ("Q", "K", "V", "mask"))
    sinks = gqa.values("sinks").ravel() if "sinks" in gqa.tensors else None
    exact = attention(Q, K, V, mask, params=Params(**({"scale": toy.D**-0.5} | params)), sinks=sinks)
    return float(((outcome.result.dst - exact) ** 2).sum() / (exact**2).sum())


def test_the_runner_computes_attention(go):
    gqa = toy.gqa(np.random.default_rng(1), n_seq=2)
    outcome = go(gqa, "--repeat", "3", "--warmup", "2", "--threads", "2")
    assert nmse(gqa, outcome) < 1e-4
    assert (outcome.result.backend, outcome.result.dst.shape) == ("CPU", (2, toy.N_Q, toy.HEADS, toy.D))
    assert (outcome.result.clock, len(outcome.result.seconds)) == ("wall", 3)
    assert outcome.launches == ()


def test_a_batch_gives_what_each_case_alone_gives(go, runner, tmp_path):
    small, two = (toy.gqa(np.random.default_rng(1), n_seq=n_seq) for n_seq in (1, 2))
    alone = [go(gqa).result.dst.copy() for gqa in (small, two, small)]
    with Command(runner, CPU, timeout=60).started() as batch:
        for number, (gqa, dst) in enumerate(zip((small, two, small), alone, strict=True)):
            write_case(gqa.record(), gqa.inputs, tmp_path / "case.gguf")
            outcome = batch.run(RunFiles(tmp_path / "case.gguf", tmp_path / f"{number}.gguf"))
            assert isinstance(outcome, Ran), outcome
            assert np.array_equal(outcome.result.dst.view(np.uint32), dst.view(np.uint32))


def test_a_case_that_fails_ends_a_batch(runner, tmp_path):
    with Command(runner, CPU, timeout=60).started() as batch:
        with pytest.raises(RunnerEndedError):
            batch.run(RunFiles(tmp_path / "no-such-case.gguf", tmp_path / "out.gguf"))
        assert "no-such-case.gguf" in batch.said
        assert batch.running.process.wait(10) == 1


def test_parameters_and_sinks_reach_the_op(go):
    gqa = toy.gqa(np.random.default_rng(1))
    gqa.tensor("sinks", "f32", np.linspace(-1, 3, toy.HEADS, dtype=np.float32))
    params = {"scale": 0.3, "max_bias": 8.0, "logit_softcap": 2.0}
    outcome = go(gqa, **params)
    assert nmse(gqa, outcome, **params) < 1e-4
    assert nmse(gqa, outcome) > 1e-3


def test_views_with_strides_and_offsets(go):
    plain = toy.gqa(np.random.default_rng(1))
    gqa = toy.gqa(np.random.default_rng(1))
    cache = np.full((1, toy.N_KV + 8, toy.KV_HEADS, toy.D), np.nan, np.float16)
    cache[:, 8:] = plain.values("K").transpose(0, 2, 1, 3)
    gqa.root("K_cache", "f16", cache)
    nb = gqa.roots["K_cache"].nb
    gqa.tensors["K"] = TensorView("K", "f16", "K_cache", gqa.roots["K"].ne, (nb[0], nb[2], nb[1], nb[3]), 8 * nb[2])
    del gqa.roots["K"]
    assert nmse(plain, go(gqa)) < 1e-4


def test_memory_that_repeats_is_filled_with_its_first_bytes(go):
    gqa = toy.gqa(np.random.default_rng(1), n_seq=2)
    K = gqa.roots["K"]
    gqa.inputs["K"] = np.resize(gqa.inputs["K"][:12288], K.nbytes)
    written = go(gqa).result.dst.copy()
    gqa.roots["K"] = replace(K, period=12288)
    np.testing.assert_array_equal(go(gqa).result.dst.view(np.uint32), written.view(np.uint32))


def test_chosen_rows_are_read_and_no_others(runner, tmp_path):
    gqa = toy.gqa(np.random.default_rng(1), n_seq=2)
    case, files = gqa.record(), [tmp_path / name for name in ("case.gguf", "out.gguf", "part.gguf")]
    write_case(case, gqa.inputs, files[0])
    rows = np.array([(0, 0, 1), (0, 0, 2), (1, 6, 3)])
    write_part(Part(Selection((), np.array([0]), np.array([0]), 0), rows), case.op.sizes, files[2])
    whole = Command(runner, CPU).run(RunFiles(files[0], tmp_path / "whole.gguf"))
    part = Command(runner, CPU).run(RunFiles(*files))
    assert isinstance(whole, Ran)
    assert isinstance(part, Ran)
    chosen = np.zeros(part.result.dst.shape[:3], bool)
    chosen[tuple(rows.T)] = True
    np.testing.assert_array_equal(part.result.dst[chosen].view(np.uint32), whole.result.dst[chosen].view(np.uint32))
    assert not part.result.dst[~chosen].any()


def test_V_as_a_view_of_K_and_support_only_computes_nothing(go):
    gqa = toy.gqa(np.random.default_rng(1))
    plain = toy.gqa(np.random.default_rng(1))
    K = gqa.roots["K"]
    gqa.tensors["V"] = TensorView("V", "f16", "K", (32, *K.ne[1:]), K.nb, 0)
    del gqa.roots["V"]
    plain.tensor("V", "f16", plain.values("K")[..., :32])
    assert nmse(plain, go(gqa)) < 1e-4
    outcome = go(toy.gqa(np.random.default_rng(1)), "--support-only")
    assert isinstance(outcome, Ran)
    assert outcome.result.dst is None


def test_a_setter_that_the_source_lacks_is_unsupported(go, request):
    outcome = go(toy.gqa(np.random.default_rng(1)), n_kv_max=toy.N_KV)
    if "era-a" in request.node.callspec.id:
        assert outcome == NO_N_KV_MAX
    else:
        assert isinstance(outcome, Ran)


@pytest.mark.slow
def test_the_oldest_release_lacks_a_setter_on_a_simulated_gpu_too(tmp_path):
    session = Session(RunOptions(source.resolve(ERA_A)))
    gqa = toy.gqa(np.random.default_rng(1))
    write_case(gqa.record(n_kv_max=toy.N_KV), gqa.inputs, tmp_path / "case.gguf")
    runner, env = session.build_for(H200).runner, session.env(H200)
    words = ("--backend", H200.backend, "--support-only")
    outcome = Command(runner, words, env, 60).run(RunFiles(tmp_path / "case.gguf", tmp_path / "out.gguf"))
    assert outcome == NO_N_KV_MAX


def test_ggml_s_assertion_is_a_failure_and_a_view_past_its_root_is_refused_before(go):
    gqa = toy.gqa(np.random.default_rng(1))
    gqa.tensor("K", "f16", np.zeros((2, toy.KV_HEADS, toy.N_KV, toy.D), np.float16))
    outcome = go(gqa)
    assert isinstance(outcome, Failed)
    assert "GGML_ASSERT(ggml_can_mul_mat(k, q)) failed" in outcome.message
    gqa = toy.gqa(np.random.default_rng(1))
    K = gqa.roots["K"]
    gqa.tensors["K"] = TensorView("K", "f16", "K", K.ne, K.nb, 16)
    outcome = go(gqa)
    assert isinstance(outcome, Lost)
    assert f"K: the view ends at byte {K.nbytes + 16} of K, which has {K.nbytes} bytes" in outcome.message


def test_a_backend_that_is_not_here_and_a_case_file_cut_off_are_refused(go, runner, tmp_path):
    go(toy.gqa(np.random.default_rng(1)))
    outcome = Command(runner, ["--backend", "CUDA7"]).run(RunFiles(tmp_path / "case.gguf", tmp_path / "out.gguf"))
    assert isinstance(outcome, Lost)
    assert "there is no backend 'CUDA7' here; there is: CPU" in outcome.message
    go(toy.gqa(np.random.default_rng(1)))
    data = (tmp_path / "case.gguf").read_bytes()
    (tmp_path / "case.gguf").write_bytes(data[: len(data) // 2])
    outcome = Command(runner, CPU).run(RunFiles(tmp_path / "case.gguf", tmp_path / "out.gguf"))
    assert isinstance(outcome, Lost)
    assert "not a readable GGUF file" in outcome.message


def q8_0(values):
    """ggml's q8_0 of an array: the bytes, and the values that they stand for."""
    blocks = values.astype(np.float32).reshape(-1, 32)
    d = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float16)
    quants = np.round(blocks / d).clip(-127, 127).astype(np.int8)
    packed = np.concatenate([d.view(np.uint8), quants.view(np.uint8)], axis=1).ravel()
    return packed, (quants * d.astype(np.float32)).reshape(values.shape)


def test_a_quantised_cache(go):
    plain = toy.gqa(np.random.default_rng(1))
    gqa = toy.gqa(np.random.default_rng(1))
    for name in ("K", "V"):
        packed, values = q8_0(plain.values(name))
        plain.tensor(name, "f32", values)
        root = Root(name, "q8_0", gqa.roots[name].ne)
        gqa.roots[name], gqa.inputs[name] = root, packed
        gqa.tensors[name] = TensorView(name, "q8_0", name, root.ne, root.nb, 0)
    assert nmse(plain, go(gqa)) < 1e-4
