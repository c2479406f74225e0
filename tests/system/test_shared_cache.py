"""The shared build cache behind a real nginx: WebDAV takes what builders put, and a read-only server takes nothing."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from meshbuild.buildcache.cache import CacheCounts, SharedCache
from meshbuild.buildcache.entry import object_name
from meshbuild.buildcache.server import quoted
from meshbuild.buildcache.stores import open_cache_store
from meshbuild.digests import Sha256
from tests.cli.test_cache import KEY, MESHBUILD, Mesh, mesh  # noqa: F401 - mesh is a fixture
from tests.stores.nginx import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.system

KILLED = """
import subprocess, sys
subprocess.run([sys.argv[1], "build", "-trimpath", "-buildvcs=false", "-o", sys.argv[2], "."])
"""
# The server of docs/build-cache.md, on loopback, and another one that only reads.
CONFIG = """
user {user};
daemon off;
pid {folder}/pid;
error_log stderr;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/bodies;
  proxy_temp_path {folder}/t1; fastcgi_temp_path {folder}/t2; uwsgi_temp_path {folder}/t3; scgi_temp_path {folder}/t4;
  server {{
    listen 127.0.0.1:{port};
    location /build-cache/ {{
      root {folder}/www;
      dav_methods PUT;
      create_full_put_path on;
      client_max_body_size 1g;
    }}
  }}
  server {{
    listen 127.0.0.1:{read_port};
    location /build-cache/ {{
      root {folder}/www;
    }}
  }}
}}
"""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def addresses(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A store that can be written, and the same one that can't."""
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if nginx is None:
        pytest.skip("nginx is not installed")
    folder = tmp_path / "nginx"
    (folder / "www/build-cache").mkdir(parents=True)
    port, read_port = _free_port(), _free_port()
    (folder / "conf").write_text(CONFIG.format(user=getpass.getuser(), folder=folder, port=port, read_port=read_port))
    with subprocess.Popen([nginx, "-c", str(folder / "conf"), "-e", "stderr"]) as process:
        try:
            for each in (port, read_port):
                wait_for(each)
            yield f"http://127.0.0.1:{port}/build-cache", f"http://127.0.0.1:{read_port}/build-cache"
        finally:
            process.terminate()


def test_builders_fill_it_and_read_it(addresses: tuple[str, str], tmp_path: Path) -> None:
    said: list[str] = []

    def machine(name: str, address: str) -> SharedCache:
        return SharedCache(open_cache_store(address), key=KEY, folder=tmp_path / name, report=said.append)

    outputs = {Sha256.of(b"%d" % number): os.urandom(number * 10_000) for number in range(60)}
    first = machine("first", addresses[0])
    for action, output in outputs.items():
        assert first.get(action) is None
        first.put(action, Sha256.of(output), len(output), [output])
    first.close()
    assert first.counts == CacheCounts(misses=60, uploaded=60)
    assert not said

    second = machine("second", addresses[1])
    for action, output in outputs.items():
        entry = second.get(action)
        assert entry is not None
        assert second.output_file(entry).read_bytes() == output
    new = Sha256.of(b"new")
    assert second.get(new) is None
    second.put(new, Sha256.of(b"x"), 1, [b"x"])
    second.close()
    assert second.counts == CacheCounts(hits=60, misses=1, not_uploaded=1)
    assert len(said) == 1
    assert "takes no uploads from here" in said[0]
    assert not (tmp_path / "nginx/www/build-cache" / object_name(new)).exists()

    action = next(iter(outputs))
    (tmp_path / "nginx/www/build-cache" / object_name(action)).write_bytes(b"not what the builders put")
    third = machine("third", addresses[0])
    assert third.get(action) is None
    third.put(action, Sha256.of(b""), 0, [])
    third.close()
    assert third.counts == CacheCounts(misses=1, rejected=1, uploaded=1)
    assert machine("fourth", addresses[1]).get(action) is not None


def test_builds_that_are_killed_or_run_at_once_leave_a_cache_that_is_right(mesh: Mesh) -> None:  # noqa: F811
    store, local = mesh.folder / "shaken", mesh.folder / "shaken local"
    command = quoted(MESHBUILD, "cache", "--store", str(store), "--local", str(local))
    env = {"GOCACHEPROG": command, "MESHBUILD_CACHE_KEY": KEY.hex()}
    for delay_s in (0.5, 1, 1.5, 2):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(mesh.go), str(mesh.folder / f"killed {delay_s}")],
            cwd=mesh.folder / "source",
            env={**os.environ, **env, "GOFLAGS": "", "GOENV": "off", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"},
            start_new_session=True,
        ) as process:
            time.sleep(delay_s)
            os.killpg(process.pid, signal.SIGKILL)
    with ThreadPoolExecutor() as threads:
        programs = list(threads.map(lambda name: mesh.build(name, **env), ("one", "two", "three")))
    for program in programs:
        assert program.read_bytes() == (mesh.folder / "first/program").read_bytes()
    program, counts, said = mesh.build_shared("after all", str(store))
    assert counts.hits > 30
    assert counts.misses <= 1
    assert counts.rejected == 0
    assert not said
    assert program.read_bytes() == (mesh.folder / "first/program").read_bytes()
