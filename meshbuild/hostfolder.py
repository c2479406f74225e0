"""A host's folder: payloads, receipts, floors and the cache of trust, each written so that a kill leaves it usable.

    INTO/.lock                                      held by whoever fetches
    INTO/payloads/<content sha256>/                 a bundle's files; immutable, shared by all releases that hold it
    INTO/receipts/.lock                             held while a receipt is written or verified: never for long
    INTO/receipts/<module>/                         a small static store: what the module's fetch was verified from
    INTO/floors/<store id>/roots.json               the roots of trust of that store which were accepted here
    INTO/floors/<store id>/<module>/<channel>.json  the highest serial accepted
    INTO/trust/<store id>/                          python-tuf's cache

Nothing here decides whether to trust: `fetch` does. No name that a store chose becomes a path before it is checked.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from meshbuild.digests import Sha256
from meshbuild.errors import LocalFileError
from meshbuild.jsontext import canonical_json, parse_json
from meshbuild.paths import (
    atomic_write,
    check_relative_path,
    fsync_folder,
    local_errors,
    remove_stale_temps,
    temp_beside,
    write_atomically,
)
from meshbuild.texts import LABEL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

COMMIT_KEY = "metadata/timestamp.json"
_FOLDER_MODE = 0o755
_MAX_RECORD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Floor:
    """What a host accepted last of a channel: the serial that later ones must reach, and the release it named."""

    serial: int
    release_sha256: Sha256


@dataclass(frozen=True, slots=True)
class HostFolder:
    """The folder `into` of a host. Methods that write want the lock of `locked` to be held."""

    into: Path

    @contextlib.contextmanager
    def locked(self, report: Callable[[str], None]) -> Iterator[None]:
        """Make the folder, wait for the lock, remove what killed writers left, and hold the lock for the block.

        Raises:
            LocalFileError: the folder can't be written.
        """
        with local_errors(f"write the host folder {self.into}"):
            for folder in (self.into, self.payloads, self.receipts, self.floors, self.trust):
                _make_folder(folder)
            lock = FileLock(self.into / ".lock", mode=0o644)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                report(f"waiting for another fetch into {self.into}")
                lock.acquire()
        try:
            with local_errors(f"tidy the host folder {self.into}"):
                self._remove_temps()
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def receipts_locked(self) -> Iterator[None]:
        """Keep receipts as they are for the block; never waits for a download. Raises LocalFileError."""
        with local_errors(f"lock the receipts in {self.receipts}"):
            lock = FileLock(self.receipts / ".lock", mode=0o644)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    @property
    def payloads(self) -> Path:
        """The folder of payload folders."""
        return self.into / "payloads"

    @property
    def receipts(self) -> Path:
        """The folder of receipts."""
        return self.into / "receipts"

    @property
    def floors(self) -> Path:
        """The folder of floors."""
        return self.into / "floors"

    @property
    def trust(self) -> Path:
        """The folder of TUF caches."""
        return self.into / "trust"

    def payload(self, content_sha256: Sha256) -> Path:
        """Where the files of a bundle with that content digest lie, if they do."""
        return self.payloads / content_sha256

    def receipt(self, module: str) -> Path:
        """Where a module's receipt lies, if it does."""
        return self.receipts / LABEL.check(module)

    def cache(self, store_id: Sha256) -> Path:
        """Where what was trusted of a store is remembered; makes the folder. Raises LocalFileError."""
        folder = self.trust / store_id
        with local_errors(f"write {folder}"):
            _make_folder(folder)
        return folder

    @contextlib.contextmanager
    def placing(self, content_sha256: Sha256) -> Iterator[Path]:
        """Give a path for a new folder; at the block's end that folder becomes the payload, in place of a damaged one.

        The block makes the folder and fsyncs what is in it. When it raises, what was there stays and the new folder is
        gone. Raises OSError.
        """
        place = self.payload(content_sha256)
        temp, aside = temp_beside(place), temp_beside(place)
        try:
            yield temp
            with contextlib.suppress(FileNotFoundError):
                place.rename(aside)
            temp.rename(place)
            fsync_folder(place.parent)
            _remove(aside)
        finally:
            _remove(temp)

    def store_id(self, root: bytes) -> Sha256:
        """The name under which this host remembers the store that a root of trust leads to.

        The digest of the first root that it was given for that store: a later root of the same chain, once accepted,
        leads to the same name, so that handing the host a newer root doesn't make it forget its floors.

        Raises:
            LocalFileError: a record of accepted roots is damaged.
        """
        digest = Sha256.of(root)
        with local_errors(f"read {self.floors}"):
            known = sorted(self.floors.glob("*/roots.json"))
        for record in known:
            if digest in _read_record(record).get("root_sha256s", ()):
                return Sha256(record.parent.name)
        return digest

    def remember_roots(self, store_id: Sha256, roots: Iterable[bytes]) -> None:
        """Record that the roots belong to one store, durably. Raises LocalFileError."""
        record = self.floors / store_id / "roots.json"
        old = set(_read_record(record).get("root_sha256s", ()))
        new = old | {Sha256.of(root) for root in roots}
        if new != old:
            _write_record(record, {"root_sha256s": sorted(new)})

    def floor(self, store_id: Sha256, module: str, channel: str) -> Floor | None:
        """The floor of a channel; None when nothing of it was ever accepted here.

        Raises:
            LocalFileError: the record is there and can't be read: that is never taken for "none".
        """
        path = self._floor_file(store_id, module, channel)
        record = _read_record(path)
        if not record:
            return None
        try:
            return Floor(int(record["serial"]), Sha256(record["release_sha256"]))
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(path, error) from error

    def raise_floor(self, store_id: Sha256, module: str, channel: str, floor: Floor) -> None:
        """Record a channel's floor durably, unless a higher one is recorded. Raises LocalFileError."""
        old = self.floor(store_id, module, channel)
        if old is not None and old.serial >= floor.serial:
            return
        _write_record(
            self._floor_file(store_id, module, channel),
            {"module": module, "channel": channel, "serial": floor.serial, "release_sha256": floor.release_sha256},
        )

    def write_receipt(self, module: str, files: Mapping[str, bytes], *, keep: Callable[[str], bool]) -> Path:
        """Write a receipt so that at any moment either the old one or the new one is whole.

        As in any store, everything but the timestamp has a name of its own, and the timestamp is replaced last.

        Args:
            module: whose receipt.
            files: store key to bytes; holds COMMIT_KEY.
            keep: whether a file that lies there already, and is none of `files`, shall stay.

        Raises:
            LocalFileError: the file system refused; the old receipt is still whole.
        """
        folder = self.receipt(module)
        with self.receipts_locked(), local_errors(f"write the receipt {folder}"):
            _make_folder(folder)
            for key in sorted(files, key=lambda name: (name == COMMIT_KEY, name)):
                _write_if_other(folder, check_relative_path(key), files[key])
            for path in sorted(folder.rglob("*"), reverse=True):
                if path.is_dir() and not path.is_symlink():
                    continue
                key = path.relative_to(folder).as_posix()
                if key not in files and not keep(key):
                    path.unlink()
        return folder

    def _floor_file(self, store_id: Sha256, module: str, channel: str) -> Path:
        return self.floors / store_id / LABEL.check(module) / f"{LABEL.check(channel)}.json"

    def _remove_temps(self) -> None:
        """With the lock held no temporary file has a living owner, whatever its age."""
        below = [each for top in (self.receipts, self.floors, self.trust) for each in _folders_below(top)]
        for folder in (self.payloads, *below):
            remove_stale_temps(folder, older_than_s=-math.inf, now_s=0)


