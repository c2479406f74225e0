"""SHA-256 digests as a type of their own, and streaming ways to make them."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, Self

if TYPE_CHECKING:
    import os

    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

CHUNK_SIZE_BYTES = 1 << 20
_HEX = re.compile(r"[0-9a-f]{64}")


class Sha256(str):
    """A SHA-256 digest as 64 lower-case hex digits; anything else is refused with ValueError."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        """Check the text's form."""
        if not _HEX.fullmatch(text):
            raise ValueError(f"expected a sha256 of 64 lower-case hex digits, found {text[:80]!r}")
        return super().__new__(cls, text)

    @classmethod
    def of(cls, data: bytes) -> Sha256:
        """The digest of bytes in memory."""
        return cls(hashlib.sha256(data).hexdigest())

    @classmethod
    def of_file(cls, path: str | os.PathLike[str]) -> Sha256:
        """The digest of a file's content, read in a stream. Raises OSError."""
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - str paths are common here, Path objects slow
            return cls(hashlib.file_digest(file, "sha256").hexdigest())

    @property
    def short(self) -> str:
        """The first 12 digits, for people."""
        return str(self[:12])

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: type[Any], _handler: GetCoreSchemaHandler) -> CoreSchema:
        """Let models use the type: a string in JSON, checked on the way in."""
        from pydantic_core import core_schema  # noqa: PLC0415 - a no-op build must not import pydantic

        return core_schema.no_info_after_validator_function(
            cls, core_schema.str_schema(pattern=r"^[0-9a-f]{64}$"), serialization=core_schema.to_string_ser_schema()
        )


class _Writable(Protocol):
    def write(self, data: bytes, /) -> int: ...


class HashingWriter:
    """Passes every byte on to a sink while it counts and hashes them.

    Attributes:
        size_bytes: how many bytes have gone through.
    """

    def __init__(self, sink: _Writable) -> None:
        self._sink = sink
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes, /) -> int:
        """Write all of data to the sink; returns its length."""
        self._sink.write(data)
        self._hash.update(data)
        self.size_bytes += len(data)
        return len(data)

    @property
    def sha256(self) -> Sha256:
        """The digest of all bytes so far."""
        return Sha256(self._hash.hexdigest())

    def sha256_with(self, more: bytes) -> Sha256:
        """The digest of all bytes so far and of more, which are not written."""
        digest = self._hash.copy()
        digest.update(more)
        return Sha256(digest.hexdigest())


class HashingReader:
    """Hands on a source's bytes while it counts and hashes them.

    Attributes:
        size_bytes: how many bytes have gone through.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    def read(self, size: int = -1, /) -> bytes:
        """Read up to size bytes; b"" at the end."""
        data = self._source.read(size)
        self._hash.update(data)
        self.size_bytes += len(data)
        return data

    @property
    def sha256(self) -> Sha256:
        """The digest of all bytes so far."""
        return Sha256(self._hash.hexdigest())
