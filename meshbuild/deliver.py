"""A project's side of a store: making one on embedded defaults, and pushing what dist/ holds."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from meshbuild import uptodate
from meshbuild.assemble import key_address
from meshbuild.bundle import read_bundle
from meshbuild.errors import DirtySourceError, NoSuchArtifactError, NotBuiltError, SettingsError, StoreError
from meshbuild.paths import local_errors, write_atomically
from meshbuild.project import load_tasks
from meshbuild.publish import BundleFile, promote, publish
from meshbuild.repository import StoreKeys, init_store
from meshbuild.signing import generate_key, load_public_key, load_signer
from meshbuild.stores import open_store, open_writable
from meshbuild.targets import plan_tasks, read_targets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from securesystemslib.signer import Key, Signer

    from meshbuild.project import ArtifactTask
    from meshbuild.publish import Published
    from meshbuild.settings import Settings
    from meshbuild.stores import ListableStore, ReadableStore

ROLES = ("root", "targets", "snapshot", "timestamp")


def project_store(settings: Settings) -> ReadableStore:
    """The store that the settings name, for reading; a plain relative path is taken from the project's folder."""
    return open_store(_address(settings))


def writable_store(settings: Settings) -> ListableStore:
    """The store that the settings name, for writing; a plain relative path is taken from the project's folder."""
    return open_writable(_address(settings))


def make_store(settings: Settings, *, report: Callable[[str], None]) -> Path:
    """Make the project's store, and the keys of its roles where they aren't there yet.

    Returns:
        The file with the root of trust, which hosts start from.

    Raises:
        StoreError: there is a store already.
        LocalFileError: keys or store can't be written.
    """
    store, folder = writable_store(settings), settings.path(settings.keys)
    keys: dict[str, Signer] = {}
    for role in ROLES:
        file = folder / f"{role}.pem"
        if not file.exists():
            report(f"making the key {os.path.relpath(file, settings.project)}")
        keys[role] = generate_key(file)
    root = init_store(store, StoreKeys(**keys), now=datetime.now(UTC))
    trust = settings.path(settings.root)
    with local_errors(f"write {trust}"):
        write_atomically(trust, root)
    return trust


def read_root(settings: Settings) -> bytes:
    """The root of trust. Raises SettingsError when there is none yet."""
    file = settings.path(settings.root)
    if not file.is_file():
        raise SettingsError(
            f"there is no root of trust at {file}",
            hint="`meshbuild store init` makes a store with one; of another's store, get root.json from its owner "
            "and name it with --root.",
        )
    with local_errors(f"read {file}"):
        return file.read_bytes()


def online_keys(settings: Settings, environ: Mapping[str, str]) -> StoreKeys:
    """The keys that seal: snapshot and timestamp, and the targets key where it lies beside them.

    Raises:
        StoreError: the snapshot or the timestamp key isn't there.
        SignatureError: one of them can't be used.
    """
    folder = settings.path(settings.keys)
    found = {role: folder / f"{role}.pem" for role in ROLES[1:]}
    for role in ("snapshot", "timestamp"):
        if not found[role].is_file():
            raise StoreError(
                f"the {role} key {found[role]} is not there, and sealing a release needs it",
                hint="`meshbuild store init` makes a store with its keys.",
            )
    return StoreKeys(**{role: load_signer(str(file), environ) for role, file in found.items() if file.is_file()})


def push_modules(
    settings: Settings,
    *,
    modules: Sequence[str],
    allow_dirty: bool,
    environ: Mapping[str, str],
    report: Callable[[str], None],
) -> Iterator[Published]:
    """Publish the built bundles of modules, all of the project's unless named; yields what each push came to.

    Args:
        settings: the project's settings.
        modules: their names.
        allow_dirty: publish also what was built from a tree with changes that aren't committed.
        environ: the user's environment.
        report: takes a line for people.

    Raises:
        NotBuiltError: a bundle isn't built, or isn't what the source would give now.
        DirtySourceError: a bundle's provenance names a commit that its source differs from.
        MeshbuildError: whatever verifying, signing and publishing raise.
    """
    by_module: dict[str, list[ArtifactTask]] = {}
    for task in load_tasks(settings, plan_tasks):
        by_module.setdefault(task.module, []).append(task)
    for name in modules:
        if name not in by_module:
            raise NoSuchArtifactError(f"no module is named {name!r}; there are {', '.join(by_module) or 'none'}")
    chosen = {name: by_module[name] for name in (modules or by_module)}
    _check_built(settings, [task for tasks in chosen.values() for task in tasks], allow_dirty=allow_dirty)
    root, store = read_root(settings), writable_store(settings)
    keys = online_keys(settings, environ)
    publisher = _publisher(settings, environ, report)
    manifests = {target.manifest.module: target.manifest for target in read_targets(settings)}
    for module, tasks in chosen.items():
        bundles = [BundleFile(file, read_bundle(file)) for file in (settings.dist / task.file_name for task in tasks)]
        yield publish(
            store,
            root=root,
            manifest=manifests[module].document,
            bundles=bundles,
            channel=settings.channel,
            publisher=publisher,
            builder=_builder(settings, environ),
            keys=keys,
            now=datetime.now(UTC),
        )


def promote_release(
    settings: Settings,
    *,
    module: str,
    release: str | int,
    environ: Mapping[str, str],
    report: Callable[[str], None],
) -> Published:
    """Let the settings' channel point at a release of the store: by its number, or by a channel that points at it.

    Raises:
        MeshbuildError: whatever verifying, signing and publishing raise.
    """
    return promote(
        writable_store(settings),
        root=read_root(settings),
        module=module,
        release=release,
        channel=settings.channel,
        publisher=_publisher(settings, environ, report),
        keys=online_keys(settings, environ),
        now=datetime.now(UTC),
    )


def _check_built(settings: Settings, tasks: Sequence[ArtifactTask], *, allow_dirty: bool) -> None:
    files = uptodate.Snapshot(uptodate.DigestMemory(settings.state / "digests.json"))
    missing, dirty = [], []
    for task in tasks:
        record = uptodate.read_record(task.record_file(settings))
        with local_errors(f"read the source of {task.name}"):
            if not uptodate.is_up_to_date(record, fingerprint=task.fingerprint, project=settings.project, files=files):
                missing.append(task.name)
        if record is not None and record.dirty:
            dirty.append(task.name)
    if missing:
        raise NotBuiltError(
            f"not built, or not what the source would give now: {', '.join(missing)}",
            hint="Run `doit build` first; `doit push` does both.",
        )
    if dirty and not allow_dirty:
        raise DirtySourceError(
            f"built from a tree with uncommitted changes, so that no commit gives it again: {', '.join(dirty)}",
            hint="Commit (`git status` shows what) and build again, or say --allow-dirty; the provenance stays marked.",
        )


def _publisher(settings: Settings, environ: Mapping[str, str], report: Callable[[str], None]) -> Signer:
    if settings.publisher_key:
        return load_signer(key_address(settings, settings.publisher_key), environ)
    file = settings.path(settings.keys) / "publisher.pem"
    if not file.exists():
        report(f"making the key {os.path.relpath(file, settings.project)}, which signs this project's releases")
    return generate_key(file)


def _builder(settings: Settings, environ: Mapping[str, str]) -> Key:
    if settings.builder_key:
        return load_signer(key_address(settings, settings.builder_key), environ).public_key
    return load_public_key(settings.path(settings.keys) / "builder.pub")


def _address(settings: Settings) -> str:
    address = settings.store
    return address if ":" in address else str(settings.path(address))
