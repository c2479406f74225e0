"""Same source, same bundle: one thing after the other that could change the bytes, and doesn't.

Where plain `go build` gives other bytes, and shows it within a second, that is asserted first: a condition that nobody
feels proves nothing.
docs/reproducible.md lists them.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from meshbuild.bundle import read_bundle
from meshbuild.pins import host_platform, read_pins
from meshbuild.toolchains import ensure_toolchain, user_cache
from tests.cli.conftest import write_tiny
from tests.cli.goproxy import depend, write_proxy
from tests.reproduce import compare
from tests.system.conftest import PROJECT, Checkout

if TYPE_CHECKING:
    from collections.abc import Callable

BUNDLE = "dist/tiny.one-1-arch.tar.zst"


class Conditions(NamedTuple):
    """How a build is run."""

    checkout: Checkout
    words: tuple[str, ...] = ("doit", "build", "one")
    umask: int = 0o022
    prefix: tuple[str, ...] = ()


def project(folder: Path) -> Checkout:
    """The tiny project, with a package that gcc would compile if cgo were on; on a machine without settings of Go."""
    checkout = write_tiny(folder)
    (folder / "cmd/one/net.go").write_text('package main\n\nimport _ "net"\n')
    env = {name: value for name, value in checkout.env.items() if not name.startswith("GO")}
    return Checkout(folder, {**env, "GOENV": "off"})


def content(conditions: Conditions) -> str:
    """Build, and give the content digest."""
    checkout, words, umask, prefix = conditions
    checkout.ok(*words, umask=umask, prefix=prefix)
    return read_bundle(checkout.folder / BUNDLE).content_sha256


def plain_go(conditions: Conditions) -> str:
    """The digest of what a user gets from `go build -trimpath` with the pinned Go under the same conditions."""
    pin = read_pins(PROJECT / "toolchains.toml").toolchain(None, host_platform())
    toolchain = ensure_toolchain(pin, cache=user_cache(os.environ), environ=os.environ, report=print)
    checkout = conditions.checkout
    cache = str(user_cache(os.environ) / "go-build")
    env = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOCACHE": cache, **checkout.env}
    words = [str(toolchain.go), "build", "-trimpath", "-o", str(checkout.folder / "plain"), "./cmd/one"]
    subprocess.run(words, cwd=checkout.folder, env=env, check=True)
    program = checkout.folder / "plain"
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    program.unlink()
    return digest


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The content digest under no condition at all, and the digest of plain Go's program."""
    plain = Conditions(project(tmp_path_factory.mktemp("plain") / "tiny"))
    return content(plain), plain_go(plain)


def with_env(checkout: Checkout, **more: str) -> Checkout:
    return Checkout(checkout.folder, {**checkout.env, **more})


def git_state(tiny: Checkout) -> Conditions:
    """A commit, a tag, changed and untracked files."""
    git = ("git", "-c", "user.name=t", "-c", "user.email=t@example.com")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "first"), ("tag", "v1.2.3")):
        tiny.ok(*git, *words)
    (tiny.folder / "go.sum").write_text("")
    return Conditions(tiny)


def parent_workspace(tiny: Checkout) -> Conditions:
    text = f"go 1.27\n\ngodebug default=go1.21\n\nuse ./{tiny.folder.name}\n"
    (tiny.folder.parent / "go.work").write_text(text)
    return Conditions(tiny)


def goenv_file(tiny: Checkout) -> Conditions:
    """The file that `go env -w` writes, in HOME."""
    home = tiny.folder.parent / "home"
    (home / ".config/go").mkdir(parents=True)
    (home / ".config/go/env").write_text("GOFLAGS=-ldflags=-X=main.version=wrong\n")
    env = {name: value for name, value in tiny.env.items() if name != "GOENV"}
    more = {"HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config"), "MESHBUILD_CACHE": str(user_cache(os.environ))}
    return Conditions(Checkout(tiny.folder, {**env, **more}))


def goflags(tiny: Checkout) -> Conditions:
    return Conditions(with_env(tiny, GOFLAGS="-ldflags=-X=main.version=wrong"))


def target_level(tiny: Checkout) -> Conditions:
    return Conditions(with_env(tiny, GOAMD64="v3", GOARM64="v8.1"))


def other_target(tiny: Checkout) -> Conditions:
    return Conditions(with_env(tiny, GOOS="windows", GOARCH="386"))


def experiment(tiny: Checkout) -> Conditions:
    return Conditions(with_env(tiny, GOEXPERIMENT="nogreenteagc", GOFIPS140="latest"))


def named_workspace(tiny: Checkout) -> Conditions:
    """GOWORK names a workspace."""
    workspace = tiny.folder.parent / "other.work"
    workspace.write_text(f"go 1.27\n\ngodebug default=go1.21\n\nuse ./{tiny.folder.name}\n")
    return Conditions(with_env(tiny, GOWORK=str(workspace)))


