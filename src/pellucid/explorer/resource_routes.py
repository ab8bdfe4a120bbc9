"""A route for each thing that can be asked of a run, made from the function that answers it."""

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, get_type_hints

from fastapi import APIRouter, Path, Request
from pydantic import Field, TypeAdapter, ValidationError
from starlette.responses import Response

from ..inside.shown.resources import RESOURCES, Resource, Shown, answer
from ..views.packed import Packed
from ..views.table import plain
from .following import answered
from .refusals import RefusedError, as_json
from .state import State

PACKED = "application/x-pellucid"
_TYPES: dict[type, Any] = {
    int: Annotated[int, Field(ge=-(2**31), lt=2**31)],
    float: Annotated[float, Field(allow_inf_nan=False)],
    bool: bool,
    str: Annotated[str, Field(max_length=1000)],
}


class ResourceRoutes:
    """Routes over what a server holds."""

    def __init__(self, state: State):
        self.state = state

    def router(self) -> APIRouter:
        """The routes."""
        router = APIRouter(tags=["what a run is asked"])
        for name, function in RESOURCES.items():
            content = {"application/json": {}, PACKED: {"schema": {"type": "string", "format": "binary"}}}
            router.add_api_route(
                f"/api/traces/{{trace}}/{name}",
                self._endpoint(name, function),
                methods=["GET"],
                name=name,
                operation_id=f"trace_{name}",
                description=inspect.getdoc(function) or "",
                responses={200: {"content": content}},
            )
        return router

    def _endpoint(self, name: str, function: Resource) -> Any:
        """The function of a route, whose parameters are those of the function that answers."""

        async def ask(request: Request, trace: str, **parameters: Any) -> Response:
            known = parameters_of(function)
            check_names(name, known, request.query_params)
            kept = self.state.traces.get(trace)
            return await answered(self.state.worker, request, lambda job: packed(answer(kept.run, name, parameters)))

        ask.__signature__ = signature_of(function)  # pyright: ignore[reportFunctionMemberAccess]
        ask.__annotations__ = {}
        return ask


def parameters_of(function: Resource, given: int = 1) -> dict[str, inspect.Parameter]:
    """The parameters of a resource in their types as addresses can hold them, without the first, which are given.

    Raises TypeError for one that is no plain number, word or choice.
    """
    hints, found = get_type_hints(function), {}
    for name, parameter in [*inspect.signature(function).parameters.items()][given:]:
        if hints[name] not in _TYPES:
            raise TypeError(f"{function.__name__} takes {name}: {hints[name]}, which no address can hold")
        kind = inspect.Parameter.KEYWORD_ONLY
        found[name] = parameter.replace(kind=kind, annotation=_TYPES[hints[name]])
    return found


def signature_of(function: Resource, what: str = "trace", given: int = 1) -> inspect.Signature:
    """The signature of a route: what is asked, and what the function takes beside what it is given of that."""
    own = [
        inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=Request),
        inspect.Parameter(what, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[str, Path()]),
    ]
    return inspect.Signature([*own, *parameters_of(function, given).values()], return_annotation=Response)


def parsed(name: str, function: Resource, given: Mapping[str, str], skipped: int = 1) -> dict[str, Any]:
    """Parameters out of an address, as a route has them. Raises RefusedError."""
    known = parameters_of(function, skipped)
    check_names(name, known, given)
    needed = [key for key, parameter in known.items() if parameter.default is inspect.Parameter.empty]
    if missing := [key for key in needed if key not in given]:
        raise RefusedError(400, "invalid", f"{name} needs {', '.join(missing)}")
    found = {}
    for key, value in given.items():
        try:
            found[key] = TypeAdapter(known[key].annotation).validate_python(value)
        except ValidationError as error:
            raise RefusedError(400, "invalid", f"{key}: {error.errors()[0]['msg']}") from error
    return found


def check_names(name: str, known: Mapping[str, object], given: Mapping[str, str]) -> None:
    """Raise RefusedError for a parameter that a resource does not have."""
    if unknown := sorted(set(given) - set(known)):
        raise RefusedError(
            400, "invalid", f"{name} takes {', '.join(known) or 'nothing'}; got {', '.join(unknown)[:60]}"
        )


def packed(shown: Shown) -> Response:
    """What a resource says, as the answer to a request."""
    try:
        if isinstance(shown, Packed):
            return Response(shown.to_bytes(), media_type=PACKED)
        return as_json(plain(shown))
    except ValueError as error:  # no fault of who asked
        raise RuntimeError(f"an answer that cannot be written: {error}") from error
