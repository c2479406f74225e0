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
import os
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

import zstandard

from meshbuild.digests import CHUNK_SIZE_BYTES, HashingWriter, Sha256
from meshbuild.errors import BundleDigestError, BundleFormatError, BundleLimitError, InputsChangedError
from meshbuild.jsontext import canonical_json, parse_json
from meshbuild.paths import atomic_write, check_relative_path, fsync_folder, local_errors
from meshbuild.tarformat import BLOCK, END, entry_header, padding, tar_size
from meshbuild.zstdframe import MAX_STATEMENTS_BYTES, MAX_WINDOW_LOG, STATEMENTS_MAGIC, read_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

FORMAT = 1
LISTING_PATH = ".bundle/bundle.json"
MAX_LISTING_BYTES = 16 << 20
MAX_FILES = 100_000
MAX_CONTENT_BYTES = 16 << 30
INTEGRITY_MEMBER = "bundle_sha256"
_MODES = {"0644": 0o644, "0755": 0o755}
_WINDOW_LOG = 25


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A payload file: its path, digest, size and mode (0o644 or 0o755)."""

    path: str
    sha256: Sha256
    size_bytes: int
    mode: int


@dataclass(frozen=True, slots=True)
class BundleIdentity:
    """Which artifact a bundle is."""

    module: str
    artifact: str
    version: str
    system: str
    binary: str


@dataclass(frozen=True, slots=True)
class Listing:
    """bundle.json: which artifact this is and every payload file, in byte order of path."""

    module: str
    artifact: str
    version: str
    system: str
    binary: str
    files: tuple[FileEntry, ...]

    def to_bytes(self) -> bytes:
        """bundle.json's one spelling."""
        return canonical_json(
            {
                "format": FORMAT,
                "module": self.module,
                "artifact": self.artifact,
                "version": self.version,
                "system": self.system,
                "binary": self.binary,
                "files": [
                    {"path": f.path, "sha256": f.sha256, "size_bytes": f.size_bytes, "mode": f"{f.mode:04o}"}
                    for f in self.files
                ],
            }
        )

    @property
    def content_size_bytes(self) -> int:
        """The size of the whole tar."""
        entries = [(LISTING_PATH, len(self.to_bytes()), 0o644)]
        return tar_size([*entries, *((file.path, file.size_bytes, file.mode) for file in self.files)])

    @classmethod
    def parse(cls, data: bytes) -> Listing:
        """Parse bundle.json strictly.

        Raises:
            BundleFormatError: it is malformed, hostile, of another format or not in its one spelling.
            BundleLimitError: too many files.
        """
        try:
            value = parse_json(data)
            listing = cls._from_json(value)
        except (ValueError, KeyError, TypeError) as error:
            raise BundleFormatError(f"its bundle.json {_reason(error)}") from error
        if listing.to_bytes() != data:
            raise BundleFormatError("its bundle.json is not in canonical spelling")
        return listing

    @classmethod
    def _from_json(cls, value: Any) -> Listing:  # noqa: ANN401 - JSON is any
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            found = value.get("format") if isinstance(value, dict) else type(value).__name__
            raise BundleFormatError(f"its bundle.json is of format {found!r}; this version reads format {FORMAT}")
        if len(value["files"]) > MAX_FILES:
            raise BundleLimitError(f"its bundle.json lists {len(value['files'])} files, more than {MAX_FILES}")
        names = {name: value[name] for name in ("module", "artifact", "version", "system", "binary")}
        for name, text in names.items():
            if not isinstance(text, str) or not text or not text.isprintable() or "/" in text:
                raise ValueError(f"has a {name} that is no plain text")
        files = tuple(
            FileEntry(check_relative_path(f["path"]), Sha256(f["sha256"]), _size(f["size_bytes"]), _MODES[f["mode"]])
            for f in value["files"]
        )
        _check_paths([file.path for file in files])
        listing = cls(**names, files=files)
        if not any(file.path == listing.binary and file.mode == _MODES["0755"] for file in files):
            raise ValueError(f"doesn't list its binary {listing.binary!r} as an executable file")
        return listing


