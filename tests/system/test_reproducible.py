"""Same source, same bundle: another folder, umask, time zone, language, home, day, Go on PATH."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from tests.system.conftest import Checkout, calls_of_go, copy_project, environment, go_on_path

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system


def contents(checkout: Checkout) -> dict[str, str]:
    """The content digest of each bundle in dist/."""
    return {
        file.name: json.loads(checkout.ok("meshbuild", "inspect", str(file), "--json"))["content_sha256"]
        for file in sorted((checkout.folder / "dist").glob("*.zst"))
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
def test_the_demo_works_whatever_go_is_on_path(tmp_path: Path, go: str) -> None:
    checkout = Checkout(copy_project(tmp_path / "checkout"), go_on_path(tmp_path, go))
    report = checkout.ok(sys.executable, "docs/demo.py")
    assert "answered 200 ok" in report
    assert len(contents(checkout)) >= 5
    assert calls_of_go(tmp_path) <= {"env GOPROXY"}
    assert "nothing to do: 5 up to date" in checkout.ok("doit", "build")
