"""The shared build cache with the real compiler: `meshbuild cache` as GOCACHEPROG, and builds without a network."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from meshbuild.build import network_isolation
from meshbuild.buildcache.cache import Patience
from meshbuild.buildcache.server import quoted, shared_cache
from meshbuild.digests import Sha256
from meshbuild.pins import host_platform, read_pins
from meshbuild.toolchains import ensure_toolchain, user_cache
from tests.system.conftest import PROJECT, environment

KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
MESHBUILD = str(Path(sys.executable).with_name("meshbuild"))


@dataclass(frozen=True)
class Mesh:
    """A small Go program, the pinned compiler, and machines that share a store."""

    folder: Path
    go: Path

    @property
    def store(self) -> Path:
        return self.folder / "the store"

    def build(self, machine: str, *, isolated: bool = False, **env: str) -> Path:
        """Build the program on a machine; returns the program."""
        home = self.folder / machine
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        whole_env = {
            "PATH": str(self.go.parent),
            "HOME": str(home),
            "TMPDIR": str(home / "tmp"),
            "GOCACHE": str(home / "go-build"),
            "GOENV": "off",
            "GOTOOLCHAIN": "local",
            "GOPROXY": "off",
            "GOTELEMETRY": "off",
            "CGO_ENABLED": "0",
            **env,
        }
        words = [str(self.go), "build", "-trimpath", "-buildvcs=false", "-o", str(home / "program"), "."]
        prefix = network_isolation() if isolated else ()
        done = subprocess.run(
            [*prefix, *words], cwd=self.folder / "source", env=whole_env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return home / "program"

    def build_shared(self, machine: str, store: str, key: bytes = KEY, patience: Patience | None = None):
        """Build as a build of meshbuild does: the server outside, the compiler without a network."""
        said: list[str] = []
        work = (
            self.folder
            / f"{machine}'s work, whose name has blanks and is longer than a socket's address may be {'x' * 60}"
        )
        work.mkdir()
        local = self.folder / machine / "local"
        with shared_cache(store, key=key, folder=local, work=work, report=said.append, patience=patience) as (
            env,
            cache,
        ):
            assert not [name for name, value in env.items() if key.hex() in value or store in value]
            program = self.build(machine, isolated=True, **env)
        assert not list(work.iterdir())
        return program, cache.counts, said


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Mesh:
    """A store that one machine has filled through `meshbuild cache`."""
    folder = tmp_path_factory.mktemp("mesh")
    toolchain = ensure_toolchain(
        read_pins(PROJECT / "toolchains.toml").toolchain(None, host_platform()),
        cache=user_cache(os.environ),
        environ=os.environ,
        report=print,
    )
    for name, text in {
        "go.mod": "module example.com/tiny\n\ngo 1.26\n",
        "main.go": 'package main\n\nimport "example.com/tiny/words"\n\nfunc main() { println(words.Name) }\n',
        "words/words.go": 'package words\n\nconst Name = "world"\n',
    }.items():
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "source" / name).write_text(text)
    mesh = Mesh(folder, toolchain.go)
    command = quoted(MESHBUILD, "cache", "--local", str(folder / "first/local"), "-v")
    mesh.build("first", GOCACHEPROG=command, MESHBUILD_CACHE_STORE=str(mesh.store), MESHBUILD_CACHE_KEY=KEY.hex())
    return mesh


def objects(mesh: Mesh) -> list[Path]:
    return sorted(path for path in mesh.store.rglob("*") if path.is_file())


def test_a_machine_that_never_built_it_compiles_nothing(mesh: Mesh) -> None:
    before = objects(mesh)
    assert len(before) > 30
    program, counts, said = mesh.build_shared("second", str(mesh.store))
    assert counts.hits > 30
    assert counts.misses <= 1  # the program itself is linked
    assert counts.rejected == 0
    assert not said
    assert program.read_bytes() == (mesh.folder / "first/program").read_bytes()
    assert subprocess.run([program], capture_output=True, text=True, check=True).stderr == "world\n"
    again, counts, _ = mesh.build_shared("second again", str(mesh.store))
    assert again.read_bytes() == program.read_bytes()
    assert set(before) <= set(objects(mesh))


def test_the_bytes_are_those_of_a_build_without_it(mesh: Mesh) -> None:
    plain = mesh.build("plain", GOCACHE=str(user_cache(os.environ) / "go-build"))
    assert plain.read_bytes() == (mesh.folder / "first/program").read_bytes()


def test_tampered_entries_are_misses_and_the_bytes_are_the_same(mesh: Mesh) -> None:
    store = mesh.folder / "tampered"
    shutil.copytree(mesh.store, store)
    paths = sorted(path for path in store.rglob("*") if path.is_file() and path.stat().st_size < 20_000)
    assert len(paths) > 20
    for number, path in enumerate(paths):
        data = bytearray(path.read_bytes())
        if number % 4 == 0:
            data[-1] ^= 1
        elif number % 4 == 1:
            del data[len(data) // 2 :]
        elif number % 4 == 2:
            data = bytearray(paths[number - 1].read_bytes())
        else:
            data[30] ^= 1
        path.write_bytes(data)
    program, counts, said = mesh.build_shared("tampered with", str(store))
    assert counts.rejected > 20
    assert counts.misses >= counts.rejected
    assert not said
    assert program.read_bytes() == (mesh.folder / "first/program").read_bytes()


def test_a_store_that_hangs_delays_a_build_within_its_bound(mesh: Mesh) -> None:
    local = mesh.folder / "patient/local"
    shutil.copytree(mesh.folder / "first/local", local)
    records = sorted((local / next(local.iterdir()).name / "action").rglob("*"), key=lambda path: path.name)
    missing = [path for path in records if path.is_file()][::10]
    for path in missing:
        path.unlink()
    assert len(missing) > 3
    connections = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            try:
                while True:
                    connections.append(listener.accept()[0])
            except OSError:
                return

        threading.Thread(target=accept, daemon=True).start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        began = time.monotonic()
        program, counts, said = mesh.build_shared("patient", address, patience=Patience(get_s=0.5, flush_s=0.5))
        took_s = time.monotonic() - began
        listener.shutdown(socket.SHUT_RDWR)
    for connection in connections:
        connection.close()
    assert connections
    assert counts.hits == 0
    assert counts.misses > 3
    assert len(said) == 1
    assert "is not read any more in this run: no whole answer" in said[0]
    assert took_s < 15
    assert program.read_bytes() == (mesh.folder / "first/program").read_bytes()


def test_another_key_sees_nothing(mesh: Mesh) -> None:
    store = mesh.folder / "strange"
    shutil.copytree(mesh.store, store)
    program, counts, _ = mesh.build_shared("stranger", str(store), OTHER_KEY)
    assert counts.hits == counts.local_hits == 0
    assert counts.rejected > 30
    assert counts.misses <= counts.rejected + 1  # the program itself is linked
    assert program.read_bytes() == (mesh.folder / "first/program").read_bytes()


@pytest.mark.parametrize("key", ["", "secret", "ab" * 32])
def test_without_a_good_key_there_is_no_shared_cache(tmp_path: Path, key: str) -> None:
    done = subprocess.run(
        [MESHBUILD, "cache", "--store", str(tmp_path / "store"), "--local", str(tmp_path / "local")],
        env=environment(MESHBUILD_CACHE_KEY=key),
        input=b'{"ID":1,"Command":"get","ActionID":"' + b"A" * 43 + b'="}\n',
        capture_output=True,
        check=False,
    )
    assert done.returncode == 10
    assert done.stdout == b""
    assert b"openssl rand -hex 32" in done.stderr
    assert not list(tmp_path.iterdir())


class TestProtocol:
    """What a go command says and hears; https://pkg.go.dev/cmd/go/internal/cacheprog."""

    ACTION, BODY = "A" * 43 + "=", b"output" * 500_000

    def _talk(self, tmp_path: Path, said: bytes) -> list[dict[str, object]]:
        done = subprocess.run(
            [MESHBUILD, "cache", "--store", f"file:{tmp_path / 'store'}", "--local", str(tmp_path / "local")],
            env=environment(MESHBUILD_CACHE_KEY=KEY.hex()),
            input=said,
            capture_output=True,
            check=True,
        )
        assert done.stderr == b""
        first, *others = map(json.loads, done.stdout.splitlines())
        assert first == {"ID": 0, "KnownCommands": ["get", "put", "close"]}
        return others

    def _put(self, number: int, body: bytes, output: Sha256) -> bytes:
        request = {
            "ID": number,
            "Command": "put",
            "ActionID": self.ACTION,
            "OutputID": base64.b64encode(bytes.fromhex(output)).decode(),
            "BodySize": len(body),
        }
        return json.dumps(request).encode() + b"\n\n" + (b'"' + base64.b64encode(body) + b'"\n' if body else b"")

    def test_a_large_body_comes_back_as_a_file(self, tmp_path: Path) -> None:
        output = Sha256.of(self.BODY)
        put, closed = self._talk(tmp_path, self._put(1, self.BODY, output) + b'{"ID":2,"Command":"close"}\n\n')
        assert closed == {"ID": 2}
        assert Path(str(put["DiskPath"])).read_bytes() == self.BODY
        shutil.rmtree(tmp_path / "local")
        get = b'{"ID":7,"Command":"get","ActionID":"%s"}\n\n{"ID":8,"Command":"close"}\n\n' % self.ACTION.encode()
        found, closed = self._talk(tmp_path, get)
        assert (found["ID"], closed["ID"]) == (7, 8)
        assert found["Size"] == len(self.BODY)
        assert Path(str(found["DiskPath"])).read_bytes() == self.BODY

    def test_an_output_of_another_name_is_an_error_and_the_next_request_is_heard(self, tmp_path: Path) -> None:
        said = (
            self._put(1, self.BODY, Sha256.of(b""))
            + self._put(2, b"", Sha256.of(b""))
            + b'{"ID":3,"Command":"close"}\n'
        )
        wrong, right, closed = self._talk(tmp_path, said)
        assert "could not keep the output" in str(wrong["Err"])
        assert "DiskPath" not in wrong
        assert Path(str(right["DiskPath"])).read_bytes() == b""
        assert closed == {"ID": 3}

    @pytest.mark.parametrize(
        "said", [b"", b"nonsense\n", b'{"ID":1}\n', b'{"ID":1,"Command":"get","ActionID":"AA=="}\n', b"[]\n"]
    )
    def test_what_no_go_command_says_ends_it_quietly(self, tmp_path: Path, said: bytes) -> None:
        assert self._talk(tmp_path, said) == []
