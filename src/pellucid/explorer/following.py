"""Between requests and the worker: waiting for an answer or for events, and leaving when the client does."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from .refusals import refusal, refused
from .worker import End, Event, Job, LeftError, Worker

_GONE = 499  # the status of an answer that nobody reads


async def answered(worker: Worker, request: Request, work: Callable[[Job], Response]) -> Response:
    """The answer that work ends with."""
    try:
        return [event.data async for event in followed(worker, request, work)][-1]
    except LeftError:
        return Response(status_code=_GONE)
    except Exception as error:
        return refused(refusal(error))


async def streamed(worker: Worker, request: Request, work: Callable[[Job], Any]) -> Response:
    """Work as a stream of events: what it tells, and at last `done` with what came of it, or `error`.

    What is refused before anything was told is an ordinary answer with its status.
    """
    events = followed(worker, request, work)
    try:
        first = await anext(events)
    except LeftError:
        return Response(status_code=_GONE)
    except Exception as error:
        return refused(refusal(error))
    return Events(_written(first, events))


class Events(StreamingResponse):
    """A stream of server-sent events, whose work is left when it ends, however it does."""

    media_type = "text/event-stream"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert isinstance(self.body_iterator, AsyncGenerator), "a stream of events is made of a generator"
        async with aclosing(self.body_iterator):
            await super().__call__(scope, receive, send)


async def followed(worker: Worker, request: Request, work: Callable[[Job], Any]) -> AsyncGenerator[Event]:
    """What work tells, as it tells it, and at last `done` with what came of it. Raises the error that it ended with.

    A client that leaves is noticed at once, and so is whoever stops to read the events: the work is left then.
    """
    loop, said = asyncio.get_running_loop(), asyncio.Queue[Event | End]()

    def hear(event: Event | End) -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it whoever waited
            loop.call_soon_threadsafe(said.put_nowait, event)

    job = worker.submit(work, hear)
    gone, heard = asyncio.ensure_future(_gone(request)), asyncio.ensure_future(said.get())
    try:
        while True:
            await asyncio.wait({heard, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not heard.done():
                raise LeftError
            event = heard.result()
            if isinstance(event, End):
                break
            heard = asyncio.ensure_future(said.get())
            yield event
        if event.error is not None:
            raise event.error
        yield Event("done", event.value)
    finally:
        job.leave()
        gone.cancel()
        heard.cancel()


async def _written(first: Event, events: AsyncGenerator[Event]) -> AsyncGenerator[bytes]:
    async with aclosing(events):
        try:
            yield _bytes(first)
            async for event in events:
                yield _bytes(event)
        except LeftError:
            return
        except Exception as error:
            yield _bytes(Event("error", refusal(error).to_json()))


def _bytes(event: Event) -> bytes:
    try:
        data = json.dumps(event.data, allow_nan=False)  # in ASCII, on one line
    except ValueError as error:
        fault = refusal(RuntimeError(f"an answer that cannot be written: {error}"))
        return _bytes(Event("error", fault.to_json()))
    return f"event: {event.name}\ndata: {data}\n\n".encode()


async def _gone(request: Request) -> None:
    """Until the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
