"""Proving a bundle: build again what its provenance statement says, with the pinned compiler, and compare.

The statement is the word of whoever signed it, so nothing of it is run: its parameters are checked like a manifest's
and planned as such, and its command and environment are only compared with the plan that comes of that.
"""

from __future__ import annotations

import os
import posixpath
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from meshbuild.build import BuildSite, check_isolation, compile_build, prepare_build
from meshbuild.bundle import BundleIdentity, Listing, read_bundle
from meshbuild.content import write_tar
from meshbuild.digests import HashingWriter, Sha256
from meshbuild.errors import BundleFormatError, NoSuchArtifactError, PinsError, SourceError
from meshbuild.git import source_state
from meshbuild.gosource import find_source
from meshbuild.jsontext import canonical_json
from meshbuild.listing import FileEntry
from meshbuild.manifest import Artifact
from meshbuild.parting import build_info_differences, listing_differences, program_differences
from meshbuild.paths import local_errors
from meshbuild.pins import host_platform
from meshbuild.plan import UNKNOWN_COMMIT, plan_build
from meshbuild.provenance import BUILD_TYPE, parse_build_info
from meshbuild.runner import run
from meshbuild.targets import Target, cache_folder, payload, read_targets
from meshbuild.texts import Label, Version, printable
from meshbuild.toolchains import ensure_toolchain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from meshbuild.build import BuildResult
    from meshbuild.bundle import BundleInfo, PackInput
    from meshbuild.gosource import GoSource
    from meshbuild.pins import Pins, ToolchainPin
    from meshbuild.plan import BuildPlan
    from meshbuild.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """What came of building a bundle again.

    Attributes:
        content_sha256: the content digest of the one that was built here.
        expected_sha256: the bundle's.
        notes: what is worth knowing of the source here, and the likely causes when the digests differ.
        differences: where the two part, a line each; empty when they are the same.
    """

    content_sha256: Sha256
    expected_sha256: Sha256
    notes: tuple[str, ...]
    differences: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether the bundle is proven: the source gives it, to the byte."""
        return self.content_sha256 == self.expected_sha256


class _Said(BaseModel):
    """A part of a provenance statement; what else is in it doesn't matter here."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class _Source(_Said):
    go_module: Annotated[str, Field(pattern=r"^[!-~]+$")]
    package: Annotated[str, Field(pattern=r"^\.(/[^\x00-\x1f\x7f]*)?$")]


class _Parameters(_Said):
    module: Label
    artifact: Label
    version: Version
    system: Label
    source: _Source
    tags: list[str]
    strip: bool
    vcs: bool
    stamp: dict[str, str]
    files: list[dict[str, str]]


class _Internals(_Said):
    argv: list[str]
    environment: dict[str, str]


class _Dependency(_Said):
    name: str = ""
    uri: str = ""
    digest: dict[str, str] = {}
    annotations: dict[str, Any] = {}


class _Definition(_Said):
    build_type: str = Field(alias="buildType")
    parameters: _Parameters = Field(alias="externalParameters")
    internals: _Internals = Field(alias="internalParameters")
    dependencies: list[_Dependency] = Field(alias="resolvedDependencies")

    def dependency(self, name: str) -> _Dependency:
        """The dependency of that name, or an empty one."""
        return next((each for each in self.dependencies if each.name == name), _Dependency())

    @property
    def commit(self) -> str | None:
        """The git commit that it was built from, where the statement says one."""
        return self.dependency("source").digest.get("gitCommit")


