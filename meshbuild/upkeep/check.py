"""Checking all of a store: every signature, every digest, what the policy demands, and what expires soon.

What is wrong can be put right from a second store that has the same file: its bytes are taken only if they are what the
first store's metadata says.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, Snapshot, Targets, Timestamp

from meshbuild.digests import CHUNK_SIZE_BYTES, HashingReader, Sha256
from meshbuild.errors import MeshbuildError, ObjectCorruptError, ObjectMissingError, StoreError, TrustError
from meshbuild.paths import local_errors
from meshbuild.release import object_key
from meshbuild.repository import channels, delegated_roles, read_channel, read_policy, read_release, sequences
from meshbuild.sealing import check_release
from meshbuild.trust import MAX_METADATA_BYTES, TIMESTAMP_KEY, document_key, load_state, role_of
from meshbuild.upkeep.refresh import expiry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime, timedelta

    from tuf.api.metadata import MetaFile

    from meshbuild.release import PolicyDocument, ReleaseDocument
    from meshbuild.stores import ReadableStore, WritableStore
    from meshbuild.trust import StoreState


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong: a file's key or a release's name, what is wrong with it, whether it was put right."""

    where: str
    problem: str
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class Repair:
    """A store that is checked, for writing, and a second one of the same files to put them right from."""

    store: WritableStore
    second: ReadableStore


