"""A real nginx that gives a folder's files, on loopback."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONFIG = """daemon off;
user {user};
pid {work}/pid;
error_log stderr;
worker_processes 2;
events {{ worker_connections 1024; }}
http {{
  access_log {work}/access.log;
  client_body_temp_path {work}/body;
  proxy_temp_path {work}/proxy;
  fastcgi_temp_path {work}/fastcgi;
  uwsgi_temp_path {work}/uwsgi;
  scgi_temp_path {work}/scgi;
  default_type application/octet-stream;
  sendfile on;
  gzip on;
  gzip_min_length 1;
  gzip_types application/json application/octet-stream;
  server {{ listen 127.0.0.1:{port}; location /store/ {{ alias {folder}/; }} }}
}}
"""


@contextlib.contextmanager
def serve(folder: Path, work: Path) -> Iterator[str]:
    """Serve a folder; gives its address. Compresses for whoever lets it."""
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if nginx is None:
        pytest.skip("nginx is not installed")
    work.mkdir()
    folder.mkdir(exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    (work / "conf").write_text(CONFIG.format(user=getpass.getuser(), work=work, folder=folder, port=port))
    with subprocess.Popen([nginx, "-c", str(work / "conf"), "-e", "stderr"]) as process:
        try:
            wait_for(port)
            yield f"http://127.0.0.1:{port}/store"
        finally:
            process.terminate()


def wait_for(port: int) -> None:
    """Wait until a server on loopback answers."""
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("nginx does not answer")
