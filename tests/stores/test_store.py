"""What every store promises, tried on each kind of store. Today there is one kind: a folder."""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING

import pytest

from meshbuild.errors import ObjectCorruptError, ObjectMissingError, StoreError
from meshbuild.stores import open_store
from meshbuild.stores.directory import DirectoryStore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store")


def everything(store: DirectoryStore) -> list[str]:
    found = (path for path in store.folder.rglob("*") if path.is_file() and not path.name.endswith(".lock"))
    return sorted(str(path.relative_to(store.folder)) for path in found)


def test_a_key_is_created_once_and_never_overwritten(store: DirectoryStore) -> None:
    assert store.create("a/b", b"one")
    assert not store.create("a/b", b"two")
    assert store.read("a/b", limit_bytes=3) == b"one"
    assert everything(store) == ["a/b"]


def test_a_file_is_created_from_another(store: DirectoryStore, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"x" * (3 << 20))
    assert store.create("big", tmp_path / "source")
    with store.open("big") as file:
        assert file.read() == b"x" * (3 << 20)


def test_nothing_is_left_of_a_create_that_fails(store: DirectoryStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="could not write a/b"):
        store.create("a/b", tmp_path / "nowhere")
    assert everything(store) == []


def test_a_swap_needs_the_expected_bytes(store: DirectoryStore) -> None:
    assert not store.swap("t", b"two", expected=b"one")
    assert store.swap("t", b"one", expected=None)
    assert not store.swap("t", b"two", expected=None)
    assert not store.swap("t", b"two", expected=b"other")
    assert store.read("t", limit_bytes=9) == b"one"
    assert store.swap("t", b"two", expected=b"one")
    assert store.read("t", limit_bytes=9) == b"two"
    assert everything(store) == ["t"]


def test_a_short_object_is_replaced(store: DirectoryStore) -> None:
    store.create("o", b"sho")
    store.replace("o", b"whole")
    assert store.read("o", limit_bytes=9) == b"whole"


def test_what_is_missing_or_too_long_is_told_apart(store: DirectoryStore) -> None:
    store.create("a", b"12345")
    with pytest.raises(ObjectMissingError, match="there is no b"):
        store.read("b", limit_bytes=9)
    with pytest.raises(ObjectMissingError):
        store.read("a/b", limit_bytes=9)
    with pytest.raises(ObjectCorruptError, match="longer than the 4 bytes"):
        store.read("a", limit_bytes=4)


@pytest.mark.parametrize("key", ["../a", "/etc/passwd", "", "a//b", "a/../../b", "a\\b", "a\nb"])
def test_hostile_keys_are_refused(store: DirectoryStore, key: str) -> None:
    with pytest.raises(StoreError, match="not a key"):
        store.read(key, limit_bytes=1)
    with pytest.raises(StoreError, match="not a key"):
        store.create(key, b"")
    assert everything(store) == []


def test_links_are_not_followed(store: DirectoryStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    store.create("a", b"")
    (store.folder / "link").symlink_to(outside / "secret")
    (store.folder / "folder").symlink_to(outside)
    for key in ("link", "folder/secret"):
        with pytest.raises(StoreError):
            store.read(key, limit_bytes=99)
        with pytest.raises(StoreError):
            store.swap(key, b"new", expected=b"secret")
    for key in ("folder/new", "folder/new/new"):
        with pytest.raises(StoreError, match="lies behind a link"):
            store.create(key, b"")
        with pytest.raises(StoreError, match="lies behind a link"):
            store.replace(key, b"")
    assert not store.create("link", b"new")
    assert [(path.name, path.read_bytes()) for path in outside.iterdir()] == [("secret", b"secret")]


def test_a_store_that_is_itself_reached_by_a_link_is_one(store: DirectoryStore, tmp_path: Path) -> None:
    store.create("a/b", b"one")
    (tmp_path / "elsewhere").symlink_to(store.folder)
    linked = DirectoryStore(tmp_path / "elsewhere")
    assert linked.read("a/b", limit_bytes=3) == b"one"
    assert linked.create("a/c", b"two")
    assert store.read("a/c", limit_bytes=3) == b"two"


def test_what_is_no_file_is_refused_without_waiting_for_it(store: DirectoryStore) -> None:
    store.create("a/b", b"")
    os.mkfifo(store.folder / "pipe")
    for key in ("pipe", "a"):
        with pytest.raises(StoreError, match="not a regular file"):
            store.read(key, limit_bytes=1)


def test_a_web_server_of_another_account_can_read_it_whatever_the_umask(store: DirectoryStore) -> None:
    old = os.umask(0o077)
    try:
        store.create("a/b/c", b"")
        store.swap("t", b"", expected=None)
    finally:
        os.umask(old)
    assert (store.folder / "a/b/c").stat().st_mode & 0o777 == 0o644
    assert (store.folder / "t").stat().st_mode & 0o777 == 0o644
    assert all(folder.stat().st_mode & 0o777 == 0o755 for folder in (store.folder / "a", store.folder / "a/b"))


def add(address: str, times: int) -> None:
    """Count a number in the store up, by swaps."""
    store = open_store(address)
    for _ in range(times):
        done = False
        while not done:
            now = store.read("n", limit_bytes=99)
            done = store.swap("n", str(int(now) + 1).encode(), expected=now)


def test_swaps_at_once_lose_none(store: DirectoryStore) -> None:
    store.swap("n", b"0", expected=None)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=add, args=(store.address, 20)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert store.read("n", limit_bytes=99) == b"60"


def test_addresses() -> None:
    assert open_store("/srv/a").address == "/srv/a"
    assert open_store("file:/srv/a").address == "/srv/a"
    assert open_store("file:///srv/a").address == "/srv/a"
    with pytest.raises(StoreError, match="'s3' are not supported"):
        open_store("s3://bucket")


def make_many(address: str, name: int) -> None:
    """Create many files in the folder that the swaps go on in."""
    store = open_store(address)
    for number in range(150):
        assert store.create(f"{name}-{number}", b"x")


def test_swaps_are_not_disturbed_by_what_others_create_beside_them(store: DirectoryStore) -> None:
    store.swap("n", b"0", expected=None)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=make_many, args=(store.address, name)) for name in range(2)]
    workers.append(context.Process(target=add, args=(store.address, 150)))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert store.read("n", limit_bytes=99) == b"150"


def test_every_file_is_listed_with_its_size_and_an_age_by_the_stores_own_clock(store: DirectoryStore) -> None:
    store.create("a/b", b"one")
    store.create("c", b"three")
    store.swap("metadata/timestamp.json", b"{}", expected=None)
    found = {entry.key: entry for entry in store.entries()}
    assert {key: entry.size_bytes for key, entry in found.items()} == {"a/b": 3, "c": 5, "metadata/timestamp.json": 2}
    assert all(-1 < store.age_s(key) < 60 for key in found)
    with pytest.raises(ObjectMissingError):
        store.age_s("d")
    assert all(-1 < store.now_s() - entry.changed_s < 60 for entry in found.values())


def test_removing_removes_one_and_is_no_error_when_it_is_gone(store: DirectoryStore) -> None:
    store.create("a/b", b"one")
    store.create("a/c", b"two")
    store.remove("a/b")
    store.remove("a/b")
    assert [entry.key for entry in store.entries()] == ["a/c"]
    assert store.create("a/b", b"again")
