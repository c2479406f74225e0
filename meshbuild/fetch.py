"""Fetching: from a store and a root of trust to a verified release, unpacked in a host's folder.

docs/fetch.md says for people what is checked and what lies where.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from dataclasses import InitVar, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from meshbuild.bundle import MAX_CONTENT_BYTES, check_folder, read_bundle
from meshbuild.digests import CHUNK_SIZE_BYTES, Sha256
from meshbuild.errors import (
    BundleDigestError,
    BundleFormatError,
    BundleLimitError,
    LocalFileError,
    NoSuchReleaseError,
    ObjectCorruptError,
    ReleaseError,
    SignatureError,
    StoreError,
    TrustError,
)
from meshbuild.hostfolder import Floor, HostFolder
from meshbuild.jsontext import parse_json
from meshbuild.paths import local_errors, temp_beside
from meshbuild.release import object_key
from meshbuild.release_checks import check_listing, check_names, check_statements, choose, verify_documents
from meshbuild.stores.directory import DirectoryStore
from meshbuild.texts import quoted
from meshbuild.trust import open_view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import BinaryIO

    from meshbuild.listing import Listing
    from meshbuild.manifest import Manifest
    from meshbuild.release import ReleasedArtifact
    from meshbuild.release_checks import Documents, Vouched
    from meshbuild.stores import ReadableStore

_MADE_HERE = object()
_NOTHING_EXPIRES = datetime.min.replace(tzinfo=UTC)


class Progress(Protocol):
    """Takes how far a download is."""

    def __call__(self, what: str, done_bytes: int, total_bytes: int, /) -> None:
        """`what` is for people, as in `hello.server for arch`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedArtifact:
    """One artifact of a verified release, whole in its folder when it was verified.

    Attributes:
        binary: the program's file name in the folder.
        folder: the payload folder: immutable, shared, and to be checked again before it is relied on later.
        builders: the keyids of the trusted builders that vouch for it.
    """

    artifact: str
    system: str
    binary: str
    content_sha256: Sha256
    folder: Path
    builders: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRelease:
    """A release that went through every check of `fetch_release`, for one system. Only this module makes one.

    Attributes:
        sequence: the release's number within its module.
        serial: the channel's serial under which it was accepted.
        release_sha256: the digest of the release document.
        manifest: the module's manifest; its `document` is the JSON value.
        artifacts: those of the system, sorted by name.
        receipt: the folder that this can be verified from again, without a network.
    """

    module: str
    version: str
    sequence: int
    channel: str
    serial: int
    release_sha256: Sha256
    manifest: Manifest
    artifacts: tuple[VerifiedArtifact, ...]
    receipt: Path
    made_by: InitVar[object]

    def __post_init__(self, made_by: object) -> None:
        """Refuse to be made by anybody else."""
        if made_by is not _MADE_HERE:
            raise TypeError("a VerifiedRelease is made by fetch_release and verify_receipt only")


