"""What pages ask of models: which there are, to load one, and what its weights say by themselves."""

import inspect
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from .bodies import ModelName
from .following import Events, answered, streamed
from .readings import READINGS, card_of, read_weights
from .refusals import as_json
from .resource_routes import check_names, packed, parameters_of, signature_of
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
        router.add_api_route("/api/models/{model}/card", self.card, methods=["GET"], response_class=Events)
        for name, function in READINGS.items():
            router.add_api_route(
                f"/api/models/{{model}}/{name}",
                self._reading(name),
                methods=["GET"],
                name=name,
                operation_id=f"model_{name}",
                description=inspect.getdoc(function) or "",
            )
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

    async def card(self, request: Request, model: str) -> Response:
        """Every head's scores and kind: `progress` {"stage", "done", "total"}, then `done`, or `error`."""
        held = self.state.models.get(model)
        return await streamed(self.state.worker, request, lambda job: card_of(held, job))

    def _reading(self, name: str) -> Any:
        known = parameters_of(READINGS[name], 2)

        async def ask(request: Request, model: str, **parameters: Any) -> Response:
            check_names(name, known, request.query_params)
            held = self.state.models.get(model)
            return await answered(
                self.state.worker, request, lambda job: packed(read_weights(held.model, name, parameters))
            )

        ask.__signature__ = signature_of(READINGS[name], "model", 2)  # pyright: ignore[reportFunctionMemberAccess]
        return ask