def _folders_below(folder: Path) -> Iterator[Path]:
    for name, _folders, _files in os.walk(folder):
        yield folder / name


def _make_folder(folder: Path) -> None:
    """Make a folder that the services' accounts can enter, whatever the umask; one that is there stays as it is."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(_FOLDER_MODE)


def _write_if_other(folder: Path, key: str, data: bytes) -> None:
    path = folder / key
    try:
        if not path.is_symlink() and path.read_bytes() == data:
            return
    except (FileNotFoundError, IsADirectoryError):
        pass
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    _make_folder(path.parent)
    write_atomically(path, data)


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def _read_record(path: Path) -> dict[str, Any]:
    """A JSON object's content; empty when there is no such file."""
    with local_errors(f"read {path}"):
        try:
            with path.open("rb") as file:
                data = file.read(_MAX_RECORD_BYTES)
        except FileNotFoundError:
            return {}
    try:
        record = parse_json(data)
    except ValueError as error:
        raise _damaged(path, error) from error
    if not isinstance(record, dict):
        raise _damaged(path, "is not an object")
    return record


def _damaged(path: Path, why: object) -> LocalFileError:
    return LocalFileError(
        f"{path}: this host's record is damaged: {why}",
        hint="It protects against older releases. Restore it, or remove it to accept what the store offers now.",
    )


def _write_record(path: Path, record: Mapping[str, object]) -> None:
    with local_errors(f"write {path}"):
        _make_folder(path.parent)
        with atomic_write(path) as file:
            file.write(canonical_json(record))
