"""The modules of this repository: their Go tests under the pinned compiler, and what their manifests build."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from meshbuild.manifest import read_manifest
from meshbuild.pins import host_platform, read_pins
from meshbuild.toolchains import Toolchain, ensure_toolchain, user_cache
from tests.system.conftest import PROJECT

if TYPE_CHECKING:
    from pathlib import Path

MODULES = sorted(file.parent for file in PROJECT.glob("bundles/*/manifest.json"))


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    pin = read_pins(PROJECT / "toolchains.toml").toolchain(None, host_platform())
    return ensure_toolchain(pin, cache=user_cache(os.environ), environ=os.environ, report=print)


@pytest.mark.parametrize("words", [("vet", "./..."), ("test", "./...")], ids=["vet", "test"])
@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_go(module: Path, words: tuple[str, ...], toolchain: Toolchain, tmp_path: Path) -> None:
    cache = user_cache(os.environ)
    env = {
        "PATH": f"{toolchain.go.parent}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "GOENV": "off",
        "GOTOOLCHAIN": "local",
        "GOPROXY": "off",
        "GOFLAGS": "",
        "GOCACHE": str(cache / "go-build"),
        "GOMODCACHE": str(cache / "go-mod"),
        "CGO_ENABLED": "0",
    }
    done = subprocess.run([toolchain.go, *words], cwd=module, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_controllers_manifest_asks_for_one_bundle_for_arch() -> None:
    manifest = read_manifest(PROJECT / "bundles/mesh-controller/manifest.json")
    assert [(each.name, each.system, each.binary) for each in manifest.build.artifacts] == [
        ("controller", "arch", "mesh-controller")
    ]


def test_hello_files_has_two_artifacts_for_two_systems() -> None:
    manifest = read_manifest(PROJECT / "bundles/hello-files/manifest.json")
    assert {(each.name, each.system) for each in manifest.build.artifacts} == {
        (name, system) for name in ("hello", "hello-admin") for system in ("arch", "arch-arm64")
    }