@dataclass(frozen=True, slots=True)
class PackInput:
    """A file to pack: its path in the bundle, where it is now, and its mode there."""

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

    The inputs are hashed, and hashed again while they are written.

    Args:
        target: the bundle's file.
        identity: which artifact it is.
        inputs: the payload, in any order.
        attest: given the listing and the content digest, returns the statements: DSSE envelopes in canonical JSON.
        level: zstd's compression level.

    Raises:
        InputsChangedError: an input changed between the two readings.
        BundleLimitError: more files or statements than a bundle may hold.
        BundleFormatError: paths that no bundle may have.
        LocalFileError: an input can't be read or the target can't be written.
    """
    ordered = sorted(inputs, key=lambda each: each.path.encode())
    try:
        _check_paths([check_relative_path(each.path) for each in ordered])
    except ValueError as error:
        raise BundleFormatError(f"could not pack {target.name}: the file list {error}") from error
    with local_errors(f"read what goes into {target.name}"):
        files = tuple(_measure(each) for each in ordered)
    listing = Listing(identity.module, identity.artifact, identity.version, identity.system, identity.binary, files)
    Listing.parse(listing.to_bytes())
    with local_errors(f"write {target}"), atomic_write(target) as file:
        blob = HashingWriter(file)
        content = _write_content(blob, listing, ordered, level)
        content_size = listing.content_size_bytes
        statements, sealed = _seal(blob, attest(listing, content))
        blob.write(STATEMENTS_MAGIC.to_bytes(4, "little") + len(sealed).to_bytes(4, "little") + sealed)
    return BundleInfo(listing, content, content_size, blob.sha256, blob.size_bytes, statements)


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

    Args:
        path: the bundle's file.
        into: a folder to make and extract to, bundle.json included; gone again when anything fails.
        max_content_bytes: the most that its content may have.
        expected_content: the content digest that it must have.

    Raises:
        BundleFormatError, BundleLimitError, BundleDigestError: it is not a whole bundle.
        LocalFileError: it can't be read, or `into` can't be written.
    """
    with _naming(path), local_errors(f"read {path}"), path.open("rb") as file:
        frames = read_frames(file)
        if frames.content_size > max_content_bytes:
            raise BundleLimitError(f"it holds {frames.content_size} bytes, more than the {max_content_bytes} allowed")
        statements, blob_sha256 = _check_integrity(file, frames.frame_size)
        file.seek(0)
        source = zstandard.ZstdDecompressor(max_window_size=1 << MAX_WINDOW_LOG).stream_reader(
            cast("IO[bytes]", _Slice(file, frames.frame_size)), read_across_frames=False, closefd=False
        )
        content = _Content(source, frames.content_size)
        with _extraction(into) as folder:
            listing = _read_content(content, folder)
            if expected_content is not None and content.sha256 != expected_content:
                raise BundleDigestError(f"its content is {content.sha256}, expected was {expected_content}")
        size = path.stat().st_size
    return BundleInfo(listing, content.sha256, frames.content_size, blob_sha256, size, statements)


def read_statements(path: Path) -> bytes:
    """A bundle's statements, after the steps 1 and 2 of `read_bundle`; nothing is decompressed. Raises as it does."""
    with _naming(path), local_errors(f"read {path}"), path.open("rb") as file:
        return _check_integrity(file, read_frames(file).frame_size)[0]


