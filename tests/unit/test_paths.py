"""Paths that can't escape, writes that are whole or not there."""

import os
import time
from pathlib import Path

import pytest

from meshbuild.errors import LocalFileError
from meshbuild.paths import (
    atomic_folder,
    atomic_write,
    check_relative_path,
    local_errors,
    remove_stale_temps,
    write_atomically,
)


@pytest.mark.parametrize("good", ["a", "a/b", "a b/ü", ".hidden/x", "a" * 1024, "..a/b..", "$HOME"])
def test_plain_relative_paths_pass(good: str) -> None:
    assert check_relative_path(good) == good


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("", "empty"),
        ("/etc/passwd", "absolute"),
        ("..", "outside"),
        ("a/../b", "outside"),
        ("a//b", "empty or"),
        ("a/", "empty or"),
        ("./a", "empty or"),
        ("a/.", "empty or"),
        ("a\\b", "backslash"),
        ("a\0b", "control"),
        ("a\nb", "control"),
        ("a\x7fb", "control"),
        ("ü" * 513, "longer than 1024"),
        ("\ud800", "Unicode"),
    ],
)
def test_everything_else_is_refused_with_its_reason(bad: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_relative_path(bad)


def test_a_write_is_whole_and_has_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        write_atomically(tmp_path / "new" / "f", b"text", mode=0o644)
    finally:
        os.umask(old)
    assert (tmp_path / "new" / "f").read_bytes() == b"text"
    assert (tmp_path / "new" / "f").stat().st_mode & 0o777 == 0o644


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"old")
    with pytest.raises(RuntimeError), atomic_write(file) as out:
        out.write(b"half")
        raise RuntimeError
    assert file.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "d") as temp:
        (temp / "f").write_bytes(b"half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with atomic_folder(tmp_path / "d") as temp:
        (temp / "f").write_bytes(b"whole")
        assert not (tmp_path / "d").exists()
    assert (tmp_path / "d" / "f").read_bytes() == b"whole"
    assert [entry.name for entry in tmp_path.iterdir()] == ["d"]


def test_the_first_of_two_folders_wins(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "d") as late:
        (late / "f").write_bytes(b"late")
        with atomic_folder(tmp_path / "d") as early:
            (early / "f").write_bytes(b"early")
    assert (tmp_path / "d" / "f").read_bytes() == b"early"
    assert [entry.name for entry in tmp_path.iterdir()] == ["d"]


def test_only_old_leftovers_of_killed_writers_are_removed(tmp_path: Path) -> None:
    old, young, other = (tmp_path / name for name in (".x.meshbuild-tmp-1", ".y.meshbuild-tmp-2", "mine"))
    old.mkdir()
    (old / "f").touch()
    young.touch()
    other.touch()
    now = time.time()
    os.utime(old, (now - 100, now - 100))
    os.utime(other, (now - 100, now - 100))
    assert remove_stale_temps(tmp_path, older_than_s=50, now_s=now) == 1
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [young.name, other.name]
    assert remove_stale_temps(tmp_path / "nowhere", older_than_s=0, now_s=now) == 0


def test_a_temporary_file_that_its_writer_removes_meanwhile_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, stale = (tmp_path / f".{name}.meshbuild-tmp-1" for name in ("gone", "stale"))
    stale.touch()
    monkeypatch.setattr(type(tmp_path), "iterdir", lambda _folder: iter([gone, stale]))
    assert remove_stale_temps(tmp_path, older_than_s=-60, now_s=time.time()) == 1
    assert not stale.exists()


def test_os_errors_become_ours_with_what_was_done_and_where(tmp_path: Path) -> None:
    with (
        pytest.raises(LocalFileError, match=r"could not read it: No such file.*nowhere") as caught,
        local_errors("read it"),
    ):
        (tmp_path / "nowhere").read_bytes()
    assert isinstance(caught.value.__cause__, FileNotFoundError)