def fetch_release(
    store: ReadableStore,
    *,
    root: bytes,
    module: str,
    channel: str = "stable",
    system: str | None,
    into: Path,
    now: datetime | None = None,
    max_content_bytes: int = MAX_CONTENT_BYTES,
    allow_older: bool = False,
    report: Callable[[str], None] = lambda _line: None,
    progress: Progress = lambda _what, _done, _total: None,
) -> VerifiedRelease:
    """Fetch what a channel points at, check all of it, and leave it unpacked below `into`.

    1. The store's metadata, from the root of trust, by python-tuf.
    2. The policy has an entry for the module.
    3. The channel's document names this module and channel, and its serial is no lower than the highest that this
       host has accepted; the same serial names the same release.
    4. The release's document is the one that the channel names by digest, of this module and number; its manifest is
       valid and agrees with it; the policy grants the module every mesh-wide claim of it.
    5. For each artifact of the system, its statements: those that the release names, signed by as many of the policy's
       builders as it asks for, about the content digest that the release names. No bundle is downloaded
       before.
    6. The bundle's bytes: no more than the release says, of the digest that it says. Nothing is decompressed before.
    7. Frames, statements behind the content, listing, every file, content digest; the listing is of the module,
       version, artifact, system, binary and files that release and statements name. Unpacked beside its place.
    8. Renamed into place; the receipt is written; the floor is raised.

    A payload that is whole already isn't downloaded again; one that isn't is replaced. When this raises, or is killed,
    no unverified file has its final name, the former receipt and floor hold, and running again heals what is left.

    Args:
        store: where from.
        root: the root of trust, a root.json that the host got out of band.
        module: whose release.
        channel: which pointer to follow.
        system: which system's artifacts; None when the release has one system only.
        into: the host's folder; made when missing.
        now: the time for judging expiry; the clock's unless given.
        max_content_bytes: the most that the content of one artifact may have.
        allow_older: whether the operator accepts a release from below the floor, which stays where it is.
        report: takes lines for people.
        progress: takes how far downloads are.

    Raises:
        TrustError: check 1 fails.
        PolicyError, ClaimError: the policy refuses.
        RollbackError: the channel is older than what this host has seen.
        NoSuchReleaseError: there is no such channel, or no release for the system.
        ReleaseError: a document is malformed or names something else.
        SignatureError, UntrustedBuilderError: check 5 fails.
        ObjectMissingError, ObjectCorruptError, StoreError: the store lacks something, or can't be read.
        BundleFormatError, BundleLimitError, BundleDigestError: check 7 fails.
        LocalFileError: the host's folder can't be written, or has too little space.
    """
    check_names(module, channel)
    host = HostFolder(into.absolute())
    with host.locked(report):
        store_id = host.store_id(root)
        floor = None if allow_older else host.floor(store_id, module, channel)
        with open_view(store, root=root, cache=host.cache(store_id), now=now) as view:
            documents = verify_documents(view, module, channel, floor)
            roots = view.roots
        chosen = choose(documents.release, documents.manifest, system)
        kept = DirectoryStore(host.receipt(module))
        vouched = [check_statements(documents, each, _read_statements(each, kept, store)) for each in chosen]
        _place_all(
            host, store, documents, vouched, max_content_bytes=max_content_bytes, report=report, progress=progress
        )
        receipt = _write_receipt(host, documents, vouched)
        host.remember_roots(store_id, roots)
        pointer = documents.pointer
        host.raise_floor(store_id, module, channel, Floor(pointer.serial, pointer.release_sha256))
        return _verified(host, documents, vouched, receipt)


def verify_receipt(
    into: Path,
    *,
    root: bytes,
    module: str,
    channel: str = "stable",
    system: str | None,
    now: datetime | None = None,
    report: Callable[[str], None] = lambda _line: None,
) -> VerifiedRelease:
    """Verify what lies in a host's folder from its receipt, by the checks of `fetch_release` and without a store.

    Only this differs: an expired timestamp or snapshot is reported and not refused, since there is nobody to ask for
    newer ones; and a payload that isn't whole is an error. Nothing is written, and no fetch that goes on is waited for.

    Raises:
        NoSuchReleaseError: no receipt of the module, or none for that channel or system.
        BundleDigestError: a payload isn't whole.
        MeshbuildError: as `fetch_release` does.
    """
    check_names(module, channel)
    host = HostFolder(into.absolute())
    receipt = DirectoryStore(host.receipt(module))
    if not receipt.folder.is_dir():
        raise NoSuchReleaseError(
            f"{host.into} has no receipt of the module {quoted(module)}", hint=f"meshbuild fetch {module}"
        )
    with host.receipts_locked(), tempfile.TemporaryDirectory(prefix="meshbuild-receipt-") as cache:
        floor = host.floor(host.store_id(root), module, channel)
        with open_view(receipt, root=root, cache=Path(cache), now=_NOTHING_EXPIRES) as view:
            documents = verify_documents(view, module, channel, floor)
        _judge_expiry(documents, now or datetime.now(UTC), report)
        chosen = choose(documents.release, documents.manifest, system)
        vouched = [check_statements(documents, each, _read_statements(each, receipt)) for each in chosen]
        for each in vouched:
            content = each.released.content_sha256
            check_listing(_check_payload(host.payload(content), content), each, documents)
        return _verified(host, documents, vouched, receipt.folder)


