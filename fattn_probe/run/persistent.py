"""A runner process that takes one case after another."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fattn_probe.build import Build, lock_of
from fattn_probe.launch.record import Names, Types
from fattn_probe.run.batch import BatchRunner, batch_runner


@dataclass(frozen=True)
class Command:
    """A runner with its arguments."""

    build: Build
    program: str
    words: tuple[str, ...]
    env: Mapping[str, str]

    @contextlib.contextmanager
    def no_builders(self) -> Iterator[None]:
        """Hold the build lock while the runner loads."""
        with lock_of(self.build.folder) if self.build.request else contextlib.nullcontext():
            yield

    def wait_for_builders(self) -> None:
        """Wait until no other process is linking this build."""
        with self.no_builders():
            pass


class PersistentRunner(contextlib.ExitStack):
    """The runner of the last command, reused while the command stays the same."""

    command: Command | None = None
    batch: BatchRunner | None = None

    def runner(self, command: Command, timeout: float, types: Types | None, names: Names | None) -> BatchRunner:
        """The runner of a command; RunnerEndedError if it cannot be started."""
        if self.batch is None or not self.batch.alive or self.command != command:
            self.close()
            self.command, self.batch = command, None
            with command.no_builders():
                start = batch_runner(
                    command.build.program(command.program),
                    command.words,
                    env=command.env,
                    timeout=timeout,
                    types=types,
                    names=names,
                )
                self.batch = self.enter_context(start)
        return self.batch
