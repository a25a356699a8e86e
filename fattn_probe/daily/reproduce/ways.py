"""Ways to show a maintainer a failure: upstream's own test, a patch that adds a case to it, or a program."""

import contextlib
import difflib
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from fattn_probe.base.activity import Step, quiet
from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Target
from fattn_probe.cases.op import Op
from fattn_probe.cases.op.op import PREC
from fattn_probe.cases.scenario.cases import op_of
from fattn_probe.cases.scenario.from_ops import OpsCase, from_ops
from fattn_probe.daily.ops.parse import OP, OpResult
from fattn_probe.daily.ops.rounds import LIST, Timeouts, cases_of, run_ops_on
from fattn_probe.daily.regress.selection import upstream_list
from fattn_probe.llama.source import Tree
from fattn_probe.llama.source.patches import Patch
from fattn_probe.machine.run.session import Session

Way = Literal["line", "patch", "file"]
Wanted = Literal["auto", "line", "patch", "file"]
RUNS = 3
"""Number of runs of upstream's test, each with different data; all runs must fail."""
ADDED = "add-case.patch"
ABOUT = "A case that fattn-probe found"
SPECIAL = re.compile(r"([\[\](){}.+*?^$|\\])")


@dataclass(frozen=True)
class ShownWay:
    """The results of upstream's test with its own data: `failed` of `runs`, and the last failure message."""

    runs: int
    failed: int
    message: str = ""

    @property
    def fails(self) -> bool:
        """Whether the test failed every time."""
        return self.runs > 0 and self.failed == self.runs

    def __str__(self) -> str:
        said = f", the last time with: {self.message}" if self.message else ""
        return f"upstream's test failed in {self.failed} of {self.runs} runs{said}"


@dataclass(frozen=True)
class Chosen:
    """The way that was chosen, and the reasons against the other ways.

    `case` is the case as upstream's test prints it, `patch` the diff that adds it to the list, `shown` the results of
    upstream's test; empty or None if the way has none.
    """

    way: Way
    reasons: tuple[str, ...] = ()
    case: str = ""
    patch: str = ""
    shown: ShownWay | None = None


@dataclass(frozen=True)
class Chooser:
    """Chooses the way for an op and a source; `target` runs upstream's test, and `listed_on` lists its cases."""

    session: Session
    tree: Tree
    op: Op
    target: Target | None
    listed_on: Target
    timeout: float = 600.0
    step: Step = quiet

    def choose(self, wanted: Wanted, *, fails: bool) -> Chosen:
        """The requested way; for `auto` the first way that shows a failure. InputError if the op allows none."""
        if wanted in ("line", "patch"):
            made = self.line() if wanted == "line" else self.patch()
            if isinstance(made, str):
                raise InputError(made)
            return made
        if wanted == "file" or not fails or not self.runs:
            return Chosen("file")
        reasons: list[str] = []
        for attempt in (self.line, self.patch):
            try:
                found = attempt()
            except InputError as error:  # this source has no test that could show the failure
                found = f"line or patch: {error}"
            if isinstance(found, Chosen) and found.shown is not None and found.shown.fails:
                return replace(found, reasons=tuple(reasons))
            reasons.append(found if isinstance(found, str) else f"{found.way}: {found.shown}")
        return Chosen("file", tuple(reasons))

    @property
    def runs(self) -> bool:
        """Whether upstream's test can run: it compares with ggml's CPU backend, and cannot test that backend itself."""
        return self.target is not None and self.target.engine != "cpu"

    def line(self) -> Chosen | str:
        """A command line that runs a case from upstream's list, or the reason why there is none."""
        if self.listed is None:
            return f"line: this source's test-backend-ops has no case with this op{self.views()}"
        return Chosen("line", case=self.listed, shown=self.run(self.session, self.listed))

    def patch(self) -> Chosen | str:
        """A patch that adds the op to upstream's list, or the reason why that is not possible."""
        tests = read_list(self.tree.root)
        case = as_case(self.op, tests)
        if case is None:
            return f"patch: test_flash_attn_ext has no parameters for this op{self.views()}"
        if self.listed is not None:
            return "patch: test-backend-ops already has this op in its list (--as line)"
        diff = add_case(tests, case, ABOUT)
        patch = Patch("add-case", Path(ADDED), "", (), diff)
        options = replace(self.session.options, patches=(*self.session.options.patches, patch))
        patched = Session(options, self.session.progress)
        return Chosen("patch", case=tests.name(case), patch=diff, shown=self.run(patched, tests.name(case)))

    def views(self) -> str:
        """The properties of this op's operands that upstream's test cannot express."""
        offsets = [name for name, view in self.op.tensors.items() if view.offset]
        return f" (it cannot express the offsets of {', '.join(offsets)})" if offsets else ""

    @functools.cached_property
    def listed(self) -> str | None:
        """The case in upstream's list that has this op."""
        self.step("listing the cases of test-backend-ops")
        read_list(self.tree.root)
        return in_list(self.op, (item.case for item in upstream_list(self.session, self.listed_on)), self.tree.root)

    def run(self, session: Session, case: str) -> ShownWay | None:
        """Run a case with upstream's data, several times; None without a target."""
        if self.target is None or not self.runs:
            return None
        results: list[OpResult] = []
        for number in range(RUNS):
            self.step(f"running test-backend-ops on {self.target}, {number + 1} of {RUNS}")
            limits = Timeouts(self.timeout, self.timeout)
            only = pattern_of(case)
            report = run_ops_on(session, self.target, "test", only=only, timeouts=limits, on_result=lambda *_: None)
            results += report.results[:1]
        wrong = [result for result in results if result.status == "fail"]
        return ShownWay(len(results), len(wrong), words_of(wrong[-1]) if wrong else "")


