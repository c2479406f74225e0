"""Running a build plan: the pinned compiler, an environment that starts empty, no network while it compiles."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from meshbuild.errors import CompileError, ModuleDownloadError, SourceError, ToolchainTooOldError
from meshbuild.paths import local_errors
from meshbuild.plan import DOWNLOAD_VARIABLES, substitute

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from meshbuild.plan import BuildPlan
    from meshbuild.toolchains import Toolchain

Isolation = Literal["network-namespace", "goproxy-off"]

# What takes the network away, and takes every process of a build down with whoever started it: `unshare` and `setpriv`
# of util-linux, as root and as anybody else. Which of them works is asked once a process.
_NAMESPACES = ("--net", "--pid", "--fork", "--kill-child", "--")
_ISOLATIONS = (
    ("setpriv", "--pdeathsig", "KILL", "--", "unshare", *_NAMESPACES),
    ("unshare", "--user", "--map-current-user", *_NAMESPACES),
)


@dataclass(frozen=True, slots=True)
class Finished:
    """What a program that ran to its end left: exit code, standard output and standard error."""

    exit_code: int
    stdout: bytes
    stderr: bytes


def run(argv: Sequence[str], *, env: Mapping[str, str], cwd: str) -> Finished:
    """Run a program to its end; the real runner, for tests to wrap.

    Raises:
        OSError: it could not be started.
    """
    done = subprocess.run(argv, env=dict(env), cwd=cwd, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    return Finished(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True, slots=True)
class Package:
    """A package that takes part in a build, as `go list -deps` tells.

    Attributes:
        folder: where its files lie.
        embeds: its //go:embed patterns.
        go_mod: the go.mod of the Go module it belongs to, or None for a vendored one.
    """

    folder: Path
    embeds: tuple[str, ...]
    go_mod: Path | None


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A finished build.

    Attributes:
        binary: the program, inside the build's work folder.
        packages: the packages whose source lies in the user's tree; the standard library is named by the toolchain,
            downloaded modules by go.sum.
        build_info: what `go version -m -json` says of the program, as JSON text.
        isolation: how far compiling was cut off.
    """

    binary: Path
    packages: tuple[Package, ...]
    build_info: bytes
    isolation: Isolation


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSite:
    """The folders of one build on this machine.

    Attributes:
        manifest_dir: the folder of the manifest.
        cache: the user's cache; Go's own caches lie below it.
        work: a private folder of this build, which the caller removes afterwards.
    """

    manifest_dir: Path
    cache: Path
    work: Path


def build(
    plan: BuildPlan,
    *,
    site: BuildSite,
    toolchain: Toolchain,
    environ: Mapping[str, str],
    before_compile: Callable[[Sequence[Package]], None],
) -> BuildResult:
    """Build a plan's program.

    Leaves the program in `site.work`, and downloaded modules and compiled packages in `site.cache`.

    Args:
        plan: what to build.
        site: where.
        toolchain: the pinned one, verified.
        environ: the user's environment, from which the download step takes proxy and checksum settings only.
        before_compile: is shown the packages that will be compiled, when all are there and before any is read.

    Raises:
        SourceError: the package is not a main package, or its source is not complete.
        ToolchainTooOldError: a dependency asks for a newer Go.
        ModuleDownloadError: a Go module could not be had.
        CompileError: the compiler refused; the message holds its text whole and a command to repeat it.
        LocalFileError: the work folder can't be written.
    """
    folders = {
        "toolchain": str(toolchain.root),
        "source": str((site.manifest_dir / plan.source.module_dir).resolve()),
        "cache": str(site.cache),
        "work": str(site.work),
    }
    env = {name: substitute(value, folders) for name, value in plan.env}
    with local_errors(f"prepare the build folder {site.work}"):
        for name in ("out", "home", "tmp"):
            (site.work / name).mkdir(parents=True, exist_ok=True)
        # Without this the go command leaves a process behind that counts what it did (https://go.dev/doc/telemetry).
        telemetry = site.work / "home" / ".config" / "go" / "telemetry"
        telemetry.mkdir(parents=True, exist_ok=True)
        (telemetry / "mode").write_text("off")
        if plan.vcs:
            env["PATH"] += os.pathsep + _git_only_folder(site.work, environ)
    packages = _list_packages(plan, folders, env, environ)
    before_compile(packages)
    isolation = _compile(plan, folders, env)
    binary = site.work / "out" / plan.binary
    info = run([str(toolchain.go), "version", "-m", "-json", str(binary)], env=env, cwd=folders["source"])
    if info.exit_code != 0:
        raise CompileError(f"{plan.name}: go version can't read the program: {_text(info.stderr)}")
    return BuildResult(binary, packages, info.stdout, isolation)


