"""What keeps Go source from being built, or from giving the same bytes elsewhere, seen before anything is compiled.

Looks at what `go list -e -deps -json` said (`go help list` has its fields) and at the files it speaks of; runs nothing.
Every problem is found in one pass, each in the go command's own words where it has any.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshbuild.uptodate import SOURCE_SUFFIXES, embedded_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_GENERATED = "Generated code has to be there before the build: run `go generate`, and commit what it writes."
_PLAIN_FILES = "Put plain files in the tree there, or write patterns that don't cover what is left out."
_LINKED = "Put a copy in the place of the link."
_TIDY = "Run `go mod tidy`, and commit go.mod and go.sum."
_VENDOR = "Run `go mod vendor`, and commit the vendor folder."
_NAMES = "In an import path are no blanks, no @, no letters but ASCII's. The folder of go.mod itself may have any name."
_TAGS = "`tags` in manifest.json names the build tags of an artifact."
_NESTED = "Require that Go module with a relative `replace`, or use both in a go.work, or remove the go.mod."
_CGO = "Use a package in pure Go, or the build tag that makes this one pure Go, if it has one (`tags`)."

# What is in the words of the go command, and what to do then; the first that fits counts.
_HINTS = (
    ("malformed import path", _NAMES),
    ("outside main module or its selected dependencies", _NAMES),
    ("inconsistent vendoring", _VENDOR),
    ("-mod=vendor", _VENDOR),
    ("go.sum", _TIDY),
    ("updates to go.mod needed", _TIDY),
    ("no required module provides", _TIDY),
    ("import lookup disabled", _TIDY),
)

# What the compiler says of a name that a generator should have written, or that a file without cgo lacks.
_NAME_MISSING = re.compile(r"undefined: | undefined \(|missing method |has no field or method ")

_CGO_FILE = re.compile(r'^\s*(?:import\s+)?(?:\w+\s+)?["`]C["`]\s*;?\s*$|^//go:build\s(?:.*[^!\w])?cgo\b', re.MULTILINE)
_CONSTRAINT = re.compile(r"^//go:build\s.*$", re.MULTILINE)
_GENERATE = re.compile(r"^//go:generate\s.*$", re.MULTILINE)

_VCS_NAMES = {".git", ".hg", ".svn", ".bzr"}  # `all:` leaves these out, and nobody expects otherwise
_MAX_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the source, and what to do about it; no hint where the text says it."""

    text: str
    hint: str = ""


def source_problems(packages: Sequence[Mapping[str, Any]], *, module_cache: str, tree: Path) -> list[Problem]:
    """All that is wrong with the packages of a build.

    Args:
        packages: what `go list -e -deps -json` printed, in its order.
        module_cache: where the go command keeps downloaded Go modules; what lies there is as its makers published it.
        tree: the folder that all other source has to lie in.

    Raises:
        OSError: a folder can't be read.
    """
    local = _local_modules(packages, module_cache)
    problems = []
    for package in packages:
        if "Error" in package:
            problems.append(_refused(package, local))
        elif not package.get("Standard") and not package["Dir"].startswith(module_cache + os.sep):
            problems += _outside(package, tree)
            problems += _left_out_of_embed(package)
    if any(problem.hint == _GENERATED for problem in problems):
        lines = [line for folder in dict.fromkeys(local.values()) for line in generate_lines(Path(folder))]
        problems += [Problem(f"a //go:generate line is in {line}") for line in lines[:_MAX_SHOWN]]
    return list(dict.fromkeys(problems))


def hint_for(said: str) -> str:
    """What to do about words of the go command, or "" when they say it themselves."""
    return next((hint for words, hint in _HINTS if words in said), "")


def compile_hint(said: str, packages: Iterable[Mapping[str, Any]]) -> str:
    """What may be behind a compiler's refusal: cgo that is off, or generated code that isn't there; else "".

    Args:
        said: what `go build` printed.
        packages: what `go list -e -deps -json` printed for the same build.

    Raises:
        OSError: a folder can't be read.
    """
    failed = set(re.findall(r"^# (\S+)", said, re.MULTILINE)) if _NAME_MISSING.search(said) else set()
    hints = []
    for package in packages:
        if package["ImportPath"] not in failed or "Dir" not in package:
            continue
        cgo = _cgo_files(package)
        if cgo:
            hints.append(f"{package['ImportPath']} leaves out {_list(cgo)}, since cgo is off. {_CGO}")
        lines = list(islice(generate_lines(Path(package["Dir"]), below=False), _MAX_SHOWN))
        if lines:
            hints.append(f"{_GENERATED} A //go:generate line is in {', in '.join(lines)}")
    return " ".join(hints)


