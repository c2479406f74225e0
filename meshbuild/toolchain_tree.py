r"""A toolchain's tree: unpacked from an archive in one pass that writes and hashes, named by one digest.

The tree digest is the same whichever source a toolchain came from: sha256 over the lines `<sha256 hex>  <path>\n`, in
byte order of path, of every regular file under `bin lib pkg src` and of `VERSION` and `go.env`. Other top-level files
are left away; `_go.mod`, as Go module zips must name a nested go.mod, is counted and stored as `go.mod`.

The lines themselves are kept beside the tree as `tree.sha256`: their sha256 is the digest, so that they tell later, and
as surely as the digest, which file was changed; `sha256sum -c tree.sha256` reads them.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import re
import stat
import tarfile
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, NamedTuple

from meshbuild.digests import CHUNK_SIZE_BYTES, Sha256
from meshbuild.errors import ToolchainMismatchError
from meshbuild.paths import check_relative_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

MAX_CONTENT_BYTES = 1 << 30  # Go 1.27 has 0.23 GB in 12,065 files
MAX_MEMBERS = 50_000
LISTING = "tree.sha256"
_MAX_LISTING_BYTES = 64 << 20
# What zipfile and tarfile raise for what they can't read; RuntimeError for an encrypted or otherwise compressed member.
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, RuntimeError)
_FLUSHES_AT_ONCE = 16
_COUNTED = re.compile(r"(?:bin|lib|pkg|src)/.+|VERSION|go\.env", re.DOTALL)
_EXECUTABLE = re.compile(r"bin/[^/]+|pkg/tool/[^/]+/[^/]+")


class _Member(NamedTuple):
    """An entry of an archive.

    Attributes:
        name: as the archive has it, without a folder's final slash.
        type: S_IFREG, S_IFDIR, or whatever else it is.
        size_bytes: of its content, as the archive declares it.
        open: gives its content; the members of a tar are best opened in their order.
    """

    name: str
    type: int
    size_bytes: int
    open: Callable[[], IO[bytes]]


def unpack(archive: Path, *, prefix: str, into: Path, progress: Callable[[int, int], None]) -> Sha256:
    """Unpack the tree that lies under a prefix of a zip or .tar.gz file into an empty folder.

    All entries are checked before the first is written: names that lead outside, links, devices, duplicates and more
    content than any toolchain has are refused, wherever in the archive they lie. Modes are set here, whatever the
    archive and the umask say: 0755 for folders, `bin/*` and `pkg/tool/*/*`, 0644 for all else.

    Args:
        archive: the file.
        prefix: what comes before the tree in the names, with its slash: `go/`.
        into: the folder; what is in it after a failure is of no use.
        progress: called now and then with bytes written and bytes in all.

    Returns:
        The digest of the tree that was written; its listing lies in `tree.sha256`.

    Raises:
        ToolchainMismatchError: the archive is damaged, or refused for what it holds.
        OSError: a file can't be written.
    """
    with _opened(archive) as members:
        chosen = _chosen(members, prefix)
        into.chmod(0o755)
        for folder in sorted(_folders(chosen)):
            os.mkdir(into / folder)  # noqa: PTH102 - followed by a chmod: mkdir's own mode is subject to the umask
            os.chmod(into / folder, 0o755)  # noqa: PTH101, S103 - a toolchain is for all users to read
        total_bytes = sum(member.size_bytes for member in chosen.values())
        files: dict[str, str] = {}
        done_bytes = 0
        for count, (path, member) in enumerate(chosen.items()):
            files[path] = _write(f"{into}/{path}", member, 0o755 if _EXECUTABLE.fullmatch(path) else 0o644)
            done_bytes += member.size_bytes
            if count % 100 == 0:
                progress(done_bytes, total_bytes)
    progress(total_bytes, total_bytes)
    listing = _listing(files)
    (into / LISTING).write_bytes(listing)
    (into / LISTING).chmod(0o644)
    return Sha256.of(listing)


def tree_digest(root: Path) -> Sha256:
    """The tree digest of an unpacked toolchain, every file read again.

    Raises:
        ToolchainMismatchError: a link, or something else that isn't a file or a folder, lies in it.
        OSError: it can't be read.
    """
    return Sha256.of(_listing(_files(root)))


def differences(root: Path, tree: Sha256) -> list[str]:
    """What of an unpacked toolchain isn't as its digest says: `changed src/a.go`, `missing ...`, `extra ...`, by path.

    Empty when nothing can be told, since the listing beside the tree isn't the digest's: it is gone, was changed, or
    comes from a version that kept none.

    Raises:
        ToolchainMismatchError: a link, or something else that isn't a file or a folder, lies in it.
        OSError: it can't be read.
    """
    try:
        with (root / LISTING).open("rb") as file:
            listing = file.read(_MAX_LISTING_BYTES)
    except FileNotFoundError:
        return []
    if Sha256.of(listing) != tree:
        return []
    lines = listing.decode().split("\n")[:-1]
    known = {path: digest for digest, _, path in (line.partition("  ") for line in lines)}
    found = _files(root)
    told = dict.fromkeys(known.keys() - found.keys(), "missing")
    told |= dict.fromkeys(found.keys() - known.keys(), "extra")
    told |= {path: "changed" for path in known.keys() & found.keys() if known[path] != found[path]}
    return [f"{told[path]} {path}" for path in sorted(told)]


def flush(root: Path) -> None:
    """Wait until every file and folder of a tree is on the disk. Raises OSError.

    Many at a time, so that the file system commits them together: 12,000 files take a second, and eight one by one.
    sync() would wait for everybody else's files too, on every file system that is mounted.
    """
    paths = [path for folder, _, names in os.walk(root) for path in (folder, *(f"{folder}/{name}" for name in names))]
    with ThreadPoolExecutor(_FLUSHES_AT_ONCE) as pool:
        for _ in pool.map(_flush, paths):
            pass  # an error is raised here


def _flush(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _walk(root: Path, folder: str) -> Iterator[str]:
    with os.scandir(root / folder) as entries:
        for entry in entries:
            path = f"{folder}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(root, f"{path}/")
            elif _COUNTED.fullmatch(path):
                if not entry.is_file(follow_symlinks=False):
                    raise ToolchainMismatchError(f"{root / path} is not a regular file")
                yield path


@contextlib.contextmanager
def _opened(archive: Path) -> Iterator[Iterable[_Member]]:
    """Open a zip or a .tar.gz, and turn what their libraries say of a damaged one into our error."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                yield _zip_members(zipped)
        else:
            with tarfile.open(archive, "r:gz") as tar:
                yield _tar_members(tar)
    except _DAMAGED as error:
        raise ToolchainMismatchError(f"it can't be unpacked: {error}") from error


