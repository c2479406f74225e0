"""A store's TUF metadata by python-tuf: reading it as a host does, and its state as a publisher needs it.

The specification is https://theupdateframework.github.io/specification/latest/. Every inner part of python-tuf that is
used stands in this module; tests/unit/test_trust.py notices when they change.
"""

from __future__ import annotations

import base64
import contextlib
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from filelock import FileLock
from tuf.api.exceptions import (
    BadVersionNumberError,
    DownloadError,
    DownloadHTTPError,
    LengthOrHashMismatchError,
    RepositoryError,
)
from tuf.api.metadata import Metadata, Root, Snapshot, TargetFile, Targets, Timestamp
from tuf.ngclient import FetcherInterface, Updater
from tuf.ngclient._internal.trusted_metadata_set import TrustedMetadataSet
from tuf.ngclient.config import EnvelopeType, UpdaterConfig

from meshbuild.errors import (
    LocalFileError,
    MeshbuildError,
    ObjectCorruptError,
    ObjectMissingError,
    StoreError,
    TrustError,
)
from meshbuild.jsontext import canonical_json, parse_json
from meshbuild.paths import local_errors, write_atomically
from meshbuild.release import MAX_DOCUMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from meshbuild.stores import ReadableStore

MAX_METADATA_BYTES = 64 << 20
TIMESTAMP_KEY = "metadata/timestamp.json"
_BASE = "store:///"
_CACHE_NAME = "trusted.json"


def role_of(module: str) -> str:
    """The name of the delegated role that signs a module's documents."""
    return f"m.{module}"


class TrustedView:
    """A store's documents at one moment, verified from a root of trust. Made by `open_view` only.

    Attributes:
        address: the store's address.
        time: the time at which expiry was judged.
    """

    def __init__(self, store: ReadableStore, updater: Updater, folder: Path, time: datetime) -> None:
        self.address = store.address
        self.time = time
        self._store = store
        self._updater = updater
        self._folder = folder
        self._documents: dict[str, bytes] = {}

    def document(self, name: str, *, limit_bytes: int = MAX_DOCUMENT_BYTES) -> bytes | None:
        """A document's verified bytes, or None where the metadata names none.

        The name is only ever looked up and never becomes a local path.

        Raises:
            TrustError: it is not what the metadata says, or the role that signs it can't be verified.
            ObjectMissingError: the metadata names it and the store lacks it.
        """
        with _tuf_errors(self.address):
            info = self._updater.get_targetinfo(name)
        if info is None:
            return None
        if info.length > limit_bytes:
            raise TrustError(f"{self.address}: {name} has {info.length} bytes, at most {limit_bytes} are read")
        key = document_key(self.address, info)
        data = self._store.read(key, limit_bytes=info.length)
        try:
            info.verify_length_and_hashes(data)
        except LengthOrHashMismatchError as error:
            raise ObjectCorruptError(f"{self.address}: {key} is not what its metadata says: {error}") from error
        self._documents[key] = data
        return data

    def names(self, module: str) -> list[str]:
        """The names of a module's documents, as its role lists them; none where there is no such role."""
        with _tuf_errors(self.address):
            self._updater.get_targetinfo(f"{module}/none.json")
        role = self._updater._trusted_set.get(role_of(module))  # noqa: SLF001 - Updater has no listing
        return [] if role is None else sorted(name for name in role.targets if name.startswith(f"{module}/"))

    @property
    def files(self) -> dict[str, bytes]:
        """Every metadata and document file that was verified so far, by its key in the store: what a receipt keeps."""
        found = dict(self._documents)
        for name, data in _cached_files(self._folder).items():
            if name.startswith("root_history/"):
                found[f"metadata/{name.removeprefix('root_history/')}"] = data
            elif name == "timestamp.json":
                found[TIMESTAMP_KEY] = data
            else:
                found[f"metadata/{Metadata.from_bytes(data).signed.version}.{unquote(name)}"] = data
        return found

    @property
    def roots(self) -> list[bytes]:
        """The chain of roots that was accepted, oldest first."""
        chain = (self._folder / "root_history").iterdir()
        return [file.read_bytes() for file in sorted(chain, key=lambda file: int(file.name.split(".")[0]))]


