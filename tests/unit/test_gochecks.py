"""What is read out of the go command's answers; tests/cli/test_shapes.py has the same with the real command."""

from pathlib import Path
from typing import Any

import pytest

from meshbuild.gochecks import Problem, compile_hint, generate_lines, hint_for, source_problems


def ignored(tmp_path: Path, text: str, **more: object) -> dict[str, Any]:
    """A package all of whose files, one with that text, were left out."""
    (tmp_path / "x.go").write_text(text)
    error = {"ImportStack": ["m", "m/x"], "Pos": "", "Err": f"build constraints exclude all Go files in {tmp_path}"}
    return {"Dir": str(tmp_path), "ImportPath": "m/x", "IgnoredGoFiles": ["x.go"], "Error": error, **more}


@pytest.mark.parametrize(
    ("text", "cgo"),
    [
        ('package x\nimport "C"\n', True),
        ('package x\nimport (\n\t"os"\n\t"C"\n)\n', True),
        ("package x\nimport `C`;\n", True),
        ("//go:build cgo\n\npackage x\n", True),
        ("//go:build linux && cgo\n\npackage x\n", True),
        ("//go:build !cgo && pro\n\npackage x\n", False),
        ("//go:build pro\n\npackage x\n", False),
        ('package x\nimport "C/d"\nvar s = "C"\n', False),
    ],
)
def test_packages_that_need_cgo_are_told_from_those_behind_tags(tmp_path: Path, text: str, cgo: bool) -> None:
    [problem] = source_problems([ignored(tmp_path, text)], module_cache="/cache", tree=tmp_path)
    assert ("m/x needs cgo, which is off" in problem.text) == cgo
    assert "imported by m)" in problem.text
    assert ("`tags` in manifest.json" in problem.hint) != cgo


def test_each_problem_is_told_once_and_the_good_packages_not_at_all(tmp_path: Path) -> None:
    error = {"ImportStack": ["m"], "Pos": "main.go:3:2", "Err": "missing go.sum entry"}
    bad = {"ImportPath": "d/x", "Error": error}
    standard = {"ImportPath": "os", "Dir": "/go/src/os", "Standard": True}
    cached = {"ImportPath": "d", "Dir": "/cache/d@v1"}
    own = {"ImportPath": "m", "Dir": str(tmp_path)}
    found = source_problems([standard, bad, cached, bad, own], module_cache="/cache", tree=tmp_path)
    assert found == [
        Problem("main.go:3:2: missing go.sum entry", "Run `go mod tidy`, and commit go.mod and go.sum."),
    ]


def test_generate_lines_are_those_of_the_go_module_itself(tmp_path: Path) -> None:
    for name in ("b.go", "a/a.go", "vendor/v/v.go", "nested/n.go", ".hidden/h.go", "testdata/t.go"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"package x\n\n//go:generate make {name}\n// not //go:generate this\n")
    (tmp_path / "nested/go.mod").write_text("module n\n")
    assert list(generate_lines(tmp_path)) == [
        "b.go:3: //go:generate make b.go",
        "a/a.go:3: //go:generate make a/a.go",
    ]
    assert list(generate_lines(tmp_path, below=False)) == ["b.go:3: //go:generate make b.go"]


def test_a_compiler_error_gets_a_hint_only_for_the_package_that_failed(tmp_path: Path) -> None:
    (tmp_path / "x.go").write_text("package x\n//go:generate stringer\n")
    package = {"ImportPath": "m/x", "Dir": str(tmp_path)}
    assert "x.go:2: //go:generate stringer" in compile_hint("# m/x\nx.go:3: undefined: Name", [package])
    assert compile_hint("# m/y\ny.go:3: undefined: Name", [package]) == ""
    assert compile_hint("# m/x\nx.go:3: syntax error", [package]) == ""


def test_words_of_gos_without_a_way_out_get_one() -> None:
    assert "go mod vendor" in hint_for("cannot find module providing package x: import lookup disabled by -mod=vendor")
    assert "go mod tidy" in hint_for("go: updates to go.mod needed, disabled by -mod=readonly")
    assert hint_for("import cycle not allowed") == ""
