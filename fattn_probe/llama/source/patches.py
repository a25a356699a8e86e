"""Patches: unified diffs that are applied to a copy of a tree, exactly or not at all."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING

from fattn_probe.base.digest import hexdigest
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import MOST_PATCH, read_text, replacing
from fattn_probe.cases.shipped import files, folder, names, unknown
from fattn_probe.llama.source.tree import Tree

if TYPE_CHECKING:  # imported only when a patch is parsed
    import whatthepatch

DEBUG_ALIGNMENT = "debug-alignment"
NO_FILE = "/dev/null"
FAULT_KEYS = ("family", "users", "noticed", "shows", "catch", "cause", "diagnosis")
"""The keys in the headers of patches/faults, which faults.py reads."""
_HEADER = re.compile(r"^#\s?(?P<text>.*)$", re.MULTILINE)
_KEY = re.compile(rf"(?P<key>{'|'.join(('for', 'fits', *FAULT_KEYS))}):(?P<value>.*)")
_FILE = re.compile(r"^(?=--- .*\n\+\+\+ .*\n@@ -)", re.MULTILINE)
_HUNK = re.compile(r"^@@ -\d+(?:,(?P<old>\d+))? \+\d+(?:,(?P<new>\d+))? @@", re.MULTILINE)


@dataclass(frozen=True)
class Patch:
    """One patch file; `keys` are the `# key: value` lines of its header, `about` is the header's other text."""

    name: str
    path: Path
    about: str
    keys: tuple[tuple[str, str], ...]
    text: str

    def value(self, key: str) -> str:
        """The value of a key in the header; empty if it is missing."""
        return dict(self.keys).get(key, "")

    @property
    def purpose(self) -> str:
        """The patch's purpose, in one line."""
        return self.value("for")

    @property
    def fits(self) -> tuple[str, ...]:
        """The eras of sources that the patch is for; empty if its header names none."""
        return tuple(self.value("fits").split())

    @property
    def digest(self) -> str:
        """The sha256 of the file, for build keys."""
        return hexdigest(self.text)

    @property
    def changes(self) -> str:
        """The sha256 of the diff without the header, which cannot affect results."""
        return hexdigest(self.text.partition("\n--- ")[2])


@dataclass(frozen=True)
class Hunk:
    """One hunk; `start` is its line in the old file according to its header, counted from 0."""

    number: int
    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True)
class FileDiff:
    """A patch's changes to one file."""

    path: PurePosixPath
    creates: bool
    deletes: bool
    hunks: tuple[Hunk, ...]


def shipped() -> list[Patch]:
    """Every patch that comes with fattn-probe; a patch that has files for several eras appears once for each era."""
    return [load(path) for path in files("patch")]


def load(path: Path) -> Patch:
    """Read a patch file, including the `#` lines of its header: keys and prose."""
    text = read_text(path, "the patch", MOST_PATCH)
    lines = _HEADER.findall(text.partition("\n--- ")[0])
    keys = tuple((found["key"], found["value"].strip()) for line in lines if (found := _KEY.fullmatch(line)))
    about = " ".join(line.strip() for line in lines if not _KEY.fullmatch(line)).strip()
    return Patch(re.sub(r"(\.[a-z])?\.patch$", "", path.name), path, about, keys, text)


def find(name_or_file: str, tree: Tree) -> Patch:
    """The patch for this tree, given by its path or by the name of a shipped patch.

    If several files have the name, the first one that applies is used. InputError for an unknown name, or if the
    patch's `fits` does not include the tree's era.
    """
    if not name_or_file:
        raise InputError("the name is empty: give the name of a shipped patch, or a path")
    is_file = "/" in name_or_file or name_or_file.endswith((".patch", ".diff")) or Path(name_or_file).is_file()
    shipped_fault = name_or_file in names("fault")
    candidates = [load(Path(name_or_file))] if is_file and not shipped_fault else named(name_or_file)
    fitting = [patch for patch in candidates if not patch.fits or tree.features.era in patch.fits]
    if not fitting:
        eras = ", ".join(era for patch in candidates for era in patch.fits)
        raise InputError(
            f"patch {name_or_file} is made for sources of era {eras}; {tree.spec} is of era {tree.features.era}"
        )
    return next((patch for patch in fitting if applies(patch, tree.root)), fitting[-1])


def needed(tree: Tree, engine: str, flavour: str) -> tuple[Patch, ...]:
    """The shipped patches that a build of this kind requires, if they apply to the tree."""
    if (engine, flavour) != ("cuda", "debug"):
        return ()
    return tuple(patch for patch in named(DEBUG_ALIGNMENT) if applies(patch, tree.root))


def named(name: str) -> list[Patch]:
    """The shipped patches with this name; a fault of the corpus is `faults/NAME`."""
    if name in names("fault"):
        return [load(folder("fault") / f"{name}.patch")]
    patches = shipped()
    if found := [patch for patch in patches if patch.name == name]:
        return found
    raise unknown("patch", name, name, sorted({patch.name for patch in patches}))


def applies(patch: Patch, root: Path) -> bool:
    """Whether every hunk applies to the tree at `root`; writes nothing."""
    try:
        plan(patch, root)
    except InputError:
        return False
    return True


def apply(patch: Patch, overlay_root: Path) -> list[Path]:
    """Apply a patch to an overlay, and return the changed files.

    Every hunk must match exactly, but may have moved; otherwise InputError names the hunk, the file and the line, and
    nothing is written. Files are replaced, not modified, so links into a shared tree are safe.
    """
    contents = plan(patch, overlay_root)
    for path, content in contents.items():
        if content is None:
            path.unlink()
        else:
            # Replace the file atomically.
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as part:
                part.write_text(content, newline="")
                part.chmod(0o644)
    return list(contents)