def build_cache_program(tiny: Checkout) -> Conditions:
    """GOCACHEPROG names a program that serves whatever it likes; here, one that fails."""
    return Conditions(with_env(tiny, GOCACHEPROG="/bin/false"))


def compilers_on_path(tiny: Checkout) -> Conditions:
    """A gcc and a go that fail, and cgo switched on with flags that hold paths."""
    tools = tiny.folder.parent / "tools"
    tools.mkdir()
    for name in ("gcc", "cc", "clang", "go", "ld", "as"):
        (tools / name).write_text("#!/bin/sh\nexit 1\n")
        (tools / name).chmod(0o755)
    path = f"{Path(shutil.which('doit') or '').parent}:{tools}:{tiny.env['PATH']}"
    flags = {"CGO_CFLAGS": "-I/nowhere", "CGO_LDFLAGS": "-L/nowhere", "CC": str(tools / "gcc"), "CGO_ENABLED": "1"}
    return Conditions(with_env(tiny, PATH=path, **flags))


def mode_bits(tiny: Checkout) -> Conditions:
    for file in tiny.folder.rglob("*"):
        file.chmod(0o700 if file.is_dir() or file.suffix == ".txt" else 0o600)
    return Conditions(tiny, umask=0o077)


def file_times(tiny: Checkout) -> Conditions:
    for number, file in enumerate(tiny.folder.rglob("*")):
        os.utime(file, (number << 24, number << 24))
    return Conditions(tiny)


def file_order(tiny: Checkout) -> Conditions:
    """Every folder lists its files in another order: they were made in another one."""
    for file in sorted((each for each in tiny.folder.rglob("*") if each.is_file()), reverse=True):
        shutil.move(shutil.copyfile(file, file.with_name("moved")), file)
    return Conditions(tiny)


def hard_links(tiny: Checkout) -> Conditions:
    """Files that share an inode with others, in the tree and outside it."""
    for file in list(tiny.folder.rglob("*")):
        if file.is_file():
            os.link(file, tiny.folder.parent / f"link-{file.name}-{file.parent.name}")
    return Conditions(tiny)


def other_files(tiny: Checkout) -> Conditions:
    """Files that take no part: tests, notes, what editors and systems leave."""
    for name in ("README.md", "words/words_test.go", "cmd/one/main.go~", ".DS_Store", "cmd/one/notes.txt", "plain.o"):
        (tiny.folder / name).write_text("package words\n")
    return Conditions(tiny)


def home(tiny: Checkout) -> Conditions:
    """No HOME, no USER."""
    gone = {"HOME", "USER", "LOGNAME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"}
    env = {name: value for name, value in tiny.env.items() if name not in gone}
    return Conditions(Checkout(tiny.folder, {**env, "MESHBUILD_CACHE": str(user_cache(os.environ))}))


def clock(tiny: Checkout) -> Conditions:
    faketime = shutil.which("faketime")
    assert faketime is not None, "install faketime"
    return Conditions(with_env(tiny, SOURCE_DATE_EPOCH="1"), prefix=(faketime, "-f", "+400d"))


def time_zone(tiny: Checkout) -> Conditions:
    return Conditions(with_env(tiny, TZ="Pacific/Kiritimati"))


def locale(tiny: Checkout) -> Conditions:
    return Conditions(with_env(tiny, LANG="tr_TR.UTF-8", LC_ALL="tr_TR.UTF-8", LANGUAGE="tr"))


def user(tiny: Checkout) -> Conditions:
    prefix = ("unshare", "--user", "--map-user=12345", "--map-group=12345", "--")
    if tiny.run("true", prefix=prefix).returncode != 0:
        pytest.skip("this machine allows no user namespace")
    return Conditions(with_env(tiny, USER="somebody", LOGNAME="somebody"), prefix=prefix)


def cores(tiny: Checkout) -> Conditions:
    one = str(min(os.sched_getaffinity(0)))
    return Conditions(with_env(tiny, GOMAXPROCS="1"), prefix=("taskset", "--cpu-list", one))


def shared_call(tiny: Checkout) -> Conditions:
    """`two` is built by the same compiler call."""
    return Conditions(tiny, words=("doit", "-n", "2", "build"))


def compression(tiny: Checkout) -> Conditions:
    return Conditions(with_env(tiny, MESHBUILD_COMPRESSION_LEVEL="1"))


def builder_key(tiny: Checkout) -> Conditions:
    key = tiny.folder.parent / "builder.pem"
    tiny.ok("openssl", "genpkey", "-algorithm", "ed25519", "-out", str(key))
    key.chmod(0o600)
    return Conditions(with_env(tiny, MESHBUILD_BUILDER_KEY=str(key)))


