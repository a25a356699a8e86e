"""Scenarios as pytest items: `pytest scenarios/ --fattn-on sim:h200`, one item per case and device.

Nothing is collected without `--fattn-on`, so other projects' YAML files are left alone. A failure shows the reason for
the verdict. A case that the backend does not support is skipped. A lost case is an error in the run, not in the kernel.
`-k`, `-n` (pytest-xdist) and `--junitxml` work as in any pytest run.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # every pytest run in an environment loads this plugin, so it imports the rest only when needed
    from fattn_probe.cases.device import Target
    from fattn_probe.cases.scenario import Case
    from fattn_probe.machine.run.session import Session


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flags, in their own group."""
    group = parser.getgroup("fattn-probe", "flash-attention scenarios")
    group.addoption("--fattn-on", default="", help="run scenarios (*.yaml) on these devices: sim:ID, gpu, gpu:N")
    group.addoption("--fattn-source", default="", help="the llama.cpp to run: pypi:NAME==VERSION, git:REF, or a folder")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect scenario files if `--fattn-on` names devices."""
    if file_path.suffix != ".yaml" or not parent.config.getoption("--fattn-on"):
        return None
    return ScenarioFile.from_parent(parent, path=file_path)


class ScenarioFile(pytest.File):
    """A scenario file."""

    def collect(self) -> Iterator["ScenarioItem"]:
        """One item per case and device."""
        from fattn_probe.base.errors import InputError
        from fattn_probe.cases.device import load_devices, parse_targets
        from fattn_probe.cases.scenario import expand, load

        try:
            cases = expand(load(self.path))
            targets = parse_targets(self.config.getoption("--fattn-on"), load_devices())
        except InputError as error:
            raise pytest.UsageError(str(error)) from error
        for case in cases:
            for target in targets:
                yield ScenarioItem.from_parent(self, name=f"{case.name}[{target}]", case=case, target=target)


class ScenarioItem(pytest.Item):
    """One case on one device."""

    def __init__(self, *, case: "Case", target: "Target", **rest: object) -> None:
        super().__init__(**rest)  # type: ignore[arg-type]
        self.case = case
        self.target = target

    def runtest(self) -> None:
        """Run and judge the case."""
        from fattn_probe.daily.regress.results import result_of
        from fattn_probe.verdict.judge.known import named

        result = result_of(session_of(self.session), self.case, self.target)
        kernels = ", ".join(record.spelling for record in result.kernels)
        self.user_properties += [("kernels", kernels), ("status", result.status)]
        if result.status == "unsupported":
            pytest.skip(result.reason)
        if result.status in WITHOUT_VERDICT:
            raise NotPassed(f"{WITHOUT_VERDICT[result.status]}: {result.failure}")
        if result.status != "pass":
            raise NotPassed(f"wrong: {kernels}\n{named(result.known, result.failure)}")

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None
    ) -> str:  # a traceback through fattn-probe does not help with a kernel
        """The reason, without a traceback."""
        return str(excinfo.value if isinstance(excinfo.value, NotPassed) else super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        """The file, and the item's name."""
        return self.path, 0, self.name


class NotPassed(Exception):
    """A case did not pass; the message begins with how it ended."""


WITHOUT_VERDICT = {"unjudged": "unjudged", "lost": "lostitem"}
"""The first word of the message about a case that has no verdict, by status."""
SESSION = pytest.StashKey["Session"]()


def session_of(run: pytest.Session) -> "Session":
    """One session for all items of a process; the kernels that they need are compiled before the first one runs."""
    from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
    from fattn_probe.machine.run.session import RunOptions, Session

    config = run.config
    if SESSION not in config.stash:
        config.stash[SESSION] = Session(RunOptions(resolve(config.getoption("--fattn-source") or DEFAULT_SOURCE)))
        compile_kernels(config.stash[SESSION], run.items)
    return config.stash[SESSION]


def compile_kernels(session: "Session", items: Sequence[pytest.Item]) -> None:
    """Compile the kernels that the items need, in one build; if that fails, each item reports its own errors."""
    from fattn_probe.base.errors import BuildError
    from fattn_probe.machine.run.prepare import prepare

    with contextlib.suppress(BuildError):
        prepare(session, [(item.case, [item.target]) for item in items if isinstance(item, ScenarioItem)])
