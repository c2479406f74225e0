from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pydantic
import pytest

from meshbuild.cli import reference
from meshbuild.errors import LocalFileError, ManifestError
from meshbuild.manifest import (
    MAX_MANIFEST_BYTES,
    Manifest,
    ProcessResource,
    find_manifests,
    manifest_schema,
    parse_manifest,
    read_manifest,
    read_manifests,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SEED = (Path(__file__).parent / "data" / "seed_manifest.json").read_bytes()
SMALL = {"module": "hello", "version": "1"}
ARTIFACT = {"name": "hello", "kind": "bundle", "language": "go", "system": "arch", "from": ".", "binary": "hello"}
PROCESS = {"id": "p", "type": "process", "name": "p", "artifact": "hello", "run": ["./hello"], "user": "nobody"}
USER = {"id": "u", "type": "user", "name": "hello"}
DIRECTORY = {"id": "state", "type": "directory", "mode": "0700", "place": "mesh", "owner": "hello"}


def parse(document: object, **known: Any) -> Manifest:
    return parse_manifest(json.dumps(document).encode(), where="m.json", **known)


def problems(document: object, **known: Any) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        parse(document, **known)
    assert caught.value.problems
    return list(caught.value.problems)


def small(**more: Any) -> dict[str, Any]:
    """A valid manifest with one artifact; keyword arguments replace its keys, `_` standing for `-`."""
    return {
        **SMALL,
        "build": {"artifacts": [ARTIFACT]},
        **{key.replace("_", "-"): value for key, value in more.items()},
    }


def artifact(**more: Any) -> dict[str, Any]:
    return small(build={"artifacts": [{**ARTIFACT, **more}]})


def process(**more: Any) -> dict[str, Any]:
    return small(resources=[DIRECTORY, {**PROCESS, **more}])


def test_the_seed_parses_as_it_stands() -> None:
    manifest = parse_manifest(SEED, where="manifest.json", systems=["arch"], toolchains=["1.27.2"])
    assert (manifest.module, manifest.version, manifest.slug) == ("mesh-controller", "1", "control")
    assert manifest.prepares
    assert manifest.own_secrets["bus"] == "${dir:mesh-state}/bus"
    assert manifest.secrets_owner == "mesh-controller"
    assert manifest.tools[:2] == ("tools", "status")
    user, directory, process = manifest.resources
    assert (user.type, directory.type, process.type) == ("user", "directory", "process")
    assert isinstance(process, ProcessResource)
    assert process.run == ("./mesh-controller", "serve")
    assert process.env["MESH_BROKER_ADDRESS_PORT"] == "${seat:mesh-broker:5671}"
    assert process.replaces == ("server",)
    assert (process.handover, process.listen, process.notify, process.health) == ("beside", (), False, None)
    (artifact,) = manifest.build.artifacts
    assert (artifact.name, artifact.source, artifact.binary) == ("controller", "cmd/mesh-controller", "mesh-controller")
    assert (artifact.strip, artifact.vcs, artifact.toolchain, artifact.tags) == (True, False, None, ())


def test_the_document_is_the_json_value_that_was_parsed() -> None:
    assert parse_manifest(SEED, where="m").document == json.loads(SEED)
    written = artifact(**{"from": "./cmd/x"})
    assert parse(written).document == written
    assert parse(SMALL).document == SMALL


def test_a_manifest_is_frozen_and_needs_no_more_than_module_and_version() -> None:
    manifest = parse(SMALL)
    assert manifest.build.artifacts == ()
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        manifest.version = "2"


def test_every_optional_field_is_taken() -> None:
    files = [{"from": "./static/**", "to": "share/static"}, {"from": "scripts/*.sh", "to": ".", "mode": "0755"}]
    stamp = {"main.version": "${module} ${version}+${commit}", "example.com/x/y.Name": "$5"}
    more = {"toolchain": "1.26.0", "tags": ["netgo", "osusergo"], "strip": False, "vcs": True, "stamp": stamp}
    process = {
        **PROCESS,
        "run": ["./run.sh", "--state=${dir:state}", "${seat:mesh-store:65535}"],
        "listen": ["0.0.0.0:8080", "[::1]:443", "/run/hello.sock"],
        "notify": True,
        "health": "127.0.0.1:9000",
        "handover": "socket",
    }
    manifest = parse(
        {
            **artifact(**more, files=files),
            "resources": [{**USER, "home": "${dir:state}/home", "shell": "/bin/sh"}, DIRECTORY, process],
        },
        systems={"arch": None},
        toolchains={"1.26.0": None},
    )
    (built,) = manifest.build.artifacts
    assert [rule.source for rule in built.files] == ["static/**", "scripts/*.sh"]
    assert [rule.mode for rule in built.files] == ["0644", "0755"]
    assert built.stamp == stamp


@pytest.mark.parametrize(
    ("written", "plain"),
    [(".", "."), ("./", "."), ("./cmd/x", "cmd/x"), ("cmd/x", "cmd/x"), ("..x/y..", "..x/y..")],
)
def test_from_loses_a_leading_dot_and_slash(written: str, plain: str) -> None:
    assert parse(artifact(**{"from": written})).build.artifacts[0].source == plain


def test_an_artifact_may_be_listed_once_for_each_system() -> None:
    arm = {**ARTIFACT, "system": "arch-arm64"}
    assert len(parse(small(build={"artifacts": [ARTIFACT, arm]})).build.artifacts) == 2
    assert problems(small(build={"artifacts": [ARTIFACT, arm, ARTIFACT]})) == [
        'build.artifacts[2]: "hello", "arch" stands already at build.artifacts[0]; it may be listed once'
    ]


LABEL = "a DNS label (a-z, 0-9 and -, at most 63)"
FOLDER = "a relative folder without empty or .. parts"
ABSOLUTE = "an absolute path without empty, . or .. parts"
PLACED = "a path that is absolute or starts with ${dir:ID}, without empty, . or .. parts"
ACCOUNT = "an account's name (a-z, 0-9, - and _, at most 31)"
STAMP = "a text without quotes whose only placeholders are ${module}, ${version} and ${commit}"
ADDRESS = "IP:PORT, [IPv6]:PORT or the absolute path of a unix socket"


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        # keys and types
        ([], "must be an object, not []"),
        ({"module": "x"}, "version: is missing"),
        (small(own_secret={}), 'own-secret: unknown key; did you mean "own-secrets"?'),
        ({**small(), "own_secrets": {}}, 'own_secrets: unknown key; did you mean "own-secrets"?'),
        (artifact(stripp=True), 'build.artifacts[0].stripp: unknown key; did you mean "strip"?'),
        (artifact(source="x"), "build.artifacts[0].source: unknown key"),
        (process(comand=[]), "resources[1].comand: unknown key"),
        (small(**{"\x1b[31m": 1}), '["\\u001b[31m"]: unknown key'),
        (small(prepares="yes"), 'prepares: must be true or false, not "yes"'),
        (small(prepares=1), "prepares: must be true or false, not 1"),
        (small(tools="status"), 'tools: must be a list, not "status"'),
        (small(own_secrets=[]), "own-secrets: must be an object, not []"),
        (small(build=None), "build: must be an object, not null"),
        (small(version=1), "version: must be a string, not 1"),
        (small(resources=[{"id": "x"}]), "resources[0].type: is missing"),
        (
            small(resources=[{**PROCESS, "type": "proces"}]),
            'resources[0].type: must be "directory" or "process" or "user", not "proces"; did you mean "process"?',
        ),
        (small(resources=[3]), "resources[0]: must be an object, not 3"),
        (process(run=[]), "resources[1].run: is empty"),
        (process(env={"A": 1}), "resources[1].env.A: must be a string, not 1"),
        (small(tools=[f"t{number}" for number in range(1001)]), "tools: has more than 1000 entries"),
        (process(env={f"E{number}": "" for number in range(1001)}), "resources[1].env: has more than 1000 entries"),
        # names, versions, enumerations
        (small(module="Hello"), f'module: "Hello" is not {LABEL}'),
        (small(module="a" * 64), f'module: "{"a" * 64}" is not {LABEL}'),
        (small(module="hello\n"), f'module: "hello\\n" is not {LABEL}'),
        (small(slug="-"), f'slug: "-" is not {LABEL}'),
        (small(version=""), 'version: "" is not a version (no /, space or control character)'),
        (small(version="1/2"), 'version: "1/2" is not a version (no /, space or control character)'),
        (small(version="1 2"), 'version: "1 2" is not a version (no /, space or control character)'),
        (small(version="1\x00"), 'version: "1\\u0000" is not a version (no /, space or control character)'),
        (small(tools=["Status"]), 'tools[0]: "Status" is not a command\'s name (a-z, 0-9, -, _ and .)'),
        (artifact(kind="bundel"), 'build.artifacts[0].kind: must be "bundle", not "bundel"; did you mean "bundle"?'),
        (artifact(language="rust"), 'build.artifacts[0].language: must be "go", not "rust"'),
        (artifact(tags=["a b"]), 'build.artifacts[0].tags[0]: "a b" is not a Go build tag (letters, digits, _ and .)'),
        (
            small(claims=[{"name": "x", "scope": "mash"}]),
            'claims[0].scope: must be "mesh" or "host", not "mash"; did you mean "mesh"?',
        ),
        (
            small(resources=[{**DIRECTORY, "mode": "0800"}]),
            'resources[0].mode: "0800" is not a mode of four octal digits, such as "0750"',
        ),
        (
            small(resources=[USER, {**DIRECTORY, "owner": "Hello"}]),
            f'resources[1].owner: "Hello" is not {ACCOUNT}; did you mean "hello"?',
        ),
        (
            process(env={"A-B": ""}),
            'resources[1].env.A-B: "A-B" is not an environment variable\'s name (letters, digits and _)',
        ),
        (process(env={"A": "\0"}), 'resources[1].env.A: "\\u0000" is not a text without NUL'),
        (
            process(handover="besides"),
            (
                'resources[1].handover: must be "beside" or "socket" or "stop-first", not "besides"; '
                'did you mean "beside"?'
            ),
        ),
        # paths
        (artifact(**{"from": "../x"}), f'build.artifacts[0].from: "../x" is not {FOLDER}'),
        (artifact(**{"from": "a/../../x"}), f'build.artifacts[0].from: "a/../../x" is not {FOLDER}'),
        (artifact(**{"from": "/x"}), f'build.artifacts[0].from: "/x" is not {FOLDER}'),
        (artifact(**{"from": "a//b"}), f'build.artifacts[0].from: "a//b" is not {FOLDER}'),
        (artifact(**{"from": ""}), f'build.artifacts[0].from: "" is not {FOLDER}'),
        (
            artifact(binary="a/b"),
            'build.artifacts[0].binary: "a/b" is not a plain file name (no /, not starting with .)',
        ),
        (
            artifact(binary=".bundle"),
            'build.artifacts[0].binary: ".bundle" is not a plain file name (no /, not starting with .)',
        ),
        (
            artifact(files=[{"from": "x", "to": ".bundle/y"}]),
            (
                'build.artifacts[0].files[0].to: ".bundle/y" is not a relative folder outside .bundle '
                "without empty, . or .. parts"
            ),
        ),
        (
            artifact(files=[{"from": "../*", "to": "."}]),
            'build.artifacts[0].files[0].from: "../*" is not a relative glob without empty, . or .. parts',
        ),
        (
            artifact(files=[{"from": "*", "to": ".", "mode": "4755"}]),
            'build.artifacts[0].files[0].mode: must be "0644" or "0755", not "4755"; did you mean "0755"?',
        ),
        (small(accesses=[{"path": "/a/../b", "mode": "read"}]), f'accesses[0].path: "/a/../b" is not {ABSOLUTE}'),
        (small(accesses=[{"path": "a", "mode": "read"}]), f'accesses[0].path: "a" is not {ABSOLUTE}'),
        (small(resources=[{**USER, "shell": "sh"}]), f'resources[0].shell: "sh" is not {ABSOLUTE}'),
        (small(own_secrets={"a": "b"}, secrets_owner="x"), f'own-secrets.a: "b" is not {PLACED}'),
        (
            small(own_secrets={"a": "/x/${dir:b}"}, resources=[{**DIRECTORY, "id": "b"}], secrets_owner="x"),
            f'own-secrets.a: "/x/${{dir:b}}" is not {PLACED}',
        ),
        (
            small(own_secrets={"a/b": "/x"}, secrets_owner="x"),
            'own-secrets["a/b"]: "a/b" is not a secret\'s name (letters, digits, -, _ and .)',
        ),
        # stamps
        (
            artifact(stamp={"main.v": "${verison}"}),
            f'build.artifacts[0].stamp["main.v"]: "${{verison}}" is not {STAMP}',
        ),
        (artifact(stamp={"main.v": "it's"}), f'build.artifacts[0].stamp["main.v"]: "it\'s" is not {STAMP}'),
        (
            artifact(stamp={"version": "1"}),
            'build.artifacts[0].stamp.version: "version" is not a Go variable with its package, such as "main.version"',
        ),
        # addresses
        (process(listen=["localhost:80"]), f'resources[1].listen[0]: "localhost:80" is not {ADDRESS}'),
        (process(listen=["1.2.3.256:80"]), 'resources[1].listen[0]: "1.2.3.256" is not an IP address'),
        (process(listen=["[1::2::3]:80"]), 'resources[1].listen[0]: "[1::2::3]" is not an IP address'),
        (process(health="127.0.0.1:0"), 'resources[1].health: "0" is not a port from 1 to 65535'),
        (process(health="127.0.0.1:65536"), 'resources[1].health: "65536" is not a port from 1 to 65535'),
        (
            process(handover="socket"),
            'resources[1].handover: is "socket", but the process has no address under listen',
        ),
    ],
)
def test_a_wrong_value_is_one_problem_with_its_path(document: object, problem: str) -> None:
    assert problems(document) == [problem]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (process(artifact="helo"), 'resources[1].artifact: no artifact is named "helo"; did you mean "hello"?'),
        (process(artifact="other"), 'resources[1].artifact: no artifact is named "other"'),
        (small(build={}, resources=[PROCESS]), 'resources[0].artifact: no artifact is named "hello"'),
        (
            process(run=["./helo"]),
            'resources[1].run[0]: the bundle of "hello" for "arch" has no program "./helo"; did you mean "./hello"?',
        ),
        (
            process(run=["./x"]),
            'resources[1].run[0]: the bundle of "hello" for "arch" has no program "./x"; its binary is "./hello"',
        ),
        (
            process(run=["hello"]),
            'resources[1].run[0]: "hello" is neither "./" and a file of the bundle nor an absolute path',
        ),
        (
            process(env={"A": "${dir:stat}/x"}),
            'resources[1].env.A: no directory resource has the id "stat"; did you mean "state"?',
        ),
        (process(run=["./hello", "${dir:p}"]), 'resources[1].run[1]: no directory resource has the id "p"'),
        (
            process(env={"A": "${seat:x:0}"}),
            'resources[1].env.A: "${seat:x:0}" is not of the form ${seat:NAME:PORT} with a port from 1 to 65535',
        ),
        (
            process(env={"A": "${seat:x:65536}"}),
            'resources[1].env.A: "${seat:x:65536}" is not of the form ${seat:NAME:PORT} with a port from 1 to 65535',
        ),
        (
            process(env={"A": "${seat:80}"}),
            'resources[1].env.A: "${seat:80}" is not of the form ${seat:NAME:PORT} with a port from 1 to 65535',
        ),
        (
            process(env={"A": "${HOME}"}),
            'resources[1].env.A: "${HOME}" is no placeholder; there are ${dir:ID} and ${seat:NAME:PORT}',
        ),
        (process(env={"A": "x${dir:state"}), 'resources[1].env.A: "${dir:state" is not closed with }'),
        (
            small(own_secrets={"a": "${seat:x:1}/y"}, secrets_owner="x"),
            'own-secrets.a: "${seat:x:1}" is a port, and here stands a path',
        ),
        (small(resources=[{**USER, "home": "${dir:x}"}]), 'resources[0].home: no directory resource has the id "x"'),
        (small(own_secrets={"a": "/x"}), "secrets-owner: is missing; own-secrets need the account that owns them"),
        (small(prepares=True), "prepares: is true, but no resource is a process that could prepare"),
        (small(prepares=True, resources=[USER]), "prepares: is true, but no resource is a process that could prepare"),
        (
            small(resources=[USER, {**DIRECTORY, "id": "u"}]),
            'resources[1].id: "u" stands already at resources[0].id; it may be listed once',
        ),
        (
            small(resources=[PROCESS, {**PROCESS, "id": "q"}]),
            'resources[1].name: "p" stands already at resources[0].name; it may be listed once',
        ),
        (
            small(resources=[USER, {**USER, "id": "v"}]),
            'resources[1].name: "hello" stands already at resources[0].name; it may be listed once',
        ),
        (small(tools=["a", "b", "a"]), 'tools[2]: "a" stands already at tools[0]; it may be listed once'),
        (
            process(replaces=["a", "a"]),
            'resources[1].replaces[1]: "a" stands already at resources[1].replaces[0]; it may be listed once',
        ),
        (
            artifact(tags=["a", "a"]),
            'build.artifacts[0].tags[1]: "a" stands already at build.artifacts[0].tags[0]; it may be listed once',
        ),
        (
            small(claims=[{"name": "a", "scope": "host"}] * 2),
            'claims[1]: "a", "host" stands already at claims[0]; it may be listed once',
        ),
        (
            small(accesses=[{"path": "/a", "mode": mode} for mode in ("read", "write")]),
            'accesses[1].path: "/a" stands already at accesses[0].path; it may be listed once',
        ),
        (
            small(own_secrets={"a": "/x", "b": "/x"}, secrets_owner="x"),
            'own-secrets.b: "/x" stands already at own-secrets.a; it may be listed once',
        ),
        (
            small(
                resources=[{**PROCESS, "listen": ["/run/a"]}, {**PROCESS, "id": "q", "name": "q", "listen": ["/run/a"]}]
            ),
            'resources[1].listen[0]: "/run/a" stands already at resources[0].listen[0]; it may be listed once',
        ),
    ],
)
def test_entries_that_contradict_each_other_are_one_problem(document: object, problem: str) -> None:
    assert problems(document) == [problem]


