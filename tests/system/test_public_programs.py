"""Programs that nobody here wrote, from the Go module proxy, each with a manifest beside it.

A folder of programs/ holds a program's manifest.json, its program.toml (where its source is had, how each artifact is
run and what it then prints) and, where it needs other compilers or systems than this project, a toolchains.toml.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from meshbuild.digests import Sha256
from meshbuild.pins import host_platform, read_pins
from meshbuild.toolchains import ensure_toolchain, user_cache
from tests.reproduce import HOSTILE, compare
from tests.system.conftest import PROJECT, Checkout, calls_of_go, environment, go_on_path

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.system

PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How an artifact's program is run, its exit code, and a part of what it prints."""

    prints: str
    arguments: list[str] = field(default_factory=list)
    stdin: str = ""
    exits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a program's makers published for a system: an npm package, and the sha256 of its files by artifact."""

    npm: str
    system: str
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A folder of programs/."""

    name: str
    module: str
    version: str
    runs: Mapping[str, Run]
    published: tuple[Published, ...]

    def beside(self, file: str) -> Path:
        """A file of its folder."""
        return PROGRAMS / self.name / file


def read_program(folder: Path) -> Program:
    """Read a folder's program.toml."""
    table = tomllib.loads((folder / "program.toml").read_text())
    return Program(
        name=folder.name,
        module=table["module"],
        version=table["version"],
        runs={artifact: Run(**run) for artifact, run in table["runs"].items()},
        published=tuple(Published(**published) for published in table.get("published", ())),
    )


ALL = [read_program(folder) for folder in sorted(PROGRAMS.iterdir())]
MATCHED = [program for program in ALL if program.published]
AGE = next(program for program in ALL if program.name == "age")


def download(program: Program, tmp_path: Path) -> Path:
    """The program's source from the Go module proxy; returns its folder, read-only."""
    pin = read_pins(PROJECT / "toolchains.toml").toolchain(None, host_platform())
    toolchain = ensure_toolchain(pin, cache=user_cache(os.environ), environ=os.environ, report=print)
    modules = str(tmp_path / "modules")
    env = {**environment(), "GOENV": "off", "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOMODCACHE": modules}
    words = [toolchain.go, "mod", "download", "-modcacherw", "-json", f"{program.module}@{program.version}"]
    found = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    return Path(json.loads(found.stdout)["Dir"])


def project_of(program: Program, source: Path, folder: Path) -> Path:
    """A project of the program's source and what lies beside it here; returns its folder."""
    shutil.copytree(source, folder)
    own_pins = program.beside("toolchains.toml")
    shutil.copyfile(program.beside("manifest.json"), folder / "manifest.json")
    shutil.copyfile(own_pins if own_pins.exists() else PROJECT / "toolchains.toml", folder / "toolchains.toml")
    shutil.copyfile(PROJECT / "dodo.py", folder / "dodo.py")
    return folder


def bundles(checkout: Checkout) -> dict[str, Path]:
    """The project's bundles by `artifact system`."""
    named = {}
    for file in sorted((checkout.folder / "dist").glob("*.tar.zst")):
        told = json.loads(checkout.ok("meshbuild", "inspect", str(file), "--json"))
        named[f"{told['artifact']} {told['system']}"] = file
    return named


def unpacked(checkout: Checkout, bundle: Path, into: Path) -> Path:
    """Verify a bundle and unpack it with tar into a new folder; returns the folder."""
    checkout.ok("meshbuild", "verify", str(bundle))
    into.mkdir(parents=True)
    subprocess.run(["tar", "-xf", str(bundle), "-C", str(into)], check=True)
    return into


def check_run(folder: Path, run: Run) -> None:
    """Run the one program of a bare folder with an empty environment, as its program.toml says."""
    (binary,) = (file for file in folder.iterdir() if file.is_file())
    words = [str(binary), *run.arguments]
    done = subprocess.run(words, cwd=folder, env={}, input=run.stdin, capture_output=True, text=True, check=False)
    assert done.returncode == run.exits, done
    assert run.prints in done.stdout + done.stderr, done


