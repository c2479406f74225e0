"""Publishing: making a store, proposing a release, sealing proposals into the store's next state.

Propose needs the module's key and seal the online ones; where nobody distrusts anybody one process does both.
Everything but timestamp.json is only ever created; a number that is taken is skipped. So a killed publisher leaves the
old state and some files that nothing names, and two publishers never wait for each other: the one that loses the swap
starts again from the new timestamp.
"""

from __future__ import annotations

import copy
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
    ManifestError,
    NoSuchReleaseError,
    ObjectCorruptError,
    ObjectMissingError,
    PolicyError,
    ReleaseError,
    StoreBusyError,
    StoreError,
    TrustError,
    UntrustedBuilderError,
)
from meshbuild.jsontext import canonical_json
from meshbuild.manifest import parse_manifest
from meshbuild.release import (
    MAX_DOCUMENT_BYTES,
    POLICY_NAME,
    ChannelDocument,
    PolicyDocument,
    ReleasedArtifact,
    ReleaseDocument,
    channel_target,
    mesh_claims,
    object_key,
)
from meshbuild.signing import public_pem, read_statements_unverified, verify_statements
from meshbuild.trust import MAX_METADATA_BYTES, TIMESTAMP_KEY, StoreState, load_state, role_of, target_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from securesystemslib.signer import Key, Signer

    from meshbuild.bundle import BundleInfo
    from meshbuild.stores import ReadableStore, WritableStore

TIMESTAMP_DAYS = 45
SNAPSHOT_DAYS = 90
ROOT_DAYS = 2 * 365
TARGETS_DAYS = 5 * 365
RELEASES_KEPT = 50
_MAX_TRIES = 50
_MAX_SKIPS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreKeys:
    """The signers of a store's top-level roles. `root` is needed to make a store only, `targets` to admit modules."""

    root: Signer | None = None
    targets: Signer | None = None
    snapshot: Signer
    timestamp: Signer


@dataclass(frozen=True, slots=True)
class BundleFile:
    """A bundle to publish: its file, and what `read_bundle` found in it."""

    path: Path
    info: BundleInfo


@dataclass(frozen=True, slots=True)
class Proposal:
    """A module's new role and documents, created in the store and not yet part of its state.

    Attributes:
        role: the role's name.
        version: its new version.
        meta: what the snapshot will say of it.
        release: the release that the channel points at now.
    """

    role: str
    version: int
    meta: MetaFile
    release: ReleaseDocument


@dataclass(frozen=True, slots=True)
class Admission:
    """The store's targets with a module added: its delegation and its entry in the policy."""

    targets: Targets
    meta: MetaFile
    policy: PolicyDocument


@dataclass(frozen=True, slots=True)
class Published:
    """What a push came to: the release that the channel points at, and whether this push made it."""

    module: str
    channel: str
    sequence: int
    release_sha256: Sha256
    new: bool

    def __str__(self) -> str:
        """A line for people."""
        what = "published" if self.new else "nothing new:"
        return f"{what} {self.module}, release {self.sequence} on {self.channel}"


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
    targets = Targets(expires=_days(now, TARGETS_DAYS), delegations=Delegations(keys={}, roles={}))
    _put_document(store, targets, POLICY_NAME, policy.to_bytes())
    meta = _create_numbered(store, Targets.type, targets, keys.targets)
    snapshot = Snapshot(version=1, expires=_days(now, SNAPSHOT_DAYS), meta={"targets.json": meta})
    snapshot_meta = _create_numbered(store, Snapshot.type, snapshot, keys.snapshot)
    timestamp = Timestamp(version=1, expires=_days(now, TIMESTAMP_DAYS), snapshot_meta=snapshot_meta)
    if not store.swap(TIMESTAMP_KEY, _signed(timestamp, keys.timestamp), expected=None):
        raise StoreError(f"{store.address} was made a store by somebody else just now")
    return root_bytes


