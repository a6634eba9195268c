"""What clients send, as JSON or as forms, described for OpenAPI."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class _Body(BaseModel):
    """A JSON object without fields that would be ignored."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)


class ClassBody(_Body):
    """A class."""

    name: str | int | float = Field(alias="class", description="The class.")


class RenameBody(ClassBody):
    """A class and its new name."""

    new: str | int | float = Field(alias="name", description="The new name.")


class ExamplesBody(ClassBody):
    """Some examples of a class."""

    indices: list[int] = Field(min_length=1, description="The places of the examples, counted from 0.")


class RelationsBody(ClassBody):
    """How a class relates to others: similarities, or the name by which the relation knows it."""

    similarities: dict[str, float] | None = Field(None, description="Similarities to other classes, from 0 to 1.")
    known_as: str | None = Field(None, description="The name by which the relation knows the class, such as crane.n.05.")


IMAGE_FILES = {"type": "array", "items": {"type": "string", "format": "binary"}, "description": "Image files."}
IMAGE = {"type": "string", "format": "binary", "description": "An image file."}


def text_field(description: str) -> dict[str, Any]:
    """Return the description of a field of a form."""
    return {"type": "string", "description": description}


def form_body(properties: Mapping[str, Any], required: tuple[str, ...]) -> dict[str, Any]:
    """Return what OpenAPI says of a form."""
    schema = {"type": "object", "properties": dict(properties), "required": list(required)}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}
