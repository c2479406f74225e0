"""Where an artifact's Go source lies: its package folder, its Go module, its workspace.

Reads folders and go.mod files, runs nothing. The formats are those of https://go.dev/ref/mod#go-mod-file and
https://go.dev/ref/mod#workspaces.
"""

from __future__ import annotations

import os
import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshbuild.errors import SourceError
from meshbuild.paths import local_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class GoSource:
    """The Go side of an artifact. Folders are relative, with slashes, so that two checkouts give equal values.

    Attributes:
        module_dir: the Go module's folder, relative to the manifest's: `.`, `..`, `service`.
        package: the package to build, relative to the Go module: `.` or `./cmd/server`.
        module_path: the name in go.mod's `module` line.
        go_lines: every `go` and `toolchain` version that go.mod and go.work ask for, as (file, version).
        vendored: whether vendor/modules.txt is there, so that nothing needs to be downloaded.
        workspace: the go.work in force, relative to the Go module's folder, or None.
    """

    module_dir: str
    package: str
    module_path: str
    go_lines: tuple[tuple[str, str], ...]
    vendored: bool
    workspace: str | None

    @property
    def program_name(self) -> str:
        """The name that the go command gives a program which it puts into a folder (cmd/go, DefaultExecName)."""
        *parents, last = posixpath.normpath(f"{self.module_path}/{self.package}").split("/")
        return parents[-1] if parents and re.fullmatch(r"v(?:[2-9]|[1-9]\d+)", last) else last


def find_source(manifest_dir: Path, package_dir: str, *, where: str) -> GoSource:
    """Find the Go module of an artifact's package folder.

    Args:
        manifest_dir: the folder that holds manifest.json.
        package_dir: the artifact's `from`, relative to it.
        where: the artifact's name for messages, e.g. `web.server`.

    Raises:
        SourceError: the folder is missing, lies outside by a link, holds no Go files, belongs to no Go module, or is a
            Go module nested in another one.
    """
    folder = manifest_dir / package_dir
    with local_errors(f"read {folder}"):
        _check_package_folder(manifest_dir, folder, where)
        root = _go_module_folder(manifest_dir, folder, where)
        go_mod = list(parse_directives((root / "go.mod").read_text(errors="replace")))
        module_path = next((words[1] for words in go_mod if words[0] == "module" and len(words) > 1), "")
        if not module_path:
            raise SourceError(f"{where}: {root / 'go.mod'} has no module line")
        workspace = _workspace(manifest_dir, root)
        go_lines = [("go.mod", version) for version in _versions(go_mod)]
        vendor_root = root
        if workspace is not None:
            vendor_root = workspace.parent
            text = workspace.read_text(errors="replace")
            go_lines += [("go.work", version) for version in _versions(list(parse_directives(text)))]
        package = _relative(folder, root)
        return GoSource(
            module_dir=_relative(root, manifest_dir),
            package="." if package == "." else f"./{package}",
            module_path=module_path,
            go_lines=tuple(go_lines),
            vendored=(vendor_root / "vendor" / "modules.txt").is_file(),
            workspace=None if workspace is None else _relative(workspace, root),
        )


def parse_directives(text: str) -> Iterator[list[str]]:
    """The directives of a go.mod or go.work text, one list of words each, blocks in parentheses flattened."""
    block = ""
    for raw in text.splitlines():
        words = re.findall(r'"[^"]*"|`[^`]*`|[^\s"`]+', raw.split("//", 1)[0])
        words = [word.strip('"`') for word in words]
        if not words:
            continue
        if block:
            if words[0] == ")":
                block = ""
            else:
                yield [block, *words]
        elif words[-1] == "(":
            block = words[0]
        else:
            yield words


def _versions(directives: list[list[str]]) -> Iterator[str]:
    for words in directives:
        if len(words) > 1 and words[0] == "go":
            yield words[1]
        elif len(words) > 1 and words[0] == "toolchain" and words[1].startswith("go"):
            yield words[1].removeprefix("go")


def _check_package_folder(manifest_dir: Path, folder: Path, where: str) -> None:
    if not folder.is_dir():
        raise SourceError(
            f"{where}: its `from` names {folder}, which is not a folder",
            hint="`from` is the folder of a Go main package, relative to manifest.json.",
        )
    if not folder.resolve().is_relative_to(manifest_dir.resolve()):
        raise SourceError(f"{where}: its `from` names {folder}, which leads outside {manifest_dir} by a link")
    if not any(
        name.endswith(".go") and not name.endswith("_test.go") for name in (entry.name for entry in folder.iterdir())
    ):
        raise SourceError(
            f"{where}: {folder} holds no Go files to build",
            hint="Name the folder of the main package itself; generated code has to be there before the build.",
        )


def _go_module_folder(manifest_dir: Path, folder: Path, where: str) -> Path:
    above = [candidate for candidate in (folder, *folder.parents) if (candidate / "go.mod").is_file()]
    if not above:
        raise SourceError(
            f"{where}: no go.mod at or above {folder}",
            hint="Run `go mod init` in the source folder, and commit go.mod.",
        )
    nested = above[0] == folder != manifest_dir and len(above) > 1 and above[1].is_relative_to(manifest_dir)
    if nested:
        raise SourceError(
            f"{where}: {folder} is a Go module of its own, nested in the one at {above[1]}",
            hint=f"Put a manifest.json into {folder}, or remove its go.mod.",
        )
    return above[0]


def _workspace(manifest_dir: Path, root: Path) -> Path | None:
    """The go.work in force: the nearest one inside the module's own tree, if it uses the Go module."""
    tree = manifest_dir if root.is_relative_to(manifest_dir) else root
    for folder in (root, *root.parents):
        file = folder / "go.work"
        if file.is_file():
            uses = [
                words[1]
                for words in parse_directives(file.read_text(errors="replace"))
                if words[0] == "use" and len(words) > 1
            ]
            return file if any((folder / use).resolve() == root.resolve() for use in uses) else None
        if folder == tree:
            return None
    return None


def _relative(path: Path, start: Path) -> str:
    return os.path.relpath(path, start).replace(os.sep, "/")
