"""The command line as its users have it: a subprocess, its exit code, its stdout and stderr."""

import json
import re
from pathlib import Path

import pytest

from tests.as_user import fattn_probe
from tests.made import ROOT


def probe(*words, code=0):
    return fattn_probe(*words, code=code, cwd=ROOT)


def answer(*words, code=0):
    return json.loads(probe(*words, "--json", code=code).stdout)


def test_lists_are_json_too():
    assert {"gqa", "decode", "mla"} <= {Path(item["path"]).stem for item in answer("scenario", "list")}
    assert "h200" in {item["id"] for item in answer("device", "list")}


@pytest.mark.build
@pytest.mark.network
class TestOnTheSimulator:
    def test_run(self, tmp_path):
        (done,) = answer("run", "scenarios/gqa.yaml", "--on", "sim:h200", "--captures", str(tmp_path))["runs"]
        kernel, fixup = done["launches"]
        assert kernel["kernel"] == "flash_attn_ext_f16"
        assert kernel["template_args"]["ncols2"] == "8"
        assert (kernel["grid"], kernel["block"], kernel["shared"]) == ([8, 1, 1], [32, 4, 1], 17536)
        assert fixup["kernel"] == "flash_attn_stream_k_fixup_uniform"
        assert answer("compare", done["file"], done["file"])["share"] == 1

    @pytest.mark.night  # all of a build is compiled again; tests/native has the simulator's own programs so
    def test_address_sanitizer_finds_nothing_in_a_right_kernel(self):
        """It once reported marks that the blocks before had left on the stacks of the simulator's threads."""
        probe("compare", "known-faults/q8-race", "--on", "sim:h200", "--sanitize", "address", "--model", "never")

    @pytest.mark.night
    def test_a_kernel_that_is_no_kernel_on_volta(self):
        """A GPU that few own: the dispatch takes a kernel whose device code is left out there."""
        done = probe("run", "scenarios/known-faults/volta-columns.yaml", code=5)
        assert "__trap()" in done.stdout
        assert "flash_attn_ext_f16<128,128,16,1,false,false,false>" in done.stdout

    def test_another_order_of_warps_gives_the_same_bits(self, tmp_path):
        for seed in ("0", "7"):
            probe("run", "gqa", "--on", "sim:h200", "--schedule", seed, "--captures", str(tmp_path / seed))
        assert answer("compare", *[str(tmp_path / seed / "gqa@sim-h200.gguf") for seed in ("0", "7")])["share"] == 1

    def test_a_tolerance_that_is_too_tight_fails(self, tmp_path):
        text = (ROOT / "scenarios/gqa.yaml").read_text()
        (tmp_path / "tight.yaml").write_text(re.sub("nmse: [^}]*", "nmse: 1e-9", text))
        assert "NMSE" in probe("compare", str(tmp_path / "tight.yaml"), "--on", "sim:h200", code=5).stdout
