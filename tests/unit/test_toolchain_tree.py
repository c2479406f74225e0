"""A toolchain's tree is the same from every form of archive, and nothing hostile is ever written."""

from __future__ import annotations

import os
import stat
import struct
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from meshbuild import toolchain_tree
from meshbuild.digests import Sha256
from meshbuild.errors import ToolchainMismatchError
from meshbuild.toolchain_tree import LISTING, tree_digest, unpack
from tests.unit import faketoolchain as fake

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


def unpacked(tmp_path: Path, data: bytes, prefix: str = "go/") -> Sha256:
    """Unpack an archive into tmp_path/tree."""
    (tmp_path / "archive").write_bytes(data)
    (tmp_path / "tree").mkdir()
    return unpack(tmp_path / "archive", prefix=prefix, into=tmp_path / "tree", progress=lambda _done, _total: None)


def refusal(tmp_path: Path, data: bytes, prefix: str = "go/") -> str:
    """Why an archive is refused; nothing of it may have been written."""
    with pytest.raises(ToolchainMismatchError) as caught:
        unpacked(tmp_path, data, prefix)
    assert list((tmp_path / "tree").iterdir()) == []
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["archive", "tree"]
    return str(caught.value)


def content(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("strict_umask")
@pytest.mark.parametrize(
    ("data", "prefix"),
    [(fake.archive_tar(), "go/"), (fake.wheel(), "go/"), (fake.module_zip(), fake.MODULE_PREFIX)],
    ids=["archive", "wheel", "module"],
)
def test_every_form_gives_the_same_tree(tmp_path: Path, data: bytes, prefix: str) -> None:
    root = tmp_path / "tree"
    assert unpacked(tmp_path, data, prefix) == fake.tree_of(fake.FILES)
    found = content(root)
    listing = found.pop(LISTING)
    assert found == fake.FILES
    assert Sha256.of(listing) == fake.tree_of(fake.FILES)
    assert tree_digest(root) == fake.tree_of(fake.FILES)
    executable = {"bin/go", "bin/gofmt", "pkg/tool/linux_amd64/compile"}
    for path in (root, *root.rglob("*")):
        wanted = 0o755 if path.is_dir() or path.relative_to(root).as_posix() in executable else 0o644
        assert stat.S_IMODE(path.lstat().st_mode) == wanted, path


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(fake.wheel())
    (tmp_path / "tree").mkdir()
    seen: list[tuple[int, int]] = []
    unpack(tmp_path / "archive", prefix="go/", into=tmp_path / "tree", progress=lambda *numbers: seen.append(numbers))
    total = sum(map(len, fake.FILES.values()))
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)


def test_the_digest_covers_every_byte_and_name(tmp_path: Path) -> None:
    unpacked(tmp_path, fake.wheel())
    root = tmp_path / "tree"
    whole = tree_digest(root)
    (root / "README.md").write_text("left away")
    (root / "test").mkdir()
    (root / "test" / "x.go").write_text("left away")
    assert tree_digest(root) == whole
    (root / "src" / "new.go").write_text("")
    added = tree_digest(root)
    (root / "src" / "new.go").rename(root / "src" / "newer.go")
    renamed = tree_digest(root)
    (root / "src" / "newer.go").unlink()
    (root / "bin" / "go").write_bytes(b"#!/bin/sh\necho fakd\n")
    assert len({whole, added, renamed, tree_digest(root)}) == 4


def test_a_tree_with_a_link_has_no_digest(tmp_path: Path) -> None:
    unpacked(tmp_path, fake.wheel())
    (tmp_path / "tree" / "src" / "link.go").symlink_to("a.go")
    with pytest.raises(ToolchainMismatchError, match=r"src/link\.go is not a regular file"):
        tree_digest(tmp_path / "tree")
    (tmp_path / "tree" / "src" / "link.go").unlink()
    (tmp_path / "tree" / "src" / "folder").symlink_to("/", target_is_directory=True)
    with pytest.raises(ToolchainMismatchError, match="src/folder is not a regular file"):
        tree_digest(tmp_path / "tree")


HOSTILE_NAMES = {
    "/etc/x": "is absolute",
    "go/../../x": "leads outside",
    "../x": "leads outside",
    "go/src/../../../x": "leads outside",
    "go/src//x": "empty or '.' part",
    "go/./src/x": "empty or '.' part",
    "go/src/a\\b": "backslash",
    "go/src/a\nb": "control character",
    f"go/src/{'x' * 1100}": "longer than 1024 bytes",
}