def publish(
    store: WritableStore,
    *,
    root: bytes,
    manifest: Mapping[str, Any],
    bundles: Sequence[BundleFile],
    channel: str,
    publisher: Signer,
    builder: Key,
    keys: StoreKeys,
    now: datetime,
) -> Published:
    """Publish a module's bundles as its next release on a channel, and seal it.

    What the channel points at already makes no new release. Where `keys` hold the targets key, a module that the store
    doesn't know is admitted with this push: its publisher, its builder and the mesh claims that nobody else holds.

    Args:
        store: where to.
        root: the store's root of trust.
        manifest: the module's manifest as JSON value.
        bundles: one for each artifact and system, read and whole.
        channel: the channel that shall point at the release.
        publisher: the module's key.
        builder: the builder's public key, for an admission.
        keys: the store's online keys.
        now: the time from which expiry is counted.

    Raises:
        PolicyError, ClaimError, UntrustedBuilderError: the store's policy refuses.
        TrustError, StoreError: the store's metadata can't be trusted, or the store can't be read or written.
        StoreBusyError: other publishers won every try.
    """
    module = manifest["module"]
    for _ in range(_MAX_TRIES):
        state = load_state(store, root=root, modules=[module])
        admission = None
        if role_of(module) not in _delegated(state.targets):
            if keys.targets is None:
                raise PolicyError(
                    f"{store.address} has not admitted the module {module!r}",
                    hint="Whoever holds the store's targets key admits a module with its first push.",
                )
            admission = admit(
                store,
                state,
                module,
                publisher=publisher.public_key,
                builder=builder,
                manifest=manifest,
                signer=keys.targets,
            )
        current = _current_release(store, state, module, channel)
        artifacts = tuple(
            sorted((_released(bundle) for bundle in bundles), key=lambda each: (each.artifact, each.system))
        )
        if current is not None:
            same = current.model_copy(
                update={"version": manifest["version"], "manifest": dict(manifest), "artifacts": artifacts}
            )
            if same.identity == current.identity:
                return Published(module, channel, current.sequence, current.sha256, new=False)
        proposal = propose(
            store,
            state,
            manifest=manifest,
            artifacts=artifacts,
            bundles=bundles,
            channel=channel,
            signer=publisher,
            now=now,
        )
        if seal(store, state, [proposal], admission=admission, keys=keys, now=now):
            return Published(module, channel, proposal.release.sequence, proposal.release.sha256, new=True)
    raise StoreBusyError(
        f"{store.address}: other publishers were faster {_MAX_TRIES} times in a row",
        hint="Nothing was lost; push again.",
    )


def admit(
    store: WritableStore,
    state: StoreState,
    module: str,
    *,
    publisher: Key,
    builder: Key,
    manifest: Mapping[str, Any],
    signer: Signer,
) -> Admission:
    """Delegate a module's names to its publisher, and write its entry into the policy; part of the next seal.

    Raises:
        TrustError: the store's policy document isn't what its metadata says.
    """
    targets = copy.deepcopy(state.targets)
    role = role_of(module)
    if targets.delegations is None or targets.delegations.roles is None:
        raise TrustError(f"{store.address}: its targets have no delegations")
    targets.delegations.roles[role] = DelegatedRole(role, [], 1, terminating=True, paths=[f"{module}/*"])
    targets.add_key(publisher, role)
    policy = read_policy(store, state.targets).granting(module, builder, public_pem(builder), mesh_claims(manifest))
    _put_document(store, targets, POLICY_NAME, policy.to_bytes())
    targets.version += 1
    return Admission(targets, _create_numbered(store, Targets.type, targets, signer), policy)


