"""Fetching: what is taken, what is refused at which check, and that nothing unverified is ever left in its place."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import Metadata, Root

from meshbuild.digests import Sha256
from meshbuild.errors import (
    BundleDigestError,
    BundleLimitError,
    ClaimError,
    LocalFileError,
    MeshbuildError,
    NoSuchReleaseError,
    ObjectCorruptError,
    ObjectMissingError,
    PolicyError,
    ReleaseError,
    RollbackError,
    SignatureError,
    StoreError,
    TrustError,
    UntrustedBuilderError,
)
from meshbuild.fetch import VerifiedRelease, fetch_release, verify_receipt
from meshbuild.hostfolder import HostFolder
from meshbuild.jsontext import canonical_json
from meshbuild.publish import BundleFile
from meshbuild.release import object_key
from meshbuild.signing import sign_statement
from meshbuild.stores.directory import DirectoryStore
from meshbuild.trust import target_key
from tests.fetching import NOW, CountingStore, Scene, manifest, statement, tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshbuild.stores import ReadableStore

STABLE = "hello/channel.stable.json"
FIRST = "hello/release.1.json"
SECOND = "hello/release.2.json"


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "host"


def fetch(scene: Scene, into: Path, *, store: ReadableStore | None = None, **more: Any) -> VerifiedRelease:
    arguments = {"root": scene.root, "module": "hello", "system": None, "now": NOW, **more}
    return fetch_release(store or scene.store, into=into, **arguments)


def refused(scene: Scene, into: Path, error: type[MeshbuildError], match: str, **more: Any) -> MeshbuildError:
    """Fetch, see it refused with exactly that class, and see that payloads, receipts and floors are as they were."""
    before = lasting(into)
    with pytest.raises(error, match=match) as caught:
        fetch(scene, into, **more)
    assert type(caught.value) is error
    assert lasting(into) == before
    return caught.value


def lasting(into: Path) -> dict[str, bytes]:
    """Every file of the folder but for the lock and TUF's cache; temporary ones included."""
    return {key: data for key, data in tree(into).items() if not (key.startswith("trust/") or key.endswith(".lock"))}


def edited(data: bytes, **changes: Any) -> bytes:
    return canonical_json({**json.loads(data), **changes})


def object_of(scene: Scene, digest: Sha256) -> Path:
    return scene.path(object_key(digest))


