"""A project's artifacts, as much of them as deciding what is to be built needs.

Only light imports: a build with nothing to do runs this.
"""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from meshbuild import __version__
from meshbuild.digests import Sha256
from meshbuild.jsontext import canonical_json
from meshbuild.paths import local_errors, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from meshbuild.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactTask:
    """One artifact for one system, as much as deciding whether it is up to date needs.

    Attributes:
        manifest: path of manifest.json, relative to the project.
        fingerprint: digest of what is asked for: the manifest's entry, the pin, the system's row, the settings.
    """

    module: str
    version: str
    artifact: str
    system: str
    manifest: str
    fingerprint: str

    @property
    def name(self) -> str:
        """The task's name below `build:`."""
        return f"{self.module}:{self.artifact}:{self.system}"

    @property
    def file_name(self) -> str:
        """The bundle's file name, for people; nothing ever parses it."""
        return f"{self.module}.{self.artifact}-{self.version}-{self.system}.tar.zst"

    def record_file(self, settings: Settings) -> Path:
        """Where the record of its last build lies."""
        return settings.state / "built" / f"{self.module}.{self.artifact}.{self.system}.json"


def load_tasks(settings: Settings, plan: Callable[[Settings], list[ArtifactTask]]) -> list[ArtifactTask]:
    """Every artifact of the project's manifests, from a cache if nothing that they come from has changed.

    Args:
        settings: the project's settings.
        plan: reads manifests and pins when the cache can't serve.

    Raises:
        MeshbuildError: a manifest or the pins are not valid.
    """
    project = settings.project
    config: list[Any] = [__version__, platform.machine(), sys.platform, asdict(settings)]
    for file in [*manifest_files(project), project / "toolchains.toml"]:
        config += [str(file), str(Sha256.of(file.read_bytes())) if file.is_file() else None]
    key = Sha256.of(canonical_json(json.loads(json.dumps(config, default=str))))
    cache = settings.state / "tasks.json"
    try:
        cached = json.loads(cache.read_bytes())
        if cached["key"] == key:
            return [ArtifactTask(**value) for value in cached["tasks"]]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no cache, or one of another version: made again below
    tasks = plan(settings)
    text = json.dumps({"key": key, "tasks": [asdict(task) for task in tasks]})
    with local_errors(f"write {cache}"):
        write_atomically(cache, text.encode(), fsync=False)
    return tasks


def manifest_files(project: Path) -> list[Path]:
    """The manifests of a project: one at its root, one in each folder below bundles/."""
    return [
        file for file in (project / "manifest.json", *sorted(project.glob("bundles/*/manifest.json"))) if file.is_file()
    ]
