"""The pinned release, compiled for real."""

import os
import re
import subprocess

import pytest

from fattn_probe.base.digest import files_of, read_seal
from fattn_probe.base.errors import BuildError
from fattn_probe.llama.build import RUNNER, BuildRequest, ensure, export
from fattn_probe.llama.build.ccache import Objects, ccache_folder
from fattn_probe.llama.build.ensure import is_unsealed
from fattn_probe.llama.build.make import add_missing
from fattn_probe.llama.build.symbols import demangle
from fattn_probe.llama.build.toolchain import CUDART, cuda_roots, find_library
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve

pytestmark = [pytest.mark.build, pytest.mark.network]


def says(program):
    return subprocess.run([program], capture_output=True, text=True, check=False).stderr


BODY = re.compile(r"\b_ZN9simt_body\w+")


def stubs(build):
    return (build.folder / "obj/stubs.c").read_text()


def exported(build, library):
    """The symbols that a library of a build defines."""
    argv = ["nm", "-D", "--defined-only", build.folder / f"lib/lib{library}.so"]
    output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return [line.split()[-1] for line in output.splitlines()]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The pinned release and the objects from the user's cache, and builds in an empty one."""
    found = resolve(DEFAULT_SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CCACHE_DIR", str(ccache_folder()))
        patch.setenv("FATTN_PROBE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield found


@pytest.fixture(scope="module")
def build(tree):
    return ensure(BuildRequest(tree))


def test_a_truncated_library_is_linked_again(build, caplog):
    """The loader's SIGBUS was called a lost run, in every later run."""
    library = build.folder / "lib/libggml-cuda.so"
    size = library.stat().st_size
    os.truncate(library, 30000)
    again = ensure(build.request)
    assert library.stat().st_size == size
    assert again.objects == Objects(), "only the link"
    assert caplog.messages == [f"{build.folder}: the build is damaged (lib/libggml-cuda.so): recreating it"]
    assert says(build.runner).startswith("fattn-runner: usage:")


def test_nothing_is_done_twice(build):
    ensure(build.request)  # whatever was edited since the fixture
    log = build.folder / "build.log"  # ninja's; every run of it writes a new one
    log.unlink()
    assert ensure(build.request).folder == build.folder
    assert not log.exists()
    sealed = read_seal(build.folder)
    assert sealed and set(sealed.files) == {name for name in files_of(build.folder) if not is_unsealed(name)}


def test_a_missing_kernel_is_compiled_in(build):
    """First what launches it, then its body alone."""
    names = [name for name in exported(build, "ggml-cuda") if "mma_f16_case" in name]
    symbol = next(name for name in names if "<64, 64, 8, 8>" in demangle(name))  # the kernel's stub
    launching = add_missing(build, symbol)
    assert launching.manifest.contents.sources[-1].endswith("launches-64-64.cu")
    assert symbol not in stubs(build)
    with pytest.raises(BuildError, match="ggml_cuda_flash_attn_ext_mma_f16_case"):
        add_missing(launching, symbol)
    own = "flash_attn_ext_f16<64, 64, 8, 8, false, false, false>"
    bodies = set(BODY.findall(stubs(build)))
    (body,) = [name for name in bodies if demangle(name).startswith(f"void simt_body::{own}(")]
    assert add_missing(launching, body).manifest.contents.kernels == ("mma 64,64,8,8,false,false,false",)
    compiled = {
        demangle(name).partition("(")[0].partition("::")[2] for name in bodies - set(BODY.findall(stubs(build)))
    }
    assert compiled == {
        own,
        "flash_attn_combine_results<64>",
        "flash_attn_mask_to_KV_max<8>",
        "flash_attn_stream_k_fixup_general<64, 8, 8>",
        "flash_attn_stream_k_fixup_uniform<64, 8, 8>",
    }


def test_a_missing_function_of_ggml_base_is_compiled_in_and_what_nothing_defines_is_named(build):
    assert "gguf_init_empty" not in exported(build, "ggml-base"), "nothing built calls it, so it has no stub either"
    assert "gguf.cpp" in add_missing(build, "gguf_init_empty").manifest.contents.sources
    assert "gguf_init_empty" in exported(build, "ggml-base")
    with pytest.raises(BuildError, match=r"needs ggml_cuda_nothing\(\)"):
        add_missing(build, "_Z17ggml_cuda_nothingv")


def test_an_exported_build_runs(build, tmp_path):
    assert says(export(build, tmp_path / "copy").runner).startswith("fattn-runner: usage:")


@pytest.mark.night
def test_the_cuda_engine_links_without_a_gpu(tree):
    if not any((root / "bin/nvcc").is_file() and find_library(root, CUDART) for root in cuda_roots()):
        pytest.skip("no nvcc here")
    made = ensure(BuildRequest(tree, "cuda"), programs=(RUNNER,))
    assert says(made.runner).startswith("fattn-runner: usage:")
    argv = ["readelf", "-d", str(made.folder / "lib/libggml-cuda.so")]
    needed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert "libcudart.so" in needed
    assert "libcuda.so" not in needed
    assert "libcublas" not in needed
