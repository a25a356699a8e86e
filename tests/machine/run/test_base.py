"""The base of an edited or patched llama.cpp, and the launches that differ from its own."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fattn_probe.cases.device.origin import Method, Origin
from fattn_probe.cases.scenario.cases import cases_of
from fattn_probe.cases.shipped import find
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.llama.source import DEFAULT_SOURCE, Tree, resolve
from fattn_probe.llama.source.patches import Patch
from fattn_probe.llama.source.patches import find as find_patch
from fattn_probe.machine.run import base as module
from fattn_probe.machine.run.base import base_of, changed, release_of
from fattn_probe.machine.run.session import RunOptions
from tests.made import H200

TREE = Tree("/a/tree", Path("/a/tree"), "?", "a", None)
VEC = LaunchRecord(0, "flash_attn_ext_vec", (("D", "128"),), (1, 12, 32), (32, 4, 1), 0)
COMBINE = LaunchRecord(1, "flash_attn_combine_results", (("D", "128"),), (1, 32, 1), (128, 1, 1), 96)


@pytest.fixture
def releases(monkeypatch):
    """Releases whose digest is their specification."""
    monkeypatch.setattr(module, "resolve", lambda spec: replace(TREE, spec=spec, digest=spec))


@pytest.mark.parametrize(("number", "spec"), [("8672", "pypi:xllamacpp==2026.4.8672"), ("?", DEFAULT_SOURCE)])
def test_the_base_of_a_folder_is_the_release_with_its_number_else_the_default(releases, number, spec):
    assert release_of(number) == spec
    base = base_of(RunOptions(replace(TREE, build_number=number)))
    assert (base.words, base.options.tree.spec) == (spec, spec)


def test_the_base_of_a_checkout_is_its_merge_base_unless_that_has_its_content(releases, monkeypatch):
    monkeypatch.setattr(module, "upstream_commit", lambda root: "c" * 40)
    spec = f"git+file:///a/tree@{'c' * 40}"
    base = base_of(RunOptions(TREE))
    assert (base.words, base.options.tree.spec) == ("the merge base ccccccccc", spec)
    assert base_of(RunOptions(replace(TREE, digest=spec))).words == DEFAULT_SOURCE
    assert base_of(RunOptions(replace(TREE, spec=spec))) is None, "a commit of a local repository"
    assert base_of(RunOptions(TREE, beside_base=False)) is None


def test_a_release_as_it_is_has_no_base_nor_has_a_folder_with_its_content(releases):
    assert base_of(RunOptions(replace(TREE, spec=DEFAULT_SOURCE))) is None
    assert base_of(RunOptions(replace(TREE, digest=DEFAULT_SOURCE))) is None
    base = base_of(RunOptions(TREE, patches=(Patch("p", Path("p.patch"), "", (), ""),), flavour="check"))
    assert (base.options.tree, base.options.patches, base.options.flavour) == (TREE, (), "release")
    assert base.words == "/a/tree without its patches"


def test_what_changed_leaves_out_what_did_not():
    fewer = replace(VEC, grid=(1, 1, 32))
    assert changed((VEC, COMBINE), (VEC, replace(COMBINE, order=7))) == ""
    assert changed((VEC, COMBINE), (fewer, COMBINE)) == (
        "flash_attn_ext_vec<128>: grid 1x12x32 of 32x4x1, 0 B became "
        "flash_attn_ext_vec<128>: grid 1x1x32 of 32x4x1, 0 B"
    )
    combine = "flash_attn_combine_results<128>: grid 1x32x1 of 128x1x1, 96 B"
    assert changed((VEC, COMBINE), (VEC,)) == f"no longer {combine}"
    assert changed((VEC,), (VEC, COMBINE)) == f"new: {combine}"
    assert changed((VEC, COMBINE), (COMBINE, VEC)) == "the same launches in a different order"
    known, guess = (replace(fewer, origin=Origin(method)) for method in (Method.MEASURED, Method.ASSUMED))
    doubt = " (the new grid is uncertain, because the kernel's registers are only assumed)"
    assert changed((VEC,), (guess,)) == changed((VEC,), (known,)) + doubt
    assert changed((replace(VEC, origin=guess.origin),), (guess,)) == changed((VEC,), (known,))


@pytest.mark.build
@pytest.mark.network
def test_a_base_has_the_launches_of_the_release(tree, session):
    from fattn_probe.machine.run.prepare import dry_launches

    cases = cases_of([find("scenario", name) for name in ("gqa", "decode")])
    launches = base_of(RunOptions(tree, patches=(find_patch("fault-stream-k-seam", tree),))).launches(cases, H200)
    for case in cases:
        assert launches[case.op.digest] == dry_launches(session, case, H200) != ()


@pytest.mark.build
@pytest.mark.network
def test_the_base_of_an_edited_folder_is_the_release(tree, tmp_path):
    shutil.copytree(tree.root, tmp_path / "tree")
    assert base_of(RunOptions(resolve(str(tmp_path / "tree")))) is None
    source = tmp_path / "tree/ggml/src/ggml-cuda/fattn.cu"
    source.write_text(source.read_text() + "// an edit\n")
    assert base_of(RunOptions(resolve(str(tmp_path / "tree")))).words == DEFAULT_SOURCE
