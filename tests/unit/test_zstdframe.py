from __future__ import annotations

import io
import os
import random
import struct

import pytest
import zstandard

from meshbuild.errors import BundleFormatError, BundleLimitError
from meshbuild.zstdframe import Frames, read_frames, statements_frame

TAIL = statements_frame(b"statements\n")


def compressed(data: bytes, **options: bool | int) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True, write_content_size=True, **options).compress(data)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 65_791, 65_792, 131_072, 131_073, 1_000_000])
@pytest.mark.parametrize("kind", ["zeros", "noise", "text"])
def test_ends_of_frames_are_where_zstd_put_them(size: int, kind: str) -> None:
    noise = random.Random(size).randbytes(size)  # noqa: S311 - data that does not compress
    data = {"zeros": bytes(size), "noise": noise, "text": (b"word " * size)[:size]}[kind]
    frame = compressed(data)
    frames = read_frames(io.BytesIO(frame + TAIL))
    parameters = zstandard.get_frame_parameters(frame)
    assert frames == Frames(len(frame), size, frames.window_size, len(frame) + 8, 11)
    assert frames.window_size == parameters.window_size
    assert frames.total_size == len(frame + TAIL)


@pytest.mark.parametrize("window_log", range(10, 28))
def test_window_is_read_as_zstd_reads_it(window_log: int) -> None:
    parameters = zstandard.ZstdCompressionParameters(
        window_log=window_log, write_checksum=True, write_content_size=True
    )
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj(size=1 << 28)
    header = writer.compress(b"x") + writer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    # The frame is cut short behind its first block, so that one of 256 MiB needn't be made: close it by hand.
    first = header.rindex(b"x") - 3
    closed = header[:first] + struct.pack("<I", 1 | 1 << 3)[:3] + b"x" + bytes(4)
    assert read_frames(io.BytesIO(closed + TAIL)).window_size == 1 << window_log


def test_neither_memory_nor_reading_follows_from_what_a_header_declares() -> None:
    size = struct.pack("<Q", 1 << 62)
    block = struct.pack("<I", 1 | 1 << 1 | 1 << 3)[:3] + b"\0"
    frames = read_frames(io.BytesIO(b"\x28\xb5\x2f\xfd\xc4\x00" + size + block + bytes(4) + TAIL))
    assert frames.content_size == 1 << 62
    with pytest.raises(BundleLimitError, match="declares 4294967295 bytes"):
        read_frames(io.BytesIO(compressed(b"x") + struct.pack("<II", 0x184D2A5B, (1 << 32) - 1)))


@pytest.mark.parametrize("cut", range(60))
def test_every_truncation_is_refused(cut: int) -> None:
    whole = compressed(os.urandom(20)) + TAIL
    assert len(whole) < 60
    if cut < len(whole):
        with pytest.raises(BundleFormatError):
            read_frames(io.BytesIO(whole[:cut]))
    else:
        with pytest.raises(BundleFormatError, match="after its statements frame"):
            read_frames(io.BytesIO(whole.ljust(cut + 1, b"\0")))


def test_statements_frame_is_one_that_zstd_skips() -> None:
    assert zstandard.ZstdDecompressor().decompress(compressed(b"x") + TAIL) == b"x"
    assert struct.unpack("<II", TAIL[:8]) == (0x184D2A5B, 11)
