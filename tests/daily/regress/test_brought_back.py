"""A known defect ends `regress` with 0 where the release has it, and with 5 where a change may have brought it in."""

import shutil

import pytest

from fattn_probe.llama.source import resolve
from tests.as_user import fattn_probe

pytestmark = [pytest.mark.build, pytest.mark.network, pytest.mark.night]
TWO_QUERIES = """version: 1
about: two queries, so that several warps share a column
hsk: 64
n_head: 8
n_head_kv: 1
n_q: 2
n_kv: 256
mask: {kind: causal}
"""
PAIRED = "pypi:xllamacpp==2026.7.9873"
BEFORE_VOLTA_COLUMNS = "pypi:xllamacpp==2026.4.8672"
VOLTA_COLUMNS = """# The check that was lost in b9294.
--- a/ggml/src/ggml-cuda/fattn.cu
+++ b/ggml/src/ggml-cuda/fattn.cu
@@ -26,1 +26,1 @@
-        if ((turing_mma_available(cc) || amd_wmma_available(cc)) && Q->ne[1] <= 16/ncols2) {
+        if (Q->ne[1] <= 16/ncols2) {
"""


@pytest.fixture
def regress(tmp_path):
    def run(scenario, *words, on, flavour="release", code):
        suite = tmp_path / "suite.yaml"
        suite.write_text(f"version: 1\nabout: one case\nscenarios: [{scenario}]\non: ['{on}']\nflavour: {flavour}\n")
        done = fattn_probe("regress", str(suite), *map(str, words), "--history", str(tmp_path / "h.db"), code=code)
        return " ".join((done.stdout + done.stderr).split())

    return run


def test_a_tree_of_unknown_release_fails_by_a_defect_that_was_mended(regress, tmp_path):
    (tmp_path / "two.yaml").write_text(TWO_QUERIES)
    ours = tmp_path / "llama.cpp"
    shutil.copytree(resolve(PAIRED).root, ours)
    said = regress("two.yaml", "--source", ours, on="sim:h200", flavour="check", code=5)
    assert "maybe paired-barriers, a known defect of llama.cpp: the code has it, but not every" in said
    said = regress("two.yaml", "--source", PAIRED, on="sim:h200", flavour="check", code=0)
    assert "1 fails because of paired-barriers, a known defect of llama.cpp" in said


def test_a_patch_that_brings_a_defect_in_fails(regress, tmp_path):
    (tmp_path / "mine.patch").write_text(VOLTA_COLUMNS)
    (tmp_path / "nine.yaml").write_text(TWO_QUERIES.replace("n_q: 2", "n_q: 9").replace("256", "200"))
    words = ("--source", BEFORE_VOLTA_COLUMNS)
    assert "1 pass" in regress("nine.yaml", *words, on="sim:v100", code=0)
    said = regress("nine.yaml", *words, "--patch", tmp_path / "mine.patch", on="sim:v100", code=5)
    assert "volta-columns, a known defect of llama.cpp, which the release does not have" in said
