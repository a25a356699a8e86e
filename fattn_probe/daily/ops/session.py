"""Run test-backend-ops on a target of a session; missing functions are compiled."""

from collections.abc import Sequence
from pathlib import Path

from fattn_probe.cases.device import Target
from fattn_probe.daily.ops.cases import cases_of
from fattn_probe.daily.ops.drive import OnResult, Timeouts
from fattn_probe.daily.ops.options import Mode
from fattn_probe.daily.ops.report import OpsReport
from fattn_probe.daily.ops.rounds import Only, run_ops
from fattn_probe.llama.build import TEST_BACKEND_OPS
from fattn_probe.machine.run.prepare import prepare
from fattn_probe.machine.run.session import Session


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
