"""Bundles, format 1: a canonical tar in one zstd frame, and signed statements about it in a skippable frame behind it.

    blob       = zstd frame of the content | skippable frame 0x184D2A5B of JSON lines, each a DSSE envelope
    content    = canonical tar: .bundle/bundle.json, then the payload in byte order of its paths
    statements = the JSON lines; in the blob the last one has one more member, `bundle_sha256`, the sha256 of
                 zstd frame and statements, so that no byte of a blob can change unnoticed, signed or not

bundle.json determines the whole tar: the reader computes each header from it and compares bytes, and interprets none.
docs/bundle-format.md is the whole description.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, BinaryIO, cast

import zstandard

from meshbuild.content import ContentReader, check_folder, open_regular, read_tar, rebuild_tar, write_tar
from meshbuild.digests import CHUNK_SIZE_BYTES, HashingWriter, Sha256
from meshbuild.errors import BundleDigestError, BundleFormatError, BundleLimitError, InputsChangedError
from meshbuild.listing import BundleIdentity, FileEntry, Listing
from meshbuild.paths import atomic_write, local_errors
from meshbuild.unpack import new_folder
from meshbuild.zstdframe import MAX_STATEMENTS_BYTES, MAX_WINDOW_BYTES, Frames, read_frames, statements_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = [
    "MAX_CONTENT_BYTES",
    "BundleIdentity",
    "BundleInfo",
    "FileEntry",
    "Listing",
    "PackInput",
    "check_folder",
    "read_bundle",
    "read_statements",
    "rebuild_tar",
    "write_bundle",
]

MAX_CONTENT_BYTES = 16 << 30
# Measured on 1 GiB of programs, level 9: this window gives 1 % more than 2^27 at 60 MiB less, and is as quick. Jobs of
# 4 MiB keep what doesn't compress, the worst for memory, at 163 MiB where zstd's own 8 MiB take 204. The bytes are the
# same for any number of threads but 0: that number is fixed for the sake of memory alone.
_WINDOW_LOG = 26
_THREADS = 2
_JOB_BYTES = 4 << 20
_MIN_WINDOW_LOG = 10

# A DSSE envelope in canonical JSON of printable ASCII, as a pattern of bytes: nothing hostile gets parsed to objects,
# and the integrity member, which sorts first, can be cut out.
_STRING = rb'"(?:[ !#-\[\]-~]|\\["\\])*+"'
_SIGNATURE = rb'\{"keyid":%(s)s,"sig":%(s)s\}' % {b"s": _STRING}
_MEMBERS = rb'"payload":%(s)s,"payloadType":%(s)s,"signatures":\[(?:%(g)s(?:,%(g)s)*+)?+\]\}\n' % {
    b"s": _STRING,
    b"g": _SIGNATURE,
}
_ENVELOPE = re.compile(rb"\{" + _MEMBERS)
_SEALED_ENVELOPE = re.compile(rb'\{"bundle_sha256":"([0-9a-f]{64})",(' + _MEMBERS + rb")")


@dataclass(frozen=True, slots=True)
class PackInput:
    """A file to pack: its path in the bundle, where it is now, and the mode it shall have (0o644 or 0o755)."""

    path: str
    source: Path
    mode: int


@dataclass(frozen=True, slots=True)
class BundleInfo:
    """What a whole bundle is: its listing, its two digests with their sizes, and the statements behind it."""

    listing: Listing
    content_sha256: Sha256
    content_size_bytes: int
    blob_sha256: Sha256
    blob_size_bytes: int
    statements: bytes


def write_bundle(
    target: Path,
    identity: BundleIdentity,
    inputs: Sequence[PackInput],
    *,
    attest: Callable[[Listing, Sha256], Sequence[bytes]],
    level: int = 9,
) -> BundleInfo:
    """Pack files into a bundle at target, which appears whole or not at all.

    The inputs are hashed, and hashed again while they are written. Memory doesn't grow with them.

    Args:
        target: the bundle's file.
        identity: which artifact it is.
        inputs: the payload, in any order; regular files, links not followed.
        attest: given the listing and the content digest, returns the statements: DSSE envelopes in canonical JSON.
        level: zstd's compression level, 1 to 22. What a bundle is, its content digest, doesn't depend on it.

    Raises:
        InputsChangedError: an input changed between the two readings.
        BundleLimitError: more files or statements than a bundle may hold.
        BundleFormatError: paths, modes, names or statements that no bundle may have.
        LocalFileError: an input can't be read or the target can't be written.
    """
    with _naming(f"could not pack {target.name}"):
        with local_errors(f"read what goes into {target.name}"):
            listing = Listing.of(identity, [_measure(each) for each in inputs])
        sources = {each.path: each.source for each in inputs}
        with local_errors(f"write {target}"), atomic_write(target) as file:
            blob = HashingWriter(file)
            content = _write_frame(blob, listing, sources, level)
            statements, sealed = _seal(blob, attest(listing, content.sha256))
            blob.write(statements_frame(sealed))
    return BundleInfo(listing, content.sha256, content.size_bytes, blob.sha256, blob.size_bytes, statements)


def read_bundle(
    path: Path,
    *,
    into: Path | None = None,
    max_content_bytes: int = MAX_CONTENT_BYTES,
    expected_content: Sha256 | None = None,
) -> BundleInfo:
    """Read a bundle and check every byte of it; with `into`, extract it there.

    1. The frames: one zstd frame with size and checksum, one statements frame, nothing behind it, within the limits.
    2. `bundle_sha256` over frame and statements.
    3. bundle.json; every header computed from it; every file's size and digest; the end.
    4. The content digest, where one is expected.

    Nothing is decompressed before 1 and 2 hold. Who signed the statements is `signing.verify_statements`'s question.
    Memory doesn't grow with the bundle: it is the frame's window, at most 128 MiB, and a few MiB.

    Args:
        path: the bundle's file.
        into: a folder to make and extract to, bundle.json included; all of it fsynced. Gone again when anything fails.
        max_content_bytes: the most that its content may have.
        expected_content: the content digest that it must have.

    Raises:
        BundleFormatError, BundleLimitError, BundleDigestError: it is not a whole bundle.
        LocalFileError: it can't be read, or `into` exists or can't be written.
    """
    with _naming(str(path)), local_errors(f"read {path}"), path.open("rb") as file:
        frames = read_frames(file)
        if frames.content_size > max_content_bytes:
            raise BundleLimitError(f"it holds {frames.content_size} bytes, more than the {max_content_bytes} allowed")
        statements, blob_sha256 = _check_integrity(file, frames)
        with contextlib.ExitStack() as stack:
            if into is not None:
                stack.enter_context(local_errors(f"extract {path}"))
            folder = stack.enter_context(new_folder(into)) if into is not None else None
            content = stack.enter_context(_open_content(file, frames))
            listing = read_tar(content, folder)
            if expected_content is not None and content.sha256 != expected_content:
                raise BundleDigestError(f"its content is {content.sha256}, expected was {expected_content}")
    return BundleInfo(listing, content.sha256, frames.content_size, blob_sha256, frames.total_size, statements)


def read_statements(path: Path) -> bytes:
    """A bundle's statements, after the steps 1 and 2 of `read_bundle`; nothing is decompressed. Raises as it does."""
    with _naming(str(path)), local_errors(f"read {path}"), path.open("rb") as file:
        return _check_integrity(file, read_frames(file))[0]


