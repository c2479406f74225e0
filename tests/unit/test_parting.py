"""Where two builds part is named: file, section, build setting, Go module."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from meshbuild.digests import Sha256
from meshbuild.listing import BundleIdentity, FileEntry, Listing
from meshbuild.parting import build_info_differences, listing_differences, program_differences
from meshbuild.provenance import GoModule, parse_build_info

IDENTITY = BundleIdentity("web", "server", "1.2", "arch", "server")
PROGRAM = FileEntry("server", Sha256.of(b"program"), 7, 0o755)
DOC = FileEntry("share/doc.txt", Sha256.of(b"doc"), 3, 0o644)
INFO = parse_build_info((Path(__file__).parent / "data/go_version_hello.json").read_bytes())


def test_equal_listings_have_no_differences() -> None:
    assert listing_differences(Listing.of(IDENTITY, [PROGRAM, DOC]), Listing.of(IDENTITY, [DOC, PROGRAM])) == []


def test_files_that_come_go_or_change_are_named_in_order_of_path() -> None:
    here = Listing.of(IDENTITY, [PROGRAM, DOC, replace(DOC, path="gone")])
    there = Listing.of(
        replace(IDENTITY, version="1.3"), [PROGRAM, replace(DOC, mode=0o755), replace(DOC, path="share/new")]
    )
    assert listing_differences(here, there) == [
        "version: '1.2', rebuilt '1.3'",
        "gone: in the bundle only",
        f"share/doc.txt: {DOC.sha256.short} (3 bytes, mode 0644), rebuilt {DOC.sha256.short} (3 bytes, mode 0755)",
        "share/new: in the rebuilt one only",
    ]


def test_equal_build_information_has_no_differences() -> None:
    assert build_info_differences(INFO, INFO) == []


def test_go_version_settings_and_modules_are_named() -> None:
    first, *rest = sorted(INFO.modules, key=lambda module: module.replacement is not None)
    other = replace(
        INFO,
        go_version="go1.99.0",
        settings=(("-tags", "netgo"), *(each for each in INFO.settings if each[0] != "GOOS"), ("GOOS", "plan9")),
        modules=(replace(first, version="v9.9.9"), *rest[1:], GoModule("example.com/added", "v1.0.0")),
    )
    lines = build_info_differences(INFO, other)
    assert f"Go version: {INFO.go_version}, rebuilt go1.99.0" in lines
    assert "build setting -tags: none in the bundle, rebuilt netgo" in lines
    assert "build setting GOOS: linux, rebuilt plan9" in lines
    assert "Go module example.com/added: none in the bundle, rebuilt example.com/added@v1.0.0" in lines
    assert any(line.startswith(f"Go module {first.path}: {first}") and "v9.9.9" in line for line in lines)
    assert any(
        line.startswith(f"Go module {rest[0].path}: ") and "in the bundle, none rebuilt" in line for line in lines
    )
    assert len(lines) == 6


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A copy of some ELF program."""
    found = shutil.which("true")
    assert found is not None
    return Path(shutil.copyfile(found, tmp_path / "program"))


def altered(program: Path, offset: int) -> Path:
    """The program with one other byte."""
    data = bytearray(program.read_bytes())
    data[offset] ^= 0xFF
    other = program.with_name("other")
    other.write_bytes(data)
    return other


def test_the_first_section_that_differs_is_named_with_its_sizes(program: Path) -> None:
    with program.open("rb") as file:
        text = ELFFile(file).get_section_by_name(".text")
        offset, size = text["sh_offset"], text["sh_size"]
    assert program_differences(program, altered(program, offset + 5)) == [
        f"first differs in section .text ({size} bytes)"
    ]


def test_the_linkers_digest_is_not_called_the_first_difference(program: Path) -> None:
    with program.open("rb") as file:
        elf = ELFFile(file)
        places = [elf.get_section_by_name(name)["sh_offset"] for name in (".note.gnu.build-id", ".rodata")]
    other = program
    for place in places:
        other = Path(shutil.copyfile(altered(other, place + 1), program.with_name(str(place))))
    first, second = program_differences(program, other)
    assert first.startswith("first differs in section .rodata ")
    assert second.startswith("also differ: .note.gnu.build-id ")


def test_headers_that_differ_are_named_too(program: Path) -> None:
    (line,) = program_differences(program, altered(program, 9))  # padding of e_ident
    assert "ELF's own headers" in line


def test_what_is_no_elf_program_is_compared_by_bytes(tmp_path: Path, program: Path) -> None:
    script = tmp_path / "script"
    script.write_bytes(program.read_bytes()[:3] + b"#")
    assert program_differences(program, script) == ["first differs at byte 3; they aren't both ELF programs"]
    longer = tmp_path / "longer"
    longer.write_bytes(script.read_bytes() + b"more")
    assert program_differences(script, longer) == ["first differs at byte 4; they aren't both ELF programs"]


@pytest.mark.parametrize("offset", [0x28 + 7, 0x28 + 5, 0x3C])  # e_shoff, with and without its sign; e_shnum
def test_a_program_with_damaged_headers_is_compared_by_bytes(program: Path, offset: int) -> None:
    assert program_differences(program, altered(program, offset)) == [
        f"first differs at byte {offset}; they aren't both ELF programs"
    ]


def test_a_section_outside_the_file_is_no_reason_to_fail(program: Path) -> None:
    with program.open("rb") as file:
        elf = ELFFile(file)
        header = elf["e_shoff"] + elf.get_section_index(".text") * elf["e_shentsize"]
    (line,) = program_differences(program, altered(program, header + 0x20 + 3))  # sh_size
    assert line.startswith("first differs at byte ")
