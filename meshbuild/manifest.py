"""The manifest of a module: what it claims, builds and runs, as frozen models, with every problem found in one pass.

`parse_manifest` is pure; `read_manifest` and the like look at the file system. docs/manifest.schema.json and
docs/manifest.md are generated from the models: a field's type and meaning stand here and nowhere else.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from meshbuild.errors import ManifestError
from meshbuild.jsontext import parse_json
from meshbuild.manifest_checks import MAX_ENTRIES, Problem, check_manifest, user_names
from meshbuild.paths import local_errors
from meshbuild.schemas import allowed, json_schema, locate, markdown_reference
from meshbuild.texts import (
    ACCOUNT,
    AbsolutePath,
    Account,
    Address,
    Argument,
    BundleFolder,
    CommandName,
    FileName,
    GoTag,
    GoVariable,
    Label,
    Mode,
    PlacedPath,
    SecretName,
    SourceFolder,
    SourceGlob,
    Stamp,
    Variable,
    Version,
    quoted,
    suggestion,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from pydantic_core import ErrorDetails

MANIFEST_NAME = "manifest.json"
MAX_MANIFEST_BYTES = 1 << 20


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
Listed = Annotated[tuple[_Value, ...], Field(max_length=MAX_ENTRIES)]
Mapped = Annotated[Mapping[_Key, _Value], Field(max_length=MAX_ENTRIES)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Claim(_Model):
    """A name that only one module may hold."""

    name: Label = Field(description="The name that is claimed.")
    scope: Literal["mesh", "host"] = Field(
        description="Where no other module may hold it: in the whole mesh or on a host."
    )


class Access(_Model):
    """A path outside the module that its processes may use."""

    path: AbsolutePath = Field(description="The file or folder; a folder stands for all below it.")
    mode: Literal["read", "write"] = Field(description="`read`, or `write`, which includes reading.")


class UserResource(_Model):
    """A system account that the host makes when it isn't there."""

    id: Label = Field(description="The resource's own name in this manifest.")
    type: Literal["user"] = Field(description="What the resource is.")
    name: Account = Field(description="The account's name.")
    shell: AbsolutePath | None = Field(None, description="Its login shell; where absent, one that refuses logins.")
    home: PlacedPath | None = Field(None, description="Its home folder; where absent, it has none.")


class DirectoryResource(_Model):
    """A folder that the host makes and keeps; `${dir:ID}` stands for its path."""

    id: Label = Field(description="The resource's own name in this manifest, the ID of `${dir:ID}`.")
    type: Literal["directory"] = Field(description="What the resource is.")
    mode: Mode = Field(description="Its permission bits in octal.")
    place: Label = Field(description="The host's name for where it lies; host.toml maps it to a path.")
    owner: Account = Field(description="The account that owns it: a user resource's name or an account of the host.")


class ProcessResource(_Model):
    """A program of a bundle that the host keeps running."""

    id: Label = Field(description="The resource's own name in this manifest.")
    type: Literal["process"] = Field(description="What the resource is.")
    name: Label = Field(description="The process's name; its unit is `<module>-<name>@<deployment>`.")
    artifact: Label = Field(description="The artifact of this manifest whose bundle the process runs from.")
    run: Listed[Argument] = Field(
        min_length=1,
        description="The program and its arguments. The program is `./` and a file of the bundle, or an absolute path. "
        "`${dir:ID}` and `${seat:NAME:PORT}` are replaced.",
    )
    user: Account = Field(description="The account it runs under: a user resource's name or an account of the host.")
    env: Mapped[Variable, Argument] = Field(
        {}, description="Its environment. In values `${dir:ID}` and `${seat:NAME:PORT}` are replaced."
    )
    replaces: Listed[Label] = Field(
        (), description="Resources of an earlier manifest that it takes the place of; they need not exist here."
    )
    listen: Listed[Address] = Field((), description="Addresses whose sockets the host opens and hands over.")
    notify: bool = Field(default=False, description="Whether the program itself tells systemd that it is ready.")
    health: Address | None = Field(
        None, description="Where this release alone is asked for its health, before and after it is switched to."
    )
    handover: Literal["beside", "socket", "stop-first"] = Field(
        "beside",
        description="How a new release takes over. `beside`: the old one answers until the new one has proved itself. "
        "`socket`: both serve the sockets under `listen` meanwhile. `stop-first`: the old one is stopped before.",
    )


class FileRule(_Model):
    """More files for the bundle."""

    from_: SourceGlob = Field(
        alias="from", description="A glob relative to the manifest; `**` is any depth of folders."
    )
    to: BundleFolder = Field(description="The folder of the bundle that they go into; `.` is its top.")
    mode: Literal["0644", "0755"] = Field("0644", description="Their permission bits in the bundle.")

    @property
    def source(self) -> str:
        """`from` without a leading `./`."""
        return _plain(self.from_)


