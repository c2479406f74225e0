"""Whether the string variables that an artifact stamps are there: the linker says nothing when they aren't.

`-X` sets a package's string variable that has no value yet or a constant one (https://pkg.go.dev/cmd/link); for any
other name it does nothing, and the program says "none" in production.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_COMMENTS = re.compile(r'("(?:\\.|[^"\\\n])*"|`[^`]*`)|//[^\n]*|/\*.*?\*/', re.DOTALL)


def stamp_problems(variables: Sequence[str], packages: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is wrong with variables to stamp: their package takes no part in the build, or doesn't have them.

    Args:
        variables: import path, dot and name; `main` for the program's own package.
        packages: what `go list -deps -json` printed, the main package last.

    Raises:
        OSError: a source file can't be read.
    """
    by_path = {package["ImportPath"]: package for package in packages}
    if packages:
        by_path["main"] = packages[-1]
    return [problem for variable in variables for problem in _problems(variable, by_path)]


def _problems(variable: str, packages: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    path, _, name = variable.rpartition(".")
    package = packages.get(path)
    if package is None:
        yield f"`stamp` names {variable}, and no package {path} takes part in the build{_meant(path, packages)}"
        return
    texts = [_code(Path(package["Dir"], file)) for file in package.get("GoFiles", ())]
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    if name not in words:
        yield f"`stamp` names {variable}, and {path} has no variable {name}{_meant(name, words)}"
    elif any(re.search(rf"(?m)^const\s+{re.escape(name)}\b", text) for text in texts):
        yield f"`stamp` names {variable}, which is a constant; the linker sets variables only"


def _code(file: Path) -> str:
    """A file's text without comments."""
    return _COMMENTS.sub(lambda match: match[1] or " ", file.read_text(errors="replace"))


def _meant(word: str, known: Mapping[str, Any] | set[str]) -> str:
    close = get_close_matches(word, list(known), 1, 0.75)
    return f"; did you mean {close[0]}?" if close else ""
