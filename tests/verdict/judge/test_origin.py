"""A known defect excuses a failure only if the code that ran has it, and the release that the code is from."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fattn_probe.base.errors import ComparisonError
from fattn_probe.cases.device import Target
from fattn_probe.llama.source import DEFAULT_SOURCE, Tree
from fattn_probe.llama.source.features import CUDA, probe
from fattn_probe.llama.source.patches import load
from fattn_probe.llama.source.spec import builds, releases
from fattn_probe.verdict.judge.judgement import Judgement, raise_if_failed
from fattn_probe.verdict.judge.known import Known, defects, known_defect
from fattn_probe.verdict.judge.origin import (
    Code,
    Probe,
    ReleaseRange,
    SourceOrigin,
    all_hold,
    is_upstream,
    origin_elsewhere,
    origin_in,
    origin_of,
)
from fattn_probe.verdict.measure.verdict import Status, Verdict
from tests.verdict.judge.test_known import BARRIERS, MASKED, MMA16

HEADER = "fattn-mma-f16.cuh"
FUNCTION = "flash_attn_ext_f16_process_tile"
PAIRED = """template<int DKQ>
static __device__ void flash_attn_ext_f16_process_tile(const int np) {
    if (np == 1) {
        __syncthreads();
    } else if (np > 1) {
        // the others wait too
        __syncthreads();
    }
    dstk_val.x /= KQ_rowsum_j;
}
"""
MENDED = PAIRED.replace(
    "    } else if (np > 1) {\n        // the others wait too\n        __syncthreads();\n    }", "    }"
)
BRING_IN = f"""# Two barriers again.
--- a/{CUDA}/{HEADER}
+++ b/{CUDA}/{HEADER}
@@ -3,5 +3,7 @@
     if (np == 1) {{
         __syncthreads();
+    }} else if (np > 1) {{
+        __syncthreads();
     }}
     dstk_val.x /= KQ_rowsum_j;
 }}
