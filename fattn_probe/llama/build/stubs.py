"""Write a C source with a stub for each undefined function of some objects.

Ninja runs this file as a script, so it imports nothing from fattn-probe. When a stub is called, it prints its symbol
and ends the program with status 87, which tells the build what to add. With FATTN_PROBE_SKIP_KERNELS=1, the stub of a
kernel case, which returns nothing, only prints its symbol, so a program lists the kernels that it needs. In the stub of
a vtable, every function is such a stub: objects of that class can be created, but not used. The stub of a type_info has
a unique name, so a dynamic_cast to that class gives null. Lazy binding cannot replace the stubs, because fattn.cu's
table of vec kernels takes addresses, which are resolved at load time.
"""

import argparse
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

SYSTEM_LIBRARIES = ("libstdc++.so.6", "libm.so.6", "libc.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2")
LOADERS = ("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")
SYSTEM_ARCHIVES = ("libc_nonshared.a", "libgcc.a", "libgcov.a")  # they define atexit, arithmetic and counters
SANITIZER_LIBRARIES = {"address": "libasan.so", "undefined": "libubsan.so"}
LINKER_SYMBOLS = frozenset({"__dso_handle", "_GLOBAL_OFFSET_TABLE_", "__ehdr_start", "__start_", "_DYNAMIC"})
KERNEL_CASE = re.compile(r"_Z\d+ggml_cuda_flash_attn_ext_\w+?_caseI")
NO_META = "ggml_backend_buffer_is_meta"
"""The stub of this function returns false: without ggml-backend-meta.cpp, a program has no meta buffers."""
VTABLE, TYPE = "_ZTV", "_ZTI"
LINE = "fattn-probe: missing symbol: %s\\n"
"""Written in one piece, because several threads may call missing kernel bodies at once."""
VTABLE_STUB = """\
static void STUB(void) { missing("LINE"); }
extern void * const STUB_table[66] __asm__("SYMBOL");
static void * const STUB_type[] = { (void *) (STUB_table + 2), "SYMBOL" };
void * const STUB_table[66] = { 0, (void *) STUB_type, [2 ... 65] = STUB };
"""
"""The C++ ABI's layout of a vtable: the offset to the object, the class's type_info, and 64 slots for functions.

A dynamic_cast calls a virtual function of the type_info, and this function is the same stub.
"""
TYPE_STUB = """\
extern void * const STUB[2] __asm__("SYMBOL");
void * const STUB[2] = { 0, "SYMBOL" };
"""
"""A class's type_info; a dynamic_cast compares only its name."""
PROLOGUE = """\
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void say(const char * text) {
    if (write(2, text, strlen(text)) < 0) {
        _exit(87);
    }
}

__attribute__((noreturn, unused)) static void missing(const char * line) {
    say(line);
    _exit(87);
}

__attribute__((unused)) static void missing_kernel(const char * line) {
    say(line);
    if (getenv("FATTN_PROBE_SKIP_KERNELS") == NULL) {
        _exit(87);
    }
}
"""


def parse_nm(text: str) -> tuple[set[str], set[str]]:
    """The (defined, undefined) global symbols in nm's output, without @versions and without weak references."""
    defined, undefined = set(), set()
    for line in text.splitlines():
        words = line.split()
        if len(words) < 2 or len(words[-2]) != 1:
            continue
        kind, symbol = words[-2], words[-1].partition("@")[0]
        if kind == "U":
            undefined.add(symbol)
        elif kind not in "wv":
            defined.add(symbol)
    return defined, undefined


def missing_symbols(objects: str, libraries: Iterable[str]) -> list[str]:
    """The symbols that neither the objects nor the libraries define; each argument is nm's output."""
    defined, undefined = parse_nm(objects)
    return sorted(undefined - defined.union(*(parse_nm(text)[0] for text in libraries)) - LINKER_SYMBOLS)


def render_stubs(symbols: Iterable[str]) -> str:
    """The C source; symbols are given as assembler names, because a mangled name may not be a C identifier."""
    return PROLOGUE + "\n" + "".join(stub(index, symbol) for index, symbol in enumerate(symbols))


def stub(index: int, symbol: str) -> str:
    """The C code that defines one symbol."""
    name = f"fattn_stub_{index}"
    if symbol == NO_META:
        return f'_Bool {name}(void) __asm__("{symbol}");\n_Bool {name}(void) {{ return 0; }}\n'
    if symbol.startswith(VTABLE):
        return VTABLE_STUB.replace("STUB", name).replace("LINE", LINE % symbol).replace("SYMBOL", symbol)
    if symbol.startswith(TYPE):
        return TYPE_STUB.replace("STUB", name).replace("SYMBOL", symbol)
    function = "missing_kernel" if KERNEL_CASE.match(symbol) else "missing"
    return f'void {name}(void) __asm__("{symbol}");\nvoid {name}(void) {{ {function}("{LINE % symbol}"); }}\n'


def nm(*words: str) -> str:
    """The unsorted output of nm."""
    return subprocess.run(
        ["nm", "--no-sort", *words], check=True, capture_output=True, text=True, errors="replace"
    ).stdout


def library_paths(compiler: str, names: Iterable[str]) -> list[str]:
    """The paths of the libraries that the compiler finds."""
    found = []
    for name in names:
        argv = [compiler, f"-print-file-name={name}"]
        path = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
        found += [path] if Path(path).is_absolute() else []
    return found


def main() -> None:
    """Read the objects and libraries, and write the stubs if they have changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--sanitize", default="")
    parser.add_argument("--library", action="append", default=[])
    parser.add_argument("--provided", action="append", default=[], help="an object that is part of another library")
    parser.add_argument("objects", nargs="+")
    options = parser.parse_args()
    sanitizers = [SANITIZER_LIBRARIES[name] for name in options.sanitize.split(",") if name]
    system = library_paths(options.compiler, (*SYSTEM_LIBRARIES, *LOADERS, *sanitizers))
    archives = library_paths(options.compiler, SYSTEM_ARCHIVES)
    libraries = [
        nm("-D", "--defined-only", *options.library, *system),
        nm("-g", "--defined-only", *options.provided, *archives),
    ]
    text = render_stubs(missing_symbols(nm("-g", *options.objects), libraries))
    if not options.output.is_file() or options.output.read_text() != text:
        options.output.write_text(text)


if __name__ == "__main__":
    main()
