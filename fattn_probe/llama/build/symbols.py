"""Find the kernel case or the source file that defines a missing symbol."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from fattn_probe.base.process import run
from fattn_probe.llama.cxx.functions import BODIES
from fattn_probe.llama.launch.families import BY_KERNEL, BY_NAME, instance_of
from fattn_probe.llama.source import KernelCase

CASE = re.compile(r"\bggml_cuda_flash_attn_ext_(?P<family>\w+)_case<(?P<args>[^>]*)>\(")
BODY = re.compile(rf"\b{BODIES}::(?P<kernel>\w+)(?:<(?P<args>[^>]*)>)?\(")
TYPE = re.compile(r"\(ggml_type\)(\d+)")
# `DECL_MMQ_CASE(GGML_TYPE_Q4_0);` in a file that includes "../mmq.cuh"
INSTANCE = re.compile(
    r'#include "\.\./(?P<header>[^"]+)".*?^DECL_\w+_CASE\((?P<argument>\w+)\);', re.MULTILINE | re.DOTALL
)
ARGUMENTS = re.compile(r"\w<(?P<args>.*)>\(")


def demangle(symbol: str) -> str:
    """The demangled name of a C++ symbol; other symbols are returned unchanged."""
    return run(["c++filt", symbol]).stdout.strip()


def case_of(name: str, cases: Mapping[str, KernelCase], types: Mapping[int, str]) -> KernelCase | None:
    """The kernel case that a demangled function instantiates, or the single kernel whose body it is; or None.

    `cases` are a tree's kernel cases by name. `types` maps the values of ggml_type to names, as in `(ggml_type)8`.
    """
    if body := body_of(name, types):
        family = BY_KERNEL.get(body[0])
        return instance_of(family, body[1], cases) if family else None
    match = CASE.search(name)
    if match is None or match["family"] not in BY_NAME:
        return None
    return cases.get(f"{BY_NAME[match['family']].case} {','.join(arguments(match['args'], types))}")


def body_of(name: str, types: Mapping[int, str]) -> tuple[str, tuple[str, ...]] | None:
    """The kernel's name and template arguments if a demangled function is a kernel's body; otherwise None."""
    body = BODY.search(name)
    return (body["kernel"], arguments(body["args"], types) if body["args"] else ()) if body else None


def arguments(text: str, types: Mapping[int, str]) -> tuple[str, ...]:
    """The template arguments in a string, with ggml's types as in the source: `GGML_TYPE_Q8_0`."""
    words = TYPE.sub(lambda number: f"GGML_TYPE_{types.get(int(number.group(1)), '?').upper()}", text)
    return tuple(word.strip() for word in words.split(","))


def product_of(name: str, files: Iterable[Path], types: Mapping[int, str]) -> str | None:
    """The file in template-instances/ that instantiates a matrix product function (a demangled name); or None.

    The file's header contains the function, and the file's argument is one of the function's template arguments.
    """
    match = ARGUMENTS.search(name)
    wanted = arguments(match["args"], types) if match else ()
    for path in files:
        found = INSTANCE.search(path.read_text(errors="replace"))
        if found and found["argument"] in wanted:
            header = (path.parent.parent / found["header"]).read_text(errors="replace")
            if re.search(rf"\b{re.escape(function_name(name))}\b", header):
                return path.name
    return None


def function_name(name: str) -> str:
    """The bare name of a demangled function, without return type, namespace, template arguments and parameters."""
    plain = name
    while "<" in plain:
        shorter = re.sub(r"<[^<>]*>", "", plain)
        if shorter == plain:
            break
        plain = shorter
    return plain.partition("(")[0].split()[-1].rpartition("::")[2]


def defines(text: str, function: str) -> bool:
    """Whether C++ text defines (not only declares or calls) a non-static function."""
    pattern = rf"^(?!static\b)[A-Za-z_][\w:<>*& ]*\b{re.escape(function)}\s*\([^;{{}}]*\)\s*\{{"
    return re.search(pattern, text, re.MULTILINE) is not None


def class_name(name: str) -> str:
    """The class of a demangled member function or vtable, without template arguments; empty for a free function."""
    plain = re.sub(r"<[^<>]*>", "", name.partition("(")[0])
    return plain.removeprefix("vtable for ") if plain.startswith("vtable for ") else plain.rpartition("::")[0]


def defining_class(name: str, files: Iterable[Path]) -> str | None:
    """The name of the file that defines members of a demangled function's or vtable's class, or None."""
    owner = class_name(name).split()[-1:]
    if not owner:
        return None
    member = r"(?:<[^<>()]*>)?::".join([*map(re.escape, owner[0].split("::")), r"~?\w+"])
    pattern = re.compile(rf"^(?! )[\w:<>*&, ]*?\b{member}\s*\(", re.MULTILINE)
    return next((path.name for path in files if pattern.search(path.read_text(errors="replace"))), None)


def defining_source(name: str, files: Iterable[Path]) -> str | None:
    """The name of the file that defines a demangled function, or None."""
    function = function_name(name)
    return next((path.name for path in files if defines(path.read_text(errors="replace"), function)), None)
