from __future__ import annotations

import pytest

from meshbuild import texts
from meshbuild.texts import Kind, quoted, suggestion


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", '"plain"'),
        ("größe", '"größe"'),
        ('say "x"', '"say \\"x\\""'),
        ("a\nb", '"a\\nb"'),
        ("\x1b[31m", '"\\u001b[31m"'),
        ("\x9b\u202e", '"\\u009b\\u202e"'),
        (["\x7f"], '["\\u007f"]'),
        (None, "null"),
        (True, "true"),
        ({"a": 1}, '{"a": 1}'),
    ],
)
def test_a_value_is_quoted_as_json_without_anything_a_terminal_obeys(value: object, shown: str) -> None:
    assert quoted(value) == shown


def test_a_long_value_is_cut_and_says_so() -> None:
    assert quoted("a" * 80) == f'"{"a" * 80}"'
    assert quoted("a" * 81) == f'"{"a" * 80}"...'
    assert len(quoted(["a" * 1000])) == 163


def test_a_near_name_is_suggested_and_a_far_one_is_not() -> None:
    assert suggestion("controler", ["server", "controller"]) == '; did you mean "controller"?'
    assert suggestion("x", ["server", "controller"]) == ""
    assert suggestion(3, ["3"]) == ""


def test_a_kind_matches_the_whole_string() -> None:
    kind = Kind("two letters", "[a-z]{2}", max_length=4)
    assert kind.check("ab") == "ab"
    for wrong in ("ab\n", "abc", "xab", ""):
        with pytest.raises(ValueError, match="is not two letters"):
            kind.check(wrong)
    with pytest.raises(ValueError, match="is longer than 4 characters"):
        kind.check("abcde")


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (texts.LABEL, ["a", "0", "a-b", "a" * 63], ["", "-a", "a-", "A", "a_b", "a.b", "ä", "a" * 64]),
        (
            texts.VERSION,
            ["1", "v1.2.3-rc.1+x", "ü", "a\\b"],
            ["", "a b", "a/b", "a\tb", "a\u2003b", "a\x85b", "a" * 129],
        ),
        (texts.ACCOUNT, ["root", "_apt", "a-1"], ["", "1a", "Root", "a" * 32, "a.b", "a:b"]),
        (texts.MODE, ["0700", "1777"], ["700", "07000", "0o700", "0780", ""]),
        (texts.ABSOLUTE_PATH, ["/a", "/a/b.c", "/..a/b.."], ["", "/", "a", "/a/", "//a", "/a/./b", "/a/..", "/a\n"]),
        (
            texts.PLACED_PATH,
            ["/a", "${dir:x}", "${dir:x}/a", "/a$b"],
            ["a", "${dir:x}a", "${dir:x}/", "${dir:x}/../a", "/a/${dir:x}", "$dir/x"],
        ),
        (
            texts.SOURCE_FOLDER,
            [".", "./", "a", "./a/b", "..."],
            ["", "..", "../a", "a/..", "/a", "a/", "a/./b", "a\\b"],
        ),
        (texts.SOURCE_GLOB, ["*", "./a/**", "a/[ab]?"], ["", ".", "../*", "/a", "a//b"]),
        (
            texts.BUNDLE_FOLDER,
            [".", "a/b", ".bundles", "a/.bundle"],
            ["", "./a", ".bundle", ".bundle/x", "/a", "..", "a/"],
        ),
        (texts.FILE_NAME, ["a", "a b", "ä-1.x"], ["", ".", "..", ".a", "a/b", "a\\b", "a\n", "a" * 256]),
        (texts.GO_TAG, ["netgo", "go1.27", "a_b"], ["", "a,b", "a b", "!a"]),
        (
            texts.GO_VARIABLE,
            ["main.version", "example.com/x-y/v2.Name"],
            ["", "version", "main.", "main.1", "a b.c", "a.b=c"],
        ),
        (texts.STAMP, ["", "a", "${commit}", "$", "$x", "v${version} b"], ["${", "${x}", "'", '"', "a\n", "${module"]),
        (texts.VARIABLE, ["A", "_a1"], ["", "1A", "A-B", "A=B", "A B"]),
        (
            texts.ADDRESS,
            ["1.2.3.4:5", "[::1]:80", "/run/a.sock"],
            ["", ":80", "80", "::1:80", "localhost:80", "a.sock", "/"],
        ),
        (texts.ARGUMENT, ["", "a\nb", "ä"], ["\x00", "a" * 65_537]),
        (texts.COMMAND_NAME, ["status", "a-b_c.d", "1"], ["", "-a", ".a", "A", "a b", "a/b"]),
        (texts.SECRET_NAME, ["bus", "A_b.c-d", "_x"], ["", ".x", "-x", "a/b", "a b"]),
    ],
    ids=lambda value: value.what if isinstance(value, Kind) else "",
)
def test_what_each_kind_takes_and_refuses(kind: Kind, right: list[str], wrong: list[str]) -> None:
    for text in right:
        assert kind.check(text) == text
    for text in wrong:
        with pytest.raises(ValueError, match=r"is not|is longer than"):
            kind.check(text)