@contextlib.contextmanager
def open_view(store: ReadableStore, *, root: bytes, cache: Path, now: datetime | None = None) -> Iterator[TrustedView]:
    """Verify a store's present metadata by TUF's rules, and give its documents for the block.

    What was trusted before is remembered in the cache, so that nothing older is taken later. It is one file, written
    whole and durable at the block's end, unless that raises; two at once on one cache wait for each other. The latest
    time at which a store was verified is remembered too, and no earlier clock is taken for expiry.

    Args:
        store: where to read.
        root: the root of trust, a root.json that the host got out of band.
        cache: a folder of this store's own.
        now: the time for judging expiry; the clock's unless given.

    Raises:
        TrustError: something doesn't verify: a signature, a version lower than one seen, an expiry.
        StoreError: the store can't be read.
        LocalFileError: the cache can't be written.
    """
    time = now or datetime.now(UTC)
    with local_errors(f"write {cache}"):
        cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / ".lock"), tempfile.TemporaryDirectory(prefix="meshbuild-trust-") as name:
        folder, known = Path(name), _load_cache(cache)
        (folder / "root_history").mkdir()
        if "time" in known:
            time = max(time, datetime.fromisoformat(known.pop("time").decode()))
        for file, data in known.items():
            (folder / file).write_bytes(data)
        with _tuf_errors(store.address):
            updater = Updater(
                name,
                f"{_BASE}metadata/",
                target_base_url=f"{_BASE}targets/",
                fetcher=_StoreFetcher(store),
                config=UpdaterConfig(
                    root_max_length=MAX_METADATA_BYTES,
                    timestamp_max_length=MAX_METADATA_BYTES,
                    snapshot_max_length=MAX_METADATA_BYTES,
                    targets_max_length=MAX_METADATA_BYTES,
                ),
                bootstrap=root,
            )
            updater._trusted_set.reference_time = time  # noqa: SLF001 - no public way to judge expiry at a given time
            updater.refresh()
        yield TrustedView(store, updater, folder, time)
        _save_cache(cache, {**_cached_files(folder), "time": time.isoformat().encode()})


@dataclass(frozen=True, slots=True)
class StoreState:
    """A store's metadata as a publisher starts from it, all of it verified from the root of trust but for expiry.

    Attributes:
        timestamp_bytes: timestamp.json as it was read: what a swap expects.
        roles: the delegated roles that were asked for and exist, by name.
    """

    root: Root
    root_bytes: bytes
    timestamp: Timestamp
    timestamp_bytes: bytes
    snapshot: Snapshot
    snapshot_bytes: bytes
    targets: Targets
    roles: Mapping[str, Targets]


def load_state(store: ReadableStore, *, root: bytes, modules: Sequence[str]) -> StoreState:
    """Read and verify a store's metadata for publishing. What has expired is taken: a push renews it.

    Raises:
        TrustError: something doesn't verify.
        StoreError: the store can't be read, or isn't one yet.
    """
    with _tuf_errors(store.address):
        trusted = TrustedMetadataSet(root, EnvelopeType.METADATA)
        trusted.reference_time = datetime.min.replace(tzinfo=UTC)
        root_bytes = root
        with contextlib.suppress(ObjectMissingError):
            while True:
                newer = _read(store, f"{trusted.root.version + 1}.root.json")
                trusted.update_root(newer)
                root_bytes = newer
        try:
            timestamp_bytes = store.read(TIMESTAMP_KEY, limit_bytes=MAX_METADATA_BYTES)
        except ObjectMissingError as error:
            raise StoreError(f"{store.address} is not a store yet", hint="Make one: meshbuild store init.") from error
        timestamp = trusted.update_timestamp(timestamp_bytes)
        snapshot_bytes = _read(store, f"{timestamp.snapshot_meta.version}.snapshot.json")
        snapshot = trusted.update_snapshot(snapshot_bytes)
        version = snapshot.meta["targets.json"].version
        targets = trusted.update_targets(_read(store, f"{version}.targets.json"))
        roles = {}
        for role in map(role_of, modules):
            meta = snapshot.meta.get(f"{role}.json")
            if meta is not None:
                data = _read(store, f"{meta.version}.{role}.json")
                roles[role] = trusted.update_delegated_targets(data, role, Targets.type)
    return StoreState(trusted.root, root_bytes, timestamp, timestamp_bytes, snapshot, snapshot_bytes, targets, roles)


