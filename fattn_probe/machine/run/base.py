"""A base source's launches, from dry runs, for comparison with the launches of an edited or patched llama.cpp."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fattn_probe.base.errors import FattnProbeError, LostError
from fattn_probe.cases.device import Target
from fattn_probe.cases.device.origin import Method
from fattn_probe.cases.scenario import Case
from fattn_probe.llama.build.ninja import Report, silent
from fattn_probe.llama.launch.record import LaunchRecord, in_words, parse_launches
from fattn_probe.llama.source import DEFAULT_SOURCE, Tree, resolve
from fattn_probe.llama.source.git import commit_source, upstream_commit
from fattn_probe.llama.source.spec import PINS, FolderSpec, GitSpec, PypiSpec, parse_spec
from fattn_probe.machine.run.command import Done
from fattn_probe.machine.run.outcome import Ran, Unsupported, missing_kernels
from fattn_probe.machine.run.prepare import KernelsByOp, dry_runs
from fattn_probe.machine.run.session import RunOptions, Session

Launches = Mapping[str, tuple[LaunchRecord, ...]]
"""Launches by the digest of the op."""


@dataclass(frozen=True)
class Base:
    """A base: the options to run it with, and its name; `missing` says why the base is unavailable, or is empty."""

    options: RunOptions
    words: str
    missing: str = ""

    def launches(self, cases: Sequence[Case], target: Target, progress: Report = silent) -> Launches:
        """The launches of the cases on a simulated GPU; cases whose dry run failed are left out.

        The launches are cached, so that a base is compiled and run only once. LostError if the base is unavailable.
        """
        if self.missing:
            raise LostError(self.missing)
        ops = {case.op.digest: case for case in cases}
        remembered = KernelsByOp.launches(self.options, target)
        lines = remembered.read()
        fresh = {digest: case for digest, case in ops.items() if digest not in lines}
        if fresh:
            lines |= dry_runs(Session(self.options, progress), fresh, target, launch_lines)
            remembered.write(lines)
        return {digest: parse_launches("\n".join(lines[digest])) for digest in ops if digest in lines}


def launch_lines(tree: Tree) -> Callable[[Done], tuple[str, ...] | None]:
    """A function that reads a dry run's launches as JSON lines: empty for an unsupported op, None for a failed run."""

    def lines(done: Done) -> tuple[str, ...] | None:
        if isinstance(done.result, Ran) and not missing_kernels(done.result.warnings):
            return tuple(json.dumps(launch.document()) for launch in done.launches)
        return () if isinstance(done.result, Unsupported) else None

    return lines


def base_of(options: RunOptions) -> Base | None:
    """The base of a session's source; None for an unchanged release.

    With patches, the base is the source without them. For a checkout, it is the merge base with the upstream branch, if
    their contents differ. Otherwise, it is the pinned release with the tree's build number, or the default release.
    None for a local commit, and if every base has the same content as the source.
    """
    tree = options.tree
    if tree is None or options.build is not None or not options.beside_base:
        return None
    dry = replace(options, flavour="release", sanitize=(), patches=(), repeat=1, warmup=0)
    if options.patches:
        return Base(dry, f"{tree.spec} without its patches")
    spec = parse_spec(tree.spec)
    if isinstance(spec, PypiSpec) or (isinstance(spec, GitSpec) and spec.url.startswith("file:")):
        return None
    release = release_of(tree.build_number)
    bases = {release: release}
    if isinstance(spec, FolderSpec) and (commit := upstream_commit(tree.root)):
        bases = {commit_source(tree.root, commit): f"the merge base {commit[:9]}"} | bases
    for source, words in bases.items():
        try:
            found = resolve(source)
        except FattnProbeError as error:
            return Base(dry, words, str(error))
        if found.digest != tree.digest:
            return Base(replace(dry, tree=found), words)
    return None


def release_of(build_number: str) -> str:
    """The pinned release with this build number; without one, the default release."""
    pinned = (PypiSpec(name, version) for name, version in PINS)
    found = (f"pypi:{one.name}=={one.version}" for one in pinned if one.build_number == build_number)
    return next(found, DEFAULT_SOURCE)


def changed(before: Sequence[LaunchRecord], after: Sequence[LaunchRecord]) -> str:
    """The change of an op's launches, as a message; empty if kernels, grids, blocks and shared memory are the same."""
    if tuple(before) == tuple(after):
        return ""
    gone, new = Counter(before) - Counter(after), Counter(after) - Counter(before)
    was, now = in_words(gone.elements()), in_words(new.elements())
    if not (was and now):
        return f"no longer {was}" if was else f"new: {now}" if now else "the same launches in a different order"
    guessed = [{launch.origin.method for launch in some if launch.family} == {Method.ASSUMED} for some in (gone, new)]
    doubt = " (the new grid is uncertain, because the kernel's registers are only assumed)"
    return f"{was} became {now}{doubt if guessed == [False, True] else ''}"
