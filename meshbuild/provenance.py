"""What is said of a bundle: in-toto statements with SLSA provenance or a CycloneDX bill of materials.

Values in, dicts out: the facts come from those who planned and ran the build.
"""

from __future__ import annotations

import base64
import json
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from meshbuild.digests import Sha256
from meshbuild.errors import CompileError
from meshbuild.jsontext import canonical_json
from meshbuild.plan import UNKNOWN_COMMIT
from meshbuild.signing import STATEMENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CYCLONEDX_BOM = "https://cyclonedx.org/bom"
# What the parameters of a provenance statement mean: docs/statements.md says it for this one.
BUILD_TYPE = "https://meshbuild.dev/build/go/v1"
_DEVEL = "(devel)"  # what Go calls the version of a module that was built from a folder
_UNPUBLISHED = ("", _DEVEL)


@dataclass(frozen=True, slots=True)
class GoModule:
    """A Go module that takes part in a build.

    Attributes:
        path: its module path; for a replacement by a folder, that folder as go.mod spells it.
        version: its version; `(devel)` or empty for one built from a folder.
        h1: go.sum's digest of its files, `h1:` and base64, or None where Go records none: for folders.
        replacement: what go.mod puts in its place, or None.
        vendored: whether its files came from the vendor folder, so that h1 is what go.sum says and not what was seen.
    """

    path: str
    version: str
    h1: str | None = None
    replacement: GoModule | None = None
    vendored: bool = False

    @property
    def used(self) -> GoModule:
        """The module whose files were compiled: the replacement, if there is one."""
        return self.replacement or self

    @property
    def h1_hex(self) -> Sha256 | None:
        """The h1 as the in-toto digest `dirHash` and CycloneDX want it: the same sha256 in hex."""
        return None if self.h1 is None else Sha256(base64.b64decode(self.h1.removeprefix("h1:")).hex())

    @property
    def purl(self) -> str | None:
        """The package URL (https://github.com/package-url/purl-spec) of a published module, None for a folder."""
        return None if self.version in _UNPUBLISHED else _purl(self.path, self.version).to_string()

    def __str__(self) -> str:
        """`path@version`, or the path alone for a folder."""
        return self.path if self.version in _UNPUBLISHED else f"{self.path}@{self.version}"


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """What a Go program says of its own build, as runtime/debug.BuildInfo has it.

    Attributes:
        go_version: of the toolchain, e.g. `go1.27.2`.
        package: the import path of the main package.
        main: the module that it lies in.
        modules: every other module of the program, by path.
        settings: build settings, in Go's order.
    """

    go_version: str
    package: str
    main: GoModule
    modules: tuple[GoModule, ...]
    settings: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class GitSource:
    """What git says of the source: its commit in hex, whether files differ from it; None where nobody knows."""

    commit: str | None
    dirty: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFacts:
    """All that shaped a bundle's bytes. Two equal builds have equal facts, on any machine and at any time.

    Attributes:
        package: the main package's folder, relative to its Go module.
        go_module: the module path of go.mod.
        toolchain_tree: the toolchain's tree digest.
        tags: build tags.
        strip: whether the linker leaves symbols away.
        vcs: whether the git revision is stamped as `go build` does.
        stamp: string variables and what they are set to, as the manifest has it.
        files: the rules by which more files go into the bundle, as the manifest has them.
        argv: the compile command, with placeholders such as `${toolchain}` for folders.
        env: its whole environment, with the same placeholders.
        isolation: how far compiling was cut off from the network: `network-namespace` or `goproxy-off`.
        go_modules: every module of the program but the main one.
        profile: digest of the default.pgo that the compiler optimised by, or None.
    """

    module: str
    artifact: str
    version: str
    system: str
    source: GitSource
    go_module: str
    package: str
    toolchain_version: str
    toolchain_platform: str
    toolchain_tree: Sha256
    argv: tuple[str, ...]
    env: Mapping[str, str]
    isolation: str
    go_modules: tuple[GoModule, ...]
    tags: tuple[str, ...] = ()
    strip: bool = True
    vcs: bool = False
    stamp: Mapping[str, str] = field(default_factory=dict)
    files: tuple[Mapping[str, str], ...] = ()
    profile: Sha256 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetails:
    """The run that made a bundle: what differs from one build of the same facts to the next.

    Attributes:
        builder_id: a URI for the builder, as its operator names it.
        meshbuild_version: the version that ran.
        invocation_id: names this run.
        started_on: RFC 3339, UTC.
        finished_on: RFC 3339, UTC.
        shared_cache: whether compiled packages could come from a build cache that machines share.
    """

    builder_id: str
    meshbuild_version: str
    invocation_id: str
    started_on: str
    finished_on: str
    shared_cache: bool = False


