"""The origin of the code that ran: the built tree, and the release that it comes from.

A defect in the tree does not excuse a failure, because a change may have introduced it: the release must also have it.
A defect is recognised by fragments of C++ in the patched CUDA files of a tree.
"""

import functools
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario.spec import Spec
from fattn_probe.llama.cxx.functions import functions
from fattn_probe.llama.cxx.tokens import CODE_KINDS, draft_of, tokenize
from fattn_probe.llama.source import Tree
from fattn_probe.llama.source.features import CUDA
from fattn_probe.llama.source.patches import Patch, changed_by
from fattn_probe.llama.source.spec import UPSTREAM, GitSpec, PypiSpec, builds, parse_spec
from fattn_probe.machine.run.session import Session


@dataclass(frozen=True)
class Code:
    """The CUDA files of the tree at `root` after `patches`."""

    root: Path
    patches: tuple[Patch, ...] = ()

    @functools.cached_property
    def changed(self) -> Mapping[Path, str | None]:
        """The files that the patches change, None for a deleted one."""
        return changed_by(self.patches, self.root)

    def text(self, file: str) -> str | None:
        """The text of a file of ggml-cuda/; None if it does not exist."""
        path = self.root / CUDA / file
        if path in self.changed:
            return self.changed[path]
        return path.read_text(errors="replace") if path.is_file() else None

    def body(self, file: str, function: str) -> str | None:
        """The tokens of a function's definitions, separated by spaces; None if the file does not define it."""
        try:
            text = self.text(file)
        except (OSError, InputError):
            return None
        return None if text is None else bodies_of(text).get(function)


@functools.lru_cache(maxsize=64)
def bodies_of(text: str) -> Mapping[str, str]:
    """The tokens of each function in a file, separated by spaces; overloads are concatenated."""
    draft, found = draft_of(tokenize(text)), defaultdict[str, list[str]](list)
    for function in functions(draft):
        found[function.name].append(" ".join(draft.words[function.start : function.stop]))
    return {name: " ; ".join(bodies) for name, bodies in found.items()}


@functools.cache
def pattern_of(fragment: str) -> re.Pattern[str]:
    """The pattern of a fragment in tokens separated by spaces; `...` matches one token or more."""
    words = [token.text for token in tokenize(fragment) if token.kind in CODE_KINDS]
    inner = r"\s".join(".*?" if word == "..." else re.escape(word) for word in words)
    return re.compile(rf"(?<!\S){inner}(?!\S)")


class Probe(Spec):
    """Fragments that a function must or must not contain, ignoring blanks and comments."""

    file: str
    function: str
    has: list[str] = Field(default=[])
    lacks: list[str] = Field(default=[])

    def holds(self, code: Code) -> bool | None:
        """Whether a tree has the code; None if the function is missing."""
        body = code.body(self.file, self.function)
        if body is None:
            return None
        found = [bool(pattern_of(fragment).search(body)) for fragment in (*self.has, *self.lacks)]
        return all(found[: len(self.has)]) and not any(found[len(self.has) :])

    def __str__(self) -> str:
        return f"{self.function}() in {self.file}"


def all_hold(probes: Iterable[Probe], code: Code) -> bool | None:
    """Whether all probes hold: False if one does not; otherwise None if the result of one is unknown."""
    found = [probe.holds(code) for probe in probes]
    return False if False in found else None if None in found else True


@dataclass(frozen=True)
class ReleaseRange:
    """The range of builds with a defect, among known releases; None means from the oldest, or to the newest."""

    since: int | None = None
    until: int | None = None

    def holds(self, number: int) -> bool:
        """Whether a known release has the defect."""
        return (self.since or 0) <= number <= (self.until or number)

    def of(self, build_number: str, known: Sequence[int]) -> bool | None:
        """Whether a release has the defect, judging by known releases (sorted); None if the nearest ones differ.

        A release newer than all of these is like the newest; one without a number has any defect that was never fixed.
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
    """The code that was built.

    `code` is the code that ran, with patches; None if the source is not available. `release` is the code of its release
    or upstream commit; None for a user's own tree, whose origin only `build_number` shows. `unchanged`: as released.
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
        """Whether the release has a defect; None if unknown."""
        return range.of(self.build_number, builds()) if self.release is None else all_hold(probes, self.release)

    def tree_has(self, probes: Iterable[Probe], range: ReleaseRange) -> bool | None:
        """Whether the code that ran has a defect; None if it cannot be probed."""
        if self.code is not None:
            return all_hold(probes, self.code)
        return self.release_has(probes, range) if self.unchanged else None


def origin_of(tree: Tree, patches: tuple[Patch, ...]) -> SourceOrigin:
    """The origin of a build of a tree with patches."""
    release = Code(tree.root) if is_upstream(tree.spec) else None
    return SourceOrigin(tree.build_number, Code(tree.root, patches), release, release is not None and not patches)


def origin_in(session: Session, target: Target) -> SourceOrigin:
    """The origin of the code that a session runs on a target."""
    options, manifest = session.options, session.build_for(target).manifest
    if options.build is None and options.tree is not None:
        return origin_of(options.tree, options.patches)
    return origin_elsewhere(manifest.source, manifest.build_number, manifest.patches)


def origin_elsewhere(source: str, build_number: str, patches: Sequence[str]) -> SourceOrigin:
    """The origin of a build whose source is not available, from its recorded properties."""
    return SourceOrigin(build_number, unchanged=is_upstream(source) and not patches)


def is_upstream(spec: str) -> bool:
    """Whether a source is a release or an upstream commit, not a user's own tree."""
    parsed = parse_spec(spec)
    return isinstance(parsed, PypiSpec) or (isinstance(parsed, GitSpec) and parsed.url == UPSTREAM)
