from __future__ import annotations

import multiprocessing
import os
import stat
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from meshbuild.digests import Sha256
from meshbuild.errors import LocalFileError
from meshbuild.hostfolder import Floor, HostFolder

if TYPE_CHECKING:
    from pathlib import Path

STORE = Sha256.of(b"root")
RELEASE = Sha256.of(b"release")
CONTENT = Sha256.of(b"content")
NO_LABEL = r"is not a DNS label|longer than"
OLD = {"metadata/timestamp.json": b"t1", "metadata/1.snapshot.json": b"s1", "targets/hello/x.release.1.json": b"r1"}
NEW = {"metadata/timestamp.json": b"t2", "metadata/2.snapshot.json": b"s2", "targets/hello/x.release.1.json": b"r1"}
HOLD_THE_LOCK = """
import pathlib, sys, time
from meshbuild.hostfolder import HostFolder
with HostFolder(pathlib.Path(sys.argv[1])).locked(print):
    print("held", flush=True)
    time.sleep(0.7)
"""


@pytest.fixture
def host(tmp_path: Path) -> HostFolder:
    host = HostFolder(tmp_path / "host")
    with host.locked(pytest.fail):
        pass
    return host


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


class TestFloor:
    def test_there_is_none_before_the_first(self, host: HostFolder) -> None:
        assert host.floor(STORE, "hello", "stable") is None

    def test_is_remembered_for_its_store_module_and_channel_alone(self, host: HostFolder) -> None:
        host.raise_floor(STORE, "hello", "stable", Floor(3, RELEASE))
        assert host.floor(STORE, "hello", "stable") == Floor(3, RELEASE)
        assert host.floor(STORE, "hello", "beta") is None
        assert host.floor(STORE, "other", "stable") is None
        assert host.floor(Sha256.of(b"other root"), "hello", "stable") is None

    def test_is_never_lowered(self, host: HostFolder) -> None:
        host.raise_floor(STORE, "hello", "stable", Floor(3, RELEASE))
        host.raise_floor(STORE, "hello", "stable", Floor(2, CONTENT))
        host.raise_floor(STORE, "hello", "stable", Floor(3, CONTENT))
        assert host.floor(STORE, "hello", "stable") == Floor(3, RELEASE)
        host.raise_floor(STORE, "hello", "stable", Floor(4, CONTENT))
        assert host.floor(STORE, "hello", "stable") == Floor(4, CONTENT)

    @pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"serial":1}', b'{"serial":"x","release_sha256":"y"}'])
    def test_a_damaged_record_is_an_error_and_not_no_floor(self, host: HostFolder, damage: bytes) -> None:
        host.raise_floor(STORE, "hello", "stable", Floor(3, RELEASE))
        record = host.floors / STORE / "hello" / "stable.json"
        record.write_bytes(damage)
        with pytest.raises(LocalFileError, match="record is damaged") as caught:
            host.floor(STORE, "hello", "stable")
        assert str(record) in str(caught.value)
        assert record.read_bytes() == damage

    @pytest.mark.parametrize("name", ["..", "../x", "a/b", "", ".", "A", "a\n", "x" * 64])
    def test_names_that_are_no_labels_never_become_paths(self, host: HostFolder, name: str) -> None:
        before = names(host.into.parent)
        with pytest.raises(ValueError, match=NO_LABEL):
            host.raise_floor(STORE, name, "stable", Floor(1, RELEASE))
        with pytest.raises(ValueError, match=NO_LABEL):
            host.raise_floor(STORE, "hello", name, Floor(1, RELEASE))
        with pytest.raises(ValueError, match=NO_LABEL):
            host.receipt(name)
        assert names(host.into.parent) == before


class TestStoreId:
    def test_is_the_digest_of_the_first_root_given(self, host: HostFolder) -> None:
        assert host.store_id(b"root") == STORE

    def test_a_later_root_of_an_accepted_chain_is_the_same_store(self, host: HostFolder) -> None:
        host.remember_roots(STORE, [b"root", b"root 2"])
        assert host.store_id(b"root 2") == STORE
        assert host.store_id(b"root 3") == Sha256.of(b"root 3")
        host.remember_roots(STORE, [b"root 3"])
        assert [host.store_id(root) for root in (b"root", b"root 2", b"root 3")] == [STORE] * 3


