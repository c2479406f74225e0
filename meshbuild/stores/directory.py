"""A store in a folder: the reference for every other kind, and what a web server serves as it is."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from filelock import FileLock

from meshbuild.errors import ObjectCorruptError, ObjectMissingError, StoreError
from meshbuild.paths import check_relative_path, fsync_folder, remove_stale_temps, temp_beside
from meshbuild.stores import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator

_STALE_AFTER_S = 86_400


class DirectoryStore:
    """A folder with one file a key.

    Files appear by a hard link to a finished temporary file beside them, so that readers see all of one or none, and
    two creators can't both win. The swap of a file is done under a lock that the kernel drops when its holder dies.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser().absolute()
        self.address = str(self.folder)

    def read(self, key: str, *, limit_bytes: int) -> bytes:
        """All of a small file; see `ReadableStore.read`."""
        with self.open(key) as file:
            try:
                data = file.read(limit_bytes + 1)
            except OSError as error:
                raise StoreError(f"{self.address}: could not read {key}: {error.strerror or error}") from error
        if len(data) > limit_bytes:
            raise ObjectCorruptError(f"{self.address}: {key} is longer than the {limit_bytes} bytes allowed")
        return data

    @contextlib.contextmanager
    def open(self, key: str) -> Iterator[BinaryIO]:
        """A file as a stream; see `ReadableStore.open`."""
        path = self._path(key)
        try:
            # Without O_NONBLOCK a named pipe that lies there would be waited for.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ObjectMissingError(f"{self.address}: there is no {key}") from error
        except OSError as error:
            raise StoreError(f"{self.address}: could not read {key}: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise StoreError(f"{self.address}: could not read {key}: it is not a regular file")
        with os.fdopen(descriptor, "rb") as file:
            yield file

    def create(self, key: str, source: bytes | Path) -> bool:
        """Put a file under a key if there is none; see `WritableStore.create`."""
        path = self._path(key)
        with self._writing(key):
            if os.path.lexists(path):
                fsync_folder(path.parent)  # whoever made it may not have come to that yet
                return False
            with self._temporary(path, source) as temp:
                try:
                    os.link(temp, path)
                except FileExistsError:
                    return False
        return True

    def swap(self, key: str, data: bytes, *, expected: bytes | None) -> bool:
        """Replace a small file if it is still the expected one; see `WritableStore.swap`."""
        path = self._path(key)
        with self._writing(key):
            self._make_folders(path.parent)
            with FileLock(path.with_name(f".{path.name}.lock"), mode=0o644):
                if self._present(key) != expected:
                    return False
                remove_stale_temps(path.parent, older_than_s=_STALE_AFTER_S, now_s=time.time())
                with self._temporary(path, data) as temp:
                    temp.replace(path)
        return True

    def replace(self, key: str, source: bytes | Path) -> None:
        """Put a whole object where a short or wrong one lies; see `WritableStore.replace`."""
        path = self._path(key)
        with self._writing(key), self._temporary(path, source) as temp:
            temp.replace(path)

    def age_s(self, key: str) -> float:
        """How long a file has been there; see `WritableStore.age_s`."""
        with self.open(key) as file:
            return self.now_s() - os.fstat(file.fileno()).st_mtime

    def entries(self) -> Iterator[Entry]:
        """Every file of the store; see `ListableStore.entries`. Temporary files and locks start with a dot."""
        for folder, folders, names in os.walk(self.folder, onerror=_refuse):
            folders[:] = [name for name in folders if name[0] != "."]
            for name in names:
                path = os.path.join(folder, name)  # noqa: PTH118 - there may be very many
                with contextlib.suppress(FileNotFoundError):  # somebody else's temporary file
                    status = os.lstat(path)
                    if name[0] != "." and stat.S_ISREG(status.st_mode):
                        key = os.path.relpath(path, self.folder).replace(os.sep, "/")
                        yield Entry(key, status.st_size, status.st_mtime)

    def now_s(self) -> float:
        """What the file system's clock says; see `ListableStore.now_s`."""
        with self._writing("the store"), tempfile.TemporaryFile(dir=self.folder) as file:
            return os.fstat(file.fileno()).st_ctime

    def remove(self, key: str) -> None:
        """Remove a file; see `ListableStore.remove`."""
        path = self._path(key)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"{self.address}: could not remove {key}: {error.strerror}") from error

    def _path(self, key: str) -> Path:
        """A key's file. Raises StoreError for what isn't a key, or leads out of the store by a link."""
        try:
            path = self.folder / check_relative_path(key)
        except ValueError as error:
            raise StoreError(f"{self.address}: not a key: {error}") from error
        if path.parent.resolve() != self.folder.resolve() / path.parent.relative_to(self.folder):
            raise StoreError(f"{self.address}: {key} lies behind a link, and links in a store are not followed")
        return path

    def _present(self, key: str) -> bytes | None:
        try:
            with self.open(key) as file:
                return file.read()
        except ObjectMissingError:
            return None

    @contextlib.contextmanager
    def _writing(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"{self.address}: could not write {key}: {error.strerror or error}") from error

    @contextlib.contextmanager
    def _temporary(self, path: Path, source: bytes | Path) -> Iterator[Path]:
        """A finished, durable file beside path; whatever the block did with it, the folder is made durable after it."""
        self._make_folders(path.parent)
        temp = temp_beside(path)
        try:
            descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as out:
                if isinstance(source, bytes):
                    out.write(source)
                else:
                    with source.open("rb") as file:
                        shutil.copyfileobj(file, out, 1 << 20)
                out.flush()
                os.fchmod(out.fileno(), 0o644)
                os.fsync(out.fileno())
            yield temp
            fsync_folder(path.parent)
        finally:
            temp.unlink(missing_ok=True)

    def _make_folders(self, folder: Path) -> None:
        """Make the folder of a key, readable for all whatever the umask."""
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
            if each.is_relative_to(self.folder):
                each.chmod(0o755)
            fsync_folder(each.parent)


def _refuse(error: OSError) -> NoReturn:
    raise StoreError(f"could not list {error.filename}: {error.strerror}") from error
