"""A store behind a web server: what a real nginx gives, and what servers and networks do wrong."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from meshbuild.errors import ObjectCorruptError, ObjectMissingError, StoreError
from meshbuild.stores import http, open_store, open_writable
from meshbuild.stores.directory import DirectoryStore
from meshbuild.stores.http import HttpStore
from tests.stores import nginx
from tests.unit import faketoolchain as fake
from tests.unit.test_toolchain_sources import refused_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from http.server import BaseHTTPRequestHandler
    from pathlib import Path

BIG = os.urandom(5 << 20)


@pytest.fixture
def server() -> Iterator[fake.Server]:
    with fake.serve() as running:
        yield running


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses between tries, and little patience with silence: their lengths are the library's to test."""
    monkeypatch.setattr(http, "_RETRY", http._RETRY.new(backoff_factor=0))
    monkeypatch.setattr(http, "_TIMEOUT_S", (2, 0.5))


def read(store: HttpStore, key: str) -> bytes:
    with store.open(key) as file:
        return b"".join(iter(lambda: file.read(100_000), b""))


def test_nginx_gives_what_lies_in_the_folder(tmp_path: Path) -> None:
    folder = DirectoryStore(tmp_path / "store")
    folder.create("objects/big", BIG)
    folder.create("metadata/1.root.json", b"{}")
    folder.create("odd/a b+c%20\N{LATIN SMALL LETTER E WITH ACUTE}", b"odd")
    with nginx.serve(tmp_path / "store", tmp_path / "nginx") as address:
        store = open_store(address)
        assert isinstance(store, HttpStore)
        assert store.address == address
        assert read(store, "objects/big") == BIG
        assert store.read("metadata/1.root.json", limit_bytes=2) == b"{}"
        assert store.read("odd/a b+c%20\N{LATIN SMALL LETTER E WITH ACUTE}", limit_bytes=9) == b"odd"
        with pytest.raises(ObjectCorruptError, match="longer than the 1 bytes"):
            store.read("metadata/1.root.json", limit_bytes=1)
        with pytest.raises(ObjectMissingError, match=r"there is no metadata/2\.root\.json: answered 404"):
            store.read("metadata/2.root.json", limit_bytes=1)


@pytest.mark.parametrize("key", ["../a", "/etc/passwd", "", "a//b", "a\\b", "a\nb"])
def test_hostile_keys_are_never_asked_for(server: fake.Server, key: str) -> None:
    with pytest.raises(StoreError, match="not a key"):
        HttpStore(server.address).read(key, limit_bytes=1)
    assert server.asked == []


@pytest.mark.parametrize("address", ["http://", "https://host/x?y", "http://host/#z"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(StoreError, match="a store's address is"):
        open_store(address)


def test_it_can_not_be_written() -> None:
    with pytest.raises(StoreError, match="can be read and not written"):
        open_writable("https://host/store")


def test_a_password_is_used_and_not_shown(server: fake.Server) -> None:
    seen = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        seen.append(handler.headers["Authorization"])
        handler.send_error(500)

    server.answers["/s/k"] = answer
    store = HttpStore(f"{server.address.replace('http://', 'http://me:s3cret@')}/s/")
    with pytest.raises(StoreError) as caught:
        store.read("k", limit_bytes=1)
    assert "s3cret" not in f"{caught.value} {caught.value.__cause__}"
    assert str(caught.value).startswith(f"{server.address}/s: ")
    assert set(seen) == {"Basic bWU6czNjcmV0"}


def test_caches_on_the_way_are_passed_for_what_changes(server: fake.Server) -> None:
    seen = {}

    def answer(handler: BaseHTTPRequestHandler) -> None:
        seen[handler.path] = (handler.headers["Cache-Control"], handler.headers["Accept-Encoding"])
        fake.send(handler, b"data")

    server.answers = {"/metadata/timestamp.json": answer, "/objects/sha256/ab/abcd": answer}
    for path in server.answers:
        HttpStore(server.address).read(path.lstrip("/"), limit_bytes=4)
    assert seen == {
        "/metadata/timestamp.json": ("no-cache", "identity"),
        "/objects/sha256/ab/abcd": (None, "identity"),
    }


@pytest.mark.parametrize("status", [404, 403, 410])
def test_what_is_not_there_is_asked_for_once(server: fake.Server, status: int) -> None:
    server.answers["/k"] = status
    with pytest.raises(ObjectMissingError, match=f"there is no k: answered {status}"):
        HttpStore(server.address).read("k", limit_bytes=1)
    assert len(server.asked) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_passing_trouble_is_waited_for(server: fake.Server, status: int) -> None:
    server.answers["/k"] = [status, status, b"data"]
    assert HttpStore(server.address).read("k", limit_bytes=4) == b"data"
    server.answers["/k"] = status
    with pytest.raises(StoreError, match=f"could not read k: answered {status}"):
        HttpStore(server.address).read("k", limit_bytes=4)


def test_nobody_there() -> None:
    with pytest.raises(StoreError, match="no answer for k: Connection refused"):
        HttpStore(refused_address()).read("k", limit_bytes=1)


def headers(**more: str) -> Callable[[BaseHTTPRequestHandler], None]:
    named = {name.replace("_", "-"): value for name, value in more.items()}
    return lambda handler: fake.send(handler, b"data", **named)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"Content_Encoding": "gzip"}, "re-encoded it (gzip)"),
        ({"Content_Type": "text/html; charset=utf-8"}, "a web page, as a login page or a proxy does"),
    ],
)
def test_what_is_not_the_file_is_named(server: fake.Server, more: dict[str, str], message: str) -> None:
    server.answers["/k"] = headers(**more)
    with pytest.raises(StoreError, match=re.escape(message)):
        HttpStore(server.address).read("k", limit_bytes=4)


