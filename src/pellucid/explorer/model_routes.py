"""What pages ask of models: which there are, to load one, and what its weights say by themselves."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from .bodies import ModelName
from .following import Events, streamed
from .refusals import as_json
from .state import State


class ModelRoutes:
    """Routes over what a server holds."""

    def __init__(self, state: State):
        self.state = state

    def router(self) -> APIRouter:
        """The routes."""
        router = APIRouter(tags=["models"])
        router.add_api_route("/api/status", self.status, methods=["GET"])
        router.add_api_route("/api/models", self.load, methods=["POST"], response_class=Events)
        return router

    async def status(self) -> Response:
        """The models that are loaded, the names that can be, the limits, and how many requests wait or are answered."""
        settings, models = self.state.settings, self.state.models
        names = ("characters", "tokens", "edits", "new_tokens")
        return as_json(
            {
                "models": [held.info for held in models.all()],
                "known": list(models.names),
                "limits": {name: getattr(settings, name) for name in names},
                "queue": self.state.worker.length,
                "loading": models.loading,
                "failed": models.failed,
            }
        )

    async def load(self, request: Request, body: ModelName) -> Response:
        """Load a model: `progress` {"stage", "done", "total"}, then `done` with the model, or `error`."""
        self.state.models.check(body.name)
        return await streamed(self.state.worker, request, lambda job: self.state.models.load(body.name, job).info)