def _read_statements(each: ReleasedArtifact, *sources: ReadableStore) -> bytes:
    """A statements object from the first of the sources that has it whole."""
    key = object_key(each.statements_sha256)
    *earlier, last = sources
    for source in earlier:
        try:
            data = source.read(key, limit_bytes=each.statements_size_bytes)
        except StoreError:
            continue
        if Sha256.of(data) == each.statements_sha256:
            return data
    data = last.read(key, limit_bytes=each.statements_size_bytes)
    if Sha256.of(data) != each.statements_sha256:
        raise ObjectCorruptError(f"{last.address}: {key} is truncated or altered: its sha256 is {Sha256.of(data)}")
    return data


def _place_all(
    host: HostFolder,
    store: ReadableStore,
    documents: Documents,
    vouched: Iterable[Vouched],
    *,
    max_content_bytes: int,
    report: Callable[[str], None],
    progress: Progress,
) -> None:
    """The checks 6 and 7 for what isn't there whole, each payload renamed into place at their end."""
    missing = []
    for each in vouched:
        size_bytes = each.released.content_size_bytes
        if size_bytes > max_content_bytes:
            raise BundleLimitError(
                f"{documents.name(each.released)}: its content has {size_bytes} bytes, more than the "
                f"{max_content_bytes} allowed"
            )
        if not _is_whole(host, each, documents, report):
            missing.append(each)
    _check_space(host, [each.released for each in missing])
    for each in missing:
        _place(host, store, each, documents, progress)


def _is_whole(host: HostFolder, each: Vouched, documents: Documents, report: Callable[[str], None]) -> bool:
    """Whether the payload lies in place, every byte of it; the listing of a whole one is checked as well."""
    place = host.payload(each.released.content_sha256)
    if not os.path.lexists(place):
        return False
    try:
        listing = _check_payload(place, each.released.content_sha256)
    except BundleDigestError as error:
        report(f"fetching {documents.name(each.released)} again: {error}")
        return False
    check_listing(listing, each, documents)
    return True


def _check_payload(place: Path, content_sha256: Sha256) -> Listing:
    """The listing of a payload that is whole. Raises BundleDigestError, LocalFileError."""
    with local_errors(f"read {place}"):
        if place.is_symlink():
            raise BundleDigestError(f"{place} is a link")
        return check_folder(place, content_sha256)


def _check_space(host: HostFolder, missing: list[ReleasedArtifact]) -> None:
    """Refuse before the download what can't fit after it. A bundle and its content are on the disk at once."""
    if not missing:
        return
    needed = sum(each.content_size_bytes for each in missing) + max(each.blob_size_bytes for each in missing)
    with local_errors(f"ask for the free space of {host.into}"):
        free = shutil.disk_usage(host.into).free
    if free < needed:
        raise LocalFileError(f"too little space in {host.into}: {needed} bytes are needed, {free} are free")


def _place(host: HostFolder, store: ReadableStore, each: Vouched, documents: Documents, progress: Progress) -> None:
    """Checks 6 and 7, and the rename of 8."""
    released, where = each.released, documents.name(each.released)
    with local_errors(f"unpack {where} in {host.payloads}"), host.placing(released.content_sha256) as folder:
        blob = temp_beside(host.payload(released.content_sha256))
        try:
            download_bundle(store, released, blob, where, progress)
            info = read_bundle(
                blob,
                into=folder,
                max_content_bytes=released.content_size_bytes,
                expected_content=released.content_sha256,
            )
        except (BundleFormatError, BundleLimitError, BundleDigestError) as error:
            named = str(error).replace(str(blob), f"{where}, bundle {released.blob_sha256}")
            raise type(error)(named, hint=error.hint) from error
        finally:
            blob.unlink(missing_ok=True)
        if info.statements != each.statements:
            raise SignatureError(f"{where}: the statements behind its content are not those that the release names")
        if info.content_size_bytes != released.content_size_bytes:
            raise ReleaseError(
                f"{where}: content of {info.content_size_bytes} bytes, the release says {released.content_size_bytes}"
            )
        check_listing(info.listing, each, documents)


