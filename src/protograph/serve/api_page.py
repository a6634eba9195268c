"""A page on the API, made from its OpenAPI description. It needs no script."""

import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

CODE = re.compile("`([^`]*)`")


def render_api(described: dict[str, Any]) -> str:
    """Return the page on all routes."""
    environment = Environment(loader=PackageLoader("protograph.serve"), autoescape=True, undefined=StrictUndefined)
    environment.filters["coded"] = coded
    schemas = described.get("components", {}).get("schemas", {})
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, methods in described["paths"].items():
        for method, route in methods.items():
            groups.setdefault(route["tags"][0], []).append({"path": path, "method": method.upper(), **_route(route, schemas)})
    return environment.get_template("api.html").render(info=described["info"], groups=groups)


def coded(text: str) -> Markup:
    """Return a text as HTML, with what stands between backticks as code."""
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part) for place, part in enumerate(CODE.split(text))
    )


def _route(route: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    tables = []
    if parameters := route.get("parameters", ()):
        fields = {part["name"]: {**part["schema"], "description": part.get("description", "")} for part in parameters}
        required = [part["name"] for part in parameters if part.get("required", False)]
        tables.append(_table("query", {"properties": fields, "required": required}))
    for media_type, content in route.get("requestBody", {}).get("content", {}).items():
        tables.append(_table(media_type, _resolved(content["schema"], schemas)))
    answer = route.get("responses", {}).get("200", {}).get("content", {}).get("application/json", {}).get("schema", {})
    if "$ref" in answer:
        tables.append(_table("answer", {**_resolved(answer, schemas), "required": None}))
    return {"title": route.get("description") or route["summary"], "token": "security" in route, "tables": tables}


def _resolved(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    resolved: dict[str, Any] = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    return resolved


def _table(caption: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a schema; where it does not say which are required, none is shown as optional."""
    required = schema["properties"] if schema.get("required", ()) is None else schema.get("required", ())
    fields = [
        {"name": name, "required": name in required, "kind": _kind(part), "text": part.get("description", "")}
        for name, part in schema["properties"].items()
    ]
    return {"caption": caption, "fields": fields}


def _kind(schema: dict[str, Any]) -> str:
    """Return the kind of a value in words."""
    if "anyOf" in schema:
        kinds = dict.fromkeys(_kind(part) for part in schema["anyOf"])
        wider = {"null"} | ({"whole number"} if "number" in kinds else set())
        return " or ".join(kind for kind in kinds if kind not in wider)
    if schema.get("format") == "binary":
        return "file"
    if schema.get("type") == "array":
        return f"{_kind(schema['items'])}, several"
    kind = str(schema.get("type", "object" if "$ref" in schema else "any value"))
    return {"string": "text", "integer": "whole number", "boolean": "true or false"}.get(kind, kind)
