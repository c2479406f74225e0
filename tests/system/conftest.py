"""Copies of this project, and commands run in them the way a user runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

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


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A fresh copy of the project."""
    return Checkout(copy_project(tmp_path / "checkout"), environment())
