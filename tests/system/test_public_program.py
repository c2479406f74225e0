"""A program that nobody here wrote, from the Go module proxy, with a manifest beside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from meshbuild.pins import host_platform, read_pins
from meshbuild.toolchains import ensure_toolchain, user_cache
from tests.system.conftest import PROJECT, Checkout, calls_of_go, environment, go_on_path

pytestmark = pytest.mark.system

# https://pkg.go.dev/filippo.io/age: a small tool with a few dependencies of its own.
MODULE, VERSION = "filippo.io/age", "v1.2.1"

MANIFEST = {
    "module": "age",
    "version": VERSION.removeprefix("v"),
    "slug": "age",
    "build": {
        "artifacts": [
            {
                "name": name,
                "kind": "bundle",
                "language": "go",
                "system": "arch",
                "from": f"cmd/{name}",
                "binary": name,
                "stamp": {"main.Version": "v${version}"},
            }
            for name in ("age", "age-keygen")
        ]
    },
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The program's source from the Go module proxy, writable, with a manifest beside it."""
    pin = read_pins(PROJECT / "toolchains.toml").toolchain(None, host_platform())
    toolchain = ensure_toolchain(pin, cache=user_cache(os.environ), environ=os.environ, report=print)
    env = {**environment(), "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOMODCACHE": str(tmp_path / "modules")}
    words = [toolchain.go, "mod", "download", "-modcacherw", "-json", f"{MODULE}@{VERSION}"]
    found = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    project = tmp_path / "age"
    shutil.copytree(json.loads(found.stdout)["Dir"], project)
    (project / "manifest.json").write_text(json.dumps(MANIFEST))
    shutil.copyfile(PROJECT / "toolchains.toml", project / "toolchains.toml")
    (project / "dodo.py").write_text('"""Build tasks."""\nfrom meshbuild.tasks import *\n')
    return project


@pytest.mark.parametrize("go", ["any", "none", "failing"])
def test_it_builds_publishes_fetches_and_runs(source: Path, tmp_path: Path, go: str) -> None:
    age = Checkout(source, environment() if go == "any" else go_on_path(tmp_path, go))
    assert "built age:age:arch" in age.ok("doit", "build")
    assert "nothing to do: 2 up to date" in age.ok("doit", "build")
    age.ok("meshbuild", "store", "init")
    age.ok("doit", "push")
    fetched = json.loads(age.ok("meshbuild", "fetch", "age", "--json"))
    programs = {
        artifact["artifact"]: Path(artifact["folder"]) / artifact["binary"] for artifact in fetched["artifacts"]
    }
    assert age.ok(str(programs["age"]), "--version").strip() == VERSION
    key = age.folder / "key.txt"
    age.ok(str(programs["age-keygen"]), "-o", str(key))
    assert "AGE-SECRET-KEY-1" in key.read_text()
    assert calls_of_go(tmp_path) <= {"env GOPROXY"}
