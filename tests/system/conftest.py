"""Copies of this project, and commands run in them the way a user runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from meshbuild.toolchains import user_cache

PROJECT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Checkout:
    """A project's folder and the environment that its user has."""

    folder: Path
    env: dict[str, str]

    def run(self, *argv: str, umask: int = 0o022, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """Run a command in the folder; its output is text, its exit code the caller's to judge."""
        return subprocess.run(
            [*prefix, *argv], cwd=self.folder, env=self.env, capture_output=True, text=True, check=False, umask=umask
        )

    def ok(self, *argv: str, umask: int = 0o022, prefix: tuple[str, ...] = ()) -> str:
        """Run a command that must succeed; returns its standard output."""
        done = self.run(*argv, umask=umask, prefix=prefix)
        assert done.returncode == 0, f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def environment(**more: str) -> dict[str, str]:
    """The environment of a user with this virtual environment in front of PATH, and no settings of meshbuild."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MESHBUILD_") or name == "MESHBUILD_CACHE"
    }
    return {**env, "PATH": f"{BIN}{os.pathsep}{env['PATH']}", **more}


def copy_project(folder: Path) -> Path:
    """Copy what git knows of this project, and nothing that was built."""
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=PROJECT, capture_output=True, check=True, text=True
    ).stdout.split("\0")
    for name in filter(None, names):
        if (PROJECT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(PROJECT / name, folder / name)
    return folder


def go_on_path(tmp_path: Path, kind: str) -> dict[str, str]:
    """The environment of a machine without a Go (`none`), or whose Go notes its arguments and fails (`failing`)."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("git", "unshare", "setpriv", "sh", "env", "true"):
        found = shutil.which(name)
        assert found is not None, f"install {name}"
        (tools / name).symlink_to(found)
    if kind == "failing":
        (tools / "go").write_text(f"#!/bin/sh\necho \"$@\" >> '{tmp_path}/calls'\nexit 1\n")
        (tools / "go").chmod(0o755)
    env = {name: value for name, value in environment().items() if not name.startswith("GO")}
    cache = tmp_path / "cache"
    cache.mkdir()
    compiled = user_cache(os.environ) / "go-build"
    compiled.mkdir(parents=True, exist_ok=True)
    (cache / "go-build").symlink_to(compiled)  # the toolchain is fetched anew, the standard library isn't compiled anew
    return {**env, "PATH": f"{BIN}{os.pathsep}{tools}", "MESHBUILD_CACHE": str(cache)}


def calls_of_go(tmp_path: Path) -> set[str]:
    """What the failing go of `go_on_path` was asked."""
    file = tmp_path / "calls"
    return set(file.read_text().splitlines()) if file.exists() else set()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A fresh copy of the project."""
    return Checkout(copy_project(tmp_path / "checkout"), environment())
