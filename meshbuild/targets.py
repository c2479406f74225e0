"""A project's artifacts: how each is planned, what it is made from, and what goes into its bundle."""

from __future__ import annotations

import os
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshbuild import __version__, uptodate
from meshbuild.bundle import PackInput
from meshbuild.digests import Sha256
from meshbuild.errors import InputsChangedError, NoSuchArtifactError, SourceError
from meshbuild.git import source_state
from meshbuild.gosource import find_source
from meshbuild.jsontext import canonical_json
from meshbuild.manifest import read_manifests
from meshbuild.pins import host_platform, read_pins
from meshbuild.plan import UNKNOWN_COMMIT, plan_build
from meshbuild.project import ArtifactTask, manifest_files
from meshbuild.toolchains import ensure_toolchain, user_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from meshbuild.golist import Package
    from meshbuild.manifest import Artifact, Manifest
    from meshbuild.pins import Pins
    from meshbuild.plan import BuildPlan
    from meshbuild.settings import Settings


@dataclass(frozen=True, slots=True)
class Target:
    """An artifact with all that is needed to plan it: where its manifest lies, the manifest, the pins."""

    manifest_dir: Path
    manifest: Manifest
    artifact: Artifact
    pins: Pins

    @property
    def name(self) -> str:
        """`module:artifact:system`."""
        return f"{self.manifest.module}:{self.artifact.name}:{self.artifact.system}"

    @property
    def names(self) -> set[str]:
        """All that it may be called: by its module, its artifact, and both."""
        module, artifact = self.manifest.module, self.artifact.name
        return {module, artifact, f"{module}:{artifact}", self.name}


def plan_tasks(settings: Settings) -> list[ArtifactTask]:
    """Read the pins and every manifest of a project, and name every artifact for every system.

    Raises:
        PinsError: toolchains.toml is missing or not valid.
        ManifestError: manifests are not valid, or two of them are of one module; all their problems together.
    """
    return [task_of(settings, target) for target in read_targets(settings)]


def task_of(settings: Settings, target: Target) -> ArtifactTask:
    """As much of a target as deciding whether it is up to date needs."""
    return ArtifactTask(
        module=target.manifest.module,
        version=target.manifest.version,
        artifact=target.artifact.name,
        system=target.artifact.system,
        manifest=os.path.relpath(target.manifest_dir / "manifest.json", settings.project),
        fingerprint=Sha256.of(canonical_json(asked_for(settings, target))),
    )


def read_targets(settings: Settings) -> list[Target]:
    """Every artifact of a project's manifests; raises as `plan_tasks` does."""
    pins = read_pins(settings.project / "toolchains.toml")
    manifests = read_manifests(manifest_files(settings.project), systems=pins.systems, toolchains=pins.toolchains)
    return [
        Target(file.parent, manifest, artifact, pins)
        for file, manifest in manifests.items()
        for artifact in manifest.build.artifacts
    ]


def choose_targets(settings: Settings, names: Sequence[str]) -> list[Target]:
    """The artifacts that names mean: modules, artifacts, or MODULE:ARTIFACT[:SYSTEM]; all of them for no names.

    Raises:
        NoSuchArtifactError: a name means none.
        PinsError, ManifestError: as `plan_tasks` says.
    """
    targets = read_targets(settings)
    known = {name for target in targets for name in target.names}
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, 1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise NoSuchArtifactError(f"no module or artifact is named {name!r}{meant}")
    return [target for target in targets if not names or target.names & set(names)]


def plan_target(target: Target, environ: Mapping[str, str]) -> BuildPlan:
    """Plan one artifact's build, with the state of its source as it is now.

    Raises:
        SourceError, ToolchainTooOldError: as `find_source` and `plan_build` say; or `vcs` meets a tree that is dirty.
    """
    where = f"{target.manifest.module}.{target.artifact.name}"
    source = find_source(target.manifest_dir, target.artifact.source, where=where)
    commit, dirty = (
        source_state(source.folders(target.manifest_dir), environ) if asks_git(target.artifact) else (None, None)
    )
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


def find_target(targets: Sequence[Target], task: ArtifactTask) -> Target:
    """The target of a task. Raises InputsChangedError when the manifests don't have it any more."""
    for target in targets:
        found = (target.manifest.module, target.artifact.name, target.artifact.system)
        if found == (task.module, task.artifact, task.system):
            return target
    raise InputsChangedError(f"{task.name}: its manifest was changed during this run", hint="Build again.")


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


def inputs(settings: Settings, target: Target, plan: BuildPlan, packages: Sequence[Package]) -> list[str]:
    """Name all that a build read from the user's tree, and what would change it by appearing."""

    def relative(path: Path) -> str:
        return os.path.relpath(path, settings.project)

    def escaped(path: Path) -> str:
        return relative(path).replace("%", "%25").replace(":", "%3A")

    files = {Path(os.path.normpath(target.manifest_dir / name)) for name in plan.source.files}
    files.add(Path(os.path.normpath(target.manifest_dir / target.artifact.source / "default.pgo")))
    go_mods = {package.go_mod for package in packages if package.go_mod}
    files |= go_mods | {go_mod.with_name("go.sum") for go_mod in go_mods}
    if not settings.builder_key:
        files.add(settings.path(settings.keys) / "builder.pub")
    names = [f"file:{relative(file)}" for file in files]
    for package in packages:
        names.append(f"package:{relative(package.folder)}")
        names += [f"embed:{escaped(package.folder)}:{pattern}" for pattern in package.embeds]
    names += [f"glob:{escaped(target.manifest_dir)}:{rule.source}" for rule in target.artifact.files]
    if target.artifact.vcs:
        names += [f"vcs:{relative(folder)}" for folder in plan.source.folders(target.manifest_dir)]
    elif asks_git(target.artifact):
        names.append(f"git:{relative(target.manifest_dir)}")
    return sorted(names)


def asked_for(settings: Settings, target: Target) -> dict[str, Any]:
    """All that decides on an artifact's bundle besides its input files, as JSON values."""
    pin = target.pins.toolchain(target.artifact.toolchain, host_platform())
    return {
        "meshbuild": __version__,
        "module": target.manifest.module,
        "version": target.manifest.version,
        "artifact": target.artifact.model_dump(mode="json"),
        "toolchain": {"version": pin.version, "platform": pin.platform, "tree_sha256": str(pin.tree)},
        "system": target.pins.system(target.artifact.system).model_dump(mode="json"),
        "compression_level": settings.compression_level,
        "builder_key": settings.builder_key,
    }
