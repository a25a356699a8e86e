"""The origin of what ran: the code that was built, and the release that it comes from.

A tree that has a defect is not excused by that: a change may have brought it in. So the release must have it too.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fattn_probe.cases.device import Target
from fattn_probe.llama.source import Tree
from fattn_probe.llama.source.patches import Patch
from fattn_probe.llama.source.releases import builds
from fattn_probe.llama.source.spec import UPSTREAM, GitSpec, PypiSpec, parse_spec
from fattn_probe.machine.run.session import Session
from fattn_probe.verdict.judge.code import Code, Probe, all_hold


@dataclass(frozen=True)
class ReleaseRange:
    """The builds that have a defect, among those of known releases: None is the oldest, or the newest."""

    since: int | None = None
    until: int | None = None

    def holds(self, number: int) -> bool:
        """Whether a known release has the defect."""
        return (self.since or 0) <= number <= (self.until or number)

    def of(self, build_number: str, known: Sequence[int]) -> bool | None:
        """Whether a release has the defect, by the known ones (sorted); None if those beside it differ.

        A release newer than all known ones has what the newest has. Without a number, it has what was never mended.
        """
        if not build_number.isdecimal():
            return None if self.until is not None else True
        number = int(build_number)
        below, above = bisect_right(known, number) - 1, bisect_left(known, number)
        if below < 0:
            return None
        beside = {self.holds(known[below]), self.holds(known[min(above, len(known) - 1)])}
        return beside.pop() if len(beside) == 1 else None


@dataclass(frozen=True)
class SourceOrigin:
    """What was built.

    `code` is what ran, patches included, None if the source is not at hand. `release` is the code of the release or of
    upstream's commit that it is from, None for a tree of the user's own: then only `build_number` tells what it is
    from. `unchanged`: it is the release's own code.
    """

    build_number: str
    code: Code | None = None
    release: Code | None = None
    unchanged: bool = False

    @property
    def is_of_unknown_age(self) -> bool:
        """Whether nothing tells how old the release is; a tree of the user's own is taken for a new one."""
        return not self.build_number.isdecimal() and (self.release is not None or self.unchanged)

    def release_has(self, probes: Iterable[Probe], range: ReleaseRange) -> bool | None:
        """Whether the release has a defect; None if that is not known."""
        return range.of(self.build_number, builds()) if self.release is None else all_hold(probes, self.release)

    def tree_has(self, probes: Iterable[Probe], range: ReleaseRange) -> bool | None:
        """Whether the code that ran has a defect; None if it cannot be probed."""
        if self.code is not None:
            return all_hold(probes, self.code)
        return self.release_has(probes, range) if self.unchanged else None


def origin_of(tree: Tree, patches: tuple[Patch, ...]) -> SourceOrigin:
    """The origin of a build of a tree with patches."""
    release = Code(tree.root) if is_release(tree.spec) else None
    return SourceOrigin(tree.build_number, Code(tree.root, patches), release, release is not None and not patches)


def origin_in(session: Session, target: Target) -> SourceOrigin:
    """The origin of what a session runs on a target."""
    options, manifest = session.options, session.build_for(target).manifest
    if options.build is None and options.tree is not None:
        return origin_of(options.tree, options.patches)
    return origin_elsewhere(manifest.source, manifest.build_number, manifest.patches)


def origin_elsewhere(source: str, build_number: str, patches: Sequence[str]) -> SourceOrigin:
    """The origin of a build whose source is not at hand, by what was written down of it."""
    return SourceOrigin(build_number, unchanged=is_release(source) and not patches)


def is_release(spec: str) -> bool:
    """Whether a source is a release's, or a commit of upstream's, and not a tree of the user's own."""
    parsed = parse_spec(spec)
    return isinstance(parsed, PypiSpec) or (isinstance(parsed, GitSpec) and parsed.url == UPSTREAM)
