"""Where an artifact's Go source lies: its package folder, its Go module, its workspace, the modules beside it.

Reads folders and go.mod files, runs nothing. The formats are those of https://go.dev/ref/mod#go-mod-file and
https://go.dev/ref/mod#workspaces. All of it has to lie in one tree (docs/go-source.md).
"""

from __future__ import annotations

import os
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from meshbuild.errors import SourceError
from meshbuild.paths import local_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# What the root of a tree has: the project's pins, or git's own folder (a file in work trees and submodules).
_ROOT_MARKS = ("toolchains.toml", ".git")

# From this version on a go.mod lists every module that gives packages (https://go.dev/ref/mod#graph-pruning).
_PRUNED = (1, 17)


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
        go_modules: the folders of the Go modules in the tree whose go.mod takes part: the module's own, those that
            go.work uses, those that a `replace` names. Relative to the manifest's folder.
        files: every file that decides about all this by its content, or by being there or not. Relative likewise.
    """

    module_dir: str
    package: str
    module_path: str
    go_lines: tuple[tuple[str, str], ...]
    vendored: bool
    workspace: str | None
    go_modules: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def program_name(self) -> str:
        """The name that the go command gives a program which it puts into a folder (cmd/go, DefaultExecName)."""
        *parents, last = posixpath.normpath(f"{self.module_path}/{self.package}").split("/")
        return parents[-1] if parents and re.fullmatch(r"v(?:[2-9]|[1-9]\d+)", last) else last

    def folders(self, manifest_dir: Path) -> list[Path]:
        """The folders that hold all of the source: the manifest's and those of the Go modules."""
        return [manifest_dir, *(Path(os.path.normpath(manifest_dir / module)) for module in self.go_modules)]


def find_source(manifest_dir: Path, package_dir: str, *, where: str) -> GoSource:
    """Find the Go module of an artifact's package folder.

    Args:
        manifest_dir: the folder that holds manifest.json.
        package_dir: the artifact's `from`, relative to it.
        where: the artifact's name for messages, e.g. `web.server`.

    Raises:
        SourceError: the folder is missing, lies outside by a link, holds no Go files, belongs to no Go module, or is a
            Go module nested in another one; or go.mod or go.work name folders that aren't in the tree.
    """
    folder = manifest_dir / package_dir
    with local_errors(f"read {folder}"):
        _check_package_folder(manifest_dir, folder, where)
        root = _go_module_folder(manifest_dir, folder, where)
        go_mod = _read(root / "go.mod")
        module_path = next(_second_words(go_mod, "module"), "")
        if not module_path:
            raise SourceError(f"{where}: {root / 'go.mod'} has no module line")
        workspace, looked_at = _workspace(manifest_dir, root)
        vendored_by = (workspace.parent if workspace else root) / "vendor" / "modules.txt"
        vendored = vendored_by.is_file()
        package = _relative(folder, root)
        go_lines = [("go.mod", version) for version in _versions(go_mod)]
        if workspace is not None:
            go_lines += [("go.work", version) for version in _versions(_read(workspace))]
        go_modules = _modules_beside(manifest_dir, root, workspace, vendored=vendored, where=where)
        files = {
            *(above / "go.mod" for above in (folder, *folder.parents) if above.is_relative_to(root)),
            *(module / name for module in go_modules for name in ("go.mod", "go.sum")),
            *looked_at,
            vendored_by,
        }
        if workspace is not None:
            files.add(workspace.with_name("go.work.sum"))
        _check_links(files, source_tree(manifest_dir, root), where)
        return GoSource(
            module_dir=_relative(root, manifest_dir),
            package="." if package == "." else f"./{package}",
            module_path=module_path,
            go_lines=tuple(go_lines),
            vendored=vendored,
            workspace=None if workspace is None else _relative(workspace, root),
            go_modules=tuple(sorted(_relative(module, manifest_dir) for module in go_modules)),
            files=tuple(sorted(_relative(file, manifest_dir) for file in files)),
        )


def source_tree(manifest_dir: Path, root: Path) -> Path:
    """The folder that all source of an artifact has to lie in.

    It is the outermost of: the git checkout, the project (the folder with toolchains.toml), the manifest's folder, the
    Go module's. What is in it is named by a commit, or copied along with the project; what isn't, nobody else has.
    """
    start = root if manifest_dir.is_relative_to(root) else manifest_dir
    marked = [
        next((folder for folder in (start, *start.parents) if (folder / mark).exists()), start) for mark in _ROOT_MARKS
    ]
    return min(marked, key=lambda folder: len(folder.parts))


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


