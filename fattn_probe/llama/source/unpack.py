"""Unpack only the llama.cpp tree from an archive."""

import gzip
import lzma
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from fattn_probe.base.errors import InputError
from fattn_probe.base.files import MIB, writing
from fattn_probe.llama.source.tree import GGML_LANDMARK, LANDMARK, OUTSIDE_GGML, is_kept

MOST_MEMBERS = 100_000
MOST_BYTES = 2048 * MIB
"""Limit on the bytes of all members of an archive; the default source's sdist unpacks to 170 MiB in 4,191 members."""
MOST_KEPT = 512 * MIB
"""Limit on the bytes of the unpacked members; a tree of October 2026 is 10 MB."""
MOST_RATIO = 100
"""Limit on the compression ratio: 5 for the default source's sdist, 1000 for an archive of zeros."""
BROKEN = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


def unpack(archive: Path, target: Path) -> None:
    """Write the kept files of the llama.cpp tree in a tar archive to the new folder `target`.

    Files are written one by one, not by `tarfile.extract`, whose safe filter is missing in Python 3.11.2. InputError if
    the archive is damaged or too large when unpacked, a member's path leads outside the archive, or a kept member is a
    link or a device; MachineError if the disk is full or not writable. After an error, `target` is removed.
    """
    try:
        with tarfile.open(archive) as tar:
            members, total = list[tarfile.TarInfo](), 0
            most = min(MOST_BYTES, MOST_RATIO * archive.stat().st_size + MIB)
            for member in tar:  # reads only the headers
                members.append(member)
                total += member.size
                if len(members) > MOST_MEMBERS:
                    raise InputError(f"{archive.name} has more than {MOST_MEMBERS} members: not used")
                if total > most:
                    raise InputError(f"{archive.name} would unpack to more than {most // MIB} MiB: not used")
            files = list(kept_members(members, *find_prefix(archive, members)))
            if sum(member.size for member, _ in files) > MOST_KEPT:
                raise InputError(f"the llama.cpp tree in {archive.name} exceeds {MOST_KEPT // MIB} MiB: not used")
            for member, relative in files:
                # Write one regular file.
                path = target / relative
                content = tar.extractfile(member)
                assert content is not None, f"{member.name} is a regular file"
                data = content.read()
                with writing(path):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(data)
    except BROKEN as error:
        shutil.rmtree(target, ignore_errors=True)
        said = (str(error).splitlines() or ["it is empty"])[0].rstrip(":")
        raise InputError(f"{archive.name} is not a complete tar archive: {said}") from error
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def find_prefix(archive: Path, members: list[tarfile.TarInfo]) -> tuple[PurePosixPath, bool]:
    """The folder of llama.cpp in the archive (the shallowest if there are several), and False.

    In an archive without llama.cpp: the folder of ggml in the layout of its own repository, and True.
    """
    for member in members:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or "\\" in member.name:
            raise InputError(
                f"{archive.name} holds {member.name!r}, which lies outside the folder it unpacks into: not used"
            )
    for landmark in (LANDMARK, GGML_LANDMARK):
        depth = len(landmark.parts)
        paths = [PurePosixPath(member.name) for member in members if member.name.endswith(str(landmark))]
        roots = [path.parents[depth - 1] for path in paths if path.parts[-depth:] == landmark.parts]
        if roots:
            return min(roots, key=lambda root: len(root.parts)), landmark == GGML_LANDMARK
    raise InputError(f"{archive.name} holds no llama.cpp tree: it has no {LANDMARK}")


def kept_members(
    members: list[tarfile.TarInfo], prefix: PurePosixPath, ggml: bool
) -> Iterator[tuple[tarfile.TarInfo, PurePosixPath]]:
    """The files to write, each with its path in the tree; `ggml` means that the archive has ggml's own layout."""
    for member in members:
        path = PurePosixPath(member.name)
        if member.isdir() or not path.is_relative_to(prefix) or path == prefix:
            continue
        inside = path.relative_to(prefix)
        if ggml and inside.parts[0] not in OUTSIDE_GGML:
            inside = "ggml" / inside
        if not is_kept(inside):
            continue
        if not member.isfile():
            raise InputError(f"{member.name!r} in the archive is a link or a device, not a file: not used")
        yield member, inside
