"""The kinds of text that documents hold, each a pattern with a name for people, and how text is shown in messages."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated

from pydantic_core import core_schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue

_MAX_SHOWN = 80
_MAX_KNOWN = 100  # comparing is slow, and a manifest may come from elsewhere


def quoted(value: object) -> str:
    """A JSON value for a message: cut to a sane length, with nothing in it that a terminal would obey."""
    cut = value[:_MAX_SHOWN] if isinstance(value, str) else value
    text = json.dumps(cut, ensure_ascii=False)
    if not text.isprintable():
        text = json.dumps(cut)
    return text if cut == value and len(text) <= 2 * _MAX_SHOWN else f"{text[: 2 * _MAX_SHOWN]}..."


def printable(text: str, *, keep: str = "") -> str:
    """Text with nothing in it that a terminal would obey: what a bundle says may hold that. `keep` names exceptions."""
    return "".join(letter if letter.isprintable() or letter in keep else repr(letter)[1:-1] for letter in text)


def root_cause(error: BaseException) -> str:
    """What an error says that others were raised from: of a library's, the system's own words."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def suggestion(wrong: object, known: Iterable[str]) -> str:
    """`; did you mean "x"?` when one of the first hundred known names is near to the wrong one, else nothing."""
    near = difflib.get_close_matches(wrong, list(islice(known, _MAX_KNOWN)), n=1) if isinstance(wrong, str) else []
    return f"; did you mean {quoted(near[0])}?" if near else ""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of string for `Annotated[str, Kind(...)]` in a pydantic model.

    Attributes:
        what: its name, such as "a DNS label", as it follows "is not" in a message; the title in a JSON Schema.
        pattern: what the whole string matches, in the syntax that Python and ECMA-262 share.
        max_length: in characters.
    """

    what: str
    pattern: str
    max_length: int = 1024

    def check(self, value: str) -> str:
        """Return value when it is of this kind, else raise ValueError."""
        if len(value) > self.max_length:
            raise ValueError(f"{quoted(value)} is longer than {self.max_length} characters")
        if not re.fullmatch(self.pattern, value):
            raise ValueError(f"{quoted(value)} is not {self.what}")
        return value

    def __get_pydantic_core_schema__(self, source: type[str], handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        limits = {"pattern": f"^(?:{self.pattern})$", "maxLength": self.max_length}
        return {**handler(schema), "title": self.what, **limits}


_CONTROL = r"\x00-\x1f\x7f-\x9f"
_PART = rf"(?!\.\.?(?:/|$))[^/\\{_CONTROL}]+"
_BELOW = rf"{_PART}(?:/{_PART})*"
_PLACED_PART = rf"(?!\.\.?(?:/|$))(?:(?!\$\{{)[^/\\{_CONTROL}])+"
_IP_PORT = r"(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"

LABEL = Kind("a DNS label (a-z, 0-9 and -, at most 63)", _LABEL)
VERSION = Kind("a version (no /, space or control character)", rf"[^/\s{_CONTROL}]+", max_length=128)
COMMAND_NAME = Kind("a command's name (a-z, 0-9, -, _ and .)", r"[a-z0-9][a-z0-9._-]*", max_length=63)
SECRET_NAME = Kind("a secret's name (letters, digits, -, _ and .)", r"[A-Za-z0-9_][A-Za-z0-9._-]*", max_length=127)
ACCOUNT = Kind("an account's name (a-z, 0-9, - and _, at most 31)", r"[a-z_][a-z0-9_-]{0,30}")
MODE = Kind('a mode of four octal digits, such as "0750"', r"[0-7]{4}")
ABSOLUTE_PATH = Kind("an absolute path without empty, . or .. parts", rf"(?:/{_PART})+")
PLACED_PATH = Kind(
    "a path that is absolute or starts with ${dir:ID}, without empty, . or .. parts",
    rf"\$\{{[^}}]*\}}(?:/{_PLACED_PART})*|(?:/{_PLACED_PART})+",
)
SOURCE_FOLDER = Kind("a relative folder without empty or .. parts", rf"(?:\./)?{_BELOW}|\./?")
SOURCE_GLOB = Kind("a relative glob without empty, . or .. parts", rf"(?:\./)?{_BELOW}")
BUNDLE_FOLDER = Kind(
    "a relative folder outside .bundle without empty, . or .. parts", rf"\.|(?!\.bundle(?:/|$)){_BELOW}"
)
FILE_NAME = Kind("a plain file name (no /, not starting with .)", rf"(?!\.)[^/\\{_CONTROL}]+", max_length=255)
GO_TAG = Kind("a Go build tag (letters, digits, _ and .)", r"[A-Za-z0-9_.]+")
GO_VARIABLE = Kind(
    'a Go variable with its package, such as "main.version"', r"[A-Za-z0-9_./~+-]+\.[A-Za-z_][A-Za-z0-9_]*"
)
STAMP = Kind(
    "a text without quotes whose only placeholders are ${module}, ${version} and ${commit}",
    rf"(?:[^$\"'{_CONTROL}]|\$(?!\{{)|\$\{{(?:module|version|commit)\}})*",
)
VARIABLE = Kind("an environment variable's name (letters, digits and _)", r"[A-Za-z_][A-Za-z0-9_]*")
ARGUMENT = Kind("a text without NUL", r"[^\x00]*", max_length=1 << 16)
ADDRESS = Kind("IP:PORT, [IPv6]:PORT or the absolute path of a unix socket", rf"{_IP_PORT}|(?:/{_PART})+")

Label = Annotated[str, LABEL]
Version = Annotated[str, VERSION]
CommandName = Annotated[str, COMMAND_NAME]
SecretName = Annotated[str, SECRET_NAME]
Account = Annotated[str, ACCOUNT]
Mode = Annotated[str, MODE]
AbsolutePath = Annotated[str, ABSOLUTE_PATH]
PlacedPath = Annotated[str, PLACED_PATH]
SourceFolder = Annotated[str, SOURCE_FOLDER]
SourceGlob = Annotated[str, SOURCE_GLOB]
BundleFolder = Annotated[str, BUNDLE_FOLDER]
FileName = Annotated[str, FILE_NAME]
GoTag = Annotated[str, GO_TAG]
GoVariable = Annotated[str, GO_VARIABLE]
Stamp = Annotated[str, STAMP]
Variable = Annotated[str, VARIABLE]
Argument = Annotated[str, ARGUMENT]
Address = Annotated[str, ADDRESS]
