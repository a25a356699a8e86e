"""The launches that a running program appends to a file, read op by op."""

from dataclasses import dataclass
from pathlib import Path

from fattn_probe.launch.record import LaunchRecord, Names, Types, parse_launches


@dataclass
class LaunchLog:
    """A file of launch records; `read` are the bytes of it that have been read."""

    path: Path
    types: Types | None = None
    names: Names | None = None
    read: int = 0

    def skip(self) -> None:
        """Leave out what has been launched so far."""
        self.read = self.path.stat().st_size if self.path.exists() else 0

    def launched(self) -> tuple[LaunchRecord, ...]:
        """The launches since the last call of `skip`, or of this method; none on a backend that launches no kernels."""
        start = self.read
        self.skip()
        text = self.path.read_bytes()[start : self.read].decode() if self.read > start else ""
        return parse_launches(text, types=self.types, names=self.names)
