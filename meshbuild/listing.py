"""bundle.json, format 1: which artifact a bundle is and every file in it. It determines the tar, byte for byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshbuild.digests import Sha256
from meshbuild.errors import BundleFormatError, BundleLimitError
from meshbuild.jsontext import canonical_json, parse_json
from meshbuild.paths import check_relative_path
from meshbuild.tarformat import tar_size

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT = 1
LISTING_PATH = ".bundle/bundle.json"
LISTING_MODE = 0o644
MAX_LISTING_BYTES = 16 << 20
MAX_FILES = 100_000
MAX_FILE_BYTES = 1 << 50
_MODES = {"0644": 0o644, "0755": 0o755}
_NAMES = ("module", "artifact", "version", "system", "binary")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A payload file: its path, digest, size and mode (0o644 or 0o755)."""

    path: str
    sha256: Sha256
    size_bytes: int
    mode: int


@dataclass(frozen=True, slots=True)
class BundleIdentity:
    """Which artifact a bundle is; `binary` is the path of its program."""

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

    @classmethod
    def of(cls, identity: BundleIdentity, files: Sequence[FileEntry]) -> Listing:
        """The listing of these files, in order. Raises as `parse` does when no bundle may have it."""
        listing = cls(
            module=identity.module,
            artifact=identity.artifact,
            version=identity.version,
            system=identity.system,
            binary=identity.binary,
            files=tuple(sorted(files, key=lambda file: file.path.encode(errors="surrogatepass"))),
        )
        try:
            text = listing.to_bytes()
        except UnicodeEncodeError as error:
            raise BundleFormatError("a path or name is not valid Unicode") from error
        if len(text) > MAX_LISTING_BYTES:
            raise BundleLimitError(f"its bundle.json would have {len(text)} bytes, more than {MAX_LISTING_BYTES}")
        return cls.parse(text)

    @classmethod
    def parse(cls, data: bytes) -> Listing:
        """Parse bundle.json strictly.

        Raises:
            BundleFormatError: it is malformed, hostile, of another format or not in its one spelling.
            BundleLimitError: too many files.
        """
        try:
            listing = cls._from_json(parse_json(data))
        except ValueError as error:
            raise BundleFormatError(f"its bundle.json {error}") from error
        except KeyError as error:
            raise BundleFormatError(f"its bundle.json lacks {error}") from error
        if listing.to_bytes() != data:
            raise BundleFormatError("its bundle.json is not in its one spelling (sorted keys, no blanks, no more keys)")
        return listing

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
        files = ((file.path, file.size_bytes, file.mode) for file in self.files)
        return tar_size([(LISTING_PATH, len(self.to_bytes()), LISTING_MODE), *files])

    @classmethod
    def _from_json(cls, value: Any) -> Listing:  # noqa: ANN401 - JSON is any
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            found = value.get("format") if isinstance(value, dict) else type(value).__name__
            raise ValueError(f"is of format {found!r:.80}; this version reads format {FORMAT}")
        if not isinstance(value["files"], list):
            raise ValueError(f"has the files {value['files']!r:.80}, which is not a list")  # noqa: TRY004 - one kind of error for all
        if len(value["files"]) > MAX_FILES:
            raise BundleLimitError(f"its bundle.json lists {len(value['files'])} files, more than {MAX_FILES}")
        files = tuple(_file(each) for each in value["files"])
        _check_paths([file.path for file in files])
        listing = cls(**{name: _name(value[name], name) for name in _NAMES}, files=files)
        if not any(file.path == listing.binary and file.mode == _MODES["0755"] for file in files):
            raise ValueError(f"doesn't list its binary {listing.binary!r} as an executable file")
        return listing


def _file(value: Any) -> FileEntry:  # noqa: ANN401 - JSON is any
    if not isinstance(value, dict) or not isinstance(value["path"], str):
        raise ValueError(f"lists {value!r:.80}, which is not a file")  # noqa: TRY004 - one kind of error for all
    try:
        path = check_relative_path(value["path"])
    except ValueError as error:
        raise ValueError(f"lists a path that no bundle may have: {error}") from error
    size, mode, digest = value["size_bytes"], value["mode"], value["sha256"]
    if type(size) is not int or not 0 <= size <= MAX_FILE_BYTES:
        raise ValueError(f"gives {path!r} the size {size!r:.80}")
    if not isinstance(mode, str) or mode not in _MODES:
        raise ValueError(f"gives {path!r} the mode {mode!r:.80}; only '0644' and '0755' are allowed")
    try:
        return FileEntry(path, Sha256(digest), size, _MODES[mode])
    except (TypeError, ValueError) as error:
        raise ValueError(f"gives {path!r} the sha256 {digest!r:.80}") from error


def _name(value: object, name: str) -> str:
    if not isinstance(value, str) or not value or not value.isprintable() or "/" in value:
        raise ValueError(f"has the {name} {value!r:.80}, which is not a name")
    return value


def _check_paths(paths: Sequence[str]) -> None:
    """Raise ValueError unless paths are in byte order, unlike, none below `.bundle` and none a folder of another."""
    taken = set(paths)
    before = b""
    for path in paths:
        if path.encode() <= before:
            raise ValueError(f"lists {path!r} " + ("twice" if path.encode() == before else "out of order"))
        before = path.encode()
        if path.split("/", 1)[0] == ".bundle":
            raise ValueError(f"lists {path!r}, and .bundle is reserved")
        at = path.find("/")
        while at != -1:
            if path[:at] in taken:
                raise ValueError(f"lists {path!r} below {path[:at]!r}, which is a file")
            at = path.find("/", at + 1)
