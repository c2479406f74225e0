"""Other people's tools read what meshbuild signs: cosign, the real one, built from its published source."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest

from meshbuild.pins import host_platform, read_pins
from meshbuild.toolchains import ensure_toolchain, user_cache
from tests.system.conftest import PROJECT, Checkout, copy_project, environment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system

COSIGN = "github.com/sigstore/cosign/v2/cmd/cosign@v2.6.5"


@pytest.fixture(scope="module")
def cosign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """cosign, made by the pinned compiler; the first time takes minutes."""
    pin = read_pins(PROJECT / "toolchains.toml").toolchain(None, host_platform())
    cache = user_cache(os.environ)
    toolchain = ensure_toolchain(pin, cache=cache, environ=os.environ, report=print)
    folder = cache / "tools" / COSIGN.rpartition("@")[2]
    if not (folder / "cosign").exists():
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GO") or name == "GOPROXY"},
            "HOME": str(tmp_path_factory.mktemp("home")),
            "GOTOOLCHAIN": "local",
            "GOENV": "off",
            "CGO_ENABLED": "0",
            "GOCACHE": str(cache / "go-build"),
            "GOMODCACHE": str(cache / "go-mod"),
            "GOBIN": str(folder),
        }
        done = subprocess.run([toolchain.go, "install", COSIGN], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return folder


def test_the_commands_of_the_docs_check_a_bundle_with_cosign(tmp_path: Path, cosign: Path) -> None:
    checkout = Checkout(
        copy_project(tmp_path / "checkout"),
        environment(PATH=f"{cosign}{os.pathsep}{environment()['PATH']}", HOME=str(tmp_path)),
    )
    checkout.ok("doit", "build", "hello-files:hello:arch")
    page = (PROJECT / "docs/statements.md").read_text()
    section = page.partition("### cosign\n")[2].partition("\n### ")[0]
    commands = [line.strip() for line in re.findall(r"^ {4}(.*)$", section, re.MULTILINE)]
    assert len(commands) == 5
    for command in commands:
        done = checkout.run("sh", "-c", command)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        if command.startswith("cosign"):
            assert "Verified OK" in done.stderr

    last = shlex.split(commands[-1])
    with (checkout.folder / last[-1]).open("ab") as file:
        file.write(b"x")
    done = checkout.run(*last)
    assert done.returncode != 0
    assert "no matching subject digest" in done.stderr

    checkout.ok("sh", "-c", "openssl genpkey -algorithm ed25519 | openssl pkey -pubout -out other.pub")
    third = shlex.split(commands[2])
    third[third.index("--key") + 1] = "other.pub"
    done = checkout.run(*third)
    assert done.returncode != 0
    assert "signatures" in done.stderr
