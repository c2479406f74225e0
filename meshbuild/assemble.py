"""One artifact from its source to its signed bundle in dist/, and the record that lets the next run skip it."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from meshbuild import __version__, uptodate
from meshbuild.attest import attestor
from meshbuild.build import BuildSite, build
from meshbuild.bundle import BundleIdentity, PackInput, write_bundle
from meshbuild.digests import Sha256
from meshbuild.errors import InputsChangedError, SourceError
from meshbuild.git import source_state
from meshbuild.gosource import find_source
from meshbuild.jsontext import canonical_json
from meshbuild.manifest import read_manifests
from meshbuild.paths import local_errors
from meshbuild.pins import host_platform, read_pins
from meshbuild.plan import UNKNOWN_COMMIT, plan_build
from meshbuild.project import ArtifactTask, manifest_files
from meshbuild.signing import generate_key, load_signer
from meshbuild.toolchains import ensure_toolchain, user_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from securesystemslib.signer import Signer

    from meshbuild.build import Package
    from meshbuild.manifest import Artifact, Manifest
    from meshbuild.pins import Pins
    from meshbuild.plan import BuildPlan
    from meshbuild.settings import Settings

# Two threads of `doit -n 2` make and announce one local key.
_ONE_KEY = threading.Lock()


@dataclass(frozen=True, slots=True)
class Target:
    """An artifact with all that is needed to plan it: where its manifest lies, the manifest, the pins."""

    manifest_dir: Path
    manifest: Manifest
    artifact: Artifact
    pins: Pins


def plan_tasks(settings: Settings) -> list[ArtifactTask]:
    """Read the pins and every manifest of a project, and name every artifact for every system.

    Raises:
        PinsError: toolchains.toml is missing or not valid.
        ManifestError: manifests are not valid, or two of them are of one module; all their problems together.
    """
    targets = read_targets(settings)
    return [
        ArtifactTask(
            module=target.manifest.module,
            version=target.manifest.version,
            artifact=target.artifact.name,
            system=target.artifact.system,
            manifest=os.path.relpath(target.manifest_dir / "manifest.json", settings.project),
            fingerprint=_asked_for(settings, target),
        )
        for target in targets
    ]


def read_targets(settings: Settings) -> list[Target]:
    """Every artifact of a project's manifests; raises as `plan_tasks` does."""
    pins = read_pins(settings.project / "toolchains.toml")
    manifests = read_manifests(manifest_files(settings.project), systems=pins.systems, toolchains=pins.toolchains)
    return [
        Target(file.parent, manifest, artifact, pins)
        for file, manifest in manifests.items()
        for artifact in manifest.build.artifacts
    ]


def plan_target(target: Target, environ: Mapping[str, str]) -> BuildPlan:
    """Plan one artifact's build, with the state of its source as it is now.

    Raises:
        SourceError, ToolchainTooOldError: as `find_source` and `plan_build` say; or `vcs` meets a tree that is dirty.
    """
    where = f"{target.manifest.module}.{target.artifact.name}"
    source = find_source(target.manifest_dir, target.artifact.source, where=where)
    commit, dirty = source_state(str(target.manifest_dir), environ) if asks_git(target.artifact) else (None, None)
    if target.artifact.vcs and (commit is None or dirty):
        raise SourceError(
            f"{where}: `vcs` stamps the git revision, and "
            + ("the tree has changes that are not committed" if dirty else "git knows of none here"),
            hint="Commit the changes, or remove `vcs` from the artifact.",
        )
    return plan_build(
        target.manifest,
        target.artifact,
        pin=target.pins.toolchain(target.artifact.toolchain, host_platform()),
        system=target.pins.system(target.artifact.system),
        source=source,
        commit=commit or UNKNOWN_COMMIT,
    )


def asks_git(artifact: Artifact) -> bool:
    """Whether an artifact's bytes depend on the git commit: only where its manifest asks for that."""
    return artifact.vcs or any("${commit}" in template for template in artifact.stamp.values())


