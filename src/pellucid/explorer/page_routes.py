"""The page itself: three compiled files, and no other."""

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse, HTMLResponse, Response

from .. import views

FILES = {
    "index.html": "text/html; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
}
_NOT_BUILT = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Pellucid</title>
<h1>The page is not built</h1>
<p>The server runs, but this installation of Pellucid lacks the compiled page. In a checkout <code>make page</code>
builds it; elsewhere install the package again: <code>pip install --force-reinstall 'pellucid[explorer]'</code>.
The server's answers are described at <a href="openapi.json">openapi.json</a>.</p>
</html>
"""


class PageRoutes:
    """The files of one folder by their fixed names: no name from a request reaches the disk."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder or Path(views.__file__).parent / "compiled"

    def router(self) -> APIRouter:
        """The routes."""
        router = APIRouter(include_in_schema=False)
        router.add_api_route("/", self.index, methods=["GET"])
        router.add_api_route("/index.html", self.index, methods=["GET"])
        router.add_api_route("/page.js", self.script, methods=["GET"])
        router.add_api_route("/page.css", self.style, methods=["GET"])
        return router

    async def index(self) -> Response:
        """The page, or one that says that it is not built."""
        found = self._file("index.html")
        return HTMLResponse(_NOT_BUILT, 503) if found is None else found

    async def script(self) -> Response:
        """What the page does."""
        return self._file("page.js") or Response(status_code=404)

    async def style(self) -> Response:
        """How the page looks."""
        return self._file("page.css") or Response(status_code=404)

    def _file(self, name: str) -> Response | None:
        path = self.folder / name
        if not path.is_file():
            return None
        return FileResponse(path, media_type=FILES[name], headers={"cache-control": "no-cache"})
