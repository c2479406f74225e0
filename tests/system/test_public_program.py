"""A program that nobody here wrote, from the Go module proxy, with a manifest beside it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.system.conftest import PROJECT, Checkout, environment

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
def age(tmp_path: Path) -> Checkout:
    go = shutil.which("go", path=environment()["PATH"])
    if go is None:
        pytest.skip("a go on PATH downloads the source for this test")
    found = subprocess.run(
        [go, "mod", "download", "-json", f"{MODULE}@{VERSION}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    project = tmp_path / "age"
    shutil.copytree(json.loads(found.stdout)["Dir"], project, copy_function=shutil.copyfile)
    for folder in (project, *(entry for entry in project.rglob("*") if entry.is_dir())):
        folder.chmod(0o755)  # the module cache is read-only
    (project / "manifest.json").write_text(json.dumps(MANIFEST))
    shutil.copyfile(PROJECT / "toolchains.toml", project / "toolchains.toml")
    (project / "dodo.py").write_text('"""Build tasks."""\nfrom meshbuild.tasks import *\n')
    return Checkout(project, environment())


def test_it_builds_publishes_fetches_and_runs(age: Checkout) -> None:
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