def assemble(
    settings: Settings,
    task: ArtifactTask,
    *,
    seen: uptodate.Record | None,
    memory: uptodate.DigestMemory,
    environ: Mapping[str, str],
    report: Callable[[str], None],
) -> uptodate.Record:
    """Build one artifact and pack it; afterwards its bundle lies in dist/ and its record says what it came from.

    Two runs at once build an artifact once. A killed run leaves nothing that is taken for finished.

    Args:
        settings: the project's settings.
        task: what to build.
        seen: the record on which it was decided to build; another one means that another run has built since.
        memory: the run's memory of file digests.
        environ: the user's environment.
        report: takes a line for people about something slow or worth knowing.

    Raises:
        InputsChangedError: a file was changed while it was being built from; nothing was recorded.
        MeshbuildError: whatever the stages raise.
    """
    record_file = task.record_file(settings)
    with local_errors(f"write {settings.state}"):
        record_file.parent.mkdir(parents=True, exist_ok=True)
        _ignore_state(settings)
    with FileLock(record_file.with_suffix(".lock")):
        record, now = uptodate.read_record(record_file), uptodate.Snapshot(memory)
        current = uptodate.is_up_to_date(record, fingerprint=task.fingerprint, project=settings.project, files=now)
        if record and record != seen and current:
            return record  # another run built it while this one waited
        target = _find(read_targets(settings), task)
        with _ONE_KEY:
            signer = builder_signer(settings, environ, report)
        with _work_folder(settings) as work:
            record = _build_and_pack(
                settings, task, target, signer=signer, work=work, memory=memory, environ=environ, report=report
            )
        with local_errors(f"write {record_file}"):
            uptodate.write_record(record_file, record)
        return record


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


def fetch_toolchains(settings: Settings, *, environ: Mapping[str, str], report: Callable[[str], None]) -> Iterator[str]:
    """Fetch the toolchain of every artifact for this machine; yields a line for each."""
    pins = read_pins(settings.project / "toolchains.toml")
    versions = {target.artifact.toolchain or pins.default for target in read_targets(settings)} or {pins.default}
    for version in sorted(versions):
        pin = pins.toolchain(version, host_platform())
        toolchain = ensure_toolchain(pin, cache=cache_folder(settings, environ), environ=environ, report=report)
        yield f"go {version} for {pin.platform}: {toolchain.root}"


def cache_folder(settings: Settings, environ: Mapping[str, str]) -> Path:
    """The user's cache of toolchains, modules and compiled packages."""
    return Path(settings.cache).expanduser() if settings.cache else user_cache(environ)


def payload(target: Target, binary: Path | None) -> list[PackInput]:
    """The files that go into an artifact's bundle: the program, and what its `files` rules name.

    Raises:
        SourceError: a rule names nothing, a link that leads outside the manifest's folder, or a path that is taken.
    """
    where = f"{target.manifest.module}.{target.artifact.name}"
    found: dict[str, PackInput] = {}
    if binary is not None:
        found[target.artifact.binary] = PackInput(target.artifact.binary, binary, 0o755)
    root = target.manifest_dir.resolve()
    for rule in target.artifact.files:
        names = uptodate.matching_files(str(root), rule.source)
        if not names:
            raise SourceError(
                f"{where}: its `files` rule {rule.source!r} names no file below {target.manifest_dir}",
                hint="Globs are relative to manifest.json; `**` crosses folders.",
            )
        fixed = _fixed_folder(rule.source)
        for name in names:
            source = (root / name).resolve()
            if not source.is_relative_to(root):
                raise SourceError(
                    f"{where}: its `files` rule {rule.source!r} names {name}, a link to outside its folder"
                )
            path = os.path.normpath(f"{rule.to}/{name.removeprefix(fixed)}")
            if path in found:
                raise SourceError(f"{where}: its `files` rules put two files at {path}")
            found[path] = PackInput(path, source, int(rule.mode, 8))
    return list(found.values())


def _fixed_folder(pattern: str) -> str:
    """The part of a glob in front of its first wildcard, up to the last slash: what `to` takes the place of."""
    fixed = pattern
    for at, letter in enumerate(pattern):
        if letter in "*?[":
            fixed = pattern[:at]
            break
    return fixed[: fixed.rfind("/") + 1]


def _build_and_pack(
    settings: Settings,
    task: ArtifactTask,
    target: Target,
    *,
    signer: Signer,
    work: Path,
    memory: uptodate.DigestMemory,
    environ: Mapping[str, str],
    report: Callable[[str], None],
) -> uptodate.Record:
    began, began_ns = datetime.now(UTC), time.time_ns()
    snapshot = uptodate.Snapshot(memory)
    plan = plan_target(target, environ)
    files = payload(target, None)
    pin = target.pins.toolchain(target.artifact.toolchain, host_platform())
    cache = cache_folder(settings, environ)
    toolchain = ensure_toolchain(pin, cache=cache, environ=environ, report=report)
    site = BuildSite(manifest_dir=target.manifest_dir, cache=cache, work=work)
    before: dict[str, str] = {}

    def remember(packages: Sequence[Package]) -> None:
        with local_errors(f"read the source of {task.name}"):
            before.update(uptodate.digest_inputs(_inputs(settings, target, plan, packages), settings.project, snapshot))

    result = build(plan, site=site, toolchain=toolchain, environ=environ, before_compile=remember)
    _check_unchanged(settings, task, before, snapshot, began_ns)
    info = write_bundle(
        settings.dist / task.file_name,
        BundleIdentity(task.module, task.artifact, task.version, task.system, target.artifact.binary),
        [PackInput(target.artifact.binary, result.binary, 0o755), *files],
        attest=attestor(
            target.manifest_dir, target.artifact, plan, result, signer=signer, began=began, environ=environ
        ),
        level=settings.compression_level,
    )
    return uptodate.Record(
        fingerprint=task.fingerprint,
        inputs=before,
        bundle=os.path.relpath(settings.dist / task.file_name, settings.project),
        blob_sha256=info.blob_sha256,
        content_sha256=info.content_sha256,
        size_bytes=info.blob_size_bytes,
    )


