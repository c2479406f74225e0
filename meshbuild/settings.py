"""A project's settings: from flags, then MESHBUILD_* variables, then `[tool.meshbuild]` or meshbuild.toml.

Only light imports: a build that has nothing to do reads the settings too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshbuild.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

STATE_FOLDER = ".meshbuild"
DIST_FOLDER = "dist"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a command needs to know about its project. Relative paths in it are relative to `project`.

    Attributes:
        project: the folder that holds toolchains.toml.
        store: address of the bundle store: a folder, `file:` and a folder, or for reading an http(s) address.
        root: the root of trust that fetches start from (a TUF root.json).
        keys: the folder where keys made by `store init` and by the first build lie.
        builder_key: address of the key that signs bundles (docs/trust.md); empty for the project's own local key.
        publisher_key: address of the key that signs a module's releases; empty for the one in `keys`.
        channel: the channel that push and fetch use.
        compression_level: zstd's level for bundles, 1 to 22.
        require_isolation: refuse to build where compiling can't be cut off from the network (true or false).
        system: the system that fetch takes; empty for the only one there is.
        host: the folder that fetch unpacks into.
        cache_store: address of a build cache that machines share (docs/build-cache.md); empty for none.
        cache: the user's cache of toolchains, Go's caches and downloads; empty for the platform's place.
    """

    project: Path
    store: str = f"{STATE_FOLDER}/store"
    root: str = f"{STATE_FOLDER}/root.json"
    keys: str = f"{STATE_FOLDER}/keys"
    builder_key: str = ""
    publisher_key: str = ""
    channel: str = "stable"
    compression_level: int = 9
    require_isolation: bool = False
    system: str = ""
    host: str = f"{STATE_FOLDER}/host"
    cache_store: str = ""
    cache: str = ""

    @property
    def state(self) -> Path:
        """The folder of the project's own state."""
        return self.project / STATE_FOLDER

    @property
    def dist(self) -> Path:
        """The folder where bundles land."""
        return self.project / DIST_FOLDER

    def path(self, value: str) -> Path:
        """A path setting as a path: relative ones lie below the project."""
        return self.project / value


_NAMES = tuple(field.name for field in fields(Settings) if field.name != "project")


def find_project(start: Path) -> Path:
    """The nearest folder at or above start that holds a toolchains.toml, else start itself."""
    start = start.resolve()
    for folder in (start, *start.parents):
        if (folder / "toolchains.toml").is_file():
            return folder
    return start


def load_settings(project: Path, environ: Mapping[str, str], **flags: str | int | bool | None) -> Settings:
    """The settings of a project.

    Args:
        project: the project's folder.
        environ: the environment; MESHBUILD_STORE and the like are taken from it.
        flags: what the command line said; None for what it left open.

    Raises:
        SettingsError: an unknown key, a value of the wrong type or out of range, or a file that is not TOML.
    """
    values: dict[str, Any] = {}
    for where, table in _tables(project):
        _check_names(where, table)
        values.update(table)
    values.update(
        {name: environ[f"MESHBUILD_{name.upper()}"] for name in _NAMES if f"MESHBUILD_{name.upper()}" in environ}
    )
    values.update({name: value for name, value in flags.items() if value is not None})
    for name, value in values.items():
        values[name] = _PARSERS.get(name, _text)(name, value)
    return Settings(project=project, **values)


def _tables(project: Path) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for name, path in (("pyproject.toml", ("tool", "meshbuild")), ("meshbuild.toml", ())):
        file = project / name
        if not file.is_file():
            continue
        text = file.read_bytes()
        if path and b"tool.meshbuild" not in text:
            continue  # most pyproject.toml files are not about us, and parsing costs a no-op build its time
        import tomllib  # noqa: PLC0415 - most projects need none

        try:
            table: Any = tomllib.loads(text.decode())
        except ValueError as error:
            raise SettingsError(f"{file}: not TOML: {error}") from error
        for part in path:
            table = table.get(part, {})
        found.append((str(file), table))
    return found


def _check_names(where: str, table: Mapping[str, Any]) -> None:
    for name in table:
        if name not in _NAMES:
            close = get_close_matches(name, _NAMES, 1)
            raise SettingsError(
                f"{where}: unknown setting {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""),
                hint=f"Settings are: {', '.join(_NAMES)}.",
            )


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise SettingsError(f"setting {name}: expected a string, found {value!r}")
    return value


def _level(name: str, value: object) -> int:
    try:
        level = int(value)  # type: ignore[call-overload] # whatever isn't a number raises
    except (TypeError, ValueError):
        level = 0
    if isinstance(value, bool) or not 1 <= level <= 22:  # noqa: PLR2004 - zstd's own range
        raise SettingsError(f"setting {name}: expected 1 to 22, found {value!r}")
    return int(level)


def _flag(name: str, value: object) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False, "": False}
    if str(value).lower() not in known:
        raise SettingsError(f"setting {name}: expected true or false, found {value!r}")
    return known[str(value).lower()]


_PARSERS: dict[str, Callable[[str, object], Any]] = {"compression_level": _level, "require_isolation": _flag}


def current_settings(**flags: str | int | bool | None) -> Settings:
    """The settings for a command run in the current folder with the process's environment."""
    return load_settings(find_project(Path.cwd()), os.environ, **flags)
