"""Sealing: proposals, whoever made them, checked against the policy and made a store's next state.

It needs the online keys and trusts no proposal; where nobody distrusts anybody, the process that proposes seals too.
The swap of timestamp.json is the one commit.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, MetaFile, Snapshot, Targets

from meshbuild.digests import Sha256
from meshbuild.errors import ManifestError, PolicyError, ReleaseError, TrustError, UntrustedBuilderError
from meshbuild.jsontext import canonical_json
from meshbuild.manifest import parse_manifest
from meshbuild.release import ChannelDocument, PolicyDocument, ReleaseDocument
from meshbuild.repository import (
    SNAPSHOT_DAYS,
    TIMESTAMP_DAYS,
    StoreKeys,
    after_days,
    create_numbered,
    read_channel,
    read_document,
    read_object,
    read_policy,
    read_release,
    sign_metadata,
)
from meshbuild.signing import read_statements_unverified, verify_statements
from meshbuild.trust import MAX_METADATA_BYTES, TIMESTAMP_KEY, StoreState, check_successor, role_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from meshbuild.manifest import Manifest
    from meshbuild.stores import ReadableStore, WritableStore


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


def _serial(store: ReadableStore, role: Targets, module: str, channel: str) -> int:
    pointer = read_channel(store, role, module, channel)
    return 0 if pointer is None else pointer.serial
