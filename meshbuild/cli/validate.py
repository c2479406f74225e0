"""`meshbuild validate`: check manifests and report every problem."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from meshbuild.cli import console
from meshbuild.errors import ManifestError
from meshbuild.manifest import find_manifests, read_manifests
from meshbuild.paths import local_errors
from meshbuild.settings import find_project

if TYPE_CHECKING:
    from meshbuild.manifest import Manifest


@click.command("validate")
@click.argument("path", type=click.Path(path_type=Path), default=".")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(path: Path, *, as_json: bool) -> None:
    """Check manifests and report every problem of all of them.

    PATH is a manifest, a folder with a manifest.json, or a project with bundles/*/manifest.json; the current folder
    unless given. Systems and toolchains are checked against the project's toolchains.toml where there is one.

    \b
    Example:
      meshbuild validate bundles/mesh-controller
    """  # noqa: D301 - \b is click's mark for a paragraph to leave as it is
    manifests = _read(path)
    if as_json:
        console.result_json({"manifests": [_summary(file, manifest) for file, manifest in manifests.items()]})
        return
    for file, manifest in manifests.items():
        artifacts = _count(len(manifest.build.artifacts), "artifact")
        resources = _count(len(manifest.resources), "resource")
        console.result(f"{file}: valid: module {manifest.module} version {manifest.version}, {artifacts}, {resources}")


def _read(path: Path) -> dict[Path, Manifest]:
    with local_errors(f"look at {path}"):
        folder = path if path.is_dir() else path.parent
    files = find_manifests(path) if folder == path else (path,)
    if not files:
        hint = "Pass a manifest, a folder that holds manifest.json, or a project with bundles/*/manifest.json."
        raise ManifestError(f"{path}: holds no manifest", hint=hint)
    pins_file = find_project(folder) / "toolchains.toml"
    if not pins_file.is_file():
        return read_manifests(files)
    from meshbuild.pins import read_pins  # noqa: PLC0415 - a manifest alone needs none of the toolchains' code

    pins = read_pins(pins_file)
    return read_manifests(files, systems=pins.systems, toolchains=pins.toolchains)


def _summary(file: Path, manifest: Manifest) -> dict[str, object]:
    artifacts = [{"name": artifact.name, "system": artifact.system} for artifact in manifest.build.artifacts]
    resources = [{"id": resource.id, "type": resource.type} for resource in manifest.resources]
    names = {"path": str(file), "module": manifest.module, "version": manifest.version}
    return {**names, "artifacts": artifacts, "resources": resources}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