def _list_packages(
    plan: BuildPlan, folders: Mapping[str, str], env: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[Package, ...]:
    argv = [substitute(part, folders) for part in plan.list_argv]
    listed = run(argv, env=env if plan.source.vendored else _download_env(env, environ), cwd=folders["source"])
    if listed.exit_code != 0:
        _refuse_source(plan, _text(listed.stderr))
    found = [value for value in _json_values(listed.stdout.decode()) if not value.get("Standard")]
    main = found[-1] if found else {}
    if main.get("Name") != "main":
        raise SourceError(
            f"{plan.name}: {plan.source.package} is package {main.get('Name', '?')}, not a main package",
            hint="`from` in manifest.json names the folder of the program's main package.",
        )
    module_cache = env["GOMODCACHE"] + os.sep
    return tuple(
        Package(Path(value["Dir"]), tuple(value.get("EmbedPatterns", ())), _go_mod(value))
        for value in found
        if not value["Dir"].startswith(module_cache)
    )


def _go_mod(value: Mapping[str, Any]) -> Path | None:
    module = value.get("Module") or {}
    module = module.get("Replace") or module
    return Path(module["GoMod"]) if "GoMod" in module else None


def _json_values(text: str) -> list[dict[str, Any]]:
    """The JSON values that `go list -json` prints one after the other."""
    decoder, values, at = json.JSONDecoder(), [], 0
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        values.append(value)
        while at < len(text) and text[at].isspace():
            at += 1
    return values


def _download_env(env: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The list step's environment: it may download, with the user's proxies, credentials and git."""
    download = {name: value for name, value in env.items() if name != "GOPROXY"}
    download.update({name: environ[name] for name in DOWNLOAD_VARIABLES if name in environ})
    netrc = Path(environ.get("HOME", "/")) / ".netrc"
    if "NETRC" not in download and netrc.is_file():
        download["NETRC"] = str(netrc)
    download["PATH"] += os.pathsep + environ.get("PATH", os.defpath)
    return download


def _refuse_source(plan: BuildPlan, text: str) -> NoReturn:
    """Tell the kinds of failure of `go list` apart by the go command's own words."""
    if "requires go >=" in text:
        raise ToolchainTooOldError(
            f"{plan.name}: a dependency asks for a newer Go than the pinned {plan.toolchain_version}:\n{text}",
            hint="Pin a newer Go in toolchains.toml.",
        )
    network = (
        "dial tcp",
        "no such host",
        "module lookup disabled",
        "proxyconnect",
        "connection re",
        "i/o timeout",
        "TLS",
    )
    if any(word in text for word in network) or ": reading http" in text:
        raise ModuleDownloadError(
            f"{plan.name}: a Go module could not be downloaded:\n{text}",
            hint="Set GOPROXY to a proxy in reach, or commit a vendor folder (`go mod vendor`).",
        )
    raise SourceError(f"{plan.name}: the go command refuses the source:\n{text}")


def _compile(plan: BuildPlan, folders: Mapping[str, str], env: Mapping[str, str]) -> Isolation:
    argv = [substitute(part, folders) for part in plan.argv]
    prefix = network_isolation()
    done = run([*prefix, *argv], env=env, cwd=folders["source"])
    if done.exit_code != 0:
        how = f"was ended by signal {-done.exit_code}" if done.exit_code < 0 else f"exited with {done.exit_code}"
        raise CompileError(
            f"{plan.name}: go build {how}:\n{_text(done.stderr)}\nTo repeat it: {_repeat(plan, folders)}"
        )
    return "network-namespace" if prefix else "goproxy-off"


def _repeat(plan: BuildPlan, folders: Mapping[str, str]) -> str:
    """A command line for a shell that compiles the same again; the build's own work folder is gone by then."""
    work = Path(tempfile.gettempdir()) / "meshbuild-repeat"
    folders = {**folders, "work": str(work)}
    env = shlex.join(f"{name}={substitute(value, folders)}" for name, value in plan.env)
    argv = shlex.join(substitute(part, folders) for part in plan.argv)
    folder = shlex.quote(folders["source"])
    return f"mkdir -p {shlex.quote(str(work / 'tmp'))} && cd {folder} && env -i {env} {argv}"


@functools.cache
def network_isolation() -> tuple[str, ...]:
    """The words in front of a command that take the network away from it; none where that isn't allowed here."""
    for words in _ISOLATIONS:
        found = tuple(shutil.which(word) or word for word in words)  # the build's own PATH holds the toolchain only
        with contextlib.suppress(OSError):
            if (
                subprocess.run([*found, shutil.which("true") or "true"], capture_output=True, check=False).returncode
                == 0
            ):
                return found
    return ()


def _git_only_folder(work: Path, environ: Mapping[str, str]) -> str:
    """A folder for PATH with git and nothing else, for VCS stamping."""
    git = shutil.which("git", path=environ.get("PATH"))
    if git is None:
        raise SourceError("`vcs` stamps the git revision, and no git is on PATH", hint="Install git, or remove `vcs`.")
    folder = work / "git"
    folder.mkdir(exist_ok=True)
    link = folder / "git"
    link.unlink(missing_ok=True)
    link.symlink_to(git)
    return str(folder)


def _text(output: bytes) -> str:
    return output.decode(errors="replace").strip()
