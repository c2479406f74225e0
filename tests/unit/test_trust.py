"""A store's metadata, as a host and as a publisher take it."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import Metadata, TargetFile
from tuf.ngclient import Updater
from tuf.ngclient._internal.trusted_metadata_set import TrustedMetadataSet

from meshbuild.errors import LocalFileError, ObjectCorruptError, ObjectMissingError, StoreError, TrustError
from meshbuild.stores.directory import DirectoryStore
from meshbuild.trust import MAX_METADATA_BYTES, TIMESTAMP_KEY, load_state, open_view
from tests.fetching import NOW, Scene, manifest

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from tuf.api.metadata import Timestamp


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(tmp_path)
    scene.push()
    return scene


def look(scene: Scene, now: datetime = NOW, cache: str = "cache") -> bytes | None:
    """Verify the store with a host's cache, and read the channel's document."""
    with open_view(scene.store, root=scene.root, cache=scene.folder / cache, now=now) as view:
        return view.document("hello/channel.stable.json")


def test_documents_are_found_by_name_and_an_unknown_one_is_none(scene: Scene) -> None:
    with open_view(scene.store, root=scene.root, cache=scene.folder / "cache", now=NOW) as view:
        assert view.document("hello/release.1.json")
        assert view.document("hello/release.9.json") is None
        assert view.document("../../etc/passwd") is None
        assert view.names("hello") == ["hello/channel.stable.json", "hello/release.1.json"]
        assert view.names("other") == []
        assert {TIMESTAMP_KEY, "metadata/1.root.json", "metadata/1.m.hello.json"} <= set(view.files)


def test_an_older_timestamp_is_refused_once_a_newer_one_was_seen(scene: Scene) -> None:
    older = scene.path(TIMESTAMP_KEY).read_bytes()
    scene.push(scene.bundle(text="program 2"))
    newer = look(scene)
    scene.path(TIMESTAMP_KEY).write_bytes(older)
    with pytest.raises(TrustError, match="can't be trusted"):
        look(scene)
    assert look(scene, cache="another host's") != newer


def test_what_failed_to_verify_is_not_remembered(scene: Scene) -> None:
    look(scene)
    remembered = (scene.folder / "cache/trusted.json").read_bytes()
    scene.push(scene.bundle(text="program 2"))
    scene.path("metadata/3.snapshot.json").write_bytes(b"{}")
    with pytest.raises(TrustError):
        look(scene)
    assert (scene.folder / "cache/trusted.json").read_bytes() == remembered


def test_an_expired_timestamp_is_refused_and_a_clock_put_back_does_not_help(scene: Scene) -> None:
    look(scene, NOW + timedelta(days=44))
    with pytest.raises(TrustError, match="expired"):
        look(scene, NOW + timedelta(days=46))
    with open_view(scene.store, root=scene.root, cache=scene.folder / "cache", now=NOW) as view:
        assert view.time == NOW + timedelta(days=44)


def test_a_publisher_takes_what_has_expired_and_renews_it(scene: Scene) -> None:
    scene.now = NOW + timedelta(days=80)
    scene.push(scene.bundle(text="program 2"))
    assert look(scene, NOW + timedelta(days=120))


@pytest.mark.parametrize(
    "key", [TIMESTAMP_KEY, "metadata/2.snapshot.json", "metadata/2.targets.json", "metadata/1.m.hello.json"]
)
def test_a_changed_byte_is_refused_by_hosts_and_publishers(scene: Scene, key: str) -> None:
    data = bytearray(scene.path(key).read_bytes())
    at = data.index(b'"expires"') + 20
    data[at] ^= 1
    scene.path(key).write_bytes(data)
    with pytest.raises(TrustError):
        look(scene)
    with pytest.raises(TrustError):
        load_state(scene.store, root=scene.root, modules=["hello"])


def test_a_module_cannot_speak_for_another_even_with_the_online_keys(scene: Scene) -> None:
    hello = look(scene)
    scene.publisher = CryptoSigner.generate_ed25519()
    scene.push(scene.bundle(module="other"), document=manifest("other"))
    forged = {"hello/channel.stable.json": b"forged", "hello/release.2.json": b"forged", "policy.json2": b"forged"}
    scene.seal_anything(forged, module="other")
    with open_view(scene.store, root=scene.root, cache=scene.folder / "cache", now=NOW) as view:
        assert view.document("hello/channel.stable.json") == hello
        assert view.document("hello/release.2.json") is None
        assert view.document("policy.json2") is None
        assert view.names("hello") == ["hello/channel.stable.json", "hello/release.1.json"]
        assert view.names("other") == ["other/channel.stable.json", "other/release.1.json"]
    before = {path: path.read_bytes() for path in (scene.folder / "cache").iterdir()}
    scene.seal_anything({}, module="hello")  # hello's role, signed with the key of other
    with (
        pytest.raises(TrustError, match=r"m\.hello was signed by 0/1 keys"),
        open_view(scene.store, root=scene.root, cache=scene.folder / "cache", now=NOW) as view,
    ):
        view.document("hello/channel.stable.json")
    assert {path: path.read_bytes() for path in (scene.folder / "cache").iterdir()} == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("metadata/1.m.hello.json", "metadata/2.m.hello.json"),
        ("metadata/2.snapshot.json", "metadata/3.snapshot.json"),
        ("metadata/1.targets.json", "metadata/2.targets.json"),
    ],
)
def test_older_metadata_under_a_newer_name_is_refused(scene: Scene, old: str, new: str) -> None:
    scene.push(scene.bundle(text="program 2"))
    scene.path(new).write_bytes(scene.path(old).read_bytes())
    with pytest.raises(TrustError):
        look(scene)
    with pytest.raises(TrustError):
        load_state(scene.store, root=scene.root, modules=["hello"])


def test_a_timestamp_signed_with_another_roles_key_is_refused(scene: Scene) -> None:
    forged: Metadata[Timestamp] = Metadata.from_bytes(scene.path(TIMESTAMP_KEY).read_bytes())
    forged.signed.version += 1
    for signer in (scene.keys.snapshot, scene.keys.targets, scene.publisher, CryptoSigner.generate_ed25519()):
        assert signer is not None
        forged.sign(signer)
        scene.path(TIMESTAMP_KEY).write_bytes(forged.to_bytes())
        with pytest.raises(TrustError, match="timestamp was signed by 0/1 keys"):
            look(scene)


def test_metadata_that_never_ends_is_cut_off(scene: Scene) -> None:
    with scene.path("metadata/2.snapshot.json").open("ab") as file:
        file.truncate(MAX_METADATA_BYTES + 1)
    with pytest.raises(ObjectCorruptError, match=r"2\.snapshot\.json is longer than"):
        look(scene)


def test_an_altered_document_is_told_from_a_missing_one(scene: Scene) -> None:
    path = next(path for path in scene.files() if path.name.endswith("channel.stable.json"))
    path.write_bytes(path.read_bytes().replace(b'"serial":1', b'"serial":9'))
    with pytest.raises(ObjectCorruptError, match="is not what its metadata says"):
        look(scene)
    path.unlink()
    with pytest.raises(ObjectMissingError):
        look(scene)


def test_a_document_without_a_sha256_is_refused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "hello/channel.stable.json"
    monkeypatch.setattr(
        "tests.fetching.TargetFile", lambda length, _hashes, path: TargetFile(length, {"x": "00"}, path)
    )
    scene.seal_anything({name: b"{}"})
    with pytest.raises(TrustError, match=f"names no sha256 of {name}"):
        look(scene)


def test_a_store_of_another_root_is_refused(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    other = Scene(tmp_path / "two")
    with (
        pytest.raises(TrustError),
        open_view(scene.store, root=other.root, cache=tmp_path / "cache", now=NOW) as view,
    ):
        view.document("policy.json")
    assert not (tmp_path / "cache/trusted.json").exists()


def test_a_place_that_is_no_store_is_said_to_be_none(tmp_path: Path, scene: Scene) -> None:
    with pytest.raises(StoreError, match="is not a store yet"):
        load_state(DirectoryStore(tmp_path / "empty"), root=scene.root, modules=[])


def test_a_damaged_memory_is_an_error_and_not_a_fresh_start(scene: Scene) -> None:
    look(scene)
    (scene.folder / "cache/trusted.json").write_bytes(b'{"timestamp.json": "x')
    with pytest.raises(LocalFileError, match="what was trusted before can't be read"):
        look(scene)


def test_the_inner_parts_of_python_tuf_that_are_used_are_still_there() -> None:
    assert "_trusted_set = TrustedMetadataSet(" in inspect.getsource(Updater.__init__)
    source = inspect.getsource(TrustedMetadataSet)
    assert "self.reference_time" in inspect.getsource(TrustedMetadataSet.__init__)
    assert "is_expired(self.reference_time)" in source
    for name in ("update_root", "update_timestamp", "update_snapshot", "update_targets", "update_delegated_targets"):
        assert callable(getattr(TrustedMetadataSet, name))
