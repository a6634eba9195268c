"""A page on the API, made from its OpenAPI description. It needs no script."""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def render_api(described: dict[str, Any]) -> str:
    """Return the page on all routes."""
    environment = Environment(loader=PackageLoader("protograph.serve"), autoescape=True, undefined=StrictUndefined)
    schemas = described.get("components", {}).get("schemas", {})
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, methods in described["paths"].items():
        for method, route in methods.items():
            groups.setdefault(route["tags"][0], []).append({"path": path, "method": method.upper(), **_route(route, schemas)})
    return environment.get_template("api.html").render(info=described["info"], groups=groups)


def _route(route: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    fields = [
        {
            "name": part["name"],
            "required": part.get("required", False),
            "kind": _kind(part["schema"]),
            "text": part.get("description", ""),
        }
        for part in route.get("parameters", ())
    ]
    body_type = ""
    for media_type, content in route.get("requestBody", {}).get("content", {}).items():
        body_type = media_type
        schema = content["schema"]
        schema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        fields += [
            {
                "name": name,
                "required": name in schema.get("required", ()),
                "kind": _kind(part),
                "text": part.get("description", ""),
            }
            for name, part in schema["properties"].items()
        ]
    return {"title": route.get("description") or route["summary"], "body": body_type, "fields": fields}


def _kind(schema: dict[str, Any]) -> str:
    """Return the kind of a value in words."""
    if "anyOf" in schema:
        kinds = dict.fromkeys(_kind(part) for part in schema["anyOf"])
        return " or ".join(kind for kind in kinds if kind != "null")
    if schema.get("format") == "binary":
        return "file"
    if schema.get("type") == "array":
        return f"{_kind(schema['items'])}, several"
    kind = str(schema.get("type", ""))
    return {"string": "text", "integer": "whole number"}.get(kind, kind)
