"""Two bundles side by side: their files, and how their Go programs were built and what takes the space in them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from semver import Version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from meshbuild.bundle import BundleInfo
    from meshbuild.goprogram import GoProgram
    from meshbuild.listing import FileEntry
    from meshbuild.provenance import BuildInfo

Change = Literal["added", "removed", "up", "down", "changed"]
T = TypeVar("T")
STANDARD_LIBRARY = "standard library"
DATA = "data and tables"


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: what it is called, what is in it, and its program where that is one of Go."""

    name: str
    info: BundleInfo
    program: GoProgram | None


class FileChange(NamedTuple):
    """A payload file that one side lacks, or that differs in content or mode."""

    path: str
    change: Change
    before: FileEntry | None
    after: FileEntry | None


class TextChange(NamedTuple):
    """Something that is said of a build, and that differs; None where one side doesn't say it."""

    name: str
    change: Change
    before: str | None
    after: str | None


class SizeChange(NamedTuple):
    """Bytes in each of the two, whether they differ or not; 0 where it isn't there."""

    name: str
    before_bytes: int
    after_bytes: int

    @property
    def grown_bytes(self) -> int:
        """How much more the second one has."""
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True)
class Comparison:
    """How two bundles differ.

    Attributes:
        files: the payload's files that differ, in byte order of path.
        build: Go version, main package and build settings that differ.
        modules: Go modules that differ, by path; a version says "up" or "down" where both are versions.
        packages: machine code by Go package, of all, the largest change first.
        sections: bytes in the program's file by ELF section, of all, the largest change first.
    """

    first: Side
    second: Side
    files: tuple[FileChange, ...]
    build: tuple[TextChange, ...]
    modules: tuple[TextChange, ...]
    packages: tuple[SizeChange, ...]
    sections: tuple[SizeChange, ...]

    @property
    def same(self) -> bool:
        """Whether their content is the same to the byte."""
        return self.first.info.content_sha256 == self.second.info.content_sha256


def compare(first: Side, second: Side) -> Comparison:
    """Compare two bundles; of two that aren't both Go programs, the files alone."""
    before, after = first.program, second.program
    files = [
        FileChange(path, _change(old, new), old, new)
        for path, old, new in _pairs(_files(first.info), _files(second.info))
        if old != new
    ]
    if before is None or after is None:
        return Comparison(first, second, tuple(files), (), (), (), ())
    return Comparison(
        first,
        second,
        tuple(files),
        tuple(_texts(_build(before.build_info), _build(after.build_info))),
        tuple(_texts(_modules(before.build_info), _modules(after.build_info), _version_change)),
        _sizes(before.code, after.code),
        _sizes(before.sections, after.sections),
    )


def groups(program: GoProgram) -> dict[str, dict[str, int]]:
    """The bytes of a program's file by what they belong to: each Go module's packages, and sections without code.

    Returns:
        Group (a Go module by its path, `standard library`, `data and tables`) to name to bytes.
    """
    info = program.build_info
    paths = sorted([info.main.path, *(module.path for module in info.modules)], key=len, reverse=True)
    found: dict[str, Counter[str]] = {}
    for package, size in program.code.items():
        found.setdefault(_module_of(package, info.main.path, paths), Counter())[package] += size
    data = {name: size for name, size in program.sections.items() if name != ".text"}
    data["headers, gaps"] = program.size_bytes - sum(program.code.values()) - sum(data.values())
    found[DATA] = Counter({name: size for name, size in data.items() if size > 0})
    return {group: dict(sizes) for group, sizes in found.items()}


def _module_of(package: str, main: str, paths: Iterable[str]) -> str:
    if package == "main":
        return main or STANDARD_LIBRARY
    for path in paths:
        if path and (package == path or package.startswith(f"{path}/")):
            return path
    return STANDARD_LIBRARY


def _files(info: BundleInfo) -> dict[str, FileEntry]:
    return {file.path: file for file in info.listing.files}


def _build(info: BuildInfo) -> dict[str, str]:
    # A main module without a version, or (devel), says nothing: the bundle has its own.
    return {"Go version": info.go_version, "main package": info.package, **dict(info.settings)}


def _modules(info: BuildInfo) -> dict[str, str]:
    """Each module's version; with what replaces it, and its hash where versions alone don't tell."""
    return {
        module.path: module.version if module.replacement is None else f"{module.version} => {module.replacement}"
        for module in info.modules
    }


def _texts(
    before: Mapping[str, str], after: Mapping[str, str], judge: Callable[[str, str], Change] | None = None
) -> Iterable[TextChange]:
    for name, old, new in _pairs(before, after):
        if old != new:
            change = judge(old, new) if judge and old is not None and new is not None else _change(old, new)
            yield TextChange(name, change, old, new)


def _version_change(before: str, after: str) -> Change:
    """Up or down, as semantic versioning orders versions; Go's own order is the same."""
    try:
        older, newer = (Version.parse(text.removeprefix("v")) for text in (before, after))
    except ValueError:
        return "changed"
    return "up" if older < newer else "down" if newer < older else "changed"


def _sizes(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[SizeChange, ...]:
    rows = (SizeChange(name, old or 0, new or 0) for name, old, new in _pairs(before, after))
    return tuple(sorted(rows, key=lambda row: (-abs(row.grown_bytes), -row.after_bytes, row.name)))


def _change(before: object | None, after: object | None) -> Change:
    return "added" if before is None else "removed" if after is None else "changed"


def _pairs(before: Mapping[str, T], after: Mapping[str, T]) -> Iterable[tuple[str, T | None, T | None]]:
    """Name, and what each side has under it, by name in byte order."""
    for name in sorted(before.keys() | after.keys(), key=str.encode):
        yield name, before.get(name), after.get(name)
