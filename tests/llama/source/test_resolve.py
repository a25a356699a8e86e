"""`resolve` and the `source` commands: releases from an index, the cache, folders and git; what a tree's text says."""

import io
import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from rich.console import Console

from fattn_probe.base.digest import seal
from fattn_probe.base.errors import InputError, LostError
from fattn_probe.base.files import remove_tree
from fattn_probe.llama import source
from fattn_probe.llama.source import command, digest_models, kept_files, model_files, resolve, store
from fattn_probe.llama.source.features import CUDA, era_of
from fattn_probe.llama.source.spec import DEFAULT_SOURCE, PypiSpec, Release
from tests.llama.source.fake_index import TREE, git, tagged, write_tree
from tests.made import shown

RELEASE = "pypi:xllamacpp==2026.1.77"
SDIST = "xllamacpp-2026.1.77.tar.gz"


@pytest.fixture
def published(index):
    """The index, which has the release."""
    index.publish(SDIST)
    return index


@pytest.mark.parametrize("as_json", [False, True], ids=["html", "json"])
@pytest.mark.parametrize("prefix", ["thirdparty/llama.cpp", "vendor/llama.cpp"])
def test_release_is_fetched_once_and_holds_only_what_is_built(index, as_json, prefix):
    index.as_json = as_json
    index.publish(SDIST, prefix=prefix)
    tree = resolve(RELEASE)
    assert tree.build_number == "77"
    assert {str(path) for path in kept_files(tree.root)} == {
        name for name in TREE if "vulkan" not in name and "models" not in name
    }
    assert not (tree.root / "models").exists() and not (tree.root / "ggml/src/ggml-vulkan").exists()
    asked = len(index.requests)
    assert resolve(RELEASE) == tree
    assert len(index.requests) == asked


def test_a_folder_may_be_a_tree_or_a_whole_sdist(published, tree_folder, tmp_path, monkeypatch):
    assert resolve(str(tree_folder)).digest == resolve(RELEASE).digest
    (tree_folder / "models/large.gguf").write_text("another model")
    assert resolve(str(tree_folder)).digest == resolve(RELEASE).digest
    (tree_folder / "ggml/src/ggml.c").write_text("int changed;\n")
    assert resolve(str(tree_folder)).digest != resolve(RELEASE).digest
    write_tree(tmp_path / "xllamacpp/thirdparty/llama.cpp")
    monkeypatch.chdir(tmp_path)
    found = resolve("xllamacpp")
    assert (found.spec, found.root) == (str(tmp_path / "xllamacpp"), tmp_path / "xllamacpp/thirdparty/llama.cpp")


def ggml_layout():
    """The files of the tree as ggml's own repository has them: without a folder `ggml`."""
    return {name.removeprefix("ggml/"): text for name, text in TREE.items() if not name.startswith("models/")}


@pytest.mark.parametrize("prefix", ["", "vendor/ggml-0.9"])
def test_ggml_in_its_own_layout_is_the_same_tree(index, tree_folder, tmp_path, prefix):
    index.publish(SDIST, prefix=prefix, files=ggml_layout())
    folder = write_tree(tmp_path / "a-checkout", ggml_layout())
    whole, release, checkout = resolve(str(tree_folder)), resolve(RELEASE), resolve(str(folder))
    assert whole.digest == release.digest == checkout.digest
    assert whole.features == release.features == checkout.features
    assert list(kept_files(whole.root)) == list(kept_files(checkout.root))
    (folder / "src/ggml.c").write_text("int changed;\n")
    again = resolve(str(folder))
    assert (again.root, again.build_number) == (checkout.root, "?")
    assert again.digest != checkout.digest


def test_wrong_digest_of_the_index_is_refused_and_leaves_nothing(index, cache):
    index.publish(SDIST, sha256="0" * 64)
    with pytest.raises(InputError, match=r"expected 0{64}: not used"):
        resolve(RELEASE)
    assert [path.name for path in (cache / "sources").iterdir()] == ["pypi-xllamacpp-2026.1.77.lock"]


@pytest.mark.parametrize("as_json", [False, True], ids=["html", "json"])
def test_a_release_without_a_digest_is_refused_unless_it_is_allowed_once(index, cache, as_json):
    """A warning was all, and the source was compiled."""
    index.as_json = as_json
    index.publish(SDIST, sha256="")
    with pytest.raises(InputError, match=rf"no sha256 for {SDIST}.*`fattn-probe source get {RELEASE} --allow-unver"):
        resolve(RELEASE)
    assert store.entries() == {} and index.downloads() == 0
    tree = resolve(RELEASE, unverified=True)
    assert resolve(RELEASE) == tree
    (entry,) = store.entries().values()
    assert entry.origin.endswith("sha256=unverified")


