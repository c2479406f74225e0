"""Whatever the bytes, a manifest parses or is refused with ManifestError; what parses survives being written again."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
from hypothesis import given
from hypothesis import strategies as st

from meshbuild.errors import ManifestError
from meshbuild.manifest import Manifest, manifest_schema, parse_manifest

SEED = json.loads((Path(__file__).parents[1] / "unit" / "data" / "seed_manifest.json").read_bytes())
SCHEMA = jsonschema.Draft202012Validator(manifest_schema())

NAMES = ["controller", "server", "user", "process", "directory", "type", "from", "[key]", "listen", "handover", "arch"]
WORDS = [
    "./mesh-controller",
    "./cmd/x",
    "/a/../b",
    "..",
    ".",
    "/",
    "${dir:mesh-state}/x",
    "${dir:",
    "${seat:a:1}",
    "0755",
]
ADDRESSES = ["127.0.0.1:1", "1.2.3.999:0", "[::1]:x", "[::]:80", "/run/x.sock"]
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=())),  # lone surrogates too
    st.sampled_from([*NAMES, *WORDS, *ADDRESSES]),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def places(value: Any) -> list[Any]:
    """Every list and object in a JSON value."""
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [*([value] if isinstance(value, (dict, list)) else []), *(place for each in below for place in places(each))]


@st.composite
def mutated_seeds(draw: st.DrawFn) -> Any:
    document = copy.deepcopy(SEED)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.sampled_from(places(document)))
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if keys and draw(st.booleans()):
            del place[draw(st.sampled_from(keys))]
        elif keys and draw(st.booleans()):
            place[draw(st.sampled_from(keys))] = draw(VALUES)
        elif isinstance(place, dict):
            place[draw(TEXTS)] = draw(VALUES)
        else:
            place.append(copy.deepcopy(place[0]) if place and draw(st.booleans()) else draw(VALUES))
    return document


def parse_or_refuse(data: bytes) -> Manifest | None:
    try:
        return parse_manifest(data, where="m.json", systems=["arch"], toolchains=["1.27.2"])
    except ManifestError as error:
        refusal = error
    assert str(refusal).startswith("m.json: ")
    assert all(problem.isprintable() for problem in refusal.problems)
    assert str(refusal).encode()
    return None


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_parse_or_are_refused(data: bytes) -> None:
    parse_or_refuse(data)


@given(VALUES)
def test_any_json_value_parses_or_is_refused(value: Any) -> None:
    parse_or_refuse(json.dumps(value).encode())


@given(mutated_seeds())
def test_a_mutated_manifest_parses_to_the_same_document_or_is_refused(document: Any) -> None:
    manifest = parse_or_refuse(json.dumps(document).encode())
    if manifest is not None:
        assert manifest.document == document
        assert SCHEMA.is_valid(document)
        for written in (manifest.model_dump_json(by_alias=True), json.dumps(manifest.document)):
            assert parse_manifest(written.encode(), where="again") == manifest
