"""What a manifest's entries must agree on, checked on the parsed JSON itself.

The models of `meshbuild.manifest` judge each value alone; here are the references between them. The checks look at a
JSON value that may be wrong elsewhere and pass over what they can't read: one pass reports both kinds of problem.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from meshbuild.texts import ADDRESS, quoted, suggestion

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from meshbuild.schemas import JsonPath

MAX_ENTRIES = 1000  # of one list or object, so that comparing each with each stays quick
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
_PLACEHOLDER = re.compile(r"\$\{([^}]*)(\}?)")
_SEAT = re.compile(r"seat:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?:([1-9][0-9]{0,4})")
_MAX_PORT = 65_535
_OTHER_TYPES = frozenset({"user", "directory"})


class Problem(NamedTuple):
    """One thing wrong with a manifest: where, as keys and indexes from the top, and what, as the rest of a sentence."""

    path: JsonPath
    text: str

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.text}" if self.path else self.text


@dataclass(frozen=True, slots=True)
class Node:
    """A place in a JSON value; what is absent or of another type than asked for reads as empty."""

    path: JsonPath
    value: object

    def get(self, *keys: str) -> Node:
        """The place below, key by key."""
        node = self
        for key in keys:
            found = node.value.get(key) if isinstance(node.value, dict) else None
            node = Node((*node.path, key), found)
        return node

    def items(self) -> list[Node]:
        """The elements of a list, as many as may be valid."""
        values = self.value[:MAX_ENTRIES] if isinstance(self.value, list) else []
        return [Node((*self.path, index), value) for index, value in enumerate(values)]

    def entries(self) -> list[Node]:
        """The values of an object, as many as may be valid; the last step of each path is its key."""
        keys = self.value if isinstance(self.value, dict) else {}
        return [self.get(key) for key in islice(keys, MAX_ENTRIES)]

    @property
    def text(self) -> str | None:
        """The string that lies here."""
        return self.value if isinstance(self.value, str) else None

    def strings(self) -> Iterator[tuple[Node, str]]:
        """Every string at or below this place, keys of objects left away."""
        if isinstance(self.value, str):
            yield self, self.value
        for below in (*self.items(), *self.entries()):
            yield from below.strings()


def check_manifest(
    document: object, *, systems: Collection[str] | None, toolchains: Collection[str] | None
) -> Iterator[Problem]:
    """Find what contradicts itself in a manifest's JSON value, of whatever shape; `None` leaves pins unchecked."""
    manifest = Node((), document)
    yield from _repetitions(manifest)
    yield from _missing_companions(manifest)
    yield from _pins(manifest, "system", systems)
    yield from _pins(manifest, "toolchain", toolchains)
    yield from _placeholders(manifest)
    artifacts = _artifacts(manifest)
    for process in _resources(manifest, "process"):
        yield from _artifact(process, artifacts)
        yield from _program(process, artifacts)
        for address in (*process.get("listen").items(), process.get("health")):
            yield from _address(address)


def user_names(document: object) -> list[str]:
    """The accounts that a manifest's JSON value declares."""
    return _present(user.get("name") for user in _resources(Node((), document), "user"))


