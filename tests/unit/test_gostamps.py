"""Variables to stamp: there or not, told from the files that the go command lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshbuild.gostamps import stamp_problems

if TYPE_CHECKING:
    from pathlib import Path

MAIN = """package main

// comment only: commented
/* and
   blocked */
var version, commit string

var (
	built = "never"
	url   = "https://example.com/named"
)

const fixed = "x"

func main() {}
"""


@pytest.fixture
def packages(tmp_path: Path) -> list[dict[str, Any]]:
    """A main package and one that it imports, as `go list` tells."""
    for folder, text in (("cmd", MAIN), ("info", 'package info\n\nvar Version = ""\n')):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.go").write_text(text)
    (tmp_path / "cmd/other_os.go").write_text("package main\n\nvar elsewhere string\n")
    return [
        {"ImportPath": "example.com/p/info", "Dir": str(tmp_path / "info"), "GoFiles": ["x.go"]},
        {"ImportPath": "example.com/p/cmd", "Dir": str(tmp_path / "cmd"), "GoFiles": ["x.go"]},
    ]


@pytest.mark.parametrize(
    "variable",
    [
        "main.version",
        "main.commit",
        "main.built",
        "main.url",
        "example.com/p/info.Version",
        "example.com/p/cmd.version",
    ],
)
def test_one_that_is_there(packages: list[dict[str, Any]], variable: str) -> None:
    assert stamp_problems([variable], packages) == []


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("main.versoin", "`stamp` names main.versoin, and main has no variable versoin; did you mean version?"),
        ("main.commented", "`stamp` names main.commented, and main has no variable commented"),
        ("main.elsewhere", "`stamp` names main.elsewhere, and main has no variable elsewhere"),
        ("main.fixed", "`stamp` names main.fixed, which is a constant; the linker sets variables only"),
        (
            "example.com/p/inof.Version",
            (
                "`stamp` names example.com/p/inof.Version, and no package example.com/p/inof takes part in the build; "
                "did you mean example.com/p/info?"
            ),
        ),
    ],
)
def test_one_that_the_linker_would_pass_over_in_silence(
    packages: list[dict[str, Any]], variable: str, said: str
) -> None:
    assert stamp_problems([variable], packages) == [said]


def test_every_one_is_reported(packages: list[dict[str, Any]]) -> None:
    assert len(stamp_problems(["main.version", "main.a1", "main.b2", "c.d"], packages)) == 3
