"""What fattn.cu chooses for an op on a GPU, by executing its text: nothing is compiled, no code of the package chooses.

An interpreter of the C++ that llama.cpp's dispatch is written in: conditions, switches, loops, templates, macros.
"""

import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, product
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

from fattn_probe.cases.op import Op
from fattn_probe.llama.cxx.functions import Function, functions
from fattn_probe.llama.cxx.statements import Statement, parse
from fattn_probe.llama.cxx.tokens import Draft, draft_of, tokenize
from fattn_probe.llama.source.features import CUDA

FILES = ("common.cuh", "fattn-common.cuh", "fattn-tile.cuh", "fattn-vec.cuh", "fattn-tile.cu", "fattn.cu")
KERNELS = {
    "flash_attn_tile": "tile",
    "ggml_cuda_flash_attn_ext_mma_f16_case": "mma",
    "ggml_cuda_flash_attn_ext_vec_case_impl": "vec",
}
"""Where a choice ends: a function with its template arguments, and the kernel's family."""
TYPES = ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
COMPILED = ("F16", "BF16", "Q4_0", "Q8_0")
"""The types with vec kernels where K and V have the same one (ggml's default of GGML_CUDA_FA_QUANTS)."""
OPERATORS = {"&&": " and ", "||": " or ", "!": " not ", "->": ".", "/": "//", "true": "True", "false": "False"}
OPERATORS |= {"nullptr": "None", "::": "."}
NUMBER = re.compile(r"(?<![\w.])((?:0x[0-9a-fA-F]+|\d+(?:\.\d*)?))[fFuUlL]*\b")
ENDS = {"break", "continue"}
UNUSED = ("GGML_UNUSED", "GGML_UNUSED_VARS", "GGML_LOG_WARN", "ggml_cuda_set_device", "static_assert")


class Abort(Exception):
    """GGML_ABORT or a failed GGML_ASSERT: the program would end."""


class Chosen(Exception):
    """A kernel, as `name` of a family with its template arguments."""


def preprocessed(root: Path) -> str:
    """The dispatch as the compiler reads it for AMD's GPUs, without the branches of others and with macros expanded."""
    text = "".join((root / CUDA / name).read_text(errors="replace") for name in FILES)
    text = re.sub(r"^[ \t]*#[ \t]*(include|pragma)\b.*", "", text, flags=re.MULTILINE)
    values = {f"GGML_CUDA_FA_{K}_{V}": int(K == V and K in COMPILED) for K, V in product(TYPES, TYPES)}
    values |= {"GGML_USE_HIP": 1, "GGML_MAX_DIMS": 4, "INT_MAX": 2**31 - 1}
    words = ["g++", "-E", "-P", "-undef", "-x", "c++", *(f"-D{name}={value}" for name, value in values.items()), "-"]
    return subprocess.run(words, input=text, capture_output=True, text=True, check=True).stdout


def expression(draft: Draft, start: int, stop: int) -> str:
    """The tokens [start, stop) as a Python expression."""
    words, outer = draft.words, list(draft.outer(start, stop))
    asked = next((index for index in outer if words[index] == "?"), None)
    if asked is not None:
        other = max(index for index in outer if words[index] == ":")
        parts = (expression(draft, *span) for span in ((start, asked), (asked + 1, other), (other + 1, stop)))
        return "(({1}) if ({0}) else ({2}))".format(*parts)
    out, index = [], start
    while index < stop:
        word, mate = words[index], draft.mates[index]
        if word in ("(", "[", "{") and mate > index:
            out.append("[" if word == "{" else word)
            out.append(", ".join(expression(draft, *span) for span in listed(draft, index + 1, mate)))
            out.append("]" if word == "{" else words[mate])
            index = mate
        elif word == "<" and (close := closing(draft, index, stop)):
            values = ", ".join(expression(draft, *span) for span in listed(draft, index + 1, close))
            out[-1] = f'template("{words[index - 1]}", ({values},))'
            index = close
        else:
            out.append(OPERATORS.get(word) or NUMBER.sub(r"\1", word))
        index += 1
    return "".join(out).strip()


def listed(draft: Draft, start: int, stop: int) -> Iterable[tuple[int, int]]:
    """The spans between commas."""
    edges = [start - 1, *[index for index in draft.outer(start, stop) if draft.words[index] == ","], stop]
    return [(left + 1, right) for left, right in pairwise(edges) if right > left + 1]