class TestGood:
    def test_a_release_is_unpacked_and_described(self, scene: Scene, into: Path) -> None:
        bundle = scene.bundle()
        scene.push(bundle)
        release = fetch(scene, into)
        assert (release.module, release.version, release.sequence) == ("hello", "1.0", 1)
        assert (release.channel, release.serial) == ("stable", 1)
        assert release.release_sha256 == Sha256.of(scene.documents()[FIRST])
        assert release.manifest.document == manifest()
        (artifact,) = release.artifacts
        assert (artifact.artifact, artifact.system, artifact.binary) == ("server", "arch", "server")
        assert artifact.content_sha256 == bundle.info.content_sha256
        assert artifact.builders == (scene.builder.public_key.keyid,)
        assert artifact.folder == into / "payloads" / bundle.info.content_sha256
        assert (artifact.folder / "server").read_text() == "program 1"
        assert os.access(artifact.folder / "server", os.X_OK)
        assert sorted(tree(artifact.folder)) == [".bundle/bundle.json", "server", "share/README"]
        assert [path.name for path in (into / "payloads").iterdir()] == [artifact.content_sha256]

    def test_again_downloads_no_object(self, scene: Scene, into: Path) -> None:
        scene.push()
        first, second = CountingStore(scene.store), CountingStore(scene.store)
        release = fetch(scene, into, store=first)
        before = lasting(into)
        assert len(first.objects) == 2
        assert fetch(scene, into, store=second) == release
        assert second.objects == []
        assert lasting(into) == before

    def test_a_next_release_leaves_the_former_payload(self, scene: Scene, into: Path) -> None:
        scene.push()
        first = fetch(scene, into)
        scene.push(scene.bundle(text="program 2"))
        second = fetch(scene, into)
        assert (second.sequence, second.serial) == (2, 2)
        assert (first.artifacts[0].folder / "server").read_text() == "program 1"
        assert (second.artifacts[0].folder / "server").read_text() == "program 2"

    def test_a_repacked_bundle_of_the_same_content_is_not_downloaded(self, scene: Scene, into: Path) -> None:
        scene.push()
        fetch(scene, into)
        other = scene.bundle()
        document = manifest(slug="renamed")
        scene.push(other, document=document)
        store = CountingStore(scene.store)
        assert fetch(scene, into, store=store).sequence == 2
        assert object_key(other.info.blob_sha256) not in store.objects

    def test_only_the_systems_artifacts_are_downloaded(self, scene: Scene, into: Path) -> None:
        arch, arm = scene.bundle(), scene.bundle(text="program arm", system="arch-arm64")
        scene.push(arch, arm, document=manifest(systems=("arch", "arch-arm64")))
        release = fetch(scene, into, system="arch-arm64")
        assert [each.system for each in release.artifacts] == ["arch-arm64"]
        assert [path.name for path in (into / "payloads").iterdir()] == [arm.info.content_sha256]

    def test_a_channel_of_its_own(self, scene: Scene, into: Path) -> None:
        scene.push()
        scene.push(scene.bundle(text="program 2"), channel="beta")
        assert fetch(scene, into, channel="beta").sequence == 2
        assert fetch(scene, into).sequence == 1

    def test_a_relative_folder_gives_absolute_ones(
        self, scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scene.push()
        monkeypatch.chdir(tmp_path)
        assert fetch(scene, Path("host")).artifacts[0].folder.parent == tmp_path / "host" / "payloads"

    def test_progress_reaches_the_whole_size(self, scene: Scene, into: Path) -> None:
        bundle = scene.bundle(text=os.urandom(3 << 20))
        scene.push(bundle)
        seen: list[tuple[str, int, int]] = []
        fetch(scene, into, progress=lambda *each: seen.append(each))
        size = bundle.info.blob_size_bytes
        assert {(what, total) for what, _, total in seen} == {("hello.server for arch", size)}
        assert [done for _, done, _ in seen] == [1 << 20, 2 << 20, 3 << 20, size]

    def test_nobody_else_makes_a_verified_release(self, scene: Scene, into: Path) -> None:
        scene.push()
        release = fetch(scene, into)
        with pytest.raises(TypeError, match="is made by fetch_release"):
            replace(release, version="2.0", made_by=object())
        with pytest.raises(AttributeError):
            release.version = "2.0"  # type: ignore[misc]


class TestMetadata:
    """Check 1. What python-tuf refuses is tested with `trust`; here, that fetching asks it."""

    def test_another_root_of_trust(self, scene: Scene, into: Path, tmp_path: Path) -> None:
        scene.push()
        (tmp_path / "other").mkdir()
        other = Scene(tmp_path / "other")
        refused(scene, into, TrustError, "can't be trusted", root=other.root)

    @pytest.mark.parametrize("root", [b"", b"{}", b"\x00", b"[]"])
    def test_a_root_that_is_none(self, scene: Scene, into: Path, root: bytes) -> None:
        scene.push()
        refused(scene, into, TrustError, "can't be trusted", root=root)

    def test_expired(self, scene: Scene, into: Path) -> None:
        scene.push()
        refused(scene, into, TrustError, "expired", now=NOW + timedelta(days=46))

    def test_an_older_state_of_the_store(self, scene: Scene, into: Path) -> None:
        scene.push()
        old = scene.path("metadata/timestamp.json").read_bytes()
        scene.push(scene.bundle(text="program 2"))
        fetch(scene, into)
        scene.path("metadata/timestamp.json").write_bytes(old)
        refused(scene, into, TrustError, "version")

    def test_no_store_there(self, scene: Scene, into: Path, tmp_path: Path) -> None:
        with pytest.raises(StoreError):
            fetch(scene, into, store=DirectoryStore(tmp_path / "nothing"))
        assert lasting(into) == {}

    @pytest.mark.parametrize("name", [STABLE, FIRST, "policy.json"])
    @pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data.replace(b"1", b"2", 1)])
    def test_a_document_that_was_changed(
        self, scene: Scene, into: Path, name: str, damage: Callable[[bytes], bytes]
    ) -> None:
        scene.push()
        data = scene.documents()[name]
        scene.path(target_key(name, Sha256.of(data))).write_bytes(damage(data))
        refused(scene, into, ObjectCorruptError, "is not what its metadata says")

    def test_a_document_that_is_missing(self, scene: Scene, into: Path) -> None:
        scene.push()
        (path,) = scene.store.folder.rglob("*.release.1.json")
        path.unlink()
        refused(scene, into, ObjectMissingError, "release.1.json")


class TestPolicy:
    """Check 2."""

    def test_a_module_without_an_entry(self, scene: Scene, into: Path) -> None:
        scene.push()
        scene.seal_anything({"policy.json": canonical_json({"format": 1, "modules": {}})})
        refused(scene, into, PolicyError, "no entry for the module 'hello'")

    def test_a_module_that_the_store_never_heard_of(self, scene: Scene, into: Path) -> None:
        refused(scene, into, PolicyError, "no entry for the module 'hello'")

    def test_no_policy_at_all(self, scene: Scene, into: Path) -> None:
        scene.push()
        scene.seal_anything({"policy.json": None})
        refused(scene, into, PolicyError, "has no policy")

    @pytest.mark.parametrize("name", ["../../etc", "/etc/passwd", "a/b", "", ".", "..", "Hello", "a\nb", "x" * 64])
    def test_hostile_names_are_refused_before_anything_is_read(self, scene: Scene, into: Path, name: str) -> None:
        scene.push()
        store = CountingStore(scene.store)
        with pytest.raises(NoSuchReleaseError, match="no module can have the name"):
            fetch(scene, into, module=name, store=store)
        with pytest.raises(NoSuchReleaseError, match="no channel can have the name"):
            fetch(scene, into, channel=name, store=store)
        assert store.asked == []
        assert not into.exists()