def plan(patch: Patch, root: Path, before: Mapping[Path, str | None] = MappingProxyType({})) -> dict[Path, str | None]:
    """The new content of each changed file, None for a deleted one; writes nothing.

    `before` has the files that earlier patches changed, with their new content; the result includes these files.
    """
    contents = dict(before)
    for diff in parse(patch):
        path = root / diff.path
        if not path.parent.resolve().is_relative_to(root.resolve()):
            raise InputError(f"patch {patch.name}: {diff.path} leaves the tree through a link")
        if path not in contents:
            if diff.creates and path.exists():
                raise InputError(f"patch {patch.name} creates {diff.path}, but the source already has that file")
            if not diff.creates and not path.is_file():
                raise InputError(f"patch {patch.name}: hunk 1 changes {diff.path}, but the source has no such file")
            contents[path] = None if diff.creates else path.read_bytes().decode()
        contents[path] = patched(patch, diff, contents[path])
    return contents


def changed_by(some: Iterable[Patch], root: Path) -> Mapping[Path, str | None]:
    """The files of the tree at `root` that some patches change, None for a deleted one."""
    found: dict[Path, str | None] = {}
    for patch in some:
        found = plan(patch, root, found)
    return found


def patched(patch: Patch, diff: FileDiff, content: str | None) -> str | None:
    """A file's content after all of its hunks."""
    lines, done, moved = (content or "").split("\n"), 0, 0
    for hunk in diff.hunks:
        nominal, starts = hunk.start + moved, range(done, len(lines) - len(hunk.old) + 1)
        places = [start for start in starts if tuple(lines[start : start + len(hunk.old)]) == hunk.old]
        places = [nominal] if nominal in places else places
        if len(places) != 1:
            raise InputError(f"patch {patch.name}: " + mismatch(diff, hunk, lines, nominal, places))
        lines[places[0] : places[0] + len(hunk.old)] = hunk.new
        done = places[0] + len(hunk.new)
        moved = done - hunk.start - len(hunk.old)
    return None if diff.deletes else "\n".join(lines)


def mismatch(diff: FileDiff, hunk: Hunk, lines: Sequence[str], nominal: int, places: Sequence[int]) -> str:
    """The reason why a hunk does not apply: its first line that differs, or the several places that match."""
    start = f"hunk {hunk.number} does not apply to {diff.path}"
    if places:
        stands = ", ".join(str(place + 1) for place in places)
        return f"{start}: it matches at lines {stands}, but not at line {nominal + 1}, so its position is ambiguous"
    found = [*lines[nominal : nominal + len(hunk.old)], *["<end of file>"] * len(hunk.old)]
    index = next((index for index, line in enumerate(hunk.old) if found[index] != line), 0)
    return (
        f"{start}: line {nominal + index + 1} should be\n  {hunk.old[index]}\nbut is\n  {found[index]}\n"
        f"(no other position after the previous hunk matches all of its {len(hunk.old)} lines)"
    )


def parse(patch: Patch) -> list[FileDiff]:
    """The diffs of a patch; InputError if it is damaged or leaves the tree."""
    import whatthepatch

    sizes = [(int(match["old"] or 1), int(match["new"] or 1)) for match in _HUNK.finditer(patch.text)]
    try:  # file by file: without a `diff` line, whatthepatch reads a second file as more hunks of the first one
        parsed = [diff for part in _FILE.split(patch.text)[1:] for diff in whatthepatch.parse_patch(part)]
    except (whatthepatch.exceptions.WhatThePatchException, ValueError, AssertionError) as error:
        raise InputError(f"patch {patch.path} is not a unified diff: {error}") from error
    diffs = [file_diff(patch, diff.header, diff.changes) for diff in parsed if diff.changes]
    # Compare each hunk with the line counts in its header: an editor that strips trailing blanks damages a patch.
    hunks = [(diff, hunk) for diff in diffs for hunk in diff.hunks]
    if not hunks or len(hunks) != len(sizes):
        raise InputError(f"patch {patch.path} is an incomplete unified diff: {len(sizes)} hunks, {len(hunks)} readable")
    for (diff, hunk), size in zip(hunks, sizes, strict=True):
        if (len(hunk.old), len(hunk.new)) != size:
            raise InputError(
                f"patch {patch.path}: hunk {hunk.number} of {diff.path} is damaged: its header says "
                f"{size[0]} old and {size[1]} new lines, but it has {len(hunk.old)} and {len(hunk.new)}"
            )
    return diffs


def file_diff(
    patch: Patch, header: "whatthepatch.patch.header", changes: Sequence["whatthepatch.patch.Change"]
) -> FileDiff:
    """One file's diff from whatthepatch's records."""
    old, new = (header.old_path, header.new_path) if header else ("", "")
    if old != new and (rest := old.partition("/")[2]) == new.partition("/")[2]:  # `diff -ru` of two folders
        old = new = rest
    if (NO_FILE not in (old, new) and old != new) or not new:
        raise InputError(f"patch {patch.path} renames {old} to {new}; renames are not supported")
    path = PurePosixPath(old if new == NO_FILE else new)
    if path.is_absolute() or ".." in path.parts or "\\" in str(path):
        raise InputError(f"patch {patch.path}: {path} lies outside the tree: not applied")
    hunks = []
    for number in sorted({change.hunk for change in changes}):
        # A change without a new line number is a removal, one without an old number an addition.
        removed = [change for change in changes if change.hunk == number and change.old is not None]
        added = tuple(change.line for change in changes if change.hunk == number and change.new is not None)
        start = min((change.old for change in removed), default=1) - 1
        hunks.append(Hunk(number, start, tuple(change.line for change in removed), added))
    return FileDiff(path, old == NO_FILE, new == NO_FILE, tuple(hunks))
