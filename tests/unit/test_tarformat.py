from __future__ import annotations

import io
import subprocess
import tarfile
from typing import TYPE_CHECKING

import pytest

from meshbuild.tarformat import END, describe_header, entry_header, header_size_field, padding, tar_size

if TYPE_CHECKING:
    from pathlib import Path

PATHS = [
    "a",
    "n" * 100,
    "n" * 101,
    "d" * 155 + "/" + "n" * 100,
    "d" * 156 + "/" + "n" * 100,
    "d" * 155 + "/" + "n" * 101,
    "d/" * 70 + "n" * 99,
    "x" * 30 + "/" + "ü" * 50,
    "ü" * 51,
    "a b/c'\"d",
]


def test_plain_header_is_these_bytes() -> None:
    header = entry_header("bin/tool", 0o1234, 0o755)
    assert len(header) == 512
    assert header[:100] == b"bin/tool" + bytes(92)
    assert header[100:148] == b"0000755\x000000000\x000000000\x0000000001234\x0000000000000\x00"
    assert header[148:156] == b"%06o\0 " % sum(header[:148] + b" " * 8 + header[156:])
    assert header[156:] == b"0" + bytes(100) + b"ustar\x0000" + bytes(64) + b"0000000\0" * 2 + bytes(167)


@pytest.mark.parametrize("path", PATHS)
def test_gnu_tar_lists_and_extracts_what_was_meant(path: str, tmp_path: Path) -> None:
    if max(map(len, path.encode().split(b"/"))) > 255:
        pytest.skip("no file system holds it")
    data = b"content"
    archive = entry_header(path, len(data), 0o755) + data + padding(len(data)) + END
    assert len(archive) == tar_size([(path, len(data), 0o755)])
    (tmp_path / "a.tar").write_bytes(archive)
    command = ["tar", "--utc", "--full-time", "--numeric-owner", "--quoting-style=literal", "-tvf", tmp_path / "a.tar"]
    listed = subprocess.run(command, check=True, capture_output=True)
    assert listed.stderr == b""
    assert listed.stdout == b"-rwxr-xr-x 0/0               7 1970-01-01 00:00:00 " + path.encode() + b"\n"
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["tar", "-C", out, "-xf", tmp_path / "a.tar"], check=True)
    assert [file.relative_to(out).as_posix() for file in out.rglob("*") if file.is_file()] == [path]
    assert (out / path).read_bytes() == data


@pytest.mark.parametrize("path", PATHS)
def test_pythons_tarfile_reads_the_same_entry(path: str) -> None:
    archive = entry_header(path, 3, 0o644) + b"abc" + padding(3) + END
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        (info,) = tar.getmembers()
    assert (info.name, info.size, info.mode, info.mtime, info.uid, info.gid) == (path, 3, 0o644, 0, 0, 0)
    assert (info.uname, info.gname, info.type) == ("", "", tarfile.REGTYPE)


def test_pax_is_used_only_where_ustar_cannot_hold_the_path() -> None:
    pax = [path for path in PATHS if b"ustar" in entry_header(path, 0, 0o644)[512:]]
    assert pax == ["n" * 101, "d" * 156 + "/" + "n" * 100, "d" * 155 + "/" + "n" * 101, "ü" * 51]


def test_files_of_8_gib_and_more_have_their_size_in_a_pax_record() -> None:
    assert header_size_field(entry_header("a", 8**11 - 1, 0o644)) == 8**11 - 1
    header = entry_header("a", 8**11, 0o644)
    assert len(header) == 3 * 512
    assert header[512:].startswith(b"19 size=8589934592\n\0")
    with tarfile.open(fileobj=io.BytesIO(header)) as tar:
        info = tar.next()
    assert info is not None
    assert info.size == 8**11


@pytest.mark.parametrize("length", range(80, 120))
def test_pax_records_count_their_own_length(length: int) -> None:
    path = "u" * (length + 100)
    text = entry_header(path, 0, 0o644)[512:1024].rstrip(b"\0")
    size, _, rest = text.partition(b" ")
    assert int(size) == len(text)
    assert rest == b"path=" + path.encode() + b"\n"


def test_descriptions_are_for_people() -> None:
    assert describe_header(entry_header("bin/tool", 1, 0o755)) == ("a file", "bin/tool")
    assert describe_header(entry_header("d" * 60 + "/" + "n" * 60, 1, 0o755)) == ("a file", "d" * 60 + "/" + "n" * 60)
    assert describe_header(END) == ("the end of the tar", "")
    assert describe_header(b"x" * 512) == ("bytes that are no tar header", "")
    assert describe_header(b"\xff" + entry_header("xyz", 0, 0o644)[1:]) == ("a file", "\\xffyz")
