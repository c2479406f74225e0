"""Keeping a store: signing anew, checking all of it, removing what nothing needs."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from securesystemslib.signer import CryptoSigner

from meshbuild.digests import Sha256
from meshbuild.errors import ObjectMissingError, StoreBusyError, StoreError, TrustError
from meshbuild.fetch import fetch_release
from meshbuild.release import PolicyDocument, object_key
from meshbuild.repository import GRACE_S
from meshbuild.signing import public_pem
from meshbuild.stores.directory import DirectoryStore
from meshbuild.trust import TIMESTAMP_KEY, load_state
from meshbuild.upkeep.check import Repair, check_store
from meshbuild.upkeep.garbage import find_garbage, remove_garbage
from meshbuild.upkeep.refresh import refresh
from tests.fetching import NOW, Scene

if TYPE_CHECKING:
    from pathlib import Path

    from meshbuild.upkeep.check import Report
    from meshbuild.upkeep.refresh import Refreshed

DAY = timedelta(days=1)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(tmp_path)
    made.push()
    return made


def refreshed(scene: Scene, *, days: int, within: int = 30) -> Refreshed:
    return refresh(scene.store, root=scene.root, keys=scene.keys, within=within * DAY, now=NOW + days * DAY)


def checked(scene: Scene, *, days: int = 0, soon: int = 30, second: DirectoryStore | None = None) -> Report:
    repair = Repair(scene.store, second) if second else None
    return check_store(scene.store, root=scene.root, now=NOW + days * DAY, soon=soon * DAY, repair=repair)


def problems(report: Report) -> dict[str, str]:
    return {finding.where: finding.problem for finding in report.findings}


def grow_old(scene: Scene, *, seconds: float) -> None:
    """As if all that is in the store had been put there so long ago."""
    for path in scene.files():
        then = path.stat().st_mtime - seconds
        os.utime(path, (then, then))


# --- refresh


def test_nothing_is_signed_before_it_is_due(scene: Scene) -> None:
    before = scene.files()
    done = refreshed(scene, days=14)
    assert not done.signed
    assert done.expires["timestamp"] == NOW.replace(microsecond=0) + 45 * DAY
    assert scene.files() == before


@pytest.mark.parametrize("days", [16, 44, 46, 400])
def test_what_expires_soon_or_has_expired_is_signed_anew(scene: Scene, days: int) -> None:
    done = refreshed(scene, days=days)
    assert done.signed
    assert done.expires["timestamp"] == NOW.replace(microsecond=0) + (days + 45) * DAY
    assert done.expires["snapshot"] == NOW.replace(microsecond=0) + (days + 90) * DAY
    assert checked(scene, days=days).clean


def test_it_needs_no_key_but_the_online_ones(scene: Scene) -> None:
    scene.keys = replace(scene.keys, root=None, targets=None)
    assert refreshed(scene, days=40).signed


def test_a_wrong_online_key_signs_nothing_that_hosts_would_refuse(scene: Scene) -> None:
    before = scene.path(TIMESTAMP_KEY).read_bytes()
    scene.keys = replace(scene.keys, timestamp=CryptoSigner.generate_ed25519())
    with pytest.raises(TrustError, match="hosts would refuse"):
        refreshed(scene, days=40)
    assert scene.path(TIMESTAMP_KEY).read_bytes() == before


def test_a_refresh_that_a_push_outruns_starts_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    swap, calls = scene.store.swap, 0

    def outrun(key: str, data: bytes, *, expected: bytes | None) -> bool:
        nonlocal calls
        calls += 1
        if calls == 1:
            monkeypatch.setattr(scene.store, "swap", swap)
            scene.push(scene.bundle(text="program 2"))
        return swap(key, data, expected=expected)

    monkeypatch.setattr(scene.store, "swap", outrun)
    refreshed(scene, days=40)
    assert calls == 1
    assert checked(scene, days=40).releases == 2


def test_a_refresh_that_is_always_outrun_says_so(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene.store, "swap", lambda *_args, **_kwargs: False)
    with pytest.raises(StoreBusyError, match="each push refreshes too"):
        refreshed(scene, days=40)


# --- check


def test_a_sound_store_has_nothing_to_say(scene: Scene) -> None:
    scene.push(scene.bundle(text="program 2"), channel="beta")
    report = checked(scene)
    assert (report.clean, report.findings, report.modules, report.releases) == (True, [], 1, 2)
    assert report.expires == {}
    in_use = [path for path in scene.files() if ".root.json" not in path.name and path.name != "timestamp.json"]
    stale = 2 + 1 + 2 + 1  # snapshots 1 and 2, targets 1, policy of targets 1, role 1: replaced since
    assert report.files >= len(in_use) - stale


def damaged_keys(scene: Scene) -> dict[str, Path]:
    """A file of each kind."""
    state = load_state(scene.store, root=scene.root, modules=["hello"])
    bundle = scene.bundle()
    found = {
        f"metadata/{state.timestamp.snapshot_meta.version}.snapshot.json": None,
        f"metadata/{state.snapshot.meta['targets.json'].version}.targets.json": None,
        f"metadata/{state.snapshot.meta['m.hello.json'].version}.m.hello.json": None,
        object_key(bundle.info.blob_sha256): None,
        object_key(Sha256.of(bundle.info.statements)): None,
    }
    keys = [
        *found,
        *(path.relative_to(scene.store.folder).as_posix() for path in scene.path("targets/hello").iterdir()),
    ]
    return {key: scene.path(key) for key in keys}


@pytest.mark.parametrize(
    ("damage", "said"),
    [(None, "missing"), (b"", "short: 0 of"), (b"longer" * 100_000, "longer than"), ("flip", "altered: its sha256 is")],
    ids=["missing", "short", "long", "altered"],
)
def test_every_kind_of_file_is_checked_and_put_right_from_a_second_store(
    scene: Scene, tmp_path: Path, damage: bytes | str | None, said: str
) -> None:
    second = DirectoryStore(tmp_path / "second")
    shutil.copytree(scene.store.folder, second.folder)
    for key, path in damaged_keys(scene).items():
        whole = path.read_bytes()
        path.unlink()
        if damage is not None:
            path.write_bytes(damage if isinstance(damage, bytes) else bytes([whole[0] ^ 1]) + whole[1:])
        found = checked(scene)
        assert not found.clean, key
        assert said in problems(found)[key]
        healed = checked(scene, second=second)
        assert healed.clean, key
        assert [finding.where for finding in healed.findings if finding.repaired] == [key]
        assert path.read_bytes() == whole
        assert checked(scene).findings == []


def test_a_second_store_with_the_same_damage_repairs_nothing(scene: Scene, tmp_path: Path) -> None:
    key = object_key(scene.bundle().info.blob_sha256)
    scene.path(key).write_bytes(b"wrong")
    second = DirectoryStore(tmp_path / "second")
    shutil.copytree(scene.store.folder, second.folder)
    report = checked(scene, second=second)
    assert not report.clean
    assert scene.path(key).read_bytes() == b"wrong"


def test_what_the_policy_refuses_is_found(scene: Scene) -> None:
    # Its own builder made the release, and is trusted no more.
    other = CryptoSigner.generate_ed25519().public_key
    policy = PolicyDocument().granting("hello", other, public_pem(other), [])
    scene.seal_anything({"policy.json": policy.to_bytes()})
    found = problems(checked(scene))
    assert list(found) == ["hello/release.1.json"]
    assert "the store's policy refuses" in found["hello/release.1.json"]


def test_a_channel_that_points_at_nothing_is_found(scene: Scene) -> None:
    scene.seal_anything({"hello/release.1.json": None})
    assert problems(checked(scene)) == {"hello/channel.stable.json": "points at release 1, which isn't there"}


def test_what_expires_soon_is_told_and_what_has_expired_is_wrong(scene: Scene) -> None:
    assert list(checked(scene, days=20).expires) == ["timestamp"]
    assert checked(scene, days=20).clean
    late = checked(scene, days=50)
    assert not late.clean
    assert "hosts refuse it" in problems(late)["timestamp"]
    assert set(checked(scene, days=20, soon=100).expires) == {"snapshot", "timestamp"}


def test_metadata_that_another_key_signed_is_found(scene: Scene) -> None:
    other = Scene(scene.folder / "other")
    shutil.copy(other.path(TIMESTAMP_KEY), scene.path(TIMESTAMP_KEY))
    assert not checked(scene).clean
    scene.path(TIMESTAMP_KEY).write_bytes(b"<html>login</html>")
    assert "is not what it should be" in problems(checked(scene))["metadata"]


def test_what_is_no_store_is_said_to_be_none(tmp_path: Path, scene: Scene) -> None:
    with pytest.raises(StoreError, match="is not a store yet"):
        check_store(DirectoryStore(tmp_path / "none"), root=scene.root, now=NOW, soon=DAY)


# --- garbage


def kept_and_gone(scene: Scene) -> tuple[set[str], set[str]]:
    before = {path.relative_to(scene.store.folder).as_posix() for path in scene.files()}
    garbage = find_garbage(scene.store, root=scene.root)
    assert {path.relative_to(scene.store.folder).as_posix() for path in scene.files()} == before
    remove_garbage(scene.store, garbage)
    after = {path.relative_to(scene.store.folder).as_posix() for path in scene.files()}
    assert before - after == {entry.key for entry in garbage.entries}
    return after, before - after


def test_nothing_young_goes_whether_it_is_named_or_not(scene: Scene) -> None:
    scene.store.create(object_key(Sha256.of(b"left by a killed push")), b"left by a killed push")
    scene.push(scene.bundle(text="program 2"))
    grow_old(scene, seconds=GRACE_S - 60)
    assert kept_and_gone(scene)[1] == set()


def test_what_a_killed_push_left_goes_after_the_grace(scene: Scene) -> None:
    left = object_key(Sha256.of(b"left by a killed push"))
    scene.store.create(left, b"left by a killed push")
    scene.store.create("metadata/9.m.hello.json", b"left by a killed push")
    grow_old(scene, seconds=GRACE_S + 60)
    _, gone = kept_and_gone(scene)
    # The state before the push that made the scene went out of use as long ago.
    assert {left, "metadata/9.m.hello.json", "metadata/1.snapshot.json", "metadata/1.targets.json"} <= gone
    assert checked(scene).findings == []


def test_old_releases_go_once_no_state_of_the_last_days_names_them(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshbuild.publish.RELEASES_KEPT", 2)
    first = object_key(scene.bundle().info.blob_sha256)
    grow_old(scene, seconds=GRACE_S + 60)
    scene.push(scene.bundle(text="program 2"))
    scene.push(scene.bundle(text="program 3"))
    # A reader that began with the state before may still want it.
    assert first in kept_and_gone(scene)[0]
    grow_old(scene, seconds=GRACE_S + 60)
    kept, gone = kept_and_gone(scene)
    assert first in gone
    assert {"metadata/1.root.json", TIMESTAMP_KEY} <= kept
    assert checked(scene).findings == []
    fetched = fetch_release(
        scene.store, root=scene.root, module="hello", system="arch", into=tmp_path / "host", now=NOW
    )
    assert fetched.sequence == 3


def test_a_push_puts_what_is_old_again_so_that_gc_beside_it_takes_nothing_away(scene: Scene) -> None:
    bundle = scene.bundle(text="program 2")
    scene.store.create(object_key(bundle.info.blob_sha256), bundle.path)  # of a push that was killed
    grow_old(scene, seconds=GRACE_S - 1)
    found = find_garbage(scene.store, root=scene.root, grace_s=GRACE_S - 2)
    assert object_key(bundle.info.blob_sha256) in {entry.key for entry in found.entries}
    scene.push(bundle)
    assert scene.store.age_s(object_key(bundle.info.blob_sha256)) < 60
    assert checked(scene).findings == []


def test_a_state_that_cannot_be_verified_has_no_garbage(scene: Scene) -> None:
    grow_old(scene, seconds=GRACE_S + 60)
    scene.path("metadata/2.snapshot.json").write_bytes(b"{}")
    before = scene.files()
    with pytest.raises(TrustError):
        find_garbage(scene.store, root=scene.root)
    assert scene.files() == before


def test_a_document_that_is_missing_from_the_present_state_stops_the_collecting(scene: Scene) -> None:
    grow_old(scene, seconds=GRACE_S + 60)
    next(scene.path("targets/hello").glob("*.release.1.json")).unlink()
    with pytest.raises(ObjectMissingError):
        find_garbage(scene.store, root=scene.root)


def test_files_that_are_not_the_stores_own_are_left_alone(scene: Scene) -> None:
    for name in ("index.html", "metadata/notes.txt", "objects/README"):
        scene.path(name).write_text("mine")
    grow_old(scene, seconds=GRACE_S + 60)
    assert {"index.html", "metadata/notes.txt", "objects/README"} <= kept_and_gone(scene)[0]


def test_a_collecting_that_was_killed_goes_on_the_next_time(scene: Scene) -> None:
    for number in range(3):
        scene.store.create(object_key(Sha256.of(b"%d" % number)), b"%d" % number)
    grow_old(scene, seconds=GRACE_S + 60)
    garbage = find_garbage(scene.store, root=scene.root)
    remove_garbage(scene.store, replace(garbage, entries=garbage.entries[:2]))
    remove_garbage(scene.store, garbage)
    assert find_garbage(scene.store, root=scene.root).entries == ()
