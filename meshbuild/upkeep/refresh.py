"""Signing a store's metadata anew before it expires: freshness comes from the timestamp and the snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshbuild.errors import StoreBusyError
from meshbuild.sealing import seal
from meshbuild.trust import load_state

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta

    from meshbuild.repository import StoreKeys
    from meshbuild.stores import WritableStore
    from meshbuild.trust import StoreState

_MAX_TRIES = 50


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What a refresh came to: whether it signed anything, and when each top-level role expires now."""

    signed: bool
    expires: Mapping[str, datetime]


def refresh(store: WritableStore, *, root: bytes, keys: StoreKeys, within: timedelta, now: datetime) -> Refreshed:
    """Sign snapshot and timestamp anew if one of them expires soon; what has expired already is renewed too.

    Targets, root and the modules' roles are left as they are: they live for years, and their keys are not online.

    Args:
        store: the store.
        root: its root of trust.
        keys: its online keys.
        within: how soon is soon.
        now: the time from which expiry is counted.

    Raises:
        TrustError: the store's metadata can't be verified, or hosts would refuse what these keys sign.
        StoreError: the store can't be read or written.
        StoreBusyError: publishers won every try.
    """
    for _ in range(_MAX_TRIES):
        state = load_state(store, root=root, modules=[])
        if min(state.snapshot.expires, state.timestamp.expires) > now + within:
            return Refreshed(signed=False, expires=expiry(state))
        if seal(store, state, [], keys=keys, now=now):
            return Refreshed(signed=True, expires=expiry(load_state(store, root=root, modules=[])))
    raise StoreBusyError(f"{store.address}: publishers were faster {_MAX_TRIES} times; each push refreshes too")


def expiry(state: StoreState) -> dict[str, datetime]:
    """When each role of a state expires, by its name."""
    top = {"root": state.root, "targets": state.targets, "snapshot": state.snapshot, "timestamp": state.timestamp}
    return {name: role.expires for name, role in {**top, **state.roles}.items()}
