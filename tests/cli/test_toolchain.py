"""`meshbuild toolchain` as it is typed: what is pinned, what is cached, fetching one ahead of a build."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from meshbuild.cli import main
from tests.unit import faketoolchain as fake

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
