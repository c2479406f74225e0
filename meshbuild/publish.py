"""Publishing: proposing a release, and which release a channel points at.

Proposing needs the module's key and sealing the online ones; where nobody distrusts anybody one process does both.
Everything but timestamp.json is only ever created; a number that is taken is skipped. So a killed publisher leaves the
old state and some files that nothing names, and two publishers never wait for each other: the one that loses the swap
starts again from the new timestamp.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from tuf.api.metadata import (
    DelegatedRole,
    Targets,
)

from meshbuild.digests import Sha256
from meshbuild.errors import (
    NoSuchReleaseError,
    PolicyError,
    ReleaseError,
    StoreBusyError,
    TrustError,
)
from meshbuild.release import (
    POLICY_NAME,
    ChannelDocument,
    ReleasedArtifact,
    ReleaseDocument,
    mesh_claims,
)
from meshbuild.repository import (
    GRACE_S,
    TARGETS_DAYS,
    StoreKeys,
    after_days,
    channels,
    create_numbered,
    delegated_roles,
    module_releases,
    put_document,
    put_object,
    read_channel,
    read_policy,
    read_release,
    sequences,
)
from meshbuild.sealing import Admission, Proposal, seal
from meshbuild.signing import public_pem
from meshbuild.trust import StoreState, load_state, role_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from securesystemslib.signer import Key, Signer

    from meshbuild.bundle import BundleInfo
    from meshbuild.stores import ReadableStore, WritableStore

RELEASES_KEPT = 50
_MAX_TRIES = 50


@dataclass(frozen=True, slots=True)
class BundleFile:
    """A bundle to publish: its file, and what `read_bundle` found in it."""

    path: Path
    info: BundleInfo


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
    raise _busy(store)


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
    role = _next_role(state, module)
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
    put_document(store, role, release.target_name, release.to_bytes())
    return _propose_pointer(store, role, release, channel=channel, signer=signer, now=now)


def promote(
    store: WritableStore,
    *,
    root: bytes,
    module: str,
    release: str | int,
    channel: str,
    publisher: Signer,
    keys: StoreKeys,
    now: datetime,
) -> Published:
    """Let a channel point at a release that the store has already, newer or older, and seal it. No object is touched.

    Args:
        store: where.
        root: the store's root of trust.
        module: whose release.
        release: its number, or the name of a channel that points at it.
        channel: the channel that shall point at it; made if there is none of the name.
        publisher: the module's key.
        keys: the store's online keys.
        now: the time from which expiry is counted.

    Raises:
        NoSuchReleaseError: the store has no such module, channel or release, or keeps it no longer.
        PolicyError, ClaimError, UntrustedBuilderError: the store's policy refuses the release today.
        TrustError, StoreError: the store's metadata can't be trusted, or the store can't be read or written.
        StoreBusyError: other publishers won every try.
    """
    for _ in range(_MAX_TRIES):
        state = load_state(store, root=root, modules=[module])
        wanted = _find_release(store, state, module, release)
        current = _current_release(store, state, module, channel)
        if current is not None and current.sequence == wanted.sequence:
            return Published(module, channel, wanted.sequence, wanted.sha256, new=False)
        role = _next_role(state, module)
        proposal = _propose_pointer(store, role, wanted, channel=channel, signer=publisher, now=now)
        if seal(store, state, [proposal], keys=keys, now=now):
            return Published(module, channel, wanted.sequence, wanted.sha256, new=True)
    raise _busy(store)


def _next_role(state: StoreState, module: str) -> Targets:
    known = state.roles.get(role_of(module))
    if known is None:
        return Targets()
    role = copy.deepcopy(known)
    role.version += 1
    return role


def _propose_pointer(
    store: WritableStore, role: Targets, release: ReleaseDocument, *, channel: str, signer: Signer, now: datetime
) -> Proposal:
    """Let a channel point at a release that the next role names, and create that role."""
    module = release.module
    before = read_channel(store, role, module, channel)
    pointer = ChannelDocument(
        module=module,
        channel=channel,
        serial=(before.serial if before else 0) + 1,
        release_sequence=release.sequence,
        release_sha256=release.sha256,
    )
    put_document(store, role, pointer.target_name, pointer.to_bytes())
    _drop_old_releases(store, role, module)
    role.expires = after_days(now, TARGETS_DAYS)
    meta = create_numbered(store, role_of(module), role, signer)
    return Proposal(role_of(module), role.version, meta, release)


def _find_release(store: ReadableStore, state: StoreState, module: str, wanted: str | int) -> ReleaseDocument:
    """A release by its number, or by a channel that points at it. Raises NoSuchReleaseError."""
    found = module_releases(store, state, module)
    for release, pointers in found:
        if wanted == release.sequence or any(wanted == pointer.channel for pointer in pointers):
            return release
    numbers = ", ".join(str(release.sequence) for release, _ in found)
    names = ", ".join(sorted(pointer.channel for _, pointers in found for pointer in pointers))
    there = f"channel {wanted!r}; it has {names}" if isinstance(wanted, str) else f"release {wanted}; it has {numbers}"
    raise NoSuchReleaseError(
        f"{store.address}: {module} has no {there}", hint=f"`meshbuild releases {module}` lists both."
    )


def _busy(store: ReadableStore) -> StoreBusyError:
    return StoreBusyError(
        f"{store.address}: other publishers were faster {_MAX_TRIES} times in a row",
        hint="Nothing was lost; do it again.",
    )


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


def _drop_old_releases(store: ReadableStore, role: Targets, module: str) -> None:
    """Leave away all but the newest releases and those that channels point at; nothing is deleted from the store."""
    pointers = (read_channel(store, role, module, channel) for channel in channels(role))
    kept = {*sequences(role)[-RELEASES_KEPT:], *(pointer.release_sequence for pointer in pointers if pointer)}
    for sequence in set(sequences(role)) - kept:
        del role.targets[f"{module}/release.{sequence}.json"]
