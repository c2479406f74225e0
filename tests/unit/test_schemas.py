from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - pydantic evaluates the annotations
from typing import Annotated, Literal

import jsonschema
from pydantic import BaseModel, Field

from meshbuild.schemas import allowed, json_schema, locate, markdown_reference
from meshbuild.texts import Label, Variable  # noqa: TC001


class Cat(BaseModel):
    """It purrs."""

    type: Literal["cat"] = Field(description="What it is.")


class Dog(BaseModel):
    """It barks."""

    type: Literal["dog"] = Field(description="What it is.")
    tricks: tuple[Label, ...] = Field((), description="What it can do | or may.")


class House(BaseModel):
    """Where they live."""

    name: Label | None = Field(None, description="Its name.")
    size: Literal["small", "large"] = Field("small", description="How big it is.")
    open: bool = Field(default=False, description="Whether one may come in.")
    signs: Mapping[Variable, Label] = Field({}, max_length=3, description="What stands where.")
    pets: tuple[Annotated[Cat | Dog, Field(discriminator="type")], ...] = Field(description="Who lives in it.")


SCHEMA = json_schema(House, identity="urn:test:house")


def test_the_schema_checks_keys_and_values_of_an_object() -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    assert validator.is_valid({"pets": [{"type": "cat"}], "signs": {"DOOR": "hello"}})
    for wrong in ({"a b": "hello"}, {"DOOR": "Hello"}, dict.fromkeys("abcd", "x")):
        assert not validator.is_valid({"pets": [], "signs": wrong})


def test_the_reference_has_a_section_a_model_and_a_row_a_key() -> None:
    assert (
        markdown_reference(SCHEMA)
        == """\
## House

Where they live.

| key | type | default | meaning |
|---|---|---|---|
| `name` | a DNS label (a-z, 0-9 and -, at most 63) | none | Its name. |
| `size` | `"small"` or `"large"` | `"small"` | How big it is. |
| `open` | `true` or `false` | `false` | Whether one may come in. |
| `signs` | object; each key an environment variable's name (letters, digits and _), each value a DNS label \
(a-z, 0-9 and -, at most 63) | `{}` | What stands where. |
| `pets` | list, each [Cat](#cat) or [Dog](#dog) | *required* | Who lives in it. |

## Cat

It purrs.

| key | type | default | meaning |
|---|---|---|---|
| `type` | `"cat"` | *required* | What it is. |

## Dog

It barks.

| key | type | default | meaning |
|---|---|---|---|
| `type` | `"dog"` | *required* | What it is. |
| `tricks` | list, each a DNS label (a-z, 0-9 and -, at most 63) | `[]` | What it can do \\| or may. |
"""
    )


def test_a_location_loses_the_steps_that_are_not_in_the_value() -> None:
    path, schema = locate(SCHEMA, ("pets", 1, "dog", "tricks", 0))
    assert (path, schema["title"]) == (("pets", 1, "tricks", 0), "a DNS label (a-z, 0-9 and -, at most 63)")
    path, schema = locate(SCHEMA, ("signs", "a b", "[key]"))
    assert path == ("signs", "a b")
    assert locate(SCHEMA, ("signs", "[key]"))[0] == ("signs", "[key]")
    assert locate(SCHEMA, ("unknown",)) == (("unknown",), {})


def test_what_a_schema_lets_one_choose_from() -> None:
    assert allowed(SCHEMA) == ["name", "size", "open", "signs", "pets"]
    assert allowed(locate(SCHEMA, ("size",))[1]) == ["small", "large"]
    assert allowed(locate(SCHEMA, ("pets", 0))[1]) == ["cat", "dog"]
    assert allowed(locate(SCHEMA, ("pets", 0, "cat", "type"))[1]) == ["cat"]
    assert allowed(locate(SCHEMA, ("name",))[1]) == []
