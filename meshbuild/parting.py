"""Where two builds part: bundles' listings, and programs' sections, build information and Go modules.

Each difference is one line for people, in which the first one is the bundle's and the second one the rebuilt one's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from meshbuild.digests import CHUNK_SIZE_BYTES, Sha256
from meshbuild.goprogram import MAX_SECTIONS
from meshbuild.paths import local_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from meshbuild.listing import FileEntry, Listing
    from meshbuild.provenance import BuildInfo

_IDENTITY = ("module", "artifact", "version", "system", "binary")
# The linker's digests of everything else: they differ whenever anything does, and tell nothing.
_BUILD_IDS = (".note.go.buildid", ".note.gnu.build-id")


def listing_differences(first: Listing, second: Listing) -> list[str]:
    """Where two bundles part: what they call themselves, and their files with digests, sizes and modes."""
    lines = [
        f"{name}: {getattr(first, name)!r}, rebuilt {getattr(second, name)!r}"
        for name in _IDENTITY
        if getattr(first, name) != getattr(second, name)
    ]
    ours, theirs = ({file.path: file for file in listing.files} for listing in (first, second))
    for path in sorted(ours.keys() | theirs.keys(), key=str.encode):
        if path not in theirs:
            lines.append(f"{path}: in the bundle only")
        elif path not in ours:
            lines.append(f"{path}: in the rebuilt one only")
        elif ours[path] != theirs[path]:
            lines.append(f"{path}: {_file(ours[path])}, rebuilt {_file(theirs[path])}")
    return lines


def program_differences(first: Path, second: Path) -> list[str]:
    """Where two programs part: the first ELF section that differs, the others, and sections that only one of them has.

    For programs of another format, the first byte.

    Raises:
        LocalFileError: one can't be read.
    """
    with local_errors(f"compare {first} and {second}"):
        try:
            before, after = _sections(first), _sections(second)
        except (ELFError, ValueError, OSError):  # the library seeks wherever a damaged header says
            return [f"first differs at byte {_first_difference(first, second)}; they aren't both ELF programs"]
    lines = [f"section {name}: in the bundle only" for name in before if name not in after]
    lines += [f"section {name}: in the rebuilt one only" for name in after if name not in before]
    parted = [name for name in before if name in after and before[name] != after[name]]
    parted.sort(key=lambda name: name in _BUILD_IDS)
    sizes = {name: f"{name} ({_sizes(before[name].size_bytes, after[name].size_bytes)})" for name in parted}
    if parted:
        lines.append(f"first differs in section {sizes.pop(parted[0])}")
    if sizes:
        lines.append(f"also differ: {', '.join(sizes.values())}")
    return lines or ["all sections are the same; they differ in ELF's own headers or between sections"]


def build_info_differences(first: BuildInfo, second: BuildInfo) -> list[str]:
    """What two programs say otherwise of their own build: Go version, package, settings, Go modules."""
    lines = [
        f"{what}: {before}, rebuilt {after}"
        for what, before, after in (
            ("Go version", first.go_version, second.go_version),
            ("main package", first.package, second.package),
            ("main module", str(first.main), str(second.main)),
        )
        if before != after
    ]
    settings = (dict(first.settings), dict(second.settings))
    lines += [f"build setting {name}: {text}" for name, text in _changes(*settings)]
    modules = (
        {module.path: f"{module.used} {module.used.h1 or ''}".strip() for module in info.modules}
        for info in (first, second)
    )
    return lines + [f"Go module {name}: {text}" for name, text in _changes(*modules)]


@dataclass(frozen=True, slots=True)
class _Section:
    size_bytes: int
    sha256: Sha256


def _sections(program: Path) -> dict[str, _Section]:
    """An ELF program's sections in the order of the file, each with the digest of its bytes."""
    with program.open("rb") as file:
        elf = ELFFile(file)
        if elf.num_sections() > MAX_SECTIONS:
            raise ELFError(f"{program} has {elf.num_sections()} sections")
        found = {}
        for section in sorted(elf.iter_sections(), key=lambda section: int(section["sh_offset"])):
            offset, size = int(section["sh_offset"]), int(section["sh_size"])
            data = b"" if section["sh_type"] == "SHT_NOBITS" else _part(file, offset, size)
            if section.name:
                found[section.name] = _Section(size, Sha256.of(data))
        return found


def _part(file: BinaryIO, offset: int, size: int) -> bytes:
    """Bytes of a file; raises ELFError when it ends before them."""
    file.seek(offset)
    data = file.read(size) if offset + size <= os.fstat(file.fileno()).st_size else b""
    if len(data) != size:
        raise ELFError(f"a section of {size} bytes at {offset} lies outside the file")
    return data


def _sizes(before: int, after: int) -> str:
    return f"{before} bytes" + (f", rebuilt {after}" if after != before else "")


def _first_difference(first: Path, second: Path) -> int:
    """The offset of the first byte that differs; the size of the shorter file where it begins the longer one."""
    at = 0
    with first.open("rb") as one, second.open("rb") as other:
        while True:
            left, right = one.read(CHUNK_SIZE_BYTES), other.read(CHUNK_SIZE_BYTES)
            if left != right or not left:
                pairs = enumerate(zip(left, right, strict=False))
                return at + next((n for n, (a, b) in pairs if a != b), min(len(left), len(right)))
            at += len(left)


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Name and text of each entry that was removed, added or changed."""
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            yield name, f"{before[name]} in the bundle, none rebuilt"
        elif name not in before:
            yield name, f"none in the bundle, rebuilt {after[name]}"
        elif before[name] != after[name]:
            yield name, f"{before[name]}, rebuilt {after[name]}"


def _file(entry: FileEntry) -> str:
    return f"{entry.sha256.short} ({entry.size_bytes} bytes, mode {entry.mode:04o})"
