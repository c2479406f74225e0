"""Digests as a type."""

import hashlib
import io
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from meshbuild.digests import HashingReader, HashingWriter, Sha256

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_only_64_lower_case_hex_digits_are_a_digest() -> None:
    assert Sha256(EMPTY) == EMPTY
    for bad in ("", EMPTY[:-1], EMPTY + "0", EMPTY.upper(), EMPTY[:-1] + "g", EMPTY + "\n"):
        with pytest.raises(ValueError, match="64 lower-case hex"):
            Sha256(bad)


def test_of_bytes_and_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc" * 1000)
    assert Sha256.of(b"") == EMPTY
    assert Sha256.of_file(tmp_path / "f") == hashlib.sha256(b"abc" * 1000).hexdigest()
    assert Sha256.of(b"").short == EMPTY[:12]


def test_models_take_it_from_json_and_refuse_what_is_none() -> None:
    class Model(BaseModel):
        digest: Sha256

    assert isinstance(Model.model_validate_json(f'{{"digest":"{EMPTY}"}}').digest, Sha256)
    assert Model(digest=Sha256(EMPTY)).model_dump_json() == f'{{"digest":"{EMPTY}"}}'
    with pytest.raises(ValidationError):
        Model.model_validate({"digest": "abc"})


def test_streams_are_counted_and_hashed_on_the_way() -> None:
    sink = io.BytesIO()
    writer = HashingWriter(sink)
    writer.write(b"ab")
    writer.write(b"c")
    reader = HashingReader(io.BytesIO(b"abc"))
    assert reader.read(2) + reader.read() == sink.getvalue() == b"abc"
    assert writer.sha256 == reader.sha256 == Sha256.of(b"abc")
    assert writer.size_bytes == reader.size_bytes == 3
