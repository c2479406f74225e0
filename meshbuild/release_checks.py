"""What makes a release one to trust: the checks 2 to 5 of `fetch.fetch_release`, and those of a bundle's listing.

Pure but for reading documents through a verified view: nothing here writes, downloads a bundle or knows of folders.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshbuild.digests import Sha256
from meshbuild.errors import (
    ManifestError,
    NoSuchReleaseError,
    PolicyError,
    ReleaseError,
    RollbackError,
    SignatureError,
    UntrustedBuilderError,
)
from meshbuild.jsontext import canonical_json
from meshbuild.manifest import parse_manifest
from meshbuild.release import POLICY_NAME, ChannelDocument, PolicyDocument, ReleaseDocument, channel_target
from meshbuild.signing import read_statements_unverified, verify_statements
from meshbuild.texts import LABEL, quoted, suggestion
from meshbuild.trust import role_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from meshbuild.hostfolder import Floor
    from meshbuild.listing import Listing
    from meshbuild.manifest import Manifest
    from meshbuild.release import PolicyEntry, ReleasedArtifact
    from meshbuild.trust import TrustedView


@dataclass(frozen=True, slots=True)
class Documents:
    """A module's documents after the checks 1 to 4, and the files they were verified from."""

    entry: PolicyEntry
    pointer: ChannelDocument
    release: ReleaseDocument
    manifest: Manifest
    files: Mapping[str, bytes]

    def name(self, each: ReleasedArtifact) -> str:
        """An artifact's name for people."""
        return f"{self.release.module}.{each.artifact} for {each.system}"


@dataclass(frozen=True, slots=True)
class Vouched:
    """An artifact after check 5: what the release says of it, who vouches for it, and the files they vouch for."""

    released: ReleasedArtifact
    statements: bytes
    builders: tuple[str, ...]
    files: Mapping[str, Sha256]


def check_names(module: str, channel: str) -> None:
    """Refuse what can't be a name before it is looked up or becomes a path. Raises NoSuchReleaseError."""
    for what, name in (("module", module), ("channel", channel)):
        try:
            LABEL.check(name)
        except ValueError as error:
            raise NoSuchReleaseError(f"no {what} can have the name: {error}") from error


def verify_documents(view: TrustedView, module: str, channel: str, floor: Floor | None) -> Documents:
    """The checks 2 to 4: policy, channel, floor, release, manifest, claims.

    Args:
        view: the store's verified metadata.
        module: whose release.
        channel: which pointer to follow.
        floor: what this host accepted last, or None to take any serial.

    Raises:
        MeshbuildError: as `fetch.fetch_release` says.
    """
    policy = view.document(POLICY_NAME)
    if policy is None:
        raise PolicyError(f"{view.address} has no policy: it trusts nobody")
    parsed = PolicyDocument.parse(policy, where=f"{view.address}: {POLICY_NAME}")
    entry = parsed.entry(module)
    pointer = _read_channel(view, module, channel)
    if floor is not None:
        _check_floor(view.address, pointer, floor)
    release = _read_release(view, pointer)
    manifest = _read_manifest(release, where=f"{view.address}: {release.target_name}")
    parsed.check_claims(module, release.manifest)
    role = re.escape(role_of(module))
    wanted = re.compile(rf"metadata/(timestamp|[0-9]+\.(root|snapshot|targets|{role}))\.json|targets/.+")
    files = {key: data for key, data in view.files.items() if wanted.fullmatch(key)}
    return Documents(entry, pointer, release, manifest, files)


def _read_channel(view: TrustedView, module: str, channel: str) -> ChannelDocument:
    name = channel_target(module, channel)
    data = view.document(name)
    if data is None:
        pattern = re.compile(rf"{re.escape(module)}/channel\.(.+)\.json")
        channels = [match[1] for match in map(pattern.fullmatch, view.names(module)) if match]
        there = f"there are {', '.join(map(quoted, channels))}" if channels else "there are none yet"
        raise NoSuchReleaseError(
            f"{view.address}: {module} has no channel {quoted(channel)}; {there}{suggestion(channel, channels)}"
        )
    pointer = ChannelDocument.parse(data, where=f"{view.address}: {name}")
    if pointer.target_name != name:
        raise ReleaseError(f"{view.address}: {name} holds the document of {pointer.target_name}")
    return pointer


def _check_floor(address: str, pointer: ChannelDocument, floor: Floor) -> None:
    hint = "If the store was set back on purpose and you accept that, ask for it with --allow-older."
    where = f"{address}: the channel {pointer.channel} of {pointer.module}"
    if pointer.serial < floor.serial:
        raise RollbackError(
            f"{where} is at serial {pointer.serial}, and this host has accepted {floor.serial} before", hint=hint
        )
    if pointer.serial == floor.serial and pointer.release_sha256 != floor.release_sha256:
        raise RollbackError(
            f"{where} names the release {pointer.release_sha256} under serial {pointer.serial}, and this host has "
            f"accepted {floor.release_sha256} under it before",
            hint=hint,
        )