def rebuild(
    bundle: Path,
    info: BundleInfo,
    predicate: Mapping[str, Any],
    *,
    settings: Settings,
    environ: Mapping[str, str],
    report: Callable[[str], None],
) -> Rebuilt:
    """Build a bundle again from a project's source, and compare the contents.

    Everything is compiled anew: what a build cache holds takes no part. The Go modules are those of the user's cache,
    as go.sum has them. Nothing is left behind but what that cache gained.

    Args:
        bundle: the bundle's file.
        info: the same, read and verified.
        predicate: of its SLSA provenance statement.
        settings: of the project that holds the source.
        environ: the user's environment.
        report: takes a line for people about a toolchain that is being fetched.

    Raises:
        BundleFormatError: the statement isn't one of ours, or asks for what no manifest may ask for.
        NoSuchArtifactError: the project has no such module or artifact.
        PinsError: the project's toolchains.toml doesn't pin the toolchain of the statement, or lacks the system.
        SourceError: the artifact's source isn't where the statement says.
        IsolationError: the settings ask for a compiler without a network, and that can't be had here.
        MeshbuildError: whatever the stages of a build raise.
    """
    said = _parse(predicate)
    target = _target(settings, said, info.listing.binary)
    if settings.require_isolation:
        check_isolation(target.name)
    source = _find_source(target, said.parameters.source)
    pin = _pin(target.pins, said.dependency("toolchain"))
    plan = plan_build(
        target.manifest,
        target.artifact,
        pin=pin,
        system=target.pins.system(target.artifact.system),
        source=source,
        commit=said.commit or UNKNOWN_COMMIT,
    )
    toolchain = ensure_toolchain(pin, cache=cache_folder(settings, environ), environ=environ, report=report)
    notes = [*_source_notes(target, source, said, environ), *_plan_notes(plan, said.internals)]
    with local_errors("make a scratch folder"), tempfile.TemporaryDirectory(prefix="meshbuild-rebuild-") as scratch:
        work = Path(scratch).resolve()
        site = BuildSite(manifest_dir=target.manifest_dir, cache=_fresh_cache(settings, environ, work), work=work)
        prepared = prepare_build(plan, site=site, toolchain=toolchain, environ=environ)
        result = compile_build(prepared)
        files = payload(target, result.binary)
        listing, content = _digest(plan, files)
        differences: list[str] = []
        if content != info.content_sha256:
            read_bundle(bundle, into=work / "bundle", expected_content=info.content_sha256)
            differences = listing_differences(info.listing, listing)
            theirs = work / "bundle" / info.listing.binary
            differences += _program_differences(theirs, result, [str(toolchain.go), "version", "-m", "-json"])
    return Rebuilt(
        content_sha256=content,
        expected_sha256=info.content_sha256,
        notes=tuple(map(printable, notes)),
        differences=tuple(map(printable, differences)),
    )


def _parse(predicate: Mapping[str, Any]) -> _Definition:
    definition = predicate.get("buildDefinition")
    kind = definition.get("buildType") if isinstance(definition, dict) else None
    if kind != BUILD_TYPE:
        raise BundleFormatError(
            f"the bundle's provenance statement is of a build of the type {kind!r:.80}; "
            f"only {BUILD_TYPE} can be rebuilt"
        )
    try:
        return _Definition.model_validate_json(canonical_json(definition))
    except ValidationError as error:
        raise BundleFormatError(f"the bundle's provenance statement can't be rebuilt from: {_first(error)}") from error


def _first(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_input=False)[0]
    return printable(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}")


def _target(settings: Settings, said: _Definition, binary: str) -> Target:
    """The project's artifact as it was when the statement was made: its place is today's, what is asked for isn't."""
    wanted = said.parameters
    name = f"{wanted.module}:{wanted.artifact}"
    found = [
        target
        for target in read_targets(settings)
        if (target.manifest.module, target.artifact.name) == (wanted.module, wanted.artifact)
    ]
    if not found:
        raise NoSuchArtifactError(
            f"{settings.project}: no manifest.json has the artifact {name} of the bundle's provenance statement",
            hint="Name the folder of the project that the bundle was built from by --source.",
        )
    found.sort(key=lambda target: target.artifact.system != wanted.system)
    today = found[0]
    asked = {
        **today.artifact.model_dump(mode="json", by_alias=True),
        "system": wanted.system,
        "binary": binary,
        "toolchain": None,
        "tags": wanted.tags,
        "strip": wanted.strip,
        "vcs": wanted.vcs,
        "stamp": wanted.stamp,
        "files": wanted.files,
    }
    try:
        artifact = Artifact.model_validate_json(canonical_json(asked))
    except ValidationError as error:
        raise BundleFormatError(
            f"the bundle's provenance statement asks for what no manifest may: {_first(error)}"
        ) from error
    manifest = today.manifest.model_copy(update={"version": wanted.version})
    return Target(today.manifest_dir, manifest, artifact, today.pins)


