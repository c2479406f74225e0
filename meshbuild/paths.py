"""Paths that can't escape, and writes that are whole or not there."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from typing import IO, TYPE_CHECKING

from meshbuild.errors import LocalFileError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_PATH_BYTES = 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TEMP_MARK = ".meshbuild-tmp-"


def check_relative_path(text: str) -> str:
    """Return text when it is a plain relative path that stays below the folder it is joined to.

    Slash-separated UTF-8 of at most 1,024 bytes, without empty, `.` or `..` parts, backslashes, control characters or
    lone surrogates.

    Raises:
        ValueError: saying what is wrong with it.
    """
    if not text:
        raise ValueError("is empty")
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{text!r} is not valid Unicode") from error
    if size_bytes > MAX_PATH_BYTES:
        raise ValueError(f"{text[:40]!r}... is longer than {MAX_PATH_BYTES} bytes")
    if text.startswith("/"):
        raise ValueError(f"{text!r} is absolute; it must be relative")
    if "\\" in text or _CONTROL.search(text):
        raise ValueError(f"{text!r} holds a backslash or a control character")
    parts = text.split("/")
    if ".." in parts:
        raise ValueError(f"{text!r} leads outside with '..'")
    if "" in parts or "." in parts:
        raise ValueError(f"{text!r} has an empty or '.' part")
    return text


@contextlib.contextmanager
def local_errors(what: str) -> Iterator[None]:
    """Turn an OSError inside the block into LocalFileError: `what` says what was being done, e.g. "write dist/x"."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise LocalFileError(f"could not {what}: {error.strerror or error}{where}") from error


def fsync_folder(folder: str | os.PathLike[str]) -> None:
    """Make the folder's entries durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_write(path: Path, *, mode: int = 0o644, fsync: bool = True) -> Iterator[IO[bytes]]:
    """Open a temporary file beside path for writing; at the block's end it takes path's place at once.

    The content and the folder's entry are fsynced unless told otherwise. When the block raises, path is as it was and
    the temporary file is gone; after a kill a temporary file may be left, which `remove_stale_temps` clears.

    Args:
        path: where the file shall be; its folder is made when missing.
        mode: permission bits of the result, whatever the umask.
        fsync: False for what can be made again at no loss.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = temp_beside(path)
    descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), mode)
            if fsync:
                os.fsync(file.fileno())
        temp.replace(path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    if fsync:
        fsync_folder(path.parent)


def write_atomically(path: Path, data: bytes, *, mode: int = 0o644, fsync: bool = True) -> None:
    """Write data to path as a whole, as `atomic_write` does."""
    with atomic_write(path, mode=mode, fsync=fsync) as file:
        file.write(data)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Give a new empty folder beside path; at the block's end it is renamed to path.

    Where path appeared in the meantime it is left, and the new folder is thrown away: for content-named folders,
    whoever comes first. When the block raises, the new folder is gone. Files inside are the caller's to fsync.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = temp_beside(path)
    temp.mkdir()
    try:
        yield temp
        fsync_folder(temp)
        try:
            temp.rename(path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        if temp.exists():
            shutil.rmtree(temp, ignore_errors=True)
    fsync_folder(path.parent)


def temp_beside(path: Path) -> Path:
    """A fresh hidden name in path's folder, of the form that `remove_stale_temps` knows."""
    return path.with_name(f".{path.name[:100]}{_TEMP_MARK}{secrets.token_hex(8)}")


def remove_stale_temps(folder: Path, *, older_than_s: float, now_s: float) -> int:
    """Remove what killed writers left in folder, when it is older than the given age; returns how many were removed."""
    removed = 0
    for entry in folder.iterdir() if folder.is_dir() else ():
        if _TEMP_MARK not in entry.name:
            continue
        try:
            stale = entry.lstat().st_mtime < now_s - older_than_s
        except FileNotFoundError:  # a writer at work has finished with it since the folder was listed
            continue
        if stale:
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
            removed += 1
    return removed
