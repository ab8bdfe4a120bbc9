"""The server's app: its routes, its guard, and how errors are told."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ..front import Model, load
from .bodies import Refusal
from .guard import Guard
from .model_routes import ModelRoutes
from .page_routes import PageRoutes
from .refusals import RefusedError, refusal, refused
from .resource_routes import ResourceRoutes
from .settings import Settings
from .state import State
from .trace_routes import TraceRoutes

DESCRIPTION = """What the explorer's page asks of its server.

Every refusal has the status 4xx or 5xx and the body {"error": {"code", "message"}}. Streams of events are server-sent
events whose data is JSON; an error that comes after the first event is the event `error` with that body's inside.
"""


def make_app(
    models: Sequence[Model] = (),
    settings: Settings | None = None,
    names: Sequence[str] = (),
    load: Callable[[str], Model] = load,
    hosts: Sequence[str] = (),
    page: Path | None = None,
) -> FastAPI:
    """The app that serves these models, and those of `names` as they are asked for, the first of them at once.

    `hosts` are addresses beside the loopback ones that it answers as. `page` is the folder of the compiled page.
    `app.state.held` is all that it holds.
    """
    held = State(models, settings or Settings(), names, load)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        if names:
            held.begin(names[0])
        yield
        held.worker.close()

    app = FastAPI(
        title="Pellucid explorer",
        version="1",
        description=DESCRIPTION,
        docs_url=None,  # its pages ask other hosts for their scripts
        redoc_url=None,
        lifespan=lifespan,
        responses={status: {"model": Refusal, "description": "Refused"} for status in ("4XX", "5XX")},
        redirect_slashes=False,
    )
    app.state.held = held
    for routes in (ModelRoutes(held), TraceRoutes(held), ResourceRoutes(held), PageRoutes(page)):
        app.include_router(routes.router())
    _tell_errors(app)
    app.add_middleware(Guard, hosts=hosts, most_bytes=held.settings.body)
    return app


def _tell_errors(app: FastAPI) -> None:
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(HTTPException, _http)
    for kind in (RefusedError, ValueError):
        app.add_exception_handler(kind, _refused)


async def _refused(_request: Request, error: Exception) -> Response:
    return refused(refusal(error))


async def _not_valid(_request: Request, error: Any) -> Response:
    """The first fault of a request's types; what came is not repeated."""
    first = error.errors()[0]
    where = [] if first["type"] == "json_invalid" else [str(part)[:60] for part in first["loc"][1:]]
    return refused(RefusedError(400, "invalid", f"{'.'.join(where) or 'the body'}: {first['msg'][:300]}"))


async def _http(_request: Request, error: Any) -> Response:
    codes = {404: "not_found", 405: "method_not_allowed"}
    return refused(RefusedError(error.status_code, codes.get(error.status_code, "invalid"), str(error.detail)))