def _find_source(target: Target, wanted: _Source) -> GoSource:
    """The statement's package in the Go module in which the manifest has the artifact today."""
    where = f"{target.manifest.module}.{target.artifact.name}"
    source = find_source(target.manifest_dir, target.artifact.source, where=where)
    if source.package != wanted.package and source.module_path == wanted.go_module:
        folder = posixpath.normpath(f"{source.module_dir}/{wanted.package}")
        source = find_source(target.manifest_dir, folder, where=where)
    if (source.module_path, source.package) != (wanted.go_module, wanted.package):
        raise SourceError(
            f"{where}: the bundle was built from the package {wanted.package} of the Go module {wanted.go_module}; "
            f"here, its source is {source.package} of {source.module_path}",
            hint="Check out the commit that the bundle was built from, and name its folder by --source.",
        )
    return source


def _pin(pins: Pins, toolchain: _Dependency) -> ToolchainPin:
    tree, platform = toolchain.digest.get("sha256"), host_platform()
    known = [pin for platforms in pins.toolchains.values() for pin in platforms.values() if pin.tree == tree]
    for pin in known:
        if pin.platform == platform:
            return pin
    what = printable(f"the bundle was built with {toolchain.uri or 'a toolchain'} (tree {tree})")
    if known:
        raise PinsError(f"{what}, which runs on {known[0].platform}, and this machine is {platform}")
    raise PinsError(
        f"{what}, which toolchains.toml doesn't pin",
        hint="Pin it (docs/toolchains.md), or name by --source a project that does.",
    )


def _source_notes(target: Target, source: GoSource, said: _Definition, environ: Mapping[str, str]) -> Sequence[str]:
    """What lets one expect other bytes, seen from git."""
    commit, dirty = source_state(source.folders(target.manifest_dir), environ)
    notes = []
    if said.commit is None:
        notes.append("the statement names no commit, so nobody knows whether this is its source")
    elif commit is None:
        notes.append(f"the bundle was built from commit {said.commit:.12}; git knows of none here")
    elif commit != said.commit:
        notes.append(f"the bundle was built from commit {said.commit:.12}, the source here is {commit:.12}")
    if said.dependency("source").annotations.get("dirty") is True:
        notes.append("the bundle was built from a tree with changes that weren't committed")
    if dirty:
        notes.append("the source here has changes that aren't committed")
    return notes


def _plan_notes(plan: BuildPlan, internals: _Internals) -> Sequence[str]:
    """Where the statement's command and environment part from what is run here."""
    notes = []
    if list(plan.argv) != internals.argv:
        notes.append(f"the statement's command is `{' '.join(internals.argv)}`, here it is `{' '.join(plan.argv)}`")
    here = dict(plan.env)
    for name in sorted(here.keys() | internals.environment.keys()):
        before, after = internals.environment.get(name), here.get(name)
        if before != after:
            notes.append(f"the statement has {name}={before}, here it is {after}")
    return notes


def _fresh_cache(settings: Settings, environ: Mapping[str, str], work: Path) -> Path:
    """A cache for one build: nothing compiled is in it, the modules are the user's."""
    modules = cache_folder(settings, environ) / "go-mod"
    modules.mkdir(parents=True, exist_ok=True)
    cache = work / "cache"
    cache.mkdir()
    (cache / "go-mod").symlink_to(modules.absolute())
    return cache


def _digest(plan: BuildPlan, files: Sequence[PackInput]) -> tuple[Listing, Sha256]:
    """The listing of a payload, and the digest of the content that it makes."""
    identity = BundleIdentity(plan.module, plan.artifact, plan.version, plan.system, plan.binary)
    entries = [
        FileEntry(each.path, Sha256.of_file(each.source), each.source.stat().st_size, each.mode) for each in files
    ]
    listing = Listing.of(identity, entries)
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a device, no path of ours
        content = HashingWriter(nowhere)
        write_tar(content, listing, {each.path: each.source for each in files})
    return listing, content.sha256


def _program_differences(theirs: Path, result: BuildResult, reader: Sequence[str]) -> list[str]:
    """Where the two programs part; none when they are the same file."""
    name = theirs.name
    if Sha256.of_file(theirs) == Sha256.of_file(result.binary):
        return []
    lines = program_differences(theirs, result.binary)
    said = run([*reader, str(theirs)], env={"GOENV": "off", "GOTOOLCHAIN": "local"}, cwd=str(theirs.parent))
    if said.exit_code != 0:
        lines.append(f"Go reads no build information in it: {said.error_text}")
    else:
        lines += build_info_differences(parse_build_info(said.stdout), parse_build_info(result.build_info))
    return [f"{name}: {line}" for line in lines]
