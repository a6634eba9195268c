"""The routes that change the model file: classes, examples, relations, history."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from fastapi import APIRouter, Depends, Request
from fastapi.security import HTTPBearer

from protograph._internal.errors import InputError
from protograph._internal.wording import counted
from protograph.classifier import history
from protograph.classifier.estimator import Classifier
from protograph.classifier.labels import parse_label
from protograph.classifier.thumbnails import Examples, Thumbnails, make_thumbnail
from protograph.serve.application import Application, application_of
from protograph.serve.bodies import IMAGE_FILES, ClassBody, ExamplesBody, RelationsBody, RenameBody, form_body, text_field
from protograph.serve.model_host import Served
from protograph.serve.refusals import Json
from protograph.serve.replies import ChangeReply
from protograph.serve.uploads import Upload, class_name

TOKEN = HTTPBearer(auto_error=False, scheme_name="token", description="The token of the printed link.")
router = APIRouter(tags=["change"], dependencies=[Depends(TOKEN)])  # for the description alone: the guard checks the token


@router.post(
    "/api/classes",
    response_model=ChangeReply,
    openapi_extra=form_body(
        {
            "name": text_field("The name of the new class."),
            "images": IMAGE_FILES,
            "relations": text_field("How it relates, as JSON: {class: similarity}, or a name that the relation knows."),
        },
        ("name",),
    ),
)
async def add_class(request: Request) -> Json:
    """Add a class from images of it, from relations, or from both."""
    application = application_of(request)
    form = (await application.form(request, "images")).only(("name", "relations"), ("images",))
    name, relations = class_name(form.text("name")), parse_relations(form.texts.get("relations"))
    served = await application.host.current()
    examples = await encoded_examples(application, served, form.files)

    def add(classifier: Classifier) -> None:
        if len(classifier.classes_) >= application.limits.classes:
            raise InputError(f"there are {application.limits.classes} classes, as many as are allowed: remove one first")
        label = parse_label(name, classifier.classes_)
        if isinstance(relations, dict) and not classifier.space_.relations:  # those told by hand begin with this class
            classifier.add_class(label, examples).relate(label, relations)
        else:
            classifier.add_class(label, examples, relations)

    source = f" from {counted(len(form.files), 'image')}" if form.files else ""
    return await changed(application, f"added '{name}'{source}", add, served)


@router.post("/api/classes/remove", response_model=ChangeReply)
async def remove_class(request: Request, body: ClassBody) -> Json:
    """Remove a class."""
    name = str(body.name)
    return await changed(
        application_of(request), f"removed '{name}'", lambda model: model.remove_class(parse_label(name, model.classes_))
    )


@router.post("/api/classes/rename", response_model=ChangeReply)
async def rename_class(request: Request, body: RenameBody) -> Json:
    """Rename a class."""
    old, new = str(body.name), class_name(str(body.new))

    def rename(classifier: Classifier) -> None:
        classifier.rename_class(parse_label(old, classifier.classes_), parse_label(new, classifier.classes_))

    return await changed(application_of(request), f"renamed '{old}' to '{new}'", rename)


@router.post(
    "/api/classes/examples",
    response_model=ChangeReply,
    openapi_extra=form_body({"class": text_field("The class."), "images": IMAGE_FILES}, ("class", "images")),
)
async def add_examples(request: Request) -> Json:
    """Add images to a class, as when an answer is corrected."""
    application = application_of(request)
    form = (await application.form(request, "images")).only(("class",), ("images",))
    name = form.text("class")
    if not form.files:
        raise InputError(f"no examples are given for class '{name}': give at least one")
    served = await application.host.current()
    served.classifier.space_.index(str(parse_label(name, served.classifier.classes_)))
    examples = await encoded_examples(application, served, form.files)
    return await changed(
        application,
        f"added {counted(len(form.files), 'image')} to '{name}'",
        lambda classifier: classifier.add_examples(parse_label(name, classifier.classes_), examples),
        served,
    )


@router.post("/api/classes/examples/remove", response_model=ChangeReply)
async def remove_examples(request: Request, body: ExamplesBody) -> Json:
    """Remove examples of a class."""
    name, indices = str(body.name), sorted(set(body.indices))
    return await changed(
        application_of(request),
        f"removed {counted(len(indices), 'image')} of '{name}'",
        lambda model: model.remove_examples(parse_label(name, model.classes_), indices),
    )


@router.post("/api/classes/relations", response_model=ChangeReply)
async def relate(request: Request, body: RelationsBody) -> Json:
    """Tell how a class relates to others."""
    if (body.similarities is None) == (body.known_as is None):
        raise InputError("give either similarities to other classes, or the name by which the relation knows the class")
    relations = body.known_as if body.similarities is None else parse_relations(json.dumps(body.similarities))
    name = str(body.name)
    return await changed(
        application_of(request),
        f"told how '{name}' relates",
        lambda model: model.relate(parse_label(name, model.classes_), relations),
    )


@router.post("/api/history/undo", response_model=ChangeReply)
async def undo(request: Request) -> Json:
    """Undo the last change."""
    return await stepped(application_of(request), history.undo, "undone")


@router.post("/api/history/redo", response_model=ChangeReply)
async def redo(request: Request) -> Json:
    """Make the last undone change again."""
    return await stepped(application_of(request), history.redo, "done again")


async def encoded_examples(application: Application, served: Served, uploads: Sequence[Upload]) -> Any:
    """Return images as examples: encoded before the file is locked.

    Raises:
        InputError: One of them cannot be read.

    """
    if not uploads:
        return ()
    encoded = await application.batcher.encode(uploads, served)
    if errors := [part.error for part in encoded if part.error is not None]:
        raise InputError(errors[0])
    features = torch.stack([part.features for part in encoded if part.features is not None])

    def thumbnails() -> Thumbnails:
        return tuple(make_thumbnail(upload.content, f"image {upload.name}") for upload in uploads)

    kept = served.classifier.thumbnails
    return Examples(features, await application.host.run(thumbnails) if kept else (None,) * len(uploads))


async def changed(
    application: Application, what: str, make: Callable[[Classifier], object], encoded_by: Served | None = None
) -> Json:
    """Change the file and tell of it."""
    encoder = None if encoded_by is None else encoded_by.encoder
    before, after, notes = await application.host.change(what, make, encoder)
    return await change_answer(application, what, before, after, notes)


async def stepped(application: Application, move: Callable[..., Any], verb: str) -> Json:
    """Go back or forth in history and tell of it."""
    before, after, what = await application.host.step(move, verb)
    return await change_answer(application, what, before, after, [])


async def change_answer(application: Application, what: str, before: Served, after: Served, notes: list[str]) -> Json:
    """Return what a change did."""
    application.metrics.changes += 1
    held_out = await application.host.held_out(before, after)
    classes = len(after.classifier.classes_)
    return Json({"version": after.version, "what": what, "classes": classes, "held_out": held_out, "notes": notes})


def parse_relations(text: str | None) -> dict[str, float] | str | None:
    """Return how a class relates, from JSON.

    Raises:
        InputError: It is neither similarities nor a name.

    """
    if not text:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError("the relations are no JSON: send {class: similarity}, or a name in quotation marks") from error
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise InputError("the relations must be {class: similarity}, or the name by which the relation knows the class")
    for name, number in value.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= 1:
            raise InputError(f"a similarity is a number from 0 (not alike) to 1 (the same), but {name} is given {number}")
    return value
