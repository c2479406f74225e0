"""Publishing: one commit, nothing lost, nothing that the policy doesn't allow."""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from securesystemslib.signer import CryptoSigner

from meshbuild.errors import (
    ClaimError,
    NoSuchReleaseError,
    PolicyError,
    StoreBusyError,
    StoreError,
    TrustError,
    UntrustedBuilderError,
)
from meshbuild.publish import publish
from meshbuild.release import object_key
from meshbuild.repository import StoreKeys, init_store, module_releases
from meshbuild.stores.directory import DirectoryStore
from meshbuild.trust import TIMESTAMP_KEY, load_state
from tests.fetching import NOW, Scene, manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from meshbuild.publish import BundleFile


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def releases(scene: Scene, module: str = "hello") -> list[tuple[int, list[tuple[str, int]]]]:
    """Each release's number with the channels that point at it, newest first."""
    state = load_state(scene.store, root=scene.root, modules=[module])
    found = module_releases(scene.store, state, module)
    return [(release.sequence, [(each.channel, each.serial) for each in channels]) for release, channels in found]


def test_the_first_push_admits_the_module_and_the_same_again_writes_nothing(scene: Scene) -> None:
    first = scene.push()
    assert (first.sequence, first.new) == (1, True)
    before = scene.files()
    again = scene.push()
    assert (again.sequence, again.new, again.release_sha256) == (1, False, first.release_sha256)
    assert scene.files() == before


def test_a_change_is_the_next_release_and_channels_have_serials_of_their_own(scene: Scene) -> None:
    scene.push()
    scene.push(scene.bundle(text="program 2"))
    scene.push(scene.bundle(text="program 2"), channel="beta")
    assert releases(scene) == [(3, [("beta", 1)]), (2, [("stable", 2)]), (1, [])]


def test_a_new_version_of_the_same_program_is_a_release(scene: Scene) -> None:
    scene.push()
    pushed = scene.push(scene.bundle(version="2.0"), document=manifest(version="2.0"))
    assert (pushed.sequence, pushed.new) == (2, True)


def test_an_unknown_module_is_said_to_be_unknown(scene: Scene) -> None:
    scene.push()
    with pytest.raises(NoSuchReleaseError, match="has no module 'other'; it has hello"):
        releases(scene, "other")


def test_old_releases_are_left_away_but_not_what_a_channel_points_at(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshbuild.publish.RELEASES_KEPT", 2)
    scene.push(channel="old")
    for number in range(2, 6):
        scene.push(scene.bundle(text=f"program {number}"))
    assert [sequence for sequence, _ in releases(scene)] == [5, 4, 1]


def test_numbers_that_a_killed_publisher_took_are_skipped(scene: Scene) -> None:
    scene.push()
    for name in ("2.m.hello.json", "4.snapshot.json", "3.snapshot.json"):
        scene.store.create(f"metadata/{name}", b"taken")
    assert scene.push(scene.bundle(text="program 2")).sequence == 2
    assert releases(scene)[0] == (2, [("stable", 2)])


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 5000])
def test_a_damaged_object_that_is_already_there_is_put_again(scene: Scene, damage: bytes) -> None:
    bundle = scene.bundle()
    key = object_key(bundle.info.blob_sha256)
    scene.store.create(key, damage)
    scene.push(bundle)
    assert scene.path(key).read_bytes() == bundle.path.read_bytes()


class Racing(DirectoryStore):
    """A store in which somebody else publishes just before the first swap, or before each of them."""

    def __init__(self, folder: Path, others: list[Callable[[], Any]]) -> None:
        super().__init__(folder)
        self.others = others

    def swap(self, key: str, data: bytes, *, expected: bytes | None) -> bool:
        if self.others:
            self.others.pop()()
        return super().swap(key, data, expected=expected)


def push_into(scene: Scene, store: DirectoryStore, text: str) -> int:
    return publish(
        store,
        root=scene.root,
        manifest=manifest(),
        bundles=[scene.bundle(text=text)],
        channel="stable",
        publisher=scene.publisher,
        builder=scene.builder.public_key,
        keys=scene.keys,
        now=NOW,
    ).sequence


def test_a_lost_swap_starts_again_and_loses_no_release(scene: Scene) -> None:
    scene.push()
    racing = Racing(scene.store.folder, [lambda: scene.push(scene.bundle(text="theirs"))])
    assert push_into(scene, racing, "ours") == 3
    assert releases(scene) == [(3, [("stable", 3)]), (2, []), (1, [])]


