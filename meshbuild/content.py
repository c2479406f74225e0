"""A bundle's content: the canonical tar that bundle.json determines, made of files and taken apart to files.

Nothing here interprets a tar: each header is computed from bundle.json, and what is read is compared with it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import deque
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

import zstandard

from meshbuild.digests import CHUNK_SIZE_BYTES, Sha256
from meshbuild.errors import BundleDigestError, BundleFormatError, BundleLimitError, InputsChangedError
from meshbuild.listing import LISTING_MODE, LISTING_PATH, MAX_LISTING_BYTES, FileEntry, Listing
from meshbuild.tarformat import BLOCK, END, describe_header, entry_header, header_size_field, padding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Executor, Future
    from io import FileIO

    from meshbuild.unpack import NewFolder

_CHUNKS_AHEAD = 3


class Sink(Protocol):
    """What a tar is written to."""

    def write(self, data: bytes, /) -> object:
        """Take all of data."""


def write_tar(sink: Sink, listing: Listing, sources: Mapping[str, Path]) -> None:
    """Write the canonical tar of a listing, whose files lie at `sources` by path.

    Raises:
        InputsChangedError: a file isn't what the listing says.
        OSError: a file can't be read, or the sink refuses.
    """
    text = listing.to_bytes()
    sink.write(entry_header(LISTING_PATH, len(text), LISTING_MODE) + text + padding(len(text)))
    for entry in listing.files:
        sink.write(entry_header(entry.path, entry.size_bytes, entry.mode))
        _copy(sources[entry.path], entry, sink)
        sink.write(padding(entry.size_bytes))
    sink.write(END)


def _copy(source: Path, entry: FileEntry, sink: Sink) -> None:
    """Copy a file's content, and raise InputsChangedError unless it is what the entry says."""
    digest, left = hashlib.sha256(), entry.size_bytes
    try:
        with open_regular(source) as file:
            while chunk := file.read(min(CHUNK_SIZE_BYTES, left + 1)):
                left -= len(chunk)
                if left < 0:
                    break
                digest.update(chunk)
                sink.write(chunk)
    except FileNotFoundError as error:
        raise InputsChangedError(f"{source} is gone since it was first read") from error
    if left or digest.hexdigest() != entry.sha256:
        raise InputsChangedError(f"{source} is not what it was when it was first read: {entry.sha256}")


def read_tar(content: ContentReader, folder: NewFolder | None) -> Listing:
    """Read the whole tar, comparing every byte that isn't a file's with what bundle.json makes it.

    With `folder`, every file is created in it, bundle.json too.

    Raises:
        BundleFormatError, BundleLimitError: it isn't the canonical tar of its bundle.json, or that is not valid.
        BundleDigestError: a file has another digest than bundle.json says.
        OSError: a file can't be created.
    """
    text = _read_listing(content)
    listing = Listing.parse(text)
    if folder is not None:
        with folder.create(LISTING_PATH, LISTING_MODE) as out:
            out.write(text)
    for entry in listing.files:
        expected = entry_header(entry.path, entry.size_bytes, entry.mode)
        found = content.take(len(expected), f"the header of {entry.path!r}")
        if found != expected:
            raise BundleFormatError(_unexpected(found, entry, listing))
        if folder is None:
            _read_file(content, entry, None)
        else:
            with folder.create(entry.path, entry.mode) as out:
                _read_file(content, entry, out)
        _read_padding(content, entry.size_bytes)
    end = content.take(len(END), "the end of the tar")
    if end != END:
        kind, path = describe_header(end)
        raise BundleFormatError(f"expected the end of the tar, found {kind} {path!r}, which bundle.json doesn't list")
    content.end()
    return listing


