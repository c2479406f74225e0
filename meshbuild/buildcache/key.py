"""The key that builders share: who holds it may put into their build cache."""

from __future__ import annotations

import re
from pathlib import Path

from meshbuild.errors import SettingsError
from meshbuild.paths import local_errors

# 32 random bytes hold about 30 different ones; with less than half of that a key was typed, not drawn.
_MIN_HEX_DIGITS, _MIN_DIFFERENT_BYTES, _MAX_FILE_BYTES = 64, 16, 1024
_HINT = (
    "Make a key with `openssl rand -hex 32` and give the same one to every builder: in MESHBUILD_CACHE_KEY, "
    "or in a file that `file:PATH` names."
)


def read_cache_key(setting: str) -> bytes:
    """The key that a setting names: its hex digits, or `file:` and the path of a file that holds them.

    Raises:
        SettingsError: there is none, or it is too short or too regular to be random.
        LocalFileError: the file can't be read.
    """
    text = setting.strip()
    if text.startswith("file:"):
        path = Path(text.removeprefix("file:")).expanduser()
        with local_errors(f"read the build cache's key {path}"), path.open("rb") as file:
            text = file.read(_MAX_FILE_BYTES).decode("ascii", "replace").strip()
    if not text:
        raise SettingsError("a shared build cache needs a key, and MESHBUILD_CACHE_KEY is not set", hint=_HINT)
    if len(text) < _MIN_HEX_DIGITS or len(text) % 2 or not re.fullmatch("[0-9a-fA-F]+", text):
        raise SettingsError(
            f"the build cache's key: expected {_MIN_HEX_DIGITS} hex digits or more, found {len(text)} characters",
            hint=_HINT,
        )
    key = bytes.fromhex(text)
    if len(set(key)) < _MIN_DIFFERENT_BYTES:
        raise SettingsError("the build cache's key is too regular to be random", hint=_HINT)
    return key
