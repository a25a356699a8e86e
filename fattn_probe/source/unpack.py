"""The llama.cpp tree inside an archive, and nothing else of it."""

import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from fattn_probe.errors import InputError
from fattn_probe.source.tree import LANDMARK, is_kept


def unpack(archive: Path, target: Path) -> None:
    """Write the kept files of the llama.cpp tree in a tar archive into the new folder `target`.

    Files are written one by one instead of by `tarfile.extract`, whose safe filter is missing in Python 3.11.2.
    A member whose name leaves the archive's folder condemns the whole archive, and so does a link or device among
    the kept files: InputError.
    """
    try:
        with tarfile.open(archive) as tar:
            members = tar.getmembers()
            prefix = find_prefix(archive, members)
            for member, relative in kept_members(members, prefix):
                write_member(tar, member, target / relative)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InputError(f"{archive.name} is not a whole tar archive: {error}") from error


def find_prefix(archive: Path, members: list[tarfile.TarInfo]) -> PurePosixPath:
    """The folder inside the archive that holds llama.cpp; the shallowest if there are several."""
    for member in members:
        check_name(archive, member.name)
    depth = len(LANDMARK.parts)
    paths = [PurePosixPath(member.name) for member in members if member.name.endswith(str(LANDMARK))]
    roots = [path.parents[depth - 1] for path in paths if path.parts[-depth:] == LANDMARK.parts]
    if not roots:
        raise InputError(f"{archive.name} carries no llama.cpp tree: there is no {LANDMARK} in it")
    return min(roots, key=lambda root: len(root.parts))


def check_name(archive: Path, name: str) -> None:
    """Refuse a member that would be written outside the folder it is unpacked into."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise InputError(f"{archive.name} holds {name!r}, which leaves the folder it is unpacked into: it is not used")


def kept_members(
    members: list[tarfile.TarInfo], prefix: PurePosixPath
) -> Iterator[tuple[tarfile.TarInfo, PurePosixPath]]:
    """The files to write, each with its path inside the tree."""
    for member in members:
        path = PurePosixPath(member.name)
        if member.isdir() or not path.is_relative_to(prefix) or not is_kept(path.relative_to(prefix)):
            continue
        if not member.isfile():
            raise InputError(f"{member.name!r} in the archive is a link or a device, not a file: it is not used")
        yield member, path.relative_to(prefix)


def write_member(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    """Write one regular file."""
    content = tar.extractfile(member)
    assert content is not None, f"{member.name} is a regular file"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.read())