def words_of(result: OpResult) -> str:
    """The message of upstream's test for a failure."""
    measured = "" if result.error is None else f"NMSE = {result.error:.9f} > {result.threshold:.9f}"
    return result.message or measured or "FAIL"


def pattern_of(case: str) -> str:
    """The regular expression for `test-backend-ops -p` that matches only that case."""
    return "^" + SPECIAL.sub(r"\\\1", case.removeprefix(f"{OP}(").removesuffix(")")) + "$"


STRUCT = re.compile(r"^struct test_flash_attn_ext\b.*?^\};", re.DOTALL | re.MULTILINE)
CONSTRUCTOR = re.compile(r"^ {4}test_flash_attn_ext\((?P<parameters>.*?)\)\s*:", re.DOTALL | re.MULTILINE)
PARAMETER = re.compile(r"(\w+) = ")
EVAL = re.compile(
    r"^static [^\n]*make_test_cases_eval\(\) \{\n.*?^(?=    return test_cases;\n\})", re.DOTALL | re.MULTILINE
)
CONTEXT = 3  # lines around a change in a unified diff
PERMUTATIONS = ([0, 1, 2, 3], [0, 2, 1, 3])
KV_TYPE = "type_KV"  # the parameter of releases before April 2026


@dataclass(frozen=True)
class TestList:
    """A source's tests/test-backend-ops.cpp: its text, and the parameters of test_flash_attn_ext in order."""

    root: Path
    text: str
    parameters: tuple[str, ...]

    def name(self, case: OpsCase) -> str:
        """The text that test-backend-ops prints for a case, with floats to six decimal places."""
        return f"{OP}({','.join(f'{name}={_printed(value)}' for name, value in self._values(case))})"

    def constructor(self, case: OpsCase) -> str:
        """The C++ expression that creates a case."""
        return f"new test_flash_attn_ext({', '.join(_literal(name, value) for name, value in self._values(case))})"

    def _values(self, case: OpsCase) -> Iterator[tuple[str, Any]]:
        values = asdict(case) | {KV_TYPE: case.type_K}
        return ((name, values[name]) for name in self.parameters)


def read_list(root: Path) -> TestList:
    """The test of a source; raises InputError if it has none, or if its parameters are unknown to fattn-probe."""
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
    """The first of upstream's cases that has this op; None if there is none."""
    return next((case.name for case in cases_of(lines, root) if "q_range" not in case.name and same(case.op, op)), None)


def as_case(op: Op, tests: TestList) -> OpsCase | None:
    """The parameters with which the constructor of a source's test creates this op; None if it cannot."""
    for case in _candidates(op):
        with contextlib.suppress(InputError):
            if same(op_of(from_ops(tests.name(case))), op):
                return case
    return None


def same(a: Op, b: Op) -> bool:
    """Whether the kernels receive the same op: parameters, and the layout and shape of all operands."""
    return a.params.stored == b.params.stored and _places(a) == _places(b)


def add_case(tests: TestList, case: OpsCase, why: str) -> str:
    """The unified diff that adds a case to upstream's list."""
    place = EVAL.search(tests.text)
    assert place is not None
    line = f"    // {why}\n    test_cases.emplace_back({tests.constructor(case)});\n\n"
    after = tests.text[: place.end()] + line + tests.text[place.end() :]
    old, new = (text.splitlines(keepends=True) for text in (tests.text, after))
    first = tests.text.count("\n", 0, place.end()) - CONTEXT  # difflib compares all lines that it is given
    around = old[first : first + 2 * CONTEXT], new[first : first + 2 * CONTEXT + line.count("\n")]
    diff = difflib.unified_diff(*around, f"a/{LIST}", f"b/{LIST}", n=CONTEXT)
    return "".join(
        re.sub(r"([-+])(\d+)", lambda found: f"{found[1]}{int(found[2]) + first}", part, count=2)
        if part.startswith("@@")
        else part
        for part in diff
    )


def _candidates(op: Op) -> Iterator[OpsCase]:
    """Candidates for this op: upstream computes the scale from the head size before padding to whole blocks."""
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