class TestChannel:
    """Check 3."""

    def test_no_such_channel(self, scene: Scene, into: Path) -> None:
        scene.push()
        scene.push(channel="beta")
        error = refused(scene, into, NoSuchReleaseError, "no channel", channel="stabel")
        assert 'there are "beta", "stable"; did you mean "stable"?' in str(error)

    def test_a_document_of_another_module(self, scene: Scene, into: Path) -> None:
        scene.push()
        scene.seal_anything({STABLE: edited(scene.documents()[STABLE], module="other")})
        refused(scene, into, ReleaseError, "holds the document of other/channel.stable.json")

    def test_a_document_of_another_channel(self, scene: Scene, into: Path) -> None:
        scene.push()
        scene.push(scene.bundle(text="program 2"), channel="beta")
        scene.seal_anything({STABLE: scene.documents()["hello/channel.beta.json"]})
        refused(scene, into, ReleaseError, "holds the document of hello/channel.beta.json")

    def test_not_a_document(self, scene: Scene, into: Path) -> None:
        scene.push()
        scene.seal_anything({STABLE: b'{"module":"../../etc"}\n'})
        refused(scene, into, ReleaseError, "channel.stable.json is not valid")

    def test_a_serial_below_the_floor(self, scene: Scene, into: Path) -> None:
        scene.push()
        old = scene.documents()[STABLE]
        scene.push(scene.bundle(text="program 2"))
        fetch(scene, into)
        scene.seal_anything({STABLE: old})
        error = refused(scene, into, RollbackError, "is at serial 1, and this host has accepted 2 before")
        assert "--allow-older" in str(error.hint)

    def test_the_floor_outlives_tufs_cache(self, scene: Scene, into: Path) -> None:
        scene.push()
        old = scene.path("metadata/timestamp.json").read_bytes()
        scene.push(scene.bundle(text="program 2"))
        fetch(scene, into)
        scene.path("metadata/timestamp.json").write_bytes(old)
        for cached in (into / "trust").rglob("trusted.json"):
            cached.unlink()
        refused(scene, into, RollbackError, "is at serial 1")

    def test_the_operator_may_take_an_older_one_and_the_floor_stays(self, scene: Scene, into: Path) -> None:
        scene.push()
        old = scene.documents()[STABLE]
        scene.push(scene.bundle(text="program 2"))
        fetch(scene, into)
        scene.seal_anything({STABLE: old})
        assert fetch(scene, into, allow_older=True).sequence == 1
        refused(scene, into, RollbackError, "is at serial 1")

    def test_one_serial_with_two_releases(self, scene: Scene, into: Path) -> None:
        scene.push()
        scene.push(scene.bundle(text="program 2"), channel="beta")
        fetch(scene, into)
        documents = scene.documents()
        changes = {"release_sequence": 2, "release_sha256": Sha256.of(documents[SECOND])}
        scene.seal_anything({STABLE: edited(documents[STABLE], **changes)})
        refused(scene, into, RollbackError, "under serial 1")

    def test_a_floor_holds_for_its_channel_alone(self, scene: Scene, into: Path) -> None:
        scene.push()
        scene.push(scene.bundle(text="program 2"))
        fetch(scene, into)
        scene.push(channel="beta")
        assert fetch(scene, into, channel="beta").serial == 1


