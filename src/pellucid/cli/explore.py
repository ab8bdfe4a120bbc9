"""`pellucid explore`: a model in a browser."""

import sys
import threading
from importlib.util import find_spec
from typing import Annotated

import typer

from .options import FORMS, Json
from .talk import check_name, print_json

PORT = 8765


def _check(names: list[str]) -> list[str]:
    for name in names:
        check_name(name)
        from ..weights.known import KNOWN, is_hub_name, locate, on_disk

        if name not in KNOWN and on_disk(name) is None and not is_hub_name(name):
            locate(name)  # which says what is near it
    return names


Models = Annotated[
    list[str],
    typer.Argument(metavar="MODEL", help=f"A {FORMS}; further ones can be chosen on the page.", callback=_check),
]
Port = Annotated[int, typer.Option("--port", metavar="N", help="Where the server listens; 0 takes a free port.")]
Host = Annotated[
    str, typer.Option("--host", metavar="ADDRESS", help="On which address; another than this lets other machines in.")
]
Browser = Annotated[bool, typer.Option("--no-browser", help="Print the address, and open nothing.")]


def explore(
    models: Models = ["smollm2"],  # noqa: B006
    port: Port = PORT,
    host: Host = "127.0.0.1",
    no_browser: Browser = False,
    as_json: Json = False,
) -> None:
    """Look into a model in a browser.

    A server on this machine holds the model; the page that it serves shows every value of a run, and asks no other
    host for anything. The address is printed, and opened; Ctrl-C ends the server.
    """
    if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
        raise ValueError(f"explore needs {' and '.join(missing)}: pip install 'pellucid[explorer]'")
    from ..explorer.listening import is_loopback, listen, url_of

    with listen(host, port) as listening:
        url = url_of(listening, host)
        if not is_loopback(host) and sys.stderr is not None:
            print(f"pellucid: whoever reaches {host} can use this server: it asks for no password", file=sys.stderr)
        if as_json:
            print_json({"url": url, "models": models})
        else:
            print(f"{models[0]} at {url} (Ctrl-C ends it)")
        sys.stdout.flush()
        if not no_browser:
            _open(url)
        from ..explorer.serving import serve

        serve(listening, models, host)


def _open(url: str) -> None:
    """Open a browser, beside the server: some are waited for until they are closed."""
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
