"""What is read out of Go programs is what Go's own tools say of them; damaged and hostile ones get an answer too."""

from __future__ import annotations

import json
import os
import random
import re
import struct
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from elftools.elf.elffile import ELFFile

from meshbuild.errors import LocalFileError
from meshbuild.goprogram import ASSEMBLY, COMPILER, package_of, parse_modinfo, read_go_program
from meshbuild.pins import host_platform, read_pins
from meshbuild.provenance import GoModule, parse_build_info
from meshbuild.toolchains import ensure_toolchain, user_cache

if TYPE_CHECKING:
    from meshbuild.toolchains import Toolchain

PROJECT = Path(__file__).parents[2]
MAIN = """package main

import (
	"fmt"

	dotted "example.com/sizes/pkg.v2"
)

type pair[T any] struct{ first, second T }

func (p pair[T]) String() string { return fmt.Sprint(p.first, p.second) }

func main() { fmt.Println(pair[dotted.Name]{"a", "b"}, dotted.Say("x")) }
"""
DOTTED = """package pkg

import "fmt"

type Name string

//go:noinline
func Say(text string) string { return fmt.Sprint("say ", text) }
"""


@pytest.fixture(scope="module")
def go() -> Toolchain:
    pin = read_pins(PROJECT / "toolchains.toml").toolchain(None, host_platform())
    return ensure_toolchain(pin, cache=user_cache(os.environ), environ=os.environ, report=print)


def run_go(go: Toolchain, folder: Path, *argv: str, **more: str) -> str:
    env = {
        "HOME": str(folder),
        "GOCACHE": str(user_cache(os.environ) / "go-build"),
        "GOENV": "off",
        "GOTOOLCHAIN": "local",
        "GOPROXY": "off",
        "CGO_ENABLED": "0",
        "GOOS": "linux",
        **more,
    }
    done = subprocess.run([go.go, *argv], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def programs(go: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One program: stripped, with its symbols, and for a machine of 32 bits."""
    folder = tmp_path_factory.mktemp("sizes")
    (folder / "pkg.v2").mkdir()
    (folder / "go.mod").write_text("module example.com/sizes\n\ngo 1.26\n")
    (folder / "main.go").write_text(MAIN)
    (folder / "pkg.v2/pkg.go").write_text(DOTTED)
    build = ("build", "-trimpath", "-buildvcs=false", "-o")
    run_go(go, folder, *build, "stripped", "-ldflags=-s -w", ".")
    run_go(go, folder, *build, "whole", ".")
    run_go(go, folder, *build, "arm", "-ldflags=-s -w", ".", GOARCH="arm")
    return {name: folder / name for name in ("stripped", "whole", "arm")}


def test_the_build_information_is_what_go_says(go: Toolchain, programs: dict[str, Path]) -> None:
    for program in programs.values():
        (said,) = json.loads(f"[{run_go(go, program.parent, 'version', '-m', '-json', program.name)}]")
        expected = parse_build_info(json.dumps(said).encode())
        found = read_go_program(program).build_info
        assert (found.go_version, found.package, found.main) == (
            expected.go_version,
            expected.package,
            GoModule("example.com/sizes", "(devel)"),
        )
        assert dict(found.settings).keys() == dict(expected.settings).keys()
        assert dict(found.settings)["GOARCH"] == dict(expected.settings)["GOARCH"]


def test_the_sizes_are_those_of_the_symbols(go: Toolchain, programs: dict[str, Path]) -> None:
    """`go tool nm` reads the symbol table, which the stripped program doesn't have."""
    expected = Counter[str]()
    for line in run_go(go, programs["whole"].parent, "tool", "nm", "-size", "whole").splitlines():
        fields = re.fullmatch(r"\s*[0-9a-f]+\s+(\d+) [Tt] (\S.*)", line)
        if fields:
            expected[package_of(fields[2])] += int(fields[1])
    assert expected["main"] > 0
    whole, stripped = read_go_program(programs["whole"]), read_go_program(programs["stripped"])
    assert whole.code == stripped.code
    # A symbol ends at its last instruction, the table's entry where the next one begins: up to 31 bytes of padding.
    assert whole.code.keys() == {name for name, size in expected.items() if size}
    for name, size in whole.code.items():
        assert expected[name] <= size, name
    assert sum(whole.code.values()) <= whole.sections[".text"]
    assert sum(whole.code.values()) >= whole.sections[".text"] - 64
    assert {"main", "example.com/sizes/pkg.v2", "fmt", "runtime", COMPILER, ASSEMBLY} <= whole.code.keys()


def test_a_program_of_32_bits(programs: dict[str, Path]) -> None:
    found = read_go_program(programs["arm"])
    assert found.code["example.com/sizes/pkg.v2"] > 0
    assert found.sections[".text"] - 64 <= sum(found.code.values()) <= found.sections[".text"]


def test_the_sections_are_the_files(programs: dict[str, Path]) -> None:
    found = read_go_program(programs["stripped"])
    assert found.size_bytes == programs["stripped"].stat().st_size
    assert 0 <= found.size_bytes - sum(found.sections.values()) < 64 << 10
    assert ".bss" not in found.sections


@pytest.mark.parametrize(
    ("function", "package"),
    [
        ("main.main", "main"),
        ("net/http.(*Client).Do", "net/http"),
        ("gopkg.in/yaml%2ev3.Unmarshal", "gopkg.in/yaml.v3"),
        ("example.com/a.F[go.shape.struct { example.com/b/c.X }]", "example.com/a"),
        ("example.com/a.(*T[...]).F.func1", "example.com/a"),
        ("github.com/x/y/v2.init", "github.com/x/y/v2"),
        ("type:.eq.example.com/a.T", COMPILER),
        ("go:textfipsstart", COMPILER),
        ("memeqbody", ASSEMBLY),
        ("_rt0_amd64_linux", ASSEMBLY),
        (".weird", ASSEMBLY),
        ("", ASSEMBLY),
    ],
)
def test_the_package_of_a_function(function: str, package: str) -> None:
    assert package_of(function) == package


def test_the_lines_of_the_build_information() -> None:
    text = (
        "path\texample.com/x/cmd/y\nmod\texample.com/x\t(devel)\t\ndep\texample.com/a\tv1.0.0\th1:aaa=\n"
        'dep\texample.com/b\tv1.1.0\n=>\t./b\t\t\nbuild\t-ldflags="-s -w -X main.v=1"\nbuild\tGOARCH=amd64\n'
    )
    info = parse_modinfo("go1.27.2", text)
    assert info.package == "example.com/x/cmd/y"
    assert info.main == GoModule("example.com/x", "(devel)")
    assert info.modules == (
        GoModule("example.com/a", "v1.0.0", "h1:aaa="),
        GoModule("example.com/b", "v1.1.0", replacement=GoModule("./b", "")),
    )
    assert info.settings == (("-ldflags", '"-s -w -X main.v=1"'), ("GOARCH", "amd64"))
    with pytest.raises(ValueError, match="has the line"):
        parse_modinfo("go1.27.2", "path\tx\nnonsense\n")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it is empty"),
        (b"#!/bin/sh\n", "isn't an ELF program"),
        (b"\x7fELF", "isn't an ELF program"),
        (b"\x7fELF\x02\x01\x01" + b"\xff" * 200, "it has 65535 sections, more than 1000"),
        (b"\x7fELF\x02\x02\x01" + b"\0" * 200, "for a big-endian machine"),
    ],
)
def test_what_is_no_program(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read_go_program(tmp_path / "x")


def test_what_is_no_go_program() -> None:
    with pytest.raises(ValueError, match="isn't a Go program"):
        read_go_program(Path("/bin/ls").resolve())


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LocalFileError):
        read_go_program(tmp_path / "x")


