"""The origin of the code that ran: what was built, and the release that it comes from.

A defect in the tree does not excuse a failure, because a change may have introduced it: the release must have it too.
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
    """The range of builds with a defect, among known releases; None means from the oldest, or to the newest."""

    since: int | None = None
    until: int | None = None

    def holds(self, number: int) -> bool:
        """Whether a known release has the defect."""
        return (self.since or 0) <= number <= (self.until or number)

    def of(self, build_number: str, known: Sequence[int]) -> bool | None:
        """Whether a release has the defect, judging by known releases (sorted); None if its neighbours differ.

        A release newer than all known ones is like the newest. Without a number, it only has defects that were never
        fixed.
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

    `code` is the code that ran, with patches, None if the source is not available. `release` is the code of the release
    or upstream commit that it is from, None for a user's own tree, whose origin only `build_number` shows.
    `unchanged`: the code is that of the release.
    """

    build_number: str
    code: Code | None = None
    release: Code | None = None
    unchanged: bool = False

    @property
    def is_of_unknown_age(self) -> bool:
        """Whether the age of the release is unknown; a user's own tree counts as new."""
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
    """The origin of the code that a session runs on a target."""
    options, manifest = session.options, session.build_for(target).manifest
    if options.build is None and options.tree is not None:
        return origin_of(options.tree, options.patches)
    return origin_elsewhere(manifest.source, manifest.build_number, manifest.patches)


def origin_elsewhere(source: str, build_number: str, patches: Sequence[str]) -> SourceOrigin:
    """The origin of a build whose source is not available, from its recorded properties."""
    return SourceOrigin(build_number, unchanged=is_release(source) and not patches)


def is_release(spec: str) -> bool:
    """Whether a source is a release or an upstream commit, not a user's own tree."""
    parsed = parse_spec(spec)
    return isinstance(parsed, PypiSpec) or (isinstance(parsed, GitSpec) and parsed.url == UPSTREAM)
