"""The tasks of a project come from a cache that anything they come from makes stale."""

import json
from pathlib import Path

import pytest

from meshbuild.project import ArtifactTask, load_tasks, manifest_files
from meshbuild.settings import Settings, load_settings

TASK = ArtifactTask(
    module="m", version="1", artifact="a", system="arch", manifest="manifest.json", fingerprint="f" * 64
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "toolchains.toml").write_text("")
    return load_settings(tmp_path, {})


class Planner:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, _settings: Settings) -> list[ArtifactTask]:
        self.calls += 1
        return [TASK]


def test_the_second_time_nothing_is_planned(settings: Settings) -> None:
    plan = Planner()
    assert load_tasks(settings, plan) == load_tasks(settings, plan) == [TASK]
    assert plan.calls == 1


@pytest.mark.parametrize("change", ["manifest", "pins", "new manifest", "settings", "cache"])
def test_what_the_tasks_come_from_makes_the_cache_stale(settings: Settings, change: str) -> None:
    plan = Planner()
    load_tasks(settings, plan)
    if change == "manifest":
        (settings.project / "manifest.json").write_text("{ }")
    elif change == "pins":
        (settings.project / "toolchains.toml").write_text("#")
    elif change == "new manifest":
        (settings.project / "bundles/x").mkdir(parents=True)
        (settings.project / "bundles/x/manifest.json").write_text("{}")
    elif change == "settings":
        settings = load_settings(settings.project, {"MESHBUILD_COMPRESSION_LEVEL": "3"})
    else:
        (settings.state / "tasks.json").write_text('{"key": 1')
    load_tasks(settings, plan)
    assert plan.calls == 2


def test_a_cache_of_another_shape_is_made_again(settings: Settings) -> None:
    plan = Planner()
    load_tasks(settings, plan)
    cache = settings.state / "tasks.json"
    value = json.loads(cache.read_text())
    value["tasks"] = [{"other": 1}]
    cache.write_text(json.dumps(value))
    assert load_tasks(settings, plan) == [TASK]
    assert plan.calls == 2


def test_manifests_are_at_the_root_and_one_folder_down(settings: Settings) -> None:
    for folder in ("bundles/b", "bundles/a", "bundles/a/deep", "elsewhere"):
        (settings.project / folder).mkdir(parents=True, exist_ok=True)
        (settings.project / folder / "manifest.json").write_text("{}")
    found = [str(file.relative_to(settings.project)) for file in manifest_files(settings.project)]
    assert found == ["manifest.json", "bundles/a/manifest.json", "bundles/b/manifest.json"]


def test_names(settings: Settings) -> None:
    assert TASK.name == "m:a:arch"
    assert TASK.file_name == "m.a-1-arch.tar.zst"
    assert TASK.record_file(settings) == settings.state / "built/m.a.arch.json"
