"""Patches: exact application, refusals, the shipped ones."""

import shutil
import subprocess

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.llama.source import patches, resolve
from tests.llama.source.fake_index import write_tree

TEXT = "".join(f"line {number}\n" for number in range(1, 31))


@pytest.fixture
def overlay(tmp_path):
    return write_tree(tmp_path / "overlay", {"a/x.cu": TEXT})


def patch_of(tmp_path, body, name="mine"):
    path = tmp_path / f"{name}.patch"
    path.write_text(body)
    return patches.load(path)


def change(start, old, new, path="a/x.cu"):
    """A diff of one hunk that replaces the line `old`, with one line of context on both sides."""
    number = int(old.split()[1])
    return (
        f"--- a/{path}\n+++ b/{path}\n@@ -{start},3 +{start},3 @@\n"
        f" line {number - 1}\n-{old}\n+{new}\n line {number + 1}\n"
    )


@pytest.mark.parametrize(
    ("start", "old", "new"),
    [(9, "a/a/x.cu", "b/a/x.cu"), (3, "a/a/x.cu\t11:59", "b/a/x.cu\t12:00"), (25, "it/a/x.cu", "edited/a/x.cu")],
)
def test_hunk_finds_its_exact_place(tmp_path, overlay, start, old, new):  # as `git diff`, `diff -u`, `diff -ru` name it
    body = change(start, "line 10", "LINE 10").replace("- a/a/x.cu", f"- {old}").replace("+ b/a/x.cu", f"+ {new}")
    assert patches.apply(patch_of(tmp_path, body), overlay) == [overlay / "a/x.cu"]
    assert (overlay / "a/x.cu").read_text() == TEXT.replace("line 10\n", "LINE 10\n")


def test_a_mismatch_or_an_ambiguous_place_is_refused_and_writes_nothing(tmp_path, overlay):
    (overlay / "a/y.cu").write_text(TEXT.replace("line 10", "line ten"))
    body = change(9, "line 10", "LINE 10") + change(9, "line 10", "LINE 10", "a/y.cu")
    with pytest.raises(InputError) as caught:
        patches.apply(patch_of(tmp_path, body), overlay)
    for word in ("patch mine", "hunk 1", "a/y.cu", "line 10 should be\n  line 10\n", "but is\n  line ten\n"):
        assert word in str(caught.value)
    assert (overlay / "a/x.cu").read_text() == TEXT
    (overlay / "a/x.cu").write_text(TEXT + TEXT)
    with pytest.raises(InputError, match="matches at lines 9, 39, but not at line 5"):
        patches.apply(patch_of(tmp_path, change(5, "line 10", "LINE 10")), overlay)
    patches.apply(patch_of(tmp_path, change(39, "line 10", "LINE 10")), overlay)
    assert (overlay / "a/x.cu").read_text() == TEXT + TEXT.replace("line 10\n", "LINE 10\n")


def test_create_and_delete(tmp_path, overlay):
    removed = "".join(f"-{line}\n" for line in TEXT.splitlines())
    body = (
        "--- /dev/null\n+++ b/b/new.cu\n@@ -0,0 +1,2 @@\n+one\n+two\n"
        f"--- a/a/x.cu\n+++ /dev/null\n@@ -1,30 +0,0 @@\n{removed}"
    )
    patches.apply(patch_of(tmp_path, body), overlay)
    assert (overlay / "b/new.cu").read_text() == "one\ntwo\n"
    assert not (overlay / "a/x.cu").exists()


@pytest.mark.parametrize("path", ["../outside.cu", "/tmp/outside.cu", "a/../../outside.cu"])
def test_path_that_leaves_the_tree(tmp_path, overlay, path):
    (tmp_path / "outside.cu").write_text(TEXT)
    with pytest.raises(InputError, match="outside the tree"):
        patches.apply(patch_of(tmp_path, change(9, "line 10", "LINE 10").replace("a/x.cu", path)), overlay)
    assert (tmp_path / "outside.cu").read_text() == TEXT


def test_folder_link_that_leaves_the_tree(tmp_path, overlay):
    write_tree(tmp_path / "shared", {"x.cu": TEXT})
    (overlay / "linked").symlink_to(tmp_path / "shared")
    with pytest.raises(InputError, match="leaves the tree through a link"):
        patches.apply(patch_of(tmp_path, change(9, "line 10", "LINE 10", "linked/x.cu")), overlay)