def test_pin_counts_more_than_the_digest_of_the_index(index):
    index.publish("xllamacpp-2026.10.11549.tar.gz")
    with pytest.raises(InputError, match=r"expected c17ee1163006f7.*: not used"):
        resolve("pypi:xllamacpp==2026.10.11549")


def test_interrupted_download_is_tried_again(published):
    published.broken, seen = 2, []
    assert resolve(RELEASE, lambda *step: seen.append(step)).build_number == "77"
    assert published.downloads() == 3
    size = (published.folder / SDIST).stat().st_size
    assert seen[-1] == (SDIST, size, size)


def test_download_that_stays_broken_is_lost_and_leaves_nothing(published, cache):
    published.broken = 99
    with pytest.raises(LostError, match="broke off 3 times"):
        resolve(RELEASE)
    assert store.entries() == {}
    published.broken = 0
    assert resolve(RELEASE).build_number == "77"


def test_changed_cache_is_fetched_again(published):
    tree = resolve(RELEASE)
    assert (tree.root / "ggml/src/ggml.c").stat().st_mode & 0o222 == 0
    (tree.root / "ggml/src/ggml.c").chmod(0o644)
    (tree.root / "ggml/src/ggml.c").write_text("int edited;\n")
    assert resolve(RELEASE) == tree
    assert (tree.root / "ggml/src/ggml.c").read_text() == TREE["ggml/src/ggml.c"]
    assert published.downloads() == 2
    (tree.root.parent / "source.json").write_text("{")
    assert resolve(RELEASE) == tree
    assert published.downloads() == 3


LIBLLAMA = {"include/llama.h": "int api;\n", "src/llama.cpp": "int llama;\n", "src/models/qwen2.cpp": "int graph;\n"}


def test_libllama_has_a_digest_of_its_own(index, tree_folder):
    index.publish(SDIST, files=TREE | LIBLLAMA)
    without, release = resolve(str(tree_folder)), resolve(RELEASE, models=True)
    assert release.digest == without.digest
    assert {str(path) for path in model_files(release.root)} == set(LIBLLAMA)
    assert list(model_files(without.root)) == []
    before = digest_models(write_tree(tree_folder, LIBLLAMA))
    assert before == digest_models(release.root)
    (tree_folder / "src/models/qwen2.cpp").write_text("int changed;\n")
    assert digest_models(tree_folder) != before
    assert resolve(str(tree_folder), models=True).digest == without.digest


def test_a_source_without_libllama_is_fetched_again_for_models(index, cache):
    """As an earlier fattn-probe stored it."""
    index.publish(SDIST, files=TREE | LIBLLAMA)
    tree = resolve(RELEASE)
    remove_tree(tree.root / "src")
    seal(tree.root.parent)
    assert resolve(RELEASE) == tree
    assert index.downloads() == 1
    assert resolve(RELEASE, models=True) == tree
    assert (tree.root / "src/llama.cpp").read_text() == "int llama;\n"
    assert resolve(RELEASE, models=True) == tree
    assert index.downloads() == 2


def test_a_tree_that_has_no_libllama_is_no_source_for_models(index, tree_folder):
    index.publish(SDIST, prefix="", files=ggml_layout())
    for name in (RELEASE, str(tree_folder)):
        assert resolve(name)
        with pytest.raises(InputError, match=r"this tree has no src/llama\.cpp: models need llama\.cpp's whole source"):
            resolve(name, models=True)


KILLED = """
import os, signal, sys
from fattn_probe.llama.source import resolve, unpack
def kill(archive, target):
    target.mkdir()
    (target / "ggml.c").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
unpack.unpack = kill
resolve(sys.argv[1])
"""


def test_killed_run_leaves_the_cache_usable(published, cache):
    assert subprocess.run([sys.executable, "-c", KILLED, RELEASE], check=False).returncode == -signal.SIGKILL
    assert list(cache.rglob("ggml.c"))
    assert resolve(RELEASE).build_number == "77"
    assert list((cache / "parts").iterdir()) == []


def test_concurrent_runs_download_once(published):
    with ThreadPoolExecutor(4) as pool:
        trees = list(pool.map(resolve, [RELEASE] * 4))
    assert len({tree.digest for tree in trees}) == 1
    assert published.downloads() == 1


def test_unknown_version_names_the_nearest_and_an_unreachable_index_is_lost(published, monkeypatch):
    with pytest.raises(InputError, match=r"no sdist of version 2026\.1\.7 .*2026\.1\.77"):
        resolve("pypi:xllamacpp==2026.1.7")
    with pytest.raises(InputError, match=r"no such project: .*/nothing/"):
        resolve("pypi:nothing==1")
    monkeypatch.setenv("FATTN_PROBE_INDEX", "http://127.0.0.1:1/simple")
    with pytest.raises(LostError, match="cannot be reached"):
        resolve(RELEASE)