@dataclass(slots=True, kw_only=True)
class Report:
    """What a check found.

    Attributes:
        modules: how many modules the store has.
        releases: how many releases their roles name.
        files: how many files were read, of metadata, documents and objects.
        size_bytes: how large they are together.
        findings: what is wrong, or was until it was repaired.
        expires: when each role expires, of those that do so soon.
    """

    modules: int = 0
    releases: int = 0
    files: int = 0
    size_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    expires: dict[str, datetime] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong, or is any more."""
        return all(finding.repaired for finding in self.findings)


def check_store(
    store: ReadableStore,
    *,
    root: bytes,
    now: datetime,
    soon: timedelta,
    repair: Repair | None = None,
) -> Report:
    """Check every file that a store's present state reaches, and every release as hosts and sealers do.

    Args:
        store: the store.
        root: its root of trust.
        now: the time at which expiry is judged.
        soon: what expires within this is reported.
        repair: how files that are missing or wrong are put again; None leaves them.

    Returns:
        All that is wrong, in one pass as far as the metadata can be verified.

    Raises:
        StoreError: the store can't be read at all, or isn't one.
        LocalFileError: there is no room for a file that is being repaired.
    """
    report, walk = Report(), _Walk(store, repair)
    try:
        walk.check_metadata()
        state = load_state(store, root=root, modules=[])
        modules = sorted(name.removeprefix("m.") for name in delegated_roles(state.targets))
        state = load_state(store, root=root, modules=modules)
        report.modules = len(modules)
        for name, when in expiry(state).items():
            if when <= now:
                walk.findings.append(Finding(name, f"expired at {when:%Y-%m-%d %H:%M} UTC, and hosts refuse it"))
            elif when <= now + soon:
                report.expires[name] = when
        policy = _policy(walk, state)
        for module in modules:
            role = state.roles.get(role_of(module))
            if role is not None:
                report.releases += _check_module(walk, policy, role, module)
    except TrustError as error:
        walk.findings.append(Finding("metadata", str(error)))
    except (ObjectMissingError, ObjectCorruptError) as error:
        if not walk.findings:
            walk.findings.append(Finding("metadata", str(error)))
    report.findings, report.files, report.size_bytes = walk.findings, walk.files, walk.size_bytes
    return report


class _Walk:
    """Files of a store, each looked at once: whole, or put right from the second store, or a finding."""

    def __init__(self, store: ReadableStore, repair: Repair | None) -> None:
        self.store = store
        self.findings: list[Finding] = []
        self.files = 0
        self.size_bytes = 0
        self._mend = repair
        self._seen: dict[str, bool] = {}

    def check_metadata(self) -> None:
        """Check the files that timestamp.json leads to against its digests; signatures are verified afterwards."""
        with _tuf_errors(TIMESTAMP_KEY), contextlib.suppress(ObjectMissingError):  # load_state says what is missing
            data = self.store.read(TIMESTAMP_KEY, limit_bytes=MAX_METADATA_BYTES)
            timestamp: Metadata[Timestamp] = Metadata.from_bytes(data)
            meta = timestamp.signed.snapshot_meta
            key = f"metadata/{meta.version}.snapshot.json"
            if not self.check_meta(key, meta):
                return
            snapshot: Metadata[Snapshot] = Metadata.from_bytes(self.store.read(key, limit_bytes=MAX_METADATA_BYTES))
            for name, each in snapshot.signed.meta.items():
                self.check_meta(f"metadata/{each.version}.{name}", each)

    def check_meta(self, key: str, meta: MetaFile) -> bool:
        """Whether a metadata file is what another one says of it."""
        digest = (meta.hashes or {}).get("sha256")
        return True if digest is None else self.check(key, Sha256(digest), meta.length)

    def check(self, key: str, digest: Sha256, size_bytes: int | None) -> bool:
        """Whether the file under a key is what its digest says, if need be after it was put right."""
        if key not in self._seen:
            problem, size = self._problem(self.store, key, digest, size_bytes)
            self.files += 1
            self.size_bytes += size
            repaired = bool(problem) and self._repair(key, digest, size_bytes)
            if problem:
                self.findings.append(Finding(key, problem, repaired))
            self._seen[key] = repaired or not problem
        return self._seen[key]

    def note(self, where: str, error: MeshbuildError) -> None:
        """Add a finding about something that was read."""
        self.findings.append(Finding(where, str(error)))

    def _repair(self, key: str, digest: Sha256, size_bytes: int | None) -> bool:
        if self._mend is None or self._problem(self._mend.second, key, digest, size_bytes)[0]:
            return False
        with local_errors("make a scratch file"), tempfile.TemporaryDirectory(prefix="meshbuild-repair-") as folder:
            copy = Path(folder) / "copy"
            with self._mend.second.open(key) as source, copy.open("wb") as out:
                while piece := source.read(CHUNK_SIZE_BYTES):
                    out.write(piece)
            if Sha256.of_file(copy) != digest:
                return False  # it was changed meanwhile
            if not self._mend.store.create(key, copy):
                self._mend.store.replace(key, copy)
        return not self._problem(self.store, key, digest, size_bytes)[0]

    @staticmethod
    def _problem(store: ReadableStore, key: str, digest: Sha256, size_bytes: int | None) -> tuple[str, int]:
        """What is wrong with a file, or ""; and how many bytes of it were read."""
        size = 0
        try:
            with store.open(key) as file:
                found = HashingReader(file)
                while piece := found.read(CHUNK_SIZE_BYTES):
                    size += len(piece)
                    if size_bytes is not None and size > size_bytes:
                        return f"longer than the {size_bytes} bytes that it should have", size
        except ObjectMissingError:
            return "missing", size
        except (StoreError, OSError) as error:
            return f"unreadable: {error}", size
        if size_bytes is not None and size < size_bytes:
            return f"short: {size} of {size_bytes} bytes", size
        return ("" if found.sha256 == digest else f"altered: its sha256 is {found.sha256}, not {digest}"), size


def _policy(walk: _Walk, state: StoreState) -> PolicyDocument | None:
    if not _check_documents(walk, state.targets):
        return None
    try:
        return read_policy(walk.store, state.targets)
    except MeshbuildError as error:
        walk.note("policy.json", error)
        return None


def _check_module(walk: _Walk, policy: PolicyDocument | None, role: Targets, module: str) -> int:
    """Check a module's documents, releases and objects; returns how many releases it has."""
    whole = _check_documents(walk, role)
    numbers = sequences(role)
    for sequence in numbers:
        name = f"{module}/release.{sequence}.json"
        if name not in whole:
            continue
        try:
            release = read_release(walk.store, role, module, sequence)
            if release is not None and _check_objects(walk, release) and policy is not None:
                check_release(walk.store, policy, release)
        except MeshbuildError as error:
            walk.note(name, error)
    for channel in channels(role):
        name = f"{module}/channel.{channel}.json"
        with contextlib.suppress(ObjectMissingError, ObjectCorruptError):  # noted above
            pointer = read_channel(walk.store, role, module, channel)
            if pointer is not None and pointer.release_sequence not in numbers:
                walk.findings.append(Finding(name, f"points at release {pointer.release_sequence}, which isn't there"))
    return len(numbers)


def _check_documents(walk: _Walk, role: Targets) -> set[str]:
    """The names of a role's documents that are whole."""
    return {
        name
        for name, target in role.targets.items()
        if walk.check(document_key(walk.store.address, target), Sha256(target.hashes["sha256"]), target.length)
    }


def _check_objects(walk: _Walk, release: ReleaseDocument) -> bool:
    found = [walk.check(object_key(digest), digest, size) for digest, size in objects_of(release).items()]
    return all(found)


def objects_of(release: ReleaseDocument) -> Mapping[Sha256, int]:
    """The objects that a release names, with their sizes in bytes: its bundles, and their statements."""
    found: dict[Sha256, int] = {}
    for each in release.artifacts:
        found[each.blob_sha256] = each.blob_size_bytes
        found[each.statements_sha256] = each.statements_size_bytes
    return found


@contextlib.contextmanager
def _tuf_errors(key: str) -> Iterator[None]:
    try:
        yield
    except (RepositoryError, ValueError) as error:
        raise TrustError(f"{key} is not what it should be: {error}") from error