def check_successor(store: ReadableStore, state: StoreState, timestamp_bytes: bytes, *, roles: Sequence[str]) -> None:
    """Verify a state that is about to be committed, as a host would that has seen the present one.

    A signature by a key that root doesn't name, or a role's version that goes back, would shut out every host for good.

    Args:
        store: where the new snapshot, targets and roles have been created.
        state: the present state.
        timestamp_bytes: the new timestamp.
        roles: the delegated roles that are new in it.

    Raises:
        TrustError: hosts would refuse it.
        StoreError: the store can't be read.
    """
    try:
        trusted = TrustedMetadataSet(state.root_bytes, EnvelopeType.METADATA)
        trusted.reference_time = datetime.min.replace(tzinfo=UTC)
        trusted.update_timestamp(state.timestamp_bytes)
        timestamp = trusted.update_timestamp(timestamp_bytes)
        with contextlib.suppress(BadVersionNumberError):  # loaded all the same, as what the new one is compared with
            trusted.update_snapshot(state.snapshot_bytes, trusted=True)
        snapshot = trusted.update_snapshot(_read(store, f"{timestamp.snapshot_meta.version}.snapshot.json"))
        trusted.update_targets(_read(store, f"{snapshot.meta['targets.json'].version}.targets.json"))
        for role in roles:
            data = _read(store, f"{snapshot.meta[f'{role}.json'].version}.{role}.json")
            trusted.update_delegated_targets(data, role, Targets.type)
    except RepositoryError as error:
        raise TrustError(
            f"{store.address}: hosts would refuse the new state, and nothing was published: {error}",
            hint="Sign with the keys that the store was made with.",
        ) from error


def document_key(address: str, target: TargetFile) -> str:
    """Where a document lies that a role names. Raises TrustError when the role names no sha256 of it."""
    digest = target.hashes.get("sha256")
    if digest is None:
        raise TrustError(f"{address}: its metadata names no sha256 of {target.path}")
    return target_key(target.path, digest)


def target_key(name: str, digest: str) -> str:
    """Where a document lies in a store: its file name has its digest in front (consistent snapshots)."""
    folder, slash, base = name.rpartition("/")
    return f"targets/{folder}{slash}{digest}.{base}"


class _StoreFetcher(FetcherInterface):
    """python-tuf's downloads, served by a store."""

    def __init__(self, store: ReadableStore) -> None:
        self._store = store

    def _fetch(self, url: str) -> Iterator[bytes]:
        key = unquote(url.removeprefix(_BASE))
        try:
            yield self._store.read(key, limit_bytes=MAX_METADATA_BYTES)
        except ObjectMissingError as error:
            raise DownloadHTTPError(f"there is no {key}", 404) from error


def _read(store: ReadableStore, name: str) -> bytes:
    return store.read(f"metadata/{name}", limit_bytes=MAX_METADATA_BYTES)


@contextlib.contextmanager
def _tuf_errors(address: str) -> Iterator[None]:
    """python-tuf's errors as ours; what a store raised inside python-tuf comes out as it was."""
    try:
        yield
    except DownloadHTTPError as error:
        raise ObjectMissingError(f"{address}: its metadata is incomplete: {error}") from error
    except (RepositoryError, DownloadError) as error:
        cause = error.__cause__
        if isinstance(cause, MeshbuildError):
            raise cause from error
        raise TrustError(
            f"{address}: its metadata can't be trusted: {error}",
            hint="Nothing was taken from it. If it is your own store, see docs/trust.md.",
        ) from error


def _cached_files(folder: Path) -> dict[str, bytes]:
    history = {f"root_history/{file.name}": file.read_bytes() for file in (folder / "root_history").iterdir()}
    return history | {file.name: file.read_bytes() for file in folder.glob("*.json") if not file.is_symlink()}


def _load_cache(cache: Path) -> dict[str, bytes]:
    path = cache / _CACHE_NAME
    try:
        value = parse_json(path.read_bytes())
        return {str(name): base64.b64decode(text) for name, text in value.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise LocalFileError(
            f"what was trusted before can't be read from {path}: {error}",
            hint="Roll-back protection depends on it. Remove it only if you know how it was damaged.",
        ) from error


def _save_cache(cache: Path, files: Mapping[str, bytes]) -> None:
    text = canonical_json({name: base64.b64encode(data).decode() for name, data in files.items()})
    with local_errors(f"write {cache / _CACHE_NAME}"):
        write_atomically(cache / _CACHE_NAME, text)