def propose(
    store: WritableStore,
    state: StoreState,
    *,
    manifest: Mapping[str, Any],
    artifacts: tuple[ReleasedArtifact, ...],
    bundles: Sequence[BundleFile],
    channel: str,
    signer: Signer,
    now: datetime,
) -> Proposal:
    """Create a release's objects, its documents and the module's next role. Needs the module's key only.

    Nothing of it counts before a seal. An object that lies there already is checked, and put again if it is short or
    wrong.
    """
    module = manifest["module"]
    role_name = role_of(module)
    known = state.roles.get(role_name)
    role = copy.deepcopy(known) if known else Targets()
    for bundle in bundles:
        _put_object(store, bundle.info.blob_sha256, bundle.path)
        _put_object(store, Sha256.of(bundle.info.statements), bundle.info.statements)
    release = ReleaseDocument(
        module=module,
        version=manifest["version"],
        sequence=max([0, *_sequences(role)]) + 1,
        manifest=dict(manifest),
        artifacts=artifacts,
    )
    pointer = ChannelDocument(
        module=module,
        channel=channel,
        serial=_serial(store, role, module, channel) + 1,
        release_sequence=release.sequence,
        release_sha256=release.sha256,
    )
    for document in (release, pointer):
        _put_document(store, role, document.target_name, document.to_bytes())
    _drop_old_releases(store, role, module)
    role.version += 1 if known else 0
    role.expires = _days(now, TARGETS_DAYS)
    meta = _create_numbered(store, role_name, role, signer)
    return Proposal(role_name, role.version, meta, release)


def seal(
    store: WritableStore,
    state: StoreState,
    proposals: Sequence[Proposal],
    *,
    admission: Admission | None = None,
    keys: StoreKeys,
    now: datetime,
) -> bool:
    """Check proposals against the policy and make them the store's state: snapshot, then the swap of timestamp.json.

    Returns:
        False when another seal was faster: start again from the new state.

    Raises:
        PolicyError, ClaimError, UntrustedBuilderError: the policy refuses a proposal.
        TrustError: a proposal isn't signed by its module's key.
    """
    targets = admission.targets if admission else state.targets
    policy = admission.policy if admission else read_policy(store, state.targets)
    snapshot = copy.deepcopy(state.snapshot)
    for proposal in proposals:
        _check_proposal(store, state, targets, policy, proposal)
        snapshot.meta[f"{proposal.role}.json"] = proposal.meta
    if admission:
        snapshot.meta["targets.json"] = admission.meta
    snapshot.version += 1
    snapshot.expires = _days(now, SNAPSHOT_DAYS)
    timestamp = copy.deepcopy(state.timestamp)
    timestamp.snapshot_meta = _create_numbered(store, Snapshot.type, snapshot, keys.snapshot)
    timestamp.version += 1
    timestamp.expires = _days(now, TIMESTAMP_DAYS)
    return store.swap(TIMESTAMP_KEY, _signed(timestamp, keys.timestamp), expected=state.timestamp_bytes)


def module_releases(
    store: ReadableStore, state: StoreState, module: str
) -> list[tuple[ReleaseDocument, tuple[ChannelDocument, ...]]]:
    """A module's releases that its role still names, newest first, each with the channels that point at it.

    Raises:
        NoSuchReleaseError: the store doesn't know the module.
    """
    role = state.roles.get(role_of(module))
    if role is None:
        known = ", ".join(sorted(name.removeprefix("m.") for name in _delegated(state.targets))) or "none"
        raise NoSuchReleaseError(f"{store.address} has no module {module!r}; it has {known}")
    pointers = [pointer for name in _channels(role) if (pointer := _read_channel(store, role, module, name))]
    releases = [_read_release(store, role, module, sequence) for sequence in reversed(_sequences(role))]
    return [
        (release, tuple(pointer for pointer in pointers if pointer.release_sequence == release.sequence))
        for release in releases
        if release is not None
    ]


def read_policy(store: WritableStore, targets: Targets) -> PolicyDocument:
    """The policy that a store's targets name. Raises TrustError, ReleaseError."""
    data = _read_document(store, targets, POLICY_NAME)
    if data is None:
        raise PolicyError(f"{store.address} has no policy: it trusts nobody")
    return PolicyDocument.parse(data, where=POLICY_NAME)