def closing(draft: Draft, index: int, stop: int) -> int | None:
    """The `>` of the template arguments that begin at `index`; None for a comparison."""
    if not draft.is_name(index - 1) or draft.words[index - 1] not in TEMPLATES:
        return None
    depth = 0
    for place in range(index, stop):
        depth += (draft.words[place] == "<") - (draft.words[place] == ">")
        if depth == 0:
            return place
    return None


TEMPLATES: set[str] = set()
"""The names of all function templates that were read."""


class Names(dict[str, Any]):
    """The variables of a function; an unknown name in capitals, such as an enumerator, is a value of its own."""

    def __missing__(self, name: str) -> Any:
        if name == name.upper():
            return name
        raise KeyError(name)


@dataclass
class Returned(Exception):
    """A `return`."""

    value: Any = None


@dataclass
class Choice:
    """The functions of a tree's dispatch for one AMD architecture, `cc` in ggml's numbers."""

    root: Path
    cc: int
    bodies: dict[str, tuple[Draft, Function, tuple[Statement, ...]]] = field(default_factory=dict)
    compiled: dict[tuple[int, int, int], CodeType] = field(default_factory=dict)

    def __post_init__(self) -> None:
        draft = draft_of(tokenize(preprocessed(self.root)))
        for function in functions(draft):
            self.bodies[function.name] = draft, function, parse(draft, function.start, function.stop)
        TEMPLATES.update(name for name, (_, function, _) in self.bodies.items() if function.parameters)
        TEMPLATES.update(KERNELS)

    @cached_property
    def known(self) -> dict[str, Any]:
        """What ggml's own functions return."""
        device = SimpleNamespace(cc=self.cc)
        return {
            "ggml_cuda_info": lambda: SimpleNamespace(devices={0: device}),
            "ggml_cuda_get_device": lambda: 0,
            "ggml_cuda_highest_compiled_arch": lambda cc: cc,
            "ggml_is_quantized": lambda kind: kind.startswith("GGML_TYPE_Q"),
            "ggml_type_name": lambda kind: kind,
            "__func__": "",
            "template": self.template,
            "GGML_ASSERT": assert_holds,
            "GGML_ABORT": abort,
            **{name: lambda *_: 0 for name in UNUSED},
        }

    def template(self, name: str, values: tuple[Any, ...]) -> Callable[..., Any]:
        """A function template with its arguments."""
        if name in KERNELS:
            words = (str(value).lower() if isinstance(value, bool) else str(value) for value in values)
            raise Chosen(f"{KERNELS[name]} {','.join(words)}")
        return lambda *arguments: self.call(name, values, arguments)

    def call(self, name: str, values: tuple[Any, ...], arguments: tuple[Any, ...]) -> Any:
        """Execute a function."""
        draft, function, body = self.bodies[name]
        names = Names(self.known | {other: self.plain(other) for other in self.bodies if other not in self.known})
        names |= dict(zip(function.parameters, values, strict=True))
        spans = listed(draft, *function.arguments)
        names |= {draft.words[stop - 1]: value for (_, stop), value in zip(spans, arguments, strict=False)}
        try:
            self.execute(draft, body, names)
        except Returned as returned:
            return returned.value
        return None

    def plain(self, name: str) -> Callable[..., Any]:
        """A function without template arguments."""
        return lambda *arguments: self.call(name, (), arguments)

    def execute(self, draft: Draft, statements: Iterable[Statement], names: Names) -> str:
        """Execute statements; `break` or `continue` if one of them ends them."""
        for statement in statements:
            if ended := self.step(draft, statement, names):
                return ended
        return ""

    def step(self, draft: Draft, statement: Statement, names: Names) -> str:
        """Execute one statement."""
        words = draft.words[statement.start : statement.stop]
        match statement.kind:
            case "block":
                return self.execute(draft, statement.body, names)
            case "if" | "if constexpr":
                taken = statement.body if self.value(draft, statement.head, names) else statement.orelse
                return self.execute(draft, taken, names)
            case "while":
                while self.value(draft, statement.head, names):
                    if self.execute(draft, statement.body, names) == "break":
                        break
            case "for":
                self.loop(draft, statement, names)
            case "switch":
                self.switch(draft, statement, names)
            case "return":
                raise Returned(self.value(draft, statement.head, names) if len(words) > 2 else None)
            case _ if words[0] in ENDS:
                return words[0]
            case _ if words[0] == "memcpy":  # (&NAME, (const float *) KQV->op_params + N, sizeof(float))
                names[words[3]] = names["dst"].op_params[int(words[words.index("+") + 1])]
            case _:
                self.assign(draft, statement, names)
        return ""

    def assign(self, draft: Draft, statement: Statement, names: Names) -> None:
        """Execute a declaration, an assignment or a call."""
        start, stop = statement.head if statement.kind != "macro" else (statement.start, statement.stop)
        signs = [index for index in draft.outer(start, stop) if draft.words[index] in ("=", "*=", "+=")]
        if signs:
            value = self.value(draft, (signs[0] + 1, stop), names)
            name, sign = draft.words[signs[0] - 1], draft.words[signs[0]]
            names[name] = value if sign == "=" else names[name] * value if sign == "*=" else names[name] + value
        elif draft.word(stop - 1) == ")":
            self.value(draft, (start, stop), names)

    def loop(self, draft: Draft, statement: Statement, names: Names) -> None:
        """Execute `for (TYPE NAME : {...})` or `for (TYPE NAME = FIRST; NAME < END; ++NAME)`."""
        start, stop = statement.head
        colon = next((index for index in draft.outer(start, stop) if draft.words[index] == ":"), None)
        if colon is not None:
            values, name = self.value(draft, (colon + 1, stop), names), draft.words[colon - 1]
        else:
            first, second = (index for index in draft.outer(start, stop) if draft.words[index] == ";")
            equals = draft.words.index("=", start)
            name = draft.words[equals - 1]
            assert draft.words[first + 1 : first + 3] == [name, "<"]
            assert draft.words[second + 1 : stop] == ["++", name]
            begin, end = (self.value(draft, span, names) for span in ((equals + 1, first), (first + 3, second)))
            values = range(begin, end)
        for value in values:
            names[name] = value
            if self.execute(draft, statement.body, names) == "break":
                return

    def switch(self, draft: Draft, statement: Statement, names: Names) -> None:
        """Execute the case with the value, and those behind it up to a `break`."""
        value = self.value(draft, statement.head, names)
        found = [place for place, its in enumerate(statement.body) if str(value) in its.labels]
        found += [place for place, its in enumerate(statement.body) if "default" in its.labels]
        for case in statement.body[found[0] :] if found else ():
            if self.execute(draft, case.body, names) == "break":
                return

    def value(self, draft: Draft, span: tuple[int, int], names: Names) -> Any:
        """The value of an expression."""
        key = id(draft), *span
        if key not in self.compiled:
            self.compiled[key] = compile(expression(draft, *span), "llama.cpp", "eval")
        return eval(self.compiled[key], {"__builtins__": {}}, names)

    def supports(self, op: Op) -> bool:
        """Whether the backend accepts an op."""
        return bool(self.call("ggml_cuda_flash_attn_ext_supported", (), (0, tensor_of(op))))

    def kernel(self, op: Op) -> str:
        """The kernel and its template arguments, `mma 64,64,8,8`; empty if the op is refused, or ends the program."""
        try:
            self.call("ggml_cuda_flash_attn_ext", (), (SimpleNamespace(device=0), tensor_of(op)))
        except Chosen as chosen:
            return str(chosen)
        except Abort:
            return ""
        raise AssertionError("no kernel was chosen")


def assert_holds(condition: object) -> None:
    """GGML_ASSERT."""
    if not condition:
        raise Abort


def abort(*_: object) -> None:
    """GGML_ABORT."""
    raise Abort


def tensor_of(op: Op) -> SimpleNamespace:
    """Dst, with its operands, as a ggml_tensor."""
    views: Mapping[str, Any] = op.tensors
    sources = [None if (view := views.get(name)) is None else tensor(view) for name in ("Q", "K", "V", "mask", "sinks")]
    return SimpleNamespace(src=sources, op_params=[op.params.scale, op.params.max_bias, op.params.logit_softcap])


def tensor(view: Any) -> SimpleNamespace:
    """An operand as a ggml_tensor."""
    return SimpleNamespace(ne=list(view.ne), nb=list(view.nb), type=f"GGML_TYPE_{view.type.upper()}")
