"""Go modules that not everybody may have: a proxy and a git server that ask for a password, and no trace of it."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import ipaddress
import json
import os
import ssl
import subprocess
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from meshbuild.toolchains import user_cache
from tests.cli.conftest import artifact, write_manifest
from tests.cli.goproxy import depend, files, write_proxy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.system.conftest import Checkout

MODULE, VERSION = "private.example/team/lib.git", "v1.2.0"
USER, PASSWORD = "build-bot", "tr0ub4dor/and+3"
ENCODED = "tr0ub4dor%2Fand%2B3"
BASIC = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
BUNDLE = "dist/tiny.one-1-arch.tar.zst"


class _Handler(BaseHTTPRequestHandler):
    """Files below a folder, or a git repository by git's own CGI program, for whoever has the password."""

    def __init__(self, root: Path, asked: list[str], *request: object, git: bool) -> None:
        self.root, self.asked, self.git = root, asked, git
        super().__init__(*request)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.headers.get("Authorization") != f"Basic {BASIC}":
            self._answer(401, b"", {"WWW-Authenticate": 'Basic realm="modules"'})
        elif self.git:
            self._git()
        else:
            file = self.root / self.path.lstrip("/")
            self._answer(*((200, file.read_bytes()) if file.is_file() else (404, b"")))

    do_POST = do_GET  # noqa: N815 - http.server's name

    def _git(self) -> None:
        path, _, query = self.path.partition("?")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        env = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        done = subprocess.run(["git", "http-backend"], input=body, env=env, capture_output=True, check=False)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines() if ": " in line)
        self._answer(int(headers.pop("Status", "200").split()[0]), content, headers)

    def _answer(self, status: int, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serve(root: Path, *, git: bool = False, certificate: Path | None = None) -> Iterator[tuple[str, list[str]]]:
    """A server on loopback; gives host and port, and the list of what it is asked for."""
    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, root, asked, git=git))
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificate and key for loopback: the go command gives passwords to https servers only."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=2))
        .not_valid_after(now + dt.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "server.pem"
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    file.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain) + made.public_bytes(pem))
    return file


@pytest.fixture
def private(tiny: Checkout) -> Checkout:
    """The tiny project with a program that needs the private module, an empty module cache, and a user's own HOME."""
    depend(tiny.folder, VERSION, MODULE)
    write_manifest(tiny.folder, artifact("one"))
    home, cache = tiny.folder.parent / "home", tiny.folder.parent / "cache"
    home.mkdir()
    cache.mkdir()
    for name in ("toolchains", "go-build"):
        (cache / name).symlink_to(user_cache(os.environ) / name)
    for name in [name for name in tiny.env if name.startswith(("GO", "GIT_", "NETRC", "XDG_"))]:
        del tiny.env[name]
    tiny.env.update(HOME=str(home), MESHBUILD_CACHE=str(cache), GOSUMDB="off")
    return tiny


@pytest.fixture
def proxy(private: Checkout, certificate: Path) -> Iterator[str]:
    """A Go module proxy with the private module; gives its host and port."""
    folder = private.folder.parent / "proxy"
    write_proxy(folder, VERSION, module=MODULE)
    private.env["SSL_CERT_FILE"] = str(certificate)
    with serve(folder, certificate=certificate) as (host, _):
        yield host


@pytest.fixture
def git_server(private: Checkout) -> Iterator[str]:
    """A git server with the private module's repository; gives its host and port."""
    root, work = private.folder.parent / "repositories", private.folder.parent / "lib"
    work.mkdir()
    for name, text in files(VERSION, MODULE).items():
        (work / name).write_text(text)
    identity = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "lib"), ("tag", VERSION)):
        subprocess.run(["git", *words], cwd=work, check=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(work), str(root / "team/lib.git")], check=True)
    with serve(root, git=True) as (host, _):
        yield host


def secrets_in(private: Checkout) -> list[str]:
    """Files that a build left with the password in any spelling: the project, its state, and the user's cache."""
    spellings = [text.encode() for text in (PASSWORD, ENCODED, BASIC)]
    return [
        str(file)
        for root in (private.folder, private.folder.parent / "cache")
        for file in root.rglob("*")
        if file.is_file() and any(each in file.read_bytes() for each in spellings)
    ]


def built(private: Checkout) -> str:
    """Build; nothing of the password is left or said, and nothing in HOME; returns the content digest."""
    home = private.folder.parent / "home"
    before = sorted(home.rglob("*"))
    done = private.run("doit", "build")
    assert sorted(home.rglob("*")) == before
    assert done.returncode == 0, done.stderr
    assert secrets_in(private) == []
    info = json.loads(private.ok("meshbuild", "inspect", BUNDLE, "--json"))
    provenance = json.dumps(info["statements"])
    assert f"pkg:golang/{MODULE}@{VERSION}" in provenance
    for text in (PASSWORD, ENCODED, BASIC, USER, "127.0.0.1"):
        assert text not in f"{done.stdout}{done.stderr}{provenance}"
    content: str = info["content_sha256"]
    return content