@pytest.fixture(scope="module")
def cold_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of its own for what is compiled, beside the user's toolchains and downloaded modules."""
    cache = tmp_path_factory.mktemp("cold")
    for name in ("toolchains", "go-mod"):
        shared = user_cache(os.environ) / name
        shared.mkdir(parents=True, exist_ok=True)
        (cache / name).symlink_to(shared)
    return cache


@pytest.mark.parametrize("program", [each for each in ALL if not each.published], ids=lambda program: program.name)
def test_it_builds_twice_the_same_and_runs_in_a_bare_folder(program: Program, tmp_path: Path, cold_cache: Path) -> None:
    source = download(program, tmp_path)
    plain = Checkout(project_of(program, source, tmp_path / "plain"), environment())
    plain.ok("doit", "build")
    home = tmp_path / "home"
    home.mkdir()
    hostile = Checkout(
        project_of(program, source, tmp_path / "with blanks" / "ünï ☃" / "deep"),
        environment(**HOSTILE, HOME=str(home), GOWORK=str(tmp_path / "go.work"), MESHBUILD_CACHE=str(cold_cache)),
    )
    one_core = ("taskset", "--cpu-list", str(min(os.sched_getaffinity(0))))
    hostile.ok("doit", "build", umask=0o077, prefix=one_core)

    first, second = bundles(plain), bundles(hostile)
    assert {name.split()[0] for name in first} == set(program.runs)
    assert first.keys() == second.keys()
    for name, bundle in first.items():
        assert compare(bundle, second[name])[1] == []
        check_run(unpacked(plain, bundle, tmp_path / "bare" / name), program.runs[name.split()[0]])
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("program", MATCHED, ids=lambda program: program.name)
def test_it_builds_to_the_bytes_that_its_makers_published(program: Program, tmp_path: Path) -> None:
    source = download(program, tmp_path)
    project = Checkout(project_of(program, source, tmp_path / "project"), environment())
    project.ok("doit", "build")
    built = bundles(project)
    wanted = {f"{name} {each.system}": digest for each in program.published for name, digest in each.files.items()}
    folders = {name: unpacked(project, bundle, tmp_path / "bare" / name) for name, bundle in built.items()}
    assert {name: Sha256.of_file(folder / name.split()[0]) for name, folder in folders.items()} == wanted
    for artifact, run in program.runs.items():
        check_run(folders[f"{artifact} arch"], run)


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm, which fetches what was published, isn't here")
@pytest.mark.parametrize(
    "published", [each for program in MATCHED for each in program.published], ids=lambda published: published.npm
)
def test_the_digests_are_those_of_the_published_files(published: Published, tmp_path: Path) -> None:
    packed = ["npm", "pack", "--silent", "--cache", str(tmp_path / "npm"), published.npm]
    name = subprocess.run(packed, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()
    subprocess.run(["tar", "-xzf", name], cwd=tmp_path, check=True)
    files = (tmp_path / "package" / "bin").iterdir()
    assert {file.name: Sha256.of_file(file) for file in files} == published.files


@pytest.mark.parametrize("go", ["any", "none", "failing"])
def test_it_publishes_fetches_and_runs_whatever_go_is_on_path(tmp_path: Path, go: str) -> None:
    source = project_of(AGE, download(AGE, tmp_path), tmp_path / "age")
    age = Checkout(source, environment() if go == "any" else go_on_path(tmp_path, go))
    assert "built age:age:arch" in age.ok("doit", "build")
    assert "nothing to do: 3 up to date" in age.ok("doit", "build")
    age.ok("meshbuild", "store", "init")
    age.ok("doit", "push")
    fetched = json.loads(age.ok("meshbuild", "fetch", "age", "--json"))
    programs = {
        artifact["artifact"]: Path(artifact["folder"]) / artifact["binary"] for artifact in fetched["artifacts"]
    }
    assert age.ok(str(programs["age"]), "--version").strip() == AGE.version
    key = age.folder / "key.txt"
    age.ok(str(programs["age-keygen"]), "-o", str(key))
    assert "AGE-SECRET-KEY-1" in key.read_text()
    assert calls_of_go(tmp_path) <= {"env GOPROXY"}
