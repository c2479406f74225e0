"""A plan is the whole command and environment, and the same on every machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshbuild.errors import SourceError, ToolchainTooOldError
from meshbuild.gosource import GoSource
from meshbuild.manifest import parse_manifest
from meshbuild.pins import parse_pins
from meshbuild.plan import BuildPlan, _quote, _version_key, plan_build, substitute

PINS = parse_pins((Path(__file__).parents[2] / "toolchains.toml").read_bytes(), where="toolchains.toml")
SOURCE = GoSource(
    module_dir=".",
    package="./cmd/web",
    module_path="example.com/m",
    go_lines=(("go.mod", "1.26"),),
    vendored=False,
    workspace=None,
)
ARTIFACT = {"name": "web", "kind": "bundle", "language": "go", "system": "arch", "from": "cmd/web", "binary": "web"}


def plan(source: GoSource = SOURCE, system: str = "arch", commit: str = "unknown", **artifact: Any) -> BuildPlan:
    value = {
        "module": "m",
        "version": "1.2",
        "slug": "m",
        "build": {"artifacts": [{**ARTIFACT, "system": system, **artifact}]},
    }
    manifest = parse_manifest(json.dumps(value).encode(), where="manifest.json")
    return plan_build(
        manifest,
        manifest.build.artifacts[0],
        pin=PINS.toolchain(None, "linux-amd64"),
        system=PINS.system(system),
        source=source,
        commit=commit,
    )


def test_the_command() -> None:
    assert plan().argv == (
        "${toolchain}/bin/go",
        "build",
        "-o",
        "${work}/out/web",
        "-trimpath",
        "-buildvcs=false",
        "-mod=readonly",
        "-ldflags=-s -w",
        "./cmd/web",
    )


def test_the_environment_is_whole_and_names_no_folder_of_this_machine() -> None:
    env = dict(plan().env)
    assert {name: env[name] for name in ("GOENV", "GOTOOLCHAIN", "GOFLAGS", "GOWORK", "GOPROXY", "CGO_ENABLED")} == {
        "GOENV": "off",
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "",
        "GOWORK": "off",
        "GOPROXY": "off",
        "CGO_ENABLED": "0",
    }
    assert (env["GOOS"], env["GOARCH"], env["GOAMD64"]) == ("linux", "amd64", "v1")
    assert env["PATH"] == "${toolchain}/bin"
    folders = [value for name, value in env.items() if "/" in value]
    assert all(value.startswith("${") for value in folders)


def test_arm64_has_its_own_level_and_no_amd64_one() -> None:
    env = dict(plan(system="arch-arm64").env)
    assert env["GOARCH"] == "arm64"
    assert "GOAMD64" not in env


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({"strip": False}, None),
        ({"tags": ["a", "b"]}, "-tags=a,b"),
        ({"vcs": True}, "-buildvcs=true"),
        ({"stamp": {"main.v": "${module}-${version}"}}, "-ldflags=-s -w -X main.v=m-1.2"),
        ({"stamp": {"main.v": "a b", "main.c": "${commit}"}}, "-ldflags=-s -w -X main.c=abc -X 'main.v=a b'"),
        ({"stamp": {"main.v": "x"}, "strip": False}, "-ldflags=-X main.v=x"),
    ],
)
def test_options_become_flags(change: dict[str, Any], seen: str | None) -> None:
    argv = plan(commit="abc", **change).argv
    if seen is None:
        assert not any(part.startswith("-ldflags") for part in argv)
    else:
        assert seen in argv


def test_vendored_source_is_built_from_vendor_and_a_workspace_is_named() -> None:
    made = plan(replace(SOURCE, vendored=True, workspace="../go.work"))
    assert "-mod=vendor" in made.argv
    assert "-mod=vendor" in made.list_argv
    assert dict(made.env)["GOWORK"] == "${source}/../go.work"


def test_tags_reach_the_list_step_too() -> None:
    assert "-tags=x" in plan(tags=["x"]).list_argv


def test_fingerprints_tell_plans_apart_and_are_stable() -> None:
    assert plan().fingerprint == plan().fingerprint
    others = [plan(strip=False), plan(system="debian"), plan(replace(SOURCE, vendored=True)), plan(tags=["x"])]
    assert len({plan().fingerprint, *(other.fingerprint for other in others)}) == 5


@pytest.mark.parametrize("version", ["1.28", "1.27.3", "2", "1.28rc1"])
def test_a_newer_go_line_is_an_error_that_names_both(version: str) -> None:
    source = replace(SOURCE, go_lines=(("go.mod", "1.20"), ("go.work", version)))
    with pytest.raises(ToolchainTooOldError, match=rf"m\.web: go\.work asks for go {version}, pinned is 1\.27\.2"):
        plan(source)


@pytest.mark.parametrize("version", ["1.27.2", "1.27", "1.27rc2", "1.9", "default"])
def test_a_go_line_that_is_not_newer_passes(version: str) -> None:
    assert plan(replace(SOURCE, go_lines=(("go.mod", version),))).argv


def test_go_versions_are_ordered_as_go_orders_them() -> None:
    ordered = ["1.20", "1.21", "1.21rc1", "1.21rc2", "1.21.0", "1.21.1", "1.21.10", "1.22", "2"]
    assert [_version_key(version) for version in ordered] == sorted({_version_key(version) for version in ordered})


def test_placeholders_are_replaced_and_nothing_else() -> None:
    folders = {"toolchain": "/t", "source": "/s", "cache": "/c", "work": "/w"}
    assert substitute("${toolchain}/bin:${work}/${other}$HOME", folders) == "/t/bin:/w/${other}$HOME"


def test_linker_flags_are_quoted_as_the_go_command_reads_them() -> None:
    assert _quote("a=b") == "a=b"
    assert _quote("a=b c") == "'a=b c'"
    assert _quote("a=it's") == '"a=it\'s"'


def test_a_value_that_go_build_can_not_be_given_is_refused() -> None:
    with pytest.raises(SourceError, match="both kinds of quotes"):
        _quote("""main.version=1'2"3""")
