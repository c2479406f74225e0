"""New files below a new folder: created relative to it, following no link, overwriting nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING

from meshbuild.paths import fsync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor, Future
    from pathlib import Path

_FOLDER_MODE = 0o755
_MAX_UNFINISHED = 64


class NewFolder:
    """An open folder to create files in. The folder last used is kept open: neighbours mostly lie in one.

    Files are fsynced in threads, while others are written: it is waiting, and several at once share a journal's commit.
    """

    def __init__(self, descriptor: int, pool: Executor) -> None:
        self._root = descriptor
        self._parent, self._parent_descriptor = "", os.dup(descriptor)
        self._pool = pool
        self._unfinished: deque[Future[None]] = deque()

    @contextlib.contextmanager
    def create(self, path: str, mode: int) -> Iterator[IO[bytes]]:
        """A new file at a checked relative path, for the block to write.

        Missing folders on the way are made, with mode 0755 whatever the umask. The file gets its mode and is fsynced
        and closed afterwards, at the latest when `finish` returns.

        Raises:
            OSError: something lies there already, a link lies on the way, or the disk refuses: this file or another.
        """
        parent, _, name = path.rpartition("/")
        if parent != self._parent:
            self._enter(parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.fdopen(os.open(name, flags, 0o600, dir_fd=self._parent_descriptor), "wb")
        try:
            yield file
            file.flush()
        except BaseException:
            with contextlib.suppress(OSError):
                file.close()
            raise
        self._unfinished.append(self._pool.submit(_finish, file, mode))
        if len(self._unfinished) > _MAX_UNFINISHED:
            self._unfinished.popleft().result()

    def finish(self) -> None:
        """Wait until all files are fsynced and closed. Raises OSError."""
        while self._unfinished:
            self._unfinished.popleft().result()

    def close(self) -> None:
        """Close what is kept open."""
        os.close(self._parent_descriptor)

    def _enter(self, parent: str) -> None:
        at = os.dup(self._root)
        try:
            for name in parent.split("/") if parent else ():
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, _FOLDER_MODE, dir_fd=at)
                    os.chmod(name, _FOLDER_MODE, dir_fd=at)
                below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
                os.close(at)
                at = below
        except BaseException:
            os.close(at)
            raise
        os.close(self._parent_descriptor)
        self._parent, self._parent_descriptor = parent, at


def _finish(file: IO[bytes], mode: int) -> None:
    with file:
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[NewFolder]:
    """Make path, which must not exist, for the block to fill; afterwards its folders are fsynced, its parent is not.

    When the block or the fsync raises, path is gone again. Raises OSError; then whatever lay at path before still does.
    """
    path.mkdir(mode=_FOLDER_MODE)
    try:
        path.chmod(_FOLDER_MODE)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with ThreadPoolExecutor(4) as pool, contextlib.closing(NewFolder(descriptor, pool)) as folder:
                yield folder
                folder.finish()
        finally:
            os.close(descriptor)
        for parent, _, _ in os.walk(path, topdown=False):
            fsync_folder(parent)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
