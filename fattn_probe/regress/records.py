"""What the history keeps: runs and their results."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fattn_probe.run.launches import LaunchRecord, parse_launches


@dataclass(frozen=True)
class Identity:
    """Where a run's results come from.

    `device` is the GPU's name or the simulator's (`sim:h200`), `cc` its compute capability, `driver` empty on the
    simulator, `build_number` that of llama.cpp, `version` fattn-probe's.
    """

    machine: str
    device: str
    cc: str
    driver: str
    engine: str
    flavour: str
    source: str
    build_number: str
    patches: str
    version: str

    @property
    def line(self) -> str:
        """What stays the same from one nightly run to the next: results are compared along it.

        A simulated GPU is the same everywhere; of a real one the machine counts, since times do.
        """
        place = self.machine if self.engine == "cuda" else ""
        return "/".join((self.engine, self.device, self.cc, self.flavour, place))


@dataclass(frozen=True)
class Result:
    """What one case gave; `digest` is that of the op and its inputs, `output` the sha256 of dst, `seconds` the repeats.

    `launches` is the text of the launch records, one JSON line each.
    """

    name: str
    digest: str
    status: str
    reason: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    output: str | None = None
    launches: str = ""
    seconds: tuple[float, ...] = ()
    failure: str = ""

    @property
    def kernels(self) -> tuple[LaunchRecord, ...]:
        """The launch records."""
        return parse_launches(self.launches)


@dataclass(frozen=True)
class Run:
    """One run in the history; `ended` is None while it goes on, and of a run that was killed."""

    id: int
    uid: str
    identity: Identity
    suite: str
    started: str
    ended: str | None