class Artifact(_Model):
    """What to build, from where, for which system. An artifact may be listed once for each system."""

    name: Label = Field(description="The artifact's name, which processes refer to.")
    kind: Literal["bundle"] = Field(description="What is made: one signed bundle.")
    language: Literal["go"] = Field(description="What it is made from.")
    system: Label = Field(description="The target: a system of toolchains.toml.")
    from_: SourceFolder = Field(
        alias="from",
        description="The folder of its main package, relative to the manifest; "
        "its Go module is the nearest `go.mod` above.",
    )
    binary: FileName = Field(description="The program's file name in the bundle.")
    toolchain: Version | None = Field(
        None, description="Another version than the default one; it must be pinned in toolchains.toml."
    )
    tags: Listed[GoTag] = Field((), description="Go build tags that are set.")
    strip: bool = Field(default=True, description="Whether symbol table and debug information are left away (`-s -w`).")
    vcs: bool = Field(
        default=False,
        description="Whether the git revision is stamped as `go build` does; refuses a tree with changes.",
    )
    stamp: Mapped[GoVariable, Stamp] = Field(
        {},
        description="Go string variables and what the linker sets them to; `${module}`, `${version}` and `${commit}` "
        "are replaced.",
    )
    files: Listed[FileRule] = Field((), description="More files for the bundle.")

    @property
    def source(self) -> str:
        """`from` without a leading `./`; `.` is the manifest's own folder."""
        return _plain(self.from_)


class Build(_Model):
    """What is built from the module's code."""

    artifacts: Listed[Artifact] = Field((), description="The bundles to make.")


Resource = Annotated[UserResource | DirectoryResource | ProcessResource, Field(discriminator="type")]


class Manifest(_Model):
    """The declaration of a module, `manifest.json`: UTF-8 JSON of at most 1 MiB without unknown or duplicate keys."""

    module: Label = Field(description="The module's name, unique in the mesh.")
    version: Version = Field(description="Its version, for people: releases are ordered by their sequence number.")
    slug: Label | None = Field(None, description="A short name for the module.")
    claims: Listed[Claim] = Field((), description="Names that only this module may hold.")
    accesses: Listed[Access] = Field((), description="Paths outside the module that its processes may use.")
    own_secrets: Mapped[SecretName, PlacedPath] = Field(
        {},
        alias="own-secrets",
        description="The module's secrets, by name, and the paths at which its processes find them.",
    )
    secrets_owner: Account | None = Field(
        None, alias="secrets-owner", description="The account that owns them; required where there are own-secrets."
    )
    prepares: bool = Field(
        default=False,
        description="Whether a new release's program first runs once with the argument `prepare`. "
        "It does so while the old release lives, and must leave state that the old one can read.",
    )
    tools: Listed[CommandName] = Field((), description="The names of the commands that the module offers.")
    resources: Listed[Resource] = Field((), description="What the module needs on its host.")
    build: Build = Field(Build(), description="What is built.")

    @property
    def document(self) -> dict[str, Any]:
        """The JSON value that the manifest was parsed from: every key that was given, no defaults."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


def parse_manifest(
    data: bytes, *, where: str, systems: Collection[str] | None = None, toolchains: Collection[str] | None = None
) -> Manifest:
    """Parse a manifest's bytes and check all that can be checked without its code.

    Args:
        data: UTF-8 JSON of at most 1 MiB, as docs/manifest.md describes it.
        where: the file's name in messages.
        systems: the systems that artifacts may name, or None to take any.
        toolchains: the toolchain versions that artifacts may name, or None to take any.

    Raises:
        ManifestError: holding every problem, each as `resources[2].artifact: what is wrong; did you mean "x"?`.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise ManifestError(f"{where}: a manifest has at most {MAX_MANIFEST_BYTES} bytes; this one has more")
    try:
        document = parse_json(data)
    except ValueError as error:
        raise ManifestError(f"{where}: {error}") from error
    manifest = None
    problems: set[Problem] = set()
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        first, *_ = details = error.errors()
        if first["type"] == "json_invalid":  # deep nesting and lone surrogates, which parse_json takes
            raise ManifestError(f"{where}: is not JSON: {first['ctx']['error']}") from error
        problems.update(_problem(each, document) for each in details)
    problems.update(check_manifest(document, systems=systems, toolchains=toolchains))
    if manifest is None or problems:
        count = f"{len(problems)} problem{'' if len(problems) == 1 else 's'}"
        raise ManifestError(f"{where}: not a valid manifest, {count}:", problems=tuple(map(str, sorted(problems))))
    return manifest


