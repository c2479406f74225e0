"""Artifacts from their source to their signed bundles in dist/, and the records that let the next run skip them."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from meshbuild import uptodate
from meshbuild.attest import attestor
from meshbuild.build import (
    NO_CACHE,
    BuildSite,
    check_isolation,
    compile_build,
    compile_together,
    prepare_build,
)
from meshbuild.buildcache.key import read_cache_key
from meshbuild.buildcache.server import shared_cache
from meshbuild.bundle import BundleIdentity, PackInput, write_bundle
from meshbuild.errors import CompileError, InputsChangedError, MeshbuildError
from meshbuild.git import source_state
from meshbuild.paths import local_errors
from meshbuild.pins import host_platform
from meshbuild.signing import generate_key, load_signer
from meshbuild.targets import asked_for, cache_folder, find_target, inputs, payload, plan_target, read_targets
from meshbuild.toolchains import ensure_toolchain
from meshbuild.why import remember

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from securesystemslib.signer import Signer

    from meshbuild.build import BuildResult, PreparedBuild
    from meshbuild.project import ArtifactTask
    from meshbuild.settings import Settings
    from meshbuild.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """An artifact whose build has begun: all that is known of it before its program is there.

    Attributes:
        files: what its `files` rules put beside the program.
        before: its inputs and their digests, taken before the compiler reads them.
        snapshot: what these were taken by.
        began: when, in UTC.
        began_ns: the same by the clock of files, in nanoseconds.
    """

    target: Target
    prepared: PreparedBuild
    files: tuple[PackInput, ...]
    before: Mapping[str, str]
    snapshot: uptodate.Snapshot
    began: datetime
    began_ns: int


class Workshop:
    """Builds of one run, by several threads if need be; what they share lies here until `close`.

    One of them compiles at a time, since the go command itself uses every core, and two of it would compile what both
    need twice. Artifacts of one manifest that the run is to build share one call where Go module and target are equal.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        memory: uptodate.DigestMemory,
        environ: Mapping[str, str],
        report: Callable[[str], None],
    ) -> None:
        """A workshop for the project of the settings.

        Args:
            settings: the project's settings.
            memory: the run's memory of file digests.
            environ: the user's environment.
            report: takes a line for people about something slow or worth knowing.
        """
        self._settings = settings
        self._memory = memory
        self._environ = environ
        self._report = report
        self._one_setup = threading.Lock()
        self._one_compiler = threading.Lock()
        self._by_manifest: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._compiled: dict[str, tuple[_Begun, BuildResult]] = {}
        self._cleanup = contextlib.ExitStack()
        self._folder: Path | None = None
        self._targets: list[Target] | None = None
        self._key: Signer | None = None
        self._cache_env: Mapping[str, str] | None = None

    def assemble(
        self, task: ArtifactTask, *, seen: uptodate.Record | None, siblings: Callable[[], Sequence[ArtifactTask]]
    ) -> uptodate.Record:
        """Build one artifact and pack it; afterwards its bundle lies in dist/ and its record says what it came from.

        Two runs at once build an artifact once. A killed run leaves nothing that is taken for finished.

        Args:
            task: what to build.
            seen: the record on which it was decided to build; another one means that another run has built since.
            siblings: names the other artifacts of its manifest that this run will build too.

        Raises:
            InputsChangedError: a file was changed while it was being built from; nothing was recorded.
            IsolationError: the settings ask for a compiler without a network, and that can't be had here.
            MeshbuildError: whatever the stages raise.
        """
        settings, record_file = self._settings, task.record_file(self._settings)
        with local_errors(f"write {settings.state}"):
            record_file.parent.mkdir(parents=True, exist_ok=True)
            _ignore(settings.state)
        with FileLock(record_file.with_suffix(".lock")):
            record, now = uptodate.read_record(record_file), uptodate.Snapshot(self._memory)
            current = uptodate.is_up_to_date(record, fingerprint=task.fingerprint, project=settings.project, files=now)
            if record and record != seen and current:
                return record  # another run built it while this one waited
            with self._by_manifest[task.manifest]:
                if task.name not in self._compiled:
                    self._compile(task, siblings())
                begun, result = self._compiled.pop(task.name)
            try:
                record = self._pack(task, begun, result)
            finally:
                shutil.rmtree(begun.prepared.folders["work"], ignore_errors=True)
            remember(settings, task, record, asked_for(settings, begun.target), begun.snapshot)
            with local_errors(f"write {record_file}"):
                uptodate.write_record(record_file, record)
            return record

    def close(self) -> None:
        """Remove what the builds shared."""
        self._cleanup.close()

    def _compile(self, task: ArtifactTask, siblings: Sequence[ArtifactTask]) -> None:
        """Compile a task's program, and those of siblings that the same call can build."""
        self._signer()  # its public half is an input
        first = self._begin(self._target(task))
        group = {task.name: first}
        for sibling in siblings:
            with contextlib.suppress(MeshbuildError):  # it will say so itself, when its turn comes
                begun = self._begin(self._target(sibling))
                if _can_share(begun, group.values()):
                    group[sibling.name] = begun
        with self._one_compiler:
            if len(group) > 1:
                with contextlib.suppress(CompileError):  # of whichever: each alone, then
                    results = compile_together([begun.prepared for begun in group.values()], self._shared_cache())
                    self._compiled |= {
                        name: (begun, result) for (name, begun), result in zip(group.items(), results, strict=True)
                    }
                    return
            self._compiled[task.name] = first, compile_build(first.prepared, self._shared_cache())

    def _begin(self, target: Target) -> _Begun:
        settings, environ = self._settings, self._environ
        if settings.require_isolation:
            check_isolation(target.name)
        began, began_ns = datetime.now(UTC), time.time_ns()
        snapshot = uptodate.Snapshot(self._memory)
        plan = plan_target(target, environ)
        files = payload(target, None)
        pin = target.pins.toolchain(target.artifact.toolchain, host_platform())
        cache = cache_folder(settings, environ)
        toolchain = ensure_toolchain(pin, cache=cache, environ=environ, report=self._report)
        site = BuildSite(manifest_dir=target.manifest_dir, cache=cache, work=self._work_folder())
        prepared = prepare_build(plan, site=site, toolchain=toolchain, environ=environ)
        with local_errors(f"read the source of {plan.name}"):
            before = uptodate.digest_inputs(
                inputs(settings, target, plan, prepared.packages), settings.project, snapshot
            )
        return _Begun(
            target=target,
            prepared=prepared,
            files=tuple(files),
            before=before,
            snapshot=snapshot,
            began=began,
            began_ns=began_ns,
        )

    def _pack(self, task: ArtifactTask, begun: _Begun, result: BuildResult) -> uptodate.Record:
        settings, target, plan = self._settings, begun.target, begun.prepared.plan
        _check_unchanged(settings, task, begun)
        with local_errors(f"write {settings.dist}"):
            settings.dist.mkdir(exist_ok=True)
            _ignore(settings.dist)
        folders = plan.source.folders(target.manifest_dir)
        source = source_state(folders, self._environ)
        info = write_bundle(
            settings.dist / task.file_name,
            BundleIdentity(task.module, task.artifact, task.version, task.system, target.artifact.binary),
            [PackInput(target.artifact.binary, result.binary, 0o755), *begun.files],
            attest=attestor(
                target.manifest_dir,
                target.artifact,
                plan,
                result,
                source=source,
                signer=self._signer(),
                began=begun.began,
            ),
            level=settings.compression_level,
        )
        return uptodate.Record(
            fingerprint=task.fingerprint,
            inputs=dict(begun.before),
            bundle=os.path.relpath(settings.dist / task.file_name, settings.project),
            blob_sha256=info.blob_sha256,
            content_sha256=info.content_sha256,
            size_bytes=info.blob_size_bytes,
            dirty=[os.path.relpath(folder, settings.project) for folder in folders] if source[1] else [],
            isolation=result.isolation,
        )

    def _target(self, task: ArtifactTask) -> Target:
        with self._one_setup:
            if self._targets is None:
                self._targets = read_targets(self._settings)
        return find_target(self._targets, task)

    def _signer(self) -> Signer:
        with self._one_setup:
            if self._key is None:
                self._key = builder_signer(self._settings, self._environ, self._report)
        return self._key

    def _work_folder(self) -> Path:
        with self._one_setup:
            if self._folder is None:
                self._folder = self._cleanup.enter_context(_scratch_folder(self._settings))
        folder = self._folder / secrets.token_hex(8)
        with local_errors(f"write {self._folder}"):
            folder.mkdir()
        return folder

    def _shared_cache(self) -> Mapping[str, str]:
        """What the compiler's environment needs for the shared build cache of the settings, served until `close`."""
        if self._cache_env is None:  # under _one_compiler
            self._cache_env = NO_CACHE
            if self._settings.cache_store:
                self._cache_env = self._cleanup.enter_context(self._serve_cache())
        return self._cache_env

    @contextlib.contextmanager
    def _serve_cache(self) -> Iterator[Mapping[str, str]]:
        key = read_cache_key(self._environ.get("MESHBUILD_CACHE_KEY", ""))
        folder = cache_folder(self._settings, self._environ) / "shared-build"
        store, work, report = self._settings.cache_store, self._work_folder(), self._report
        with shared_cache(store, key=key, folder=folder, work=work, report=report) as (env, cache):
            yield env
        report(f"build cache: {cache.counts}")