def statement(
    predicate_type: str,
    predicate: Mapping[str, Any],
    *,
    name: str,
    content_sha256: Sha256,
    files: Mapping[str, Sha256],
) -> dict[str, Any]:
    """An in-toto Statement v1 about a bundle (https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md).

    Args:
        predicate_type: the predicate's URI.
        predicate: what is said.
        name: of the content, for people: `<module>.<artifact>-<version>-<system>.tar`.
        content_sha256: the bundle's content digest; the first subject.
        files: the payload's paths and digests; the other subjects, in byte order of their paths.
    """
    subjects = [(name, content_sha256), *((path, files[path]) for path in sorted(files, key=str.encode))]
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": str(digest)}} for name, digest in subjects],
        "predicateType": predicate_type,
        "predicate": dict(predicate),
    }


def slsa_provenance(facts: BuildFacts, run: RunDetails) -> dict[str, Any]:
    """The predicate of `https://slsa.dev/provenance/v1` (https://slsa.dev/spec/v1.0/provenance).

    `buildDefinition` depends on the facts alone, `runDetails` on the run alone. docs/statements.md lists the fields.
    """
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "module": facts.module,
                "artifact": facts.artifact,
                "version": facts.version,
                "system": facts.system,
                "source": {
                    "go_module": facts.go_module,
                    "package": facts.package,
                    "commit": facts.source.commit or UNKNOWN_COMMIT,
                },
                "tags": list(facts.tags),
                "strip": facts.strip,
                "vcs": facts.vcs,
                "stamp": dict(facts.stamp),
                "files": [dict(rule) for rule in facts.files],
            },
            "internalParameters": {
                "argv": list(facts.argv),
                "environment": dict(facts.env),
                "isolation": facts.isolation,
            },
            "resolvedDependencies": [
                _toolchain_descriptor(facts),
                *_source_descriptors(facts.source),
                *_profile_descriptors(facts.profile),
                *(_module_descriptor(module) for module in sorted(facts.go_modules, key=_by_path)),
            ],
        },
        "runDetails": {
            "builder": {"id": run.builder_id, "version": {"meshbuild": run.meshbuild_version}},
            "metadata": {
                "invocationId": run.invocation_id,
                "startedOn": run.started_on,
                "finishedOn": run.finished_on,
                "meshbuild_sharedCache": run.shared_cache,
            },
        },
    }


def cyclonedx_sbom(
    build_info: BuildInfo, *, module: str, artifact: str, version: str, binary_sha256: Sha256
) -> dict[str, Any]:
    """A CycloneDX 1.6 bill of materials of a Go program (https://cyclonedx.org/docs/1.6/json/).

    The program itself is `metadata.component`; components are the Go modules whose files were compiled and the standard
    library. Hashes of modules are their h1 in hex, as cyclonedx-gomod has it. Equal arguments give equal documents:
    there is no time in it, and its serial number is derived from it.
    """
    program = Component(
        type=ComponentType.APPLICATION,
        name=f"{module}.{artifact}",
        version=version,
        bom_ref="program",
        purl=_program_purl(build_info),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=binary_sha256)],
        properties=[
            Property(name="meshbuild:go:package", value=build_info.package),
            *(Property(name=f"meshbuild:go:build:{key}", value=value) for key, value in build_info.settings),
        ],
    )
    components = [_stdlib(build_info.go_version), *map(_component, build_info.modules)]
    bom = Bom(metadata=BomMetaData(component=program), components=components)
    bom.register_dependency(program, components)
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string()
    document: dict[str, Any] = json.loads(text)
    del document["serialNumber"], document["metadata"]["timestamp"]
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, canonical_json(document).decode())}"
    return document


def parse_build_info(text: bytes) -> BuildInfo:
    """Parse what `go version -m -json BINARY` prints: one runtime/debug.BuildInfo as JSON (Go 1.25 and later).

    Raises:
        CompileError: it is something else.
    """
    try:
        raw = _RawBuildInfo.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the text"
        raise CompileError(
            "could not read what `go version -m -json` says of the program: expected a runtime/debug.BuildInfo, found "
            f"in {where}: {first['msg']}"
        ) from error
    return BuildInfo(
        go_version=raw.go_version,
        package=raw.path,
        main=_go_module(raw.main),
        modules=tuple(sorted(map(_go_module, raw.deps), key=_by_path)),
        settings=tuple((setting.key, setting.value) for setting in raw.settings),
    )


def with_go_sums(build_info: BuildInfo, go_sums: Sequence[str]) -> BuildInfo:
    """Add the h1 that a program built from a vendor folder doesn't tell; a module that has one keeps it.

    Args:
        build_info: as `parse_build_info` gives it.
        go_sums: the texts of go.sum and, in a workspace, go.work.sum: lines of module path, version and h1
            (https://go.dev/ref/mod#go-sum-files).
    """
    known = {
        (words[0], words[1]): words[2] for text in go_sums for words in map(str.split, text.splitlines()) if words[2:]
    }

    def add(module: GoModule) -> GoModule:
        if module.replacement is not None:
            return replace(module, replacement=add(module.replacement))
        h1 = known.get((module.path, module.version))
        return module if module.h1 or not _is_h1(h1) else replace(module, h1=h1, vendored=True)

    return replace(build_info, modules=tuple(map(add, build_info.modules)))


