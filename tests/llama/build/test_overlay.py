import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fattn_probe.base.cache import Growth
from fattn_probe.base.errors import BuildError
from fattn_probe.llama.build import make, overlay
from fattn_probe.llama.build.key import BuildRequest, Contents
from fattn_probe.llama.build.ninja import silent
from fattn_probe.llama.build.overlay import ERRORS, prepare
from fattn_probe.llama.build.rewrite import rewrite
from fattn_probe.llama.build.sources import CUDA, launches_file, read_sources
from fattn_probe.llama.build.toolchain import find_toolchain
from fattn_probe.llama.source.patches import Patch
from fattn_probe.llama.source.tree import digest_tree
from tests.llama.build.tree import FILES, LIBLLAMA, make_tree
from tests.llama.source.fake_index import write_tree

DIFF = """\
--- a/ggml/src/ggml-cuda/convert.cu
+++ b/ggml/src/ggml-cuda/convert.cu
@@ -1,1 +1,1 @@
-int one;
+int two;
"""


def prepared(root, folder, engine="sim", patches=(), texts=None, **contents):
    tree = make_tree(root)
    for name, text in (texts or {"convert.cu": "int one;\n"}).items():
        (root / CUDA / name).write_text(text)
    request = BuildRequest(replace(tree, digest=digest_tree(root)), engine, patches=patches)
    sources = read_sources(request.tree, (), "x86_64")
    prepare(Growth(folder), request, sources, Contents(("mma 64,64,8,8",), **contents))
    return folder / "overlay" / CUDA


def test_the_overlay_is_rewritten_the_tree_is_not_and_preparing_again_repairs_what_differs(tmp_path):
    cuda = prepared(tmp_path / "tree", tmp_path / "build")
    assert "simt::describe" in (cuda / "fattn.cu").read_text()
    assert "simt::describe" not in (tmp_path / "tree" / CUDA / "fattn.cu").read_text()
    assert (tmp_path / "build/native/runner/runner.cpp").is_file()
    assert (tmp_path / "build/native/cublas/cublas_v2.h").is_file()
    assert not [path for path in (tmp_path / "build").iterdir() if path.name.startswith(".overlay")]
    kept, case = cuda / "fattn.cu", cuda / "template-instances/fattn-probe-mma-64-64-8-8.cu"
    times = kept.stat().st_mtime_ns, case.stat().st_mtime_ns
    (cuda / "convert.cu").write_text("broken")
    (cuda / "stray.cu").write_text("")
    prepared(tmp_path / "tree", tmp_path / "build")
    assert (kept.stat().st_mtime_ns, case.stat().st_mtime_ns) == times
    assert (cuda / "convert.cu").read_text() == "int one;\n"
    assert not (cuda / "stray.cu").exists()


def test_a_part_of_a_file_has_the_names_and_lines_of_the_whole(tmp_path):
    other = "to_fp32_cuda_t ggml_get_to_fp32_cuda(ggml_type type) {\n    return nullptr;\n}\n"
    header = '#include "fattn-tile.cuh"\n'  # which need not tolerate a second one
    texts = {"convert.cu": f"int one;\n{other}int two;\n", "fattn-tile.cu": f"{header}void tiles() {{}}\n"}
    texts["fattn.cu"] = f"{header}constexpr int pair = GGML_CUDA_FA_F16_F16;\n"
    cuda = prepared(tmp_path / "tree", tmp_path / "build", texts=texts)
    line = f'#line 1 "overlay/{CUDA}/'
    assert (cuda / "convert-to-f16.cu").read_text() == f'{line}convert.cu"\nint one;\n\n\n\nint two;\n'
    joined = (cuda / "launches/fattn.cu").read_text()
    assert joined.endswith(f'\n{line}fattn-tile.cu"\n\nvoid tiles() {{}}\n') and joined.count("#include") == 1


def test_the_cuda_overlay_is_upstreams_text_with_every_case_declared_behind(tmp_path):
    cuda = prepared(tmp_path / "tree", tmp_path / "build", "cuda")
    assert (cuda / "fattn.cu").read_text() == (tmp_path / "tree" / CUDA / "fattn.cu").read_text()
    assert (cuda / "fattn-mma-f16.cuh").read_text() == (
        FILES[f"{CUDA}/fattn-mma-f16.cuh"]
        + "\nextern DECL_FATTN_MMA_F16_CASE(64, 64, 8, 8);\nextern DECL_FATTN_MMA_F16_CASE(80, 80, 8, 8);\n"
    )


def test_libllama_is_copied_for_the_programs_that_have_it(tmp_path):
    def copied(**contents):
        prepared(tmp_path / "tree", tmp_path / "build", **contents)
        return (tmp_path / "build/overlay/src/models/qwen2.cpp").is_file()

    write_tree(tmp_path / "tree", LIBLLAMA)
    assert not copied(programs=("fattn-runner",))
    assert copied(programs=("fattn-runner", "fattn-capture"), libllama="1")
    assert '#define LLAMA_VERSION "11549"' in (tmp_path / "build/overlay/src/llama-version.h").read_text()
    (tmp_path / "tree/src/llama.cpp").write_text("int changed;\n")
    prepared(tmp_path / "tree", tmp_path / "build", programs=("fattn-capture",), libllama="2")
    assert (tmp_path / "build/overlay/src/llama.cpp").read_text() == "int changed;\n"
    parts = [path.read_text() for path in (tmp_path / "build/overlay/src").glob("fattn-probe-libllama-*.cpp")]
    assert sorted(parts) == ['#include "llama-model.cpp"\n', '#include "llama.cpp"\n']


