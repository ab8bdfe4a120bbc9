"""The written description of the server's answers: `python -m pellucid.explorer.schema > docs/explorer_api.json`."""

import json
import sys

from .app import make_app


def page() -> str:
    """OpenAPI's description of every route, as the server itself gives it at /openapi.json."""
    return json.dumps(make_app().openapi(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
