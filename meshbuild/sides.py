"""What `meshbuild diff` compares: bundles from files or from a store's releases, opened after they were checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from meshbuild.bundle import read_bundle
from meshbuild.compare import Comparison, Side, compare
from meshbuild.deliver import project_store, read_root
from meshbuild.errors import NoSuchReleaseError
from meshbuild.fetch import download_bundle
from meshbuild.goprogram import read_go_program
from meshbuild.paths import local_errors
from meshbuild.repository import module_releases, read_policy
from meshbuild.sealing import check_release
from meshbuild.texts import suggestion
from meshbuild.trust import load_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshbuild.bundle import BundleInfo
    from meshbuild.fetch import Progress
    from meshbuild.release import ReleaseDocument
    from meshbuild.settings import Settings

_RELEASE = re.compile(r"([a-z0-9][a-z0-9-]*)@([a-z0-9][a-z0-9-]*)")


@dataclass(frozen=True, slots=True)
class Compared:
    """Pairs of bundles side by side, and those that only one of the two releases has."""

    comparisons: tuple[Comparison, ...]
    only_in_first: tuple[Side, ...]
    only_in_second: tuple[Side, ...]


def open_sides(
    settings: Settings, first: str, second: str, *, folder: Path, report: Callable[[str], None], progress: Progress
) -> Compared:
    """Compare two bundles' files, or releases `MODULE@NUMBER` or `MODULE@CHANNEL` of the settings' store.

    Two single bundles are compared whatever they are; else artifacts of one name and system are.

    Args:
        settings: name the store and the root of trust, for releases.
        first: the one before: a file's path, or a release.
        second: the one after.
        folder: an empty folder for what is unpacked, the caller's to remove.
        report: takes lines for people.
        progress: takes how far downloads are.

    Raises:
        MeshbuildError: a file or a release isn't there, isn't whole, or isn't trusted.
    """
    before, after = (
        _open(settings, text, folder / name, report, progress) for text, name in ((first, "a"), (second, "b"))
    )
    if len(before) == len(after) == 1:
        return Compared((compare(before[0], after[0]),), (), ())
    ours, theirs = ({_key(side): side for side in sides} for sides in (before, after))
    return Compared(
        tuple(compare(ours[key], theirs[key]) for key in sorted(ours.keys() & theirs.keys())),
        tuple(ours[key] for key in sorted(ours.keys() - theirs.keys())),
        tuple(theirs[key] for key in sorted(theirs.keys() - ours.keys())),
    )


def _key(side: Side) -> tuple[str, str]:
    return side.info.listing.artifact, side.info.listing.system


def _open(settings: Settings, text: str, folder: Path, report: Callable[[str], None], progress: Progress) -> list[Side]:
    with local_errors(f"unpack in {folder}"):
        folder.mkdir()
    named = None if Path(text).exists() else _RELEASE.fullmatch(text)
    if named is None:
        info = read_bundle(Path(text), into=folder / "content")
        return [_side(text, info, folder / "content", report)]
    return _release(settings, named, folder, report, progress)


def _release(
    settings: Settings, named: re.Match[str], folder: Path, report: Callable[[str], None], progress: Progress
) -> list[Side]:
    """A release's bundles, verified as a push verifies what it names: store, policy, builders, bytes."""
    module, which = named.groups()
    store = project_store(settings)
    state = load_state(store, root=read_root(settings), modules=[module])
    found: dict[str, ReleaseDocument] = {}
    for release, channels in module_releases(store, state, module):
        found |= {str(release.sequence): release, **{pointer.channel: release for pointer in channels}}
    if which not in found:
        there = ", ".join(found) or "none"
        raise NoSuchReleaseError(
            f"{store.address}: {module} has no release or channel {which!r}; there are: {there}"
            f"{suggestion(which, found)}"
        )
    release = found[which]
    check_release(store, read_policy(store, state.targets), release)
    sides = []
    for number, each in enumerate(release.artifacts):
        name = f"{module}@{which} ({release.version}): {each.artifact} for {each.system}"
        blob, content = folder / f"{number}.tar.zst", folder / str(number)
        with local_errors(f"unpack in {folder}"):
            download_bundle(store, each, blob, name, progress)
        info = read_bundle(blob, into=content, expected_content=each.content_sha256)
        sides.append(_side(name, info, content, report))
    return sides


def _side(name: str, info: BundleInfo, content: Path, report: Callable[[str], None]) -> Side:
    try:
        program = read_go_program(content / info.listing.binary)
    except ValueError as error:
        report(f"{name}: its program's build and sizes can't be compared: {error}")
        program = None
    return Side(name, info, program)