class TestRelease:
    """Check 4."""

    def change(self, scene: Scene, **changes: Any) -> None:
        """Change the release document, and let the channel name what it became."""
        documents = scene.documents()
        data = edited(documents[FIRST], **changes)
        scene.seal_anything({FIRST: data, STABLE: edited(documents[STABLE], release_sha256=Sha256.of(data))})

    def test_another_one_than_the_channel_names(self, scene: Scene, into: Path) -> None:
        scene.push()
        scene.seal_anything({FIRST: edited(scene.documents()[FIRST], version="9.9")})
        refused(scene, into, ReleaseError, "points at the release")

    def test_one_that_the_store_doesnt_list(self, scene: Scene, into: Path) -> None:
        scene.push()
        scene.seal_anything({FIRST: None})
        refused(scene, into, ReleaseError, "points at hello/release.1.json, which the store doesn't list")

    @pytest.mark.parametrize("changes", [{"module": "other"}, {"sequence": 7}])
    def test_of_another_module_or_number(self, scene: Scene, into: Path, changes: dict[str, Any]) -> None:
        scene.push()
        self.change(scene, **changes)
        refused(scene, into, ReleaseError, "release.1.json holds the document of")

    @pytest.mark.parametrize("inner", [{"module": "other"}, {"version": "2.0"}])
    def test_its_manifest_is_of_another(self, scene: Scene, into: Path, inner: dict[str, Any]) -> None:
        scene.push()
        self.change(scene, manifest={**manifest(), **inner})
        refused(scene, into, ReleaseError, r"is of hello 1.0, its manifest of (other 1.0|hello 2.0)")

    @pytest.mark.parametrize("inner", [{"claims": ["not an object"]}, {"module": "../x"}, {"unknown": 1}])
    def test_its_manifest_is_not_valid(self, scene: Scene, into: Path, inner: dict[str, Any]) -> None:
        scene.push()
        self.change(scene, manifest={**manifest(), **inner})
        refused(scene, into, ReleaseError, "its manifest: not a valid manifest")

    def test_a_claim_that_the_policy_doesnt_grant(self, scene: Scene, into: Path) -> None:
        scene.push()
        self.change(scene, manifest=manifest(claims=[{"name": "dns", "scope": "mesh"}]))
        refused(scene, into, ClaimError, "grants that to nobody")

    def test_a_claim_that_another_module_holds(self, scene: Scene, into: Path) -> None:
        claims = [{"name": "dns", "scope": "mesh"}]
        scene.push(scene.bundle(module="other"), document=manifest("other", claims=claims))
        scene.push()
        self.change(scene, manifest=manifest(claims=claims))
        refused(scene, into, ClaimError, "other holds it")

    def test_a_claim_that_is_granted(self, scene: Scene, into: Path) -> None:
        scene.push(document=manifest(claims=[{"name": "dns", "scope": "mesh"}]))
        assert fetch(scene, into).manifest.claims[0].name == "dns"

    def test_artifacts_that_its_manifest_doesnt_declare(self, scene: Scene, into: Path) -> None:
        scene.push()
        artifacts = json.loads(scene.documents()[FIRST])["artifacts"]
        self.change(scene, artifacts=[{**artifacts[0], "binary": "../../../bin/sh"}])
        refused(scene, into, ReleaseError, r"declares server \(\"server\"\) for arch, and it holds")

    def test_lacking_an_artifact_that_its_manifest_declares(self, scene: Scene, into: Path) -> None:
        document = manifest()
        document["build"]["artifacts"].append({**document["build"]["artifacts"][0], "name": "tool"})
        scene.push()
        self.change(scene, manifest=document)
        refused(scene, into, ReleaseError, 'and it holds server \\("server"\\)$')


class TestSystem:
    def test_the_only_one_is_taken(self, scene: Scene, into: Path) -> None:
        scene.push(scene.bundle(system="alpine"), document=manifest(systems=("alpine",)))
        assert fetch(scene, into).artifacts[0].system == "alpine"

    def test_one_that_isnt_there(self, scene: Scene, into: Path) -> None:
        scene.push()
        error = refused(scene, into, NoSuchReleaseError, "not there for the system", system="arhc")
        assert 'it is for: arch; did you mean "arch"?' in str(error)

    def test_several_and_none_named(self, scene: Scene, into: Path) -> None:
        scene.push(scene.bundle(), scene.bundle(system="arch-arm64"), document=manifest(systems=("arch", "arch-arm64")))
        error = refused(scene, into, NoSuchReleaseError, "for several systems: arch, arch-arm64")
        assert "--system" in str(error.hint)