def _measure(each: PackInput) -> FileEntry:
    with open_regular(each.source) as file:
        digest = Sha256(hashlib.file_digest(file, "sha256").hexdigest())
        return FileEntry(each.path, digest, file.tell(), each.mode)


def _write_frame(blob: HashingWriter, listing: Listing, sources: Mapping[str, Path], level: int) -> HashingWriter:
    """Write the zstd frame; what is returned has the content's digest and size."""
    size = listing.content_size_bytes
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level,
        source_size=size,
        window_log=min(_WINDOW_LOG, max(_MIN_WINDOW_LOG, size.bit_length())),
        enable_ldm=True,
        threads=_THREADS,
        job_size=_JOB_BYTES,
        write_checksum=True,
        write_content_size=True,
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    # No `with`: leaving it by an error would try to finish the frame, and hide that error behind zstd's own.
    frame = compressor.stream_writer(cast("IO[bytes]", _Unflushed(blob)), size=size, closefd=False)
    content = HashingWriter(frame)
    write_tar(content, listing, sources)
    frame.flush(zstandard.FLUSH_FRAME)
    return content


class _Unflushed:
    """A sink with nothing but `write`: python-zstandard calls `flush` and `close` where there are such."""

    def __init__(self, sink: HashingWriter) -> None:
        self.write = sink.write


