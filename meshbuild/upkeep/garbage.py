"""Removing what a store no longer needs: what no state of the last days reaches, and what is older than that itself.

A reader that has begun with a state may go on with it for the grace; a state counts as in use until the next snapshot
appears. A push uploads again what is older than half the grace, so that nothing goes that it has come to name. Roots
are kept for ever: hosts with an old one follow the chain.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, Snapshot, Targets, Timestamp

from meshbuild.errors import ObjectMissingError, ReleaseError, TrustError
from meshbuild.release import MAX_DOCUMENT_BYTES, ReleaseDocument, object_key
from meshbuild.repository import GRACE_S
from meshbuild.trust import MAX_METADATA_BYTES, TIMESTAMP_KEY, document_key, load_state
from meshbuild.upkeep.check import objects_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from meshbuild.stores import Entry, ListableStore

_SNAPSHOT = re.compile(r"metadata/(\d+)\.snapshot\.json")
_ROOT = re.compile(r"metadata/\d+\.root\.json")
_RELEASE = re.compile(r"[^/]+/release\.\d+\.json")
_OURS = re.compile(r"metadata/\d+\.[^/]+\.json|targets/.+|objects/sha256/[0-9a-f]{2}/[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Garbage:
    """What can go, and what stays: files as they were listed."""

    entries: tuple[Entry, ...]
    kept_files: int
    kept_size_bytes: int

    @property
    def size_bytes(self) -> int:
        """How many bytes can go."""
        return sum(entry.size_bytes for entry in self.entries)


def find_garbage(store: ListableStore, *, root: bytes, grace_s: float = GRACE_S) -> Garbage:
    """Find the files of a store that nothing needs; removes nothing.

    Files that no store of ours has put there are left alone.

    Args:
        store: the store.
        root: its root of trust.
        grace_s: how long what is out of use is kept, in seconds by the store's clock.

    Raises:
        TrustError: the present state can't be verified; nothing is called garbage then.
        ObjectMissingError, ObjectCorruptError, ReleaseError: a part of it is missing or wrong: `store check` says more.
        StoreError: the store can't be read.
    """
    load_state(store, root=root, modules=[])
    before_s = store.now_s() - grace_s
    entries = {entry.key: entry for entry in store.entries() if _OURS.fullmatch(entry.key)}
    needed = {key for key in entries if _ROOT.fullmatch(key)} | set(_reached(store, _in_use(entries, before_s)))
    garbage = [entry for key, entry in entries.items() if key not in needed and entry.changed_s < before_s]
    kept = [entry for entry in entries.values() if entry not in set(garbage)]
    return Garbage(
        tuple(sorted(garbage, key=lambda entry: entry.key)), len(kept), sum(entry.size_bytes for entry in kept)
    )


def remove_garbage(store: ListableStore, garbage: Garbage) -> None:
    """Remove files that were found to be garbage. Killed at any moment, the rest goes the next time.

    Raises:
        StoreError: one can't be removed.
    """
    for entry in garbage.entries:
        store.remove(entry.key)


def _in_use(entries: dict[str, Entry], before_s: float) -> list[str]:
    """The snapshots that readers may have begun with since a time: the newest at that time, and all after it."""
    numbered = sorted((int(match[1]), key) for key in entries if (match := _SNAPSHOT.fullmatch(key)))
    following = [entries[key].changed_s for _, key in numbered[1:]]
    ended = [*following, float("inf")]
    return [key for (_, key), end_s in zip(numbered, ended, strict=True) if end_s >= before_s]


def _reached(store: ListableStore, snapshots: Iterable[str]) -> Iterator[str]:
    """The keys that the present snapshot leads to, and those that others that may be in use lead to."""
    timestamp: Metadata[Timestamp] = Metadata.from_bytes(store.read(TIMESTAMP_KEY, limit_bytes=MAX_METADATA_BYTES))
    present = f"metadata/{timestamp.signed.snapshot_meta.version}.snapshot.json"
    seen: set[str] = set()
    yield from _behind(store, present, seen)
    for key in snapshots:
        with contextlib.suppress(ObjectMissingError, RepositoryError, ReleaseError, TrustError):
            # One that was begun and never sealed may lack parts.
            yield from _behind(store, key, seen)


def _behind(store: ListableStore, snapshot_key: str, seen: set[str]) -> Iterator[str]:
    yield snapshot_key
    snapshot: Metadata[Snapshot] = Metadata.from_bytes(store.read(snapshot_key, limit_bytes=MAX_METADATA_BYTES))
    for name, meta in snapshot.signed.meta.items():
        key = f"metadata/{meta.version}.{name}"
        yield key
        if key not in seen:
            seen.add(key)
            yield from _named_by(store, key)


def _named_by(store: ListableStore, key: str) -> Iterator[str]:
    """The documents that a role names, and the objects of its releases."""
    role: Metadata[Targets] = Metadata.from_bytes(store.read(key, limit_bytes=MAX_METADATA_BYTES))
    for name, target in role.signed.targets.items():
        document = document_key(store.address, target)
        yield document
        if _RELEASE.fullmatch(name):
            release = ReleaseDocument.parse(store.read(document, limit_bytes=MAX_DOCUMENT_BYTES), where=name)
            yield from map(object_key, objects_of(release))
