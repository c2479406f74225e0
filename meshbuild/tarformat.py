"""The bytes of a canonical tar, computed: every header follows from a path, a size and a mode.

ustar with pax records only where ustar can't (POSIX.1-2017, pax, "ustar Interchange Format" and "pax Header Block").
Python's tarfile is not used: the bytes are a bundle's identity, and its headers have changed between Python versions.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

BLOCK = 512
END = bytes(2 * BLOCK)
_NAME_BYTES, _PREFIX_BYTES = 100, 155
_MAX_USTAR_SIZE = 8**11
_SIZE_FIELD = slice(124, 136)
_OCTAL = re.compile(rb"([0-7]{11})\0")
_KINDS = {
    b"0": "a file",
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"5": "a folder",
    b"6": "a FIFO",
    b"L": "a GNU long name",
    b"K": "a GNU long link",
    b"S": "a GNU sparse file",
    b"x": "a pax header",
    b"g": "a global pax header",
}


def entry_header(path: str, size_bytes: int, mode: int) -> bytes:
    """The header blocks in front of a file's content: one, or three or more where a pax record is needed."""
    records: dict[str, str] = {}
    name = path.encode()
    split = _split(name)
    if split is None:
        records["path"] = path
    if size_bytes >= _MAX_USTAR_SIZE:
        records["size"] = str(size_bytes)
    prefix, name = split or (b"", name[:_NAME_BYTES])
    header = _block(name, prefix, 0 if "size" in records else size_bytes, mode, b"0")
    if not records:
        return header
    text = b"".join(_record(key, value) for key, value in sorted(records.items()))
    return _block(b"pax", b"", len(text), 0o644, b"x") + text + padding(len(text)) + header


def padding(size_bytes: int) -> bytes:
    """The zeros that fill a content's last block."""
    return bytes(-size_bytes % BLOCK)


def tar_size(entries: Iterable[tuple[str, int, int]]) -> int:
    """The size of the whole tar of (path, size, mode) entries, in bytes."""
    return sum(len(entry_header(*entry)) + entry[1] + -entry[1] % BLOCK for entry in entries) + len(END)


def header_size_field(header: bytes) -> int:
    """The size that a ustar header declares; 0 where its field isn't 11 octal digits and a NUL."""
    match = _OCTAL.fullmatch(header[_SIZE_FIELD])
    return int(match[1], 8) if match else 0


def describe_header(header: bytes) -> tuple[str, str]:
    """What a header block would be to a tar program, for messages only: (kind, path with odd bytes escaped)."""
    if not header.strip(b"\0"):
        return "the end of the tar", ""
    if header[257:262] != b"ustar":
        return "bytes that are no tar header", ""
    name, prefix = (
        field.split(b"\0", 1)[0].decode(errors="backslashreplace") for field in (header[:100], header[345:500])
    )
    kind = _KINDS.get(header[156:157], f"an entry of the type {header[156:157]!r}")
    return kind, f"{prefix}/{name}" if prefix else name


def _split(path: bytes) -> tuple[bytes, bytes] | None:
    """A path as ustar's (prefix, name): the shortest prefix that fits; None where none does."""
    if len(path) <= _NAME_BYTES:
        return b"", path
    at = path.find(b"/", len(path) - _NAME_BYTES - 1)
    if not 0 < at <= _PREFIX_BYTES:
        return None
    return path[:at], path[at + 1 :]


def _block(name: bytes, prefix: bytes, size: int, mode: int, kind: bytes) -> bytes:
    fields = b"".join(
        (
            name.ljust(_NAME_BYTES, b"\0"),
            b"%07o\0" % mode,
            b"%07o\0" % 0,  # uid
            b"%07o\0" % 0,  # gid
            b"%011o\0" % size,
            b"%011o\0" % 0,  # mtime
            b" " * 8,  # the checksum is made over blanks in its place
            kind,
            bytes(100),  # link name
            b"ustar\00000",
            bytes(32),  # user name
            bytes(32),  # group name
            b"%07o\0" % 0,  # device numbers
            b"%07o\0" % 0,
            prefix.ljust(_PREFIX_BYTES, b"\0"),
            bytes(12),
        )
    )
    return fields[:148] + b"%06o\0 " % sum(fields) + fields[156:]


def _record(key: str, value: str) -> bytes:
    """A pax record: its own length in decimal digits, a blank, key=value and a line feed."""
    body = f" {key}={value}\n".encode()
    size = len(body) + 1
    while len(str(size)) + len(body) != size:
        size = len(str(size)) + len(body)
    return str(size).encode() + body