@pytest.mark.parametrize(
    ("program", "rule"),
    [
        ("./bin/run.sh", {"from": "scripts/*.sh", "to": "bin", "mode": "0755"}),
        ("./bin/deep/run", {"from": "scripts/**", "to": "bin", "mode": "0755"}),
        ("./run", {"from": "run", "to": ".", "mode": "0755"}),
    ],
)
def test_a_program_may_come_from_files(program: str, rule: dict[str, str]) -> None:
    assert parse({**process(run=[program]), "build": artifact(files=[rule])["build"]})


@pytest.mark.parametrize(
    ("program", "rule"),
    [
        ("./bin/run.sh", {"from": "scripts/*.sh", "to": "bin", "mode": "0644"}),
        ("./bin/run.sh", {"from": "scripts/*.sh", "to": "bin"}),
        ("./bin/run.py", {"from": "scripts/*.sh", "to": "bin", "mode": "0755"}),
        ("./binary/run.sh", {"from": "scripts/*.sh", "to": "bin", "mode": "0755"}),
        ("./../run.sh", {"from": "*.sh", "to": ".", "mode": "0755"}),
        ("./", {"from": "*", "to": ".", "mode": "0755"}),
    ],
)
def test_a_program_that_no_rule_of_files_can_give_is_a_problem(program: str, rule: dict[str, str]) -> None:
    (problem,) = problems({**process(run=[program]), "build": artifact(files=[rule])["build"]})
    assert problem.startswith(f'resources[1].run[0]: the bundle of "hello" for "arch" has no program "{program}"')


