"""What is refused, and how that is said: a status, a code for programs, one line for people."""

import json
import logging
from typing import Any

from starlette.responses import Response

LOG = "pellucid.explorer"


class RefusedError(Exception):
    """A request that is not answered."""

    def __init__(self, status: int, code: str, message: str):
        super().__init__(message)
        self.status, self.code = status, code

    def to_json(self) -> dict[str, Any]:
        """What the event `error` holds."""
        return {"code": self.code, "message": " ".join(str(self).split())}


def over(code: str, what: str, got: int, most: int) -> RefusedError:
    """The refusal of too much, with both numbers."""
    return RefusedError(400, code, f"{what}: at most {most:,}, got {got:,}")


def unknown(what: str, name: str, advice: str) -> RefusedError:
    """The refusal of a name that stands for nothing here."""
    return RefusedError(404, f"unknown_{what}", f"there is no {what} {name[:60]!r} here: {advice}")


def refusal(error: BaseException) -> RefusedError:
    """How an error is told. What is not the fault of who asked is written to the server's log in full."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, ValueError):
        return RefusedError(400, "invalid", str(error) or "the request makes no sense")
    logging.getLogger(LOG).error("a request failed", exc_info=error)
    return RefusedError(500, "internal", f"the server failed at this ({type(error).__name__}): its log says more")


def refused(error: RefusedError) -> Response:
    """The answer that says so."""
    return as_json({"error": error.to_json()}, error.status)


def as_json(data: object, status: int = 200) -> Response:
    """Data as strict JSON: raises ValueError for numbers that it lacks."""
    body = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(body.encode("utf-8", "replace"), status, media_type="application/json")