class TestStatements:
    """Check 5: before any bundle is downloaded."""

    def refused_undownloaded(self, scene: Scene, into: Path, error: type[MeshbuildError], match: str) -> None:
        store = CountingStore(scene.store)
        refused(scene, into, error, match, store=store)
        assert len(store.objects) <= 1

    def change(self, scene: Scene, statements: bytes) -> None:
        """Let the release name other statements."""
        documents = scene.documents()
        release = json.loads(documents[FIRST])
        changes = {"statements_sha256": Sha256.of(statements), "statements_size_bytes": len(statements)}
        data = edited(documents[FIRST], artifacts=[{**release["artifacts"][0], **changes}])
        scene.store.create(object_key(Sha256.of(statements)), statements)
        scene.seal_anything({FIRST: data, STABLE: edited(documents[STABLE], release_sha256=Sha256.of(data))})

    @pytest.mark.parametrize(
        "damage", [lambda data: data[:-1], lambda _: b"", lambda data: data[:9] + b"A" + data[10:]]
    )
    def test_truncated_or_altered(self, scene: Scene, into: Path, damage: Callable[[bytes], bytes]) -> None:
        bundle = scene.bundle()
        scene.push(bundle)
        path = object_of(scene, Sha256.of(bundle.info.statements))
        path.write_bytes(damage(path.read_bytes()))
        self.refused_undownloaded(scene, into, ObjectCorruptError, "truncated or altered")

    def test_longer(self, scene: Scene, into: Path) -> None:
        bundle = scene.bundle()
        scene.push(bundle)
        path = object_of(scene, Sha256.of(bundle.info.statements))
        path.write_bytes(path.read_bytes() + b"\n")
        self.refused_undownloaded(scene, into, ObjectCorruptError, "longer than")

    def test_missing(self, scene: Scene, into: Path) -> None:
        bundle = scene.bundle()
        scene.push(bundle)
        object_of(scene, Sha256.of(bundle.info.statements)).unlink()
        self.refused_undownloaded(scene, into, ObjectMissingError, "there is no objects/sha256/")

    def test_of_a_foreign_builder(self, scene: Scene, into: Path) -> None:
        bundle = scene.bundle()
        scene.push(bundle)
        said = statement(bundle.info.content_sha256, {each.path: each.sha256 for each in bundle.info.listing.files})
        self.change(scene, canonical_json(sign_statement(said, CryptoSigner.generate_ed25519())))
        self.refused_undownloaded(scene, into, UntrustedBuilderError, r"hello.server for arch: 1 trusted builder has")

    def test_with_a_signature_that_isnt_the_trusted_builders(self, scene: Scene, into: Path) -> None:
        bundle = scene.bundle()
        scene.push(bundle)
        envelope = json.loads(bundle.info.statements)
        envelope["signatures"][0]["sig"] = "A" * 86 + "=="
        self.change(scene, canonical_json(envelope))
        self.refused_undownloaded(scene, into, SignatureError, "is not valid")

    def test_about_another_content(self, scene: Scene, into: Path) -> None:
        scene.push()
        self.change(scene, scene.bundle(text="program 2").info.statements)
        self.refused_undownloaded(scene, into, SignatureError, "speaks of something else")

    def test_none_at_all(self, scene: Scene, into: Path) -> None:
        scene.push()
        self.change(scene, b"")
        self.refused_undownloaded(scene, into, SignatureError, "no signed statement")

    def test_about_other_files_than_the_bundle_holds(self, scene: Scene, into: Path) -> None:
        bundle = scene.bundle()
        scene.push(bundle)
        said = statement(bundle.info.content_sha256, {"server": Sha256.of(b"another")})
        self.change(scene, canonical_json(sign_statement(said, scene.builder)))
        refused(scene, into, SignatureError, "are not those that the release names")

    def test_about_other_files_than_a_payload_that_is_there_already(self, scene: Scene, into: Path) -> None:
        bundle = scene.bundle()
        scene.push(bundle)
        fetch(scene, into)
        said = statement(bundle.info.content_sha256, {"server": Sha256.of(b"another")})
        self.change(scene, canonical_json(sign_statement(said, scene.builder)))
        refused(scene, into, SignatureError, "speak of other files than it holds", allow_older=True)

    def test_by_fewer_builders_than_needed(self, scene: Scene, into: Path) -> None:
        scene.push()
        fetch(scene, into)
        policy = json.loads(scene.documents()["policy.json"])
        policy["modules"]["hello"]["builders_needed"] = 2
        scene.seal_anything({"policy.json": canonical_json(policy)})
        refused(scene, into, UntrustedBuilderError, "2 trusted builders have to vouch")

    def test_a_builder_who_lost_the_policys_trust_since(self, scene: Scene, into: Path, tmp_path: Path) -> None:
        scene.push()
        fetch(scene, into)
        (tmp_path / "other").mkdir()
        other = Scene(tmp_path / "other")
        other.push()
        scene.seal_anything({"policy.json": other.documents()["policy.json"]})
        refused(scene, into, UntrustedBuilderError, "trusted builder")

    def test_damaged_ones_in_the_receipt_are_read_from_the_store(self, scene: Scene, into: Path) -> None:
        bundle = scene.bundle()
        scene.push(bundle)
        release = fetch(scene, into)
        kept = release.receipt / object_key(Sha256.of(bundle.info.statements))
        kept.write_bytes(b"{}\n")
        assert fetch(scene, into) == release
        assert kept.read_bytes() == bundle.info.statements


class TestBlob:
    """Check 6."""

    def test_missing(self, scene: Scene, into: Path) -> None:
        bundle = scene.bundle()
        scene.push(bundle)
        object_of(scene, bundle.info.blob_sha256).unlink()
        refused(scene, into, ObjectMissingError, "there is no objects/sha256/")

    @pytest.mark.parametrize("left", [0, 1, 100])
    def test_truncated(self, scene: Scene, into: Path, left: int) -> None:
        bundle = scene.bundle()
        scene.push(bundle)
        path = object_of(scene, bundle.info.blob_sha256)
        path.write_bytes(path.read_bytes()[:left])
        refused(scene, into, ObjectCorruptError, f"is truncated: {left} of {bundle.info.blob_size_bytes} bytes")

    def test_altered(self, scene: Scene, into: Path) -> None:
        bundle = scene.bundle()
        scene.push(bundle)
        path = object_of(scene, bundle.info.blob_sha256)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        refused(scene, into, ObjectCorruptError, "is altered: its sha256 is")

    def test_swapped_for_another_builders_whole_bundle(self, scene: Scene, into: Path) -> None:
        bundle = scene.bundle()
        scene.push(bundle)
        other = scene.bundle(text="evil", signer=CryptoSigner.generate_ed25519())
        object_of(scene, bundle.info.blob_sha256).write_bytes(other.path.read_bytes())
        refused(scene, into, ObjectCorruptError, r"altered|truncated|goes on")

    def test_longer(self, scene: Scene, into: Path) -> None:
        bundle = scene.bundle()
        scene.push(bundle)
        with object_of(scene, bundle.info.blob_sha256).open("ab") as file:
            file.truncate(1 << 36)  # sparse; one byte more than allowed is read of it
        refused(scene, into, ObjectCorruptError, "goes on behind the")

    def test_content_over_the_callers_limit_is_not_downloaded(self, scene: Scene, into: Path) -> None:
        bundle = scene.bundle()
        scene.push(bundle)
        store = CountingStore(scene.store)
        limit = bundle.info.content_size_bytes - 1
        refused(scene, into, BundleLimitError, f"more than the {limit} allowed", max_content_bytes=limit, store=store)
        assert object_key(bundle.info.blob_sha256) not in store.asked