def test_an_account_need_not_be_a_resource_and_what_is_replaced_need_not_exist() -> None:
    assert parse(process(user="somebody-else", replaces=["gone"], run=["/usr/bin/env"]))


def test_systems_and_toolchains_must_be_pinned_ones_where_these_are_known() -> None:
    odd = artifact(system="arhc", toolchain="1.27.3")
    assert parse(odd)
    assert problems(odd, systems=["arch", "alpine"], toolchains=["1.27.2"]) == [
        'build.artifacts[0].system: no system in toolchains.toml is named "arhc"; did you mean "arch"?',
        'build.artifacts[0].toolchain: no toolchain in toolchains.toml is named "1.27.3"; did you mean "1.27.2"?',
    ]
    assert problems(artifact(), systems=[]) == [
        'build.artifacts[0].system: no system in toolchains.toml is named "arch"'
    ]


def test_wrong_values_and_wrong_references_are_reported_together_and_in_order() -> None:
    document = json.loads(SEED)
    controller = document["resources"][2]
    controller["artifact"] = "controler"
    controller["usr"] = controller.pop("user")
    document["build"]["artifacts"][0]["stripp"] = False
    document["claims"].append({"scope": "mesh"})
    document["own-secrets"]["bus"] = "${dir:mesh-stat}/bus"
    with pytest.raises(ManifestError) as caught:
        parse(document)
    assert str(caught.value).splitlines() == [
        "m.json: not a valid manifest, 6 problems:",
        '  build.artifacts[0].stripp: unknown key; did you mean "strip"?',
        "  claims[1].name: is missing",
        '  own-secrets.bus: no directory resource has the id "mesh-stat"; did you mean "mesh-state"?',
        '  resources[2].artifact: no artifact is named "controler"; did you mean "controller"?',
        "  resources[2].user: is missing",
        '  resources[2].usr: unknown key; did you mean "user"?',
    ]


