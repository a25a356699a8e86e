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


def test_only_undefined_symbols_are_missing_and_versions_are_left_out():
    assert parse_nm(LIBC) == ({"memcpy"}, set())
    assert missing_symbols(OBJECTS, [LIBC, BASE]) == [CASE]
    assert missing_symbols(OBJECTS, [LIBC]) == [CASE, "ggml_abort"]


FOO = "void foo(); int main() { foo(); }"
META = f'extern "C" bool {NO_META}(void *); int main() {{ return {NO_META}(nullptr) ? 1 : 0; }}'
KERNEL = f'void kernel() __asm__("{CASE}"); int main() {{ kernel(); return 0; }}'
DERIVED = """
#include <cstdio>
struct Base { virtual ~Base() = default; virtual int f() = 0; };
struct Middle : Base {};
struct Derived : Middle { int f() override; };
int main(int argc, char **) {
    Base * object = new Derived;
    std::puts("made"), std::fflush(stdout);
    return argc > 1 ? dynamic_cast<Middle *>(object) != nullptr : object->f();
}
"""
"""An object of a class that is not built can be made, but not used: by a call, or a cast, which reads its type_info."""
CAST = """
struct Base { virtual ~Base() = default; };
struct Other : Base { virtual void f(); };
int main() { Base * object = new Base; return dynamic_cast<Other *>(object) != nullptr; }
"""


@pytest.mark.build
@pytest.mark.parametrize(
    ("symbol", "program", "words", "environment", "code", "printed"),
    [
        ("_Z3foov", FOO, [], {}, 87, ""),
        (NO_META, META, [], {}, 0, ""),  # no buffer is of a backend that is not built
        ("_ZTI5Other", CAST, [], {}, 0, ""),  # no object is of a class that is not built
        (CASE, KERNEL, [], {}, 87, ""),
        (CASE, KERNEL, [], {"FATTN_PROBE_SKIP_KERNELS": "1"}, 0, ""),  # where a program only lists them
        ("_ZTV7Derived", DERIVED, [], {}, 87, "made\n"),
        ("_ZTV7Derived", DERIVED, ["cast"], {}, 87, "made\n"),
    ],
)
def test_what_a_stub_says_and_does(tmp_path, symbol, program, words, environment, code, printed):
    (tmp_path / "stubs.c").write_text(render_stubs(["_Z3foov", symbol] if symbol == CASE else [symbol]))
    (tmp_path / "main.cpp").write_text(program)
    for argv in (["gcc", "-c", "-fPIC", "stubs.c"], ["gcc", "main.cpp", "stubs.o", "-lstdc++", "-o", "main"]):
        subprocess.run(argv, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "main", *words], capture_output=True, text=True, check=False, env=environment)
    said = "" if symbol in (NO_META, "_ZTI5Other") else f"fattn-probe: missing symbol: {symbol}\n"
    assert (done.returncode, done.stdout, done.stderr) == (code, printed, said)