def test_endless_data_is_cut_at_the_limit(server: fake.Server) -> None:
    def endless(handler: BaseHTTPRequestHandler) -> None:
        fake.send(handler, b"", length=-1)
        while True:
            handler.wfile.write(b"x" * 100_000)

    server.answers["/k"] = endless
    with pytest.raises(ObjectCorruptError, match="longer than the 1000000 bytes"):
        HttpStore(server.address).read("k", limit_bytes=1_000_000)


class Breaking:
    """Gives BIG, and breaks off after some bytes as many times as it is told; answers ranges in one of several ways."""

    def __init__(self, times: int, ranges: str = "good", how: str = "cut") -> None:
        self.left, self.ranges, self.how = times, ranges, how
        self.asked: list[tuple[str | None, str | None]] = []

    def __call__(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append((handler.headers["Range"], handler.headers["If-Range"]))
        begin = int(re.sub(r"\D", "", handler.headers["Range"] or "") or 0)
        data = BIG
        if begin and self.ranges == "refused":
            handler.send_response(416)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        if begin and self.ranges in {"good", "wrong"}:
            begin = begin if self.ranges == "good" else begin + 7
            data = BIG[begin:]
            handler.send_response(206)
            handler.send_header("Content-Range", f"bytes {begin}-{len(BIG) - 1}/{len(BIG)}")
        else:
            handler.send_response(200)
        handler.send_header("ETag", '"one"')
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        self.left -= 1
        if self.left < 0:
            handler.wfile.write(data)
            return
        handler.wfile.write(data[: 1 << 20])
        handler.wfile.flush()
        if self.how == "reset":
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif self.how == "stall":
            handler.rfile.read(1)  # until the client gives up
        handler.close_connection = True
        handler.connection.close()


@pytest.mark.parametrize("how", ["cut", "reset", "stall"])
@pytest.mark.parametrize("ranges", ["good", "ignored", "wrong", "refused"])
def test_what_breaks_off_goes_on_where_it_was(server: fake.Server, ranges: str, how: str) -> None:
    breaking = Breaking(3, ranges, how)
    server.answers["/k"] = breaking
    data = read(HttpStore(server.address), "k")
    assert hashlib.sha256(data).digest() == hashlib.sha256(BIG).digest()
    assert breaking.asked[0] == (None, None)
    assert breaking.asked[1][0] is not None
    assert breaking.asked[1][1] == '"one"'
    if ranges == "good" and how == "cut":
        assert len(breaking.asked) == 4
        assert breaking.asked[1][0] == f"bytes={1 << 20}-"


def test_what_breaks_off_without_end_is_given_up(server: fake.Server) -> None:
    def nothing(handler: BaseHTTPRequestHandler) -> None:
        fake.send(handler, b"", length=1000)

    server.answers["/k"] = nothing
    with pytest.raises(StoreError, match="k broke off at 0 bytes, again and again"):
        read(HttpStore(server.address), "k")
    assert len(server.asked) < 12