"""
RELEASE = "pypi:xllamacpp==2026.7.9873"
BROUGHT_IN = "paired-barriers, a known defect of llama.cpp, which the release does not have"


@pytest.fixture
def tree(tmp_path):
    def made(text, spec=RELEASE, build_number="9873"):
        folder = tmp_path / CUDA
        folder.mkdir(parents=True, exist_ok=True)
        (folder / HEADER).write_text(text)
        return Tree(spec, tmp_path, build_number, "digest", probe(tmp_path))

    return made


@pytest.fixture
def bring_in(tmp_path):
    path = tmp_path / "bring-in.patch"
    path.write_text(BRING_IN)
    return load(path)


def probed(tree, **fragments):
    return Probe(file=HEADER, function=FUNCTION, **fragments).holds(Code(tree.root))


def test_a_probe_compares_tokens_of_a_function_that_is_there(tree):
    paired = tree(PAIRED)
    assert probed(paired, has=["} else if(np>1){__syncthreads( );}"])
    assert probed(paired, has=["if (np == 1) { ... dstk_val.x /= KQ_rowsum_j;"])
    assert probed(paired, has=["dstk_val.x"], lacks=["dstk_val.y"])
    assert probed(paired, has=["p == 1"]) is False
    assert probed(paired, has=["dstk_val.x", "dstk_val.y"]) is False
    assert probed(paired, lacks=["np == 1"]) is False
    code = Code(tree(PAIRED).root)
    elsewhere, absent = Probe(file=HEADER, function="other"), Probe(file="fattn-vec.cuh", function=FUNCTION)
    here, wrong = Probe(file=HEADER, function=FUNCTION), Probe(file=HEADER, function=FUNCTION, has=["no such code"])
    assert elsewhere.holds(code) is absent.holds(code) is all_hold([here, absent], code) is None
    assert all_hold([absent, wrong], code) is False
    assert all_hold([here], code) is True


def test_a_release_that_no_table_knows_is_judged_by_its_code_and_a_tree_without_a_number_by_it_too(tree):
    assert known_defect(BARRIERS, origin_of(tree(PAIRED), ())) == Known("paired-barriers")
    assert known_defect(BARRIERS, origin_of(tree(MENDED), ())) == Known()
    unknown = tree(PAIRED, "pypi:llama-cpp-python==0.3.17", "?")
    assert known_defect(BARRIERS, origin_of(unknown, ())) == Known("paired-barriers")
    assert known_defect(MASKED, origin_of(tree(PAIRED, "/home/me/llama.cpp", "?"), ())) == Known("masked-rows")


def test_a_patch_that_brings_a_defect_in_is_no_excuse(tree, bring_in):
    known = known_defect(BARRIERS, origin_of(tree(MENDED), (bring_in,)))
    assert known.id == "" and known.doubt.startswith(BROUGHT_IN)


def test_a_patch_that_mends_a_defect_leaves_no_excuse(tree, bring_in, tmp_path):
    back = tmp_path / "back.patch"
    turned = bring_in.text.replace("+    }", "-    }").replace("+        __sync", "-        __sync")
    back.write_text(turned.replace("-3,5 +3,7", "-3,7 +3,5"))
    both = (bring_in, load(back))
    assert Code(tree(MENDED).root, both).text(HEADER) == MENDED
    assert known_defect(BARRIERS, origin_of(tree(MENDED), both)) == Known()


@pytest.mark.parametrize(
    ("number", "said"),
    [
        ("8672", Known("paired-barriers")),
        ("10000", Known("paired-barriers")),
        ("11063", BROUGHT_IN),
        ("99999", BROUGHT_IN),
        ("10900", "maybe paired-barriers, a known defect of llama.cpp: the code has it, but not"),
        ("?", "maybe paired-barriers, a known defect of llama.cpp: the code has it, but not"),
        ("12", "maybe paired-barriers"),
    ],
)
def test_a_tree_of_the_users_own_is_judged_by_the_release_that_it_is_from(tree, number, said):
    known = known_defect(BARRIERS, origin_of(tree(PAIRED, "/home/me/llama.cpp", number), ()))
    assert known == said if isinstance(said, Known) else known.doubt.startswith(said) and not known.id


def test_code_that_cannot_be_probed_is_a_doubt(tree):
    known = known_defect(BARRIERS, origin_of(tree(PAIRED.replace(FUNCTION, "process")), ()))
    assert known.id == ""
    assert known.doubt.endswith(f"fattn-probe needs {FUNCTION}() in {HEADER}")
    elsewhere = origin_elsewhere("/home/me/llama.cpp", "8672", ())
    assert known_defect(BARRIERS, elsewhere).doubt.startswith("maybe paired-barriers")


def test_a_build_made_elsewhere_is_judged_by_its_release():
    assert known_defect(BARRIERS, origin_elsewhere("pypi:xllamacpp==0.2.8", "7551", ())) == Known("paired-barriers")
    patched = known_defect(BARRIERS, origin_elsewhere("pypi:xllamacpp==0.2.8", "7551", ("mine",)))
    assert patched.id == "" and patched.doubt.startswith("maybe paired-barriers")


def test_a_doubt_fails_and_says_so():
    failed = Verdict(Status.FAIL, "barrier-divergence")
    row = replace(Judgement("gqa", "sim:h200", None, failed), doubt="maybe paired-barriers")
    assert row.reason == "maybe paired-barriers: barrier-divergence"
    with pytest.raises(ComparisonError, match=r"1 of 1 comparisons failed: gqa on sim:h200$"):
        raise_if_failed([row])


def test_what_a_release_has_follows_from_those_beside_it():
    between = ReleaseRange(200, 300)
    known = (100, 200, 300, 400)
    found = {number: between.of(str(number), known) for number in (50, 100, 150, 200, 250, 300, 350, 400, 500)}
    assert found == {
        50: None,
        100: False,
        150: None,
        200: True,
        250: True,
        300: True,
        350: None,
        400: False,
        500: False,
    }
    assert ReleaseRange(200).of("500", known) is ReleaseRange(200).of("?", known) is True
    assert between.of("?", known) is None


def test_every_range_ends_at_a_release_and_a_defect_has_code_for_each_kernel(tree):
    assert all(map(is_upstream, (DEFAULT_SOURCE, "git:b11549", "git:master")))
    assert not any(map(is_upstream, ("/home/me/llama.cpp", "git+https://github.com/me/llama.cpp@b11549")))
    ends = {end for defect in defects().values() for end in (defect.since, defect.until) if end is not None}
    assert ends <= set(builds())
    assert len({release.source for release in releases()}) == len(releases())
    assert all(defect.code or all(signs.code for signs in defect.signs) for defect in defects().values())
    assert known_defect(replace(MASKED, kernel=MMA16), origin_of(tree(PAIRED), ())) == Known("masked-rows")


@pytest.mark.parametrize(
    ("spec", "patched", "is_of_a_release"),
    [("pypi:xllamacpp==0.2.8", False, True), ("pypi:xllamacpp==0.2.8", True, True), ("/my/llama.cpp", False, False)],
)
def test_only_a_release_without_patches_is_unchanged(spec, patched, is_of_a_release):
    tree: Any = SimpleNamespace(spec=spec, root=Path("/x"), build_number="7551")
    patches: Any = ("a patch",) if patched else ()
    found = origin_of(tree, patches)
    assert found.unchanged == (is_of_a_release and not patched)
    assert found.code == Code(Path("/x"), patches) and found.build_number == "7551"
    assert found.release == (Code(Path("/x")) if is_of_a_release else None)
    elsewhere = origin_elsewhere(spec, "7551", patches)
    assert elsewhere == SourceOrigin("7551", unchanged=is_of_a_release and not patched)
    build = SimpleNamespace(manifest=SimpleNamespace(source=spec, build_number="7551", patches=patches))
    for known, options in (
        (found, SimpleNamespace(build=None, tree=tree, patches=patches)),
        (elsewhere, SimpleNamespace(build=None, tree=None, patches=patches)),
        (elsewhere, SimpleNamespace(build=build, tree=tree, patches=patches)),
    ):
        session: Any = SimpleNamespace(options=options, build_for=lambda target: build)
        assert origin_in(session, Target("cpu")) == known
    assert not SourceOrigin("7551").unchanged and not SourceOrigin("?").is_of_unknown_age