def generate_lines(folder: Path, *, below: bool = True) -> Iterator[str]:
    """The //go:generate lines of a folder's Go module, or of it alone, as `file:line: text`. Raises OSError."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if below
            and name[0] not in "._"
            and name not in {"vendor", "testdata", "node_modules"}
            and not Path(parent, name, "go.mod").exists()
        )
        for name in sorted(name for name in names if name.endswith(".go")):
            text = Path(parent, name).read_text(errors="replace")
            for match in _GENERATE.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                yield f"{os.path.relpath(f'{parent}/{name}', folder)}:{line}: {match[0].strip()}"


def _local_modules(packages: Iterable[Mapping[str, Any]], module_cache: str) -> dict[str, str]:
    """The Go modules of the user's tree that give packages: path to folder."""
    found = {}
    for package in packages:
        module = package.get("Module") or {}
        folder = (module.get("Replace") or module).get("Dir")
        if folder and not folder.startswith(module_cache + os.sep):
            found[module["Path"]] = folder
    return found


def _refused(package: Mapping[str, Any], local: Mapping[str, str]) -> Problem:
    """A package that the go command itself refuses."""
    error, path = package["Error"], package["ImportPath"]
    said = error["Err"]
    importers = [name for name in error.get("ImportStack") or () if name != path]
    through = f" (imported by {', by '.join(reversed(importers))})" if importers and not error.get("Pos") else ""
    text = f"{error.get('Pos') or path}: {said}{through}"
    if "build constraints exclude all Go files" in said:
        cgo = _cgo_files(package)
        if cgo:
            return Problem(f"{path} needs cgo, which is off; left out: {_list(cgo)}{through}", _CGO)
        return Problem(text + _constraints(package), _TAGS)
    if "no matching files found" in said:
        return Problem(text, _GENERATED if any(generate_lines(Path(package["Dir"]))) else "")
    folder = _local_folder(path, local)
    if "Dir" not in package and folder is not None:
        if folder.is_dir() and any(folder.glob("*.go")):
            return Problem(f"{text}\n{folder} isn't a part of the Go module: a go.mod lies between", _NESTED)
        return Problem(f"{error.get('Pos') or path}: {path} isn't there: no Go files in {folder}", _GENERATED)
    return Problem(text, hint_for(said))


def _local_folder(path: str, local: Mapping[str, str]) -> Path | None:
    """Where a package of one of the user's Go modules has to lie."""
    for module in sorted(local, key=len, reverse=True):
        if path == module or path.startswith(f"{module}/"):
            return Path(local[module] + path.removeprefix(module))
    return None


def _outside(package: Mapping[str, Any], tree: Path) -> Iterator[Problem]:
    """Links that lead out of the tree: the package's folder, or files in it."""
    folder = Path(package["Dir"])
    candidates = [folder, *(entry for entry in sorted(folder.iterdir()) if entry.name.endswith(SOURCE_SUFFIXES))]
    root = tree.resolve()
    for path in candidates:
        if (path == folder or path.is_symlink()) and not path.resolve().is_relative_to(root):
            yield Problem(f"{package['ImportPath']}: {path} leads to {path.resolve()}, which isn't in {tree}", _LINKED)
            if path == folder:
                return


def _left_out_of_embed(package: Mapping[str, Any]) -> Iterator[Problem]:
    """Files below embedded folders that the go command drops without a word (cmd/go/internal/load, resolveEmbed)."""
    folder, embedded = Path(package["Dir"]), set(package.get("EmbedFiles", ()))
    for pattern in package.get("EmbedPatterns", ()):
        for name in embedded_files(str(folder), pattern):
            if name not in embedded and not _VCS_NAMES.intersection(name.split("/")):
                why = _why_left_out(folder, name)
                yield Problem(
                    f"{package['ImportPath']}: //go:embed {pattern} would leave out {folder / name}: {why}",
                    _PLAIN_FILES,
                )


def _why_left_out(folder: Path, name: str) -> str:
    path = folder / name
    nested = [parent for parent in path.parents if parent != folder and parent.is_relative_to(folder)]
    if any((parent / "go.mod").exists() for parent in nested):
        return "it is in a Go module of its own"
    if path.is_symlink():
        return "it is a link"
    if not path.is_file():
        return "it is no regular file"
    return "a Go module can't have files of such a name"


def _texts(package: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and text of the Go files that the go command left out."""
    for name in package.get("IgnoredGoFiles", ()):
        yield name, Path(package["Dir"], name).read_text(errors="replace")


def _cgo_files(package: Mapping[str, Any]) -> list[str]:
    return [name for name, text in _texts(package) if _CGO_FILE.search(text)]


def _list(names: Sequence[str]) -> str:
    return ", ".join([*names[:_MAX_SHOWN], *(["..."] if len(names) > _MAX_SHOWN else [])])


def _constraints(package: Mapping[str, Any]) -> str:
    found = [f"\n    {name}: {match[0]}" for name, text in _texts(package) if (match := _CONSTRAINT.search(text))]
    return "".join(found[:_MAX_SHOWN])
