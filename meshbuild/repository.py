"""What a store's metadata, documents and objects are made of: making an empty store, writing and reading single parts.

Everything but timestamp.json is only ever created; a version that is taken is skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import (
    DelegatedRole,
    Delegations,
    Metadata,
    MetaFile,
    Root,
    Snapshot,
    TargetFile,
    Targets,
    Timestamp,
)

from meshbuild.digests import CHUNK_SIZE_BYTES, HashingReader, Sha256
from meshbuild.errors import (
    InputsChangedError,
    NoSuchReleaseError,
    ObjectCorruptError,
    ObjectMissingError,
    PolicyError,
    StoreBusyError,
    StoreError,
)
from meshbuild.paths import local_errors
from meshbuild.release import (
    MAX_DOCUMENT_BYTES,
    POLICY_NAME,
    ChannelDocument,
    PolicyDocument,
    ReleaseDocument,
    channel_target,
    object_key,
)
from meshbuild.trust import MAX_METADATA_BYTES, TIMESTAMP_KEY, StoreState, document_key, role_of, target_key

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from securesystemslib.signer import Signer

    from meshbuild.stores import ReadableStore, WritableStore

TIMESTAMP_DAYS = 45
SNAPSHOT_DAYS = 90
ROOT_DAYS = 2 * 365
TARGETS_DAYS = 5 * 365
_MAX_SKIPS = 10_000

# How long what a store doesn't need any more is kept, in seconds.
GRACE_S = 7 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreKeys:
    """The signers of a store's top-level roles. `root` is needed to make a store only, `targets` to admit modules."""

    root: Signer | None = None
    targets: Signer | None = None
    snapshot: Signer
    timestamp: Signer


def init_store(store: WritableStore, keys: StoreKeys, *, now: datetime) -> bytes:
    """Make an empty store: root, targets with an empty policy, snapshot, timestamp.

    A place where this was killed before is finished with the same keys.

    Returns:
        The root of trust, root.json's bytes, which hosts are to be given.

    Raises:
        StoreError: there is a store already, or something else that was begun with other keys.
    """
    if keys.root is None or keys.targets is None:
        raise ValueError("making a store needs the root and targets keys")
    try:
        store.read(TIMESTAMP_KEY, limit_bytes=MAX_METADATA_BYTES)
    except ObjectMissingError:
        pass
    else:
        raise StoreError(f"{store.address} is a store already", hint="Push to it, or name another folder.")
    root_bytes = _init_root(store, keys, now)
    policy = PolicyDocument()
    targets = Targets(expires=after_days(now, TARGETS_DAYS), delegations=Delegations(keys={}, roles={}))
    put_document(store, targets, POLICY_NAME, policy.to_bytes())
    meta = create_numbered(store, Targets.type, targets, keys.targets)
    snapshot = Snapshot(version=1, expires=after_days(now, SNAPSHOT_DAYS), meta={"targets.json": meta})
    snapshot_meta = create_numbered(store, Snapshot.type, snapshot, keys.snapshot)
    timestamp = Timestamp(version=1, expires=after_days(now, TIMESTAMP_DAYS), snapshot_meta=snapshot_meta)
    if not store.swap(TIMESTAMP_KEY, sign_metadata(timestamp, keys.timestamp), expected=None):
        raise StoreError(f"{store.address} was made a store by somebody else just now")
    return root_bytes


def module_releases(
    store: ReadableStore, state: StoreState, module: str
) -> list[tuple[ReleaseDocument, tuple[ChannelDocument, ...]]]:
    """A module's releases that its role still names, newest first, each with the channels that point at it.

    Raises:
        NoSuchReleaseError: the store doesn't know the module.
    """
    role = state.roles.get(role_of(module))
    if role is None:
        known = ", ".join(sorted(name.removeprefix("m.") for name in delegated_roles(state.targets))) or "none"
        raise NoSuchReleaseError(f"{store.address} has no module {module!r}; it has {known}")
    pointers = [pointer for name in channels(role) if (pointer := read_channel(store, role, module, name))]
    releases = [read_release(store, role, module, sequence) for sequence in reversed(sequences(role))]
    return [
        (release, tuple(pointer for pointer in pointers if pointer.release_sequence == release.sequence))
        for release in releases
        if release is not None
    ]


def read_policy(store: ReadableStore, targets: Targets) -> PolicyDocument:
    """The policy that a store's targets name. Raises TrustError, ReleaseError."""
    data = read_document(store, targets, POLICY_NAME)
    if data is None:
        raise PolicyError(f"{store.address} has no policy: it trusts nobody")
    return PolicyDocument.parse(data, where=POLICY_NAME)


def read_object(store: ReadableStore, digest: Sha256, size_bytes: int) -> bytes:
    """A small object of a store. Raises ObjectMissingError, or ObjectCorruptError when it isn't what its name says."""
    data = store.read(object_key(digest), limit_bytes=size_bytes)
    if Sha256.of(data) != digest:
        raise ObjectCorruptError(f"{store.address}: {object_key(digest)} is not what its name says")
    return data


def read_document(store: ReadableStore, role: Targets, name: str) -> bytes | None:
    """A document that a role names, or None. Raises ObjectMissingError, or ObjectCorruptError when it is altered."""
    target = role.targets.get(name)
    if target is None:
        return None
    data = store.read(document_key(store.address, target), limit_bytes=min(target.length, MAX_DOCUMENT_BYTES))
    try:
        target.verify_length_and_hashes(data)
    except RepositoryError as error:
        raise ObjectCorruptError(f"{store.address}: the document {name} is not what its metadata says") from error
    return data


