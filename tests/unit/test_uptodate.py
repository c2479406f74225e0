"""What counts as changed, and what doesn't."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from meshbuild import uptodate
from meshbuild.uptodate import DigestMemory, Record, Snapshot, digest_input, is_up_to_date


def write(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def age(path: Path, by_s: float = 3600) -> None:
    """Put the mtime back; the ctime can't be, so wait until it is no longer racy."""
    then = time.time() - by_s
    os.utime(path, (then, then))
    time.sleep(0.06)


@pytest.fixture
def memory(tmp_path: Path) -> DigestMemory:
    return DigestMemory(tmp_path / "digests.json")


def digest(name: str, project: Path, memory: DigestMemory) -> str:
    return digest_input(name, project, Snapshot(memory))


def test_touching_a_file_changes_nothing_and_changing_a_byte_under_the_same_mtime_does(
    tmp_path: Path, memory: DigestMemory
) -> None:
    file = write(tmp_path / "a.go", "one")
    age(file)
    before, stamp = digest("file:a.go", tmp_path, memory), file.stat()
    os.utime(file)
    assert digest("file:a.go", tmp_path, memory) == before
    file.write_text("two")
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert digest("file:a.go", tmp_path, memory) != before


def test_a_file_swapped_by_rename_with_equal_size_and_mtime_is_seen(tmp_path: Path, memory: DigestMemory) -> None:
    old, new = write(tmp_path / "a", "one"), write(tmp_path / "b", "two")
    for file in (old, new):
        os.utime(file, (1, 1))
    time.sleep(0.06)
    before = digest("file:a", tmp_path, memory)
    new.rename(old)
    assert digest("file:a", tmp_path, memory) != before


def test_digests_are_remembered_over_runs_but_not_those_of_files_just_written(tmp_path: Path) -> None:
    settled, racy = write(tmp_path / "settled"), tmp_path / "racy"
    time.sleep(0.06)
    memory = DigestMemory(tmp_path / "digests.json")
    write(racy)
    for name in ("settled", "racy"):
        digest(f"file:{name}", tmp_path, memory)
    memory.save()
    saved = (tmp_path / "digests.json").read_text()
    assert str(settled) in saved
    assert str(racy) not in saved


