"""The written description of the answers, and that it says what the functions take."""

import inspect
import json
from pathlib import Path
from typing import get_type_hints

import pytest

from pellucid.explorer.readings import READINGS
from pellucid.explorer.resource_routes import parameters_of
from pellucid.explorer.schema import page
from pellucid.inside.shown.resources import RESOURCES

DOCS = Path(__file__).parents[2] / "docs" / "explorer_api.json"
TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}


@pytest.fixture(scope="module")
def schema():
    return json.loads(page())


def test_the_documentation_is_the_servers_own():
    said = DOCS.read_text(encoding="utf-8")
    assert said == page(), "python -m pellucid.explorer.schema > docs/explorer_api.json writes it anew"


@pytest.mark.parametrize(
    ("path", "function", "given"),
    [(f"/api/traces/{{trace}}/{name}", function, 1) for name, function in RESOURCES.items()]
    + [(f"/api/models/{{model}}/{name}", function, 2) for name, function in READINGS.items()],
)
def test_every_function_has_a_route_with_its_parameters(schema, path, function, given):
    route = schema["paths"][path]["get"]
    query = {each["name"]: each for each in route["parameters"] if each["in"] == "query"}
    expected = list(inspect.signature(function).parameters.values())[given:]
    assert list(query) == [each.name for each in expected]
    for each in expected:
        said = query[each.name]
        assert said["schema"]["type"] == TYPES[get_type_hints(function)[each.name]]
        assert said["required"] == (each.default is inspect.Parameter.empty)
        if not said["required"]:
            assert said["schema"]["default"] == each.default
    assert [each["name"] for each in route["parameters"] if each["in"] == "path"] == [path.split("{")[1].split("}")[0]]
    assert route["description"] == inspect.getdoc(function)


def test_routes_say_how_they_refuse_and_stream(schema):
    for path, methods in schema["paths"].items():
        for method, route in methods.items():
            assert {"200", "4XX", "5XX"} <= set(route["responses"]), path
            assert "422" not in route["responses"]
            assert (method == "post") == ("requestBody" in route)
    streams = {path for path, each in schema["paths"].items() for route in each.values()
               if "text/event-stream" in route["responses"]["200"].get("content", {})}  # fmt: skip
    assert streams == {"/api/traces", "/api/models", "/api/generate", "/api/models/{model}/card"}


def test_a_parameter_that_no_address_can_hold_is_a_fault_of_the_function():
    def wrong(run, names: list):
        return {}

    with pytest.raises(TypeError, match="no address can hold"):
        parameters_of(wrong)
