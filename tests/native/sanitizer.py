"""A sanitizer of the simulator's own files: `FATTN_PROBE_SANITIZER=thread scripts/test tests/native`.

The kernels are compiled as always: they have faults on purpose. The kernels of the checker call ThreadSanitizer's
functions, for which the simulator has its own; these get other names here, so that the sanitizer keeps its own.
"""

import os
import re

from fattn_probe.llama.build.stamp import NATIVE

SANITIZER = os.environ.get("FATTN_PROBE_SANITIZER", "")
"""address, thread, undefined, or empty."""
TIMES_SLOWER = 10 if SANITIZER else 1
FLAGS = {
    # Fibers return from other functions than they have called, so there are no call stacks to keep.
    "thread": ("-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0"),
    "address": ("-fsanitize=address", "--param=asan-use-after-return=0", "-fsemantic-interposition"),
    "undefined": ("-fsanitize=undefined", "-fno-sanitize-recover=all"),
}
OPTIONS = {
    "TSAN_OPTIONS": "halt_on_error=1 exitcode=66",
    "ASAN_OPTIONS": "detect_leaks=0 exitcode=66",
    "UBSAN_OPTIONS": "halt_on_error=1 print_stacktrace=1 exitcode=66",
}


def flags() -> tuple[str, ...]:
    """For compiling and linking the simulator."""
    return (*FLAGS[SANITIZER], "-fno-omit-frame-pointer") if SANITIZER else ()


def hooks() -> list[str]:
    """The functions of the checker that g++ has kernels call."""
    sizes, bits = (1, 2, 4, 8, 16), (8, 16, 32, 64)
    kinds = ("read", "write", "unaligned_read", "unaligned_write")
    names = [f"__tsan_{kind}{size}" for kind in kinds for size in sizes]
    operations = ("load", "store", "exchange", *(f"compare_exchange_{kind}" for kind in ("strong", "weak", "val")))
    operations += tuple(f"fetch_{name}" for name in ("add", "sub", "or", "and", "xor"))
    names += [f"__tsan_atomic{size}_{operation}" for size in bits for operation in operations]
    text = "".join((NATIVE / "sim" / name).read_text() for name in ("check_hooks.cpp", "check_arithmetic.cpp"))
    return names + re.findall(r"^void (__(?:tsan|ubsan)_\w+)\(", text, re.MULTILINE)


def other(name: str) -> str:
    """The name of a hook beside the sanitizer's function."""
    return f"simt{name}"


def options() -> dict[str, str]:
    """The environment of a program with the sanitizer; other programs keep the defaults of their own ones."""
    return OPTIONS if SANITIZER else {}


def own_names() -> tuple[str, ...]:
    """Flags that give the hooks other names where the simulator defines them."""
    return tuple(f"-D{name}={other(name)}" for name in hooks()) if SANITIZER else ()


def renaming(kernels: str, renamed: str) -> tuple[str, ...]:
    """The command that gives them other names in an object of kernels."""
    return ("objcopy", *(f"--redefine-sym={name}={other(name)}" for name in hooks()), kernels, renamed)
