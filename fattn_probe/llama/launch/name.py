"""Parses the name of a launched kernel, in the form of CUDA, g++ or clang.

- CUDA, demangled: `void flash_attn_ext_vec<128, 1, (ggml_type)1, (ggml_type)1, false>(char const*, ...)`
- g++, `__PRETTY_FUNCTION__`: `void flash_attn_ext_f16(const char*) [with int DKQ = 64; ...; uint32_t = unsigned int]`
- clang, `__PRETTY_FUNCTION__`: `void flash_attn_ext_f16(const char *, ...) [DKQ = 64, DV = 64]`
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gguf.constants import GGMLQuantizationType

OPENING, CLOSING = "<([{", ">)]}"
TYPES = {
    "__half": "half",
    "__half2": "half2",
    "__nv_bfloat16": "nv_bfloat16",
    "__nv_bfloat162": "nv_bfloat162",
    "long int": "long",
    "long unsigned int": "unsigned long",
    "short int": "short",
    "short unsigned int": "unsigned short",
}
CAST = re.compile(r"\((?P<type>[\w: ]+)\)(?P<value>-?\d+)")
INTERNAL = re.compile(r"\b_INTERNAL_[0-9a-f]{8}_\d+_\w+?_[0-9a-f]{8}(?:_\d+)?::")
"""nvcc's namespace for a file's static functions and variables; it contains digests that change with every build."""
NUMBER = re.compile(r"(-?\d+)[uUlL]*")
FUNCTION_POINTER = re.compile(r"&?\(?(?P<name>[\w:]+)\(.*", re.DOTALL)
PARAMETER = re.compile(r"(?:.*\W)?(?P<name>\w+)")
POINTER_PARAMETER = re.compile(r".*\(\* ?(?P<name>\w+)\)\(.*", re.DOTALL)
ALIAS = re.compile(r"u?int\d*_t|u?intptr_t|s?size_t|ptrdiff_t|.*::.*|half2?|nv_bfloat162?")


@dataclass(frozen=True)
class KernelName:
    """A kernel's base name and its template arguments (name, value) in order; unknown parameter names are empty."""

    base: str
    args: tuple[tuple[str, str], ...]


def parse_kernel_name(
    text: str, *, types: Mapping[int, str] | None = None, names: Mapping[str, Sequence[str]] | None = None
) -> KernelName:
    """Parse a kernel's name in any of the three forms.

    `types` maps the values of ggml_type to names: `{1: "f16"}` or `{1: "GGML_TYPE_F16"}`; the default is gguf's enum.
    `names` has each kernel's template parameters, which CUDA's form needs because it has only values.
    """
    text, with_args = text.strip(), ""
    if text.endswith("]"):
        start = text.rfind(" [with ")
        start = start if start >= 0 else text.rfind(" [")
        text, with_args = text[:start], text[start + 2 : -1]
    # Cut the text before the function's parameters: `void f<(ggml_type)1>(char const*)` to `void f<(ggml_type)1>`.
    text, depth = text.replace("(anonymous namespace)::", "").replace("{anonymous}::", ""), 0
    for i, char in enumerate(text):
        depth += (char == "<") - (char == ">")
        if char == "(" and depth == 0:
            text = text[:i]
            break
    head, _, rest = text.partition("<")
    base = head.split()[-1].rpartition("::")[2]
    known = (names or {}).get(base, ())
    if not with_args:
        values = split_top(rest.rstrip().removesuffix(">"), ",")
        named = [(known[i] if i < len(known) else "", value) for i, value in enumerate(values)]
    else:  # `with int DKQ = 64; T = float` (g++) or `DKQ = 64, T = float` (clang)
        named = []
        for part in split_top(with_args.removeprefix("with "), ";" if with_args.startswith("with ") else ","):
            declared, value = (word.strip() for word in part.split(" = ", 1))
            # g++ also lists type aliases, which are not parameters: `uint32_t = unsigned int`, `uint3 = uint3`.
            is_type = bool(known) or declared == value or ALIAS.fullmatch(declared)
            if " " in declared or declared in known or not is_type:
                match = POINTER_PARAMETER.fullmatch(declared) or PARAMETER.fullmatch(declared)
                named.append((match["name"] if match else declared, value))
    return KernelName(base, tuple((name, normalise(value, types)) for name, value in named))


def normalise(value: str, types: Mapping[int, str] | None = None) -> str:
    """A template argument in a common form: `(ggml_type)1` is `GGML_TYPE_F16`, `(bool)1` `true`, `__half` `half`."""
    value = INTERNAL.sub("", " ".join(value.split()))
    if cast := CAST.fullmatch(value):
        type, number = cast["type"], int(cast["value"])
        if type == "ggml_type":
            known = {type.value: type.name for type in GGMLQuantizationType} if types is None else types
            enumerator = known.get(number, "").upper().removeprefix("GGML_TYPE_")
            return f"GGML_TYPE_{enumerator}" if number in known else f"(ggml_type){number}"
        return ("true" if number else "false") if type == "bool" else str(number)
    if number_text := NUMBER.fullmatch(value):
        return number_text[1]
    if pointer := FUNCTION_POINTER.fullmatch(value):
        return pointer["name"].rpartition("::")[2]
    return TYPES.get(value, value.removeprefix("&"))


def split_top(text: str, separator: str) -> Iterator[str]:
    """Split a string at the separators outside all brackets."""
    depth, start = 0, 0
    for i, char in enumerate(text):
        depth += (char in OPENING) - (char in CLOSING)
        if char == separator and depth == 0:
            yield text[start:i].strip()
            start = i + 1
    if text[start:].strip():
        yield text[start:].strip()
