import shutil
import subprocess

import pytest

from fattn_probe.llama.build.stubs import NO_META, missing_symbols, parse_nm, render_stubs

CASE = "_Z36ggml_cuda_flash_attn_ext_mma_f16_caseILi64ELi64ELi8ELi8EEvR25ggml_backend_cuda_contextP11ggml_tensor"
OBJECTS = f"""
fattn.cu.o:
0000000000000000 T _Z23ggml_cuda_flash_attn_extR25ggml_backend_cuda_contextP11ggml_tensor
                 U _Z14ggml_cuda_infov
                 U {CASE}
                 U memcpy
                 U ggml_abort
                 w __cxa_pure_virtual
0000000000000010 u _ZZ4warnE6warned
0000000000000000 V _ZTV3foo
                 U __dso_handle

ggml-cuda.cu.o:
0000000000000080 T _Z14ggml_cuda_infov
                 U _ZTV3foo
                 U _ZZ4warnE6warned
"""
LIBC = "00000000000a1b30 i memcpy@@GLIBC_2.14\n00000000000a1b30 T memcpy@GLIBC_2.2.5\n"
BASE = "\nggml.c.o:\n0000000000000120 T ggml_abort\n"


def test_nm_symbols_are_read_without_versions():
    assert parse_nm(LIBC) == ({"memcpy"}, set())


def test_only_undefined_symbols_are_missing():
    assert missing_symbols(OBJECTS, [LIBC, BASE]) == [CASE]


def test_without_a_library_its_functions_are_missing():
    assert missing_symbols(OBJECTS, [LIBC]) == [CASE, "ggml_abort"]


@pytest.mark.build
def test_stub_says_its_symbol_and_ends_with_87(tmp_path):
    (tmp_path / "stubs.c").write_text(render_stubs(["_Z3foov", CASE]))
    (tmp_path / "main.cpp").write_text("void foo(); int main() { foo(); }")
    compiler = shutil.which("gcc")
    subprocess.run([compiler, "-c", "stubs.c"], cwd=tmp_path, check=True)
    subprocess.run([compiler, "main.cpp", "stubs.o", "-o", "main"], cwd=tmp_path, check=True)
    ended = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (87, "fattn-probe: missing symbol: _Z3foov\n")


@pytest.mark.build
def test_no_buffer_is_of_a_backend_that_is_not_built(tmp_path):
    (tmp_path / "stubs.c").write_text(render_stubs([NO_META]))
    (tmp_path / "main.c").write_text(f"_Bool {NO_META}(void *); int main(void) {{ return {NO_META}(0) ? 1 : 0; }}")
    subprocess.run([shutil.which("gcc"), "main.c", "stubs.c", "-o", "main"], cwd=tmp_path, check=True)
    subprocess.run([tmp_path / "main"], check=True)


@pytest.mark.build
def test_a_kernel_is_named_and_skipped_where_a_program_only_lists_them(tmp_path):
    (tmp_path / "stubs.c").write_text(render_stubs(["_Z3foov", CASE]))
    (tmp_path / "main.c").write_text(f'void kernel(void) __asm__("{CASE}"); int main(void) {{ kernel(); return 0; }}')
    compiler = shutil.which("gcc")
    subprocess.run([compiler, "main.c", "stubs.c", "-o", "main"], cwd=tmp_path, check=True)
    codes = []
    for environment in ({}, {"FATTN_PROBE_SKIP_KERNELS": "1"}):
        ended = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=False, env=environment)
        codes.append(ended.returncode)
        assert ended.stderr == f"fattn-probe: missing symbol: {CASE}\n"
    assert codes == [87, 0]


@pytest.mark.build
def test_an_object_of_a_class_that_is_not_built_can_be_made_but_not_used(tmp_path):
    """Neither by a call, nor by a dynamic_cast, which reads the class's type_info."""
    (tmp_path / "stubs.c").write_text(render_stubs(["_ZTV7Derived"]))
    (tmp_path / "main.cpp").write_text(
        "#include <cstdio>\n"
        "struct Base { virtual ~Base() = default; virtual int f() = 0; };\n"
        "struct Middle : Base {};\n"
        "struct Derived : Middle { int f() override; };\n"
        "int main(int argc, char **) {\n"
        "    Base * object = new Derived;\n"
        '    std::puts("made"), std::fflush(stdout);\n'
        "    return argc > 1 ? dynamic_cast<Middle *>(object) != nullptr : object->f();\n}\n"
    )
    compiler = shutil.which("gcc")
    subprocess.run([compiler, "-c", "-fPIC", "stubs.c"], cwd=tmp_path, check=True)
    subprocess.run([compiler, "main.cpp", "stubs.o", "-lstdc++", "-o", "main"], cwd=tmp_path, check=True)
    for words in ([], ["cast"]):
        ended = subprocess.run([tmp_path / "main", *words], capture_output=True, text=True, check=False)
        found = (ended.returncode, ended.stdout, ended.stderr)
        assert found == (87, "made\n", "fattn-probe: missing symbol: _ZTV7Derived\n")
