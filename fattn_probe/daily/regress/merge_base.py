"""Compare a fork's run with a run of the same cases on the merge base, which serves as the baseline."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fattn_probe.base.errors import InputError
from fattn_probe.base.host import user_name
from fattn_probe.cases.device import Target
from fattn_probe.daily.regress.changes import changes
from fattn_probe.daily.regress.entries import Given, run_name, run_suite
from fattn_probe.daily.regress.records import MERGE_BASE, RunPart
from fattn_probe.daily.regress.runner import Outcome, SuiteRunner, say_nothing
from fattn_probe.daily.regress.suite import Entry
from fattn_probe.daily.regress.telling import changed_functions
from fattn_probe.llama.source import Tree, resolve
from fattn_probe.llama.source.git import changed_files, commit_source, merge_base
from fattn_probe.machine.run.session import Session
from fattn_probe.verdict.judge.origin import Code


@dataclass(frozen=True)
class MergeBase:
    """The merge base of a checkout and `ref`, and the attention files that have changed since then."""

    tree: Tree
    ref: str
    commit: str
    changed: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.commit[:9]}, the merge base with {self.ref}"

    def places(self) -> str:
        """The changed files and functions in words, for a summary."""
        base = resolve(commit_source(self.tree.root, self.commit))
        found = ", ".join(map(str, changed_functions(Code(base.root), Code(self.tree.root))))
        return f"Attention files that differ from {self}: {', '.join(self.changed)}. Changed code: {found}"

    def compared(
        self,
        found: Sequence[Outcome],
        pairs: Sequence[tuple[Entry, Target]],
        folder: Path,
        own: SuiteRunner,
        given: Given,
    ) -> Iterator[Outcome]:
        """Yield each outcome, compared with a run of its cases on the merge base.

        If a run ended early, only its judged cases are compared. A line's first baseline is the merge base's run.
        """
        options = replace(own.session.options, tree=resolve(commit_source(self.tree.root, self.commit)), patches=())
        session = Session(options, own.session.progress, watch=own.session.watch)
        part = RunPart(own.part.shard, MERGE_BASE + self.commit)
        runner = replace(own, session=session, part=part, exit_first=False, say=say_nothing)
        if any(outcome.counts["not run"] for outcome in found):
            names = sorted({name for outcome in found for name in outcome.results})
            given = replace(given, only=f"^(?:{'|'.join(map(re.escape, names))})$")
        heads = {(outcome.run.suite, outcome.run.identity.line): outcome for outcome in found}
        known = {outcome.run.suite for outcome in found if outcome.results}
        pairs = [pair for pair in pairs if run_name(own.suite, pair[0]) in known]
        runner = replace(runner, only=given.only)
        for outcome in run_suite(pairs, folder, runner, given):
            head = heads.pop((outcome.run.suite, outcome.run.identity.line), None)
            if outcome.stopped:
                continue
            if outcome.baseline is None and not own.history.unfit(outcome.run, part.shard):
                own.history.accept(outcome.run, user_name(), str(self), part.shard)
            if head is not None:
                before = {name: outcome.results[name] for name in head.results if name in outcome.results}
                after = {name: result for name, result in head.results.items() if name in before}
                yield replace(head, baseline=outcome.run, changes=changes(before, after))
        yield from heads.values()


def merge_base_of(tree: Tree | None, ref: str) -> MergeBase:
    """The merge base of a source and a branch; raises InputError if the source is not a checkout."""
    if tree is None or not (root := tree.root).is_relative_to(Path(tree.spec).expanduser().resolve()):
        raise InputError("--base needs a git checkout as --source")
    commit = merge_base(root, ref)
    return MergeBase(tree, ref, commit, tuple(changed_files(root, commit)))
