"""A small project of two artifacts, and commands run in it as a user runs them: the real compiler, the real doit."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.system.conftest import PROJECT, Checkout, copy_project, environment

if TYPE_CHECKING:
    from pathlib import Path

MAIN = """package main

import (
	_ "embed"
	"fmt"
	"os"

	"example.com/tiny/words"
)

//go:embed static/greeting.txt
var greeting string

var version = "none"

func main() {
	if len(os.Args) > 1 {
		fmt.Println(version)
		return
	}
	fmt.Println(greeting, words.Name)
}
"""


def artifact(name: str, **more: object) -> dict[str, object]:
    """An artifact of the tiny module."""
    return {
        "name": name,
        "kind": "bundle",
        "language": "go",
        "system": "arch",
        "from": f"cmd/{name}",
        "binary": name,
        **more,
    }


def write_manifest(folder: Path, *artifacts: dict[str, object], **more: object) -> None:
    """Write the tiny module's manifest."""
    manifest = {"module": "tiny", "version": "1", "slug": "tiny", "build": {"artifacts": list(artifacts)}, **more}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2))


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A fresh copy of this repository."""
    return Checkout(copy_project(tmp_path / "checkout"), environment())


@pytest.fixture
def tiny(tmp_path: Path) -> Checkout:
    """A project with the artifacts `one`, which embeds a file and imports a package, and `two`, which does neither."""
    return write_tiny(tmp_path / "tiny")


def write_tiny(folder: Path) -> Checkout:
    """Write the tiny project into a folder."""
    files = {
        "go.mod": "module example.com/tiny\n\ngo 1.26\n",
        "cmd/one/main.go": MAIN,
        "cmd/one/static/greeting.txt": "hello",
        "cmd/two/main.go": 'package main\n\nfunc main() { println("two") }\n',
        "words/words.go": 'package words\n\nconst Name = "world"\n',
        "share/doc.txt": "doc\n",
        "dodo.py": '"""Build tasks."""\nfrom meshbuild.tasks import *\n',
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    shutil.copyfile(PROJECT / "toolchains.toml", folder / "toolchains.toml")
    one = artifact("one", stamp={"main.version": "${version}"}, files=[{"from": "share/*.txt", "to": "share"}])
    write_manifest(folder, one, artifact("two"))
    return Checkout(folder, environment())