def _zip_members(zipped: zipfile.ZipFile) -> Iterator[_Member]:
    for info in zipped.infolist():
        if info.header_offset < 0:  # which zipfile would seek to
            raise zipfile.BadZipFile(f"{info.filename!r} lies before the file's start")
        kind = stat.S_IFDIR if info.is_dir() else stat.S_IFMT(info.external_attr >> 16) or stat.S_IFREG
        yield _Member(info.filename.removesuffix("/"), kind, info.file_size, lambda info=info: zipped.open(info))  # type: ignore[misc]


def _tar_members(tar: tarfile.TarFile) -> Iterator[_Member]:
    kinds = {tarfile.REGTYPE: stat.S_IFREG, tarfile.AREGTYPE: stat.S_IFREG, tarfile.DIRTYPE: stat.S_IFDIR}
    for info in tar:
        yield _Member(info.name, kinds.get(info.type, 0), info.size, lambda info=info: tar.extractfile(info))  # type: ignore[misc, arg-type]


def _chosen(members: Iterable[_Member], prefix: str) -> dict[str, _Member]:
    """Check every member; those of the tree, by their path in it."""
    chosen: dict[str, _Member] = {}
    names: set[str] = set()
    total_bytes = 0
    for count, member in enumerate(members, 1):
        total_bytes += member.size_bytes
        if count > MAX_MEMBERS or total_bytes > MAX_CONTENT_BYTES:
            raise ToolchainMismatchError(
                f"it holds more than any toolchain does: over {MAX_MEMBERS} entries or {MAX_CONTENT_BYTES} bytes"
            )
        path = _tree_path(member, prefix)
        if path and path in names:
            raise ToolchainMismatchError(f"it holds {path!r} twice")
        names.add(path)
        if member.type == stat.S_IFREG and _COUNTED.fullmatch(path):
            chosen[path] = member
    clash = _folders(chosen) & chosen.keys()
    if clash:
        raise ToolchainMismatchError(f"it holds {min(clash)!r} both as a file and as a folder")
    return chosen


def _tree_path(member: _Member, prefix: str) -> str:
    """A member's path in the tree; empty when it lies elsewhere."""
    try:
        name = check_relative_path(member.name)
    except ValueError as error:
        raise ToolchainMismatchError(f"it holds a hostile name, which {error}") from error
    if member.type not in {stat.S_IFREG, stat.S_IFDIR}:
        raise ToolchainMismatchError(f"it holds {name!r}, which is neither a file nor a folder")
    if not name.startswith(prefix):
        return ""
    folder, slash, base = name.removeprefix(prefix).rpartition("/")
    return f"{folder}{slash}{'go.mod' if base == '_go.mod' else base}"


def _folders(paths: Iterable[str]) -> set[str]:
    folders: set[str] = set()
    for path in paths:
        folder = os.path.dirname(path)  # noqa: PTH120 - a str, 12,000 times
        while folder and folder not in folders:
            folders.add(folder)
            folder = os.path.dirname(folder)  # noqa: PTH120
    return folders


def _write(file: str, member: _Member, mode: int) -> str:
    digest = hashlib.sha256()
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as out, member.open() as content:
        while chunk := content.read(CHUNK_SIZE_BYTES):
            digest.update(chunk)
            out.write(chunk)
        os.fchmod(descriptor, mode)
    return digest.hexdigest()


def _files(root: Path) -> dict[str, str]:
    return {path: Sha256.of_file(root / path) for path in _walk(root, "")}


def _listing(files: Mapping[str, str]) -> bytes:
    return "".join(f"{files[path]}  {path}\n" for path in sorted(files, key=str.encode)).encode()
