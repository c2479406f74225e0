"""Whether a bundle on disk is still what its source would give, decided without running anything.

An artifact's record names every input that its bytes came from, each with a digest. doit's own checker is not used:
it takes an equal mtime for an equal file, asks of targets only that they exist, and writes its state at the very end.

Inputs are texts, so that a record is plain JSON. Paths are relative to the project:

    file:PATH            one file, which may be absent
    package:FOLDER       the files of a folder that the go command would look at
    embed:FOLDER:PATTERN what a //go:embed pattern names, seen from a package's folder
    glob:FOLDER:PATTERN  what a `files` rule names, seen from the manifest's folder
                         (`%3A` and `%25` in these two FOLDERs stand for a colon and a percent sign)
    git:FOLDER           the commit that a folder is at
    vcs:FOLDER           the same, whether its tree differs, and the tags behind it: what `go build` stamps

Only light imports: this is all that a build with nothing to do runs.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import stat
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshbuild.digests import Sha256
from meshbuild.paths import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ABSENT = "absent"

# What go/build looks at in a package's folder (go/build/build.go, matchFile), tests left out.
SOURCE_SUFFIXES = (
    ".go", ".c", ".cc", ".cpp", ".cxx", ".m", ".h", ".hh", ".hpp", ".hxx", ".f", ".F", ".for", ".f90", ".s", ".S",
    ".sx", ".swig", ".swigcxx", ".syso",
)  # fmt: skip

# A file changed this short a time ago may change again within the same tick of the file system's clock ("racy", as git
# calls it): its digest isn't remembered.
_RACY_NS = 50_000_000


class DigestMemory:
    """Digests of files, kept over runs by what stat says of the files, as git's index does.

    Size, mtime, ctime and inode together tell a changed file even when its mtime was put back, since ctime can't be.
    Several processes may use one file at once: the last to save wins, and a lost entry is hashed again.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._entries: dict[str, list[Any]] = {}
        self._loaded = False
        self._unsaved = False

    def digest(self, path: str, status: os.stat_result) -> str:
        """The hex digest of a regular file, whose stat was just taken. Raises OSError."""
        if not self._loaded:
            self._entries, self._loaded = _load(self._file) or {}, True
        key = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        entry = self._entries.get(path)
        if entry and entry[:4] == key:
            return str(entry[4])
        now_ns = time.time_ns()
        digest = str(Sha256.of_file(path))
        if max(status.st_mtime_ns, status.st_ctime_ns) < now_ns - _RACY_NS:
            self._entries[path] = [*key, digest]
            self._unsaved = True
        return digest

    def save(self) -> None:
        """Write the file when there are new entries. Raises OSError."""
        if self._unsaved:
            self._unsaved = False
            write_atomically(self._file, json.dumps(self._entries).encode(), fsync=False)


