"""The doit tasks that a project's dodo.py imports: build, push, toolchain, validate, and doit's own clean.

    from meshbuild.tasks import *

A run with nothing to do imports nothing but the standard library and doit: the tasks come from a cache that is keyed by
the bytes of every manifest, the pins and the settings, and `uptodate` decides from the records of the last builds.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doit.exceptions import InvalidTask, TaskFailed
from doit.reporter import ConsoleReporter
from doit.task import Task

from meshbuild import uptodate
from meshbuild.errors import MeshbuildError
from meshbuild.project import load_tasks
from meshbuild.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from meshbuild.assemble import Workshop
    from meshbuild.project import ArtifactTask
    from meshbuild.settings import Settings

__all__ = ["DOIT_CONFIG", "task_build", "task_push", "task_toolchain", "task_validate"]


class Reporter(ConsoleReporter):  # type: ignore[misc] # doit has no types
    """Says what was built, what wasn't needed and why something failed; ends doit with the error's own exit code."""

    desc = "what was built, what wasn't needed, and errors with their hints"

    def __init__(self, outstream: Any, options: Any) -> None:  # noqa: ANN401 - doit's interface
        super().__init__(outstream, options)
        self._current = 0
        self._done = 0
        self._exit_code = 0

    def initialize(self, tasks: Any, selected_tasks: Any) -> None:  # noqa: ANN401
        """Note what this run is asked for, so that a compiler call can build what else it will need."""
        super().initialize(tasks, selected_tasks)
        wanted = list(selected_tasks)
        while wanted:
            name = wanted.pop()
            if name not in _CHOSEN:
                _CHOSEN.add(name)
                wanted += tasks[name].task_dep

    def write(self, text: str) -> None:
        """Print at once: who watches a pipe wants to see progress too."""
        self.outstream.write(text)
        self.outstream.flush()

    def add_success(self, task: Any) -> None:  # noqa: ANN401
        """Print the line that the action left."""
        if task.actions:
            self._done += 1
        if "said" in (task.values or {}):
            self.write(f"{task.values['said']}\n")

    def skip_uptodate(self, task: Any) -> None:  # noqa: ANN401
        """Count and print a task that needs nothing."""
        self._current += 1
        super().skip_uptodate(task)

    def add_failure(self, task: Any, fail: Any) -> None:  # noqa: ANN401
        """Print an error of ours as it would be printed by the command line, another one as doit does."""
        error = _FAILED.pop(task.name, None)
        if error is None:
            super().add_failure(task, fail)
            return
        self._exit_code = error.exit_code
        sys.stderr.write(f"error: {error}\n" + (f"hint: {error.hint}\n" if error.hint else ""))

    def complete_run(self) -> None:
        """Say so when nothing was to do; leave with the exit code of the last error of ours."""
        for memory in _MEMORIES:
            memory.save()
        for workshop in _WORKSHOPS:
            workshop.close()
        super().complete_run()
        if self._current and not self._done and not self._exit_code and not self.failures:
            self.write(f"nothing to do: {self._current} up to date\n")
        if self._exit_code:
            raise SystemExit(self._exit_code)


# The errors of failed tasks by task name, on their way from the action to the reporter: doit passes on text only.
_FAILED: dict[str, MeshbuildError] = {}

# The tasks of this run: those asked for, and those that they depend on.
_CHOSEN: set[str] = set()

# Where this run builds, once it does.
_WORKSHOPS: list[Workshop] = []
_ONE_WORKSHOP = threading.Lock()

# The memory of digests that the tasks of this run use; saved once, at the run's end.
_MEMORIES: list[uptodate.DigestMemory] = []

# doit keeps no state of its own (see uptodate.py), so that two runs at once and killed runs can't mislead it; and
# threads do for -n, since other programs and C code do the work: there is no worker process that could die and hang it.
DOIT_CONFIG = {
    "backend": "sqlite3",
    "dep_file": ":memory:",
    "par_type": "thread",
    "default_tasks": ["build"],
    "reporter": Reporter,
    "verbosity": 2,
}


class _BuildGroup(Task):  # type: ignore[misc] # doit has no types
    """The `build` task: words behind it that name modules or artifacts choose among its sub-tasks."""

    tasks: tuple[ArtifactTask, ...] = ()

    def init_options(self, args: list[str] | None = None) -> list[str] | None:
        """Take the names behind `build` from doit's arguments, and keep only the sub-tasks that they mean."""
        rest: list[str] | None = super().init_options(args)
        chosen: list[str] = []
        while rest and not rest[0].startswith("-") and rest[0] not in _TASK_NAMES and not rest[0].startswith("build:"):
            chosen += self._meant(rest.pop(0))
        if chosen:
            self.task_dep[:] = chosen
        return rest

    def _meant(self, word: str) -> list[str]:
        names: dict[str, list[str]] = {}
        for task in self.tasks:
            for name in (task.module, task.artifact, f"{task.module}:{task.artifact}", task.name):
                names.setdefault(name, []).append(f"build:{task.name}")
        if word not in names:
            close = get_close_matches(word, names, 1)
            meant = f"; did you mean {close[0]!r}?" if close else "; see `doit list --all`"
            raise InvalidTask(f"no module or artifact is named {word!r}{meant}")
        return names[word]


