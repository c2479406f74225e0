"""Statements that name everything a build came from, and the same bytes for the same facts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from meshbuild.digests import Sha256
from meshbuild.errors import CompileError
from meshbuild.jsontext import canonical_json
from meshbuild.provenance import (
    BUILD_TYPE,
    BuildFacts,
    BuildInfo,
    GitSource,
    GoModule,
    RunDetails,
    cyclonedx_sbom,
    parse_build_info,
    slsa_provenance,
    statement,
    with_go_sums,
)

DATA = Path(__file__).with_name("data")
# What Go 1.27.2 says of a program with a dependency, one replaced by a release and one replaced by a folder.
HELLO = (DATA / "go_version_hello.json").read_bytes()
VENDORED = (DATA / "go_version_hello_vendored.json").read_bytes()
GO_SUM = (DATA / "go_sum_hello.txt").read_text()

TREE = Sha256.of(b"toolchain")
FACTS = BuildFacts(
    module="web",
    artifact="server",
    version="1.2",
    system="arch",
    source=GitSource(commit="c" * 40, dirty=False),
    go_module="example.com/hello",
    package="./cmd/hello",
    toolchain_version="1.27.2",
    toolchain_platform="linux-amd64",
    toolchain_tree=TREE,
    argv=("${toolchain}/bin/go", "build", "-o", "${work}/out/server", "-trimpath", "./cmd/hello"),
    env={"GOOS": "linux", "GOCACHE": "${cache}/go-build"},
    isolation="network-namespace",
    go_modules=parse_build_info(HELLO).modules,
    tags=("netgo",),
    stamp={"main.version": "${version}"},
    files=({"from": "share/**", "to": "share", "mode": "0644"},),
)
RUN = RunDetails(
    builder_id="https://example.com/ci",
    meshbuild_version="0.1.0",
    invocation_id="run-7",
    started_on="2026-12-01T10:00:00Z",
    finished_on="2026-12-01T10:00:09Z",
)


def sbom(info: BuildInfo, **changes: Any) -> dict[str, Any]:
    arguments = {"module": "web", "artifact": "server", "version": "1.2", "binary_sha256": Sha256.of(b"binary")}
    return cyclonedx_sbom(info, **{**arguments, **changes})


# Statements


def test_subjects_are_the_content_and_then_the_files_in_byte_order() -> None:
    files = {"é": Sha256.of(b"4"), "a/b": Sha256.of(b"3"), "a-b": Sha256.of(b"2"), "B": Sha256.of(b"1")}
    content = Sha256.of(b"content")
    made = statement("https://x.example/y", {"k": 1}, name="m.a-1-arch.tar", content_sha256=content, files=files)
    assert made == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": "m.a-1-arch.tar", "digest": {"sha256": content}},
            {"name": "B", "digest": {"sha256": Sha256.of(b"1")}},
            {"name": "a-b", "digest": {"sha256": Sha256.of(b"2")}},
            {"name": "a/b", "digest": {"sha256": Sha256.of(b"3")}},
            {"name": "é", "digest": {"sha256": Sha256.of(b"4")}},
        ],
        "predicateType": "https://x.example/y",
        "predicate": {"k": 1},
    }


# Provenance


def test_provenance_says_what_was_asked_for_what_was_run_and_by_whom() -> None:
    predicate = slsa_provenance(FACTS, RUN)
    definition = predicate["buildDefinition"]
    assert definition["buildType"] == BUILD_TYPE
    assert definition["externalParameters"] == {
        "module": "web",
        "artifact": "server",
        "version": "1.2",
        "system": "arch",
        "source": {"go_module": "example.com/hello", "package": "./cmd/hello", "commit": "c" * 40},
        "tags": ["netgo"],
        "strip": True,
        "vcs": False,
        "stamp": {"main.version": "${version}"},
        "files": [{"from": "share/**", "to": "share", "mode": "0644"}],
    }
    assert definition["internalParameters"] == {
        "argv": list(FACTS.argv),
        "environment": dict(FACTS.env),
        "isolation": "network-namespace",
    }
    assert predicate["runDetails"] == {
        "builder": {"id": "https://example.com/ci", "version": {"meshbuild": "0.1.0"}},
        "metadata": {
            "invocationId": "run-7",
            "startedOn": "2026-12-01T10:00:00Z",
            "finishedOn": "2026-12-01T10:00:09Z",
            "meshbuild_sharedCache": False,
        },
    }


def test_provenance_names_the_profile_by_digest() -> None:
    assert {"name": "default.pgo", "digest": {"sha256": Sha256.of(b"profile")}} in _dependencies(
        dataclasses.replace(FACTS, profile=Sha256.of(b"profile"))
    )
    assert all(each["name"] != "default.pgo" for each in _dependencies(FACTS))


def _dependencies(facts: BuildFacts) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = slsa_provenance(facts, RUN)["buildDefinition"]["resolvedDependencies"]
    return found


def test_provenance_names_toolchain_source_and_every_go_module_by_digest() -> None:
    assert slsa_provenance(FACTS, RUN)["buildDefinition"]["resolvedDependencies"] == [
        {
            "name": "toolchain",
            "uri": "pkg:generic/go@1.27.2?platform=linux-amd64",
            "digest": {"dirHash": TREE, "sha256": TREE},
        },
        {"name": "source", "digest": {"gitCommit": "c" * 40}, "annotations": {"dirty": False}},
        {
            "name": "example.com/local",
            "uri": "file:../local",
            "annotations": {"replaces": "example.com/local@v0.0.0"},
        },
        {
            "name": "golang.org/x/text",
            "uri": "pkg:golang/golang.org/x/text@v0.0.0-20170915032832-14c0d48ead0c",
            "digest": {"dirHash": "aa0398e9681939a4e4208322563050730f77111044e26df48819b4d2790bd22f"},
        },
        {
            "name": "rsc.io/quote",
            "uri": "pkg:golang/rsc.io/quote@v1.5.2",
            "digest": {"dirHash": "c397dccac8ebc7bcaab43fda3be43046361938a9da33d521d9be34b44953b376"},
        },
        {
            "name": "rsc.io/sampler",
            "uri": "pkg:golang/rsc.io/sampler@v1.3.1",
            "digest": {"dirHash": "1747372769d009d93d383b0d854dec1259ef3c8c4cff157573fa99b8079999a7"},
            "annotations": {"replaces": "rsc.io/sampler@v1.3.0"},
        },
    ]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (GitSource(None, None), []),
        (GitSource("c" * 40, None), [{"name": "source", "digest": {"gitCommit": "c" * 40}}]),
        (
            GitSource("c" * 40, dirty=True),
            [{"name": "source", "digest": {"gitCommit": "c" * 40}, "annotations": {"dirty": True}}],
        ),
    ],
)
def test_what_git_does_not_know_is_not_claimed(source: GitSource, expected: list[Any]) -> None:
    predicate = slsa_provenance(dataclasses.replace(FACTS, source=source, go_modules=()), RUN)
    assert predicate["buildDefinition"]["resolvedDependencies"][1:] == expected


def test_the_build_definition_depends_on_the_facts_alone() -> None:
    later = dataclasses.replace(RUN, invocation_id="run-8", started_on="2026-12-02T10:00:00Z")
    shuffled = dataclasses.replace(
        FACTS, go_modules=FACTS.go_modules[::-1], env=dict(reversed(list(FACTS.env.items())))
    )
    first, second = slsa_provenance(FACTS, RUN), slsa_provenance(shuffled, later)
    assert canonical_json(first["buildDefinition"]) == canonical_json(second["buildDefinition"])
    assert first["runDetails"] != second["runDetails"]


@pytest.mark.parametrize(
    "change",
    [
        {"argv": ("go", "build")},
        {"env": {"GOOS": "plan9"}},
        {"isolation": "goproxy-off"},
        {"toolchain_tree": Sha256.of(b"other")},
        {"tags": ()},
        {"strip": False},
        {"vcs": True},
        {"stamp": {}},
        {"go_modules": ()},
        {"source": GitSource("d" * 40, dirty=False)},
        {"package": "."},
        {"go_module": "x"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_fact_shows(change: dict[str, Any]) -> None:
    other = dataclasses.replace(FACTS, **change)
    assert slsa_provenance(other, RUN)["buildDefinition"] != slsa_provenance(FACTS, RUN)["buildDefinition"]


# Build info


def test_build_info_of_a_real_program_is_read() -> None:
    info = parse_build_info(HELLO)
    assert info.go_version == "go1.27.2"
    assert info.package == "example.com/hello/cmd/hello"
    assert info.main == GoModule("example.com/hello", "(devel)")
    local, text, quote, sampler = info.modules
    assert local == GoModule("example.com/local", "v0.0.0", None, GoModule("../local", "(devel)"))
    assert text.h1 == "h1:qgOY6WgZOaTkIIMiVjBQcw93ERBE4m30iBm00nkL0i8="
    assert str(quote) == "rsc.io/quote@v1.5.2"
    assert sampler.used == GoModule("rsc.io/sampler", "v1.3.1", "h1:F0c3J2nQCdk9ODsNhU3sElnvPIxM/xV1c/qZuAeZmac=")
    assert ("-trimpath", "true") in info.settings


def test_a_program_of_the_standard_library_alone_has_no_modules() -> None:
    assert parse_build_info(b'{"GoVersion":"go1.27.2","Path":"x","Main":{"Path":"x"}}').modules == ()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (b"", "the text"),
        (b"hello: go1.27.2\n", "the text"),
        (b"[]", "the text"),
        (b"{}", "GoVersion"),
        (b'{"GoVersion":"1.27.2","Path":"x","Main":{"Path":"x"}}', "GoVersion"),
        (b'{"GoVersion":"go1.27.2","Path":"","Main":{"Path":"x"}}', "Path"),
        (b'{"GoVersion":"go1.27.2","Path":"x"}', "Main"),
        (HELLO.replace(b"h1:w5fc", b"h2:w5fc"), "Deps.2.Sum"),
        (HELLO.replace(b"h1:w5fc", b"h1:w5f"), "Deps.2.Sum"),
        (HELLO.replace(b"h1:w5fcysjrx7yqtD", b"h1:w5fcysjrx7yq"), "Deps.2.Sum"),
        (HELLO.replace(b"h1:F0c3", b"h1:!0c3"), "Deps.3.Replace.Sum"),
    ],
)
def test_what_is_no_build_info_is_refused_and_located(text: bytes, where: str) -> None:
    with pytest.raises(CompileError, match=f"expected a runtime/debug.BuildInfo, found in {where}: "):
        parse_build_info(text)


def test_a_vendored_programs_digests_come_from_go_sum_and_say_so() -> None:
    told, vendored = parse_build_info(HELLO), parse_build_info(VENDORED)
    assert all(module.used.h1 is None for module in vendored.modules)
    filled = with_go_sums(vendored, ["", GO_SUM])
    assert [module.used.h1 for module in filled.modules] == [module.used.h1 for module in told.modules]
    assert [module.used.vendored for module in filled.modules] == [False, True, True, True]
    facts = dataclasses.replace(FACTS, go_modules=filled.modules)
    described = slsa_provenance(facts, RUN)["buildDefinition"]["resolvedDependencies"][-1]
    assert described["annotations"] == {"replaces": "rsc.io/sampler@v1.3.0", "vendored": True}


def test_what_the_program_itself_says_goes_before_go_sum() -> None:
    told = parse_build_info(HELLO)
    assert with_go_sums(told, [GO_SUM.replace("h1:w5fc", "h1:AAAA")]) == told


@pytest.mark.parametrize(
    "text", ["", "rsc.io/quote v1.5.2\n", "rsc.io/quote v1.5.2 h1:x\n", "rsc.io/quote v1.5.2 h2:x\n"]
)
def test_a_go_sum_without_the_digest_adds_nothing(text: str) -> None:
    vendored = parse_build_info(VENDORED)
    assert with_go_sums(vendored, [text]) == vendored


# Bill of materials


@pytest.mark.parametrize("info", [parse_build_info(HELLO), with_go_sums(parse_build_info(VENDORED), [GO_SUM])])
def test_the_bill_of_materials_is_valid_cyclonedx(info: BuildInfo) -> None:
    document = canonical_json(sbom(info)).decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(document) is None
    broken = document.replace('"SHA-256"', '"SHA-257"')
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(broken) is not None


def test_the_bill_of_materials_lists_what_was_compiled() -> None:
    document = sbom(parse_build_info(HELLO))
    program = document["metadata"]["component"]
    assert (program["type"], program["name"], program["version"]) == ("application", "web.server", "1.2")
    assert program["hashes"] == [{"alg": "SHA-256", "content": Sha256.of(b"binary")}]
    assert program["purl"] == "pkg:golang/example.com/hello#cmd/hello"
    found = {
        one["name"]: (one.get("version"), one.get("purl"), len(one.get("hashes", []))) for one in document["components"]
    }
    assert found == {
        "example.com/local": (None, None, 0),
        "golang.org/x/text": (
            "v0.0.0-20170915032832-14c0d48ead0c",
            "pkg:golang/golang.org/x/text@v0.0.0-20170915032832-14c0d48ead0c",
            1,
        ),
        "rsc.io/quote": ("v1.5.2", "pkg:golang/rsc.io/quote@v1.5.2", 1),
        "rsc.io/sampler": ("v1.3.1", "pkg:golang/rsc.io/sampler@v1.3.1", 1),
        "stdlib": ("1.27.2", "pkg:golang/stdlib@1.27.2", 0),
    }
    edges = {one["ref"]: one.get("dependsOn", []) for one in document["dependencies"]}
    assert edges["program"] == sorted(one["bom-ref"] for one in document["components"])


def test_a_released_main_module_has_its_version_in_the_purl() -> None:
    info = parse_build_info(HELLO)
    released = dataclasses.replace(
        info, main=GoModule("example.com/hello", "v1.0.0+incompatible"), package="example.com/hello"
    )
    assert sbom(released)["metadata"]["component"]["purl"] == "pkg:golang/example.com/hello@v1.0.0%2Bincompatible"


def test_the_bill_of_materials_is_the_same_every_time() -> None:
    info = parse_build_info(HELLO)
    shuffled = dataclasses.replace(info, modules=info.modules[::-1])
    first, again = sbom(info), sbom(shuffled)
    assert canonical_json(first) == canonical_json(again)
    assert "timestamp" not in json.dumps(first)
    assert first["serialNumber"] != sbom(info, binary_sha256=Sha256.of(b"other"))["serialNumber"]


def test_one_module_in_the_place_of_two_is_listed_twice() -> None:
    info = parse_build_info(HELLO)
    target = GoModule("example.com/fork", "v1.0.0")
    twice = (GoModule("example.com/a", "v1.0.0", None, target), GoModule("example.com/b", "v1.0.0", None, target))
    document = sbom(dataclasses.replace(info, modules=twice))
    assert [one["bom-ref"] for one in document["components"]] == [
        "go:example.com/a@v1.0.0",
        "go:example.com/b@v1.0.0",
        "go:stdlib",
    ]
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document)) is None
