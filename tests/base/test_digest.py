"""Digests: one place makes them, and those in shipped files, histories and names of builds keep their values."""

import hashlib
from pathlib import Path, PurePosixPath

from fattn_probe.base.digest import hexdigest, short
from fattn_probe.cases.op import Op, Params, Sizes
from fattn_probe.cases.scenario.cases import resolve
from fattn_probe.cases.scenario.schema import Scenario
from fattn_probe.daily.regress.records import Shard
from fattn_probe.lab.detect.mutants import Mutant
from fattn_probe.llama.source.tree import digest_files

ROOT = Path(__file__).parents[2]
OP = Op.contiguous(
    Sizes(1, 8, 2, 3, 256, 128, 64), Params(0.125, 8.0, 30.0, 10, 128), ("q8_0", "f16"), mask=True, sinks=True
)
SCENARIO = {"version": 1, "about": "x", "hsk": 64, "n_head": 2, "n_q": 1, "n_kv": 64, "max_bias": 8.0, "seed": 3}


def test_texts_bytes_and_chunks_have_the_digest_of_their_bytes():
    expected = hashlib.sha256(b"a\xffb").hexdigest()
    assert hexdigest(b"a\xffb") == hexdigest("a\udcffb") == hexdigest(["a", b"\xff", memoryview(b"b")]) == expected
    assert (short(b"a\xffb"), short("a\udcffb", 8)) == (expected[:16], expected[:8])


def test_digests_of_ops_keep_their_values():
    """A table of kernels, of support or of verdicts whose keys changed would be empty, and nothing would say so."""
    assert OP.digest == "bf305c0ecab7b0f7"
    assert resolve(Scenario.model_validate(SCENARIO), "n", "f").digest == "386acb1ca6b50dd6"


def test_digests_of_sources_mutants_and_shards_keep_their_values(tmp_path):
    mutant = Mutant(1, "fattn.cu", 7, "jump", "continue", "break")
    assert mutant.digest == "496523d06f176197e692e2d060d65ea0e6e1088fe8d92865958334c805539277"
    assert [Shard(number, 3).has("abc") for number in (1, 2, 3)] == [True, False, False]
    (tmp_path / "a").write_bytes(b"x\0y")
    expected = hashlib.sha256(b"a\x003\0x\0y").hexdigest()
    assert digest_files(tmp_path, [PurePosixPath("a")]) == expected
