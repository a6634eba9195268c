"""The routes that show what the model holds: classes, examples, relations, the check, the map, history."""

from typing import Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from protograph._internal.errors import InputError
from protograph.classifier import history as file_history
from protograph.classifier.labels import parse_label, plain_label
from protograph.serve import answers
from protograph.serve.application import application_of
from protograph.serve.refusals import Json, Refusal
from protograph.serve.replies import (
    CheckReply,
    ClassesReply,
    ExamplesReply,
    HistoryReply,
    MapReply,
    ModelReply,
    RelationsReply,
)

router = APIRouter(tags=["browse"])
LISTED_CHANGES = 100  # that history lists
ClassName = Query(alias="class", description="The class.")


@router.get("/api/model", response_model=ModelReply)
async def model(request: Request) -> Json:
    """Tell what the model file is."""
    application = application_of(request)
    served = await application.host.current()
    changes = await application.host.run(file_history.history, application.host.path)
    return Json(answers.model_summary(application.host.path.name, served, application.limits, changes))


@router.get("/api/classes", response_model=ClassesReply)
async def classes(request: Request) -> Json:
    """List the classes."""
    host = application_of(request).host
    served = await host.current()
    return Json({"version": served.version, "classes": await host.run(answers.class_list, served.classifier)})


@router.get("/api/classes/examples", response_model=ExamplesReply)
async def examples(request: Request, name: str = ClassName) -> Json:
    """List the examples of a class."""
    served = await application_of(request).host.current()
    label = parse_label(name, served.classifier.classes_)
    images = served.classifier.thumbnails_of(label)
    return Json(
        {
            "version": served.version,
            "class": label,
            "examples": [{"index": index, "thumbnail": image is not None} for index, image in enumerate(images)],
        }
    )


@router.get("/api/classes/thumbnail", response_class=Response, responses={200: {"content": {"image/jpeg": {}}}})
async def thumbnail(
    request: Request, name: str = ClassName, index: int = Query(ge=0, description="Which example.")
) -> Response:
    """Show an example of a class."""
    served = await application_of(request).host.current()
    images = served.classifier.thumbnails_of(parse_label(name, served.classifier.classes_))
    image = images[index] if index < len(images) else None
    if image is None:
        raise Refusal(404, f"example {index} of this class has no thumbnail")
    return Response(image, media_type="image/jpeg", headers={"cache-control": "private, no-cache"})


@router.get("/api/classes/relations", response_model=RelationsReply)
async def relations(request: Request, name: str = ClassName) -> Json:
    """Tell how a class relates to others, and how it may relate to more; the class may be one to come."""
    host = application_of(request).host
    served = await host.current()
    label = parse_label(name, served.classifier.classes_)
    related = answers.relations_of(served.classifier, str(label))
    suggested = await host.run(served.classifier.suggest_relations, label)
    suggestions = [
        {"class": plain_label(part.label), "similarity": part.similarity, "source": part.source} for part in suggested
    ]
    return Json({"version": served.version, "class": label, "relations": related, "suggestions": suggestions})


@router.get("/api/check", response_model=CheckReply)
async def check(request: Request) -> Json:
    """Tell whether the model was taught enough: each kept image is asked as if it had not been an example."""
    host = application_of(request).host
    served = await host.current()
    if not len(served.classifier.classes_):
        raise InputError("the classifier knows no class yet: add one first")
    checked = await host.check(served)
    return Json({"file": host.path.name, "version": served.version, **await host.run(checked.as_json)})


@router.get("/api/map", response_model=MapReply)
async def class_map(request: Request) -> Json:
    """Place the classes in two dimensions, with their relations as edges."""
    host = application_of(request).host
    served = await host.current()
    drawn = await host.run(served.classifier.class_map)
    added = {row["class"]: row["added"] for row in answers.class_list(served.classifier)}
    names = [plain_label(label) for label in drawn.labels]
    labels = [
        {"class": name, "x": float(x), "y": float(y), "added": added[name]}
        for name, (x, y) in zip(names, drawn.positions, strict=True)
    ]
    edges: list[dict[str, Any]] = [
        {"from": names[edge.first], "to": names[edge.second], "weight": edge.weight, "relation": edge.relation}
        for edge in drawn.edges
    ]
    return Json({"version": served.version, "labels": labels, "edges": edges})


@router.get("/api/history", response_model=HistoryReply)
async def history(request: Request) -> Json:
    """List the changes of the model file, the newest first."""
    host = application_of(request).host
    changes = await host.run(file_history.history, host.path)
    served = await host.current()
    rows = [
        {
            "number": change.number,
            "what": change.what,
            "when": change.when,
            "classes": change.classes,
            "undone": change.undone,
        }
        for change in changes[:LISTED_CHANGES]
    ]
    return Json({"version": served.version, "changes": rows})