def test_a_release_without_a_tree(index):
    index.publish(SDIST, files={"setup.py": "raise SystemExit('an sdist is never run')"})
    with pytest.raises(InputError, match=r"holds no llama\.cpp tree"):
        resolve(RELEASE)


@pytest.fixture
def repository(tree_folder):
    tagged(tree_folder, "// tagged")
    (tree_folder / "ggml/src/ggml.c").write_text("int second;\n")
    git(tree_folder, "commit", "-qam", "second")
    return tree_folder


def test_git_tag_branch_and_commit(repository):
    tag = resolve(f"git+file://{repository}@b4242")
    branch = resolve(f"git+file://{repository}@master")
    commit = resolve(f"git+file://{repository}@{git(repository, 'rev-parse', 'b4242^{}')}")
    number = [each.build_number for each in (tag, branch, commit)]
    assert number == ["4242", "4243", "4242"], "as in a checkout of them"
    assert tag.digest == commit.digest != branch.digest
    assert (branch.root / "ggml/src/ggml.c").read_text() == "int second;\n"
    assert not (branch.root / "models").exists()
    with pytest.raises(InputError, match="no tag or branch 'b9'"):
        resolve(f"git+file://{repository}@b9")


def test_git_branch_is_followed_and_checkout_is_counted(repository, monkeypatch):
    before = resolve(f"git+file://{repository}@master")
    (repository / "ggml/src/ggml.c").write_text("int third;\n")
    git(repository, "commit", "-qam", "third")
    assert resolve(f"git+file://{repository}@master").digest != before.digest
    assert resolve(str(repository)).build_number == "4244", "the tag, and two commits"
    git(repository, "tag", "b9-own")
    git(repository, "tag", "-d", "b4242")
    assert resolve(str(repository)).build_number == "?", "llama.cpp's history has more than three commits"
    upstream = Release("own", "1", 2, git(repository, "rev-parse", "HEAD~1")[:12], "")
    monkeypatch.setattr("fattn_probe.llama.source.git.releases", lambda: (upstream,))
    assert resolve(str(repository)).build_number == "3", "all of llama.cpp's history"


def test_a_shallow_clone_of_a_tag_has_its_number(repository, tmp_path):
    for ref, number in (("b4242", "4242"), ("master", "?")):
        clone = tmp_path / ref
        git(repository, "clone", "-q", "--depth=1", f"--branch={ref}", f"file://{repository}", clone)
        assert resolve(str(clone)).build_number == number
        (clone / "ggml/src/ggml.c").write_text("int edited;\n")
        commit = "b4242" if ref == "b4242" else git(clone, "rev-parse", "--short=12", "HEAD")
        assert resolve(str(clone)).revision == f"{commit} with uncommitted changes"


@pytest.mark.parametrize(
    ("release", "number"),
    [
        ("xllamacpp==2026.4.8672", "8672"),
        ("xllamacpp==2026.4.8672.1", "8672"),
        ("xllamacpp==0.2.14", "8352"),
        ("xllamacpp==0.2.1", "?"),
        ("llama-cpp-python==0.3.30", "?"),
        ("llama-cpp-python==2026.4.8672", "?"),
    ],
)
def test_the_build_number_of_a_release(release, number):
    name, _, version = release.partition("==")
    assert PypiSpec(name, version).build_number == number


@pytest.mark.network
@pytest.mark.parametrize(
    ("version", "features", "cases"),
    [("2026.10.11549", ("11549", "C", "V_is_K_view"), 126 + 12 + 147), ("0.2.8", ("7551", "A", "mla"), 99 + 9 + 108)],
)
def test_real_releases(pypi, version, features, cases):
    tree = resolve(f"pypi:xllamacpp=={version}")
    assert (tree.build_number, tree.features.era, tree.features.view_parameter) == features
    assert len(source.kernel_cases(tree)) == cases


def test_list_has_pinned_and_cached_sources_the_default_first(published):
    resolve(RELEASE)
    rows = command.list_sources()
    assert rows[0]["spec"] == DEFAULT_SOURCE and rows[0]["root"] is None and rows[0]["pinned"]
    assert {"7551", "8672"} < {row["build_number"] for row in rows}
    cached = next(row for row in rows if row["spec"] == RELEASE)
    assert (cached["build_number"], cached["pinned"], cached["default"]) == ("77", False, False)
    assert cached["root"] in shown(command.render_list(rows))


def test_show_names_build_features_and_kernels(published):
    details = json.loads(json.dumps(command.details_of(resolve(RELEASE))))
    assert details["features"]["era"] == "C"
    assert details["kernels"][0] == "mma 64,64,8,8" and details["patches"] == []
    text = shown(command.render_details(details))
    for word in ("build 77", "ntiles_dst", "576/512", "64 128", "DKQ, DV, V_is_K_view, T", "apply: none"):
        assert word in text


