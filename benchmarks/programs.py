"""Published Go programs that the benchmarks build, and the pinned toolchain with its own folders to build them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from meshbuild.pins import host_platform, read_pins
from meshbuild.toolchains import ensure_toolchain, user_cache

if TYPE_CHECKING:
    from collections.abc import Sequence

PROJECT = Path(__file__).resolve().parents[1]
DOIT = str(Path(sys.executable).with_name("doit"))
MESHBUILD = str(Path(sys.executable).with_name("meshbuild"))


@dataclass(frozen=True, slots=True)
class Program:
    """A Go program from the module proxy: its Go module, the version, and its package below the module's root."""

    module: str
    version: str
    package: str

    @property
    def name(self) -> str:
        """The program's own name."""
        return (self.package or re.sub(r"/v\d+$", "", self.module)).rpartition("/")[2]


ESBUILD = Program("github.com/evanw/esbuild", "v0.25.11", "cmd/esbuild")


def environment(**more: str) -> dict[str, str]:
    """The user's environment without settings of Go and meshbuild, but for where Go modules come from."""
    env = {
        name: value
        for name, value in os.environ.items()
        if name == "GOPROXY" or not name.startswith(("GO", "MESHBUILD_"))
    }
    return {**env, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}", **more}


class Bench:
    """A folder to measure in: the pinned toolchain, downloaded modules, and caches that `clear` empties."""

    def __init__(self, work: Path) -> None:
        pin = read_pins(PROJECT / "toolchains.toml").toolchain(None, host_platform())
        toolchain = ensure_toolchain(pin, cache=user_cache(os.environ), environ=os.environ, report=print)
        self.work = work
        self.go = toolchain.go
        self.modules = work / "go-mod"
        self.cache = work / "cache"
        self._toolchains = toolchain.root.parent

    def fetch(self, program: Program, folder: Path) -> None:
        """Put a program's source into a folder with a manifest, and all that it needs into the module cache."""
        env = environment(GOMODCACHE=str(self.modules), GOTOOLCHAIN="local", GOFLAGS="-modcacherw")
        words = [str(self.go), "mod", "download", "-json", f"{program.module}@{program.version}"]
        found = subprocess.run(words, env=env, cwd=self.work, capture_output=True, text=True, check=True)
        shutil.copytree(json.loads(found.stdout)["Dir"], folder, copy_function=shutil.copyfile)
        words = [str(self.go), "list", "-deps", f"./{program.package}"]
        subprocess.run(words, env=env, cwd=folder, capture_output=True, check=True)
        artifact = {
            "name": program.name,
            "kind": "bundle",
            "language": "go",
            "system": "arch",
            "from": program.package or ".",
            "binary": program.name,
        }
        manifest = {"module": program.name, "version": program.version[1:], "build": {"artifacts": [artifact]}}
        (folder / "manifest.json").write_text(json.dumps(manifest))

    def make_project(self, folder: Path) -> None:
        """Put beside manifests what makes a folder a project."""
        (folder / "dodo.py").write_text("from meshbuild.tasks import *\n")
        shutil.copyfile(PROJECT / "toolchains.toml", folder / "toolchains.toml")

    def clear(self, project: Path) -> None:
        """Leave of a project and of the caches what a machine has that never built it, but has its modules."""
        for folder in (self.cache, project / ".meshbuild", project / "dist"):
            shutil.rmtree(folder, ignore_errors=True)
        self.cache.mkdir()
        (self.cache / "toolchains").symlink_to(self._toolchains)
        (self.cache / "go-mod").symlink_to(self.modules)

    def our_env(self, **more: str) -> dict[str, str]:
        """The environment in which `doit build` uses this bench's caches."""
        return environment(MESHBUILD_CACHE=str(self.cache), **more)

    def go_env(self, **more: str) -> dict[str, str]:
        """The environment in which peers compile with the same toolchain, modules and (cold) build cache as ours."""
        (self.cache / "home").mkdir(exist_ok=True)
        return {
            "PATH": f"{self.go.parent}:/usr/bin:/bin",
            "HOME": str(self.cache / "home"),
            "GOCACHE": str(self.cache / "go-build"),
            "GOMODCACHE": str(self.modules),
            "GOENV": "off",
            "GOTOOLCHAIN": "local",
            "GOPROXY": "off",
            "CGO_ENABLED": "0",
            "GOOS": "linux",
            "GOARCH": "amd64",
            "GOAMD64": "v1",
            **more,
        }

    def go_build(self, program: Program, output: Path, *more: str) -> Sequence[str]:
        """The plain go command that gives the program that our manifest asks for."""
        flags = ["-trimpath", "-buildvcs=false", "-ldflags=-s -w", *more]
        return [str(self.go), "build", *flags, "-o", str(output), f"./{program.package}"]
