"""The fingerprint of a run: digests of contents, not names. All other identities are derived from it."""

import json
from dataclasses import dataclass, fields, replace
from typing import Any

from fattn_probe.base.digest import short
from fattn_probe.base.documents import Document

LAYOUT = 1  # version of the layout of build folders; a new version uses new folders
Named = tuple[tuple[str, str], ...]
"""Names with the sha256 of their contents."""


@dataclass(frozen=True)
class Fingerprint:
    """The code that ran, the device, and how it was judged: results with equal fingerprints are interchangeable.

    `tree` is the sha256 of the source's files; `patches` are the requested patches, `needed` the patches that a build
    of this kind requires. `device` holds the figures of a simulated GPU, or the name of a real one. `version` is
    fattn-probe's version, `stamp` the sha256 of its files that builds depend on, `own` the sha256 of all its files.
    `cases` is the digest of a case, or of all cases in a run. Unknown fields are empty, such as a build's device.
    """

    tree: str = ""
    patches: Named = ()
    needed: Named = ()
    engine: str = ""
    flavour: str = ""
    arch: str = ""
    sanitize: tuple[str, ...] = ()
    quants: tuple[str, ...] = ()
    compilers: tuple[str, ...] = ()
    target: str = ""
    device: tuple[tuple[str, int | str], ...] = ()
    driver: str = ""
    version: str = ""
    stamp: str = ""
    own: str = ""
    checks: str = ""
    cases: str = ""

    @property
    def build(self) -> str:
        """Identifies the folder of a build: what is compiled, and how; kernels and programs are added over time."""
        told = {
            "tree": self.tree,
            "patches": (*self.needed, *self.patches),
            "engine": self.engine,
            "flavour": self.flavour,
            "arch": self.arch,
            "sanitize": sorted(self.sanitize),
            "quants": sorted(self.quants),
            "compilers": self.compilers,
            "stamp": self.stamp,
            "layout": LAYOUT,
        }
        return short(json.dumps(told), 12)

    @property
    def kernels(self) -> str:
        """Identifies the list of kernels that ops need; host code chooses the kernels, so no compiler is included."""
        device: dict[str, Any] = dict(self.device)
        name, simulated = device.pop("name", ""), device.pop("id", None) is not None
        figures = [f"{figure}={value}" for figure, value in device.items()]
        words = " ".join([*figures, f"name={name}"]) if simulated else name
        return short(json.dumps([self.version, *self.source, sorted(self.quants), words]))

    @property
    def launches(self) -> str:
        """Identifies the list of the ops' launches, which also depend on the simulator's own code."""
        return replace(self, tree=f"{self.tree} {self.flavour} {self.stamp}").kernels

    @property
    def source(self) -> list[Any]:
        """The part that identifies the kernels' code, for the keys of verdicts."""
        return [self.tree, [digest for _, digest in self.patches]]

    @property
    def judgement(self) -> list[Any]:
        """The part that describes how cases are run and judged, for keys of verdicts that are valid for any code."""
        build = [self.flavour, self.sanitize, *([self.quants] if self.quants else [])]
        return [self.target, dict(self.device), *build, self.checks]

    def differences(self, other: "Fingerprint | None") -> tuple[str, ...]:
        """The differences from another fingerprint, in words; cases have their own digests and are not compared."""
        if other is None:
            return ("what was run (unknown for the earlier run)",)
        names = [field.name for field in fields(self) if field.name not in ("cases", "stamp", "version")]
        found = [name for name in names if getattr(self, name) != getattr(other, name)]
        return tuple(dict.fromkeys(WORDS.get(name, f"the {name}") for name in found))


FINGERPRINT = Document("a fingerprint", Fingerprint)

WORDS = {
    "tree": "the source's files",
    "patches": "the patches' text",
    "needed": "the patches' text",
    "checks": "how cases are judged",
    "own": "fattn-probe itself",
    "sanitize": "the sanitizers",
    "device": "the device's figures",
}
"""The names of fields in messages."""


def fingerprint_in(text: str) -> Fingerprint | None:
    """The fingerprint in a string; None if an older version stored none, or stored different fields."""
    plain = json.loads(text or "{}")
    return FINGERPRINT.of(plain) if plain.keys() == {field.name for field in fields(Fingerprint)} else None