def read_manifest(
    path: Path, *, systems: Collection[str] | None = None, toolchains: Collection[str] | None = None
) -> Manifest:
    """Parse the manifest at path, or path's manifest.json where path is a folder, as `parse_manifest` does.

    Raises:
        ManifestError: also when there is no such file.
        LocalFileError: when it can't be read.
    """
    with local_errors(f"read the manifest {path}"):
        file = path / MANIFEST_NAME if path.is_dir() else path
        try:
            with file.open("rb") as stream:
                data = stream.read(MAX_MANIFEST_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError) as error:
            hint = f"Pass a {MANIFEST_NAME}, or a folder that holds one."
            raise ManifestError(f"{file}: there is no such manifest", hint=hint) from error
    return parse_manifest(data, where=str(file), systems=systems, toolchains=toolchains)


def read_manifests(
    paths: Iterable[Path], *, systems: Collection[str] | None = None, toolchains: Collection[str] | None = None
) -> dict[Path, Manifest]:
    """Parse all manifests of a project, and check that no two declare the same module or hold the same claim.

    Raises:
        ManifestError: holding the problems of all of them, each behind its file's name.
        LocalFileError: when one can't be read.
    """
    manifests: dict[Path, Manifest] = {}
    errors: list[ManifestError] = []
    for path in paths:
        try:
            manifests[path] = read_manifest(path, systems=systems, toolchains=toolchains)
        except ManifestError as error:
            errors.append(error)
    conflicts = list(_conflicts(manifests))
    if len(errors) == 1 and not conflicts:
        raise errors[0]
    if errors or conflicts:
        problems = [*(str(error) for error in errors), *conflicts]
        raise ManifestError(f"not valid manifests, {len(problems)} findings:", problems=tuple(problems))
    return manifests


def find_manifests(root: Path) -> tuple[Path, ...]:
    """The manifests of the project at root that are there, of `manifest.json` and `bundles/*/manifest.json`, sorted.

    Raises:
        LocalFileError: when a folder can't be listed.
    """
    with local_errors(f"look for manifests in {root}"):
        candidates = (root / MANIFEST_NAME, *root.glob(f"bundles/*/{MANIFEST_NAME}"))
        return tuple(sorted(path for path in candidates if path.is_file()))


def manifest_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a manifest. It can't say what `manifest_checks` checks between entries."""
    return json_schema(Manifest, identity="urn:meshbuild:manifest:1")


def manifest_reference() -> str:
    """Markdown: every key of a manifest with its type, its default and its meaning."""
    return markdown_reference(_schema())


_schema = functools.cache(manifest_schema)


def _plain(relative: str) -> str:
    return relative.removeprefix("./") or "."


def _conflicts(manifests: Mapping[Path, Manifest]) -> Iterator[str]:
    holders: dict[str, Path] = {}
    for path, manifest in manifests.items():
        claims = (f"the claim {quoted(claim.name)} of scope {claim.scope}" for claim in manifest.claims)
        for name in (f"the module {quoted(manifest.module)}", *claims):
            if name in holders:
                yield f"{path}: {name} is taken by {holders[name]}"
            holders.setdefault(name, path)


def _problem(error: ErrorDetails, document: object) -> Problem:
    """Say a pydantic error in the words of the manifest."""
    path, schema = locate(_schema(), error["loc"])
    value = error["input"]
    match error["type"]:
        case "missing":
            text = "is missing"
        case "extra_forbidden":
            _, parent = locate(_schema(), error["loc"][:-1])
            text = f"unknown key{suggestion(path[-1], allowed(parent))}"
        case "literal_error":
            text = _not_allowed(value, schema)
        case "union_tag_invalid":
            path, text = (*path, "type"), _not_allowed(value["type"], schema)
        case "union_tag_not_found":
            path, text = (*path, "type"), "is missing"
        case "value_error":
            accounts = user_names(document) if schema.get("title") == ACCOUNT.what else ()
            text = f"{error['ctx']['error']}{suggestion(value, accounts)}"
        case "too_short":
            text = "is empty"
        case "too_long":
            text = f"has more than {error['ctx']['max_length']} entries"
        case kind:
            text = f"must be {_EXPECTED[kind]}, not {quoted(value)}" if kind in _EXPECTED else error["msg"]
    return Problem(path, text)


def _not_allowed(value: object, schema: dict[str, Any]) -> str:
    names = allowed(schema)
    choice = " or ".join(quoted(name) for name in names)
    return f"must be {choice}, not {quoted(value)}{suggestion(value, names)}"


_EXPECTED = {
    "string_type": "a string",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
}
