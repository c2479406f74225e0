"""Same source, same bundle: another folder, umask, time zone, language, home, day, Go on PATH."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.system.conftest import Checkout, copy_project, environment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system


def contents(checkout: Checkout) -> dict[str, str]:
    """The content digest of each bundle in dist/."""
    return {
        file.name: json.loads(checkout.ok("meshbuild", "inspect", str(file), "--json"))["content_sha256"]
        for file in sorted((checkout.folder / "dist").iterdir())
    }


def test_two_clones_under_different_conditions_give_equal_content(tmp_path: Path) -> None:
    plain = Checkout(copy_project(tmp_path / "a"), environment())
    plain.ok("doit", "build")
    other = Checkout(
        copy_project(tmp_path / "b with blanks" / "ünï" / "deep"),
        environment(
            HOME=str(tmp_path / "home"),
            XDG_CACHE_HOME=str(tmp_path / "cache"),
            TZ="Pacific/Kiritimati",
            LANG="tr_TR.UTF-8",
            LC_ALL="C.UTF-8",
            GOFLAGS="-tags=nonsense -ldflags=-X=main.version=wrong",
            GOARCH="arm64",
            GOAMD64="v3",
            CGO_ENABLED="1",
            GOEXPERIMENT="nope",
            GOWORK="/nowhere/go.work",
            GOTOOLCHAIN="go1.99.0",
            SOURCE_DATE_EPOCH="1",
        ),
    )
    faketime = shutil.which("faketime")
    assert faketime is not None, "install faketime"
    other.ok("doit", "-n", "2", "build", umask=0o077, prefix=(faketime, "-f", "+1d"))
    assert len(contents(plain)) >= 5
    assert contents(plain) == contents(other)


@pytest.mark.parametrize("go", ["none", "failing"])
def test_the_go_on_path_never_matters(tmp_path: Path, go: str) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("git", "unshare", "sh", "env", "true"):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    if go == "failing":
        (tools / "go").write_text(f"#!/bin/sh\necho \"$@\" >> '{tmp_path}/calls'\nexit 1\n")
        (tools / "go").chmod(0o755)
    env = environment()
    env["PATH"] = f"{env['PATH'].split(':')[0]}:{tools}"
    checkout = Checkout(copy_project(tmp_path / "checkout"), {k: v for k, v in env.items() if not k.startswith("GO")})
    checkout.ok("doit", "build")
    calls = (tmp_path / "calls").read_text().split("\n") if (tmp_path / "calls").exists() else []
    assert set(calls) <= {"env GOPROXY", ""}
    assert len(contents(checkout)) >= 5
