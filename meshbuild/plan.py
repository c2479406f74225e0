"""What a build will run, decided before anything runs: manifest and pins in, the whole argv and environment out.

Nothing here touches the world. Folders are placeholders, so that a plan is the same on every machine:

    ${toolchain}  the pinned toolchain's root
    ${source}     the Go module's folder
    ${cache}      the user's cache
    ${work}       a private folder of this build
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from meshbuild.digests import Sha256
from meshbuild.errors import SourceError, ToolchainTooOldError
from meshbuild.jsontext import canonical_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshbuild.gosource import GoSource
    from meshbuild.manifest import Artifact, Manifest
    from meshbuild.pins import System, ToolchainPin

# Fields of `go list -json` that tell which files a build reads, and what is wrong with them.
LIST_FIELDS = "Dir,ImportPath,Name,Standard,Module,GoFiles,EmbedPatterns,EmbedFiles,IgnoredGoFiles,Error"

# Where the compile command names its output.
_OUTPUT = 3

UNKNOWN_COMMIT = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """One artifact for one system, and the commands that build it.

    Attributes:
        argv: the compile command; it writes `${work}/out/<binary>`.
        list_argv: the command that names every package of the build, and downloads the modules that they lie in.
        env: the whole environment of both, sorted by name; the list step's is `godownload.download_environment`.
        stamps: the string variables that the linker sets, each as import path, dot and name.
        fingerprint: digest of everything above it here; equal plans have equal fingerprints, on any machine.
    """

    module: str
    version: str
    artifact: str
    system: str
    binary: str
    toolchain_version: str
    toolchain_platform: str
    toolchain_tree: Sha256
    source: GoSource
    argv: tuple[str, ...]
    list_argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    vcs: bool
    stamps: tuple[str, ...]

    @property
    def name(self) -> str:
        """The plan's name for people and for tasks: `module:artifact:system`."""
        return f"{self.module}:{self.artifact}:{self.system}"

    @property
    def shared_call(self) -> tuple[object, ...]:
        """What must be equal in two plans for one compiler call to build both."""
        return (self.toolchain_tree, self.source.module_dir, self.env, self.shared_argv("", ""), self.vcs)

    def shared_argv(self, output: str, *packages: str) -> tuple[str, ...]:
        """The compile command for several packages, whose programs land in the folder `output` by their own names."""
        return (*self.argv[:_OUTPUT], output, *self.argv[_OUTPUT + 1 : -1], *packages)

    @property
    def fingerprint(self) -> Sha256:
        """The digest of the plan's canonical JSON."""
        return Sha256.of(canonical_json(asdict(self)))


def plan_build(
    manifest: Manifest,
    artifact: Artifact,
    *,
    pin: ToolchainPin,
    system: System,
    source: GoSource,
    commit: str = UNKNOWN_COMMIT,
) -> BuildPlan:
    """Plan the build of one artifact.

    Args:
        manifest: the artifact's manifest.
        artifact: which of its artifacts.
        pin: the toolchain for this machine's platform.
        system: the row of toolchains.toml that the artifact names.
        source: where its Go source lies.
        commit: what `${commit}` in a stamp stands for.

    Raises:
        ToolchainTooOldError: go.mod or go.work asks for a newer Go than the pinned one.
        SourceError: a value to stamp has both kinds of quotes.
    """
    for file, version in source.go_lines:
        if _version_key(version) > _version_key(pin.version):
            raise ToolchainTooOldError(
                f"{manifest.module}.{artifact.name}: {file} asks for go {version}, pinned is {pin.version}",
                hint=f"Pin a newer Go in toolchains.toml, or lower the line in {file}.",
            )
    mod = "-mod=vendor" if source.vendored else "-mod=readonly"
    tags = (f"-tags={','.join(artifact.tags)}",) if artifact.tags else ()
    ldflags = _ldflags(manifest, artifact, commit)
    return BuildPlan(
        module=manifest.module,
        version=manifest.version,
        artifact=artifact.name,
        system=system.name,
        binary=artifact.binary,
        toolchain_version=pin.version,
        toolchain_platform=pin.platform,
        toolchain_tree=pin.tree,
        source=source,
        argv=(
            "${toolchain}/bin/go",
            "build",
            "-o",
            f"${{work}}/out/{artifact.binary}",
            "-trimpath",
            f"-buildvcs={'true' if artifact.vcs else 'false'}",
            mod,
            *((f"-ldflags={ldflags}",) if ldflags else ()),
            *tags,
            source.package,
        ),
        list_argv=("${toolchain}/bin/go", "list", "-e", "-deps", f"-json={LIST_FIELDS}", mod, *tags, source.package),
        env=tuple(sorted(_environment(system, source).items())),
        vcs=artifact.vcs,
        stamps=tuple(sorted(artifact.stamp)),
    )


