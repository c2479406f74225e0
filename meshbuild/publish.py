"""Publishing: proposing a release, and sealing proposals into the store's next state.

Propose needs the module's key and seal the online ones; where nobody distrusts anybody one process does both.
Everything but timestamp.json is only ever created; a number that is taken is skipped. So a killed publisher leaves the
old state and some files that nothing names, and two publishers never wait for each other: the one that loses the swap
starts again from the new timestamp.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import (
    DelegatedRole,
    Metadata,
    MetaFile,
    Snapshot,
    Targets,
)

from meshbuild.digests import Sha256
from meshbuild.errors import (
    ManifestError,
    PolicyError,
    ReleaseError,
    StoreBusyError,
    TrustError,
    UntrustedBuilderError,
)
from meshbuild.jsontext import canonical_json
from meshbuild.manifest import parse_manifest
from meshbuild.release import (
    POLICY_NAME,
    ChannelDocument,
    PolicyDocument,
    ReleasedArtifact,
    ReleaseDocument,
    mesh_claims,
)
from meshbuild.repository import (
    GRACE_S,
    SNAPSHOT_DAYS,
    TARGETS_DAYS,
    TIMESTAMP_DAYS,
    StoreKeys,
    after_days,
    channels,
    create_numbered,
    delegated_roles,
    put_document,
    put_object,
    read_channel,
    read_document,
    read_object,
    read_policy,
    read_release,
    sequences,
    sign_metadata,
)
from meshbuild.signing import public_pem, read_statements_unverified, verify_statements
from meshbuild.trust import MAX_METADATA_BYTES, TIMESTAMP_KEY, StoreState, check_successor, load_state, role_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from securesystemslib.signer import Key, Signer

    from meshbuild.bundle import BundleInfo
    from meshbuild.manifest import Manifest
    from meshbuild.stores import ReadableStore, WritableStore

RELEASES_KEPT = 50
_MAX_TRIES = 50


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

    What the channel points at already makes no new release; of its objects, those that the store has lost or that are
    wrong are put again. Where `keys` hold the targets key, a module that the store
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
        ReleaseError: a bundle is another module's or version's, one is there twice, or one is missing for a system.
        PolicyError, ClaimError, UntrustedBuilderError: the store's policy refuses.
        InputsChangedError: a bundle's file was changed meanwhile.
        TrustError, StoreError: the store's metadata can't be trusted, or the store can't be read or written.
        StoreBusyError: other publishers won every try.
    """
    module = manifest["module"]
    artifacts = _released_artifacts(manifest, bundles)
    for _ in range(_MAX_TRIES):
        began_s = monotonic()
        state = load_state(store, root=root, modules=[module])
        admission = None
        if role_of(module) not in delegated_roles(state.targets):
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
                now=now,
            )
        current = _current_release(store, state, module, channel)
        if current is not None:
            same = current.model_copy(
                update={"version": manifest["version"], "manifest": dict(manifest), "artifacts": artifacts}
            )
            if same.identity == current.identity:
                _mend_objects(store, current, bundles)
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
        if monotonic() - began_s > GRACE_S / 2:
            raise StoreBusyError(
                f"{store.address}: the upload took so long that its first objects may be garbage by now",
                hint="Nothing was published; push again, and what is there already is not uploaded again.",
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
    now: datetime,
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
    put_document(store, targets, POLICY_NAME, policy.to_bytes())
    targets.version += 1
    targets.expires = after_days(now, TARGETS_DAYS)
    return Admission(targets, create_numbered(store, Targets.type, targets, signer), policy)


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
        for digest, source in _objects(bundle):
            put_object(store, digest, source)
    release = ReleaseDocument(
        module=module,
        version=manifest["version"],
        sequence=max([0, *sequences(role)]) + 1,
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
        put_document(store, role, document.target_name, document.to_bytes())
    _drop_old_releases(store, role, module)
    role.version += 1 if known else 0
    role.expires = after_days(now, TARGETS_DAYS)
    meta = create_numbered(store, role_name, role, signer)
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

    A proposal is taken as anybody's, whoever made it. The state that it gives is verified as a host would before it
    counts, so that a wrong key can't shut out all hosts.

    Args:
        store: where the proposals were created.
        state: the state they start from, loaded with their modules.
        proposals: no two of one module.
        admission: a module to admit with them.
        keys: the store's online keys.
        now: the time from which expiry is counted.

    Returns:
        False when another seal was faster: start again from the new state.

    Raises:
        PolicyError, ClaimError, UntrustedBuilderError, ReleaseError: a proposal is refused.
        TrustError: a proposal isn't signed by its module's key, or hosts would refuse the new state.
    """
    if len({proposal.role for proposal in proposals}) != len(proposals):
        raise ValueError("two proposals of one module can't be sealed at once: one would be lost")
    targets = admission.targets if admission else state.targets
    policy = admission.policy if admission else read_policy(store, state.targets)
    snapshot = copy.deepcopy(state.snapshot)
    for proposal in proposals:
        _check_proposal(store, state, targets, policy, proposal)
        snapshot.meta[f"{proposal.role}.json"] = proposal.meta
    if admission:
        snapshot.meta["targets.json"] = admission.meta
    snapshot.version += 1
    snapshot.expires = after_days(now, SNAPSHOT_DAYS)
    timestamp = copy.deepcopy(state.timestamp)
    timestamp.snapshot_meta = create_numbered(store, Snapshot.type, snapshot, keys.snapshot)
    timestamp.version += 1
    timestamp.expires = after_days(now, TIMESTAMP_DAYS)
    timestamp_bytes = sign_metadata(timestamp, keys.timestamp)
    check_successor(store, state, timestamp_bytes, roles=[proposal.role for proposal in proposals])
    return store.swap(TIMESTAMP_KEY, timestamp_bytes, expected=state.timestamp_bytes)


def check_release(store: ReadableStore, policy: PolicyDocument, release: ReleaseDocument) -> None:
    """Check a release against the policy: an entry, its claims, and enough trusted builders for each artifact.

    Raises:
        ReleaseError: it holds something else than its manifest declares.
        PolicyError, ClaimError, UntrustedBuilderError, SignatureError: the policy refuses, or a statement is wrong.
        ObjectMissingError, ObjectCorruptError: a statements object isn't what the release says.
    """
    entry = policy.entry(release.module)
    try:
        parsed = parse_manifest(canonical_json(release.manifest), where=f"the manifest of {release.target_name}")
    except ManifestError as error:
        raise PolicyError(f"{store.address}: refused: {error}") from error
    _check_manifest_of(release, parsed)
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


def _check_manifest_of(release: ReleaseDocument, manifest: Manifest) -> None:
    """Check that a release is its manifest's: module, version, and for each of its systems every artifact declared."""
    where = release.target_name
    if (manifest.module, manifest.version) != (release.module, release.version):
        raise ReleaseError(
            f"{where} is of {release.module} {release.version}, its manifest of {manifest.module} {manifest.version}"
        )
    for system in sorted({each.system for each in release.artifacts}):
        declared = {(each.name, each.binary) for each in manifest.build.artifacts if each.system == system}
        found = {(each.artifact, each.binary) for each in release.artifacts if each.system == system}
        if found != declared:
            raise ReleaseError(
                f"{where}: for {system} its manifest declares {sorted(declared)}, and it holds {sorted(found)}",
                hint="Push the bundles of all artifacts of a system together.",
            )


def _check_proposal(
    store: WritableStore, state: StoreState, targets: Targets, policy: PolicyDocument, proposal: Proposal
) -> None:
    """Check a module's proposed role as anybody's: its signature, its names, and every document that is new in it."""
    role = _read_proposed(store, targets, proposal)
    module, file = proposal.role.removeprefix("m."), f"{proposal.role}.json"
    known = state.snapshot.meta.get(file)
    if known is not None and (proposal.role not in state.roles or proposal.version <= known.version):
        raise TrustError(
            f"{store.address}: {proposal.version}.{file} doesn't follow the present version {known.version}"
        )
    if role.delegations is not None:
        raise PolicyError(f"{store.address}: {proposal.role} delegates to others, which no module's role may")
    old = state.roles.get(proposal.role, Targets())
    new = [name for name, target in role.targets.items() if target != old.targets.get(name)]
    releases: dict[int, ReleaseDocument] = {}
    for name in new:
        release = _check_document(store, old, role, module, name)
        releases[release.sequence] = release
    for release in releases.values():
        check_release(store, policy, release)


def _read_proposed(store: WritableStore, targets: Targets, proposal: Proposal) -> Targets:
    """A proposed role, which its module's key has signed and which is what the proposal says. Raises TrustError."""
    key = f"metadata/{proposal.version}.{proposal.role}.json"
    data = store.read(key, limit_bytes=MAX_METADATA_BYTES)
    try:
        metadata: Metadata[Targets] = Metadata.from_bytes(data)
        targets.verify_delegate(proposal.role, metadata.signed_bytes, metadata.signatures)
    except (RepositoryError, ValueError) as error:
        raise TrustError(f"{store.address}: {key} is not signed by its module's key: {error}") from error
    meta = MetaFile(proposal.version, len(data), {"sha256": Sha256.of(data)})
    if metadata.signed.type != Targets.type or metadata.signed.version != proposal.version or meta != proposal.meta:
        raise TrustError(f"{store.address}: {key} is not what was proposed")
    return metadata.signed


def _check_document(store: WritableStore, old: Targets, role: Targets, module: str, name: str) -> ReleaseDocument:
    """Check a document that is new or changed in a role; returns the release that it is, or that it points at."""
    if not name.startswith(f"{module}/"):
        raise PolicyError(f"{store.address}: {role_of(module)} names {name!r}, which is not its module's")
    data = read_document(store, role, name) or b""
    if not name.startswith(f"{module}/channel."):
        release = ReleaseDocument.parse(data, where=name)
        if release.target_name != name:
            raise ReleaseError(f"{name} holds a document for {release.target_name}")
        if name in old.targets:
            raise ReleaseError(f"{name} is another than the store holds; a release never changes")
        return release
    pointer = ChannelDocument.parse(data, where=name)
    pointed = read_release(store, role, module, pointer.release_sequence)
    if pointer.target_name != name or pointed is None or pointed.sha256 != pointer.release_sha256:
        raise ReleaseError(f"{name} points at release {pointer.release_sequence}, which its role doesn't hold")
    serial = _serial(store, old, module, pointer.channel)
    if pointer.serial <= serial:
        raise ReleaseError(f"{name} has the serial {pointer.serial}, and the store has {serial} already")
    return pointed


def _released_artifacts(manifest: Mapping[str, Any], bundles: Sequence[BundleFile]) -> tuple[ReleasedArtifact, ...]:
    """What a release says of bundles, in its order. Raises ReleaseError when one doesn't belong to the manifest."""
    found: dict[tuple[str, str], ReleasedArtifact] = {}
    for bundle in bundles:
        listing, released = bundle.info.listing, _released(bundle)
        if (listing.module, listing.version) != (manifest["module"], manifest["version"]):
            raise ReleaseError(
                f"{bundle.path} is a bundle of {listing.module} {listing.version}, expected one of "
                f"{manifest['module']} {manifest['version']}",
                hint="Build again, and push what was built.",
            )
        if found.setdefault((released.artifact, released.system), released) is not released:
            raise ReleaseError(f"{bundle.path}: {released.artifact} for {released.system} is there twice")
    return tuple(released for _, released in sorted(found.items()))


def _objects(bundle: BundleFile) -> tuple[tuple[Sha256, Path | bytes], ...]:
    """The objects of a bundle: its bytes, and its statements on their own."""
    statements = bundle.info.statements
    return (bundle.info.blob_sha256, bundle.path), (Sha256.of(statements), statements)


def _mend_objects(store: WritableStore, release: ReleaseDocument, bundles: Sequence[BundleFile]) -> None:
    """Put those objects of a published release again that the store has lost or that are wrong."""
    named = {digest for each in release.artifacts for digest in (each.blob_sha256, each.statements_sha256)}
    for bundle in bundles:
        for digest, source in _objects(bundle):
            if digest in named:
                put_object(store, digest, source)


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
    pointer = None if role is None else read_channel(store, role, module, channel)
    return None if role is None or pointer is None else read_release(store, role, module, pointer.release_sequence)


def _serial(store: ReadableStore, role: Targets, module: str, channel: str) -> int:
    pointer = read_channel(store, role, module, channel)
    return 0 if pointer is None else pointer.serial


def _drop_old_releases(store: ReadableStore, role: Targets, module: str) -> None:
    """Leave away all but the newest releases and those that channels point at; nothing is deleted from the store."""
    pointers = (read_channel(store, role, module, channel) for channel in channels(role))
    kept = {*sequences(role)[-RELEASES_KEPT:], *(pointer.release_sequence for pointer in pointers if pointer)}
    for sequence in set(sequences(role)) - kept:
        del role.targets[f"{module}/release.{sequence}.json"]