@pytest.mark.parametrize(("name", "why"), HOSTILE_NAMES.items())
def test_hostile_names(tmp_path: Path, name: str, why: str) -> None:
    good = {f"go/{path}": data for path, data in fake.FILES.items()}
    (tmp_path / "zip").mkdir()
    (tmp_path / "tar").mkdir()
    for folder, data in (("zip", fake.make_zip({**good, name: b"x"})), ("tar", fake.make_tar({**good, name: b"x"}))):
        message = refusal(tmp_path / folder, data)
        assert message.startswith("it holds a hostile name, which ")
        assert why in message


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE]
)
@pytest.mark.parametrize("name", ["go/src/x", "go/test/x", "elsewhere"])
def test_links_and_devices_in_a_tar(tmp_path: Path, kind: bytes, name: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "go/bin/go"
    data = fake.make_tar({"go/bin/go": b"x", name: info})
    assert refusal(tmp_path, data) == f"it holds {name!r}, which is neither a file nor a folder"


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO])
def test_links_and_devices_in_a_zip(tmp_path: Path, kind: int) -> None:
    with zipfile.ZipFile(tmp_path / "made", "w") as made:
        made.writestr("go/bin/go", b"x")
        info = zipfile.ZipInfo("go/src/x")
        info.external_attr = (kind | 0o777) << 16
        made.writestr(info, b"/etc/passwd")
    data = (tmp_path / "made").read_bytes()
    (tmp_path / "made").unlink()
    assert refusal(tmp_path, data) == "it holds 'go/src/x', which is neither a file nor a folder"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_duplicates(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "made", "w") as made:
        made.writestr("go/src/x", b"1")
        made.writestr("go/src/x", b"2")
    data = (tmp_path / "made").read_bytes()
    (tmp_path / "made").unlink()
    assert refusal(tmp_path, data) == "it holds 'src/x' twice"


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"go/src/_go.mod": b"1", "go/src/go.mod": b"2"}, "it holds 'src/go.mod' twice"),
        ({"go/src/a": b"1", "go/src/a/b": b"2"}, "it holds 'src/a' both as a file and as a folder"),
    ],
)
def test_names_that_meet(tmp_path: Path, members: Mapping[str, bytes], message: str) -> None:
    (tmp_path / "zip").mkdir()
    (tmp_path / "tar").mkdir()
    assert refusal(tmp_path / "zip", fake.make_zip(members)) == message
    assert refusal(tmp_path / "tar", fake.make_tar(members)) == message


def test_too_many_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain_tree, "MAX_MEMBERS", 5)
    data = fake.make_zip({f"elsewhere/{number}": b"" for number in range(6)})
    assert "it holds more than any toolchain does: over 5 entries" in refusal(tmp_path, data)


def test_a_bomb(tmp_path: Path) -> None:
    one = bytes(64 << 20)
    for form, make in (("zip", fake.make_zip), ("tar", fake.make_tar)):
        (tmp_path / form).mkdir()
        data = make({f"go/src/{number}": one for number in range(3)})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(toolchain_tree, "MAX_CONTENT_BYTES", 128 << 20)
            assert "it holds more than any toolchain does" in refusal(tmp_path / form, data)


def test_a_zip_that_lies_about_its_sizes(tmp_path: Path) -> None:
    data = bytearray(fake.make_zip({"go/src/x": b"0123456789" * 1000}))
    entry = data.index(b"PK\x01\x02")
    struct.pack_into("<I", data, entry + 24, 10)  # the size that the directory declares
    (tmp_path / "archive").write_bytes(data)
    (tmp_path / "tree").mkdir()
    with pytest.raises(ToolchainMismatchError, match="it can't be unpacked"):
        unpack(tmp_path / "archive", prefix="go/", into=tmp_path / "tree", progress=lambda _done, _total: None)
    assert (tmp_path / "tree" / "src" / "x").stat().st_size <= 10


@pytest.mark.parametrize("data", [b"", b"neither zip nor tar", fake.archive_tar()[:-100], fake.wheel()[:200]])
def test_what_is_no_archive(tmp_path: Path, data: bytes) -> None:
    assert refusal(tmp_path, data).startswith("it can't be unpacked: ")


def test_an_archive_with_nothing_under_the_prefix_is_an_empty_tree(tmp_path: Path) -> None:
    assert unpacked(tmp_path, fake.make_zip({"other/bin/go": b"x"})) == fake.tree_of({})
