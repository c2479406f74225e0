"""Publishing: one commit, nothing lost, nothing that the policy doesn't allow."""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import Delegations, MetaFile, TargetFile

from meshbuild.digests import Sha256
from meshbuild.errors import (
    ClaimError,
    InputsChangedError,
    NoSuchReleaseError,
    PolicyError,
    ReleaseError,
    StoreBusyError,
    StoreError,
    TrustError,
    UntrustedBuilderError,
)
from meshbuild.fetch import fetch_release
from meshbuild.publish import Published, promote, publish
from meshbuild.release import ChannelDocument, PolicyDocument, object_key
from meshbuild.repository import StoreKeys, init_store, module_releases, put_document, read_release, sign_metadata
from meshbuild.sealing import Proposal, seal
from meshbuild.signing import public_pem
from meshbuild.stores.directory import DirectoryStore
from meshbuild.trust import TIMESTAMP_KEY, load_state, open_view
from tests.fetching import NOW, Scene, manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tuf.api.metadata import Root, Targets

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


@pytest.mark.parametrize("damage", [None, b"", b"x" * 5000])
def test_the_same_content_again_puts_lost_and_damaged_objects_back(scene: Scene, damage: bytes | None) -> None:
    bundle = scene.bundle()
    scene.push(bundle)
    whole = {path: path.read_bytes() for path in scene.files()}
    for digest in (bundle.info.blob_sha256, Sha256.of(bundle.info.statements)):
        path = scene.path(object_key(digest))
        path.unlink()
        if damage is not None:
            path.write_bytes(damage)
    assert not scene.push(bundle).new
    assert {path: path.read_bytes() for path in scene.files()} == whole


def test_an_object_whose_source_is_another_is_told_and_put_right_by_the_next_push(scene: Scene) -> None:
    bundle = scene.bundle()
    whole = bundle.path.read_bytes()
    before = scene.path(TIMESTAMP_KEY).read_bytes()
    bundle.path.write_bytes(b"changed since it was read")
    with pytest.raises(InputsChangedError, match="was changed while it was being published"):
        scene.push(bundle)
    assert scene.path(TIMESTAMP_KEY).read_bytes() == before
    bundle.path.write_bytes(whole)
    assert scene.push(bundle).new
    assert scene.path(object_key(bundle.info.blob_sha256)).read_bytes() == whole


def promoted(scene: Scene, release: str | int, channel: str) -> Published:
    return promote(
        scene.store,
        root=scene.root,
        module="hello",
        release=release,
        channel=channel,
        publisher=scene.publisher,
        keys=scene.keys,
        now=NOW,
    )


def test_a_channel_is_pointed_at_what_another_points_at_and_no_object_is_touched(scene: Scene) -> None:
    scene.push()
    scene.push(scene.bundle(text="program 2"), channel="beta")
    objects = {path: path.stat() for path in scene.path("objects").rglob("*") if path.is_file()}
    assert promoted(scene, "beta", "stable") == Published("hello", "stable", 2, mock.ANY, new=True)
    assert releases(scene) == [(2, [("beta", 1), ("stable", 2)]), (1, [])]
    assert objects.keys() == {path for path in scene.path("objects").rglob("*") if path.is_file()}
    assert all(path.stat().st_mtime_ns == before.st_mtime_ns for path, before in objects.items())
    before = scene.files()
    assert not promoted(scene, "beta", "stable").new
    assert scene.files() == before


def test_the_way_back_is_a_higher_serial_that_hosts_follow(scene: Scene, tmp_path: Path) -> None:
    def fetched() -> tuple[int, int]:
        got = fetch_release(scene.store, root=scene.root, module="hello", system="arch", into=tmp_path / "h", now=NOW)
        return got.sequence, got.serial

    scene.push()
    scene.push(scene.bundle(text="program 2"))
    assert fetched() == (2, 2)
    assert promoted(scene, 1, "stable").sequence == 1
    assert fetched() == (1, 3)
    # What is pushed next is a new release, and not the one that was left.
    assert scene.push(scene.bundle(text="program 3")).sequence == 3
    assert fetched() == (3, 4)


def test_a_channel_can_be_made_by_promoting(scene: Scene) -> None:
    scene.push()
    promoted(scene, 1, "canary")
    assert releases(scene) == [(1, [("canary", 1), ("stable", 1)])]


