"""JSON as meshbuild writes and reads it: one canonical spelling, and a reader that takes nothing ambiguous."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def canonical_json(value: object) -> bytes:
    r"""The one spelling of a JSON value: sorted keys, no blanks, UTF-8, no NaN, and a final newline.

    Two equal values have equal bytes, so the digest of the bytes can stand for the value.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def parse_json(data: bytes) -> Any:  # noqa: ANN401 - JSON is any
    """Parse UTF-8 JSON strictly: no duplicate keys, no NaN or infinities, no byte order mark.

    Raises:
        ValueError: with a message for people, naming line and column where the parser knows them.
    """
    if data.startswith(b"\xef\xbb\xbf"):
        raise ValueError("starts with a byte order mark; save it as plain UTF-8")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 at byte {error.start}") from error
    try:
        return json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise ValueError(f"has the key {key!r} twice in one object")
        seen[key] = value
    return seen


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"holds {name}, which is not JSON")
