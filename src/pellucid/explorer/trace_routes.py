"""What pages ask of runs: to make one, and what the library says of it."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from .bodies import Prompt
from .following import Events, streamed
from .prompts import check_sizes, read
from .refusals import as_json
from .state import State
from .tracing import traced


class TraceRoutes:
    """Routes over what a server holds."""

    def __init__(self, state: State):
        self.state = state

    def router(self) -> APIRouter:
        """The routes."""
        router = APIRouter(tags=["traces"])
        router.add_api_route("/api/traces", self.make, methods=["POST"], response_class=Events)
        router.add_api_route("/api/traces/{trace}", self.info, methods=["GET"])
        return router

    async def make(self, request: Request, body: Prompt) -> Response:
        """Run a text: `progress` {"stage", "done", "total"} by layers, then `done` with the run, or `error`."""
        state = self.state
        held = state.models.get(body.model)
        check_sizes(body, state.settings)
        return await streamed(
            state.worker,
            request,
            lambda job: traced(held, read(body, held.model, state.settings), state.traces, job),
        )

    async def info(self, trace: str) -> Response:
        """What was said of a run when it was made."""
        return as_json(self.state.traces.get(trace).info)
