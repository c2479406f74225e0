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
MAX_WINDOW_BYTES = 1 << 27
MAX_STATEMENTS_BYTES = 16 << 20

# The frame header descriptor's bits.
_DICTIONARY_ID, _CHECKSUM, _RESERVED_OR_UNUSED, _SINGLE_SEGMENT, _SIZE_SHIFT = 0b11, 0b100, 0b1_1000, 0b10_0000, 6
# The block types that matter here.
_RLE_BLOCK, _RESERVED_BLOCK = 1, 3
_MAX_BLOCK_BYTES = 128 << 10


@dataclass(frozen=True, slots=True)
class Frames:
    """The two frames of a bundle. All sizes are in bytes.

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

    @property
    def total_size(self) -> int:
        """The size of the whole bundle."""
        return self.statements_offset + self.statements_size


def statements_frame(payload: bytes) -> bytes:
    """A skippable frame of statements; at most 2^32 - 1 bytes."""
    return struct.pack("<II", STATEMENTS_MAGIC, len(payload)) + payload


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
    _skip_blocks(file, total, min(window_size, _MAX_BLOCK_BYTES))
    frame_size = file.tell()
    if frame_size == total:
        raise BundleFormatError("it ends after its zstd frame; a bundle has a statements frame behind it")
    magic, size = struct.unpack("<II", _take(file, 8, "the header of its statements frame"))
    if magic != STATEMENTS_MAGIC:
        what = "another zstd frame" if magic == FRAME_MAGIC else f"the magic number {magic:#010x}"
        raise BundleFormatError(f"expected a statements frame ({STATEMENTS_MAGIC:#010x}) at {frame_size}, found {what}")
    if size > MAX_STATEMENTS_BYTES:
        raise BundleLimitError(f"its statements frame declares {size} bytes, more than {MAX_STATEMENTS_BYTES}")
    frames = Frames(frame_size, content_size, window_size, frame_size + 8, size)
    if frames.total_size > total:
        raise BundleFormatError("it ends in the middle of its statements frame")
    if frames.total_size < total:
        raise BundleFormatError(f"it has {total - frames.total_size} bytes after its statements frame")
    return frames


def _read_header(file: BinaryIO) -> tuple[int, int]:
    """Read the frame header: (content size, window size)."""
    magic, descriptor = struct.unpack("<IB", _take(file, 5, "a zstd header"))
    if magic != FRAME_MAGIC:
        raise BundleFormatError("it does not start with a zstd frame")
    if descriptor & _RESERVED_OR_UNUSED:
        raise BundleFormatError("its zstd header has bits set that must be zero")
    if descriptor & _DICTIONARY_ID:
        raise BundleFormatError("its zstd frame asks for a dictionary")
    if not descriptor & _CHECKSUM:
        raise BundleFormatError("its zstd frame has no checksum")
    single_segment = bool(descriptor & _SINGLE_SEGMENT)
    size_flag = descriptor >> _SIZE_SHIFT
    if size_flag == 0 and not single_segment:
        raise BundleFormatError("its zstd frame doesn't declare its content's size")
    window = None if single_segment else _window_size(_take(file, 1, "a zstd header")[0])
    content = int.from_bytes(_take(file, 1 << size_flag, "a zstd header"), "little") + (256 if size_flag == 1 else 0)
    window = content if window is None else window
    if window > MAX_WINDOW_BYTES:
        raise BundleLimitError(f"its zstd frame asks for a window of {window} bytes, more than {MAX_WINDOW_BYTES}")
    return content, window


def _window_size(descriptor: int) -> int:
    base = 1 << (10 + (descriptor >> 3))
    return base + (base >> 3) * (descriptor & 7)


def _skip_blocks(file: BinaryIO, total: int, max_size: int) -> None:
    """Go to the end of the frame's checksum by its block headers: last flag, type, size (RFC 8878, section 3.1.1.2)."""
    last = False
    while not last:
        at = file.tell()
        header = int.from_bytes(_take(file, 3, "a zstd block"), "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        if kind == _RESERVED_BLOCK:
            raise BundleFormatError(f"its zstd frame has a block of the reserved type at byte {at}")
        if size > max_size:
            raise BundleFormatError(f"its zstd frame has a block of {size} bytes at byte {at}, more than {max_size}")
        if file.seek(1 if kind == _RLE_BLOCK else size, os.SEEK_CUR) > total:
            raise BundleFormatError("it ends in the middle of a zstd block")
    _take(file, 4, "a zstd checksum")


def _take(file: BinaryIO, size: int, what: str) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise BundleFormatError(f"it ends in the middle of {what}")
    return data
