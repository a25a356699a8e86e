"""Run test-backend-ops on a target of a session; missing functions are compiled."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.cases import resolve
from fattn_probe.cases.scenario.from_ops import from_ops
from fattn_probe.daily.ops.drive import OnResult, Timeouts
from fattn_probe.daily.ops.options import Mode
from fattn_probe.daily.ops.parse import OpsReport
from fattn_probe.daily.ops.rounds import Only, run_ops
from fattn_probe.llama.build import TEST_BACKEND_OPS
from fattn_probe.machine.run.prepare import prepare
from fattn_probe.machine.run.session import Session

LIST = Path("tests/test-backend-ops.cpp")
V_IS_K = re.compile(r"\bv\s*=\s*ggml_view_4d\(ctx, k,")


def cases_of(lines: Iterable[str], root: Path) -> Iterator[Case]:
    """The cases of `FLASH_ATTN_EXT(...)` lines of the tree in `root`, without those that no scenario can express."""
    separate_V = separate_V_of(root)
    for line in lines:
        with contextlib.suppress(InputError):
            yield resolve(from_ops(line, separate_V=separate_V), line, "upstream")


def separate_V_of(root: Path) -> bool:
    """Whether V is separate from K in every case of a source's list; the older form of a case does not show this."""
    path = root / LIST
    return path.is_file() and not V_IS_K.search(path.read_text(errors="replace"))


def run_ops_on(
    session: Session,
    target: Target,
    mode: Mode,
    *,
    only: Only = None,
    timeouts: Timeouts,
    on_result: OnResult,
    workers: int = 1,
) -> OpsReport:
    """`run_ops` with the session's build for the target."""
    return run_ops(
        session.build_for(target, TEST_BACKEND_OPS).test_backend_ops,
        mode,
        target.backend,
        only=only,
        env=session.env(target, TEST_BACKEND_OPS),
        timeouts=timeouts,
        on_result=on_result,
        workers=workers,
        complete=lambda symbol: session.complete(target, symbol, TEST_BACKEND_OPS).test_backend_ops,
        prepare=lambda lines: prepared(session, target, lines),
    )


def prepared(session: Session, target: Target, lines: Sequence[str]) -> Path:
    """The program with the kernels that these upstream cases need, if known."""
    if session.options.tree is not None:
        cases = cases_of(lines, session.options.tree.root)
        prepare(session, [(case, [target]) for case in cases], TEST_BACKEND_OPS)
    return session.build_for(target, TEST_BACKEND_OPS).test_backend_ops