def check_folder(folder: Path, content_sha256: Sha256) -> Listing:
    """Check that an extracted bundle is whole: the exact files, their modes, and the tar made of them.

    Raises:
        BundleDigestError: something is missing, too much or changed.
    """
    digest = hashlib.sha256()

    class _Sink:
        def write(self, data: bytes, /) -> int:
            digest.update(data)
            return len(data)

    try:
        listing = Listing.parse((folder / LISTING_PATH).read_bytes())
        expected = {LISTING_PATH: 0o644} | {file.path: file.mode for file in listing.files}
        found = dict(_walk(folder))
        if found != expected:
            odd = min(set(found.items()) ^ set(expected.items()))[0]
            raise BundleDigestError(f"{folder} differs from its bundle at {odd}")
        _write_tar(_Sink(), listing, [PackInput(f.path, folder / f.path, f.mode) for f in listing.files])
    except (OSError, BundleFormatError, InputsChangedError) as error:
        raise BundleDigestError(f"{folder} is not a whole bundle: {error}") from error
    if digest.hexdigest() != content_sha256:
        raise BundleDigestError(f"{folder} holds the content {digest.hexdigest()}, expected was {content_sha256}")
    return listing


def _walk(folder: Path) -> Iterator[tuple[str, int]]:
    for parent, folders, names in os.walk(folder):
        for name in [*names, *(each for each in folders if Path(parent, each).is_symlink())]:
            file = Path(parent, name)
            status = file.lstat()
            mode = stat.S_IMODE(status.st_mode) if stat.S_ISREG(status.st_mode) else -1
            yield file.relative_to(folder).as_posix(), mode


def _measure(each: PackInput) -> FileEntry:
    if not stat.S_ISREG(each.source.stat().st_mode):
        raise BundleFormatError(f"could not pack {each.source}: it is not a regular file")
    with each.source.open("rb", buffering=0) as file:
        digest = Sha256(hashlib.file_digest(file, "sha256").hexdigest())
        return FileEntry(each.path, digest, os.fstat(file.fileno()).st_size, each.mode)


def _write_content(sink: HashingWriter, listing: Listing, inputs: Sequence[PackInput], level: int) -> Sha256:
    size = listing.content_size_bytes
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level,
        source_size=size,
        window_log=min(_WINDOW_LOG, max(10, size.bit_length())),
        enable_ldm=True,
        threads=2,
        write_checksum=True,
        write_content_size=True,
    )
    with zstandard.ZstdCompressor(compression_params=parameters).stream_writer(
        cast("IO[bytes]", _Unclosable(sink)), size=size, closefd=False
    ) as frame:
        content = HashingWriter(frame)
        _write_tar(content, listing, inputs)
    return content.sha256


def _write_tar(sink: Any, listing: Listing, inputs: Sequence[PackInput]) -> None:  # noqa: ANN401
    text = listing.to_bytes()
    sink.write(entry_header(LISTING_PATH, len(text), 0o644) + text + padding(len(text)))
    for entry, each in zip(listing.files, inputs, strict=True):
        sink.write(entry_header(entry.path, entry.size_bytes, entry.mode))
        with each.source.open("rb", buffering=0) as file:
            copied = HashingWriter(sink)
            while chunk := file.read(CHUNK_SIZE_BYTES):
                if copied.size_bytes + len(chunk) > entry.size_bytes:
                    break
                copied.write(chunk)
        if chunk or copied.sha256 != entry.sha256:
            raise InputsChangedError(f"{each.source} changed while it was being packed", hint="Pack it again.")
        sink.write(padding(entry.size_bytes))
    sink.write(END)


class _Unclosable:
    def __init__(self, sink: HashingWriter) -> None:
        self.write = sink.write


def _seal(blob: HashingWriter, envelopes: Sequence[bytes]) -> tuple[bytes, bytes]:
    statements = b"".join(envelopes)
    if not envelopes:
        raise BundleFormatError("a bundle needs at least one signed statement")
    last = {**parse_json(envelopes[-1]), INTEGRITY_MEMBER: blob.sha256_with(statements)}
    sealed = b"".join([*envelopes[:-1], canonical_json(last)])
    if len(sealed) > MAX_STATEMENTS_BYTES:
        raise BundleLimitError(f"its statements would have {len(sealed)} bytes, more than {MAX_STATEMENTS_BYTES}")
    return statements, sealed