@pytest.mark.parametrize(
    ("release", "said"),
    [("beta", "hello has no channel 'beta'; it has stable"), (7, "hello has no release 7; it has 2, 1")],
)
def test_what_is_not_there_cannot_be_promoted(scene: Scene, release: str | int, said: str) -> None:
    scene.push()
    scene.push(scene.bundle(text="program 2"))
    before = scene.files()
    with pytest.raises(NoSuchReleaseError, match=said):
        promoted(scene, release, "stable")
    assert scene.files() == before


def test_what_the_policy_refuses_today_is_not_promoted(scene: Scene) -> None:
    scene.push()
    scene.push(scene.bundle(text="program 2"))
    other = CryptoSigner.generate_ed25519().public_key
    policy = PolicyDocument().granting("hello", other, public_pem(other), [])
    scene.seal_anything({"policy.json": policy.to_bytes()})
    with pytest.raises(UntrustedBuilderError, match="the store's policy refuses"):
        promoted(scene, 1, "stable")
    assert releases(scene) == [(2, [("stable", 2)]), (1, [])]


def test_a_promote_that_a_push_outruns_starts_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.push()
    scene.push(scene.bundle(text="program 2"), channel="beta")
    swap = scene.store.swap

    def outrun(key: str, data: bytes, *, expected: bytes | None) -> bool:
        monkeypatch.setattr(scene.store, "swap", swap)
        scene.push(scene.bundle(text="program 3"))
        return swap(key, data, expected=expected)

    monkeypatch.setattr(scene.store, "swap", outrun)
    promoted(scene, "beta", "stable")
    assert releases(scene) == [(3, []), (2, [("beta", 1), ("stable", 3)]), (1, [])]


def test_a_push_that_ran_so_long_that_its_objects_may_be_garbage_is_given_up(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = scene.path(TIMESTAMP_KEY).read_bytes()
    monkeypatch.setattr("meshbuild.publish.GRACE_S", -1.0)
    with pytest.raises(StoreBusyError, match="may be garbage by now"):
        scene.push()
    assert scene.path(TIMESTAMP_KEY).read_bytes() == before


def test_bundles_that_make_no_release_of_the_manifest_are_refused_before_anything_is_written(scene: Scene) -> None:
    before = scene.files()
    with pytest.raises(ReleaseError, match=r"is a bundle of second 1\.0, expected one of hello 1\.0"):
        scene.push(scene.bundle(module="second"))
    with pytest.raises(ReleaseError, match=r"is a bundle of hello 0\.9, expected one of hello 1\.0"):
        scene.push(scene.bundle(version="0.9"))
    with pytest.raises(ReleaseError, match="server for arch is there twice"):
        scene.push(scene.bundle(), scene.bundle(text="program 2"))
    assert scene.files() == before


@pytest.mark.parametrize("role", ["targets", "snapshot", "timestamp"])
def test_a_key_that_the_root_does_not_name_commits_nothing(scene: Scene, role: str) -> None:
    scene.push()
    before = scene.path(TIMESTAMP_KEY).read_bytes()
    right, scene.keys = scene.keys, replace(scene.keys, **{role: CryptoSigner.generate_ed25519()})
    with pytest.raises(TrustError, match=f"hosts would refuse the new state, .*{role}"):
        scene.push(scene.bundle(module="second"), document=manifest("second"))
    assert scene.path(TIMESTAMP_KEY).read_bytes() == before
    scene.keys = right
    assert scene.push(scene.bundle(module="second"), document=manifest("second")).new
    with open_view(scene.store, root=scene.root, cache=scene.folder / "cache", now=NOW) as view:
        assert view.document("second/channel.stable.json")


def point(scene: Scene, role: Targets, number: int, serial: int, **release: Any) -> None:
    """Let a role's stable channel point at a release, changed in the given fields."""
    found = read_release(scene.store, role, "hello", number)
    assert found is not None
    changed = found.model_copy(update=release)
    if release:
        put_document(scene.store, role, changed.target_name, changed.to_bytes())
    pointer = ChannelDocument(
        module="hello",
        channel="stable",
        serial=serial,
        release_sequence=changed.sequence,
        release_sha256=changed.sha256,
    )
    put_document(scene.store, role, pointer.target_name, pointer.to_bytes())


def without_sha256(_scene: Scene, role: Targets) -> None:
    role.targets["hello/release.9.json"] = TargetFile(1, {"sha512": "00"}, "hello/release.9.json")


def delegating(_scene: Scene, role: Targets) -> None:
    role.delegations = Delegations(keys={}, roles={})


def of_another_module(scene: Scene, role: Targets) -> None:
    put_document(scene.store, role, "second/channel.stable.json", b"{}")


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda scene, role: point(scene, role, 1, 2), ReleaseError, "has the serial 2, and the store has 2 already"),
        (lambda scene, role: point(scene, role, 2, 1), ReleaseError, "has the serial 1, and the store has 2 already"),
        (lambda scene, role: point(scene, role, 1, 3, artifacts=()), ReleaseError, "a release never changes"),
        (
            lambda scene, role: point(scene, role, 2, 3, sequence=3, version="9"),
            ReleaseError,
            "is of hello 9, its manifest of hello 1.0",
        ),
        (without_sha256, TrustError, "names no sha256 of hello/release.9.json"),
        (delegating, PolicyError, "delegates to others"),
        (of_another_module, PolicyError, "names 'second/channel.stable.json', which is not its module's"),
        (lambda _scene, role: setattr(role, "version", 2), TrustError, "doesn't follow the present version 2"),
        (lambda _scene, role: setattr(role, "version", 1), TrustError, "doesn't follow the present version 2"),
    ],
)
def test_a_publisher_cannot_have_sealed(
    scene: Scene, change: Callable[[Scene, Targets], None], error: type[Exception], said: str
) -> None:
    scene.push()
    scene.push(scene.bundle(text="program 2"))
    state = load_state(scene.store, root=scene.root, modules=["hello"])
    before = scene.path(TIMESTAMP_KEY).read_bytes()
    role = copy.deepcopy(state.roles["m.hello"])
    role.version = 3
    change(scene, role)
    proposal = propose_anything(scene, role)
    with pytest.raises(error, match=said):
        seal(scene.store, state, [proposal], keys=scene.keys, now=NOW)
    assert scene.path(TIMESTAMP_KEY).read_bytes() == before