def _read_release(view: TrustedView, pointer: ChannelDocument) -> ReleaseDocument:
    name = f"{pointer.module}/release.{pointer.release_sequence}.json"
    data = view.document(name)
    if data is None:
        raise ReleaseError(f"{view.address}: {pointer.target_name} points at {name}, which the store doesn't list")
    found = Sha256.of(data)
    if found != pointer.release_sha256:
        raise ReleaseError(
            f"{view.address}: {pointer.target_name} points at the release {pointer.release_sha256}, {name} is {found}"
        )
    release = ReleaseDocument.parse(data, where=f"{view.address}: {name}")
    if release.target_name != name:
        raise ReleaseError(f"{view.address}: {name} holds the document of {release.target_name}")
    return release


def _read_manifest(release: ReleaseDocument, *, where: str) -> Manifest:
    try:
        manifest = parse_manifest(canonical_json(release.manifest), where=f"{where}: its manifest")
    except ManifestError as error:
        raise ReleaseError(str(error), hint=error.hint) from error
    if (manifest.module, manifest.version) != (release.module, release.version):
        raise ReleaseError(
            f"{where} is of {release.module} {release.version}, its manifest of {manifest.module} {manifest.version}"
        )
    return manifest


def choose(release: ReleaseDocument, manifest: Manifest, system: str | None) -> list[ReleasedArtifact]:
    """The released artifacts of one system: all that the manifest declares for it, and no others.

    Raises:
        NoSuchReleaseError: there are none for the system, or, where none is named, there are several systems.
        ReleaseError: release and manifest disagree.
    """
    systems = sorted({each.system for each in release.artifacts})
    there = ", ".join(systems) or "none"
    if system is None and len(systems) > 1:
        raise NoSuchReleaseError(
            f"{release.module}, release {release.sequence}, is there for several systems: {there}",
            hint="Say which one with --system.",
        )
    if system is not None and system not in systems:
        raise NoSuchReleaseError(
            f"{release.module}, release {release.sequence}, is not there for the system {quoted(system)}; "
            f"it is for: {there}{suggestion(system, systems)}"
        )
    system = system or "".join(systems)
    chosen = [each for each in release.artifacts if each.system == system]
    declared = {(each.name, each.binary) for each in manifest.build.artifacts if each.system == system}
    found = {(each.artifact, each.binary) for each in chosen}
    if found != declared:
        raise ReleaseError(
            f"{release.module}, release {release.sequence}: its manifest declares {_listed(declared)} for "
            f"{system}, and it holds {_listed(found)}"
        )
    return chosen


def _listed(artifacts: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name} ({quoted(binary)})" for name, binary in sorted(artifacts)) or "nothing"


def check_statements(documents: Documents, each: ReleasedArtifact, statements: bytes) -> Vouched:
    """Check 5. The files are those that the builders name; the bundle's are compared with them once it is read.

    Raises:
        SignatureError, UntrustedBuilderError: as `signing.verify_statements` does.
    """
    where = documents.name(each)
    try:
        said = read_statements_unverified(statements)
        files = {subject.name: subject.sha256 for subject in said[0].subject[1:]} if said else {}
        builders = verify_statements(
            statements,
            keys=documents.entry.keys,
            needed=documents.entry.builders_needed,
            content_sha256=each.content_sha256,
            files=files,
        ).builders
    except (SignatureError, UntrustedBuilderError) as error:
        raise type(error)(f"{where}: {error}", hint=error.hint) from error
    return Vouched(each, statements, builders, files)


def check_listing(listing: Listing, each: Vouched, documents: Documents) -> None:
    """Part of check 7: a whole bundle is the one that release and statements speak of.

    Raises:
        ReleaseError: it is another artifact's.
        SignatureError: it holds other files than its builders name.
    """
    release, released = documents.release, each.released
    expected = (release.module, released.artifact, release.version, released.system, released.binary)
    found = (listing.module, listing.artifact, listing.version, listing.system, listing.binary)
    if found != expected:
        raise ReleaseError(
            f"{documents.name(released)}: expected a bundle of {' '.join(map(quoted, expected))}, found one of "
            f"{' '.join(map(quoted, found))}"
        )
    if {file.path: file.sha256 for file in listing.files} != each.files:
        raise SignatureError(f"{documents.name(released)}: its statements speak of other files than it holds")