def way_of(private: Checkout, host: str, way: str) -> None:
    """Set up one of the ways by which a user gives the go command a password for a proxy."""
    home = private.folder.parent / "home"
    private.env["GOPROXY"] = f"https://{host}"
    if way == "address":
        private.env["GOPROXY"] = f"https://{USER}:{ENCODED}@{host}"
    elif way == "netrc":
        (home / ".netrc").write_text(f"machine {host} login {USER} password {PASSWORD}\n")
    elif way == "NETRC":
        (home / "elsewhere").write_text(f"machine {host} login {USER} password {PASSWORD}\n")
        private.env["NETRC"] = str(home / "elsewhere")
    elif way == "GOAUTH":
        tool = home / "bin/give-password"
        tool.parent.mkdir()
        answer = f"https://{host}\\n\\nAuthorization: Basic {BASIC}\\n\\n"
        tool.write_text(f'#!/bin/sh\ntest -d "$HOME/bin" && printf "{answer}"\n')
        tool.chmod(0o755)
        private.env.update(PATH=f"{tool.parent}:{private.env['PATH']}", GOAUTH="give-password")


def git_way_of(private: Checkout, host: str, way: str) -> None:
    """Set up one of the ways by which a user gives git a password."""
    home = private.folder.parent / "home"
    private.env.update(GOPRIVATE="private.example", GOPROXY="off")
    rewritten = f'[url "http://{host}/"]\n\tinsteadOf = https://private.example/\n'
    if way == "address":
        rewritten = rewritten.replace(host, f"{USER}:{ENCODED}@{host}")
    elif way == "credential store":
        rewritten += "[credential]\n\thelper = store\n"
        (home / ".git-credentials").write_text(f"http://{USER}:{ENCODED}@{host}\n")
    elif way in {"header", "settings in .config"}:
        rewritten += f"[http]\n\textraHeader = Authorization: Basic {BASIC}\n"
    if way == "variables":
        values = {
            f"url.http://{host}/.insteadOf": "https://private.example/",
            "http.extraHeader": f"Authorization: Basic {BASIC}",
        }
        private.env["GIT_CONFIG_COUNT"] = str(len(values))
        for number, (key, value) in enumerate(values.items()):
            private.env.update({f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value})
        return
    file = home / (".config/git/config" if way == "settings in .config" else ".gitconfig")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(rewritten)


@pytest.mark.parametrize("way", ["address", "netrc", "NETRC", "GOAUTH"])
def test_a_proxy_that_asks_for_a_password(private: Checkout, proxy: str, way: str) -> None:
    way_of(private, proxy, way)
    built(private)


@pytest.mark.parametrize("way", ["address", "credential store", "header", "settings in .config", "variables"])
def test_a_git_server_that_asks_for_a_password(private: Checkout, git_server: str, way: str) -> None:
    git_way_of(private, git_server, way)
    built(private)


def test_the_bytes_are_the_same_wherever_the_module_came_from(private: Checkout, proxy: str, git_server: str) -> None:
    way_of(private, proxy, "address")
    from_proxy = built(private)
    private.ok("doit", "clean")
    for name in ("go-mod", "go-build"):
        folder = private.folder.parent / "cache" / name
        folder.rename(private.folder.parent / f"old {name}")
    git_way_of(private, git_server, "header")
    assert built(private) == from_proxy
    assert any((private.folder.parent / "cache/go-mod/cache/vcs").iterdir()), "it came from git"


def refused(private: Checkout) -> str:
    """A build that fails for want of a module, without a word of the password; returns what it says."""
    done = private.run("doit", "build")
    assert done.returncode != 0
    said = done.stdout + done.stderr
    for text in (PASSWORD, ENCODED, BASIC, "Traceback"):
        assert text not in said
    assert secrets_in(private) == []
    return said


@pytest.mark.parametrize("way", ["none", "address", "netrc"])
def test_a_proxy_that_refuses(private: Checkout, proxy: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    way_of(private, proxy, way)
    monkeypatch.setattr("tests.cli.test_private_modules.BASIC", "another")
    said = refused(private)
    assert "isn't given to this user" in said
    assert "401 Unauthorized" in said
    assert "docs/private-modules.md" in said
    monkeypatch.undo()
    if way != "none":
        built(private)


@pytest.mark.parametrize("way", ["none", "address", "header"])
def test_a_git_server_that_refuses(
    private: Checkout, git_server: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    git_way_of(private, git_server, way)
    monkeypatch.setattr("tests.cli.test_private_modules.BASIC", "another")
    said = refused(private)
    assert "isn't given to this user" in said
    assert "docs/private-modules.md" in said