def builder_signer(settings: Settings, environ: Mapping[str, str], report: Callable[[str], None]) -> Signer:
    """The key that signs bundles: the one that the settings name, else the project's own, made at its first use."""
    if settings.builder_key:
        return load_signer(key_address(settings, settings.builder_key), environ)
    file = settings.path(settings.keys) / "builder.pem"
    if not file.exists():
        report(
            f"note: making a local builder key, {os.path.relpath(file, settings.project)}, to sign\n"
            "      bundles with. To use a real one, name it in MESHBUILD_BUILDER_KEY or meshbuild.toml (docs/trust.md)."
        )
    return generate_key(file)


def key_address(settings: Settings, address: str) -> str:
    """A key's address, with a plain relative path taken from the project's folder, wherever the command runs."""
    return address if ":" in address else str(settings.path(address))


def _can_share(begun: _Begun, group: Iterable[_Begun]) -> bool:
    """Whether one call can build this and the group: equal flags, and no two programs of one name."""
    plans = [member.prepared.plan for member in group]
    plan = begun.prepared.plan
    names = {other.source.program_name: other.source.package for other in plans}
    taken = names.get(plan.source.program_name, plan.source.package)
    return plan.shared_call == plans[0].shared_call and taken == plan.source.package


def _check_unchanged(settings: Settings, task: ArtifactTask, begun: _Begun) -> None:
    """Refuse a build whose inputs moved: before they were looked at (by their ctime), or after (by their digests)."""
    with local_errors(f"read the source of {task.name}"):
        after = uptodate.digest_inputs(begun.before, settings.project, uptodate.Snapshot(begun.snapshot.memory))
    changed = [name for name, digest in after.items() if digest != begun.before[name]]
    if changed or begun.snapshot.newest_change_ns > begun.began_ns:
        raise InputsChangedError(
            f"{task.name}: its source changed while it was being built: {', '.join(changed) or 'see the newest files'}",
            hint="Nothing was recorded; build again when the files are at rest.",
        )


@contextlib.contextmanager
def _scratch_folder(settings: Settings) -> Iterator[Path]:
    """A private folder below the project's state, gone afterwards; those of killed runs, with free locks, go too."""
    root = settings.state / "scratch"
    folder = root / secrets.token_hex(8)
    lock = FileLock(folder.with_suffix(".lock"), thread_local=False)  # whichever thread ends the run lets go of it
    with local_errors(f"write {root}"):
        root.mkdir(parents=True, exist_ok=True)
        for file in root.glob("*.lock"):
            _remove_if_abandoned(file)
        lock.acquire()
        folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def _remove_if_abandoned(file: Path) -> None:
    with contextlib.suppress(Timeout), FileLock(file, blocking=False):
        shutil.rmtree(file.with_suffix(""), ignore_errors=True)
        file.unlink(missing_ok=True)


def _ignore(folder: Path) -> None:
    """Keep keys, caches and bundles out of version control without asking anybody to think of it."""
    with contextlib.suppress(FileExistsError), (folder / ".gitignore").open("x") as file:
        file.write("*\n")
