"""Every shape of Go source, with the real compiler: what builds, what is refused before compiling, what is an input."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import zipfile
from typing import TYPE_CHECKING

import pytest

from meshbuild.build import BuildSite, PreparedBuild, compile_build, prepare_build
from meshbuild.errors import CompileError, MeshbuildError, ModuleDownloadError, SourceError, ToolchainTooOldError
from meshbuild.pins import host_platform
from meshbuild.settings import Settings, load_settings
from meshbuild.targets import Target, inputs, plan_target, plan_tasks, read_targets
from meshbuild.toolchains import Toolchain, ensure_toolchain, user_cache
from meshbuild.uptodate import DigestMemory, Snapshot, digest_inputs
from tests.system.conftest import PROJECT

if TYPE_CHECKING:
    from pathlib import Path

GO_MOD = "module example.com/m\n\ngo 1.26\n"
C = 'import "C"\n'
MAIN = "package main\n\nfunc main() { print(word) }\n"


class Shape:
    """A project with one artifact, `from` as each test says."""

    def __init__(self, folder: Path) -> None:
        self.outside = folder
        self.folder = folder / "project"
        self.folder.mkdir()
        shutil.copyfile(PROJECT / "toolchains.toml", self.folder / "toolchains.toml")

    @property
    def settings(self) -> Settings:
        return load_settings(self.folder, {})

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            file = self.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def manifest(self, source: str = ".", *, folder: str = ".", **more: object) -> None:
        entry = {"name": "app", "kind": "bundle", "language": "go", "system": "arch", "binary": "app"}
        build = {"artifacts": [{**entry, "from": source, **more}]}
        text = json.dumps({"module": "shape", "version": "1", "slug": "shape", "build": build})
        self.write({f"{folder}/manifest.json": text})

    def publish(self, module: str, files: dict[str, str]) -> str:
        """Put version 1.0.0 of a Go module into the module proxy that the builds see; returns its lines of go.sum."""
        folder = self.outside / "proxy" / re.sub("[A-Z]", lambda match: f"!{match[0].lower()}", module) / "@v"
        folder.mkdir(parents=True)
        go_mod = f"module {module}\n\ngo 1.26\n"
        (folder / "v1.0.0.info").write_text('{"Version": "v1.0.0"}')
        (folder / "v1.0.0.mod").write_text(go_mod)
        inside = {f"{module}@v1.0.0/{name}": text for name, text in {"go.mod": go_mod, **files}.items()}
        with zipfile.ZipFile(folder / "v1.0.0.zip", "w") as archive:
            for name, text in inside.items():
                archive.writestr(name, text)
        return f"{module} v1.0.0 {h1(inside)}\n{module} v1.0.0/go.mod {h1({'go.mod': go_mod})}\n"

    def prepare(self) -> tuple[Target, PreparedBuild]:
        [target] = read_targets(self.settings)
        proxy = self.outside / "proxy"
        environ = {**os.environ, "GOPROXY": f"file://{proxy}" if proxy.exists() else "off", "GOSUMDB": "off"}
        plan = plan_target(target, environ)
        cache = user_cache(os.environ)
        if proxy.exists():  # what it gave stays out of the user's cache
            compiled, cache = cache / "go-build", self.outside / "cache"
            cache.mkdir(exist_ok=True)
            if not (cache / "go-build").exists():
                (cache / "go-build").symlink_to(compiled)
        site = BuildSite(manifest_dir=target.manifest_dir, cache=cache, work=self.outside / "work")
        return target, prepare_build(plan, site=site, toolchain=self._toolchain(target), environ=environ)

    def run(self) -> str:
        """Build the program, run it, and return what it prints."""
        _, prepared = self.prepare()
        binary = compile_build(prepared).binary
        return subprocess.run([binary], capture_output=True, check=True, text=True).stderr

    def state(self) -> dict[str, str]:
        """Every input with its digest, as a record holds them."""
        target, prepared = self.prepare()
        names = inputs(self.settings, target, prepared.plan, prepared.packages)
        return digest_inputs(names, self.folder, Snapshot(DigestMemory(self.outside / "digests.json")))

    def still(self, before: dict[str, str]) -> bool:
        """Whether a record with these inputs would count as up to date now, without a look at the source anew."""
        return digest_inputs(before, self.folder, Snapshot(DigestMemory(self.outside / "none.json"))) == before

    def refusal(self, kind: type[MeshbuildError] = SourceError) -> str:
        """The message and hint with which the source is refused before anything is compiled."""
        with pytest.raises(kind) as caught:
            self.prepare()
        return f"{caught.value}\n{caught.value.hint or ''}"

    def compile_refusal(self) -> str:
        _, prepared = self.prepare()
        with pytest.raises(CompileError) as caught:
            compile_build(prepared)
        return f"{caught.value}\n{caught.value.hint or ''}"

    @staticmethod
    def _toolchain(target: Target) -> Toolchain:
        pin = target.pins.toolchain(None, host_platform())
        return ensure_toolchain(pin, cache=user_cache(os.environ), environ=os.environ, report=print)


def h1(files: dict[str, str]) -> str:
    """Go's own digest of a module's files (golang.org/x/mod/sumdb/dirhash, Hash1)."""
    lines = [f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n" for name, text in sorted(files.items())]
    return "h1:" + base64.b64encode(hashlib.sha256("".join(lines).encode()).digest()).decode()


@pytest.fixture
def shape(tmp_path: Path) -> Shape:
    return Shape(tmp_path)


def imports(*packages: str, say: str = '""') -> str:
    """A main package that imports packages and prints an expression."""
    lines = "".join(f'\t_ "{package}"\n' for package in packages[1:])
    named = f'\t. "{packages[0]}"\n' if packages else ""
    return f"package main\n\nimport (\n{named}{lines})\n\nfunc main() {{ print({say}) }}\n"


# Several Go modules


def test_several_go_mod_files_side_by_side(shape: Shape) -> None:
    shape.write({"a/go.mod": GO_MOD, "a/main.go": 'package main\n\nfunc main() { print("a") }\n'})
    shape.write({"b/go.mod": GO_MOD, "b/main.go": 'package main\n\nfunc main() { print("b") }\n'})
    shape.manifest("b")
    assert shape.run() == "b"
    assert not [name for name in shape.state() if ":a" in name]


def test_a_package_two_go_modules_deep_belongs_to_the_innermost(shape: Shape) -> None:
    shape.write({"go.mod": GO_MOD, "sub/go.mod": GO_MOD.replace("/m", "/m/sub")})
    shape.write(
        {
            "sub/deep/go.mod": GO_MOD.replace("/m", "/m/sub/deep"),
            "sub/deep/word/x.go": 'package word\n\nconst Name = "deep"\n',
        }
    )
    shape.write({"sub/deep/cmd/main.go": imports("example.com/m/sub/deep/word", say="Name")})
    shape.manifest("sub/deep/cmd")
    assert shape.run() == "deep"
    before = shape.state()
    shape.write({"sub/deep/cmd/go.mod": GO_MOD})
    assert not shape.still(before)
    assert "a Go module of its own, nested" in shape.refusal()


def test_a_manifest_below_its_go_mod(shape: Shape) -> None:
    shape.write({"go.mod": GO_MOD, "words/x.go": 'package words\n\nconst Name = "above"\n'})
    shape.write({"bundles/app/cmd/main.go": imports("example.com/m/words", say="Name")})
    shape.manifest("cmd", folder="bundles/app")
    assert shape.run() == "above"
    before = shape.state()
    assert {"file:go.mod", "package:words", "package:bundles/app/cmd", "file:go.work"} <= before.keys()
    shape.write({"go.work": "go 1.26\n\nuse .\n"})
    assert not shape.still(before)
    assert shape.prepare()[1].plan.source.workspace == "go.work"


def test_a_package_of_a_nested_go_module_is_not_there_and_the_message_says_why(shape: Shape) -> None:
    shape.write({"go.mod": GO_MOD, "main.go": imports("example.com/m/sub/x")})
    shape.write({"sub/go.mod": GO_MOD, "sub/x/x.go": "package x\n"})
    shape.manifest()
    text = shape.refusal()
    assert "main.go:4:2: cannot find module providing package example.com/m/sub/x" in text
    assert "isn't a part of the Go module: a go.mod lies between" in text


# Workspaces

LIB = {"lib/go.mod": "module example.com/lib\n\ngo 1.26\n", "lib/lib.go": 'package lib\n\nconst Name = "lib"\n'}


def workspace(shape: Shape) -> None:
    shape.write({"svc/go.mod": GO_MOD, "svc/main.go": imports("example.com/lib", say="Name"), **LIB})
    shape.write({"go.work": "go 1.26\n\nuse (\n\t./svc\n\t./lib\n)\n"})
    shape.manifest("svc")


def test_a_workspace_in_the_tree_is_used_and_all_of_it_is_an_input(shape: Shape) -> None:
    workspace(shape)
    shape.write({"third/go.mod": "module example.com/third\n\ngo 1.26\n", "third/x.go": "package third\n"})
    shape.write({"go.work": "go 1.26\n\nuse (\n\t./svc\n\t./lib\n\t./third\n)\n"})
    assert shape.run() == "lib"
    before = shape.state()
    used = {f"file:{folder}/{name}" for folder in ("svc", "lib", "third") for name in ("go.mod", "go.sum")}
    assert used | {"file:go.work", "file:go.work.sum", "file:vendor/modules.txt", "package:lib"} <= before.keys()
    shape.write({"third/go.mod": "module example.com/third\n\ngo 1.25\n"})  # gives no package, but versions
    assert not shape.still(before)


def test_a_workspace_that_does_not_use_the_module_is_ignored_until_it_does(shape: Shape) -> None:
    workspace(shape)
    shape.write({"go.work": "go 1.26\n\nuse ./lib\n", "svc/main.go": 'package main\n\nfunc main() { print("svc") }\n'})
    assert shape.run() == "svc"
    before = shape.state()
    assert "file:lib/go.mod" not in before
    shape.write({"go.work": "go 1.26\n\nuse ./lib\nuse ./svc\n"})
    assert not shape.still(before)


def test_a_workspace_above_the_module_is_ignored(shape: Shape) -> None:
    shape.write({"bundles/app/go.mod": GO_MOD, "bundles/app/main.go": imports("example.com/lib", say="Name"), **LIB})
    shape.write({"go.work": "go 1.26\n\nuse ./bundles/app\nuse ./lib\n"})
    shape.manifest(folder="bundles/app")
    text = shape.refusal()
    assert "cannot find module providing package example.com/lib" in text
    assert f"{shape.folder}/go.work isn't used" in text


def test_a_workspace_with_a_vendor_folder(shape: Shape) -> None:
    workspace(shape)
    shape.write({"go.work": "go 1.26\n\nuse ./svc\n\nreplace example.com/lib => ../nowhere\n"})
    shape.write({"svc/go.mod": f"{GO_MOD}\nrequire example.com/lib v1.0.0\n"})
    shape.write({"vendor/example.com/lib/lib.go": 'package lib\n\nconst Name = "vendored"\n'})
    listed = "# example.com/lib v1.0.0 => ../nowhere\n## explicit\nexample.com/lib\n# example.com/lib => ../nowhere\n"
    shape.write({"vendor/modules.txt": f"## workspace\n{listed}"})
    assert shape.run() == "vendored"
    assert "file:vendor/modules.txt" in shape.state()


def test_replace_lines_of_a_workspace(shape: Shape) -> None:
    workspace(shape)
    shape.write({"go.work": "go 1.26\n\nuse ./svc\n\nreplace example.com/lib => ./lib\n"})
    shape.write({"svc/go.mod": f"{GO_MOD}\nrequire example.com/lib v1.0.0\n"})
    assert shape.run() == "lib"
    assert "file:lib/go.mod" in shape.state()


def test_a_workspace_that_leads_outside_is_refused(shape: Shape) -> None:
    workspace(shape)
    shape.write({"../elsewhere/go.mod": GO_MOD, "../linked/go.mod": GO_MOD})
    (shape.folder / "inside").symlink_to("../linked")
    shape.write({"go.work": f"go 1.26\n\nuse ./svc\nuse ../elsewhere\nuse {shape.folder}/lib\nuse ./inside\n"})
    text = shape.refusal()
    assert f"go.work: use ../elsewhere leads to {shape.outside}/elsewhere" in text
    assert f"go.work: use {shape.folder}/lib is an absolute path" in text
    assert f"go.work: use ./inside leads to {shape.outside}/linked by a link" in text
    assert "go work vendor" in text


# Replacements


def replaced(shape: Shape, new: str, folder: str = ".") -> None:
    shape.write({f"{folder}/go.mod": f"{GO_MOD}\nrequire example.com/lib v1.2.3\n\nreplace example.com/lib => {new}\n"})
    shape.write({f"{folder}/main.go": imports("example.com/lib", say="Name")})
    shape.manifest(folder=folder)


def test_a_local_replace_is_built_from_and_its_files_are_inputs(shape: Shape) -> None:
    replaced(shape, "./lib")
    shape.write(LIB)
    assert shape.run() == "lib"
    before = shape.state()
    shape.write({"lib/more.go": "package lib\n"})
    assert not shape.still(before)
    shape.write({"lib/more.go": "", "lib/go.mod": "module example.com/lib\n\ngo 1.25\n"})
    (shape.folder / "lib/more.go").unlink()
    assert not shape.still(before)


def test_files_that_a_module_in_the_tree_embeds_are_inputs(shape: Shape) -> None:
    replaced(shape, "./lib")
    shape.write({**LIB, "lib/lib.go": 'package lib\n\nimport _ "embed"\n\n//go:embed name.txt\nvar Name string\n'})
    shape.write({"lib/name.txt": "embedded"})
    assert shape.run() == "embedded"
    before = shape.state()
    assert "embed:lib:name.txt" in before
    shape.write({"lib/name.txt": "changed"})
    assert not shape.still(before)


def test_a_replace_may_leave_the_module_but_not_the_project(shape: Shape) -> None:
    replaced(shape, "../../lib", "bundles/app")
    shape.write(LIB)
    assert shape.run() == "lib"
    assert {"file:lib/go.mod", "package:lib"} <= shape.state().keys()
    shutil.move(shape.folder / "lib", shape.outside / "lib")
    replaced(shape, "../../../lib", "bundles/app")
    text = shape.refusal()
    assert f"bundles/app/go.mod: replace example.com/lib => ../../../lib leads to {shape.outside}/lib" in text
    assert "others get other bytes" in text
    assert "go mod vendor" in text


def test_a_git_checkout_around_the_project_is_the_tree(shape: Shape) -> None:
    replaced(shape, "../lib")
    shutil.move(shape.folder / "go.mod", shape.folder / "go.mod")
    shape.write({f"../{name}": text for name, text in LIB.items()})
    assert "isn't all in" in shape.refusal()
    (shape.outside / ".git").mkdir()
    assert shape.run() == "lib"


def test_an_absolute_replace_is_refused_even_inside_the_tree(shape: Shape) -> None:
    shape.write(LIB)
    replaced(shape, f"{shape.folder}/lib")
    assert "is an absolute path, which is another folder on another machine" in shape.refusal()


def test_a_replace_of_a_module_that_takes_no_part_is_let_alone(shape: Shape) -> None:
    shape.write({"go.mod": f"{GO_MOD}\nreplace example.com/other => ../../other\n"})
    shape.write({"main.go": 'package main\n\nfunc main() { print("alone") }\n'})
    shape.manifest()
    assert shape.run() == "alone"


def test_a_replace_that_names_nothing_is_an_error_of_gos(shape: Shape) -> None:
    replaced(shape, "./nowhere")
    assert "replacement directory ./nowhere does not exist" in shape.refusal()


def test_a_replaced_module_that_needs_a_newer_go(shape: Shape) -> None:
    replaced(shape, "./lib")
    shape.write({**LIB, "lib/go.mod": "module example.com/lib\n\ngo 1.99\n"})
    assert "requires go >= 1.99" in shape.refusal(ToolchainTooOldError)


# Vendor folders


def vendored(shape: Shape) -> None:
    shape.write(
        {"go.mod": f"{GO_MOD}\nrequire example.com/Lib v1.0.0\n", "main.go": imports("example.com/Lib", say="Name")}
    )
    shape.write({"vendor/example.com/Lib/lib.go": 'package lib\n\nconst Name = "vendored"\n'})
    shape.write({"vendor/modules.txt": "# example.com/Lib v1.0.0\n## explicit\nexample.com/Lib\n"})
    shape.manifest()


def test_a_vendor_folder_needs_no_network_and_its_files_are_inputs(shape: Shape) -> None:
    vendored(shape)
    assert shape.run() == "vendored"
    before = shape.state()
    assert {"file:vendor/modules.txt", "package:vendor/example.com/Lib"} <= before.keys()
    shape.write({"vendor/example.com/Lib/lib.go": 'package lib\n\nconst Name = "changed"\n'})
    assert not shape.still(before)


def test_a_vendor_folder_that_does_not_fit_go_mod_says_how_to_mend_it(shape: Shape) -> None:
    vendored(shape)
    shape.write({"go.mod": f"{GO_MOD}\nrequire example.com/Lib v1.0.1\n"})
    text = shape.refusal()
    assert "inconsistent vendoring" in text
    assert "Run `go mod vendor`, and commit the vendor folder." in text


def test_a_package_missing_in_the_vendor_folder(shape: Shape) -> None:
    vendored(shape)
    shutil.rmtree(shape.folder / "vendor/example.com")
    text = shape.refusal()
    assert "example.com/Lib" in text
    assert "Run `go mod vendor`" in text


def test_the_vendor_folder_of_a_replaced_module_makes_a_path_outside_harmless(shape: Shape) -> None:
    vendored(shape)
    shape.write({"go.mod": f"{GO_MOD}\nrequire example.com/Lib v1.0.0\n\nreplace example.com/Lib => ../../lib\n"})
    line = "# example.com/Lib v1.0.0 => ../../lib\n## explicit\nexample.com/Lib\n# example.com/Lib => ../../lib\n"
    shape.write({"vendor/modules.txt": line})
    assert shape.run() == "vendored"


# Links


def test_links_that_lead_outside_are_refused_all_at_once(shape: Shape) -> None:
    shape.write({"go.mod": GO_MOD, "main.go": imports("example.com/m/linked", "example.com/m/half")})
    shape.write({"../linked/x.go": "package linked\n", "../y.go": "package half\n", "half/x.go": "package half\n"})
    (shape.folder / "linked").symlink_to("../linked")
    (shape.folder / "half/y.go").symlink_to("../../y.go")
    shape.manifest()
    text = shape.refusal()
    assert f"{shape.folder}/linked leads to {shape.outside}/linked" in text
    assert f"{shape.folder}/half/y.go leads to {shape.outside}/y.go" in text


def test_links_inside_the_tree_are_followed_and_their_files_are_inputs(shape: Shape) -> None:
    shape.write({"go.mod": GO_MOD, "main.go": imports("example.com/m/linked", say="Name")})
    shape.write({"real/x.go": 'package linked\n\nconst Name = "real"\n'})
    (shape.folder / "linked").symlink_to("real")
    shape.manifest()
    assert shape.run() == "real"
    before = shape.state()
    shape.write({"real/x.go": 'package linked\n\nconst Name = "other"\n'})
    assert not shape.still(before)


def test_go_mod_itself_may_not_lie_outside(shape: Shape) -> None:
    shape.write({"../go.mod": GO_MOD, "main.go": imports()})
    (shape.folder / "go.mod").symlink_to("../go.mod")
    shape.manifest()
    assert f"{shape.folder}/go.mod leads to {shape.outside}/go.mod" in shape.refusal()


def test_a_go_module_reached_by_a_link_is_refused(shape: Shape) -> None:
    shape.write({"real/deep/go.mod": GO_MOD, "real/deep/main.go": imports()})
    (shape.folder / "link").symlink_to("real/deep")
    shape.manifest("link")
    assert "reached by a link" in shape.refusal()


# Embedded files

EMBED = """package main