def put_document(store: WritableStore, role: Targets, name: str, data: bytes) -> None:
    """Create a document, and name it in a role that is being made."""
    digest = Sha256.of(data)
    key = target_key(name, digest)
    if not store.create(key, data) and store.age_s(key) > GRACE_S / 2:
        store.replace(key, data)
    role.targets[name] = TargetFile(len(data), {"sha256": digest}, name)


def put_object(store: WritableStore, digest: Sha256, source: Path | bytes) -> None:
    """Create an object; one that is there already is read, and put again when it is short, wrong or old.

    What is old may be garbage, and be removed while this push comes to name it; what was put again is not.

    Raises:
        InputsChangedError: the source isn't what the digest says, or didn't stay so. The wrong object that may be left
            under the name is put right by the next push that has the right one.
    """
    key = object_key(digest)
    if not store.create(key, source):
        if _object_digest(store, key) == digest and store.age_s(key) < GRACE_S / 2:
            return
        store.replace(key, source)
    if _source_digest(source) != digest:
        raise InputsChangedError(f"{source!s} was changed while it was being published: its sha256 was {digest}")


def _object_digest(store: ReadableStore, key: str) -> Sha256:
    with store.open(key) as file:
        found = HashingReader(file)
        try:
            while found.read(CHUNK_SIZE_BYTES):
                pass
        except OSError as error:
            raise StoreError(f"{store.address}: could not read {key}: {error.strerror or error}") from error
    return found.sha256


def _source_digest(source: Path | bytes) -> Sha256:
    if isinstance(source, bytes):
        return Sha256.of(source)
    with local_errors(f"read {source}"):
        return Sha256.of_file(source)


def read_channel(store: ReadableStore, role: Targets, module: str, channel: str) -> ChannelDocument | None:
    """A channel's document as a module's role names it, or None. Raises as `read_document` does, and ReleaseError."""
    name = channel_target(module, channel)
    data = read_document(store, role, name)
    return None if data is None else ChannelDocument.parse(data, where=name)


def read_release(store: ReadableStore, role: Targets, module: str, sequence: int) -> ReleaseDocument | None:
    """A release's document as a module's role names it, or None. Raises as `read_document` does, and ReleaseError."""
    name = f"{module}/release.{sequence}.json"
    data = read_document(store, role, name)
    return None if data is None else ReleaseDocument.parse(data, where=name)


def sequences(role: Targets) -> list[int]:
    """The numbers of the releases that a module's role names, ascending."""
    numbers = (name.rpartition("/release.")[2].removesuffix(".json") for name in role.targets)
    return sorted(int(number) for number in numbers if number.isdecimal())


def channels(role: Targets) -> list[str]:
    """The names of the channels that a module's role names, sorted."""
    return sorted(name.rpartition("/channel.")[2].removesuffix(".json") for name in role.targets if "/channel." in name)


def delegated_roles(targets: Targets) -> Mapping[str, DelegatedRole]:
    """The roles that targets delegate to, by name."""
    return (targets.delegations.roles if targets.delegations else None) or {}


def create_numbered(store: WritableStore, role: str, signed: Targets | Snapshot, signer: Signer) -> MetaFile:
    """Create a role's metadata under its version, or the first later one that is free."""
    for _ in range(_MAX_SKIPS):
        data = sign_metadata(signed, signer)
        if store.create(f"metadata/{signed.version}.{role}.json", data):
            return MetaFile(signed.version, len(data), {"sha256": Sha256.of(data)})
        signed.version += 1
    raise StoreBusyError(f"{store.address}: {_MAX_SKIPS} versions of {role} in a row are taken")


def sign_metadata(signed: Root | Targets | Snapshot | Timestamp, signer: Signer) -> bytes:
    """A role's metadata as bytes, signed."""
    metadata: Metadata[Any] = Metadata(signed)
    metadata.sign(signer)
    return metadata.to_bytes()


def after_days(now: datetime, days: int) -> datetime:
    """A time of expiry, in whole seconds."""
    return (now + timedelta(days=days)).replace(microsecond=0)


def _init_root(store: WritableStore, keys: StoreKeys, now: datetime) -> bytes:
    assert keys.root is not None  # noqa: S101 - init_store has checked
    assert keys.targets is not None  # noqa: S101
    root = Root(version=1, expires=after_days(now, ROOT_DAYS), consistent_snapshot=True)
    signers = {"root": keys.root, "targets": keys.targets, "snapshot": keys.snapshot, "timestamp": keys.timestamp}
    for role, signer in signers.items():
        root.add_key(signer.public_key, role)
    data = sign_metadata(root, keys.root)
    if store.create("metadata/1.root.json", data):
        return data
    found = store.read("metadata/1.root.json", limit_bytes=MAX_METADATA_BYTES)
    try:
        begun: Metadata[Root] = Metadata.from_bytes(found)
        same = begun.signed.keys == root.keys and begun.signed.roles == root.roles
        begun.signed.verify_delegate(Root.type, begun.signed_bytes, begun.signatures)
    except (RepositoryError, ValueError):
        same = False
    if not same:
        raise StoreError(
            f"{store.address} was begun as a store with other keys", hint="Use those keys, or another folder."
        )
    return found