def _read_listing(content: ContentReader) -> bytes:
    header = content.take(BLOCK, "the first header")
    size = header_size_field(header)
    if header != entry_header(LISTING_PATH, size, LISTING_MODE):
        kind, path = describe_header(header)
        raise BundleFormatError(f"expected {LISTING_PATH} as the first entry, found {kind} {path!r}")
    if size > MAX_LISTING_BYTES:
        raise BundleLimitError(f"its bundle.json has {size} bytes, more than {MAX_LISTING_BYTES}")
    text = content.take(size, "bundle.json")
    _read_padding(content, size)
    return text


def _read_file(content: ContentReader, entry: FileEntry, out: IO[bytes] | None) -> None:
    digest = hashlib.sha256()
    for piece in content.pieces(entry.size_bytes, repr(entry.path)):
        digest.update(piece)
        if out is not None:
            out.write(piece)
    if digest.hexdigest() != entry.sha256:
        raise BundleDigestError(f"{entry.path!r} has the sha256 {digest.hexdigest()}, bundle.json says {entry.sha256}")


def _read_padding(content: ContentReader, size: int) -> None:
    expected = padding(size)
    if content.take(len(expected), "the padding of an entry") != expected:
        raise BundleFormatError("the padding of an entry holds something")


def _unexpected(found: bytes, entry: FileEntry, listing: Listing) -> str:
    """Say for people what came instead of an entry's header."""
    kind, path = describe_header(found)
    if path == entry.path and kind == "a file":
        what = "a header of that name with another mode, size, owner, time or other field"
    elif kind != "a file":
        what = f"{kind} {path!r}" if path else kind
    elif path.startswith("/"):
        what = f"{path!r}, which is absolute"
    elif ".." in path.split("/"):
        what = f"{path!r}, which leads outside"
    elif path not in {file.path for file in listing.files}:
        what = f"{path!r}, which bundle.json doesn't list"
    else:
        what = f"{path!r}, which is there twice or out of order"
    return f"expected the entry {entry.path!r}, next in bundle.json; found {what}"


class ContentReader:
    """A tar as it is decompressed: hashed, and never more of it than the frame declares.

    While one chunk is taken apart and written, it is hashed in one thread and the next ones are decompressed in
    another: zstd and hashlib let go of the GIL. The buffers are used in turn, since fresh ones cost page faults.

    Raises, from every method that reads:
        BundleFormatError: the frame doesn't decompress, or ends too early or too late.
    """

    def __init__(
        self, readinto: Callable[[bytearray], int], size_bytes: int, *, unzstd: Executor, hasher: Executor
    ) -> None:
        """Start to read.

        Args:
            readinto: gives the next decompressed bytes; raises ZstdError.
            size_bytes: what the frame declares.
            unzstd: an executor of one thread, which whoever gives it shuts down.
            hasher: another.
        """
        self._readinto, self._left = readinto, size_bytes
        self._unzstd, self._hasher = unzstd, hasher
        self._hash = hashlib.sha256()
        self._hashed: Future[None] = hasher.submit(self._hash.update, b"")
        self._buffer, self._chunk = bytearray(CHUNK_SIZE_BYTES), memoryview(b"")
        self._ahead: deque[tuple[bytearray, Future[int]]] = deque()
        for _ in range(_CHUNKS_AHEAD):
            self._read_ahead(bytearray(CHUNK_SIZE_BYTES))

    @property
    def sha256(self) -> Sha256:
        """The digest of all that was decompressed so far."""
        self._hashed.result()
        return Sha256(self._hash.hexdigest())

    def pieces(self, size: int, what: str) -> Iterator[memoryview]:
        """The next `size` bytes, in pieces that are good until the next one is asked for."""
        while size:
            if not self._chunk:
                self._refill()
            piece, self._chunk = self._chunk[:size], self._chunk[size:]
            if not piece:
                raise BundleFormatError(f"its content ends in the middle of {what}")
            size -= len(piece)
            yield piece

    def take(self, size: int, what: str) -> bytes:
        """The next `size` bytes at once; the caller has bounded them."""
        return b"".join(map(bytes, self.pieces(size, what)))

    def end(self) -> None:
        """Check that nothing is left; reading on to the end is also what lets zstd check the frame's checksum."""
        if not self._chunk:
            self._refill()
        if self._chunk or self._left:
            raise BundleFormatError("its content goes on behind the end of the tar")

    def _refill(self) -> None:
        self._hashed.result()  # now nobody needs what the buffer holds
        self._read_ahead(self._buffer)
        self._buffer, read = self._ahead.popleft()
        try:
            size = read.result()
        except zstandard.ZstdError as error:
            raise BundleFormatError(f"its zstd frame does not decompress: {error}") from error
        self._left -= size
        if self._left < 0:
            raise BundleFormatError("its content is larger than its zstd frame declares")
        self._chunk = memoryview(self._buffer)[:size]
        self._hashed = self._hasher.submit(self._hash.update, self._chunk)

    def _read_ahead(self, buffer: bytearray) -> None:
        self._ahead.append((buffer, self._unzstd.submit(self._readinto, buffer)))