_TASK_NAMES = ("build", "push", "toolchain", "validate")


class _Run:
    """The building of one run of doit: what was decided, and where it is done."""

    def __init__(self, settings: Settings, group: _BuildGroup, files: uptodate.Snapshot) -> None:
        self._settings = settings
        self._group = group
        self._files = files
        self._seen: dict[str, uptodate.Record | None] = {}
        self._dirty: dict[tuple[str, ...], bool] = {}

    def is_current(self, task: ArtifactTask, *_doit: object) -> bool:
        """Whether there is nothing to be done for an artifact."""
        record = self._seen[task.name] = uptodate.read_record(task.record_file(self._settings))
        return record is not None and self._serves(task, record)

    def build(self, task: ArtifactTask) -> str:
        """Build an artifact; returns the line that says so."""
        began = time.monotonic()
        workshop = self._workshop()
        record = workshop.assemble(task, seen=self._seen.get(task.name), siblings=partial(self._siblings, task))
        return (
            f"built {task.name}: {record.bundle}, {record.size_bytes / 1e6:.1f} MB, "
            f"content {record.content_sha256[:12]}, {time.monotonic() - began:.1f} s"
        )

    def _serves(self, task: ArtifactTask, record: uptodate.Record) -> bool:
        settings = self._settings
        try:
            same = uptodate.is_up_to_date(
                record, fingerprint=task.fingerprint, project=settings.project, files=self._files
            )
        except OSError:
            return False  # an input that can't be read: the build says so with its path
        if same and record.isolation != "network-namespace" and self._requires_isolation():
            return False
        return same and (not record.dirty or self._still_dirty(tuple(record.dirty)))

    def _still_dirty(self, folders: tuple[str, ...]) -> bool:
        """Whether a tree that was dirty is so still; if not, the same bytes get a provenance that can be pushed."""
        from meshbuild.git import source_state  # noqa: PLC0415 - only what was built from a dirty tree asks

        if folders not in self._dirty:
            paths = [self._settings.project / folder for folder in folders]
            self._dirty[folders] = source_state(paths, os.environ)[1] is not False
        return self._dirty[folders]

    def _siblings(self, task: ArtifactTask) -> list[ArtifactTask]:
        return [
            other
            for other in self._group.tasks
            if other.manifest == task.manifest
            and other is not task
            and f"build:{other.name}" in _CHOSEN
            and not self._is_built(other)
        ]

    def _is_built(self, task: ArtifactTask) -> bool:
        record = uptodate.read_record(task.record_file(self._settings))
        return record is not None and self._serves(task, record)

    def _requires_isolation(self) -> bool:
        return self._settings.require_isolation or bool((self._group.options or {}).get("require_isolation"))

    def _workshop(self) -> Workshop:
        from meshbuild.assemble import Workshop  # noqa: PLC0415 - a no-op build must not import the stages

        with _ONE_WORKSHOP:
            if not _WORKSHOPS:
                settings = replace(self._settings, require_isolation=self._requires_isolation())
                memory = self._files.memory
                _WORKSHOPS.append(Workshop(settings, memory=memory, environ=os.environ, report=_report))
        return _WORKSHOPS[0]


