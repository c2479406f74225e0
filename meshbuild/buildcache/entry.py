r"""One entry of the shared build cache, as an object of a store and as a name in it.

An object is a head of fixed length and one zstd frame of the output:

    meshbuild-cache 1 <action> <output> <size> <time> <mac>\n

- action, output: Go's action id and output id, 64 hex digits each; an output id is the sha256 of the output
  (`(*ProgCache).Put` in cmd/go/internal/cache/prog.go)
- size, time: of the output in bytes, and when Go made it in nanoseconds since 1970; 16 hex digits each
- mac: HMAC-SHA256 of everything before it, under the key that the builders share; 64 hex digits

The head is checked before a byte of the output is looked at; the output is bound to it by its sha256.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

import zstandard

from meshbuild.digests import Sha256

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_OUTPUT_BYTES = 1 << 30
_PREFIX = "meshbuild-cache 1"
_HEAD = re.compile(_PREFIX.encode() + rb" ([0-9a-f]{64}) ([0-9a-f]{64}) ([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9a-f]{64})\n")
HEAD_BYTES = len(_PREFIX) + 3 * 65 + 2 * 17 + 1
PIECE_BYTES = 1 << 20
_LEVEL, _MAX_WINDOW_BYTES = 3, 1 << 23


@dataclass(frozen=True, slots=True)
class Entry:
    """What an action gave.

    Attributes:
        output: Go's output id, the output's sha256.
        size_bytes: of the output.
        time_ns: when it was made, in nanoseconds since 1970; `go clean -testcache` goes by it.
    """

    output: Sha256
    size_bytes: int
    time_ns: int


class Readable(Protocol):
    """A stream of bytes; `read` gives some of what is left, at most as many as asked for, none at its end."""

    def read(self, size: int, /) -> bytes:
        """Some of the bytes that are left."""


class RejectedEntryError(ValueError):
    """An object that isn't, or isn't wholly, what the holder of the key put under that name."""


def object_name(action: Sha256) -> str:
    """The name of an action's object in a store, with slashes."""
    return f"v1/{action[:2]}/{action}"


def write_entry(sink: BinaryIO, source: BinaryIO, *, action: Sha256, entry: Entry, key: bytes) -> None:
    """Write an entry's object. Raises OSError."""
    head = f"{_PREFIX} {action} {entry.output} {entry.size_bytes:016x} {entry.time_ns:016x}".encode()
    sink.write(head + b" " + _mac(head, key) + b"\n")
    zstandard.ZstdCompressor(level=_LEVEL).copy_stream(source, sink, size=entry.size_bytes)


def read_head(source: Readable, *, action: Sha256, key: bytes) -> Entry:
    """Read the head of an action's object; afterwards the source stands at its output.

    Raises:
        RejectedEntryError: it is of another format, another key or another action, or the output would be too large.
    """
    match = _HEAD.fullmatch(_read_exactly(source, HEAD_BYTES))
    if match is None:
        raise RejectedEntryError("no head of a build cache entry")
    if not hmac.compare_digest(_mac(match[0][:-66], key), match[5]):
        raise RejectedEntryError("not made with this key")
    if match[1].decode() != action:
        raise RejectedEntryError("of another action")
    entry = Entry(Sha256(match[2].decode()), int(match[3], 16), int(match[4], 16))
    if entry.size_bytes > MAX_OUTPUT_BYTES:
        raise RejectedEntryError(f"larger than {MAX_OUTPUT_BYTES} bytes")
    return entry


def read_output(source: Readable, entry: Entry) -> Iterator[bytes]:
    """Unpack the output that follows a head, in pieces of at most 1 MiB; at most one byte more than the head says.

    Whether it is that output is for the caller to say, by its sha256.

    Raises:
        RejectedEntryError: it isn't zstd, or asks for too much memory.
    """
    left = entry.size_bytes + 1
    stream = cast("BinaryIO", source)  # nothing but its `read` is used
    try:
        with zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).stream_reader(stream, closefd=False) as data:
            while left and (piece := data.read(min(PIECE_BYTES, left))):
                left -= len(piece)
                yield piece
    except zstandard.ZstdError as error:
        raise RejectedEntryError(f"damaged: {error}") from error


def _mac(head: bytes, key: bytes) -> bytes:
    return hmac.new(key, head, hashlib.sha256).hexdigest().encode()


def _read_exactly(source: Readable, size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes and (part := source.read(size_bytes - len(data))):
        data += part
    return data