def offset_of(program: Path, section: str) -> int:
    with program.open("rb") as file:
        return int(ELFFile(file).get_section_by_name(section)["sh_offset"])


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ((".go.buildinfo", 0), b"X", "build information is of another form"),
        ((".go.buildinfo", 15), b"\x00", "build information is of another form"),
        ((".go.buildinfo", 32), b"\xff\xff\xff\xff\xff", "build information is damaged"),
        ((".go.buildinfo", 32), b"\xff\x7f", "goes on behind its end"),
        ((".gopclntab", 0), b"\xfb\xff\xff\xff", "table of functions is none"),
        ((".gopclntab", 7), b"\x10", "table of functions is none"),
        ((".gopclntab", 8), struct.pack("<Q", 1 << 40), "functions, more than"),
        ((".gopclntab", 8), struct.pack("<Q", 3_999_999), "a part lies outside"),
        ((".gopclntab", 8 + 3 * 8), struct.pack("<Q", 1 << 62), "a part lies outside"),
        ((".gopclntab", 8 + 7 * 8), struct.pack("<Q", 1 << 62), "a part lies outside"),
    ],
)
def test_a_lie_is_found(
    tmp_path: Path, programs: dict[str, Path], place: tuple[str, int], value: bytes, message: str
) -> None:
    data = bytearray(programs["stripped"].read_bytes())
    section, at = place
    begin = offset_of(programs["stripped"], section) + at
    data[begin : begin + len(value)] = value
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read_go_program(tmp_path / "x")


def test_whatever_is_changed_gets_an_answer(tmp_path: Path, programs: dict[str, Path]) -> None:
    """Bytes changed at random where they are read, and files cut off: a result or a ValueError, never another error."""
    good = programs["stripped"].read_bytes()
    chance = random.Random(1)  # noqa: S311 - not for secrets
    sections = int.from_bytes(good[40:48], "little")
    places = [0, sections, *(offset_of(programs["stripped"], name) for name in (".go.buildinfo", ".gopclntab"))]
    file = tmp_path / "x"
    answers = Counter[str]()
    for _ in range(300):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            at = chance.choice(places) + chance.randrange(300)
            if at < len(data):
                data[at] = chance.randrange(256)
        if chance.random() < 0.2:
            del data[chance.randrange(len(data)) :]
        file.write_bytes(data)
        try:
            read_go_program(file)
        except ValueError:
            answers["refused"] += 1
        else:
            answers["read"] += 1
    assert min(answers["refused"], answers["read"]) > 10
