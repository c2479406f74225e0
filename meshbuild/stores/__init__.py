"""Stores: where bundles and their metadata lie as plain files under keys, behind one small protocol.

Everything is created once and never changed, but for `metadata/timestamp.json`: its swap is the one commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol

from meshbuild.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path


class ReadableStore(Protocol):
    """What a host needs of a store.

    Attributes:
        address: the store as a person would name it.
    """

    address: str

    def read(self, key: str, *, limit_bytes: int) -> bytes:
        """All of a small file.

        Raises:
            ObjectMissingError: there is none under the key.
            ObjectCorruptError: it is longer than the limit.
            StoreError: the store can't be reached.
        """

    def open(self, key: str) -> AbstractContextManager[BinaryIO]:
        """A file as a stream. Raises as `read` does, but for the limit."""


class WritableStore(ReadableStore, Protocol):
    """What a publisher needs of a store in addition."""

    def create(self, key: str, source: bytes | Path) -> bool:
        """Put a file under a key if there is none; durable when this returns.

        Returns:
            False when something lies there already, which is left as it is.

        Raises:
            StoreError: the store can't be written.
        """

    def swap(self, key: str, data: bytes, *, expected: bytes | None) -> bool:
        """Replace a small file if it is still the expected one, None being absent; durable when this returns.

        Returns:
            False when it is another one: somebody else was faster.
        """

    def replace(self, key: str, source: bytes | Path) -> None:
        """Put a whole file where one lies that is short, wrong or old. For files named by their digest only."""

    def age_s(self, key: str) -> float:
        """How long ago a file was put there, in seconds by the store's own clock. Raises as `read` does."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file that lies in a store: its key, its size, and when it was put there, in seconds by the store's clock."""

    key: str
    size_bytes: int
    changed_s: float


class ListableStore(WritableStore, Protocol):
    """What collecting garbage needs of a store in addition."""

    def entries(self) -> Iterator[Entry]:
        """Every file that was put into the store, in no order; what only the store itself uses is left out.

        Raises:
            StoreError: the store can't be listed.
        """

    def now_s(self) -> float:
        """What the store's own clock says, in seconds since the epoch. Raises StoreError."""

    def remove(self, key: str) -> None:
        """Remove a file; one that isn't there is no error. Raises StoreError."""


def open_store(address: str) -> ReadableStore:
    """The store at an address, for reading: http:, https:, a folder's path, or `file:` and a path.

    Raises:
        StoreError: the address is of a kind that isn't supported.
    """
    if address.startswith(("http://", "https://")):
        from meshbuild.stores.http import HttpStore  # noqa: PLC0415 - folders need no HTTP client

        return HttpStore(address)
    return open_writable(address)


def open_writable(address: str) -> ListableStore:
    """The store at an address, for writing: a folder's path, or `file:` and a path.

    Raises:
        StoreError: the address is of a kind that isn't supported, or can only be read.
    """
    from meshbuild.stores.directory import DirectoryStore  # noqa: PLC0415 - it imports this module's protocols

    scheme, separator, rest = address.partition(":")
    if not separator or "/" in scheme:
        return DirectoryStore(address)
    if scheme == "file":
        return DirectoryStore(rest.removeprefix("//") or "/")
    if scheme in {"http", "https"}:
        raise StoreError(
            f"a store behind {scheme}: can be read and not written", hint="Push to the folder that the server serves."
        )
    raise StoreError(
        f"stores of the kind {scheme!r} are not supported yet",
        hint="Name a folder, file: and a folder, or for reading an http(s) address.",
    )