def dotted(path: JsonPath) -> str:
    """A path as people write it: `resources[2].env.HOME`; a key that isn't plain stands in brackets and quotes."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{quoted(step)}]"
    return text


def _present(nodes: Iterable[Node]) -> list[str]:
    return [node.text for node in nodes if node.text is not None]


def _resources(manifest: Node, kind: str) -> list[Node]:
    return [resource for resource in manifest.get("resources").items() if resource.get("type").text == kind]


def _artifacts(manifest: Node) -> list[Node]:
    return manifest.get("build", "artifacts").items()


def _repetitions(manifest: Node) -> Iterator[Problem]:
    resources = manifest.get("resources").items()
    artifacts = _artifacts(manifest)
    yield from _repeated(manifest.get("claims").items(), "name", "scope")
    yield from _repeated(manifest.get("accesses").items(), "path")
    yield from _repeated(manifest.get("own-secrets").entries())
    yield from _repeated(manifest.get("tools").items())
    yield from _repeated(resources, "id")
    yield from _repeated(_resources(manifest, "user"), "name")
    yield from _repeated(_resources(manifest, "process"), "name")
    yield from _repeated(address for resource in resources for address in resource.get("listen").items())
    yield from _repeated(artifacts, "name", "system")
    for lists in (resource.get("replaces") for resource in resources), (artifact.get("tags") for artifact in artifacts):
        for each in lists:
            yield from _repeated(each.items())


def _repeated(nodes: Iterable[Node], *keys: str) -> Iterator[Problem]:
    """Report nodes whose strings under the keys, or that are themselves strings, equal those of an earlier node."""
    first: dict[tuple[str | None, ...], JsonPath] = {}
    for node in nodes:
        parts = [node.get(key) for key in keys] or [node]
        identity = tuple(part.text for part in parts)
        path = parts[0].path if len(parts) == 1 else node.path
        if None in identity:
            continue
        if identity in first:
            names = ", ".join(quoted(name) for name in identity)
            yield Problem(path, f"{names} stands already at {dotted(first[identity])}; it may be listed once")
        first.setdefault(identity, path)


def _missing_companions(manifest: Node) -> Iterator[Problem]:
    if manifest.get("own-secrets").value and manifest.get("secrets-owner").value is None:
        yield Problem(("secrets-owner",), "is missing; own-secrets need the account that owns them")
    types = [resource.get("type").text for resource in manifest.get("resources").items()]
    if manifest.get("prepares").value is True and _OTHER_TYPES.issuperset(types):
        yield Problem(("prepares",), "is true, but no resource is a process that could prepare")
    for process in _resources(manifest, "process"):
        if process.get("handover").text == "socket" and not process.get("listen").value:
            yield Problem(process.get("handover").path, 'is "socket", but the process has no address under listen')


def _pins(manifest: Node, key: str, known: Collection[str] | None) -> Iterator[Problem]:
    for artifact in _artifacts(manifest) if known is not None else ():
        node = artifact.get(key)
        if known is not None and node.text is not None and node.text not in known:
            near = suggestion(node.text, known)
            yield Problem(node.path, f"no {key} in toolchains.toml is named {quoted(node.text)}{near}")


def _artifact(process: Node, artifacts: list[Node]) -> Iterator[Problem]:
    names = [artifact.get("name").text for artifact in artifacts]
    wanted = process.get("artifact")
    # An artifact whose name can't be read may be the one that is meant.
    if wanted.text is not None and None not in names and wanted.text not in names:
        near = suggestion(wanted.text, (name for name in names if name))
        yield Problem(wanted.path, f"no artifact is named {quoted(wanted.text)}{near}")


def _program(process: Node, artifacts: list[Node]) -> Iterator[Problem]:
    program = next(iter(process.get("run").items()), Node((), None))
    path = program.text
    if path is None or path.startswith(("/", "${")):
        return
    if not path.startswith("./"):
        yield Problem(program.path, f'{quoted(path)} is neither "./" and a file of the bundle nor an absolute path')
        return
    for artifact in artifacts:
        name, binary = artifact.get("name").text, artifact.get("binary").text
        if name is None or name != process.get("artifact").text or binary is None or path == f"./{binary}":
            continue
        if not any(_may_give(rule, path[2:]) for rule in artifact.get("files").items()):
            near = suggestion(path, [f"./{binary}"]) or f"; its binary is {quoted(f'./{binary}')}"
            bundle = " for ".join(quoted(text) for text in (name, artifact.get("system").text) if text)
            yield Problem(program.path, f"the bundle of {bundle} has no program {quoted(path)}{near}")
            return  # the same artifact's other systems lack it too, as a rule


def _may_give(rule: Node, path: str) -> bool:
    """Whether a rule of `files` could put a program at path; what its glob matches is known only at the build."""
    glob, folder = rule.get("from").text, rule.get("to").text
    if glob is None or folder is None:
        return True
    parent, _, name = path.rpartition("/")
    return (
        rule.get("mode").text == "0755"
        and not {"", ".", ".."}.intersection(path.split("/"))
        and (folder == "." or f"{parent}/".startswith(f"{folder}/"))
        and fnmatch.fnmatchcase(name, glob.rpartition("/")[2])
    )


def _placeholders(manifest: Node) -> Iterator[Problem]:
    resources = manifest.get("resources").items()
    # A resource of an unknown type may have been meant as a directory.
    directories = _present(
        resource.get("id") for resource in resources if resource.get("type").text not in {"user", "process"}
    )
    paths = [manifest.get("own-secrets"), *(user.get("home") for user in _resources(manifest, "user"))]
    free = [process.get(key) for process in _resources(manifest, "process") for key in ("env", "run")]
    for places, seats_allowed in ((paths, False), (free, True)):
        for place in places:
            for node, text in place.strings():
                for match in _PLACEHOLDER.finditer(text):
                    problem = _placeholder_problem(match, directories, seats_allowed=seats_allowed)
                    if problem:
                        yield Problem(node.path, problem)


def _placeholder_problem(match: re.Match[str], directories: list[str], *, seats_allowed: bool) -> str:
    name, closed = match.groups()
    kind, _, rest = name.partition(":")
    shown = quoted(match[0])
    if not closed:
        return f"{shown} is not closed with }}"
    if kind == "dir":
        near = suggestion(rest, directories)
        return "" if rest in directories else f"no directory resource has the id {quoted(rest)}{near}"
    if kind == "seat":
        seat = _SEAT.fullmatch(name)
        if not seats_allowed:
            return f"{shown} is a port, and here stands a path"
        if not seat or int(seat[1]) > _MAX_PORT:
            return f"{shown} is not of the form ${{seat:NAME:PORT}} with a port from 1 to {_MAX_PORT}"
        return ""
    return f"{shown} is no placeholder; there are ${{dir:ID}} and ${{seat:NAME:PORT}}"


def _address(node: Node) -> Iterator[Problem]:
    """Judge the numbers of `IP:PORT`; what doesn't look like it is the model's to refuse."""
    address = node.text or ""
    host, _, port = address.rpartition(":")
    if address.startswith("/") or not re.fullmatch(ADDRESS.pattern, address):
        return
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        yield Problem(node.path, f"{quoted(host)} is not an IP address")
    if not 0 < int(port) <= _MAX_PORT:
        yield Problem(node.path, f"{quoted(port)} is not a port from 1 to {_MAX_PORT}")