def substitute(text: str, folders: Mapping[str, str]) -> str:
    """Replace the placeholders `${toolchain}`, `${source}`, `${cache}` and `${work}` in text by folders."""
    return re.sub(r"\$\{(toolchain|source|cache|work)\}", lambda match: folders[match[1]], text)


def _environment(system: System, source: GoSource) -> dict[str, str]:
    environment = {
        "PATH": "${toolchain}/bin",
        "HOME": "${work}/home",
        "TMPDIR": "${work}/tmp",
        "LC_ALL": "C",
        "TZ": "UTC",
        "GOROOT": "${toolchain}",
        "GOPATH": "${work}/home/go",
        "GOCACHE": "${cache}/go-build",
        "GOMODCACHE": "${cache}/go-mod",
        "GOENV": "off",
        "GOTOOLCHAIN": "local",
        "GO111MODULE": "on",
        "GOFLAGS": "",
        "GOEXPERIMENT": "",
        "GODEBUG": "",
        "GOFIPS140": "off",
        "GOWORK": "off" if source.workspace is None else f"${{source}}/{source.workspace}",
        "GOPROXY": "off",
        "GOOS": system.goos,
        "GOARCH": system.goarch,
        "CGO_ENABLED": "1" if system.cgo else "0",
    }
    if system.goamd64:
        environment["GOAMD64"] = system.goamd64
    if system.goarm64:
        environment["GOARM64"] = system.goarm64
    return environment


def _ldflags(manifest: Manifest, artifact: Artifact, commit: str) -> str:
    """The linker's flags as cmd/go takes them: separated by blanks, each quoted where it has to be."""
    flags = ["-s", "-w"] if artifact.strip else []
    values = {"module": manifest.module, "version": manifest.version, "commit": commit}
    for variable, template in sorted(artifact.stamp.items()):
        value = re.sub(r"\$\{(module|version|commit)\}", lambda match: values[match[1]], template)
        flags += ["-X", _quote(f"{variable}={value}")]
    return " ".join(flags)


def _quote(text: str) -> str:
    """Quote one flag the way cmd/internal/quoted reads it: no escapes, so a text with both quotes can't be passed."""
    if "'" in text and '"' in text:
        raise SourceError(
            f"can't stamp {text}: the go command has no way to pass a value with both kinds of quotes",
            hint="Write the version in manifest.json with one kind of quotes or none.",
        )
    quote: Literal["", "'", '"'] = ""
    if re.search(r"[\s'\"]", text):
        quote = '"' if "'" in text else "'"
    return f"{quote}{text}{quote}"


def _version_key(version: str) -> tuple[int, int, int, int]:
    """Order Go versions: 1.27 < 1.27rc1 < 1.27.0 < 1.27.1 (https://go.dev/ref/mod#versions of toolchains)."""
    match = re.fullmatch(r"(\d+)(?:\.(\d+))?(?:(?:\.(\d+))|(?:(?:rc|beta|alpha)(\d+)))?(?:-.*)?", version)
    if not match:
        return (0, 0, 0, 0)
    major, minor, patch, candidate = match.groups()
    if candidate is not None:
        return (int(major), int(minor or 0), -1, int(candidate))
    return (int(major), int(minor or 0), int(patch) if patch is not None else -2, 0)
