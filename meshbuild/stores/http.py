"""A store behind a web server, for reading: any server that gives a folder's files as they are."""

from __future__ import annotations

import contextlib
import io
import re
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote, urlsplit, urlunsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError, MaxRetryError, ProtocolError
from urllib3.util import Retry

from meshbuild.errors import ObjectCorruptError, ObjectMissingError, StoreError
from meshbuild.paths import check_relative_path
from meshbuild.texts import root_cause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from urllib3.response import BaseHTTPResponse

_TIMEOUT_S = (10, 60)  # to connect; of silence
_ABSENT = (403, 404, 410)  # object stores answer 403 for what isn't there to whoever may not list
_CHUNK_BYTES = 1 << 20
# Every request, and every body that breaks off; what a server asks for in Retry-After is waited for, up to a minute.
_RETRY = Retry(
    total=5,
    connect=2,
    read=4,
    other=4,
    status=4,
    status_forcelist=(429, 500, 502, 503, 504),
    backoff_factor=0.2,
    backoff_max=10,
    raise_on_status=False,
    retry_after_max=60,
)


class HttpStore:
    """A folder store as a web server gives it: http or https, with GET alone.

    Passwords, proxies and certificates come as `requests` takes them: from the address, netrc and the environment. One
    object is for one thread; its connections are kept.
    """

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self.address = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")).rstrip("/")
        if not parts.hostname or parts.query or parts.fragment:
            raise StoreError(f"{self.address}: a store's address is http(s)://host/folder, without ? and #")
        self._url = address.rstrip("/")
        self._session = requests.Session()
        self._session.max_redirects = 3
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=_RETRY))

    def read(self, key: str, *, limit_bytes: int) -> bytes:
        """All of a small file; see `ReadableStore.read`."""
        with self.open(key) as file:
            data = bytearray()
            while len(data) <= limit_bytes and (chunk := file.read(min(_CHUNK_BYTES, limit_bytes + 1 - len(data)))):
                data += chunk
        if len(data) > limit_bytes:
            raise ObjectCorruptError(f"{self.address}: {key} is longer than the {limit_bytes} bytes allowed")
        return bytes(data)

    @contextlib.contextmanager
    def open(self, key: str) -> Iterator[BinaryIO]:
        """A file as a stream; see `ReadableStore.open`. A body that breaks off is asked for from there on."""
        try:
            name = check_relative_path(key)
        except ValueError as error:
            raise StoreError(f"{self.address}: not a key: {error}") from error
        body = _Body(self, key, f"{self._url}/{quote(name)}")
        with contextlib.closing(body), io.BufferedReader(body, _CHUNK_BYTES) as file:
            yield file

    def get(self, key: str, url: str, **headers: str) -> requests.Response:
        """One answer to a GET, its body unread: 200, or 206 and 416 where a range was asked for.

        Raises:
            ObjectMissingError, StoreError: as `ReadableStore.read` does.
        """
        try:
            # identity: what a server compressed, or a client decompressed, isn't the bytes that digests are of.
            plain = {"Accept-Encoding": "identity", **headers}
            if key.startswith("metadata/"):  # a cache on the way may not hold a fleet back at an old state
                plain["Cache-Control"] = "no-cache"
            answer = self._session.get(url, headers=plain, stream=True, timeout=_TIMEOUT_S)
        except requests.RequestException as error:
            raise StoreError(f"{self.address}: no answer for {key}: {root_cause(error)}") from error
        problem = _problem(answer, ranged="Range" in headers)
        if problem:
            answer.close()
            kind = ObjectMissingError if answer.status_code in _ABSENT else StoreError
            raise kind(
                f"{self.address}: there is no {key}: {problem}"
                if kind is ObjectMissingError
                else f"{self.address}: could not read {key}: {problem}"
            )
        return answer


class _Body(io.RawIOBase):
    """A file of a store as a raw stream, which goes on by a range where the connection broke."""

    def __init__(self, store: HttpStore, key: str, url: str) -> None:
        self._store, self._key, self._url = store, key, url
        self._done, self._retry = 0, _RETRY
        self._answer = store.get(key, url)
        # A weak validator can't vouch for a range; what came of another version fails by its digest in the end.
        tag = self._answer.headers.get("ETag", "")
        self._if_range = tag if tag.startswith('"') else self._answer.headers.get("Last-Modified", "")

    def readable(self) -> bool:
        """It is there to be read."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read what there is; raises StoreError once it broke off more often than anybody should wait for."""
        while True:
            try:
                data = self._raw.read(len(buffer), decode_content=False)
            except (HTTPError, OSError) as error:
                self._go_on(error)
                continue
            self._done += len(data)
            if data:
                self._retry = _RETRY  # it gets on: what broke before doesn't count
            buffer[: len(data)] = data
            return len(data)

    def close(self) -> None:
        """Give the connection back."""
        self._answer.close()
        super().close()

    @property
    def _raw(self) -> BaseHTTPResponse:
        return self._answer.raw

    def _go_on(self, error: Exception) -> None:
        """Ask for the rest; of a server that gives all of it again, pass over what is there already."""
        self._answer.close()
        try:
            self._retry = self._retry.increment("GET", self._url, error=_as_http(error))
        except (MaxRetryError, HTTPError) as last:
            where = f"{self._store.address}: {self._key} broke off at {self._done} bytes, again and again"
            raise StoreError(f"{where}: {root_cause(error)}") from last
        self._retry.sleep()
        ranged = {"Range": f"bytes={self._done}-", **({"If-Range": self._if_range} if self._if_range else {})}
        self._answer = self._store.get(self._key, self._url, **ranged)
        begins = re.match(r"bytes (\d+)-", self._answer.headers.get("Content-Range", ""))
        if self._answer.status_code == requests.codes.partial and begins and int(begins[1]) == self._done:
            return
        if self._answer.status_code != requests.codes.ok:
            self._answer.close()
            self._answer = self._store.get(self._key, self._url)
        left = self._done
        try:
            while left and (data := self._raw.read(min(left, _CHUNK_BYTES), decode_content=False)):
                left -= len(data)
        except (HTTPError, OSError) as again:
            self._go_on(again)


def _as_http(error: Exception) -> HTTPError:
    """An error of the library's own kind, for its counting."""
    return error if isinstance(error, HTTPError) else ProtocolError(str(error))


def _problem(answer: requests.Response, *, ranged: bool) -> str:
    """Why an answer isn't the file that was asked for; empty when it may be."""
    taken = (200, 206, 416) if ranged else (200,)
    if answer.status_code not in taken:
        return f"answered {answer.status_code} {answer.reason}"
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        return f"a server or proxy re-encoded it ({answer.headers['Content-Encoding']}), which was not asked for"
    if answer.headers.get("Content-Type", "").startswith("text/html"):
        return "answered with a web page, as a login page or a proxy does"
    return ""
