"""Pins written into a toolchains.toml, whose comments and order stay."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING, Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Table

from meshbuild.errors import PinsError
from meshbuild.paths import local_errors, write_atomically
from meshbuild.pins import parse_pins

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from meshbuild.pins import Pins, Source, ToolchainPin

_BY_HAND = "Add the table by hand; its text is:"


def write_pins(path: Path, pins: Sequence[ToolchainPin], *, default: str | None = None) -> bool:
    """Write pins into a toolchains.toml, as `with_pins` adds them, whole or not at all.

    Returns:
        Whether the file was changed.

    Raises:
        PinsError: as `with_pins`.
        LocalFileError: the file can't be read or written.
    """
    with local_errors(f"add pins to {path}"):
        before = path.read_bytes()
        after = with_pins(before, pins, default=default, where=str(path))
        if after != before:
            # Resolved, so that a link stays one.
            write_atomically(path.resolve(), after, mode=stat.S_IMODE(path.stat().st_mode))
    return after != before


def with_pins(data: bytes, pins: Sequence[ToolchainPin], *, default: str | None = None, where: str) -> bytes:
    """A toolchains.toml with pins added; comments, order and all else stay byte for byte.

    A new table comes behind the last one of its version, else of `[go]`; a source that a table lacks behind its
    others. Pins that are there already change nothing.

    Args:
        data: the file's content, valid.
        pins: what shall be in it, as `decide_pin` gives it.
        default: the version to make the default one; None leaves it.
        where: the file's name, for messages.

    Raises:
        PinsError: the file isn't valid, or is written in a way that can't be added to; the hint has the text to add.
    """
    before = parse_pins(data, where=where)
    expected = _expected(before, pins, default or before.default)
    if expected == before:
        return data
    texts = [_table_text(pin) for pin in pins]
    try:
        document = tomlkit.parse(data)
        go: Any = document["go"]
        if before.default != expected.default:
            go["default"] = default
        for pin in pins:
            _add(go, pin)
        after = tomlkit.dumps(document).encode()
        if parse_pins(after, where=where) == expected:
            return after
    except (TOMLKitError, PinsError, TypeError, ValueError, AttributeError, LookupError) as error:
        raise PinsError(f"{where}: can't be added to: {error}", hint="\n".join([_BY_HAND, *texts])) from error
    raise PinsError(f"{where}: can't be added to as it is written", hint="\n".join([_BY_HAND, *texts]))


def _expected(before: Pins, pins: Sequence[ToolchainPin], default: str) -> Pins:
    toolchains = {version: dict(platforms) for version, platforms in before.toolchains.items()}
    for pin in pins:
        toolchains.setdefault(pin.version, {})[pin.platform] = pin
    return before.model_copy(update={"default": default, "toolchains": toolchains})


def _table_text(pin: ToolchainPin) -> str:
    rows = "".join(f"  {_row_text(source)},\n" for source in pin.sources)
    return f'[go."{pin.version}".{pin.platform}]\ntree = "{pin.tree}"\nsources = [\n{rows}]\n'


def _row_text(source: Source) -> str:
    """A source as an inline table; JSON's strings and numbers are TOML's."""
    order = ("kind", "url", "version", "requirement", "sha256", "size_bytes", "h1")
    values = source.model_dump(exclude_none=True)
    return f"{{ {', '.join(f'{key} = {json.dumps(values[key])}' for key in order if key in values)} }}"


def _add(go: Table, pin: ToolchainPin) -> None:
    """Add a pin to the [go] table of a document."""
    platforms: Any = go.get(pin.version)
    if platforms is not None and pin.platform in platforms:
        rows = platforms[pin.platform]["sources"]
        for source in pin.sources[len(rows) :]:
            rows.add_line(tomlkit.parse(f"x = {_row_text(source)}")["x"], indent="  ")
        return
    last = _last_table(go if platforms is None else platforms)
    # What stands behind that table, mostly a comment on the next one, goes behind the new one.
    behind: list[Any] = []
    while last.value.body and last.value.body[-1][0] is None:
        behind.insert(0, last.value.body.pop())
    last.value.body.append((None, tomlkit.ws("\n")))
    added: Any = tomlkit.parse(_table_text(pin))["go"]
    added[pin.version][pin.platform].value.body.extend(behind)
    if platforms is None:
        go[pin.version] = added[pin.version]
    else:
        platforms[pin.platform] = added[pin.version][pin.platform]


def _last_table(table: Table) -> Table:
    """The table whose text ends the text of a table."""
    last = [value for _, value in table.value.body if isinstance(value, Table)]
    return _last_table(last[-1]) if last else table