class TestContent:
    """Check 7: a bundle that is what the release says it is, byte for byte, and yet isn't the right one."""

    def lie(self, scene: Scene, bundle: BundleFile, **info: Any) -> None:
        """Publish a release that tells something else of a bundle than is true."""
        scene.push(BundleFile(bundle.path, replace(bundle.info, **info)))

    def test_another_content_than_the_release_and_its_statements_name(self, scene: Scene, into: Path) -> None:
        claimed, evil = scene.bundle(), scene.bundle(text="evil")
        lie = replace(
            evil.info,
            content_sha256=claimed.info.content_sha256,
            content_size_bytes=evil.info.content_size_bytes,
            statements=claimed.info.statements,
        )
        scene.push(BundleFile(evil.path, lie))
        error = refused(scene, into, BundleDigestError, f"expected was {claimed.info.content_sha256}")
        assert str(error).startswith(f"hello.server for arch, bundle {evil.info.blob_sha256}: ")

    def test_more_content_than_the_release_says(self, scene: Scene, into: Path) -> None:
        bundle = scene.bundle()
        self.lie(scene, bundle, content_size_bytes=bundle.info.content_size_bytes - 1)
        refused(scene, into, BundleLimitError, "more than the")

    def test_less_content_than_the_release_says(self, scene: Scene, into: Path) -> None:
        bundle = scene.bundle()
        self.lie(scene, bundle, content_size_bytes=bundle.info.content_size_bytes + 1)
        refused(scene, into, ReleaseError, "the release says")

    @pytest.mark.parametrize(
        "other", [{"module": "other"}, {"artifact": "tool"}, {"version": "0.9"}, {"system": "arch-arm64"}]
    )
    def test_of_another_identity(self, scene: Scene, into: Path, other: dict[str, str]) -> None:
        foreign = scene.bundle(**other)
        names = {"module": "hello", "artifact": "server", "version": "1.0", "system": "arch"}
        self.lie(scene, foreign, listing=replace(foreign.info.listing, **names))
        refused(scene, into, ReleaseError, "expected a bundle of")

    def test_of_another_binary(self, scene: Scene, into: Path) -> None:
        foreign = scene.bundle(binary="worker")
        self.lie(scene, foreign, listing=replace(foreign.info.listing, binary="server"))
        refused(scene, into, ReleaseError, 'found one of .* "worker"$')

    def test_not_a_bundle(self, scene: Scene, into: Path, tmp_path: Path) -> None:
        bundle = scene.bundle()
        path = tmp_path / "text"
        path.write_text("not a bundle")
        info = replace(bundle.info, blob_sha256=Sha256.of_file(path), blob_size_bytes=12)
        scene.push(BundleFile(path, info))
        with pytest.raises(MeshbuildError, match="does not start with a zstd frame") as caught:
            fetch(scene, into)
        assert str(into) not in str(caught.value)
        assert lasting(into) == {}


class TestPayload:
    def damage_and_heal(self, scene: Scene, into: Path, damage: Callable[[Path], None]) -> list[str]:
        bundle = scene.bundle()
        scene.push(bundle)
        folder = fetch(scene, into).artifacts[0].folder
        before = lasting(into)
        damage(folder)
        said: list[str] = []
        store = CountingStore(scene.store)
        fetch(scene, into, report=said.append, store=store)
        assert lasting(into) == before
        assert store.objects == [object_key(bundle.info.blob_sha256)]
        return said

    def test_a_changed_file(self, scene: Scene, into: Path) -> None:
        (said,) = self.damage_and_heal(scene, into, lambda folder: (folder / "server").write_text("program X") and None)
        assert said.startswith("fetching hello.server for arch again: ")

    def test_a_missing_file(self, scene: Scene, into: Path) -> None:
        self.damage_and_heal(scene, into, lambda folder: (folder / "share/README").unlink())

    def test_a_file_too_many(self, scene: Scene, into: Path) -> None:
        self.damage_and_heal(scene, into, lambda folder: (folder / "libevil.so").touch())

    def test_a_changed_mode(self, scene: Scene, into: Path) -> None:
        self.damage_and_heal(scene, into, lambda folder: (folder / "server").chmod(0o4755))
        assert stat.S_IMODE(next(into.glob("payloads/*/server")).stat().st_mode) == 0o755

    def test_a_file_that_became_a_link(self, scene: Scene, into: Path) -> None:
        def link(folder: Path) -> None:
            (folder / "server").rename(folder.parent.parent / "elsewhere")
            (folder / "server").symlink_to(folder.parent.parent / "elsewhere")

        bundle = scene.bundle()
        scene.push(bundle)
        folder = fetch(scene, into).artifacts[0].folder
        link(folder)
        fetch(scene, into)
        assert not (folder / "server").is_symlink()

    def test_a_folder_that_became_a_link_to_a_whole_copy(self, scene: Scene, into: Path, tmp_path: Path) -> None:
        scene.push()
        folder = fetch(scene, into).artifacts[0].folder
        folder.rename(tmp_path / "copy")
        folder.symlink_to(tmp_path / "copy")
        fetch(scene, into)
        assert not folder.is_symlink()
        assert sorted(tree(tmp_path / "copy")) == sorted(tree(folder))

    def test_a_damaged_one_stays_when_the_store_cant_heal_it(self, scene: Scene, into: Path) -> None:
        bundle = scene.bundle()
        scene.push(bundle)
        (fetch(scene, into).artifacts[0].folder / "server").write_text("program X")
        object_of(scene, bundle.info.blob_sha256).unlink()
        refused(scene, into, ObjectMissingError, "there is no objects")