def propose_anything(scene: Scene, role: Targets | Root) -> Proposal:
    """Sign a role with the module's key, whatever it says, put it into the store, and propose it."""
    state = load_state(scene.store, root=scene.root, modules=["hello"])
    release = read_release(scene.store, state.roles["m.hello"], "hello", 1)
    assert release is not None
    data = sign_metadata(role, scene.publisher)
    scene.store.replace(f"metadata/{role.version}.m.hello.json", data)
    return Proposal("m.hello", role.version, MetaFile(role.version, len(data), {"sha256": Sha256.of(data)}), release)


def test_metadata_of_another_kind_or_size_than_proposed_is_refused(scene: Scene) -> None:
    scene.push()
    state = load_state(scene.store, root=scene.root, modules=["hello"])
    before = scene.path(TIMESTAMP_KEY).read_bytes()
    root = copy.deepcopy(state.root)
    root.version = 2
    right = copy.deepcopy(state.roles["m.hello"])
    right.version = 2
    bare = MetaFile(2)
    proposals = [
        propose_anything(scene, root),
        replace(propose_anything(scene, right), meta=bare),
    ]
    for proposal in proposals:
        with pytest.raises(TrustError, match=r"2\.m\.hello\.json is not what was proposed"):
            seal(scene.store, state, [proposal], keys=scene.keys, now=NOW)
    twice = [propose_anything(scene, right)] * 2
    with pytest.raises(ValueError, match="two proposals of one module"):
        seal(scene.store, state, twice, keys=scene.keys, now=NOW)
    assert scene.path(TIMESTAMP_KEY).read_bytes() == before


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


def test_a_system_without_one_of_its_artifacts_is_refused(scene: Scene) -> None:
    scene.push()
    before = scene.path(TIMESTAMP_KEY).read_bytes()
    document = manifest()
    document["build"]["artifacts"].append({**document["build"]["artifacts"][0], "name": "tool"})
    with pytest.raises(ReleaseError, match="for arch its manifest declares"):
        scene.push(document=document)
    assert scene.path(TIMESTAMP_KEY).read_bytes() == before


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