def _seal(blob: HashingWriter, envelopes: Sequence[bytes]) -> tuple[bytes, bytes]:
    """The statements, and the same with the integrity member in the last of them."""
    for envelope in envelopes:
        if not _ENVELOPE.fullmatch(envelope):
            raise BundleFormatError(f"a statement is not a DSSE envelope in canonical JSON: {envelope[:80]!r}")
    if not envelopes:
        raise BundleFormatError("it needs at least one statement")
    statements = b"".join(envelopes)
    member = b'{"bundle_sha256":"%s",' % blob.sha256_with(statements).encode()
    sealed = b"".join([*envelopes[:-1], member, envelopes[-1][1:]])
    if len(sealed) > MAX_STATEMENTS_BYTES:
        raise BundleLimitError(f"its statements would have {len(sealed)} bytes, more than {MAX_STATEMENTS_BYTES}")
    return statements, sealed


def _unseal(sealed: bytes) -> tuple[bytes, str]:
    """The statements without the integrity member, and its value."""
    at = 0
    while match := _ENVELOPE.match(sealed, at):
        at = match.end()
    last = _SEALED_ENVELOPE.fullmatch(sealed, at)
    if not last:
        raise BundleFormatError(
            f"its statements are not DSSE envelopes in canonical JSON, one a line, the last with bundle_sha256: "
            f"see byte {at} of them"
        )
    return sealed[:at] + b"{" + last[2], last[1].decode()


def _check_integrity(file: BinaryIO, frames: Frames) -> tuple[bytes, Sha256]:
    """Hash the blob once; returns its statements, and its digest."""
    digest = hashlib.sha256()
    file.seek(0)
    for chunk in iter(_Part(file, frames.frame_size).read, b""):
        digest.update(chunk)
    blob = digest.copy()
    tail = file.read(frames.total_size - frames.frame_size)
    blob.update(tail)
    statements, expected = _unseal(tail[frames.statements_offset - frames.frame_size :])
    digest.update(statements)
    if expected != digest.hexdigest():
        raise BundleDigestError(
            "its bytes have changed since it was packed: bundle_sha256 differs", hint="Fetch or build it again."
        )
    return statements, Sha256(blob.hexdigest())


class _Part:
    """The next `size` bytes of a file, as a stream."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int = CHUNK_SIZE_BYTES, /) -> bytes:
        data = self._file.read(min(size, self._left))
        self._left -= len(data)
        return data


@contextlib.contextmanager
def _open_content(file: BinaryIO, frames: Frames) -> Iterator[ContentReader]:
    """The zstd frame's content as a stream. At the block's end nothing reads the file any more."""
    file.seek(0)
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    source = decompressor.stream_reader(
        cast("IO[bytes]", _Part(file, frames.frame_size)), read_across_frames=False, closefd=False
    )
    with ThreadPoolExecutor(1) as unzstd, ThreadPoolExecutor(1) as hasher:
        yield ContentReader(source.readinto, frames.content_size, unzstd=unzstd, hasher=hasher)


@contextlib.contextmanager
def _naming(what: str) -> Iterator[None]:
    """Put the bundle's name in front of what is wrong with it."""
    try:
        yield
    except (BundleFormatError, BundleLimitError, BundleDigestError, InputsChangedError) as error:
        raise type(error)(f"{what}: {error}", hint=error.hint) from error
