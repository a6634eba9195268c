"""The routes that ask: predict and explain."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request

from protograph._internal.errors import InputError
from protograph.classifier.labels import parse_label, plain_label
from protograph.serve import answers
from protograph.serve.application import application_of
from protograph.serve.bodies import IMAGE, IMAGE_FILES, form_body, text_field
from protograph.serve.model_host import Served
from protograph.serve.refusals import Json
from protograph.serve.replies import ExplainReply, PredictReply
from protograph.serve.uploads import Form, Upload

router = APIRouter(tags=["ask"])
USUAL_TOP = 5
TOP = text_field(f"How many classes to name for each image; by default {USUAL_TOP}.")


@router.post(
    "/api/predict", response_model=PredictReply, openapi_extra=form_body({"images": IMAGE_FILES, "top": TOP}, ("images",))
)
async def predict(request: Request) -> Json:
    """Tell what images show."""
    application = application_of(request)
    form = (await application.form(request, "images")).only(("top",), ("images",))
    if not form.files:
        raise InputError("no images are given: send at least one, in the field 'images'")
    top = parse_top(form)
    served = await application.host.current()
    knows_a_class(served)
    encoded = await application.batcher.encode(form.files, served, predict=True)
    unknown = plain_label(served.classifier.unknown_label)
    results = [answers.prediction(upload, part, unknown, top) for upload, part in zip(form.files, encoded, strict=True)]
    return Json({"version": served.version, "results": results})


@router.post(
    "/api/explain",
    response_model=ExplainReply,
    openapi_extra=form_body(
        {
            "image": IMAGE,
            "class": text_field("The class whose heat map to draw; by default the most probable one."),
            "against": text_field("The class that it is compared with; by default the mean of all others."),
            "top": TOP,
        },
        ("image",),
    ),
)
async def explain(request: Request) -> Json:
    """Tell why an image is answered as it is, and which parts of it spoke for a class."""
    application = application_of(request)
    form = (await application.form(request, "image")).only(("class", "against", "top"), ("image",))
    if len(form.files) != 1:
        raise InputError(f"explain takes one image at a time, not {len(form.files)}")
    top, upload = parse_top(form), form.files[0]
    served = await application.host.current()
    knows_a_class(served)
    known = served.classifier.classes_
    asked = {name: parse_label(form.texts[name], known) for name in ("class", "against") if form.texts.get(name)}
    (encoded,) = await application.batcher.encode([upload], served, predict=True)
    if encoded.error is not None:
        raise InputError(encoded.error)
    return Json(await application.host.run(partial(_explained, served, upload, encoded, asked, top)))


def _explained(served: Served, upload: Upload, encoded: Any, asked: dict[str, Any], top: int) -> dict[str, Any]:
    classifier, drawn, note = served.classifier, None, None
    explained = answers.explanation(classifier, encoded, top)
    if hasattr(served.encoder.network, "score_map"):
        parts = classifier.heatmap(upload.content, asked.get("class"), asked.get("against"))
        drawn = answers.heatmap(classifier, served.encoder.preparation, parts, upload.content)
    else:
        note = "this encoder does not tell where in an image its features come from"
    return {"version": served.version, "file": upload.name, **explained, "heatmap": drawn, "heatmap_note": note}


def parse_top(form: Form) -> int:
    """Return how many classes to name."""
    text = form.texts.get("top", str(USUAL_TOP))
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text) > 0):
        raise InputError("top must be a whole number from 1 on")
    return int(text)


def knows_a_class(served: Served) -> None:
    """Raise an `InputError` if there is no class yet."""
    if not len(served.classifier.classes_):
        raise InputError("the classifier knows no class yet: add one first")