@pytest.mark.parametrize("condition", [git_state, parent_workspace, named_workspace, goenv_file, goflags])
def test_what_changes_the_bytes_of_plain_go_changes_nothing_here(
    tmp_path: Path, expected: tuple[str, str], condition: Callable[[Checkout], Conditions]
) -> None:
    conditions = condition(project(tmp_path / "tiny"))
    assert plain_go(conditions) != expected[1]
    assert content(conditions) == expected[0]


@pytest.mark.parametrize(
    "condition",
    [
        target_level,
        other_target,
        experiment,
        build_cache_program,
        compilers_on_path,
        mode_bits,
        file_times,
        file_order,
        hard_links,
        other_files,
        home,
        clock,
        time_zone,
        locale,
        user,
        cores,
        shared_call,
        compression,
        builder_key,
    ],
)
def test_what_differs_from_machine_to_machine_changes_nothing(
    tmp_path: Path, expected: tuple[str, str], condition: Callable[[Checkout], Conditions]
) -> None:
    assert content(condition(project(tmp_path / "tiny"))) == expected[0]


def test_a_folder_with_blanks_and_other_letters_changes_nothing(tmp_path: Path, expected: tuple[str, str]) -> None:
    folder = tmp_path / "with blanks" / "ünï 'quoted' ☃" / "tiny"
    assert content(Conditions(project(folder))) == expected[0]
    assert b"blanks" not in (program := unpacked(folder))
    assert str(tmp_path).encode() not in program


def unpacked(folder: Path) -> bytes:
    """The program in a project's bundle."""
    read_bundle(folder / BUNDLE, into=folder / "unpacked")
    return (folder / "unpacked/one").read_bytes()


def test_a_profile_is_source_and_nothing_else_of_that_name_is(tmp_path: Path, expected: tuple[str, str]) -> None:
    tiny = project(tmp_path / "tiny")
    (tiny.folder / "default.pgo").write_text("not the main package's")
    assert content(Conditions(tiny)) == expected[0]
    (tiny.folder / "cmd/one/default.pgo").write_text("no profile")
    done = tiny.run("doit", "build", "one")
    assert done.returncode != 0
    assert "default.pgo" in done.stderr


def test_what_else_is_in_the_module_cache_changes_nothing(tmp_path: Path) -> None:
    """A cold module cache, and one that holds later versions of the same module from an earlier build."""
    versions = ("v1.0.0", "v1.1.0", "v1.1.1-0.20260101000000-aaaaaaaaaaaa")
    proxy = write_proxy(tmp_path / "proxy", *versions)
    cache = tmp_path / "cache"
    cache.mkdir()
    for name in ("toolchains", "go-build"):
        (cache / name).symlink_to(user_cache(os.environ) / name)
    found = []
    for version, folder in ((versions[0], "a"), (versions[2], "b"), (versions[1], "c"), (versions[0], "d")):
        tiny = with_env(write_tiny(tmp_path / folder), MESHBUILD_CACHE=str(cache), **proxy)
        depend(tiny.folder, version)
        found.append(content(Conditions(tiny)))
    assert {file.name for file in (cache / "go-mod/example.com").iterdir()} == {f"dep@{each}" for each in versions}
    assert found[0] == found[3]
    assert len(set(found)) == 3


def test_make_reproduce_says_where_two_bundles_part(tmp_path: Path) -> None:
    first, second = project(tmp_path / "first"), project(tmp_path / "second")
    (second.folder / "share/doc.txt").write_text("another")
    (second.folder / "words/words.go").write_text('package words\n\nconst Name = "moon"\n')
    digests = [content(Conditions(checkout)) for checkout in (first, second)]
    digest, lines = compare(first.folder / BUNDLE, second.folder / BUNDLE)
    assert digest == digests[0] != digests[1]
    assert [line.split(":")[0] for line in lines[:2]] == ["one", "share/doc.txt"]
    assert lines[2].startswith("first differs in section ")
    assert compare(first.folder / BUNDLE, first.folder / BUNDLE) == (digest, [])


TABLE = (PROJECT / "docs/reproducible.md").read_text()


def test_each_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)(?:\[(\w+)\])?`", TABLE)
    assert len(named) > 20
    for file, test, condition in named:
        text = (PROJECT / file).read_text()
        assert f"def {test}(" in text, f"{file} has no {test}"
        assert not condition or f"def {condition}(" in text, f"{file}: {test} has no condition {condition}"


def test_each_condition_tested_here_is_on_the_page() -> None:
    for mark in (
        test_what_changes_the_bytes_of_plain_go_changes_nothing_here.pytestmark,
        test_what_differs_from_machine_to_machine_changes_nothing.pytestmark,
    ):
        for condition in mark[0].args[1]:
            assert f"[{condition.__name__}]`" in TABLE, condition.__name__
