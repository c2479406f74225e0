"""Running build plans: the pinned compiler, an environment that starts empty, no network while it compiles."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from meshbuild.errors import CompileError, IsolationError, SourceError
from meshbuild.golist import explain_failure, list_packages
from meshbuild.gosource import source_tree
from meshbuild.paths import local_errors
from meshbuild.plan import substitute
from meshbuild.runner import run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from meshbuild.golist import Package
    from meshbuild.plan import BuildPlan
    from meshbuild.toolchains import Toolchain

Isolation = Literal["network-namespace", "goproxy-off"]

NO_CACHE: Mapping[str, str] = MappingProxyType({})

# What takes the network away, and takes every process of a build down with whoever started it: `unshare` and `setpriv`
# of util-linux, as root and as anybody else. Which of them works is asked once a process.
_NAMESPACES = ("--net", "--pid", "--fork", "--kill-child", "--")
_ISOLATIONS = (
    ("setpriv", "--pdeathsig", "KILL", "--", "unshare", *_NAMESPACES),
    ("unshare", "--user", "--map-current-user", *_NAMESPACES),
)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedBuild:
    """A build of which everything is there but the program: modules downloaded, packages known.

    Attributes:
        packages: the packages whose source lies in the user's tree; the standard library is named by the toolchain,
            downloaded modules by go.sum.
        folders: what the plan's placeholders stand for here.
        env: the compiler's whole environment.
    """

    plan: BuildPlan
    packages: tuple[Package, ...]
    folders: Mapping[str, str]
    env: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A finished build.

    Attributes:
        binary: the program, inside the build's work folder.
        build_info: what `go version -m -json` says of the program, as JSON text.
        isolation: how far compiling was cut off.
        shared_cache: whether compiled packages could come from a build cache that machines share.
    """

    binary: Path
    build_info: bytes
    isolation: Isolation
    shared_cache: bool


def prepare_build(
    plan: BuildPlan, *, site: BuildSite, toolchain: Toolchain, environ: Mapping[str, str]
) -> PreparedBuild:
    """Make a build ready to compile: everything that needs a network, and nothing that reads more than import lines.

    Leaves folders in `site.work`, and downloaded modules in `site.cache`.

    Args:
        plan: what to build.
        site: where.
        toolchain: the pinned one, verified.
        environ: the user's environment, from which the download step takes proxy and checksum settings only.

    Raises:
        SourceError: the package is not a main package, or its source is not complete.
        ToolchainTooOldError: a dependency asks for a newer Go.
        ModuleDownloadError: a Go module could not be had.
        LocalFileError: the work folder can't be written.
    """
    source = (site.manifest_dir / plan.source.module_dir).resolve()
    folders = {
        "toolchain": str(toolchain.root),
        "tree": str(source_tree(site.manifest_dir.resolve(), source)),
        "source": str(source),
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
    packages = list_packages(plan, folders=folders, env=env, environ=environ)
    return PreparedBuild(plan=plan, packages=packages, folders=folders, env=env)


def compile_build(prepared: PreparedBuild, shared_cache: Mapping[str, str] = NO_CACHE) -> BuildResult:
    """Compile a program; it and nothing else lies in the build's `out` folder then.

    Args:
        prepared: the build.
        shared_cache: what buildcache.server.shared_cache adds to the compiler's environment; nothing without one.

    Raises:
        CompileError: the compiler refused; the message holds its text whole and a command to repeat it.
    """
    plan, folders = prepared.plan, prepared.folders
    isolation = _go(prepared, plan.argv, shared_cache)
    return _result(prepared, Path(folders["work"]) / "out" / plan.binary, isolation, bool(shared_cache))


def compile_together(builds: Sequence[PreparedBuild], shared_cache: Mapping[str, str] = NO_CACHE) -> list[BuildResult]:
    """Compile programs of one Go module for one target by one call; each then lies where its own call would put it.

    The linker runs for several programs at once then, and what is read is read once. Each program's bytes are those of
    its own call: neither the name of the output nor what else is built takes part in them.

    Args:
        builds: with equal `shared_call` in their plans.
        shared_cache: as `compile_build` has it.

    Raises:
        CompileError: the compiler refused one of them or more; nobody knows which, so compile each alone then.
    """
    leader = builds[0]
    together = Path(leader.folders["work"]) / "together"
    packages = dict.fromkeys(build.plan.source.package for build in builds)
    isolation = _go(leader, leader.plan.shared_argv(f"{together}{os.sep}", *packages), shared_cache)
    results = []
    for build in builds:
        program = together / build.plan.source.program_name
        if not program.is_file():
            raise CompileError(f"{build.plan.name}: go build left no program named {program.name}")
        binary = Path(build.folders["work"]) / "out" / build.plan.binary
        with local_errors(f"put {binary} in place"):
            shutil.copyfile(program, binary)
            binary.chmod(0o755)
        results.append(_result(build, binary, isolation, bool(shared_cache)))
    with local_errors(f"remove {together}"):
        shutil.rmtree(together)
    return results


def _result(prepared: PreparedBuild, binary: Path, isolation: Isolation, shared_cache: bool) -> BuildResult:
    go = f"{prepared.folders['toolchain']}/bin/go"
    info = run([go, "version", "-m", "-json", str(binary)], env=prepared.env, cwd=prepared.folders["source"])
    if info.exit_code != 0:
        raise CompileError(f"{prepared.plan.name}: go version can't read the program: {info.error_text}")
    return BuildResult(binary, info.stdout, isolation, shared_cache)


def _go(prepared: PreparedBuild, words: Sequence[str], shared_cache: Mapping[str, str]) -> Isolation:
    argv = [substitute(part, prepared.folders) for part in words]
    prefix = network_isolation()
    done = run([*prefix, *argv], env={**prepared.env, **shared_cache}, cwd=prepared.folders["source"])
    if done.exit_code != 0:
        how = f"was ended by signal {-done.exit_code}" if done.exit_code < 0 else f"exited with {done.exit_code}"
        plan = prepared.plan
        raise CompileError(
            f"{plan.name}: go build {how}:\n{done.error_text}\nTo repeat it: {_repeat(plan, prepared.folders)}",
            hint=explain_failure(plan, done.error_text, folders=prepared.folders, env=prepared.env),
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


def check_isolation(name: str) -> None:
    """Refuse a machine on which compiling can't be cut off from the network.

    Raises:
        IsolationError: it can't; the message starts with the name of what was to be built.
    """
    if not network_isolation():
        raise IsolationError(
            f"{name}: compiling without a network is required, and this machine doesn't allow it",
            hint="It takes `unshare` (util-linux), and root or user namespaces; or drop --require-isolation.",
        )


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