def test_losing_every_time_ends_with_a_word(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshbuild.publish._MAX_TRIES", 3)
    others = [lambda number=number: scene.push(scene.bundle(text=f"theirs {number}")) for number in range(9)]
    with pytest.raises(StoreBusyError, match="3 times in a row"):
        push_into(scene, Racing(scene.store.folder, others), "ours")


def test_without_the_targets_key_an_unknown_module_is_refused(scene: Scene) -> None:
    scene.keys = StoreKeys(snapshot=scene.keys.snapshot, timestamp=scene.keys.timestamp)
    before = scene.path(TIMESTAMP_KEY).read_bytes()
    with pytest.raises(PolicyError, match="has not admitted the module 'hello'") as caught:
        scene.push()
    assert caught.value.hint is not None
    assert scene.path(TIMESTAMP_KEY).read_bytes() == before


def test_a_builder_that_the_policy_does_not_trust_is_refused(scene: Scene) -> None:
    scene.push()
    before = scene.path(TIMESTAMP_KEY).read_bytes()
    with pytest.raises(UntrustedBuilderError, match="the store's policy refuses"):
        scene.push(scene.bundle(text="evil", signer=CryptoSigner.generate_ed25519()))
    assert scene.path(TIMESTAMP_KEY).read_bytes() == before


def test_another_publishers_key_is_refused(scene: Scene) -> None:
    scene.push()
    before = scene.path(TIMESTAMP_KEY).read_bytes()
    scene.publisher = CryptoSigner.generate_ed25519()
    with pytest.raises(TrustError, match="not signed by its module's key"):
        scene.push(scene.bundle(text="program 2"))
    assert scene.path(TIMESTAMP_KEY).read_bytes() == before


def test_a_claim_that_another_module_holds_is_refused(scene: Scene) -> None:
    claims = [{"name": "leader", "scope": "mesh"}]
    scene.push(document=manifest(claims=claims))
    bundle = scene.bundle(module="second")
    with pytest.raises(ClaimError, match="hello holds it"):
        scene.push(bundle, document=manifest("second", claims=claims))


def test_a_manifest_that_is_none_is_refused_at_the_seal(scene: Scene) -> None:
    scene.push()
    with pytest.raises(PolicyError, match="manifest"):
        scene.push(scene.bundle(text="x"), document={**manifest(), "claims": ["x"]})


def test_a_place_is_made_a_store_once(scene: Scene) -> None:
    with pytest.raises(StoreError, match="is a store already"):
        init_store(scene.store, scene.keys, now=NOW)


class Killed(DirectoryStore):
    """A store whose writer dies at its N-th write: before it, or just after it."""

    def __init__(self, folder: Path, left: int) -> None:
        super().__init__(folder)
        self.left = left

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def create(self, key: str, source: bytes | Path) -> bool:
        self._count()
        made = super().create(key, source)
        self._count()
        return made

    def swap(self, key: str, data: bytes, *, expected: bytes | None) -> bool:
        self._count()
        done = super().swap(key, data, expected=expected)
        self._count()
        return done


def in_a_child(work: Callable[[], Any]) -> int:
    """Run work in a forked process; returns its exit code, negative for a signal."""
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    assert child.exitcode is not None
    return child.exitcode


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_killed_at_any_write_a_push_leaves_the_old_or_the_new_state_and_the_next_one_heals(scene: Scene) -> None:
    scene.push()
    kills = 0
    for left in range(60):
        before = releases(scene)
        code = in_a_child(lambda: push_into(scene, Killed(scene.store.folder, left), f"text {left}"))  # noqa: B023
        after = releases(scene)
        assert after == before or after[1:] == [(number, []) for number, _ in before]
        healed = push_into(scene, scene.store, f"text {left}")
        assert releases(scene)[0][0] == healed
        if code == 0:
            break
        kills += 1
        assert code == -signal.SIGKILL
    else:
        pytest.fail("never ran to its end")
    assert kills > 8


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_killed_at_any_write_making_a_store_can_be_finished(tmp_path: Path) -> None:
    names = ("root", "targets", "snapshot", "timestamp")
    keys = StoreKeys(**{name: CryptoSigner.generate_ed25519() for name in names})
    for left in range(40):
        folder = tmp_path / str(left)
        code = in_a_child(lambda: init_store(Killed(folder, left), keys, now=NOW))  # noqa: B023
        store = DirectoryStore(folder)
        if not (folder / TIMESTAMP_KEY).exists():
            root = init_store(store, keys, now=NOW)
            assert load_state(store, root=root, modules=[]).snapshot.version >= 1
        if code == 0:
            break
    else:
        pytest.fail("never ran to its end")
    assert left > 6


def test_a_place_begun_with_other_keys_is_not_taken_over(tmp_path: Path) -> None:
    names = ("root", "targets", "snapshot", "timestamp")
    first, second = (StoreKeys(**{name: CryptoSigner.generate_ed25519() for name in names}) for _ in range(2))
    store = DirectoryStore(tmp_path)
    init_store(store, first, now=NOW)
    (tmp_path / TIMESTAMP_KEY).unlink()
    with pytest.raises(StoreError, match="begun as a store with other keys"):
        init_store(store, second, now=NOW)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_pushes_at_once_to_one_module_and_to_others_lose_none(scene: Scene) -> None:
    def work(bundle: BundleFile) -> None:
        scene.push(bundle, document=manifest(bundle.info.listing.module))

    context = multiprocessing.get_context("fork")
    names = [(module, number) for module in ("hello", "other") for number in range(3)]
    bundles = [scene.bundle(module=module, text=f"{module} {number}") for module, number in names]
    workers = [context.Process(target=work, args=(bundle,)) for bundle in bundles]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 6
    for module in ("hello", "other"):
        found = releases(scene, module)
        assert len(found) == 3
        assert found[0][1] == [("stable", 3)]