def _check_unchanged(
    settings: Settings, task: ArtifactTask, before: Mapping[str, str], snapshot: uptodate.Snapshot, began_ns: int
) -> None:
    """Refuse a build whose inputs moved: before they were looked at (by their ctime), or after (by their digests)."""
    with local_errors(f"read the source of {task.name}"):
        after = uptodate.digest_inputs(before, settings.project, uptodate.Snapshot(snapshot.memory))
    changed = [name for name, digest in after.items() if digest != before[name]]
    if changed or snapshot.newest_change_ns > began_ns:
        raise InputsChangedError(
            f"{task.name}: its source changed while it was being built: {', '.join(changed) or 'see the newest files'}",
            hint="Nothing was recorded; build again when the files are at rest.",
        )


def _inputs(settings: Settings, target: Target, plan: BuildPlan, packages: Sequence[Package]) -> list[str]:
    """Name all that a build read from the user's tree, and what would change it by appearing."""

    def relative(path: Path) -> str:
        return os.path.relpath(path, settings.project)

    module_dir = Path(os.path.normpath(target.manifest_dir / plan.source.module_dir))
    package_dir = Path(os.path.normpath(target.manifest_dir / target.artifact.source))
    files = {package_dir / "default.pgo", module_dir / "vendor" / "modules.txt"}
    files |= {folder / "go.mod" for folder in (package_dir, *package_dir.parents) if folder.is_relative_to(module_dir)}
    files |= {
        folder / "go.work" for folder in (module_dir, *module_dir.parents) if folder.is_relative_to(target.manifest_dir)
    }
    go_mods = {package.go_mod for package in packages if package.go_mod} | {module_dir / "go.mod"}
    if plan.source.workspace:
        workspace = Path(os.path.normpath(module_dir / plan.source.workspace))
        files |= {workspace, workspace.with_name("go.work.sum"), workspace.parent / "vendor" / "modules.txt"}
    files |= go_mods | {go_mod.with_name("go.sum") for go_mod in go_mods}
    if not settings.builder_key:
        files.add(settings.path(settings.keys) / "builder.pub")
    names = [f"file:{relative(file)}" for file in files]
    for package in packages:
        names.append(f"package:{relative(package.folder)}")
        names += [f"embed:{relative(package.folder)}:{pattern}" for pattern in package.embeds]
    names += [f"glob:{relative(target.manifest_dir)}:{rule.source}" for rule in target.artifact.files]
    if asks_git(target.artifact):
        names.append(f"git:{relative(target.manifest_dir)}")
    return sorted(names)


def _asked_for(settings: Settings, target: Target) -> Sha256:
    """The digest of all that decides on an artifact's bundle besides its input files."""
    pin = target.pins.toolchain(target.artifact.toolchain, host_platform())
    system = target.pins.system(target.artifact.system)
    return Sha256.of(
        canonical_json(
            {
                "meshbuild": __version__,
                "module": target.manifest.module,
                "version": target.manifest.version,
                "artifact": target.artifact.model_dump(mode="json"),
                "toolchain": [pin.version, pin.platform, pin.tree],
                "system": system.model_dump(mode="json"),
                "compression_level": settings.compression_level,
                "builder_key": settings.builder_key,
            }
        )
    )


def _find(targets: Sequence[Target], task: ArtifactTask) -> Target:
    for target in targets:
        found = (target.manifest.module, target.artifact.name, target.artifact.system)
        if found == (task.module, task.artifact, task.system):
            return target
    raise InputsChangedError(f"{task.name}: its manifest was changed during this run", hint="Build again.")


@contextlib.contextmanager
def _work_folder(settings: Settings) -> Iterator[Path]:
    """A private folder below the project's state, gone afterwards; those of killed runs, with free locks, go too."""
    root = settings.state / "scratch"
    folder = root / secrets.token_hex(8)
    lock = FileLock(folder.with_suffix(".lock"))
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


def _ignore_state(settings: Settings) -> None:
    """Keep keys and caches out of version control without asking anybody to think of it."""
    with contextlib.suppress(FileExistsError), (settings.state / ".gitignore").open("x") as file:
        file.write("*\n")