def test_a_remembered_file_is_not_read_again(
    tmp_path: Path, memory: DigestMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a")
    time.sleep(0.06)
    before = digest("file:a", tmp_path, memory)
    monkeypatch.setattr(uptodate.Sha256, "of_file", lambda _path: pytest.fail("read again"))
    assert digest("file:a", tmp_path, memory) == before


@pytest.mark.parametrize("name", ["package:p", "embed:p:*.go", "glob:p:*.go", "file:p/a.go"])
def test_one_snapshot_looks_at_an_input_once_and_the_next_one_anew(
    tmp_path: Path, memory: DigestMemory, name: str
) -> None:
    file = write(tmp_path / "one/p/a.go")
    write(tmp_path / "two/p/a.go", "another project's")
    snapshot = Snapshot(memory)
    before = digest_input(name, tmp_path / "one", snapshot)
    assert digest_input(name, tmp_path / "two", snapshot) != before
    file.rename(file.with_name("b.go"))
    assert digest_input(name, tmp_path / "one", snapshot) == before
    assert digest(name, tmp_path / "one", memory) != before


@pytest.mark.parametrize("rubbish", [b"", b"[]", b"{", b"\xff", b'{"a": 1}'])
def test_a_damaged_memory_is_no_memory(tmp_path: Path, rubbish: bytes) -> None:
    write(tmp_path / "a")
    (tmp_path / "digests.json").write_bytes(rubbish)
    assert digest("file:a", tmp_path, DigestMemory(tmp_path / "digests.json")) == uptodate.Sha256.of(b"x")


def test_a_package_is_its_source_files_and_not_its_tests_or_readme(tmp_path: Path, memory: DigestMemory) -> None:
    write(tmp_path / "p/main.go")
    before = digest("package:p", tmp_path, memory)
    for unrelated in ("p/main_test.go", "p/README.md", "p/_draft.go", "p/.hidden.go", "p/sub/other.go"):
        write(tmp_path / unrelated)
    assert digest("package:p", tmp_path, memory) == before
    write(tmp_path / "p/extra.s")
    assert digest("package:p", tmp_path, memory) != before


def test_a_renamed_source_file_is_a_change(tmp_path: Path, memory: DigestMemory) -> None:
    write(tmp_path / "p/a.go")
    before = digest("package:p", tmp_path, memory)
    (tmp_path / "p/a.go").rename(tmp_path / "p/a_windows.go")
    assert digest("package:p", tmp_path, memory) != before


def test_a_missing_package_has_a_digest_too(tmp_path: Path, memory: DigestMemory) -> None:
    gone = digest("package:p", tmp_path, memory)
    write(tmp_path / "p/a.go")
    assert digest("package:p", tmp_path, memory) != gone


@pytest.mark.parametrize(
    ("pattern", "added", "seen"),
    [
        ("static", "static/new.txt", True),
        ("static", "static/deep/new.txt", True),
        ("static", "static/.hidden", False),
        ("static", "static/_draft", False),
        ("all:static", "static/.hidden", True),
        ("static/*.txt", "static/new.txt", True),
        ("static/*.txt", "static/new.css", False),
        ("static/*.txt", "static/deep/new.txt", False),
        ("*.txt", "new.txt", True),
    ],
)
def test_embeds_follow_go_rules(tmp_path: Path, memory: DigestMemory, pattern: str, added: str, seen: bool) -> None:
    write(tmp_path / "p/static/a.txt")
    before = digest(f"embed:p:{pattern}", tmp_path, memory)
    write(tmp_path / "p" / added)
    assert (digest(f"embed:p:{pattern}", tmp_path, memory) != before) is seen


def test_a_glob_sees_new_changed_and_removed_files(tmp_path: Path, memory: DigestMemory) -> None:
    file = write(tmp_path / "m/share/a.txt")
    seen = [digest("glob:m:share/**", tmp_path, memory)]
    write(tmp_path / "m/share/deep/b.txt")
    seen.append(digest("glob:m:share/**", tmp_path, memory))
    file.write_text("y")
    seen.append(digest("glob:m:share/**", tmp_path, memory))
    file.unlink()
    seen.append(digest("glob:m:share/**", tmp_path, memory))
    assert len(set(seen)) == 4


@pytest.fixture
def built(tmp_path: Path) -> Record:
    write(tmp_path / "dist/b.tar.zst", "bundle")
    write(tmp_path / "a.go")
    files = Snapshot(DigestMemory(tmp_path / "none.json"))
    inputs = {"file:a.go": digest_input("file:a.go", tmp_path, files)}
    blob = uptodate.Sha256.of(b"bundle")
    return Record(
        fingerprint="f", inputs=inputs, bundle="dist/b.tar.zst", blob_sha256=blob, content_sha256="c", size_bytes=6
    )


def current(record: Record | None, project: Path, fingerprint: str = "f") -> bool:
    files = Snapshot(DigestMemory(project / "none.json"))
    return is_up_to_date(record, fingerprint=fingerprint, project=project, files=files)


def test_a_whole_bundle_with_unchanged_inputs_is_up_to_date(tmp_path: Path, built: Record) -> None:
    assert current(built, tmp_path)


def test_no_record_another_fingerprint_or_another_input_is_not(tmp_path: Path, built: Record) -> None:
    assert not current(None, tmp_path)
    assert not current(built, tmp_path, fingerprint="g")
    assert not current(replace(built, inputs={"file:a.go": "absent"}), tmp_path)


def test_a_truncated_altered_or_missing_bundle_is_not(tmp_path: Path, built: Record) -> None:
    bundle = tmp_path / built.bundle
    bundle.write_text("bundl")
    assert not current(built, tmp_path)
    bundle.write_text("bundlE")
    assert not current(built, tmp_path)
    bundle.unlink()
    assert not current(built, tmp_path)


@pytest.mark.parametrize("rubbish", ["", "{", "[]", '{"fingerprint": "f"}', '{"other": 1}'])
def test_a_damaged_record_means_build(tmp_path: Path, rubbish: str) -> None:
    assert uptodate.read_record(write(tmp_path / "r.json", rubbish)) is None


def test_records_round_trip(tmp_path: Path, built: Record) -> None:
    uptodate.write_record(tmp_path / "r.json", built)
    assert uptodate.read_record(tmp_path / "r.json") == built


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("s/*.txt", ["s/.h.txt", "s/a.txt", "s/b.txt", "s/sub.txt"]),
        ("s/?.txt", ["s/a.txt", "s/b.txt"]),
        ("s/[^b].txt", ["s/a.txt"]),
        ("s/[a-b].txt", ["s/a.txt", "s/b.txt"]),
        (r"[s]/[\^a].txt", ["s/a.txt"]),
        (r"s/\a.t[xX]t", ["s/a.txt"]),
        (r"s/\[1\]", ["s/[1]"]),
        (r"s/[\[]1[\]]", ["s/[1]"]),
        ("s/[[]1]", ["s/[1]"]),
        ("s", ["s/[1]", "s/a.txt", "s/b.txt", "s/folder", "s/sub.txt"]),
        ("all:s", ["s/.h.txt", "s/[1]", "s/a.txt", "s/b.txt", "s/folder", "s/sub.txt"]),
        ("nothing", []),
    ],
)
def test_embed_patterns_mean_what_go_means(tmp_path: Path, pattern: str, names: list[str]) -> None:
    for name in (".h.txt", "a.txt", "b.txt", "[1]"):
        write(tmp_path / "s" / name)
    write(tmp_path / "elsewhere/x")
    (tmp_path / "s/folder").symlink_to("../elsewhere")
    (tmp_path / "s/sub.txt").symlink_to("nowhere")
    assert uptodate.embedded_files(str(tmp_path), pattern) == names