def test_a_broken_declaration_does_not_make_what_refers_to_it_wrong() -> None:
    nameless = {key: value for key, value in ARTIFACT.items() if key != "name"}
    assert problems(small(build={"artifacts": [nameless]}, resources=[PROCESS])) == [
        "build.artifacts[0].name: is missing"
    ]
    directory = {**DIRECTORY, "type": "dir"}
    process = {**PROCESS, "env": {"A": "${dir:state}"}}
    assert [problem.split(":")[0] for problem in problems(small(resources=[directory, process]))] == [
        "resources[0].type"
    ]
    assert [problem.split(":")[0] for problem in problems(small(prepares=True, resources=[{"type": "proces"}]))] == [
        "resources[0].type"
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"module": "a", "module": "b"}', "has the key 'module' twice in one object"),
        (b'{"module": NaN}', "holds NaN, which is not JSON"),
        (b'{"module": -Infinity}', "holds -Infinity, which is not JSON"),
        (b"\xef\xbb\xbf{}", "starts with a byte order mark; save it as plain UTF-8"),
        (b'{"module": "\xff"}', "is not UTF-8 at byte 12"),
        (b"", "is not JSON: Expecting value at line 1, column 1"),
        (b"{} {}", "is not JSON: Extra data at line 1, column 4"),
        (b'{"module": "\\ud800"}', "is not JSON: "),
        (b"[" * 500 + b"]" * 500, "is not JSON: recursion limit exceeded"),
        (b"[" * 200_000, "is nested too deeply"),
        (b'{"version": ' + b"9" * 5000 + b"}", "Exceeds the limit"),
    ],
)
def test_what_is_not_plain_json_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(data, where="m.json")
    assert str(caught.value).startswith(f"m.json: {message}")