def check_release(store: WritableStore, policy: PolicyDocument, release: ReleaseDocument) -> None:
    """Check a release against the policy: an entry, its claims, and enough trusted builders for each artifact.

    Raises:
        PolicyError, ClaimError, UntrustedBuilderError, SignatureError: the policy refuses, or a statement is wrong.
        ObjectMissingError, ObjectCorruptError: a statements object isn't what the release says.
    """
    entry = policy.entry(release.module)
    try:
        parse_manifest(canonical_json(release.manifest), where=f"the manifest of {release.target_name}")
    except ManifestError as error:
        raise PolicyError(f"{store.address}: refused: {error}") from error
    policy.check_claims(release.module, release.manifest)
    for each in release.artifacts:
        statements = read_object(store, each.statements_sha256, each.statements_size_bytes)
        said = read_statements_unverified(statements)
        files = {subject.name: subject.sha256 for subject in said[0].subject[1:]} if said else {}
        where = f"{release.module}.{each.artifact} for {each.system}"
        try:
            verify_statements(
                statements,
                keys=entry.keys,
                needed=entry.builders_needed,
                content_sha256=each.content_sha256,
                files=files,
            )
        except UntrustedBuilderError as error:
            raise UntrustedBuilderError(f"{where}: the store's policy refuses: {error}", hint=error.hint) from error


def read_object(store: ReadableStore, digest: Sha256, size_bytes: int) -> bytes:
    """A small object of a store. Raises ObjectMissingError, or ObjectCorruptError when it isn't what its name says."""
    data = store.read(object_key(digest), limit_bytes=size_bytes)
    if Sha256.of(data) != digest:
        raise ObjectCorruptError(f"{store.address}: {object_key(digest)} is not what its name says")
    return data


def _check_proposal(
    store: WritableStore, state: StoreState, targets: Targets, policy: PolicyDocument, proposal: Proposal
) -> None:
    """Check a module's proposed role as anybody's: its signature, its names, and every document that is new in it."""
    key = f"metadata/{proposal.version}.{proposal.role}.json"
    data = store.read(key, limit_bytes=MAX_METADATA_BYTES)
    try:
        metadata: Metadata[Targets] = Metadata.from_bytes(data)
        targets.verify_delegate(proposal.role, metadata.signed_bytes, metadata.signatures)
        proposal.meta.verify_length_and_hashes(data)
    except (RepositoryError, ValueError) as error:
        raise TrustError(f"{store.address}: {key} is not signed by its module's key: {error}") from error
    module = proposal.role.removeprefix("m.")
    old = state.roles[proposal.role].targets if proposal.role in state.roles else {}
    for name, target in metadata.signed.targets.items():
        if not name.startswith(f"{module}/"):
            raise PolicyError(f"{store.address}: {proposal.role} names {name!r}, which is not its module's")
        if target != old.get(name):
            _check_document(store, policy, metadata.signed, module, name)


def _check_document(store: WritableStore, policy: PolicyDocument, role: Targets, module: str, name: str) -> None:
    data = _read_document(store, role, name) or b""
    if name.startswith(f"{module}/channel."):
        pointer = ChannelDocument.parse(data, where=name)
        release = _read_release(store, role, module, pointer.release_sequence)
        if pointer.target_name != name or release is None or release.sha256 != pointer.release_sha256:
            raise ReleaseError(f"{name} points at release {pointer.release_sequence}, which its role doesn't hold")
    else:
        release = ReleaseDocument.parse(data, where=name)
        if release.target_name != name:
            raise ReleaseError(f"{name} holds a document for {release.target_name}")
        check_release(store, policy, release)


def _init_root(store: WritableStore, keys: StoreKeys, now: datetime) -> bytes:
    assert keys.root is not None  # noqa: S101 - init_store has checked
    assert keys.targets is not None  # noqa: S101
    root = Root(version=1, expires=_days(now, ROOT_DAYS), consistent_snapshot=True)
    signers = {"root": keys.root, "targets": keys.targets, "snapshot": keys.snapshot, "timestamp": keys.timestamp}
    for role, signer in signers.items():
        root.add_key(signer.public_key, role)
    data = _signed(root, keys.root)
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


def _signed(signed: Root | Targets | Snapshot | Timestamp, signer: Signer) -> bytes:
    metadata: Metadata[Any] = Metadata(signed)
    metadata.sign(signer)
    return metadata.to_bytes()