def _read(file: Path) -> list[list[str]]:
    return list(parse_directives(file.read_text(errors="replace")))


def _second_words(directives: Iterable[list[str]], verb: str) -> Iterator[str]:
    return (words[1] for words in directives if words[0] == verb and len(words) > 1)


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
    if "..." in str(folder):
        raise SourceError(f"{where}: its `from` names {folder}: to the go command `...` means many packages")
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
    below = _joined(manifest_dir.resolve(), _relative(above[0], manifest_dir))
    if above[0].resolve() != below:
        raise SourceError(
            f"{where}: its Go module {above[0]} is {above[0].resolve()}, reached by a link",
            hint="Relative paths in it would lead elsewhere. Name the folder itself in `from`.",
        )
    return above[0]


def _workspace(manifest_dir: Path, root: Path) -> tuple[Path | None, list[Path]]:
    """The go.work in force: the nearest one in the module's own tree, if it uses the Go module. And all looked at."""
    tree = manifest_dir if root.is_relative_to(manifest_dir) else root
    looked_at = []
    for folder in (root, *root.parents):
        file = folder / "go.work"
        looked_at.append(file)
        if file.is_file():
            used = any((folder / use).resolve() == root.resolve() for use in _second_words(_read(file), "use"))
            return (file if used else None), looked_at
        if folder == tree:
            break
    return None, looked_at


def _modules_beside(manifest_dir: Path, root: Path, workspace: Path | None, *, vendored: bool, where: str) -> set[Path]:
    """The folders of all Go modules in the tree that take part, after a look at what go.mod and go.work say of them."""
    tree = source_tree(manifest_dir, root)
    modules = {root}
    problems: list[str] = []
    if workspace is not None:
        for use in _second_words(_read(workspace), "use"):
            problems += _outside(use, workspace.parent, tree, f"{_relative(workspace, tree)}: use {use}")
            modules.add(_joined(workspace.parent, use))
    if not vendored:  # else the copy in the vendor folder is what is built
        for file, old, new in _replacements([*(module / "go.mod" for module in sorted(modules)), workspace]):
            problems += _outside(new, file.parent, tree, f"{_relative(file, tree)}: replace {old} => {new}")
            modules.add(_joined(file.parent, new))
    if problems:
        raise SourceError(
            "\n  ".join([f"{where}: its Go source isn't all in {tree}:", *problems]),
            hint="What lies elsewhere is in no commit or copy of the source: others get other bytes, or none. Move "
            "the folder into the tree and name it by a relative path, require a published version, or commit a vendor "
            f"folder (`go {'work' if workspace else 'mod'} vendor`).",
        )
    return modules


def _replacements(files: Iterable[Path | None]) -> Iterator[tuple[Path, str, str]]:
    """The `replace` lines that name a folder for a module which takes part: (file, module, folder)."""
    texts = {file: _read(file) for file in files if file is not None and file.is_file()}
    required = {path for directives in texts.values() for path in _second_words(directives, "require")}
    for file, directives in texts.items():
        version = next(_second_words(directives, "go"), "1.0")
        pruned = file.name == "go.work" or _minor(version) >= _PRUNED
        for words in directives:
            if words[0] != "replace" or "=>" not in words[2:-1]:
                continue
            new = words[words.index("=>") + 1]
            if re.match(r"\.{0,2}/|\.{1,2}$", new) and (words[1] in required or not pruned):
                yield file, words[1], new


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _outside(name: str, base: Path, tree: Path, said: str) -> Iterator[str]:
    """What is wrong with a folder that go.mod or go.work name, if anything."""
    folder = _joined(base, name)
    if posixpath.isabs(name):
        yield f"{said} is an absolute path, which is another folder on another machine"
    elif not folder.is_relative_to(tree):
        yield f"{said} leads to {folder}"
    elif not folder.resolve().is_relative_to(tree.resolve()):
        yield f"{said} leads to {folder.resolve()} by a link"


def _check_links(files: Iterable[Path], tree: Path, where: str) -> None:
    led = [file for file in sorted(files) if not file.resolve().is_relative_to(tree.resolve())]
    if led:
        raise SourceError(
            "\n  ".join(
                [f"{where}: its Go source isn't all in {tree}:", *(f"{file} leads to {file.resolve()}" for file in led)]
            ),
            hint="Put a copy of it in the place of the link.",
        )


def _joined(folder: Path, name: str) -> Path:
    return Path(os.path.normpath(folder / name))


def _relative(path: Path, start: Path) -> str:
    return os.path.relpath(path, start).replace(os.sep, "/")
