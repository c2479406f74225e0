"""One spelling out, nothing ambiguous in."""

import pytest

from meshbuild.jsontext import canonical_json, parse_json


def test_equal_values_have_equal_bytes() -> None:
    assert canonical_json({"b": 1, "a": ["ü", None]}) == '{"a":["ü",null],"b":1}\n'.encode()
    assert canonical_json({"a": 1, "b": 2}) == canonical_json({"b": 2, "a": 1})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"a":1,"a":2}', "the key 'a' twice"),
        (b"[NaN]", "NaN"),
        (b"[-Infinity]", "-Infinity"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'"\xff"', "not UTF-8 at byte 1"),
        (b'{\n "a" 1}', "line 2, column 6"),
        (b"[" * 100_000, "nested too deeply"),
        (b"{} {}", "Extra data"),
    ],
)
def test_ambiguous_text_is_refused_with_its_reason(text: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_json(text)


def test_nan_is_not_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(float("nan"))
