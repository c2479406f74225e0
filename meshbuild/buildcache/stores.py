"""Where the entries of a shared build cache lie: a folder, or a web server that takes GET and PUT.

Nothing here is trusted, and nothing needs to be durable: what is missing, short or wrong is a miss.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol
from urllib.parse import urlsplit, urlunsplit

from meshbuild.errors import SettingsError, StoreError
from meshbuild.paths import atomic_write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    import requests

    from meshbuild.buildcache.entry import Readable

_CONNECT_TIMEOUT_S, _SILENCE_TIMEOUT_S = 3.0, 5.0


class CacheStore(Protocol):
    """What the shared build cache needs of a store. Its methods are called from several threads at once.

    Attributes:
        address: the store as a person would name it, without passwords.
    """

    address: str

    def get(self, name: str) -> AbstractContextManager[Readable | None]:
        """An object as a stream, or None where there is none.

        Raises:
            StoreError: the store can't be reached or doesn't answer; also from the stream.
        """

    def put(self, name: str, source: BinaryIO) -> bool:
        """Put an object under a name, in the place of one that lies there.

        Returns:
            False when the store takes none from us.

        Raises:
            StoreError: the store can't be reached or doesn't answer.
        """


def open_cache_store(address: str) -> CacheStore:
    """The store at an address: http:, https:, a folder's path, or `file:` and a path. Nothing is opened yet.

    Raises:
        SettingsError: the address is of a kind that isn't supported.
    """
    scheme, separator, rest = address.partition(":")
    if not address:
        raise SettingsError("the shared build cache has no store", hint="Name a folder or an http(s) address.")
    if not separator or "/" in scheme:
        return FolderStore(address)
    if scheme == "file":
        return FolderStore(rest.removeprefix("//") or "/")
    if scheme in {"http", "https"}:
        return HttpStore(address)
    raise SettingsError(
        f"build caches of the kind {scheme!r} are not supported", hint="Name a folder, or an http(s) address."
    )


class FolderStore:
    """A folder that machines share, with one file an object; a web server can serve it as it is."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder).expanduser().absolute()
        self.address = str(self.folder)

    @contextlib.contextmanager
    def get(self, name: str) -> Iterator[Readable | None]:
        """An object as a stream; see `CacheStore.get`."""
        try:
            # O_NONBLOCK: a named pipe that somebody laid there would be waited for.
            descriptor = os.open(self.folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            yield None
            return
        except OSError as error:
            raise self._error("read", name, error) from error
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StoreError(f"{self.address}: could not read {name}: it is not a regular file")
            try:
                yield file
            except OSError as error:
                raise self._error("read", name, error) from error

    def put(self, name: str, source: BinaryIO) -> bool:
        """Put an object in place; see `CacheStore.put`."""
        try:
            with atomic_write(self.folder / name, fsync=False) as file:
                shutil.copyfileobj(source, file, 1 << 20)
        except PermissionError:
            return False
        except OSError as error:
            raise self._error("write", name, error) from error
        return True

    def _error(self, what: str, name: str, error: OSError) -> StoreError:
        return StoreError(f"{self.address}: could not {what} {name}: {error.strerror or error}")


class HttpStore:
    """A web server: GET reads; PUT writes, unless it answers that it takes none (401, 403, 405, 501).

    Passwords, proxies and certificates come as `requests` takes them: from the address, netrc and the environment.
    """

    _TIMEOUT_S = (_CONNECT_TIMEOUT_S, _SILENCE_TIMEOUT_S)
    _ABSENT, _READ_ONLY, _PUT_DONE = (404, 410), (401, 403, 405, 501), (200, 201, 202, 204)

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        host = parts.netloc.rpartition("@")[2]
        self.address = urlunsplit((parts.scheme, host, parts.path, "", ""))
        self._url = address.rstrip("/")
        self._idle: queue.SimpleQueue[requests.Session] = queue.SimpleQueue()

    @contextlib.contextmanager
    def get(self, name: str) -> Iterator[Readable | None]:
        """An object as a stream; see `CacheStore.get`."""
        with self._session(name) as session:
            url, plain = f"{self._url}/{name}", {"Accept-Encoding": "identity"}
            with session.get(url, stream=True, headers=plain, timeout=self._TIMEOUT_S) as answer:
                if answer.status_code in self._ABSENT:
                    answer.raw.read(1 << 16)  # a connection with something left to read isn't used again
                    yield None
                elif answer.status_code == 200:  # noqa: PLR2004
                    yield answer.raw
                else:
                    raise StoreError(f"{self.address}: could not read {name}: answered {answer.status_code}")

    def put(self, name: str, source: BinaryIO) -> bool:
        """Put an object in place; see `CacheStore.put`."""
        with self._session(name) as session:
            url = f"{self._url}/{name}"
            answer = session.put(url, data=source, allow_redirects=False, timeout=self._TIMEOUT_S)
        if answer.status_code not in (*self._READ_ONLY, *self._PUT_DONE):
            raise StoreError(f"{self.address}: could not write {name}: answered {answer.status_code}")
        return answer.status_code in self._PUT_DONE

    @contextlib.contextmanager
    def _session(self, name: str) -> Iterator[requests.Session]:
        """A session that nobody else uses meanwhile; its connection is kept for the next one."""
        import requests  # noqa: PLC0415 - folder stores need none
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        try:
            session = self._idle.get_nowait()
        except queue.Empty:
            session = requests.Session()
            session.max_redirects = 3
        try:
            yield session
        except (requests.RequestException, HTTPError, OSError) as error:
            raise StoreError(f"{self.address}: no answer for {name}: {error}") from error
        self._idle.put(session)