class Snapshot:
    """Files as they were at one time: each is looked at once, however many artifacts it takes part in.

    Attributes:
        memory: the digests of earlier runs.
        inputs: the digests of whole inputs by project and name, so that a folder is looked at once too.
        newest_change_ns: the latest ctime among the files looked at, in nanoseconds since the epoch.
    """

    def __init__(self, memory: DigestMemory) -> None:
        self.memory = memory
        self.inputs: dict[tuple[Path, str], str] = {}
        self._seen: dict[str, str] = {}
        self.newest_change_ns = 0

    def sha256(self, path: str) -> str:
        """The hex digest of a regular file's content, or "absent" where there is none. Raises OSError."""
        known = self._seen.get(path)
        if known is None:
            known = self._seen[path] = self._look(path)
        return known

    def _look(self, path: str) -> str:
        try:
            status = os.stat(path)  # noqa: PTH116 - 50,000 of them in a no-op, and Path objects are slow
        except (FileNotFoundError, NotADirectoryError):
            return ABSENT
        if not stat.S_ISREG(status.st_mode):
            return ABSENT
        self.newest_change_ns = max(self.newest_change_ns, status.st_ctime_ns)
        return self.memory.digest(path, status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is known of an artifact's last build.

    Attributes:
        fingerprint: digest of what was asked for: the manifest's entry, the pin, the system's row, the settings.
        inputs: each input with its digest.
        bundle: the bundle's path, relative to the project.
        blob_sha256: digest of the bundle file.
        content_sha256: the bundle's identity.
        size_bytes: the bundle file's size.
        dirty: the folders, relative to the project, that differed from the commit in its provenance; empty if none did.
        isolation: how far compiling was cut off (build.Isolation).
    """

    fingerprint: str
    inputs: dict[str, str]
    bundle: str
    blob_sha256: str
    content_sha256: str
    size_bytes: int
    dirty: list[str] = field(default_factory=list)
    isolation: str = ""


def read_record(file: Path) -> Record | None:
    """The record in a file; None when there is none or it can't be read, which means: build."""
    value = _load(file)
    try:
        return Record(**value) if value else None
    except TypeError:
        return None


def write_record(file: Path, record: Record) -> None:
    """Write a record, whole and durable. Raises OSError."""
    write_atomically(file, json.dumps(asdict(record), indent=1).encode())


def is_up_to_date(record: Record | None, *, fingerprint: str, project: Path, files: Snapshot) -> bool:
    """Whether a record's bundle is whole and nothing that it came from has changed. Raises OSError."""
    return (
        record is not None
        and record.fingerprint == fingerprint
        and files.sha256(f"{project}/{record.bundle}") == record.blob_sha256
        and all(digest_input(name, project, files) == digest for name, digest in record.inputs.items())
    )


def digest_inputs(inputs: Iterable[str], project: Path, files: Snapshot) -> dict[str, str]:
    """The digest of each input as it is now. Raises OSError."""
    return {name: digest_input(name, project, files) for name in inputs}


def digest_input(name: str, project: Path, files: Snapshot) -> str:
    """The digest of one input as a snapshot has it: a hex digest, "absent", or what git says. Raises OSError."""
    known = files.inputs.get((project, name))
    if known is None:
        known = files.inputs[project, name] = _look_at_input(name, project, files)
    return known


def _look_at_input(name: str, project: Path, files: Snapshot) -> str:
    kind, _, rest = name.partition(":")
    if kind == "file":
        return files.sha256(os.path.join(project, rest))  # noqa: PTH118 - as above
    if kind in {"git", "vcs"}:
        return _git_state(os.path.join(project, rest), stamped=kind == "vcs")  # noqa: PTH118
    return _digest_files(input_files(name, project), files)


def input_files(name: str, project: Path) -> Iterable[tuple[str, str]]:
    """The files that a package, embed or glob input stands for: each one's name in the input's folder, and its path."""
    kind, _, rest = name.partition(":")
    if kind == "package":
        return _package_files(os.path.join(project, rest))  # noqa: PTH118
    folder, _, pattern = rest.partition(":")
    folder = folder.replace("%3A", ":").replace("%25", "%")
    found = embedded_files if kind == "embed" else matching_files
    root = os.path.join(project, folder)  # noqa: PTH118
    return ((name, f"{root}/{name}") for name in found(root, pattern))


def matching_files(folder: str, pattern: str) -> list[str]:
    """The regular files below folder that a glob names, `**` crossing folders; relative, with slashes, sorted."""
    found = glob.glob(pattern, root_dir=folder, recursive=True, include_hidden=True)  # noqa: PTH207 - needs root_dir
    return sorted({os.path.normpath(name) for name in found if os.path.isfile(f"{folder}/{name}")})  # noqa: PTH113


def embedded_files(folder: str, pattern: str) -> list[str]:
    """The files that a //go:embed pattern names, as https://pkg.go.dev/embed says; relative, with slashes, sorted."""
    everything = pattern.startswith("all:")
    found: set[str] = set()
    for name in _go_glob(folder, pattern.removeprefix("all:")):
        top = f"{folder}/{name}"
        if not os.path.isdir(top):  # noqa: PTH112
            found.add(name)
            continue
        for parent, folders, files in os.walk(top):
            files += [part for part in folders if os.path.islink(f"{parent}/{part}")]  # noqa: PTH114
            if not everything:
                folders[:] = [part for part in folders if part[0] not in "._"]
                files = [part for part in files if part[0] not in "._"]  # noqa: PLW2901
            found.update(os.path.relpath(f"{parent}/{part}", folder) for part in files)
    return sorted(found)


def _go_glob(folder: str, pattern: str) -> list[str]:
    """What Go's path.Match means by a pattern; Python's glob writes `[^a]` as `[!a]` and knows no backslash."""
    if "[" not in pattern and "\\" not in pattern:
        return glob.glob(pattern, root_dir=folder, include_hidden=True)  # noqa: PTH207 - needs root_dir
    found = [""]
    for part in pattern.split("/"):
        match = re.compile(re.sub(r"\[\^?(?:\\.|[^\]\\])+\]|\\.|.", _go_glob_token, part)).fullmatch
        found = [
            f"{parent}/{name}" if parent else name
            for parent in found
            if os.path.isdir(f"{folder}/{parent}")  # noqa: PTH112
            for name in os.listdir(f"{folder}/{parent}")  # noqa: PTH208
            if match(name)
        ]
    return found


def _go_glob_token(match: re.Match[str]) -> str:
    token = match[0]
    if token[0] == "[" and len(token) > 1:
        letters = re.sub(r"\\(.)|\[", lambda inner: re.escape(inner[1] or "["), token[1:])
        return f"[{letters}"
    return {"*": ".*", "?": "."}.get(token) or re.escape(token[-1])


def _package_files(folder: str) -> Iterator[tuple[str, str]]:
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if name.endswith(SOURCE_SUFFIXES) and name[0] not in "._" and not name.endswith("_test.go"):
            yield name, f"{folder}/{name}"


def _digest_files(named: Iterable[tuple[str, str]], files: Snapshot) -> str:
    digest = hashlib.sha256()
    for name, path in named:
        digest.update(f"{name}\0{files.sha256(path)}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _git_state(folder: str, *, stamped: bool) -> str:
    from meshbuild.git import merged_tags, source_state  # noqa: PLC0415 - only artifacts that ask git come here

    commit, dirty = source_state([Path(folder)], os.environ)
    return f"{commit} {dirty} {merged_tags(folder, os.environ)}" if stamped else f"{commit}"


def _load(file: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