class TestPlacing:
    def fill(self, host: HostFolder, text: str) -> None:
        with host.placing(CONTENT) as folder:
            folder.mkdir()
            (folder / "program").write_text(text)

    def test_the_folder_takes_its_place_at_the_blocks_end(self, host: HostFolder) -> None:
        with host.placing(CONTENT) as folder:
            folder.mkdir()
            (folder / "program").write_text("new")
            assert not host.payload(CONTENT).exists()
        assert names(host.payloads) == [f"{CONTENT}/program"]

    def test_a_damaged_one_is_replaced_whole(self, host: HostFolder) -> None:
        self.fill(host, "old")
        (host.payload(CONTENT) / "added").write_text("by somebody")
        self.fill(host, "new")
        assert names(host.payloads) == [f"{CONTENT}/program"]
        assert (host.payload(CONTENT) / "program").read_text() == "new"

    def test_a_file_in_its_place_is_replaced(self, host: HostFolder) -> None:
        host.payload(CONTENT).write_text("not a folder")
        self.fill(host, "new")
        assert names(host.payloads) == [f"{CONTENT}/program"]

    def test_a_link_in_its_place_is_replaced_and_not_followed(self, host: HostFolder, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "precious").write_text("stays")
        host.payload(CONTENT).symlink_to(elsewhere)
        self.fill(host, "new")
        assert names(elsewhere) == ["precious"]
        assert not host.payload(CONTENT).is_symlink()

    def test_when_the_block_fails_the_old_one_stays_and_nothing_else_is_left(self, host: HostFolder) -> None:
        self.fill(host, "old")
        with pytest.raises(RuntimeError), host.placing(CONTENT) as folder:
            folder.mkdir()
            (folder / "program").write_text("half")
            raise RuntimeError
        assert names(host.payloads) == [f"{CONTENT}/program"]
        assert (host.payload(CONTENT) / "program").read_text() == "old"


class TestReceipt:
    def test_holds_the_files_under_the_stores_own_keys(self, host: HostFolder) -> None:
        folder = host.write_receipt("hello", OLD, keep=lambda _: False)
        assert folder == host.receipts / "hello"
        assert {key: (folder / key).read_bytes() for key in names(folder)} == OLD

    def test_a_new_one_takes_the_old_ones_place(self, host: HostFolder) -> None:
        host.write_receipt("hello", {**OLD, "objects/kept": b"o"}, keep=lambda _: False)
        folder = host.write_receipt("hello", NEW, keep=lambda key: key == "objects/kept")
        assert {key: (folder / key).read_bytes() for key in names(folder)} == {**NEW, "objects/kept": b"o"}

    def test_an_altered_file_is_written_again(self, host: HostFolder) -> None:
        folder = host.write_receipt("hello", OLD, keep=lambda _: False)
        (folder / "metadata/1.snapshot.json").write_bytes(b"altered")
        host.write_receipt("hello", OLD, keep=lambda _: False)
        assert (folder / "metadata/1.snapshot.json").read_bytes() == b"s1"

    def test_what_is_there_already_is_not_written_again(self, host: HostFolder) -> None:
        folder = host.write_receipt("hello", OLD, keep=lambda _: False)
        before = {key: (folder / key).stat().st_ino for key in OLD}
        host.write_receipt("hello", OLD, keep=lambda _: False)
        assert {key: (folder / key).stat().st_ino for key in OLD} == before

    def test_keys_that_lead_outside_are_refused(self, host: HostFolder, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="leads outside"):
            host.write_receipt("hello", {"../../../evil": b"x"}, keep=lambda _: True)
        assert not (tmp_path / "evil").exists()


class TestLocked:
    def test_removes_what_killed_writers_left(self, host: HostFolder) -> None:
        left = [
            host.payloads / f".{CONTENT}.meshbuild-tmp-00",
            host.floors / STORE / "hello" / ".stable.json.meshbuild-tmp-00",
            host.receipts / "hello" / "metadata" / ".timestamp.json.meshbuild-tmp-00",
        ]
        for path in left:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("half")
        with host.locked(pytest.fail):
            assert not any(path.exists() for path in left)

    def test_one_at_a_time(self, host: HostFolder) -> None:
        said: list[str] = []
        with subprocess.Popen(
            [sys.executable, "-c", HOLD_THE_LOCK, host.into], stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            began = time.monotonic()
            with host.locked(said.append):
                assert time.monotonic() - began > 0.3
        assert said == [f"waiting for another fetch into {host.into}"]

    def test_a_folder_that_cant_be_made_is_said(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        host = HostFolder(tmp_path / "file" / "host")
        with pytest.raises(LocalFileError, match="could not write the host folder"), host.locked(pytest.fail):
            pytest.fail("must not be reached")


def make_under_umask(into: Path) -> None:
    os.umask(0o077)
    host = HostFolder(into)
    with host.locked(print):
        host.write_receipt("hello", OLD, keep=lambda _: False)
        host.raise_floor(STORE, "hello", "stable", Floor(1, RELEASE))


def test_the_umask_changes_nothing(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=make_under_umask, args=(tmp_path / "host",))
    process.start()
    process.join()
    assert process.exitcode == 0
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "host", *(tmp_path / "host").rglob("*"))}
    assert modes == {path: 0o755 if path.is_dir() else 0o644 for path in modes}