def test_download_bar_takes_progress(published):
    console = Console(file=(out := io.StringIO()), force_terminal=True, width=120)
    with command.download_bar(console) as progress:
        resolve(RELEASE, progress)
    assert SDIST in out.getvalue()


@pytest.fixture
def tree(tree_folder):
    return resolve(str(tree_folder))


def test_features(tree):
    features = tree.features
    assert (features.era, features.ntiles, features.view_parameter) == ("C", "ntiles_dst", "V_is_K_view")
    assert features.fixup_kernels == ("flash_attn_stream_k_fixup_uniform",)
    assert (features.kernel_launch, features.quants_option) == ("ggml_cuda_kernel_launch", "GGML_CUDA_FA_ALL_QUANTS")
    assert (features.sparse_gather, features.wmma, features.test_file_option) == (True, False, True)
    assert features.test_types == "type_K,type_V"
    assert source.ggml_types(tree.root) == {0: "f32", 1: "f16", 12: "q4_K"}


@pytest.mark.parametrize(
    ("ntiles", "z_gqa", "view", "era"),
    [
        ("ntiles_total", False, "mla", "A"),
        ("ntiles_total", True, "V_is_K_view", "B"),
        ("ntiles_dst", True, "V_is_K_view", "C"),
        ("ntiles_total", False, None, "?"),
        (None, False, None, "?"),
    ],
)
def test_era(ntiles, z_gqa, view, era):
    assert era_of(ntiles, z_gqa, view) == era


def test_word_in_a_comment_is_no_feature(tmp_path):
    common = {
        "ggml/src/ggml-cuda/fattn-common.cuh": "// ntiles_dst, ggml_cuda_kernel_launch: later\nint ntiles_total;\n"
    }
    mma = {"ggml/src/ggml-cuda/fattn-mma-f16.cuh": "template<bool mla> __global__ void flash_attn_ext_f16();\n"}
    features = resolve(str(write_tree(tmp_path / "old", TREE | common | mma))).features
    assert (features.era, features.kernel_launch) == ("A", "fattn_kernel<<<...>>>")


def test_kernel_cases_are_the_declared_ones_and_template_parameters_lose_types_and_defaults(tree):
    cases = source.kernel_cases(tree)
    assert [case.name for case in cases] == [
        "mma 64,64,8,8",
        "mma 128,128,8,8",
        "tile 576,512",
        "vec 64,GGML_TYPE_F16,GGML_TYPE_Q4_0",
    ]
    assert cases[0].declaration == "DECL_FATTN_MMA_F16_CASE(64, 64, 8, 8);"
    assert [case.header for case in cases[1:]] == ["fattn-mma-f16.cuh", "fattn-tile.cuh", "fattn-vec.cuh"]
    assert source.kernel_parameters(tree.root) == {
        "flash_attn_stream_k_fixup_uniform": ["D", "ncols1"],
        "flash_attn_ext_f16": ["DKQ", "DV", "V_is_K_view", "T"],
    }


def test_the_kernels_of_a_patched_tree_are_those_of_its_patches(tree):
    folder, mine = tree.root / CUDA, "template<int D> static __global__ void mine(int n) {}"
    changed = {folder / "fattn-mma-f16.cuh": None, folder / "fattn-new.cuh": mine, folder / "other.cuh": mine}
    assert source.kernel_parameters(tree.root, changed=changed) == {
        "flash_attn_stream_k_fixup_uniform": ["D", "ncols1"],
        "mine": ["D"],
    }


def test_the_names_of_instance_files_are_free(tmp_path):
    """A case's header was once read from the name of its file, and a fork that renamed the file did not compile."""
    renamed = {name.replace("fattn-mma-f16-instance", "fattn-mma-own"): text for name, text in TREE.items()}
    assert renamed != TREE
    before, after = (resolve(str(write_tree(tmp_path / name, files))) for name, files in (("a", TREE), ("b", renamed)))
    assert source.kernel_cases(before) == source.kernel_cases(after)


def test_wmma_kernel_does_not_hide_the_mma_kernel(tmp_path):
    wmma = {
        "ggml/src/ggml-cuda/fattn-wmma-f16.cu": "template<int D, int ncols>\n__global__ void flash_attn_ext_f16(int);\n"
    }
    parameters = source.kernel_parameters(resolve(str(write_tree(tmp_path / "old", TREE | wmma))).root)
    assert parameters["flash_attn_ext_f16"][0] == "DKQ"
    assert parameters["fattn-wmma-f16:flash_attn_ext_f16"] == ["D", "ncols"]
