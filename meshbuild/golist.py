"""The packages that take part in a build, as `go list -deps` tells; it downloads the Go modules that they lie in."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from meshbuild.errors import ModuleDownloadError, SourceError, ToolchainTooOldError
from meshbuild.gochecks import Problem, compile_hint, hint_for, source_problems
from meshbuild.godownload import download_environment, scrub
from meshbuild.gostamps import stamp_problems
from meshbuild.paths import local_errors
from meshbuild.plan import substitute
from meshbuild.runner import run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from meshbuild.plan import BuildPlan

# How the go command, or git for it, says that a module couldn't be had, as against one that isn't right.
_NETWORK = re.compile(
    r"dial tcp|no such host|module lookup disabled|proxyconnect|connection re(?:fused|set)|i/o timeout|tls: |x509: "
    r"|TLS handshake|unexpected EOF|: reading https?:"
)
# How it says that somebody was reached who doesn't give the module to this user.
_REFUSED = re.compile(
    r": 40[13] (?:Unauthorized|Forbidden)|could not read (?:Username|Password)|Authentication failed"
    r"|[Pp]ermission denied \(|Host key verification failed|terminal prompts disabled|no secure protocol found"
)


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


def list_packages(
    plan: BuildPlan, *, folders: Mapping[str, str], env: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[Package, ...]:
    """Name the packages of a build whose source lies in the user's tree, and download the modules of the others.

    Args:
        plan: what to build.
        folders: what the plan's placeholders stand for.
        env: the build's environment.
        environ: the user's, from which the download takes proxies and credentials.

    Raises:
        SourceError: the package is not a main package, or its source is not complete, or not all in one tree, or needs
            cgo, or embeds what the go command leaves out; all problems together.
        ToolchainTooOldError: a dependency asks for a newer Go.
        ModuleDownloadError: a Go module could not be had.
    """
    argv = [substitute(part, folders) for part in plan.list_argv]
    download = env if plan.source.vendored else download_environment(env, environ, home=Path(env["HOME"]))
    listed = run(argv, env=download, cwd=folders["source"])
    if listed.exit_code != 0:
        _refuse_source(plan, [scrub(listed.error_text, environ)], hint_for(listed.error_text))
    listing = _json_values(listed.stdout.decode())
    with local_errors(f"read the source of {plan.name}"):
        problems = source_problems(listing, module_cache=env["GOMODCACHE"], tree=Path(folders["tree"]))
        problems += [Problem(text) for text in stamp_problems(plan.stamps, listing)] if not problems else []
    if problems:
        hints = dict.fromkeys(problem.hint for problem in problems if problem.hint)
        texts = [scrub(problem.text, environ) for problem in problems]
        _refuse_source(plan, texts, " ".join(hints) + _unused_workspace(plan, folders))
    found = [value for value in listing if not value.get("Standard")]
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


def explain_failure(plan: BuildPlan, said: str, *, folders: Mapping[str, str], env: Mapping[str, str]) -> str | None:
    """What may be behind a failed `go build`, from its text and the packages it was of; None when nothing is known.

    Raises:
        LocalFileError: the source can't be read.
    """
    with local_errors(f"read the source of {plan.name}"):
        listed = run([substitute(part, folders) for part in plan.list_argv], env=env, cwd=folders["source"])
        return compile_hint(said, _json_values(listed.stdout.decode())) or None


def _unused_workspace(plan: BuildPlan, folders: Mapping[str, str]) -> str:
    """A word about a go.work that people may have in mind, and that isn't in force."""
    source = Path(folders["source"])
    found = next((folder / "go.work" for folder in (source, *source.parents) if (folder / "go.work").is_file()), None)
    if found is None or plan.source.workspace is not None:
        return ""
    return f" {found} isn't used: it lies outside of the module's own folder, or doesn't use this Go module."


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


def _refuse_source(plan: BuildPlan, problems: Sequence[str], hint: str) -> NoReturn:
    """Tell the kinds of failure of `go list` apart by the go command's own words."""
    text = "\n".join(f"  {line}" for problem in problems for line in problem.splitlines())
    if "requires go >=" in text:
        raise ToolchainTooOldError(
            f"{plan.name}: a dependency asks for a newer Go than the pinned {plan.toolchain_version}:\n{text}",
            hint="Pin a newer Go in toolchains.toml.",
        )
    if _REFUSED.search(text):
        raise ModuleDownloadError(
            f"{plan.name}: a Go module isn't there, or isn't given to this user:\n{text}",
            hint="Name private modules in GOPRIVATE, and give credentials by netrc, GOAUTH, git or GOPROXY's address: "
            "docs/private-modules.md.",
        )
    if _NETWORK.search(text):
        raise ModuleDownloadError(
            f"{plan.name}: a Go module could not be downloaded:\n{text}",
            hint="Set GOPROXY to a proxy in reach, or commit a vendor folder (`go mod vendor`).",
        )
    raise SourceError(f"{plan.name}: its Go source can't be built:\n{text}", hint=hint or None)
