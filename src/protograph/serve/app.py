"""The web application: the page, the API, and what watches the model file."""

import asyncio
import mimetypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.staticfiles import StaticFiles

from protograph._internal.errors import InputError
from protograph._version import __version__
from protograph.serve import asking, browsing, changing
from protograph.serve.access import Access
from protograph.serve.api_page import render_api
from protograph.serve.application import Application, application_of
from protograph.serve.guard import DEFECT, App, Guard
from protograph.serve.metrics import MEDIA_TYPE
from protograph.serve.refusals import Json, Refusal
from protograph.serve.replies import ErrorReply, HealthReply
from protograph.serve.uploads import shown

PAGE = Path(__file__).parent / "page"
TEMPLATES = Path(__file__).parent / "templates"
WATCH_SECONDS = 1.0  # seconds between looks at the model file
NO_JSON = "the body is no JSON object: send one, as application/json"
UNCHANGED = {"cache-control": "no-cache"}  # asked for at each use; the answer is short where nothing changed
TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".svg": "image/svg+xml", ".css": "text/css"}
DESCRIPTION = """Ask a classifier what images show, teach it classes, and look whether it has learned them.

Every answer names the `version` of the model file it comes from. Errors are `{"error": "..."}`, with the sentences of the
command. Changes need the token of the link that `protograph serve` prints, as `Authorization: Bearer TOKEN`; a server that
others can reach needs it for all but `/healthz` and the files of the page."""


class PageFiles(StaticFiles):
    """The files of the page."""

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        """Return a file that is asked for again at each use."""
        response = super().file_response(*arguments, **options)
        response.headers.update(UNCHANGED)
        return response


def guarded_app(application: Application, access: Access) -> App:
    """Return the web application behind its checks."""
    return Guard(build_app(application), access, application.limits, application.metrics)


def build_app(application: Application) -> FastAPI:
    """Return the web application."""
    for suffix, kind in TYPES.items():
        mimetypes.add_type(kind, suffix)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        watcher = asyncio.create_task(_watch(application))
        yield
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher
        application.announcer.close()
        await asyncio.to_thread(application.close)

    app = FastAPI(
        title="Protograph",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        responses={"default": {"model": ErrorReply, "description": "What is wrong, and the way out."}},
    )
    app.state.application = application
    app.add_exception_handler(InputError, _input_error)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _defect)
    for module in (asking, browsing, changing):
        app.include_router(module.router)
    app.add_api_route("/", page, include_in_schema=False)
    app.add_api_route("/api", api_page, include_in_schema=False)
    app.add_api_route("/api/style.css", api_style, include_in_schema=False)
    app.add_api_route("/healthz", health, tags=["watch"], response_model=HealthReply)
    for path, endpoint, media_type in (("/metrics", metrics, "text/plain"), ("/api/events", events, "text/event-stream")):
        answers: dict[int | str, Any] = {200: {"content": {media_type: {}}}}
        app.add_api_route(path, endpoint, tags=["watch"], response_class=Response, responses=answers)
    app.mount("/page", PageFiles(directory=PAGE), name="page")
    return app


async def page(request: Request) -> Response:
    """Show the page."""
    return FileResponse(PAGE / "index.html", media_type="text/html", headers=UNCHANGED)


async def api_page(request: Request) -> Response:
    """Show all routes."""
    return Response(render_api(request.app.openapi()), media_type="text/html")


async def api_style(request: Request) -> Response:
    """Show the style of the page on the API."""
    return FileResponse(TEMPLATES / "api.css", media_type="text/css", headers=UNCHANGED)


async def health(request: Request) -> Json:
    """Tell that the server answers."""
    return Json({"status": "ok"})


async def metrics(request: Request) -> Response:
    """Tell the numbers about the server, for Prometheus."""
    return Response(application_of(request).metrics.text(), media_type=MEDIA_TYPE)


async def events(request: Request) -> StreamingResponse:
    """Tell of each change of the model file, as server-sent events: `version` with {version, what}."""
    application = application_of(request)
    served = await application.host.current()
    return StreamingResponse(application.announcer.listen(lambda: served.version), media_type="text/event-stream")


async def _watch(application: Application) -> None:
    """Look whether another process changed the file, so that open pages hear of it."""
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        with suppress(Exception):  # a request that meets the same tells of it
            await application.host.current()


async def _input_error(request: Request, error: Exception) -> Response:
    return Refusal(400, str(error)).answer()


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, Refusal):
        return error.answer()
    assert isinstance(error, HTTPException)
    sentences = {
        400: NO_JSON,
        404: "there is nothing at this address: see /api",
        405: "this route takes another method: see /api",
    }
    return Json({"error": sentences.get(error.status_code, error.detail)}, error.status_code, error.headers)


async def _defect(request: Request, error: Exception) -> Response:
    return Refusal(500, DEFECT).answer()  # the guard logs it


async def _invalid(request: Request, error: Exception) -> Response:
    """Answer what a client sent that does not fit, with the first thing that is wrong."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    names = [part for part in first["loc"] if part not in ("body", "query")]
    if not names or isinstance(names[0], int):  # the place at which JSON ends to be JSON
        return Refusal(400, NO_JSON).answer()
    where = f"'{shown(names[0])}'"
    if first["type"] == "missing":
        return Refusal(400, f"{where} is missing: send it").answer()
    if first["type"] == "extra_forbidden":
        return Refusal(400, f"{where} is not known here: leave it out").answer()
    return Refusal(400, f"{where} is wrong: {first['msg'][:1].lower()}{first['msg'][1:]}").answer()