def download_bundle(
    store: ReadableStore, released: ReleasedArtifact, blob: Path, where: str, progress: Progress
) -> None:
    """Copy a released bundle to a new file: no more bytes than the release says, and of the digest that it says.

    Args:
        store: where from.
        released: the artifact, as a verified release names it.
        blob: the file to make; what is in it after a failure is of no use.
        where: the artifact's name for people, for progress.
        progress: takes how far it is.

    Raises:
        ObjectMissingError, ObjectCorruptError, StoreError: the store lacks it, or has something else.
        OSError: the file can't be written.
    """
    key, total = object_key(released.blob_sha256), released.blob_size_bytes
    digest, done = hashlib.sha256(), 0
    with store.open(key) as source, blob.open("xb") as out:
        while chunk := _read(store, key, source, min(CHUNK_SIZE_BYTES, total - done + 1)):
            done += len(chunk)
            if done > total:
                raise ObjectCorruptError(f"{store.address}: {key} goes on behind the {total} bytes that it should have")
            digest.update(chunk)
            out.write(chunk)
            progress(where, done, total)
    if done < total:
        raise ObjectCorruptError(f"{store.address}: {key} is truncated: {done} of {total} bytes")
    if digest.hexdigest() != released.blob_sha256:
        raise ObjectCorruptError(f"{store.address}: {key} is altered: its sha256 is {digest.hexdigest()}")


def _read(store: ReadableStore, key: str, source: BinaryIO, size: int) -> bytes:
    try:
        return source.read(size)
    except OSError as error:
        raise StoreError(f"{store.address}: could not read {key}: {error.strerror or error}") from error


def _write_receipt(host: HostFolder, documents: Documents, vouched: Iterable[Vouched]) -> Path:
    """Keep what was verified, and the statements of the same release for systems fetched earlier."""
    objects = {object_key(each.released.statements_sha256): each.statements for each in vouched}
    same_release = {object_key(each.statements_sha256) for each in documents.release.artifacts}
    return host.write_receipt(
        documents.release.module, {**documents.files, **objects}, keep=lambda key: key in same_release
    )


def _judge_expiry(documents: Documents, now: datetime, report: Callable[[str], None]) -> None:
    """Without a store an old timestamp or snapshot is all there is; keys that were given a time to end still end."""
    newest_root = max((key for key in documents.files if key.endswith(".root.json")), key=_version)
    for key in sorted(documents.files):
        if not key.startswith("metadata/") or (key.endswith(".root.json") and key != newest_root):
            continue
        expires = datetime.fromisoformat(parse_json(documents.files[key])["signed"]["expires"])
        if expires > now:
            continue
        if key.endswith(("timestamp.json", ".snapshot.json")):
            report(f"the receipt's {key} has expired on {expires:%Y-%m-%d}; a fetch would renew it")
        else:
            raise TrustError(f"the receipt's {key} has expired on {expires:%Y-%m-%d}", hint="Fetch the module again.")


def _version(key: str) -> int:
    return int(key.removeprefix("metadata/").split(".")[0])


def _verified(host: HostFolder, documents: Documents, vouched: Iterable[Vouched], receipt: Path) -> VerifiedRelease:
    release, pointer = documents.release, documents.pointer
    return VerifiedRelease(
        module=release.module,
        version=release.version,
        sequence=release.sequence,
        channel=pointer.channel,
        serial=pointer.serial,
        release_sha256=pointer.release_sha256,
        manifest=documents.manifest,
        artifacts=tuple(
            VerifiedArtifact(
                artifact=each.released.artifact,
                system=each.released.system,
                binary=each.released.binary,
                content_sha256=each.released.content_sha256,
                folder=host.payload(each.released.content_sha256),
                builders=each.builders,
            )
            for each in vouched
        ),
        receipt=receipt,
        made_by=_MADE_HERE,
    )
