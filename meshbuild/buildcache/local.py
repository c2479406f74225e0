r"""The part of a shared build cache that lies on this machine: outputs as files, since Go takes paths.

    <folder>/<key's name>/action/<2 digits>/<action id>    "<output id> <size> <time>\n"
    <folder>/<key's name>/output/<2 digits>/<output id>    the output

A key has a folder of its own, so that nothing that came in under a key given up is ever used again.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from meshbuild.buildcache.entry import Entry, RejectedEntryError
from meshbuild.digests import HashingWriter, Sha256
from meshbuild.paths import atomic_write, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable

# As Go's own cache does it (cmd/go/internal/cache/cache.go): what wasn't used for five days goes, once a day.
_KEEP_S, _TRIM_EVERY_S, _USED_AGAIN_AFTER_S = 5 * 86_400, 86_400, 3_600
_RECORD = re.compile(r"([0-9a-f]{64}) (\d{1,19}) (\d{1,19})\n")


class LocalLayer:
    """Entries on this machine, for any number of threads and processes at once: files appear whole, or not at all."""

    def __init__(self, folder: Path, key: bytes) -> None:
        self._all = folder
        self.folder = folder / hmac.new(key, b"meshbuild-cache local", hashlib.sha256).hexdigest()[:16]

    def output_file(self, output: Sha256) -> Path:
        """Where an output lies."""
        return self.folder / "output" / output[:2] / output

    def get(self, action: Sha256) -> Entry | None:
        """An action's entry, whose output was just read and is whole."""
        record = self._record_file(action)
        try:
            match = _RECORD.fullmatch(record.read_text("ascii"))
            if match is None:
                return None
            entry = Entry(Sha256(match[1]), int(match[2]), int(match[3]))
            file = self.output_file(entry.output)
            if Sha256.of_file(file) != entry.output:
                return None
            for each in (record, file):
                self._mark_used(each)
        except (OSError, UnicodeDecodeError):
            return None
        return entry

    def add(self, action: Sha256, entry: Entry, pieces: Iterable[bytes]) -> None:
        """Keep an entry whose output comes in pieces.

        Raises:
            RejectedEntryError: the pieces are not the entry's output.
            OSError: it can't be written. Whatever is raised, nothing was kept.
        """
        with atomic_write(self.output_file(entry.output), fsync=False) as file:
            hashing = HashingWriter(file)
            for piece in pieces:
                hashing.write(piece)
            if hashing.size_bytes != entry.size_bytes or hashing.sha256 != entry.output:
                raise RejectedEntryError("the output is not what its head says")
        record = f"{entry.output} {entry.size_bytes} {entry.time_ns}\n"
        write_atomically(self._record_file(action), record.encode(), fsync=False)

    def trim(self) -> None:
        """Remove what wasn't used for five days, of every key, if that wasn't done today. Raises OSError."""
        now, marker = time.time(), self._all / "trimmed"
        with contextlib.suppress(FileNotFoundError):
            if now - marker.stat().st_mtime < _TRIM_EVERY_S:
                return
        for folder, _, names in os.walk(self._all):
            for name in names:
                file = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):  # another process trims too
                    if now - file.lstat().st_mtime > _KEEP_S:
                        file.unlink()
        write_atomically(marker, b"", fsync=False)

    def _record_file(self, action: Sha256) -> Path:
        return self.folder / "action" / action[:2] / action

    @staticmethod
    def _mark_used(file: Path) -> None:
        if time.time() - file.stat().st_mtime > _USED_AGAIN_AFTER_S:
            os.utime(file)
