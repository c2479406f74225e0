"""The shared build cache: what this machine has, behind it what a store has, in bounded time whatever that does."""

from __future__ import annotations

import contextlib
import queue
import tempfile
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import zstandard

from meshbuild.buildcache.entry import (
    MAX_OUTPUT_BYTES,
    Entry,
    RejectedEntryError,
    object_name,
    read_head,
    read_output,
    write_entry,
)
from meshbuild.buildcache.local import LocalLayer
from meshbuild.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from meshbuild.buildcache.stores import CacheStore
    from meshbuild.digests import Sha256

THREADS = "build cache:"
_UPLOADERS, _QUEUE_LENGTH = 4, 4096
# Go's index of a package folder or module (cmd/go/internal/modindex) is kept under the folder's path. Two machines may
# have different source at the same path, so it must never leave the machine.
_MODULE_INDEX = b"go index v"


@dataclass(slots=True)
class CacheCounts:
    """What a shared build cache did in one run.

    Attributes:
        local_hits: entries found on this machine.
        hits: entries found in the store.
        misses: actions that neither had.
        rejected: objects in the store that the holders of the key didn't put there; misses too.
        uploaded: entries put into the store.
        not_uploaded: entries that the store didn't take, or not in time.
    """

    local_hits: int = 0
    hits: int = 0
    misses: int = 0
    rejected: int = 0
    uploaded: int = 0
    not_uploaded: int = 0

    def __str__(self) -> str:
        """A line for people."""
        found = f"{self.local_hits} found here, {self.hits} in the store, {self.misses} nowhere"
        left = f", {self.not_uploaded} not" if self.not_uploaded else ""
        return f"{found} ({self.rejected} rejected); {self.uploaded} uploaded{left}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a build waits for a store, in all.

    Attributes:
        get_s: how long one entry may take.
        stall_s: how long all of them may take beyond what a healthy store needs: a second, and one more for each MB.
        failures: how many failures in a row end the use of the store.
        flush_s: how long the end of a run waits for uploads.
    """

    get_s: float = 20.0
    stall_s: float = 30.0
    failures: int = 3
    flush_s: float = 20.0


@dataclass(slots=True)
class Direction:
    """One direction of a store's use: whether it is still wanted, and the failures in a row."""

    wanted: bool = True
    failures: int = 0


@dataclass(slots=True)
class Experience:
    """What one process had with a store, over all its builds: a store that was given up stays so."""

    reads: Direction = field(default_factory=Direction)
    writes: Direction = field(default_factory=Direction)
    stalled_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


