"""What the download step sees of the user's environment, and which secrets come out of a text again."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest

from meshbuild.godownload import download_environment, scrub

if TYPE_CHECKING:
    from pathlib import Path

ENV = {"PATH": "/go/bin", "HOME": "/build/home", "GOENV": "off", "GOPROXY": "off", "GOPATH": "/build/home/go"}
SECRET = "s3cret/t+ken"


def test_the_download_has_the_users_settings_and_the_builds_own(tmp_path: Path) -> None:
    users = {
        "HOME": str(tmp_path / "user"),
        "PATH": "/usr/bin",
        "GOPRIVATE": "private.example",
        "GOAUTH": "netrc",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "a.b",
        "GIT_CONFIG_VALUE_0": "c",
        "SSH_AUTH_SOCK": "/agent",
        "GOFLAGS": "-tags=x",
        "GOENV": "/user/env",
        "GOTOOLCHAIN": "go1.1",
        "GIT_DIR": "/elsewhere",
        "LD_PRELOAD": "/evil.so",
    }
    found = download_environment(ENV, users, home=tmp_path / "home")
    assert found == {
        "PATH": "/go/bin:/usr/bin",
        "HOME": str(tmp_path / "user"),
        "XDG_CONFIG_HOME": str(tmp_path / "home/.config"),
        "GOENV": "off",
        "GOPATH": "/build/home/go",
        **{name: users[name] for name in users if name.startswith(("GOPRIVATE", "GOAUTH", "GIT_CONFIG", "SSH"))},
    }
    assert "GOPROXY" not in found, "the go command's own default, unless the user names one"
    assert download_environment(ENV, {"GOPROXY": "https://p"}, home=tmp_path / "home")["GOPROXY"] == "https://p"


def test_gits_settings_are_found_where_the_user_has_them(tmp_path: Path) -> None:
    for folder in ("user/.config/git", "elsewhere/git"):
        (tmp_path / folder).mkdir(parents=True)
    users = {"HOME": str(tmp_path / "user")}
    download_environment(ENV, users, home=tmp_path / "one")
    download_environment(ENV, users, home=tmp_path / "one")
    assert (tmp_path / "one/.config/git").resolve() == tmp_path / "user/.config/git"
    download_environment(ENV, {**users, "XDG_CONFIG_HOME": str(tmp_path / "elsewhere")}, home=tmp_path / "two")
    assert (tmp_path / "two/.config/git").resolve() == tmp_path / "elsewhere/git"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Get https://user:pw@host/x: 403", "Get https://***@host/x: 403"),
        ("unable to access 'https://token@host/x'", "unable to access 'https://***@host/x'"),
        ("https://u:p@ss@host/ and ssh://git@host/", "https://***@host/ and ssh://***@host/"),
        (
            "module example.com/x@v1.2.3: https://proxy/x/@v/v1.mod",
            "module example.com/x@v1.2.3: https://proxy/x/@v/v1.mod",
        ),
        ("send: Authorization: Basic abc= now", "send: Authorization: Basic *** now"),
        ("authorization: Bearer abc", "authorization: Bearer ***"),
        ("AUTHORIZATION:abc", "AUTHORIZATION:***"),
        ("plain text about authorization", "plain text about authorization"),
    ],
)
def test_what_looks_like_a_secret_goes(text: str, clean: str, tmp_path: Path) -> None:
    assert scrub(text, {"HOME": str(tmp_path)}) == clean


def spellings(user: str, password: str) -> list[str]:
    return [password, base64.b64encode(f"{user}:{password}".encode()).decode()]


@pytest.mark.parametrize(
    "place",
    [
        "GOPROXY",
        "HTTPS_PROXY",
        "GIT_CONFIG_VALUE_3",
        ".netrc",
        "NETRC",
        ".gitconfig",
        ".config/git/config",
        ".git-credentials",
    ],
)
def test_the_users_secrets_go_wherever_they_stand(place: str, tmp_path: Path) -> None:
    encoded = "s3cret%2Ft%2Bken"
    address = f"https://bot:{encoded}@host/"
    environ = {"HOME": str(tmp_path)}
    if place == "NETRC":
        environ["NETRC"] = str(tmp_path / "elsewhere")
        (tmp_path / "elsewhere").write_text(f"machine host\nlogin bot\npassword {SECRET}\n")
    elif place == ".netrc":
        (tmp_path / place).write_text(f"default login x password abcd\nmachine host login bot password {SECRET}")
    elif place.startswith("."):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(f'[url "{address}"]\n\tinsteadOf = https://host/\n')
    else:
        environ[place] = f"https://first|{address},direct"
    written = [encoded] if "netrc" not in place.lower() else []
    for secret in [*spellings("bot", SECRET), *written]:
        assert scrub(f"so {secret}, says it", environ) == "so ***, says it"


def test_headers_in_gits_settings_are_secrets(tmp_path: Path) -> None:
    (tmp_path / ".gitconfig").write_text("[http]\n\textraHeader = Authorization: Basic Ym90OnNlY3JldA==\n")
    assert scrub("git said Ym90OnNlY3JldA==", {"HOME": str(tmp_path)}) == "git said ***"


def test_short_passwords_and_odd_files_hide_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_bytes(b"\xff\xfe machine host login a password b\nmacdef x\npassword")
    (tmp_path / ".gitconfig").mkdir()
    assert scrub("a bad build", {"HOME": str(tmp_path), "GOPROXY": "https://a:b@host"}) == "a bad build"