def _check_integrity(file: BinaryIO, frame_size: int) -> tuple[bytes, Sha256]:
    """Hash the blob once; returns its statements, and its digest."""
    digest = hashlib.sha256()
    file.seek(0)
    left = frame_size
    while left and (chunk := file.read(min(left, CHUNK_SIZE_BYTES))):
        digest.update(chunk)
        left -= len(chunk)
    blob = digest.copy()
    tail = file.read()
    blob.update(tail)
    sealed = tail[8:]
    lines = sealed.splitlines(keepends=True)
    try:
        values = [parse_json(line) for line in lines]
        found = values[-1].pop(INTEGRITY_MEMBER)
    except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        raise BundleFormatError(f"its statements {_reason(error)}") from error
    statements = b"".join(map(canonical_json, values))
    if sealed != b"".join(
        [*lines[:-1], canonical_json({**values[-1], INTEGRITY_MEMBER: found})]
    ) or not statements.startswith(b"".join(lines[:-1])):
        raise BundleFormatError("its statements are not in canonical spelling")
    digest.update(statements)
    if found != digest.hexdigest():
        raise BundleDigestError("its bytes have changed since it was packed: bundle_sha256 differs")
    return statements, Sha256(blob.hexdigest())


class _Slice:
    """The first `size` bytes of a file, as a stream."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data


class _Content:
    """The decompressed tar as a stream that is hashed, and that never gives more than the frame declares."""

    def __init__(self, source: IO[bytes], size: int) -> None:
        self._source, self._left = source, size
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> Sha256:
        return Sha256(self._hash.hexdigest())

    def take(self, size: int, what: str) -> bytes:
        """Exactly size bytes, which a caller has bounded."""
        parts = []
        while size and (data := self._read(size)):
            parts.append(data)
            size -= len(data)
        if size:
            raise BundleFormatError(f"its content ends in the middle of {what}")
        return b"".join(parts)

    def chunks(self, size: int, what: str) -> Iterator[bytes]:
        """Size bytes, in pieces."""
        while size:
            data = self._read(min(size, CHUNK_SIZE_BYTES))
            if not data:
                raise BundleFormatError(f"its content ends in the middle of {what}")
            size -= len(data)
            yield data

    def end(self) -> None:
        """Check that nothing is left, and let the decoder check the frame's checksum."""
        try:
            more = self._source.read(1)
        except zstandard.ZstdError as error:
            raise BundleDigestError(f"its zstd frame does not decompress: {error}") from error
        if more or self._left:
            raise BundleFormatError("its content goes on behind the end of the tar")

    def _read(self, size: int) -> bytes:
        try:
            data = self._source.read(min(size, self._left))
        except zstandard.ZstdError as error:
            raise BundleDigestError(f"its zstd frame does not decompress: {error}") from error
        self._left -= len(data)
        self._hash.update(data)
        return data


def _read_content(content: _Content, folder: int | None) -> Listing:
    header = content.take(BLOCK, "the first header")
    match = re.fullmatch(rb"([0-7]{11})\0", header[124:136])
    size = int(match[1], 8) if match else 0
    if header != entry_header(LISTING_PATH, size, 0o644):
        raise BundleFormatError(f"its first entry is not {LISTING_PATH}: {_describe(header)}")
    if size > MAX_LISTING_BYTES:
        raise BundleLimitError(f"its bundle.json has {size} bytes, more than {MAX_LISTING_BYTES}")
    text = content.take(size, "bundle.json")
    _take_padding(content, size)
    listing = Listing.parse(text)
    if folder is not None:
        with _create(folder, LISTING_PATH, 0o644) as out:
            out.write(text)
    for file in listing.files:
        expected = entry_header(file.path, file.size_bytes, file.mode)
        found = content.take(len(expected), f"the header of {file.path}")
        if found != expected:
            raise BundleFormatError(f"expected the entry {file.path!r} of bundle.json, found {_describe(found)}")
        with _create(folder, file.path, file.mode) as out:
            copied = HashingWriter(out)
            for chunk in content.chunks(file.size_bytes, file.path):
                copied.write(chunk)
        if copied.sha256 != file.sha256:
            raise BundleDigestError(f"{file.path} has the sha256 {copied.sha256}, bundle.json says {file.sha256}")
        _take_padding(content, file.size_bytes)
    if content.take(len(END), "the tar's end") != END:
        raise BundleFormatError("its tar has entries that bundle.json doesn't list")
    content.end()
    return listing