class SharedCache:
    """Go's build cache for one run; its methods may be called from several threads at once.

    The store is only ever touched by threads that a process doesn't wait for when it ends.

    Args:
        store: where entries of other machines lie.
        key: what the builders share.
        folder: this machine's part, which other processes may be using too.
        report: told once when the store isn't used any more, and why.
        patience: how long the store may take.
        experience: what earlier builds of this process had with the store; None for nothing.
    """

    def __init__(
        self,
        store: CacheStore,
        *,
        key: bytes,
        folder: Path,
        report: Callable[[str], None],
        patience: Patience | None = None,
        experience: Experience | None = None,
    ) -> None:
        self.counts = CacheCounts()
        self._store, self._key, self._report = store, key, report
        self._patience = patience or Patience()
        self._local = LocalLayer(folder, key)
        self._experience = experience or Experience()
        self._reads, self._writes = self._experience.reads, self._experience.writes
        self._lock = self._experience.lock
        self._offered = 0
        self._queue: queue.Queue[tuple[Sha256, Entry] | None] = queue.Queue(_QUEUE_LENGTH)
        self._uploaders: list[threading.Thread] = []

    def get(self, action: Sha256) -> Entry | None:
        """An action's entry, or None; its output lies in `output_file` then."""
        entry = self._local.get(action)
        if entry is not None:
            self._count("local_hits")
            return entry
        entry = self._fetch_in_time(action) if self._reads.wanted else None
        self._count("misses" if entry is None else "hits")
        return entry

    def put(self, action: Sha256, output: Sha256, size_bytes: int, pieces: Iterable[bytes]) -> Path:
        """Keep what an action gave, and put it into the store in the background; returns the output's file.

        Raises:
            RejectedEntryError: the pieces are not that output.
            OSError: it can't be kept on this machine.
        """
        entry = Entry(output, size_bytes, time.time_ns())
        self._local.add(action, entry, pieces)
        self._offer(action, entry)
        return self.output_file(entry)

    def output_file(self, entry: Entry) -> Path:
        """Where an entry's output lies."""
        return self._local.output_file(entry.output)

    def close(self) -> None:
        """Wait for uploads, at most `Patience.flush_s`, and clean up on this machine."""
        done = self._queue.all_tasks_done  # what queue.Queue.join waits for, without a limit
        with done:
            in_time = done.wait_for(lambda: not self._queue.unfinished_tasks, self._patience.flush_s)
        if not in_time:
            self._stop(self._writes, "it did not take all uploads in time")
        with contextlib.suppress(queue.Full):
            for _ in self._uploaders:
                self._queue.put_nowait(None)
        with self._lock:
            self.counts.not_uploaded = self._offered - self.counts.uploaded
        with contextlib.suppress(OSError):
            self._local.trim()

    def _fetch_in_time(self, action: Sha256) -> Entry | None:
        result: Future[Entry | None] = Future()
        began = time.monotonic()
        threading.Thread(target=self._fetch, args=(action, result), name=f"{THREADS} fetch", daemon=True).start()
        entry, failure = None, ""
        try:
            left_s = max(self._patience.stall_s - self._experience.stalled_s, 0)
            entry = result.result(min(self._patience.get_s, left_s + 1))
        except TimeoutError:
            failure = f"no whole answer after {time.monotonic() - began:.0f} s"
        except StoreError as error:
            failure = str(error)
        quick_s = 1 + (entry.size_bytes / 1e6 if entry else 0)
        with self._lock:
            self._experience.stalled_s += max(time.monotonic() - began - quick_s, 0)
            stalled_s = self._experience.stalled_s
        self._note(self._reads, failure)
        if stalled_s > self._patience.stall_s:
            self._stop(self._reads, f"{stalled_s:.0f} s were spent waiting for it")
        return entry

    def _fetch(self, action: Sha256, result: Future[Entry | None]) -> None:
        """Bring an entry from the store to this machine; runs in a thread of its own, which may hang for good."""
        try:
            with self._store.get(object_name(action)) as source:
                if source is None:
                    result.set_result(None)
                    return
                entry = read_head(source, action=action, key=self._key)
                self._local.add(action, entry, read_output(source, entry))
        except RejectedEntryError:
            self._count("rejected")
            result.set_result(None)
        except (StoreError, OSError) as error:
            result.set_exception(error if isinstance(error, StoreError) else StoreError(str(error)))
        else:
            result.set_result(entry)

    def _offer(self, action: Sha256, entry: Entry) -> None:
        with self._local.output_file(entry.output).open("rb") as file:
            if file.read(len(_MODULE_INDEX)) == _MODULE_INDEX:
                return
        with self._lock:
            self._offered += 1
            if not self._writes.wanted or entry.size_bytes > MAX_OUTPUT_BYTES:
                return
            if not self._uploaders:
                self._uploaders = [
                    threading.Thread(target=self._upload_all, name=f"{THREADS} upload", daemon=True)
                    for _ in range(_UPLOADERS)
                ]
                for thread in self._uploaders:
                    thread.start()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait((action, entry))

    def _upload_all(self) -> None:
        while (work := self._queue.get()) is not None:
            if self._writes.wanted:
                self._upload(*work)
            self._queue.task_done()

    def _upload(self, action: Sha256, entry: Entry) -> None:
        try:
            with tempfile.TemporaryFile() as packed:
                with self._local.output_file(entry.output).open("rb") as output:
                    write_entry(packed, output, action=action, entry=entry, key=self._key)
                packed.seek(0)
                taken = self._store.put(object_name(action), packed)
        except (StoreError, OSError, zstandard.ZstdError) as error:
            self._note(self._writes, str(error))
            return
        if taken:
            self._count("uploaded")
            self._note(self._writes, "")
        else:
            self._stop(self._writes, "it takes no uploads from here")

    def _note(self, use: Direction, failure: str) -> None:
        """Count failures in a row; an empty text is a success."""
        with self._lock:
            use.failures = use.failures + 1 if failure else 0
        if use.failures >= self._patience.failures:
            self._stop(use, failure)

    def _stop(self, use: Direction, why: str) -> None:
        """Do without the store for the rest of the run, in one or both directions, and say so once."""
        with self._lock:
            said, use.wanted = not use.wanted, False
            if use is self._reads:
                said, self._writes.wanted = said or not self._writes.wanted, False
        if not said:
            what = "read any more" if use is self._reads else "filled"
            self._report(f"the shared build cache {self._store.address} is not {what} in this run: {why}")

    def _count(self, name: str) -> None:
        with self._lock:
            setattr(self.counts, name, getattr(self.counts, name) + 1)