def task_build() -> Iterator[Task | dict[str, Any]]:
    """Build every artifact, or those of the modules and artifacts that are named behind it."""
    group = _BuildGroup(
        "build",
        None,
        doc="Build artifacts: `doit build [MODULE | ARTIFACT | MODULE:ARTIFACT]...`",
        has_subtask=True,
        params=[
            {
                "name": "require_isolation",
                "long": "require-isolation",
                "type": bool,
                "default": False,
                "help": "refuse to build where compiling can't be cut off from the network",
            }
        ],
    )
    yield group
    try:
        settings = load_settings(Path.cwd(), os.environ)
        tasks = load_tasks(settings, _plan)
    except MeshbuildError as error:
        yield _failing(error)
        return
    if not tasks:
        yield _failing(MeshbuildError("nothing to build: no manifest.json here or in bundles/*/ lists an artifact"))
    group.tasks = tuple(tasks)
    run = _Run(settings, group, uptodate.Snapshot(_memory(settings)))
    for task in tasks:
        yield {
            "name": task.name,
            "doc": f"{task.module} {task.version}: {task.artifact} for {task.system}",
            "actions": [(_guarded, [f"build:{task.name}", partial(run.build, task)])],
            "uptodate": [partial(run.is_current, task)],
            "clean": [partial(_clean, settings, task)],
            "io": {"capture": False},
        }


def task_push() -> dict[str, Any]:
    """Publish what was built: one release for each module that changed."""
    flag = {
        "name": "allow_dirty",
        "long": "allow-dirty",
        "type": bool,
        "default": False,
        "help": "publish what was built from a tree with uncommitted changes, too",
    }
    return {**_simple("push", _push, task_dep=["build"]), "params": [flag]}


def task_toolchain() -> dict[str, Any]:
    """Fetch the pinned toolchain."""
    return _simple("toolchain", _fetch_toolchains)


def task_validate() -> dict[str, Any]:
    """Check every manifest and report every problem."""
    return _simple("validate", _validate)


def _simple(name: str, action: Callable[..., str], **more: Any) -> dict[str, Any]:  # noqa: ANN401 - doit's keywords
    def work(**options: bool) -> str:
        return action(load_settings(Path.cwd(), os.environ), **options)

    return {"actions": [(_guarded, [name, work])], "uptodate": [False], "io": {"capture": False}, **more}


def _failing(error: MeshbuildError) -> dict[str, Any]:
    def work() -> str:
        raise error

    return {
        "name": "project",
        "doc": "can't be read",
        "actions": [(_guarded, ["build:project", work])],
        "io": {"capture": False},
    }


def _guarded(name: str, work: Callable[..., str], **options: bool) -> dict[str, str] | TaskFailed:
    """Run a task's work; an error of ours goes to the reporter, any other is a bug that doit shows as one."""
    try:
        return {"said": work(**options)}
    except MeshbuildError as error:
        _FAILED[name] = error
        return TaskFailed(str(error))
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; what was finished stays finished\n")
        raise SystemExit(130) from None


def _plan(settings: Settings) -> list[ArtifactTask]:
    from meshbuild.targets import plan_tasks  # noqa: PLC0415 - a no-op build must not import the stages

    return plan_tasks(settings)


def _memory(settings: Settings) -> uptodate.DigestMemory:
    memory = uptodate.DigestMemory(settings.state / "digests.json")
    _MEMORIES.append(memory)
    return memory


def _clean(settings: Settings, task: ArtifactTask) -> None:
    record = task.record_file(settings)
    for file in (settings.dist / task.file_name, record, record.with_suffix(".why")):
        file.unlink(missing_ok=True)


def _push(settings: Settings, *, allow_dirty: bool) -> str:
    from meshbuild.deliver import push_modules  # noqa: PLC0415

    pushed = push_modules(settings, modules=(), allow_dirty=allow_dirty, environ=os.environ, report=_report)
    return "\n".join(map(str, pushed))


def _fetch_toolchains(settings: Settings) -> str:
    from meshbuild.targets import fetch_toolchains  # noqa: PLC0415

    return "\n".join(fetch_toolchains(settings, environ=os.environ, report=_report))


def _validate(settings: Settings) -> str:
    tasks = load_tasks(settings, _plan)
    return f"{len({task.manifest for task in tasks})} manifests are valid"


def _report(text: str) -> None:
    sys.stderr.write(f"{text}\n")
