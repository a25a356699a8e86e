"""The ways to show a failure to a maintainer: upstream's own test, a patch that adds a case to it, or a program."""

import functools
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fattn_probe.base.activity import Step, quiet
from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Target
from fattn_probe.cases.op import Op
from fattn_probe.daily.ops.drive import Timeouts
from fattn_probe.daily.ops.parse import OP, OpResult
from fattn_probe.daily.ops.rounds import run_ops_on
from fattn_probe.daily.regress.selection import upstream_list
from fattn_probe.daily.reproduce.upstream_case import add_case, as_case, in_list, read_list
from fattn_probe.llama.source import Tree
from fattn_probe.llama.source.patches import Patch
from fattn_probe.machine.run.session import Session

Way = Literal["line", "patch", "file"]
Wanted = Literal["auto", "line", "patch", "file"]
RUNS = 3
"""The number of runs of upstream's test, whose data differ from run to run; all must fail."""
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
    """The chosen way, and the reasons against the others.

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
    """Chooses the way for an op of a source; `target` runs upstream's test, and `listed_on` lists its cases."""

    session: Session
    tree: Tree
    op: Op
    target: Target | None
    listed_on: Target
    timeout: float = 600.0
    step: Step = quiet

    def choose(self, wanted: Wanted, *, fails: bool) -> Chosen:
        """The requested way; for `auto` the first that shows a failure. InputError if it is impossible for the op."""
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
        """A line that runs a case of upstream's list; or why there is none."""
        if self.listed is None:
            return f"line: none of the cases of this source's test-backend-ops is this op{self.views()}"
        return Chosen("line", case=self.listed, shown=self.run(self.session, self.listed))

    def patch(self) -> Chosen | str:
        """A patch that adds the op to upstream's list; or why that is not possible."""
        tests = read_list(self.tree.root)
        case = as_case(self.op, tests)
        if case is None:
            return f"patch: test_flash_attn_ext has no parameters for this op{self.views()}"
        if self.listed is not None:
            return "patch: test-backend-ops has this op in its list already (--as line)"
        diff = add_case(tests, case, ABOUT)
        patch = Patch("add-case", Path(ADDED), "", (), diff)
        options = replace(self.session.options, patches=(*self.session.options.patches, patch))
        patched = Session(options, self.session.progress)
        return Chosen("patch", case=tests.name(case), patch=diff, shown=self.run(patched, tests.name(case)))

    def views(self) -> str:
        """The properties of this op's operands that upstream's test cannot express."""
        offsets = [name for name, view in self.op.tensors.items() if view.offset]
        return f" (it has no offsets, as {', '.join(offsets)} here)" if offsets else ""

    @functools.cached_property
    def listed(self) -> str | None:
        """The case in upstream's list that equals this op."""
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
    """The regular expression for `test-backend-ops -p` that only this case matches."""
    parameters = case.removeprefix(f"{OP}(").removesuffix(")")
    return "^" + SPECIAL.sub(r"\\\1", parameters) + "$"
