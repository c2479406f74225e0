"""The JSON Schema (2020-12) of a pydantic model, and what is read off it: Markdown tables, where a wrong value lies."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import GenerateJsonSchema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic import BaseModel
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema, core_schema

Schema = dict[str, Any]
JsonPath = tuple[str | int, ...]


def json_schema(model: type[BaseModel], *, identity: str) -> Schema:
    """The JSON Schema of a model's JSON form, with `identity` (a URI) as its `$id`."""
    schema = model.model_json_schema(schema_generator=_Generator)
    return {"$schema": GenerateJsonSchema.schema_dialect, "$id": identity, **schema}


def markdown_reference(schema: Schema) -> str:
    """One Markdown section a model of the schema, in the order in which they are met: purpose, and a table of keys."""
    models = [schema]
    for model in models:
        met = (schema["$defs"][name] for name in re.findall(r'"#/\$defs/(\w+)"', json.dumps(model["properties"])))
        models.extend(each for each in met if each not in models)
    return "\n".join(line for model in models for line in _section(model))


def locate(schema: Schema, location: Iterable[str | int]) -> tuple[JsonPath, Schema]:
    """Follow a pydantic error's `loc` down from the schema's root.

    Returns the path in the JSON value, which lacks the steps that pydantic adds (a union's tag, `[key]`), and the
    schema that holds there; an empty one where nothing is declared, as under an unknown key.
    """
    path: JsonPath = ()
    here = schema
    for step in location:
        if "discriminator" in here:
            here = _resolved(schema, {"$ref": here["discriminator"]["mapping"][step]})
        elif here.get("type", "object") in {"object", "array"}:
            path = (*path, step)
            here = _resolved(schema, _below(here, step))
    return path, here


def allowed(schema: Schema) -> list[str]:
    """The names that a schema lets one choose from: keys of an object, values of an enumeration, tags of a union."""
    if "discriminator" in schema:
        return list(schema["discriminator"]["mapping"])
    return list(schema.get("properties") or schema.get("enum") or [schema[key] for key in ("const",) if key in schema])


class _Generator(GenerateJsonSchema):
    """Leaves away titles made from field names, and says of an object's keys what a pattern alone can't."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002 - pydantic's signature
        return False

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        keys: CoreSchema = schema["keys_schema"]
        values: CoreSchema = schema["values_schema"]
        inner = {"propertyNames": self.generate_inner(keys), "additionalProperties": self.generate_inner(values)}
        made: JsonSchemaValue = {"type": "object", **inner}
        self.update_with_validations(made, schema, self.ValidationsMapping.object)
        return made


def _resolved(root: Schema, schema: Schema) -> Schema:
    if "$ref" in schema:
        found: Schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
        return found
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    return _resolved(root, options[0]) if len(options) == 1 else schema


def _below(schema: Schema, step: str | int) -> Schema:
    below = schema.get("items") if isinstance(step, int) else schema.get("properties", {}).get(step)
    others = schema.get("additionalProperties")
    return below or (others if isinstance(others, dict) else {})


def _section(model: Schema) -> Iterator[str]:
    yield from (f"## {model['title']}", "", model.get("description", ""), "")
    yield from ("| key | type | default | meaning |", "|---|---|---|---|")
    for key, field in model["properties"].items():
        default = "*required*" if key in model.get("required", ()) else _default(field)
        cells = (f"`{key}`", _type(field), default, field.get("description", ""))
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
    yield ""


def _default(field: Schema) -> str:
    default = field.get("default")
    return "none" if default is None else f"`{json.dumps(default)}`"


def _type(schema: Schema) -> str:  # noqa: PLR0911 - one return a form that a schema can have
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema or "oneOf" in schema:
        options = schema.get("anyOf") or schema["oneOf"]
        return " or ".join(_type(option) for option in options if option != {"type": "null"})
    if schema.get("type") == "array":
        return f"list, each {_type(schema['items'])}"
    if "propertyNames" in schema:
        return f"object; each key {_type(schema['propertyNames'])}, each value {_type(schema['additionalProperties'])}"
    if "enum" in schema or "const" in schema:
        return " or ".join(f'`"{value}"`' for value in allowed(schema))
    if schema.get("type") == "boolean":
        return "`true` or `false`"
    return str(schema.get("title", schema.get("type", "any")))