class TestReceipt:
    def test_is_a_store_that_the_same_release_is_verified_from(self, scene: Scene, into: Path) -> None:
        scene.push()
        release = fetch(scene, into)
        assert {key for key in tree(release.receipt) if key.startswith("objects/")} == {
            object_key(Sha256.of(scene.bundle().info.statements))
        }
        for key, data in tree(release.receipt).items():
            assert scene.path(key).read_bytes() == data
        scene.store.folder.rename(scene.folder / "gone")
        before = lasting(into)
        assert verify_receipt(into, root=scene.root, module="hello", system="arch", now=NOW) == release
        assert lasting(into) == before

    def test_holds_no_other_modules_files(self, scene: Scene, into: Path) -> None:
        scene.push()
        scene.push(scene.bundle(module="other"), document=manifest("other"))
        fetch(scene, into, module="other")
        fetch(scene, into)
        assert not [key for key in tree(into / "receipts" / "hello") if "other" in key]

    def test_keeps_to_one_release(self, scene: Scene, into: Path) -> None:
        scene.push()
        fetch(scene, into)
        scene.push(scene.bundle(text="program 2"))
        receipt = tree(fetch(scene, into).receipt)
        assert len([key for key in receipt if key.endswith(".snapshot.json")]) == 1
        assert [key.rpartition(".release.")[2] for key in receipt if ".release." in key] == ["2.json"]
        assert len([key for key in receipt if key.startswith("objects/")]) == 1

    def test_keeps_the_statements_of_systems_fetched_earlier(self, scene: Scene, into: Path) -> None:
        bundles = scene.bundle(), scene.bundle(text="program arm", system="arch-arm64")
        scene.push(*bundles, document=manifest(systems=("arch", "arch-arm64")))
        fetch(scene, into, system="arch")
        fetch(scene, into, system="arch-arm64")
        for system in ("arch", "arch-arm64"):
            assert verify_receipt(into, root=scene.root, module="hello", system=system, now=NOW).artifacts

    def test_an_expired_timestamp_and_snapshot_are_reported(self, scene: Scene, into: Path) -> None:
        scene.push()
        release = fetch(scene, into)
        said: list[str] = []
        later = NOW + timedelta(days=100)
        again = verify_receipt(into, root=scene.root, module="hello", system=None, now=later, report=said.append)
        assert again == release
        assert [line.split(" has expired")[0] for line in said] == [
            "the receipt's metadata/2.snapshot.json",
            "the receipt's metadata/timestamp.json",
        ]

    def test_an_expired_root_is_refused(self, scene: Scene, into: Path) -> None:
        scene.push()
        fetch(scene, into)
        later = NOW + timedelta(days=3 * 365)
        with pytest.raises(TrustError, match=r"root\.json has expired"):
            verify_receipt(into, root=scene.root, module="hello", system=None, now=later)

    def test_a_damaged_payload_is_refused(self, scene: Scene, into: Path) -> None:
        scene.push()
        (fetch(scene, into).artifacts[0].folder / "server").write_text("program X")
        with pytest.raises(BundleDigestError):
            verify_receipt(into, root=scene.root, module="hello", system=None, now=NOW)

    def test_an_older_receipt_than_the_floor_is_refused(self, scene: Scene, into: Path, tmp_path: Path) -> None:
        scene.push()
        old = fetch(scene, tmp_path / "old host")
        scene.push(scene.bundle(text="program 2"))
        new = fetch(scene, into)
        new.receipt.rename(tmp_path / "moved")
        old.receipt.rename(new.receipt)
        with pytest.raises(RollbackError, match="is at serial 1, and this host has accepted 2"):
            verify_receipt(into, root=scene.root, module="hello", system=None, now=NOW)

    def test_every_altered_file_is_refused(self, scene: Scene, into: Path) -> None:
        scene.push()
        receipt = fetch(scene, into).receipt
        for key, data in tree(receipt).items():
            if key == "metadata/1.root.json":
                continue  # the root of trust itself, which is the operator's to give
            (receipt / key).write_bytes(data.replace(b"a", b"b", 1))
            with pytest.raises(MeshbuildError):
                verify_receipt(into, root=scene.root, module="hello", system=None, now=NOW)
            (receipt / key).write_bytes(data)

    def test_verifying_waits_for_no_fetch(self, scene: Scene, into: Path) -> None:
        scene.push()
        release = fetch(scene, into)
        with HostFolder(into).locked(pytest.fail):
            assert verify_receipt(into, root=scene.root, module="hello", system=None, now=NOW) == release

    def test_none_there(self, scene: Scene, into: Path) -> None:
        with pytest.raises(NoSuchReleaseError, match="has no receipt"):
            verify_receipt(into, root=scene.root, module="hello", system=None, now=NOW)
        assert not into.exists()


