"""Where an artifact's Go source lies."""

from pathlib import Path

import pytest

from meshbuild.errors import SourceError
from meshbuild.gosource import find_source, parse_directives, source_tree

GO_MOD = "module example.com/m\n\ngo 1.26\n"


def write(path: Path, text: str = "package main\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_go_mod_beside_the_manifest(tmp_path: Path) -> None:
    write(tmp_path / "go.mod", GO_MOD)
    write(tmp_path / "cmd/x/main.go")
    source = find_source(tmp_path, "cmd/x", where="m.x")
    assert (source.module_dir, source.package, source.module_path) == (".", "./cmd/x", "example.com/m")
    assert source.go_lines == (("go.mod", "1.26"),)
    assert (source.vendored, source.workspace) == (False, None)


def test_go_mod_above_and_below_the_manifest(tmp_path: Path) -> None:
    write(tmp_path / "go.mod", GO_MOD)
    write(tmp_path / "deploy/cmd/main.go")
    above = find_source(tmp_path / "deploy", "cmd", where="m.x")
    assert (above.module_dir, above.package) == ("..", "./deploy/cmd")
    write(tmp_path / "other/svc/go.mod", GO_MOD)
    write(tmp_path / "other/svc/cmd/main.go")
    below = find_source(tmp_path / "other", "svc/cmd", where="m.x")
    assert (below.module_dir, below.package) == ("svc", "./cmd")


def test_the_manifests_own_folder_may_be_the_package(tmp_path: Path) -> None:
    write(tmp_path / "go.mod", GO_MOD)
    write(tmp_path / "main.go")
    assert find_source(tmp_path, ".", where="m.x").package == "."


def test_vendored(tmp_path: Path) -> None:
    write(tmp_path / "go.mod", GO_MOD)
    write(tmp_path / "main.go")
    write(tmp_path / "vendor/modules.txt", "")
    assert find_source(tmp_path, ".", where="m.x").vendored


def test_a_workspace_counts_only_inside_the_tree_and_when_it_uses_the_module(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    write(tree / "svc/go.mod", GO_MOD)
    write(tree / "svc/main.go")
    write(tmp_path / "go.work", "go 1.27\nuse ./tree/svc\n")
    assert find_source(tree, "svc", where="m.x").workspace is None
    write(tree / "go.work", "go 1.27\nuse (\n\t./svc // ours\n\t./lib\n)\n")
    source = find_source(tree, "svc", where="m.x")
    assert source.workspace == "../go.work"
    assert ("go.work", "1.27") in source.go_lines
    write(tree / "go.work", "go 1.27\nuse ./lib\n")
    assert find_source(tree, "svc", where="m.x").workspace is None


def test_refusals_name_the_folder_and_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"m\.x: its `from` names .*nowhere, which is not a folder"):
        find_source(tmp_path, "nowhere", where="m.x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="holds no Go files"):
        find_source(tmp_path, "empty", where="m.x")
    write(tmp_path / "only/x_test.go")
    with pytest.raises(SourceError, match="holds no Go files"):
        find_source(tmp_path, "only", where="m.x")
    write(tmp_path / "loose/main.go")
    with pytest.raises(SourceError, match=r"no go\.mod at or above") as caught:
        find_source(tmp_path, "loose", where="m.x")
    assert caught.value.hint is not None


def test_a_link_out_of_the_tree_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "outside/main.go")
    write(tmp_path / "outside/go.mod", GO_MOD)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/in").symlink_to(tmp_path / "outside")
    with pytest.raises(SourceError, match="leads outside"):
        find_source(tmp_path / "tree", "in", where="m.x")


def test_a_nested_go_module_is_refused_but_several_side_by_side_are_fine(tmp_path: Path) -> None:
    write(tmp_path / "go.mod", GO_MOD)
    write(tmp_path / "tools/go.mod", GO_MOD)
    write(tmp_path / "tools/main.go")
    write(tmp_path / "tools/cmd/y/main.go")
    with pytest.raises(SourceError, match="a Go module of its own, nested"):
        find_source(tmp_path, "tools", where="m.x")
    assert find_source(tmp_path, "tools/cmd/y", where="m.x").module_dir == "tools"
    assert find_source(tmp_path / "tools", ".", where="m.x").module_dir == "."


def test_go_mod_without_a_module_line(tmp_path: Path) -> None:
    write(tmp_path / "go.mod", "go 1.26\n")
    write(tmp_path / "main.go")
    with pytest.raises(SourceError, match="no module line"):
        find_source(tmp_path, ".", where="m.x")


def test_directives() -> None:
    text = 'module "example.com/m" // name\ngo 1.26.1\ntoolchain go1.27.2\n'
    text += "require (\n\ta v1 // indirect\n\tb v2\n)\nreplace a => ../a\n"
    assert list(parse_directives(text)) == [
        ["module", "example.com/m"],
        ["go", "1.26.1"],
        ["toolchain", "go1.27.2"],
        ["require", "a", "v1"],
        ["require", "b", "v2"],
        ["replace", "a", "=>", "../a"],
    ]


def test_the_tree_is_the_outermost_of_checkout_project_manifest_and_go_module(tmp_path: Path) -> None:
    manifest, module = tmp_path / "git/project/bundles/app", tmp_path / "git/project/bundles/app/svc"
    module.mkdir(parents=True)
    assert source_tree(manifest, module) == manifest
    assert source_tree(module, manifest) == manifest
    write(tmp_path / "git/project/toolchains.toml", "")
    assert source_tree(manifest, module) == tmp_path / "git/project"
    (tmp_path / "git/.git").mkdir()
    assert source_tree(manifest, module) == tmp_path / "git"
    write(manifest / ".git", "gitdir: elsewhere")
    assert source_tree(manifest, module) == tmp_path / "git/project"


def test_files_that_decide_are_named_whether_they_are_there_or_not(tmp_path: Path) -> None:
    write(tmp_path / "svc/go.mod", GO_MOD + "require a v1\nreplace a => ../lib\n")
    write(tmp_path / "svc/cmd/main.go")
    source = find_source(tmp_path, "svc/cmd", where="m.x")
    assert source.go_modules == ("lib", "svc")
    assert source.folders(tmp_path) == [tmp_path, tmp_path / "lib", tmp_path / "svc"]
    assert source.files == (
        "go.work", "lib/go.mod", "lib/go.sum", "svc/cmd/go.mod", "svc/go.mod", "svc/go.sum", "svc/go.work",
        "svc/vendor/modules.txt",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("require a v1\nreplace a => ../../a", r"go\.mod: replace a => \.\./\.\./a leads to /"),
        ("require a v1\nreplace a v1 => /a", r"go\.mod: replace a => /a is an absolute path"),
        ("require (\n\ta v1 // indirect\n)\nreplace (\n\ta => ../a\n)", r"replace a => \.\./a leads to /"),
        ("replace a => ../a", None),
        ("require a v1\nreplace a => example.com/fork v1", None),
        ("require a v1\nreplace a => ./a", None),
        ("require a v1\nreplace a => .", None),
    ],
)
def test_replace_lines(tmp_path: Path, lines: str, problem: str | None) -> None:
    tree = tmp_path / "tree"
    write(tree / "go.mod", f"{GO_MOD}{lines}\n")
    write(tree / "main.go")
    if problem is None:
        find_source(tree, ".", where="m.x")
    else:
        with pytest.raises(SourceError, match=problem) as caught:
            find_source(tree, ".", where="m.x")
        assert "go mod vendor" in (caught.value.hint or "")


def test_an_old_go_mod_does_not_list_what_it_requires_so_every_replace_counts(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    write(tree / "go.mod", "module example.com/m\n\ngo 1.16\n\nreplace a => ../a\n")
    write(tree / "main.go")
    with pytest.raises(SourceError, match="leads to"):
        find_source(tree, ".", where="m.x")
