from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from meshbuild.cli.validate import command
from meshbuild.errors import ManifestError

SEED = Path(__file__).parents[1] / "unit" / "data" / "seed_manifest.json"
PINS = Path(__file__).parents[2] / "toolchains.toml"
VALID = "valid: module mesh-controller version 1, 1 artifact, 3 resources"


def run(*args: str | os.PathLike[str]) -> Result:
    return CliRunner().invoke(command, [os.fspath(arg) for arg in args], catch_exceptions=False)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, the current folder, with the seed as its one module."""
    bundle = tmp_path / "bundles" / "mesh-controller"
    bundle.mkdir(parents=True)
    shutil.copyfile(SEED, bundle / "manifest.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("project")
def test_a_project_a_folder_and_a_file_are_validated() -> None:
    for args in ((), ("bundles/mesh-controller",), ("bundles/mesh-controller/manifest.json",)):
        result = run(*args)
        assert result.exit_code == 0
        assert result.stdout == f"bundles/mesh-controller/manifest.json: {VALID}\n"
        assert result.stderr == ""


def test_a_manifest_in_the_current_folder_is_found(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project / "bundles" / "mesh-controller")
    assert run().stdout == f"manifest.json: {VALID}\n"


@pytest.mark.usefixtures("project")
def test_json_names_every_manifest() -> None:
    assert json.loads(run("--json").stdout) == {
        "manifests": [
            {
                "path": "bundles/mesh-controller/manifest.json",
                "module": "mesh-controller",
                "version": "1",
                "artifacts": [{"name": "controller", "system": "arch"}],
                "resources": [
                    {"id": "account", "type": "user"},
                    {"id": "mesh-state", "type": "directory"},
                    {"id": "controller", "type": "process"},
                ],
            }
        ]
    }


def test_the_problems_of_all_manifests_are_one_error_and_nothing_is_called_valid(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (project / "bundles" / name).mkdir()
        (project / "bundles" / name / "manifest.json").write_text(f'{{"module": "{name}", "verson": "1"}}')
    with pytest.raises(ManifestError) as caught:
        run()
    text = str(caught.value)
    assert text.count('verson: unknown key; did you mean "version"?') == 2
    assert "bundles/a/manifest.json" in text
    assert "bundles/b/manifest.json" in text
    assert "valid: module" not in capsys.readouterr().out


def test_a_place_without_a_manifest_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="holds no manifest") as caught:
        run(tmp_path)
    assert caught.value.hint
    with pytest.raises(ManifestError, match="there is no such manifest"):
        run(tmp_path / "nowhere")


def test_help_has_an_example() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "meshbuild validate bundles/mesh-controller" in result.stdout


def test_systems_and_toolchains_are_those_of_the_project(project: Path) -> None:
    shutil.copyfile(PINS, project / "toolchains.toml")
    assert run().stdout == f"bundles/mesh-controller/manifest.json: {VALID}\n"
    manifest = project / "bundles" / "mesh-controller" / "manifest.json"
    document = json.loads(manifest.read_bytes())
    document["build"]["artifacts"][0] |= {"system": "arhc", "toolchain": "1.0.0"}
    manifest.write_text(json.dumps(document))
    for args in ((), ("bundles/mesh-controller",), (manifest,)):
        with pytest.raises(ManifestError) as caught:
            run(*args)
        system, toolchain = caught.value.problems
        assert system == (
            'build.artifacts[0].system: no system in toolchains.toml is named "arhc"; did you mean "arch"?'
        )
        assert toolchain.startswith('build.artifacts[0].toolchain: no toolchain in toolchains.toml is named "1.0.0"')
