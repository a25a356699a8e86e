"""A run of some blocks gives the bits that a run of all blocks gives, and `compare` says what it ran."""

import dataclasses

import numpy as np
import pytest

from fattn_probe.cases.scenario import layout as rule
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.machine.run.capture import Part
from fattn_probe.machine.run.outcome import Lost
from fattn_probe.verdict.judge import checks
from fattn_probe.verdict.judge.cases import Answers, judge_case, judged_case
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.measure.metrics import unwritten_elements
from fattn_probe.verdict.measure.verdict import Status
from tests.made import H200, case_of

HEAD = "version: 1\nabout: a case of which some blocks run\n"
BATCH = HEAD + "hsk: 64\nn_head: 8\nn_head_kv: 2\nn_q: 300\nn_kv: 2048\nmask: {kind: causal}\n"
SHORT = BATCH.replace("n_q: 300", "n_q: 33")
MANY = HEAD + "hsk: 64\nn_head: 16\nn_head_kv: 4\nn_q: 1200\nn_kv: 256\nn_seq: 2\nmask: {kind: causal}\n"
MANY += "layout: {mask: {pad: 64}}\n"
DECODE = HEAD + "hsk: 128\nn_head: 8\nn_head_kv: 2\nn_q: 1\nn_kv: 4096\nn_seq: 2\n"
TILE = HEAD + "hsk: 72\nn_head: 8\nn_head_kv: 2\nn_q: 40\nn_kv: 512\nn_seq: 2\n"

pytestmark = [pytest.mark.build, pytest.mark.network]


@pytest.fixture(scope="module")
def session(session):
    with session.persistent_runner():
        yield session


@pytest.fixture
def slow(monkeypatch):
    """Every case takes too long, and may run the fewest blocks."""
    monkeypatch.setattr(checks, "MOST_SECONDS", 0.0)
    monkeypatch.setattr(checks, "PART_SECONDS", 0.0)


@pytest.mark.parametrize(
    ("text", "fixup"),
    [
        pytest.param(BATCH, "flash_attn_stream_k_fixup_general", id="blocks-end-inside-tiles"),
        pytest.param(SHORT, "flash_attn_stream_k_fixup_uniform", id="several-blocks-a-tile"),
        pytest.param(MANY, "flash_attn_stream_k_fixup_general", id="several-tiles-a-block"),
        pytest.param(DECODE, "flash_attn_combine_results", id="vec"),
        pytest.param(TILE, "flash_attn_combine_results", id="tile", marks=pytest.mark.slow),
    ],
)
def test_some_blocks_give_the_bits_of_all(session, slow, text, fixup):
    case, inputs = case_of(text), make_inputs(case_of(text))
    part = judged_case(session, Answers(case, inputs), H200, Checks()).part
    whole = session.capture(case, inputs, H200)
    assert whole.launches[-1].kernel == fixup
    some = session.capture(case, inputs, H200, part)
    assert some.launches == whole.launches
    ran = part.selection.launches[part.selection.attention]
    assert ran.number < ran.of
    rows = tuple(part.rows.T)
    assert len(part.rows) < some.dst[..., 0].size
    assert not unwritten_elements(whole.dst).any()
    np.testing.assert_array_equal(some.dst[rows].view(np.uint32), whole.dst[rows].view(np.uint32))
    again = session.capture(case, inputs, H200)
    np.testing.assert_array_equal(again.dst.view(np.uint32), whole.dst.view(np.uint32))


def test_a_part_is_judged_and_named(session, slow):
    found = judge_case(session, case_of(BATCH), H200, Checks(model="always"))
    assert found.status is Status.PASS
    assert found.verdict.design.equal_bits == 1.0
    assert found.sampled.rows < found.sampled.complete < found.sampled.of == 2400
    assert found.sampled.blocks < found.sampled.of_blocks == 264
    assert str(found.sampled).startswith(f"ran {found.sampled.blocks} of 264 blocks of the attention kernel, checked ")
    everything = judge_case(session, case_of(BATCH), H200, Checks(sample="all"))
    assert everything.status is Status.PASS
    assert everything.sampled is None


def test_the_runner_refuses_blocks_of_other_launches(session, slow):
    case, inputs = case_of(BATCH), make_inputs(case_of(BATCH))
    part = judged_case(session, Answers(case, inputs), H200, Checks()).part
    launches = [dataclasses.replace(one, grid=(one.grid[0] + 1, *one.grid[1:])) for one in part.selection.launches]
    other = Part(dataclasses.replace(part.selection, launches=tuple(launches)), part.rows)
    found = session.run(case, inputs, H200, other)
    assert isinstance(found, Lost)
    assert "launch 0 has a grid of 264x1x1 blocks, and blocks were chosen from 265x1x1" in found.message


def test_memory_that_repeats_gives_the_bits_of_memory_that_is_written(session, monkeypatch):
    """K, V and mask repeat; their bytes, written as any others, give the same output."""
    monkeypatch.setattr(rule, "REPEATS_ABOVE", 1 << 17)
    monkeypatch.setattr(rule, "LEAST_PERIOD", 1 << 14)
    case = case_of(BATCH)
    assert {name for name, root in case.op.roots.items() if root.period} == {"Q", "K", "V", "mask"}
    inputs = make_inputs(case)
    roots = {name: dataclasses.replace(root, period=None) for name, root in case.op.roots.items()}
    written = dataclasses.replace(case, op=dataclasses.replace(case.op, roots=roots))
    found, expected = session.capture(case, inputs, H200), session.capture(written, inputs, H200)
    np.testing.assert_array_equal(found.dst.view(np.uint32), expected.dst.view(np.uint32))
    row = judge_case(session, case, H200)
    assert row.status is Status.PASS