def test_files_of_libllama_that_do_not_compile_together_are_compiled_apart(tmp_path, monkeypatch):
    tree, plans = make_tree(tmp_path / "tree"), list[str]()
    write_tree(tmp_path / "tree", LIBLLAMA)
    contents = Contents((), (), ("fattn-capture",), libllama="1")

    def ninja(growth, targets=(), **_):
        plans.append((growth.folder / "build.ninja").read_text())
        if "obj/src/fattn-probe-libllama-1.cpp.o" in plans[-1]:
            raise BuildError("building obj/src/fattn-probe-libllama-1.cpp.o failed: redefinition of int n")
        for path in filter(lambda path: "src/" in path, targets):
            (growth.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (growth.folder / path).touch()

    monkeypatch.setattr(make, "run_ninja", ninja)
    request, toolchain = BuildRequest(replace(tree, digest=digest_tree(tmp_path / "tree"))), find_toolchain("sim")
    for number in (3, 5):
        make.extend(Growth(tmp_path / "b"), request, toolchain, contents, progress=silent, jobs=1, again=False)
        assert len(plans) == number, "only the first build tries to compile them together"
    assert all("build obj/src/llama-model.cpp.o:" in plan for plan in plans[1:])


@pytest.mark.parametrize("contents", [{"sources": ("scale.cu",)}, {"full": True}])
def test_only_what_is_compiled_is_rewritten(tmp_path, contents):
    cuda = prepared(tmp_path / "tree", tmp_path / "build")
    assert "simt::describe" not in (cuda / "scale.cu").read_text()
    prepared(tmp_path / "tree", tmp_path / "build", **contents)
    assert "simt::describe" in (cuda / "scale.cu").read_text()


def test_patches_are_put_on_the_overlay_only(tmp_path):
    patch = Patch("two", tmp_path / "two.patch", "", (), DIFF)
    cuda = prepared(tmp_path / "tree", tmp_path / "build", "cuda", (patch,))
    assert (cuda / "convert.cu").read_text() == "int two;\n"
    assert (tmp_path / "tree" / CUDA / "convert.cu").read_text() == "int one;\n"


def test_an_overlay_as_it_was_made_is_not_made_again(tmp_path, monkeypatch):
    """A generated file in addition to the others needs no other overlay."""
    prepared(tmp_path / "tree", tmp_path / "build")
    monkeypatch.setattr(overlay, "make_overlay", None)
    cuda = prepared(tmp_path / "tree", tmp_path / "build", sources=(launches_file("64", "64"),))
    assert (cuda / launches_file("64", "64")).is_file()
    (cuda / "convert.cu").unlink()
    with pytest.raises(TypeError):
        prepared(tmp_path / "tree", tmp_path / "build")


def test_only_what_differs_from_an_earlier_tree_is_rewritten(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(overlay, "rewritten", overlay.rewritten.__wrapped__)  # each build as in another process
    first, again = prepared(tmp_path / "one", tmp_path / "build"), list[str]()

    def watched(text, name, *words):
        again.append(name)
        return rewrite(text, name, *words)

    monkeypatch.setattr(overlay, "rewrite", watched)
    second = prepared(tmp_path / "two", tmp_path / "patched", patches=(Patch("two", tmp_path, "", (), DIFF),))
    assert (again, (second / "convert.cu").read_text()) == (["convert.cu"], "int two;\n")
    assert (second / "fattn.cu").read_text() == (first / "fattn.cu").read_text()


@pytest.mark.parametrize("data", [b"text", b"// caf\xe9"])
def test_an_equal_text_keeps_its_time_whatever_its_bytes(tmp_path, data):
    path, text, growth = tmp_path / "folder/file", data.decode(errors=ERRORS), Growth(tmp_path)
    growth.write("folder/file", text, ERRORS)
    time = path.stat().st_mtime_ns
    growth.write("folder/file", text, ERRORS)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (data, time)
    growth.write("folder/file", "other", ERRORS)
    assert path.read_text() == "other"


def test_another_process_may_write_the_same_file_meanwhile(tmp_path, monkeypatch):
    replace = Path.replace
    code = f"from fattn_probe.base.cache import Growth, Path; Growth(Path({str(tmp_path)!r})).write('file', 'theirs')"

    def after_another(part, target):
        monkeypatch.setattr(Path, "replace", replace)
        subprocess.run([sys.executable, "-c", code], check=True)
        return replace(part, target)

    monkeypatch.setattr(Path, "replace", after_another)
    Growth(tmp_path).write("file", "ours")
    assert (tmp_path / "file").read_text() == "ours"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_tree_that_changes_before_it_is_built_is_refused(tmp_path):
    """A folder named after the old contents had the new ones, for this run and every later one."""
    tree = make_tree(tmp_path / "tree")
    sources = read_sources(tree, (), "x86_64")
    with (tree.root / CUDA / "fattn.cu").open("a") as file:
        file.write("// an edit\n")
    with pytest.raises(BuildError, match=r"source 'path:small': its files changed during this command; run it again"):
        prepare(Growth(tmp_path / "build"), BuildRequest(tree), sources, Contents(("mma 64,64,8,8",)))
    assert not (tmp_path / "build/overlay").exists()
