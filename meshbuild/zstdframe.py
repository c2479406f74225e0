"""The zstd frames of a bundle, read by their headers alone: nothing is decompressed here.

Formats: RFC 8878, sections 3.1.1 (frames and blocks) and 3.1.2 (skippable frames).
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import BinaryIO

from meshbuild.errors import BundleFormatError, BundleLimitError

FRAME_MAGIC = 0xFD2FB528
STATEMENTS_MAGIC = 0x184D2A5B
MAX_WINDOW_LOG = 27
MAX_STATEMENTS_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Frames:
    """Where the two frames of a bundle lie. All sizes are in bytes.

    Attributes:
        frame_size: length of the zstd frame, which starts at 0.
        content_size: what the zstd frame declares to hold.
        window_size: how much memory it asks a decoder for.
        statements_offset: where the skippable frame's payload starts.
        statements_size: its length; it ends the file.
    """

    frame_size: int
    content_size: int
    window_size: int
    statements_offset: int
    statements_size: int


def read_frames(file: BinaryIO) -> Frames:
    """Find the frames of a bundle: one zstd frame with its size and checksum, one statements frame, not a byte after.

    Raises:
        BundleFormatError: it is something else.
        BundleLimitError: a window over 2^27 bytes, or a statements frame over 16 MiB.
        OSError: the file can't be read.
    """
    total = file.seek(0, os.SEEK_END)
    file.seek(0)
    content_size, window_size = _read_header(file)
    _skip_blocks(file, total)
    frame_size = file.tell()
    magic, size = struct.unpack("<II", _take(file, 8, "the header of its statements frame"))
    if magic != STATEMENTS_MAGIC:
        raise BundleFormatError(f"expected a statements frame at byte {frame_size}, found magic number {magic:#010x}")
    if size > MAX_STATEMENTS_BYTES:
        raise BundleLimitError(f"its statements have {size} bytes, more than {MAX_STATEMENTS_BYTES}")
    if frame_size + 8 + size != total:
        found = "bytes after" if frame_size + 8 + size < total else "an end in the middle of"
        raise BundleFormatError(f"it has {found} its statements frame")
    return Frames(frame_size, content_size, window_size, frame_size + 8, size)


def _read_header(file: BinaryIO) -> tuple[int, int]:
    magic, descriptor = struct.unpack("<IB", _take(file, 5, "a zstd header"))
    if magic != FRAME_MAGIC:
        raise BundleFormatError("it does not start with a zstd frame")
    if descriptor & 0b0001_1000:
        raise BundleFormatError("its zstd header has bits set that must be zero")
    if descriptor & 0b0000_0011:
        raise BundleFormatError("its zstd frame asks for a dictionary")
    if not descriptor & 0b0000_0100:
        raise BundleFormatError("its zstd frame has no checksum")
    single_segment = bool(descriptor & 0b0010_0000)
    size_flag = descriptor >> 6
    if size_flag == 0 and not single_segment:
        raise BundleFormatError("its zstd frame doesn't declare its content's size")
    window = 0
    if not single_segment:
        byte = _take(file, 1, "a zstd header")[0]
        base = 1 << (10 + (byte >> 3))
        window = base + (base >> 3) * (byte & 7)
    field = _take(file, 1 << size_flag, "a zstd header")
    content = int.from_bytes(field, "little") + (256 if size_flag == 1 else 0)
    window = window or content
    if window > 1 << MAX_WINDOW_LOG and not single_segment:
        raise BundleLimitError(f"its zstd frame asks for a window of {window} bytes, more than {1 << MAX_WINDOW_LOG}")
    if window > 1 << MAX_WINDOW_LOG:
        raise BundleLimitError(
            f"its zstd frame asks for one segment of {window} bytes, more than {1 << MAX_WINDOW_LOG}"
        )
    return content, window


def _skip_blocks(file: BinaryIO, total: int) -> None:
    last = False
    while not last:
        header = int.from_bytes(_take(file, 3, "a zstd block"), "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        if kind == 3:  # noqa: PLR2004 - the reserved block type
            raise BundleFormatError(f"its zstd frame has a block of the reserved type before byte {file.tell()}")
        if file.seek(1 if kind == 1 else size, os.SEEK_CUR) > total:
            raise BundleFormatError("it ends in the middle of a zstd block")
    _take(file, 4, "a zstd checksum")


def _take(file: BinaryIO, size: int, what: str) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise BundleFormatError(f"it ends in the middle of {what}")
    return data
