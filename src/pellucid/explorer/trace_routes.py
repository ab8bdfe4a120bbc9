"""What pages ask of runs: to make one, to go on from it, and to save what is shown of it."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from .bodies import Continuing, Drawing, Prompt, Saving
from .following import Events, answered, streamed
from .generating import check_new_tokens, continued, drawn, sampling_of
from .prompts import check_sizes, read
from .refusals import as_json, over
from .saving import saved
from .state import State
from .tracing import traced
from .worker import Job


class TraceRoutes:
    """Routes over what a server holds."""

    def __init__(self, state: State):
        self.state = state

    def router(self) -> APIRouter:
        """The routes."""
        router = APIRouter(tags=["traces"])
        router.add_api_route("/api/traces", self.make, methods=["POST"], response_class=Events)
        router.add_api_route("/api/generate", self.generate, methods=["POST"], response_class=Events)
        router.add_api_route("/api/traces/{trace}", self.info, methods=["GET"])
        router.add_api_route("/api/traces/{trace}/draw", self.draw, methods=["POST"])
        router.add_api_route("/api/traces/{trace}/file", self.file, methods=["POST"], response_class=HTMLResponse)
        return router

    async def make(self, request: Request, body: Prompt) -> Response:
        """Run a text: `progress` {"stage", "done", "total"} by layers, then `done` with the run, or `error`."""
        state = self.state
        state.models.get(body.model)
        check_sizes(body, state.settings)

        def work(job: Job) -> dict[str, Any]:
            held = state.models.get(body.model)  # it may have been let go meanwhile
            return traced(held, read(body, held.model, state.settings), state.traces, job)

        return await streamed(state.worker, request, work)

    async def generate(self, request: Request, body: Continuing) -> Response:
        """Continue a text: `token` {"text", "id", "logprob"}, `done` {"finish_reason", "ids", "text"}, or `error`."""
        settings, held = self.state.settings, self.state.models.get(body.model)
        check_sizes(body, settings)
        check_new_tokens(body, settings)
        return await streamed(
            self.state.worker,
            request,
            lambda job: continued(held.model, body, read(body, held.model, settings), settings, job),
        )

    async def info(self, trace: str) -> Response:
        """What was said of a run when it was made."""
        return as_json(self.state.traces.get(trace).info)

    async def draw(self, request: Request, trace: str, body: Drawing) -> Response:
        """How the next token is drawn: the candidates after each step, how many are kept, and which is chosen."""
        kept = self.state.traces.get(trace)
        model = self.state.models.get(kept.model).model
        return await answered(
            self.state.worker, request, lambda job: as_json(drawn(model, kept.run, sampling_of(model, body)))
        )

    async def file(self, request: Request, trace: str, body: Saving) -> Response:
        """One HTML file that shows the state and the answers at these addresses, without a server."""
        kept = self.state.traces.get(trace)
        if len(body.paths) > self.state.settings.paths:
            raise over("too_many_paths", "answers in one file", len(body.paths), self.state.settings.paths)

        def work(job: Job) -> Response:
            name = f"pellucid-{kept.model}-{kept.id[:8]}.html"
            headers = {"content-disposition": f'attachment; filename="{name}"'}
            return HTMLResponse(saved(self.state, kept, body, job), headers=headers)

        return await answered(self.state.worker, request, work)