def check_folder(folder: Path, content_sha256: Sha256) -> Listing:
    """Check that an extracted bundle is whole: the exact files, their modes, and the digest of the tar made of them.

    Raises:
        BundleDigestError: something is missing, too much, changed or can't be read.
    """
    digest = _DigestSink()
    listing = rebuild_tar(folder, digest)
    if digest.sha256 != content_sha256:
        raise BundleDigestError(f"{folder} holds the content {digest.sha256}, expected was {content_sha256}")
    return listing


def rebuild_tar(folder: Path, sink: Sink) -> Listing:
    """Write the canonical tar of an extracted bundle to sink, byte for byte what it was extracted from.

    Raises:
        BundleDigestError: the folder's files are not those of its bundle.json. Part of the tar may have been written.
    """
    try:
        with open_regular(folder / LISTING_PATH) as file:
            listing = Listing.parse(file.read(MAX_LISTING_BYTES + 1))
        expected = {LISTING_PATH: LISTING_MODE} | {each.path: each.mode for each in listing.files}
        found = dict(_modes(folder))
        if found != expected:
            odd, _ = min(found.items() ^ expected.items())
            raise BundleDigestError(f"{folder} is not what its bundle.json lists: {_fault(odd, found, expected)}")
        write_tar(sink, listing, {each.path: folder / each.path for each in listing.files})
    except (OSError, BundleFormatError, BundleLimitError, InputsChangedError) as error:
        raise BundleDigestError(f"{folder} is not a whole bundle: {error}") from error
    return listing


class _DigestSink:
    """Only hashes what is written to it."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def write(self, data: bytes, /) -> None:
        self._hash.update(data)

    @property
    def sha256(self) -> Sha256:
        return Sha256(self._hash.hexdigest())


def _modes(folder: Path) -> Iterator[tuple[str, int]]:
    """Every file below folder with its mode; what is neither file nor folder has the mode -1."""
    for parent, folders, names in os.walk(folder):
        for name in [*names, *(each for each in folders if Path(parent, each).is_symlink())]:
            file = Path(parent, name)
            status = file.lstat()
            mode = stat.S_IMODE(status.st_mode) if stat.S_ISREG(status.st_mode) else -1
            yield file.relative_to(folder).as_posix(), mode


def _fault(path: str, found: dict[str, int], expected: dict[str, int]) -> str:
    if path not in expected:
        return f"{path} is not listed"
    if path not in found:
        return f"{path} is missing"
    if found[path] == -1:
        return f"{path} is not a regular file"
    return f"{path} has the mode {found[path]:04o}, expected {expected[path]:04o}"


def open_regular(path: Path) -> FileIO:
    """Open a regular file, unbuffered; O_NONBLOCK so that a FIFO is refused, not waited for.

    Raises:
        BundleFormatError: it is something else.
        OSError: it is a link, or can't be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BundleFormatError(f"{path} is not a regular file")
    return os.fdopen(descriptor, "rb", buffering=0)