def _take_padding(content: _Content, size: int) -> None:
    expected = padding(size)
    if content.take(len(expected), "a padding") != expected:
        raise BundleFormatError("its tar has bytes in the padding of an entry")


_KINDS = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"5": "a folder",
    b"6": "a FIFO",
    b"x": "a pax header",
    b"g": "a global pax header",
}


def _describe(header: bytes) -> str:
    """What a header that isn't the expected one would be to a tar program, for people."""
    name = header[:100].rstrip(b"\0").decode(errors="replace")
    prefix = header[345:500].rstrip(b"\0").decode(errors="replace")
    kind = _KINDS.get(header[156:157], "a file")
    return f"{kind} {f'{prefix}/{name}' if prefix else name!a}"


class _Nowhere:
    def write(self, data: bytes, /) -> int:
        return len(data)


@contextlib.contextmanager
def _create(folder: int | None, path: str, mode: int) -> Iterator[Any]:
    """A new file below an open folder, whatever lies on the way there: no link is followed, nothing is overwritten."""
    if folder is None:
        yield _Nowhere()
        return
    at = os.dup(folder)
    try:
        *parents, name = path.split("/")
        for parent in parents:
            with contextlib.suppress(FileExistsError):
                os.mkdir(parent, 0o755, dir_fd=at)
                os.chmod(parent, 0o755, dir_fd=at)  # noqa: S103 - whatever the umask; payloads are for all to read
            below = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=at), "wb", buffering=0) as out:
            yield out
            os.fchmod(out.fileno(), mode)
            os.fsync(out.fileno())
    finally:
        os.close(at)


@contextlib.contextmanager
def _extraction(into: Path | None) -> Iterator[int | None]:
    """Make the folder to extract to, give it opened, and remove it when the block raises."""
    if into is None:
        yield None
        return
    into.mkdir(mode=0o755)
    into.chmod(0o755)
    try:
        descriptor = os.open(into, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
        for parent, _, _ in os.walk(into, topdown=False):
            fsync_folder(parent)
    except BaseException:
        shutil.rmtree(into, ignore_errors=True)
        raise


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put the bundle's path in front of what is wrong with it."""
    try:
        yield
    except (BundleFormatError, BundleLimitError, BundleDigestError) as error:
        raise type(error)(f"{path}: {error}", hint=error.hint) from error


def _check_paths(paths: Sequence[str]) -> None:
    """Raise ValueError unless paths are in byte order, unlike, none below `.bundle` and none a folder of another."""
    if len(paths) > MAX_FILES:
        raise BundleLimitError(f"{len(paths)} files are more than the {MAX_FILES} that a bundle may hold")
    taken = set(paths)
    for path, after in zip(paths, [*paths[1:], None], strict=True):
        if after is not None and path.encode() >= after.encode():
            raise ValueError(f"has {after!r} twice or out of order")
        if path.split("/", 1)[0] == ".bundle":
            raise ValueError(f"has {path!r}, and .bundle is reserved")
        parts = path.split("/")
        for depth in range(1, len(parts)):
            if "/".join(parts[:depth]) in taken:
                raise ValueError(f"has {path!r} below a file")


def _size(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 1 << 62:
        raise ValueError(f"has the size {value!r}")
    return value


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else f"lacks something or has it in another form: {error!r}"