def _create_numbered(store: WritableStore, role: str, signed: Targets | Snapshot, signer: Signer) -> MetaFile:
    """Create a role's metadata under its version, or the first later one that is free."""
    for _ in range(_MAX_SKIPS):
        data = _signed(signed, signer)
        if store.create(f"metadata/{signed.version}.{role}.json", data):
            return MetaFile(signed.version, len(data), {"sha256": Sha256.of(data)})
        signed.version += 1
    raise StoreBusyError(f"{store.address}: {_MAX_SKIPS} versions of {role} in a row are taken")


def _put_document(store: WritableStore, role: Targets, name: str, data: bytes) -> None:
    digest = Sha256.of(data)
    store.create(target_key(name, digest), data)
    role.targets[name] = TargetFile(len(data), {"sha256": digest}, name)


def _read_document(store: ReadableStore, role: Targets, name: str) -> bytes | None:
    target = role.targets.get(name)
    if target is None:
        return None
    data = store.read(target_key(name, target.hashes["sha256"]), limit_bytes=min(target.length, MAX_DOCUMENT_BYTES))
    try:
        target.verify_length_and_hashes(data)
    except RepositoryError as error:
        raise ObjectCorruptError(f"{store.address}: the document {name} is not what its metadata says") from error
    return data


def _put_object(store: WritableStore, digest: Sha256, source: Path | bytes) -> None:
    key = object_key(digest)
    if store.create(key, source):
        return
    with store.open(key) as file:
        found = HashingReader(file)
        while found.read(CHUNK_SIZE_BYTES):
            pass
    if found.sha256 != digest:
        store.replace(key, source)


def _released(bundle: BundleFile) -> ReleasedArtifact:
    info = bundle.info
    return ReleasedArtifact(
        artifact=info.listing.artifact,
        system=info.listing.system,
        binary=info.listing.binary,
        content_sha256=info.content_sha256,
        content_size_bytes=info.content_size_bytes,
        blob_sha256=info.blob_sha256,
        blob_size_bytes=info.blob_size_bytes,
        statements_sha256=Sha256.of(info.statements),
        statements_size_bytes=len(info.statements),
    )


def _current_release(store: WritableStore, state: StoreState, module: str, channel: str) -> ReleaseDocument | None:
    role = state.roles.get(role_of(module))
    pointer = None if role is None else _read_channel(store, role, module, channel)
    return None if role is None or pointer is None else _read_release(store, role, module, pointer.release_sequence)


def _read_channel(store: ReadableStore, role: Targets, module: str, channel: str) -> ChannelDocument | None:
    name = channel_target(module, channel)
    data = _read_document(store, role, name)
    return None if data is None else ChannelDocument.parse(data, where=name)


def _read_release(store: ReadableStore, role: Targets, module: str, sequence: int) -> ReleaseDocument | None:
    name = f"{module}/release.{sequence}.json"
    data = _read_document(store, role, name)
    return None if data is None else ReleaseDocument.parse(data, where=name)


def _serial(store: ReadableStore, role: Targets, module: str, channel: str) -> int:
    pointer = _read_channel(store, role, module, channel)
    return 0 if pointer is None else pointer.serial


def _sequences(role: Targets) -> list[int]:
    numbers = (name.rpartition("/release.")[2].removesuffix(".json") for name in role.targets)
    return sorted(int(number) for number in numbers if number.isdecimal())


def _channels(role: Targets) -> list[str]:
    return sorted(name.rpartition("/channel.")[2].removesuffix(".json") for name in role.targets if "/channel." in name)


def _drop_old_releases(store: ReadableStore, role: Targets, module: str) -> None:
    """Leave away all but the newest releases and those that channels point at; nothing is deleted from the store."""
    pointers = (_read_channel(store, role, module, channel) for channel in _channels(role))
    kept = {*_sequences(role)[-RELEASES_KEPT:], *(pointer.release_sequence for pointer in pointers if pointer)}
    for sequence in set(_sequences(role)) - kept:
        del role.targets[f"{module}/release.{sequence}.json"]


def _delegated(targets: Targets) -> Mapping[str, DelegatedRole]:
    return (targets.delegations.roles if targets.delegations else None) or {}


def _days(now: datetime, days: int) -> datetime:
    return (now + timedelta(days=days)).replace(microsecond=0)
