"""Downloading Go modules with the user's own proxies, credentials and git; and keeping what is secret of them.

The download step alone sees any of this: what compiles, what is said in statements and what is recorded never does.
"""

from __future__ import annotations

import base64
import os
import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from meshbuild.paths import local_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Variables of the user that the download step sees: where modules come from, who may have them, how git asks for them.
# https://go.dev/ref/mod#environment-variables, https://git-scm.com/docs/git#_environment_variables
_VARIABLES = re.compile(
    r"GOPROXY|GOSUMDB|GOPRIVATE|GONOPROXY|GONOSUMDB|GOINSECURE|GOAUTH|GOVCS|NETRC"
    r"|(?:HTTP|HTTPS|NO|ALL)_PROXY|(?:http|https|no|all)_proxy|SSL_CERT_FILE|SSL_CERT_DIR"
    r"|GIT_CONFIG_(?:GLOBAL|SYSTEM|NOSYSTEM|COUNT|KEY_[0-9]+|VALUE_[0-9]+|PARAMETERS)|GIT_ASKPASS|SSH_ASKPASS"
    r"|GIT_SSH|GIT_SSH_COMMAND|GIT_SSL_[A-Z]+|SSH_AUTH_SOCK"
)
_USERINFO = re.compile(r"(?<=://)[^/\s\"'<>]+(?=@)")
_AUTHORIZATION = re.compile(r"(?i)(?<=\bauthorization:)(\s*(?:(?:basic|bearer|token)\s+)?)([^\s\"']+)")
_HIDDEN = "***"
_MIN_SECRET = 4  # shorter ones would hide half of a message
_MAX_FILE_BYTES = 1 << 20


def download_environment(env: Mapping[str, str], environ: Mapping[str, str], *, home: Path) -> dict[str, str]:
    """The environment of the download step.

    HOME is the user's, since netrc, git's settings, and the commands that git and GOAUTH ask for credentials look
    there. The go command's own settings stay out: GOENV is off, and its folder for settings is the build's.

    Args:
        env: the compiler's environment.
        environ: the user's.
        home: the build's private HOME, with Go's telemetry turned off in it.

    Raises:
        LocalFileError: the private HOME can't be written.
    """
    download = {name: value for name, value in env.items() if name != "GOPROXY"}
    download |= {name: value for name, value in environ.items() if _VARIABLES.fullmatch(name)}
    download["PATH"] += os.pathsep + environ.get("PATH", os.defpath)
    settings = home / ".config"
    download |= {"HOME": environ.get("HOME", "/"), "XDG_CONFIG_HOME": str(settings)}
    git = _git_settings(environ)
    with local_errors(f"prepare {settings}"):
        settings.mkdir(parents=True, exist_ok=True)
        if git.is_dir() and not (settings / "git").is_symlink():
            (settings / "git").symlink_to(git.absolute())
    return download


def scrub(text: str, environ: Mapping[str, str]) -> str:
    """Text for people and logs without the secrets of the user's environment.

    Whatever stands for user and password in an address, or behind `Authorization:`, goes, wherever it came from; and
    the passwords of the user's variables, netrc and git settings wherever they stand, as they are, percent-encoded, and
    as HTTP's basic authentication spells them.
    """
    text = _USERINFO.sub(_HIDDEN, text)
    text = _AUTHORIZATION.sub(rf"\1{_HIDDEN}", text)
    for secret in sorted(_secrets(environ), key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return text


def _secrets(environ: Mapping[str, str]) -> set[str]:
    known = [value for name, value in environ.items() if _VARIABLES.fullmatch(name)]
    home = Path(environ.get("HOME", "/"))
    known += map(_read, (home / ".gitconfig", _git_settings(environ) / "config", home / ".git-credentials"))
    pairs = [_pair(userinfo) for text in known for userinfo in _USERINFO.findall(text)]
    pairs += _netrc(_read(Path(environ.get("NETRC", home / ".netrc"))))
    found = {match[2] for text in known for match in _AUTHORIZATION.finditer(text)}
    for user, password in pairs:
        for secret in (password or user, unquote(password or user)):
            found.add(secret)
        for login in (f"{user}:{password}", f"{unquote(user)}:{unquote(password)}"):
            found.add(base64.b64encode(login.encode()).decode())
    return {secret for secret in found if len(secret) >= _MIN_SECRET}


def _pair(userinfo: str) -> tuple[str, str]:
    user, _, password = userinfo.partition(":")
    return user, password


def _netrc(text: str) -> Iterator[tuple[str, str]]:
    """Login and password of each entry, as the go command reads them: words apart by blanks."""
    words = text.split()
    login = ""
    for key, value in pairwise(words):
        if key == "login":
            login = value
        elif key == "password":
            yield login, value


def _git_settings(environ: Mapping[str, str]) -> Path:
    """The folder of git's settings beside ~/.gitconfig."""
    return Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/")) / ".config") / "git"


def _read(file: Path) -> str:
    """The text of a small file; empty where there is none to read."""
    try:
        with file.open("rb") as opened:
            return opened.read(_MAX_FILE_BYTES).decode(errors="replace")
    except OSError:
        return ""
