from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fattn_probe.daily.inspect.coverage import check
from fattn_probe.daily.inspect.facts import Facts
from fattn_probe.llama.launch.tiles import Grid, tiles_of
from tests.daily.inspect.made_facts import (
    causal,
    decode,
    decompositions,
    fractional,
    gqa,
    grids,
    numbers,
    stream_k,
    with_block,
    with_work,
)


@pytest.mark.parametrize("made", [gqa, fractional, decode, causal])
def test_worked_examples_pass(made):
    coverage = check(made())
    assert coverage.findings == ()
    assert coverage.passes


@given(decompositions())
def test_right_decompositions_pass(facts):
    assert check(facts).findings == ()


def recut(facts: Facts, block: int, kbc: int, kbc_stop: int) -> Facts:
    """The same with one block's share moved, and its tiles with it, as a wrong `kbc` would do it."""
    grid, old = facts.grid, facts.blocks[block]
    return with_block(facts, replace(old, kbc=kbc, kbc_stop=kbc_stop, tiles=tiles_of(kbc, kbc_stop, grid)))


@given(grids, numbers, st.data())
def test_a_kbc_that_is_off_by_one_is_reported(grid, number, data):
    facts = stream_k(grid, number)
    block = data.draw(st.sampled_from(facts.blocks))
    which, by = data.draw(st.sampled_from(["kbc", "kbc_stop"])), data.draw(st.sampled_from([-1, 1]))
    moved = {"kbc": block.kbc, "kbc_stop": block.kbc_stop}
    moved[which] += by
    assert not check(recut(facts, block.block, **moved)).passes


@given(decompositions(), st.data())
def test_a_block_that_is_not_there_is_reported(facts, data):
    gone = data.draw(st.sampled_from(facts.blocks))
    assume(len(facts.blocks) > 1)
    assert not check(replace(facts, blocks=tuple(block for block in facts.blocks if block is not gone))).passes


@given(decompositions(), st.data())
def test_blocks_that_do_each_others_tiles_are_reported(facts, data):
    a, b = data.draw(st.sampled_from(facts.blocks)), data.draw(st.sampled_from(facts.blocks))
    assume([work.tile for work in a.tiles] != [work.tile for work in b.tiles])
    swapped = with_block(with_block(facts, replace(a, tiles=b.tiles)), replace(b, tiles=a.tiles))
    assert not check(swapped).passes


@given(decompositions(), st.sampled_from(["sequence", "z_KV", "zt_gqa", "jt", "kb0_start"]), st.data())
def test_a_work_elsewhere_is_reported(facts, name, data):
    block = data.draw(st.sampled_from([block for block in facts.blocks if block.tiles] or [None]))
    assume(block is not None)
    place = data.draw(st.integers(0, len(block.tiles) - 1))
    work = block.tiles[place]
    moved = replace(work, **{name: getattr(work, name) + data.draw(st.sampled_from([-1, 1]))})
    assert not check(with_work(facts, block.block, place, moved)).passes


@given(grids, numbers, st.sampled_from(["needs_fixup", "is_fixup"]), st.data())
def test_a_wrong_fixup_flag_is_reported(grid, number, name, data):
    facts = stream_k(grid, number)
    block = data.draw(st.sampled_from([block for block in facts.blocks if block.tiles]))
    place = data.draw(st.integers(0, len(block.tiles) - 1))
    work = block.tiles[place]
    flipped = with_work(facts, block.block, place, replace(work, **{name: not getattr(work, name)}))
    assert "fixup" in {finding.kind for finding in check(flipped).findings}


def test_a_step_that_no_block_does_or_two_do():
    facts = recut(fractional(), 46, fractional().blocks[46].kbc, fractional().blocks[46].kbc_stop - 1)
    (finding,) = check(facts).findings
    assert finding.kind == "gap"
    assert finding.blocks == (46, 47)
    assert finding.message == (
        "block 46 stops at kbc 2186, block 47 starts at 2187: "
        "no block does KV step 10 of sequence 0, KV head 0, head group 0, query tile 34"
    )
    facts = recut(gqa(), 2, 2, 4)
    kinds = {finding.kind: finding.message for finding in check(facts).findings}
    expected = "KV step 3 of sequence 0, KV head 0, head group 0, query tile 0 is done 2 times, by blocks 2 and 3"
    assert kinds["overlap"] == expected
    assert kinds["fixup"].endswith("blocks 2 and 3 each write dst as the tile's last")


ALONE = "no block does the tile of sequence 0, KV head 7, head group 3, query tile 0"
NOT_ADDED = "192 tiles are divided among blocks, but no flash_attn_stream_k_fixup was launched to add the parts"


@pytest.mark.parametrize(
    ("facts", "said", "steps"),
    [
        (replace(decode(), kernels=(), blocks=decode().blocks[:-8]), ALONE, (0, 32)),
        (replace(fractional(), kernels=fractional().kernels[:1]), NOT_ADDED, None),
    ],
    ids=["a tile", "parts"],
)
def test_what_nobody_does_is_reported_once(facts, said, steps):
    assert [(finding.message, finding.steps) for finding in check(facts).findings] == [(said, steps)]


def test_masked_steps_are_counted_and_may_be_skipped():
    coverage = check(causal())
    assert coverage.passes
    assert (coverage.tiles, coverage.steps, coverage.skipped) == (256, 4096, 1536)


def test_without_blocks_there_is_no_verdict():
    assert check(Facts({}, grid=Grid(4, 1, 1, 2, 1))) is None
    assert check(replace(gqa(), grid=None)) is None


def test_the_planted_fault_of_the_seam():
    """patches/fault-stream-k-seam.patch: a share that ends inside a tile ends one step early."""
    facts, early = fractional(), []
    for block in facts.blocks:
        inside = block.kbc_stop % 64 > 1 and block.kbc_stop - block.kbc > 1
        early.append(recut(facts, block.block, block.kbc, block.kbc_stop - inside).blocks[block.block])
    findings = check(replace(facts, blocks=tuple(early))).findings
    assert {finding.kind for finding in findings} == {"gap"}
    assert len(findings) == sum(new != old for new, old in zip(early, facts.blocks, strict=True)) == 240
