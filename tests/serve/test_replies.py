import pytest
from pydantic import BaseModel
from served import HEADERS, Asking, files, photograph, photographs

from protograph.serve.replies import (
    ChangeReply,
    CheckReply,
    ClassesReply,
    ErrorReply,
    ExamplesReply,
    ExplainReply,
    HealthReply,
    HistoryReply,
    MapReply,
    ModelReply,
    PredictReply,
    RelationsReply,
)

SHOWN: dict[str, type[BaseModel]] = {
    "/api/model": ModelReply,
    "/api/classes": ClassesReply,
    "/api/classes/examples?class=blue": ExamplesReply,
    "/api/classes/relations?class=blue": RelationsReply,
    "/api/check": CheckReply,
    "/api/map": MapReply,
    "/api/history": HistoryReply,
    "/healthz": HealthReply,
}
CHANGES = {
    "/api/classes/relations": {"class": "blue", "similarities": {"red": 0.5}},
    "/api/classes/rename": {"class": "blue", "name": "azure"},
    "/api/classes/examples/remove": {"class": "azure", "indices": [0]},
    "/api/classes/remove": {"class": "azure"},
    "/api/history/undo": {},
    "/api/history/redo": {},
}


def add_blue(asking: Asking) -> dict[str, object]:
    answer = asking.post("/api/classes", data={"name": "blue"}, files=files(photographs("blue", 3)), headers=HEADERS)
    described: dict[str, object] = answer.json()
    return described


def test_changes_answer_as_described(asking: Asking) -> None:
    ChangeReply.model_validate(add_blue(asking))
    added = asking.post(
        "/api/classes/examples", data={"class": "blue"}, files=files(photographs("blue", 1, 9)), headers=HEADERS
    )
    ChangeReply.model_validate(added.json())
    for path, body in CHANGES.items():
        ChangeReply.model_validate(asking.post(path, json=body, headers=HEADERS).json())


def test_what_is_shown_is_as_described(asking: Asking) -> None:
    add_blue(asking)
    asking.post("/api/classes/relations", json=CHANGES["/api/classes/relations"], headers=HEADERS)
    for path, reply in SHOWN.items():
        answer = asking.get(path).json()
        assert reply.model_validate(answer).model_dump(by_alias=True) == answer


def test_what_is_asked_is_as_described(asking: Asking) -> None:
    answered = asking.post("/api/predict", files=files([photograph("red", 1), b"no image"])).json()
    readable, broken = PredictReply.model_validate(answered).results
    assert readable.nearest
    assert broken.error
    explained = asking.post("/api/explain", files=files([photograph("red", 1)], "image")).json()
    assert ExplainReply.model_validate(explained).model_dump(by_alias=True) == explained
    assert ErrorReply.model_validate(asking.get("/api/map", headers={"host": "other"}).json()).error


def test_every_route_describes_its_answer_and_its_errors(asking: Asking) -> None:
    described = asking.get("/api/openapi.json").json()
    schemas: set[str | None] = set()
    for path, methods in described["paths"].items():
        for method, route in methods.items():
            assert route["responses"].keys() == {"200", "default"}
            assert ("security" in route) == (method == "post" and path not in ("/api/predict", "/api/explain"))
            for answer in route["responses"].values():
                for content in answer["content"].values():
                    schemas.add(content["schema"]["$ref"].rpartition("/")[2] if content else None)
    replies = {ErrorReply, ChangeReply, PredictReply, ExplainReply, *SHOWN.values()}
    assert schemas == {None, *(reply.__name__ for reply in replies)}


def test_an_answer_with_another_field_is_not_as_described() -> None:
    with pytest.raises(ValueError, match="more"):
        HealthReply.model_validate({"status": "ok", "more": 1})