def test_a_manifest_over_one_mebibyte_is_refused() -> None:
    text = json.dumps(SMALL).encode()
    assert parse_manifest(text.ljust(MAX_MANIFEST_BYTES), where="m.json").module == "hello"
    with pytest.raises(ManifestError, match=r"m\.json: a manifest has at most 1048576 bytes"):
        parse_manifest(text.ljust(MAX_MANIFEST_BYTES + 1), where="m.json")


def test_a_message_holds_nothing_that_a_terminal_would_obey() -> None:
    evil = "\x1b]0;x\x07\x9b31m\u202e\x7f"
    found = problems({**small(version=evil, module=[evil], tools=[evil]), evil: {evil: evil}})
    assert len(found) == 4
    assert all(line.isprintable() for line in found)


def test_comparing_each_entry_with_each_stays_quick() -> None:
    artifacts = [{**ARTIFACT, "name": f"hello-{number}"} for number in range(4000)]
    processes = [{**PROCESS, "id": f"p{number}", "name": f"p{number}"} for number in range(4000)]
    began = time.process_time()
    found = problems(small(build={"artifacts": artifacts}, resources=processes))
    assert time.process_time() - began < 30  # minutes without a limit
    assert "resources: has more than 1000 entries" in found


def test_a_long_value_is_cut_in_the_message() -> None:
    (problem,) = problems(small(version="9" * 100_000))
    assert len(problem) < 200
    (problem,) = problems(small(version=["9" * 100_000]))
    assert len(problem) < 300


