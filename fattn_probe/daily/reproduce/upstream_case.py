"""An op as a case of upstream's test-backend-ops: in its list, or as a line that adds it."""

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from fattn_probe.base.errors import InputError
from fattn_probe.cases.op import Op
from fattn_probe.cases.op.op import PREC
from fattn_probe.cases.scenario.cases import op_of
from fattn_probe.cases.scenario.from_ops import OpsCase, from_ops
from fattn_probe.daily.ops.parse import OP
from fattn_probe.daily.ops.rounds import LIST, cases_of

STRUCT = re.compile(r"^struct test_flash_attn_ext\b.*?^\};", re.DOTALL | re.MULTILINE)
CONSTRUCTOR = re.compile(r"^ {4}test_flash_attn_ext\((?P<parameters>.*?)\)\s*:", re.DOTALL | re.MULTILINE)
PARAMETER = re.compile(r"(\w+) = ")
EVAL = re.compile(
    r"^static [^\n]*make_test_cases_eval\(\) \{\n.*?^(?=    return test_cases;\n\})", re.DOTALL | re.MULTILINE
)
CONTEXT = 3  # lines around a change of a unified diff
PERMUTATIONS = ([0, 1, 2, 3], [0, 2, 1, 3])
KV_TYPE = "type_KV"  # the parameter of releases before April 2026


@dataclass(frozen=True)
class TestList:
    """A source's tests/test-backend-ops.cpp: its text, and the parameters of test_flash_attn_ext in order."""

    root: Path
    text: str
    parameters: tuple[str, ...]

    def name(self, case: OpsCase) -> str:
        """The text that test-backend-ops prints for a case, with floats of six digits."""
        return f"{OP}({','.join(f'{name}={_printed(value)}' for name, value in self._values(case))})"

    def constructor(self, case: OpsCase) -> str:
        """The C++ expression that makes a case."""
        return f"new test_flash_attn_ext({', '.join(_literal(name, value) for name, value in self._values(case))})"

    def _values(self, case: OpsCase) -> Iterator[tuple[str, Any]]:
        values = asdict(case) | {KV_TYPE: case.type_K}
        return ((name, values[name]) for name in self.parameters)


def read_list(root: Path) -> TestList:
    """The test of a source; InputError if it has none, or one whose parameters are not known here."""
    path = root / LIST
    if not path.is_file():
        raise InputError(f"this source has no {LIST}, upstream's test of ops")
    text = path.read_text(errors="replace")
    struct = STRUCT.search(text)
    constructor = CONSTRUCTOR.search(struct[0]) if struct else None
    names = tuple(PARAMETER.findall(constructor["parameters"])) if constructor else ()
    if not names or not EVAL.search(text) or set(names) - {*OpsCase.__dataclass_fields__, KV_TYPE}:
        raise InputError(f"{path}: its test_flash_attn_ext is not one that fattn-probe knows")
    return TestList(root, text, names)


def in_list(op: Op, lines: Iterable[str], root: Path) -> str | None:
    """The first of upstream's cases that is this op; None if there is none."""
    return next((case.name for case in cases_of(lines, root) if "q_range" not in case.name and same(case.op, op)), None)


def as_case(op: Op, tests: TestList) -> OpsCase | None:
    """The parameters with which the constructor of a source's test makes this op; None if there are none."""
    for case in _candidates(op):
        with contextlib.suppress(InputError):
            if same(op_of(from_ops(tests.name(case))), op):
                return case
    return None


def same(a: Op, b: Op) -> bool:
    """Whether the kernels get the same op: parameters, and the layout and shape of all operands."""
    return a.params.stored == b.params.stored and _places(a) == _places(b)


def add_case(tests: TestList, case: OpsCase, why: str) -> str:
    """The unified diff that adds a case to upstream's list."""
    place = EVAL.search(tests.text)
    assert place is not None
    line = f"    // {why}\n    test_cases.emplace_back({tests.constructor(case)});\n\n"
    after = tests.text[: place.end()] + line + tests.text[place.end() :]
    old, new = (text.splitlines(keepends=True) for text in (tests.text, after))
    first = tests.text.count("\n", 0, place.end()) - CONTEXT  # difflib compares all lines that it gets
    around = old[first : first + 2 * CONTEXT], new[first : first + 2 * CONTEXT + line.count("\n")]
    diff = difflib.unified_diff(*around, f"a/{LIST}", f"b/{LIST}", n=CONTEXT)
    return "".join(
        re.sub(r"([-+])(\d+)", lambda found: f"{found[1]}{int(found[2]) + first}", part, count=2)
        if part.startswith("@@")
        else part
        for part in diff
    )


def _candidates(op: Op) -> Iterator[OpsCase]:
    """Candidates for this op: upstream's scale is that of the head size before padding to whole blocks."""
    sizes, params = op.sizes, op.params
    prec = next((name for name, number in PREC.items() if number == params.prec), None)
    if prec is None:
        return
    unpadded = dict.fromkeys([sizes.hsk, max(1, round(params.scale**-2))])
    for hsk, permute, kv_view in product(unpadded, PERMUTATIONS, (True, False)):
        yield OpsCase(
            hsk=hsk,
            hsv=sizes.hsv,
            nh=sizes.n_head_kv,
            nr23=[sizes.group, sizes.n_seq],
            kv=sizes.n_kv,
            nb=sizes.n_q,
            mask=op.has_mask,
            sinks=op.has_sinks,
            max_bias=params.max_bias,
            logit_softcap=params.logit_softcap,
            prec="def" if prec == "default" else prec,
            permute=permute,
            type_K=op.type_K,
            type_V=op.type_V,
            kv_view=kv_view,
            v_is_view_of_k=op.V_is_K_view,
            n_kv_max=params.n_kv_max,
        )


def _places(op: Op) -> dict[str, tuple[Any, ...]]:
    return {
        name: (view.type, view.ne, view.nb, view.offset, name if view.root == name else view.root)
        for name, view in op.tensors.items()
    }


def _printed(value: Any) -> str:  # noqa: ANN401 - a parameter's value
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:.6f}"
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)


def _literal(name: str, value: Any) -> str:  # noqa: ANN401 - a parameter's value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value!r}f"
    if isinstance(value, list):
        return "{" + ", ".join(map(str, value)) + "}"
    if name == "prec":
        return "GGML_PREC_F32" if value == "f32" else "GGML_PREC_DEFAULT"
    return f"GGML_TYPE_{value.upper()}" if isinstance(value, str) else str(value)
