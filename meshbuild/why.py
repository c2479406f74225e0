"""Why an artifact would be built: what changed since its last build, down to the file.

Beside an artifact's record lies what explains it: the values that were asked for, and the digest of each file behind
each input. Only explaining reads it, so that deciding stays cheap.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshbuild import uptodate
from meshbuild.git import source_state
from meshbuild.paths import local_errors, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from meshbuild.project import ArtifactTask
    from meshbuild.settings import Settings

NOTHING = "absent"


@dataclass(frozen=True, slots=True)
class Change:
    """Something that is no longer as it was at an artifact's last build.

    Attributes:
        what: `input` for a file or what git says, `asked_for` for a value of the manifest, the pins or the settings,
            `bundle` for the bundle itself, `build` for the last build: there was none, or it is worth doing again.
        name: a path relative to the project, or the dotted path of a value.
        old: its digest or value then; `absent` where there was none.
        new: the same now.
    """

    what: str
    name: str
    old: str
    new: str


def remember(
    settings: Settings,
    task: ArtifactTask,
    record: uptodate.Record,
    asked_for: Mapping[str, Any],
    files: uptodate.Snapshot,
) -> None:
    """Write down what explains a record, from digests that a snapshot has already taken.

    Raises:
        LocalFileError: it can't be written, or an input can't be read.
    """
    file = _file(settings, task)
    with local_errors(f"write {file}"):
        details = {"blob_sha256": record.blob_sha256, "asked_for": asked_for, "files": _files(record, settings, files)}
        write_atomically(file, json.dumps(details, indent=1).encode(), fsync=False)


def changes(
    settings: Settings,
    task: ArtifactTask,
    asked_for: Mapping[str, Any],
    *,
    files: uptodate.Snapshot,
    environ: Mapping[str, str],
) -> list[Change]:
    """What changed since an artifact's last build; nothing means that it is up to date.

    Args:
        settings: the project's settings.
        task: the artifact.
        asked_for: the values that decide on its bundle now (targets.asked_for).
        files: takes the digests of files as they are now.
        environ: the user's environment, for git.

    Raises:
        LocalFileError: an input can't be read.
    """
    record = uptodate.read_record(task.record_file(settings))
    if record is None:
        return [Change("build", "record of the last build", NOTHING, NOTHING)]
    details = _read_details(settings, task, record)
    found: list[Change] = []
    if record.fingerprint != task.fingerprint:
        if "asked_for" in details:
            found += _differences("asked_for", dict(_flat(details["asked_for"])), dict(_flat(asked_for)))
        else:
            found.append(Change("asked_for", "manifest, pins or settings", record.fingerprint, task.fingerprint))
    with local_errors(f"read the source of {task.name}"):
        blob = files.sha256(f"{settings.project}/{record.bundle}")
        if blob != record.blob_sha256:
            found.append(Change("bundle", record.bundle, record.blob_sha256, blob))
        for name, then_digest in record.inputs.items():
            now_digest = uptodate.digest_input(name, settings.project, files)
            if now_digest != then_digest:
                old_files = details.get("files", {}).get(name)
                if old_files is None:
                    found.append(Change("input", _readable(name), then_digest, now_digest))
                else:
                    found += _differences("input", old_files, _file_digests(name, settings.project, files))
    found += _state_changes(settings, record, environ)
    return list(dict.fromkeys(found))  # a file may stand behind two inputs


def _state_changes(settings: Settings, record: uptodate.Record, environ: Mapping[str, str]) -> Iterator[Change]:
    """What makes the same bytes worth another build: a provenance without the mark, or with more isolation."""
    if settings.require_isolation and record.isolation != "network-namespace":
        yield Change("build", "isolation", record.isolation, "network-namespace")
    if record.dirty and source_state([settings.project / each for each in record.dirty], environ)[1] is False:
        yield Change("build", "git tree", "dirty", "clean")


def _readable(name: str) -> str:
    kind, _, rest = name.partition(":")
    return rest if kind == "file" else f"{kind} {rest}"


def _differences(what: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Change]:
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield Change(what, name, old.get(name, NOTHING), new.get(name, NOTHING))


def _files(record: uptodate.Record, settings: Settings, files: uptodate.Snapshot) -> dict[str, dict[str, str]]:
    several = [name for name in record.inputs if name.partition(":")[0] in {"package", "embed", "glob"}]
    return {name: _file_digests(name, settings.project, files) for name in several}


def _file_digests(name: str, project: Path, files: uptodate.Snapshot) -> dict[str, str]:
    kind, _, rest = name.partition(":")
    folder = rest if kind == "package" else rest.partition(":")[0].replace("%3A", ":").replace("%25", "%")
    return {_join(folder, file): files.sha256(path) for file, path in uptodate.input_files(name, project)}


def _join(folder: str, file: str) -> str:
    return file if folder in {"", "."} else f"{folder}/{file}"


def _flat(value: object, path: str = "") -> Iterable[tuple[str, str]]:
    """The leaves of JSON values by their dotted paths."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value if isinstance(value, str) else json.dumps(value)


def _file(settings: Settings, task: ArtifactTask) -> Path:
    return task.record_file(settings).with_suffix(".why")


def _read_details(settings: Settings, task: ArtifactTask, record: uptodate.Record) -> dict[str, Any]:
    """What explains a record; nothing when it is gone or explains another one."""
    try:
        details = json.loads(_file(settings, task).read_bytes())
    except (OSError, ValueError):
        return {}
    matches = isinstance(details, dict) and details.get("blob_sha256") == record.blob_sha256
    return details if matches else {}