def test_linked_file_of_a_shared_tree_is_replaced_not_written(tmp_path, overlay):
    shared = write_tree(tmp_path / "shared", {"x.cu": TEXT}) / "x.cu"
    shared.chmod(0o444)
    (overlay / "a/x.cu").unlink()
    (overlay / "a/x.cu").hardlink_to(shared)
    (overlay / "a/y.cu").symlink_to(shared)
    body = change(9, "line 10", "LINE 10") + change(9, "line 10", "LINE 10", "a/y.cu")
    patches.apply(patch_of(tmp_path, body), overlay)
    assert shared.read_text() == TEXT
    assert (overlay / "a/y.cu").read_text() == TEXT.replace("line 10\n", "LINE 10\n")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("nothing here", "an incomplete unified diff"),
        (change(19, "line 20", "x") + "@@ -9,3 +9,3 @@\n line 9\n-line 10\n+x\n line 11\n", "hunk 2"),  # not in order
        (change(9, "line 10", "x", "a/z.cu"), r"a/z\.cu, but the source has no such file"),
        (change(9, "line 10", "x").replace(",3 +", ",4 +"), "is damaged"),
        ("", "mine"),
        ("--- a/a/x.cu\n+++ b/a/x.cu\n", "mine"),  # the head alone
        ("--- a/a/x.cu\n+++ b/a/x.cu\n@@ -1,3 +1,3 @@\n line 1\n", "mine"),  # cut
        ("--- a/a/x.cu\n+++ b/a/x.cu\n@@ -999999999999999999999,1 +1,1 @@\n-a\n+b\n", "mine"),
        ("\x00\x01\x02" * 100, "mine"),
        (change(9, "line 10", "x").replace("+++ b/a/x.cu", "+++ b/a/y.cu"), "renames"),
    ],
)
def test_a_patch_that_does_not_apply(tmp_path, overlay, body, said):
    with pytest.raises(InputError, match=said):
        patches.apply(patch_of(tmp_path, body), overlay)


def test_header_is_read(tmp_path):
    patch = patch_of(tmp_path, "# A fault\n# of two lines.\n# for: a test\n# fits: A C\n" + change(9, "line 10", "# x"))
    assert (patch.about, patch.purpose, patch.fits) == ("A fault of two lines.", "a test", ("A", "C"))


def test_an_unknown_name_or_another_era_is_refused(tree_folder, tmp_path):
    with pytest.raises(InputError, match="did you mean fault-mask-stride"):
        patches.find("fault-mask-strid", resolve(str(tree_folder)))
    path = patch_of(tmp_path, "# fits: A B\n" + change(9, "line 10", "x")).path
    with pytest.raises(InputError, match=r"made for sources of era A, B; .* is of era C"):
        patches.find(str(path), resolve(str(tree_folder)))


def test_every_shipped_patch_says_what_it_is_for():
    assert {patch.name for patch in patches.shipped()} >= {
        "reproducible-test-backend-ops",
        "fault-missing-syncthreads",
        "fault-mask-stride",
        "fault-tail-queries",
        "fault-stream-k-seam",
    }
    for patch in patches.shipped():
        assert patch.about and patch.purpose and set(patch.fits) <= set("ABC"), patch.name
        assert "ggml-org/llama.cpp#" in patch.about or not patch.name.startswith("fault-")


@pytest.mark.network
@pytest.mark.parametrize("version", ["0.2.8", "2026.10.11549"])
def test_shipped_patches_apply_as_patch_applies_them(tmp_path, pypi, version):
    tree = resolve(f"pypi:xllamacpp=={version}")
    names = sorted({patch.name for patch in patches.shipped() if tree.features.era in patch.fits})
    assert "reproducible-test-backend-ops" in names
    for name in names:
        patch = patches.find(name, tree)
        ours, theirs = tmp_path / f"{name}-ours", tmp_path / f"{name}-theirs"
        for copy in (ours, theirs):
            shutil.copytree(tree.root, copy)
        changed = patches.apply(patch, ours)
        subprocess.run(["patch", "-s", "-p1", "-F0", "-i", patch.path], cwd=theirs, check=True)
        for path in changed:
            assert path.read_text() == (theirs / path.relative_to(ours)).read_text()