import "embed"

//go:embed {}
var files embed.FS

func main() {{
	data, _ := files.ReadFile("static/a.txt")
	print(string(data))
}}
"""


def embedding(shape: Shape, patterns: str) -> None:
    shape.write({"go.mod": GO_MOD, "main.go": EMBED.format(patterns), "static/a.txt": "a", "static/.hidden/b.txt": "b"})
    shape.manifest()


@pytest.mark.parametrize(
    "pattern", ["static", "all:static", "static/*", "static/[^b].txt", "static/\\a.txt", '"static"']
)
def test_embedded_files_are_inputs_however_the_pattern_names_them(shape: Shape, pattern: str) -> None:
    embedding(shape, pattern)
    assert shape.run() == "a"
    before = shape.state()
    shape.write({"static/a.txt": "other"})
    assert not shape.still(before)
    shape.write({"static/a.txt": "a"})
    assert shape.still(before)
    shape.write({"static/.hidden/c.txt": "new"})
    assert shape.still(before) == (pattern not in {"all:static", "static/*"})


def test_what_go_drops_from_an_embedded_folder_is_refused_by_name(shape: Shape) -> None:
    embedding(shape, "all:static")
    shape.write(
        {"static/nested/go.mod": GO_MOD, "static/nested/page.html": "", "static/c:d/x.txt": "", "real/x.txt": ""}
    )
    shape.write({"static/.git/HEAD": "not missed by anybody"})
    (shape.folder / "static/link.txt").symlink_to("a.txt")
    (shape.folder / "static/folder").symlink_to("../real")
    os.mkfifo(shape.folder / "static/pipe")
    text = shape.refusal()
    for name, why in {
        "link.txt": "it is a link",
        "folder": "it is a link",
        "pipe": "it is no regular file",
        "nested/page.html": "it is in a Go module of its own",
        "c:d/x.txt": "a Go module can't have files of such a name",
    }.items():
        assert f"example.com/m: //go:embed all:static would leave out {shape.folder}/static/{name}: {why}" in text
    assert ".git" not in text


def test_hidden_files_are_left_out_as_the_language_says(shape: Shape) -> None:
    embedding(shape, "static")
    (shape.folder / "static/.link").symlink_to("a.txt")
    assert shape.run() == "a"


def test_a_link_named_by_a_pattern_itself_is_refused_by_go(shape: Shape) -> None:
    embedding(shape, "static link.txt")
    (shape.folder / "link.txt").symlink_to("static/a.txt")
    assert "main.go:5:19: pattern link.txt: cannot embed irregular file link.txt" in shape.refusal()


def test_an_embedded_file_that_is_missing(shape: Shape) -> None:
    embedding(shape, "static dist/*.js")
    assert "main.go:5:19: pattern dist/*.js: no matching files found" in shape.refusal()
    shape.write({"tools.go": "package main\n\n//go:generate npm run build\n"})
    text = shape.refusal()
    assert "run `go generate`, and commit what it writes" in text
    assert "a //go:generate line is in tools.go:3: //go:generate npm run build" in text


# Tags and profiles


def test_tags_choose_files_and_packages(shape: Shape) -> None:
    shape.write(
        {"go.mod": GO_MOD, "main.go": MAIN, "plain.go": '//go:build !pro\n\npackage main\n\nconst word = "plain"\n'}
    )
    shape.write({"pro.go": '//go:build pro\n\npackage main\n\nimport "example.com/m/pro"\n\nconst word = pro.Name\n'})
    shape.write({"pro/x.go": 'package pro\n\nconst Name = "pro"\n'})
    shape.manifest()
    assert shape.run() == "plain"
    assert "package:pro" not in shape.state()
    [untagged] = [task.fingerprint for task in plan_tasks(shape.settings)]
    shape.manifest(tags=["pro"])
    assert plan_tasks(shape.settings)[0].fingerprint != untagged
    assert shape.run() == "pro"
    assert "package:pro" in shape.state()


def test_a_package_that_tags_empty_names_them(shape: Shape) -> None:
    shape.write(
        {"go.mod": GO_MOD, "main.go": imports("example.com/m/pro"), "pro/x.go": "//go:build pro\n\npackage pro\n"}
    )
    shape.manifest()
    text = shape.refusal()
    assert "build constraints exclude all Go files" in text
    assert "x.go: //go:build pro" in text
    assert "`tags` in manifest.json" in text


def test_a_profile_is_an_input_when_it_is_there_and_when_it_is_not(shape: Shape) -> None:
    shape.write({"go.mod": GO_MOD, "main.go": imports()})
    shape.manifest()
    before = shape.state()
    assert before["file:default.pgo"] == "absent"
    shape.write({"default.pgo": ""})
    assert not shape.still(before)
    _, prepared = shape.prepare()
    assert b"default.pgo" in compile_build(prepared).build_info
    with_profile = shape.state()
    (shape.folder / "default.pgo").unlink()
    assert not shape.still(with_profile)


# Names


def test_folders_above_go_mod_may_have_any_name(shape: Shape) -> None:
    shape.write(
        {"bundles/mein Dienst äß@'\"/go.mod": GO_MOD, "bundles/mein Dienst äß@'\"/cmd/main.go": imports(say='"any"')}
    )
    shape.manifest("cmd", folder="bundles/mein Dienst äß@'\"")
    assert shape.run() == "any"
    before = shape.state()
    shape.write({"bundles/mein Dienst äß@'\"/cmd/more.go": "package main\n"})
    assert not shape.still(before)


def test_files_embedded_below_a_folder_with_a_colon_are_inputs(shape: Shape) -> None:
    folder = "bundles/a:b%3A"
    shape.write(
        {f"{folder}/go.mod": GO_MOD, f"{folder}/main.go": EMBED.format("static"), f"{folder}/static/a.txt": "a"}
    )
    shape.manifest(folder=folder, files=[{"from": "*.md", "to": "doc"}])
    shape.write({f"{folder}/a.md": ""})
    before = shape.state()
    shape.write({f"{folder}/static/a.txt": "other"})
    assert not shape.still(before)
    shape.write({f"{folder}/static/a.txt": "a"})
    assert shape.still(before)
    shape.write({f"{folder}/b.md": ""})
    assert not shape.still(before)


@pytest.mark.parametrize("name", ["two words", "äß", "x@y", "it's", 'q"q'])
def test_package_folders_have_the_names_that_import_paths_allow(shape: Shape, name: str) -> None:
    shape.write({"go.mod": GO_MOD, f"{name}/main.go": imports()})
    shape.manifest(name)
    assert "In an import path are no blanks" in shape.refusal()


def test_a_folder_name_that_go_takes_for_a_pattern(shape: Shape) -> None:
    shape.write({"go.mod": GO_MOD, "a...b/main.go": imports()})
    shape.manifest("a...b")
    assert "to the go command `...` means many packages" in shape.refusal()


def test_module_names_with_upper_case(shape: Shape) -> None:
    shape.write(
        {"go.mod": GO_MOD.replace("/m", "/Mixed/Case"), "main.go": imports("example.com/Mixed/Case/Word", say="Name")}
    )
    shape.write({"Word/x.go": 'package word\n\nconst Name = "Upper"\n'})
    shape.manifest()
    assert shape.run() == "Upper"


def required(shape: Shape, module: str, files: dict[str, str]) -> None:
    sums = shape.publish(module, files)
    shape.write({"go.mod": f"{GO_MOD}\nrequire {module} v1.0.0\n", "go.sum": sums})
    shape.write({"main.go": imports(module, say="Name")})
    shape.manifest()


def test_a_dependency_with_upper_case_in_its_name_and_no_input_of_it(shape: Shape) -> None:
    text = 'package lib\n\nimport _ "embed"\n\n//go:embed Name.txt\nvar Name string\n'
    required(shape, "example.com/Big/Lib", {"lib.go": text, "Name.txt": "published"})
    assert shape.run() == "published"
    assert (shape.outside / "cache/go-mod/example.com/!big/!lib@v1.0.0/Name.txt").is_file()
    assert {name for name in shape.state() if not name.startswith("file:")} == {"package:."}


def test_a_downloaded_dependency_that_needs_cgo_or_a_tag_is_refused(shape: Shape) -> None:
    needs_c = {"lib.go": f'package lib\n\nimport _ "example.com/Lib/sub"\n\n{C}', "sub/x.go": f"package sub\n\n{C}"}
    required(shape, "example.com/Lib", {**needs_c, "tagged/x.go": "//go:build pro\n\npackage tagged\n"})
    shape.write({"main.go": imports("example.com/Lib", "example.com/Lib/sub", "example.com/Lib/tagged")})
    text = shape.refusal()
    assert "example.com/Lib needs cgo, which is off; left out: lib.go (imported by example.com/m)" in text
    assert "example.com/Lib/sub needs cgo" in text
    assert "x.go: //go:build pro" in text


def test_a_dependency_that_is_not_what_go_sum_says(shape: Shape) -> None:
    required(shape, "example.com/Lib", {"lib.go": "package lib\n"})
    sums = (shape.folder / "go.sum").read_text()
    shape.write({"go.sum": sums.replace("v1.0.0 h1:", "v1.0.0 h1:AAAA", 1)})
    assert "checksum mismatch" in shape.refusal()


def test_internal_packages(shape: Shape) -> None:
    shape.write({"go.mod": GO_MOD, "main.go": imports("example.com/m/internal/x", say="Name")})
    shape.write({"internal/x/x.go": 'package x\n\nconst Name = "internal"\n'})
    shape.manifest()
    assert shape.run() == "internal"
    replaced(shape, "./lib")
    shape.write({**LIB, "lib/internal/y/y.go": "package y\n", "main.go": imports("example.com/lib/internal/y")})
    assert "use of internal package example.com/lib/internal/y not allowed" in shape.refusal()


# Generated code


def test_an_imported_package_that_is_not_there_names_the_generators(shape: Shape) -> None:
    shape.write({"go.mod": GO_MOD, "main.go": imports("example.com/m/gen/api", "example.com/m/gen/db")})
    shape.write({"proto/doc.go": "package proto\n\n//go:generate buf generate\n", "gen/api/README": ""})
    shape.write({"vendored/go.mod": GO_MOD, "vendored/x.go": "//go:generate not ours\n"})
    shape.manifest()
    text = shape.refusal()
    for name in ("api", "db"):
        assert f"example.com/m/gen/{name} isn't there: no Go files in {shape.folder}/gen/{name}" in text
    assert "go get" not in text
    assert "run `go generate`" in text
    assert "a //go:generate line is in proto/doc.go:3: //go:generate buf generate" in text
    assert "not ours" not in text


def test_a_name_that_a_generator_should_have_written(shape: Shape) -> None:
    shape.write({"go.mod": GO_MOD, "main.go": f"{MAIN}\n//go:generate stringer -type word\n"})
    shape.manifest()
    text = shape.compile_refusal()
    assert "./main.go:3:21: undefined: word" in text
    assert "main.go:5: //go:generate stringer -type word" in text
    assert "run `go generate`" in text


def test_a_plain_mistake_gets_no_hint_about_generators(shape: Shape) -> None:
    shape.write({"go.mod": GO_MOD, "main.go": "package main\n\n//go:generate x\nfunc main() { return 1 }\n"})
    shape.manifest()
    text = shape.compile_refusal()
    assert "too many return values" in text
    assert "go generate" not in text


# cgo


def test_packages_that_need_cgo_are_refused_before_anything_is_compiled(shape: Shape) -> None:
    shape.write({"go.mod": GO_MOD, "main.go": imports("example.com/m/through", "example.com/m/alsoc")})
    shape.write({"through/x.go": 'package through\n\nimport _ "example.com/m/needsc"\n'})
    shape.write({"needsc/x.go": f"package needsc\n\n// int x;\n{C}", "needsc/x.c": "int y;\n"})
    shape.write({"alsoc/x.go": '//go:build cgo\n\npackage alsoc\n\nimport (\n\t"os"\n\n\t"C"\n)\n'})
    shape.manifest()
    text = shape.refusal()
    assert "example.com/m/needsc needs cgo, which is off; left out: x.go" in text
    assert "(imported by example.com/m/through, by example.com/m)" in text
    assert "example.com/m/alsoc needs cgo" in text


def test_a_dependency_that_needs_cgo_is_refused(shape: Shape) -> None:
    replaced(shape, "./lib")
    shape.write({**LIB, "lib/lib.go": f"package lib\n\n{C}"})
    assert "example.com/lib needs cgo" in shape.refusal()


def test_packages_with_a_pure_go_half_are_built_from_it(shape: Shape) -> None:
    shape.write({"go.mod": GO_MOD, "main.go": imports("example.com/m/both", "net", "os/user", say="Name")})
    shape.write({"both/c.go": f'package both\n\n{C}\nconst Name = "c"\n', "both/x.c": "int y;\n"})
    shape.write({"both/go.go": '//go:build !cgo\n\npackage both\n\nconst Name = "go"\n'})
    shape.manifest()
    assert shape.run() == "go"


def test_a_package_half_of_which_needs_cgo_says_so_when_it_does_not_compile(shape: Shape) -> None:
    shape.write({"go.mod": GO_MOD, "main.go": imports("example.com/m/half", say="Name()")})
    shape.write({"half/c.go": f"package half\n\n{C}\nfunc name() string {{ return C.name }}\n"})
    shape.write({"half/x.go": "package half\n\nfunc Name() string { return name() }\n"})
    shape.manifest()
    text = shape.compile_refusal()
    assert "undefined: name" in text
    assert "example.com/m/half leaves out c.go, since cgo is off" in text


# Whatever else go says, whole


def test_a_folder_of_tests_only(shape: Shape) -> None:
    shape.write({"go.mod": GO_MOD, "main.go": imports("example.com/m/only"), "only/x_test.go": "package only\n"})
    shape.manifest()
    assert "no non-test Go files in" in shape.compile_refusal()


def test_a_main_package_without_a_main_function(shape: Shape) -> None:
    shape.write({"go.mod": GO_MOD, "main.go": "package main\n"})
    shape.manifest()
    assert "function main is undeclared in the main package" in shape.compile_refusal()


def test_several_mistakes_are_told_at_once(shape: Shape) -> None:
    packages = ("other", "foo", "Foo", "cycle", "gone")
    shape.write(
        {"go.mod": GO_MOD, "main.go": imports(*(f"example.com/m/{name}" for name in packages), "example.com/x")}
    )
    shape.write({"other/x.go": "package main\n", "foo/x.go": "package foo\n", "Foo/x.go": "package foo\n"})
    shape.write({"cycle/x.go": 'package cycle\n\nimport _ "example.com/m/cycle/b"\n'})
    shape.write({"cycle/b/x.go": 'package b\n\nimport _ "example.com/m/cycle"\n'})
    shape.manifest()
    text = shape.refusal()
    assert "import cycle not allowed" in text
    assert "example.com/m/gone isn't there" in text
    assert "no required module provides package example.com/x" in text or "cannot find module" in text
    assert "is a program, not an importable package" in text or "case-insensitive import collision" in text


def test_a_module_that_cannot_be_had_is_another_kind_of_error(shape: Shape) -> None:
    shape.write({"go.mod": f"{GO_MOD}\nrequire example.com/gone v1.0.0\n", "main.go": imports("example.com/gone")})
    digest = "h1:N6Xv/1OLzI0jVVkUwkrxHRZc/GCTARUo6idcngKwlDE="
    shape.write({"go.sum": f"example.com/gone v1.0.0 {digest}\nexample.com/gone v1.0.0/go.mod {digest}\n"})
    shape.manifest()
    assert "module lookup disabled by GOPROXY=off" in shape.refusal(ModuleDownloadError)
    shape.write({"go.sum": ""})
    assert "Run `go mod tidy`" in shape.refusal()
