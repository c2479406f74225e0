"""The bytes of a canonical tar, computed: every header follows from a path, a size and a mode.

ustar with pax records only where ustar can't (POSIX.1-2017, pax, "ustar Interchange Format"). Python's tarfile is not
used: the bytes are a bundle's identity, and its headers have changed between Python versions.
"""

from __future__ import annotations

BLOCK = 512
END = bytes(2 * BLOCK)
_NAME_BYTES, _PREFIX_BYTES = 100, 155
_MAX_USTAR_SIZE = 8**11


def entry_header(path: str, size_bytes: int, mode: int) -> bytes:
    """The header blocks in front of a file's content: one, or three where a pax record is needed."""
    records: dict[str, str] = {}
    split = _split(path.encode())
    if split is None:
        records["path"] = path
    if size_bytes >= _MAX_USTAR_SIZE:
        records["size"] = str(size_bytes)
    prefix, name = split or (b"", path.encode()[:_NAME_BYTES])
    ustar_size = 0 if "size" in records else size_bytes
    header = _block(name, prefix, ustar_size, mode, b"0")
    if not records:
        return header
    text = b"".join(_record(key, value) for key, value in sorted(records.items()))
    return _block(b"pax", b"", len(text), 0o644, b"x") + text + padding(len(text)) + header


def padding(size_bytes: int) -> bytes:
    """The zeros that fill a content's last block."""
    return bytes(-size_bytes % BLOCK)


def tar_size(entries: list[tuple[str, int, int]]) -> int:
    """The size of the whole tar of (path, size, mode) entries."""
    return sum(len(entry_header(*entry)) + entry[1] + -entry[1] % BLOCK for entry in entries) + len(END)


def _split(path: bytes) -> tuple[bytes, bytes] | None:
    """A path as ustar's (prefix, name): the shortest prefix that fits; None where none does."""
    if len(path) <= _NAME_BYTES:
        return b"", path
    at = path.find(b"/", len(path) - _NAME_BYTES - 1)
    if at <= 0 or at > _PREFIX_BYTES or at == len(path) - 1:
        return None
    return path[:at], path[at + 1 :]


def _block(name: bytes, prefix: bytes, size: int, mode: int, kind: bytes) -> bytes:
    fields = b"".join(
        (
            name.ljust(_NAME_BYTES, b"\0"),
            b"%07o\0" % mode,
            b"%07o\0" % 0,
            b"%07o\0" % 0,
            b"%011o\0" % size,
            b"%011o\0" % 0,
            b" " * 8,
            kind,
            bytes(100),
            b"ustar\00000",
            bytes(32),
            bytes(32),
            b"%07o\0" % 0,
            b"%07o\0" % 0,
            prefix.ljust(_PREFIX_BYTES, b"\0"),
            bytes(12),
        )
    )
    return fields[:148] + b"%06o\0 " % sum(fields) + fields[156:]


def _record(key: str, value: str) -> bytes:
    body = f" {key}={value}\n".encode()
    size = len(body) + 1
    while len(str(size)) + len(body) != size:
        size = len(str(size)) + len(body)
    return str(size).encode() + body