# The file system


def test_reading_a_folder_reads_its_manifest(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(SEED)
    assert read_manifest(tmp_path) == read_manifest(tmp_path / "manifest.json") == parse_manifest(SEED, where="m")


def test_a_missing_manifest_says_what_to_pass(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "x", tmp_path / "x" / "manifest.json"):
        with pytest.raises(ManifestError, match="there is no such manifest") as caught:
            read_manifest(path)
        assert caught.value.hint == "Pass a manifest.json, or a folder that holds one."


def test_a_huge_file_is_not_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "manifest.json"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(ManifestError, match="at most 1048576 bytes"):
        read_manifest(file)


def test_a_manifest_that_can_not_be_read_is_a_local_error(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(LocalFileError, match=r"could not read the manifest .*: Is a directory"):
        read_manifest(tmp_path)


def test_manifests_are_found_at_the_root_and_in_bundles(tmp_path: Path) -> None:
    for place in ("manifest.json", "bundles/b/manifest.json", "bundles/a/manifest.json", "bundles/a/x/manifest.json"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("{}")
    (tmp_path / "bundles/c/manifest.json").mkdir(parents=True)
    names = ("bundles/a/manifest.json", "bundles/b/manifest.json", "manifest.json")
    assert find_manifests(tmp_path) == tuple(tmp_path / name for name in names)
    assert find_manifests(tmp_path / "bundles/c") == ()
    assert find_manifests(tmp_path / "nowhere") == ()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, object], Path]:
    def write(name: str, document: object) -> Path:
        path = tmp_path / name
        path.write_text(json.dumps(document))
        return path

    return write


def test_the_problems_of_all_manifests_are_one_error(write: Callable[[str, object], Path]) -> None:
    good, bad, worse = write("good", small()), write("bad", small(module="X")), write("worse", [])
    assert list(read_manifests([good])) == [good]
    with pytest.raises(ManifestError) as caught:
        read_manifests([good, bad, worse])
    text = str(caught.value)
    assert f"{bad}: not a valid manifest, 1 problem:" in text
    assert f"{worse}: not a valid manifest, 1 problem:" in text
    assert str(good) not in text


def test_one_module_or_claim_in_two_manifests_is_a_problem(write: Callable[[str, object], Path]) -> None:
    claims = [{"name": "c", "scope": "mesh"}]
    first, again = write("1", small(claims=claims)), write("2", small())
    other = write("3", small(module="other", claims=claims))
    with pytest.raises(ManifestError) as caught:
        read_manifests([first, again, other])
    assert caught.value.problems == (
        f'{again}: the module "hello" is taken by {first}',
        f'{other}: the claim "c" of scope mesh is taken by {first}',
    )


# What is generated


@pytest.mark.parametrize("name", ["manifest.md", "manifest.schema.json"])
def test_reference_and_schema_are_up_to_date(name: str) -> None:
    file = reference.DOCS / name
    assert file.read_text(encoding="utf-8") == reference.GENERATED[name](), (
        f"docs/{name} is out of date; write it again with: python -m meshbuild.cli.reference"
    )


def test_the_schema_is_a_valid_one_and_takes_the_seed() -> None:
    schema = manifest_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(json.loads(SEED))
    for wrong in (small(x=1), small(module="X"), artifact(kind="image"), process(run=[]), process(env={"a b": "c"})):
        assert not validator.is_valid(wrong)


def test_every_key_has_a_meaning_and_every_object_is_closed() -> None:
    schema = manifest_schema()
    assert (schema["$schema"], schema["$id"]) == (
        "https://json-schema.org/draft/2020-12/schema",
        "urn:meshbuild:manifest:1",
    )
    for model in (schema, *schema["$defs"].values()):
        assert model["additionalProperties"] is False
        assert model["description"]
        assert all(field["description"] for field in model["properties"].values())