def _is_h1(text: str | None) -> bool:
    if text is None or not text.startswith("h1:"):
        return False
    try:
        digest = base64.b64decode(text.removeprefix("h1:"), validate=True)
    except ValueError:
        return False
    return len(digest) == 32  # noqa: PLR2004 - the size of a sha256


def _check_h1(text: str) -> str:
    if text and not _is_h1(text):
        raise ValueError("expected h1: and the base64 of a sha256")
    return text


class _Raw(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)


class _RawModule(_Raw):
    path: str = Field(alias="Path", min_length=1)
    version: str = Field(alias="Version", default="")
    sum: Annotated[str, AfterValidator(_check_h1)] = Field(alias="Sum", default="")
    replacement: _RawModule | None = Field(alias="Replace", default=None)


class _RawSetting(_Raw):
    key: str = Field(alias="Key")
    value: str = Field(alias="Value")


class _RawBuildInfo(_Raw):
    go_version: str = Field(alias="GoVersion", pattern=r"^(go|devel)")
    path: str = Field(alias="Path", min_length=1)
    main: _RawModule = Field(alias="Main")
    deps: list[_RawModule] = Field(alias="Deps", default=[])
    settings: list[_RawSetting] = Field(alias="Settings", default=[])


def _go_module(raw: _RawModule) -> GoModule:
    return GoModule(
        path=raw.path,
        version=raw.version,
        h1=raw.sum or None,
        replacement=None if raw.replacement is None else _go_module(raw.replacement),
    )


def _by_path(module: GoModule) -> tuple[str, str]:
    return module.path, module.version


def _toolchain_descriptor(facts: BuildFacts) -> dict[str, Any]:
    """The toolchain by its tree digest, which is in-toto's dirHash of the tree as well."""
    tree = str(facts.toolchain_tree)
    return {
        "name": "toolchain",
        "uri": f"pkg:generic/go@{facts.toolchain_version}?platform={facts.toolchain_platform}",
        "digest": {"dirHash": tree, "sha256": tree},
    }


def _source_descriptors(source: GitSource) -> list[dict[str, Any]]:
    if source.commit is None:
        return []
    descriptor: dict[str, Any] = {"name": "source", "digest": {"gitCommit": source.commit}}
    if source.dirty is not None:
        descriptor["annotations"] = {"dirty": source.dirty}
    return [descriptor]


def _profile_descriptors(profile: Sha256 | None) -> list[dict[str, Any]]:
    """The profile by its digest: Go's build information says that there was one, and not which."""
    return [] if profile is None else [{"name": "default.pgo", "digest": {"sha256": str(profile)}}]


def _module_descriptor(module: GoModule) -> dict[str, Any]:
    """A Go module as an in-toto ResourceDescriptor: a published one by purl and dirHash, a folder by its path."""
    used = module.used
    descriptor: dict[str, Any] = {"name": module.path, "uri": used.purl or f"file:{used.path}"}
    if used.h1_hex is not None:
        descriptor["digest"] = {"dirHash": str(used.h1_hex)}
    annotations: dict[str, Any] = {}
    if module.replacement is not None:
        annotations["replaces"] = str(module)
    if used.vendored:
        annotations["vendored"] = True
    return {**descriptor, "annotations": annotations} if annotations else descriptor


def _component(module: GoModule) -> Component:
    used = module.used
    properties = {"meshbuild:go:h1": used.h1, "meshbuild:go:vendored": "true" if used.vendored else None}
    if module.replacement is not None:
        properties |= {"meshbuild:go:replaces": str(module), "meshbuild:go:replaced_by": str(used)}
    return Component(
        type=ComponentType.LIBRARY,
        name=module.path if used.purl is None else used.path,
        version=None if used.purl is None else used.version,
        bom_ref=f"go:{module}",
        purl=None if used.purl is None else PackageURL.from_string(used.purl),
        hashes=[] if used.h1_hex is None else [HashType(alg=HashAlgorithm.SHA_256, content=used.h1_hex)],
        properties=[Property(name=name, value=value) for name, value in properties.items() if value],
    )


def _stdlib(go_version: str) -> Component:
    """The standard library, under the name that vulnerability scanners know."""
    version = go_version.split(maxsplit=1)[0].removeprefix("go")
    return Component(
        type=ComponentType.LIBRARY, name="stdlib", version=version, bom_ref="go:stdlib", purl=_purl("stdlib", version)
    )


def _program_purl(build_info: BuildInfo) -> PackageURL:
    main = build_info.main
    version = None if main.version in _UNPUBLISHED else main.version
    subpath = build_info.package.removeprefix(main.path).strip("/") if build_info.package != main.path else None
    return _purl(main.path, version, subpath)


def _purl(path: str, version: str | None, subpath: str | None = None) -> PackageURL:
    namespace, _, name = path.rpartition("/")
    return PackageURL("golang", namespace or None, name, version, subpath=subpath)