class TestRoots:
    def test_a_second_store_has_floors_of_its_own(self, scene: Scene, into: Path, tmp_path: Path) -> None:
        scene.push()
        scene.push(scene.bundle(text="program 2"))
        fetch(scene, into)
        (tmp_path / "other").mkdir()
        other = Scene(tmp_path / "other")
        other.push()
        assert fetch(other, into).serial == 1
        assert fetch(scene, into).serial == 2

    def test_a_newer_root_of_the_same_store_keeps_its_floors(self, scene: Scene, into: Path) -> None:
        scene.push()
        old = scene.documents()[STABLE]
        scene.push(scene.bundle(text="program 2"))
        newer: Metadata[Root] = Metadata.from_bytes(scene.root)
        newer.signed.version = 2
        assert scene.keys.root is not None
        newer.sign(scene.keys.root)
        assert scene.store.create("metadata/2.root.json", newer.to_bytes())
        release = fetch(scene, into)
        assert "metadata/2.root.json" in tree(release.receipt)
        scene.seal_anything({STABLE: old})
        refused(scene, into, RollbackError, "is at serial 1", root=newer.to_bytes())
        assert len(list((into / "trust").iterdir())) == 1


class TestLocal:
    def test_too_little_space_is_said_before_the_download(self, scene: Scene, into: Path) -> None:
        bundle = scene.bundle()
        scene.push(BundleFile(bundle.path, replace(bundle.info, content_size_bytes=1 << 52)))
        store = CountingStore(scene.store)
        refused(scene, into, LocalFileError, "too little space in", store=store, max_content_bytes=1 << 53)
        assert object_key(bundle.info.blob_sha256) not in store.asked

    @pytest.mark.parametrize("limit", [100_000, 2_000_000, 9_900_000])
    def test_a_disk_that_fills_up_midway_leaves_nothing(self, scene: Scene, into: Path, limit: int) -> None:
        # A file size limit cuts writes short, then fails them, as a full disk does. The first limit hits the download's
        # last chunk, the second the content's middle, the third the content's last chunk.
        scene.push(scene.bundle(text=os.urandom(1_000_000) + bytes(9_000_000)))
        done = run_fetch(
            scene, into, before=f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit},) * 2)"
        )
        assert "LocalFileError: could not " in done.stderr
        assert lasting(into) == {}
        assert fetch(scene, into).sequence == 1

    def test_a_folder_that_cant_be_written(self, scene: Scene, tmp_path: Path) -> None:
        scene.push()
        (tmp_path / "file").write_text("")
        with pytest.raises(LocalFileError, match="could not write the host folder"):
            fetch(scene, tmp_path / "file" / "host")

    def test_the_umask_changes_nothing(self, scene: Scene, into: Path) -> None:
        scene.push()
        assert run_fetch(scene, into, before="import os; os.umask(0o077)").returncode == 0
        open_to_all = [
            into,
            *(path for part in ("payloads", "receipts", "floors") for path in (into / part).rglob("*")),
        ]
        executable = set(into.glob("payloads/*/server"))
        for path in open_to_all:
            wanted = 0o755 if path.is_dir() or path in executable else 0o644
            assert (path, stat.S_IMODE(path.stat().st_mode)) == (path, wanted)

    def test_several_at_once_all_succeed(self, scene: Scene, into: Path) -> None:
        scene.push(scene.bundle(text=os.urandom(2 << 20)))
        running = [start_fetch(scene, into) for _ in range(4)]
        for process in running:
            _, said = process.communicate(timeout=60)
            assert (process.returncode, said) == (0, "")
        fetch(scene, into)
        assert len(list((into / "payloads").iterdir())) == 1


FETCH = """
import sys
from datetime import datetime
from pathlib import Path
from meshbuild.fetch import fetch_release
from meshbuild.stores.directory import DirectoryStore
{before}
store, root, into, now = sys.argv[1:]
fetch_release(DirectoryStore(store), root=Path(root).read_bytes(), module="hello", system=None, into=Path(into),
              now=datetime.fromisoformat(now))
"""


def start_fetch(scene: Scene, into: Path, *, before: str = "") -> subprocess.Popen[str]:
    root = scene.folder / "root.json"
    root.write_bytes(scene.root)
    arguments = [scene.store.folder, root, into, NOW.isoformat()]
    return subprocess.Popen(
        [sys.executable, "-c", FETCH.format(before=before), *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_fetch(scene: Scene, into: Path, *, before: str = "") -> subprocess.CompletedProcess[str]:
    with start_fetch(scene, into, before=before) as process:
        _, said = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, "", said)
