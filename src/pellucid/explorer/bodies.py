"""What requests hold, in their types; what is wrong in them is refused before anything is done."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def mended(text: object) -> object:
    """Text without halves of characters, as JSON may hold them: pairs are joined, what is left over is U+FFFD."""
    if not isinstance(text, str):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


Text = Annotated[str, BeforeValidator(mended)]
Id = Annotated[int, Field(ge=0, lt=2**31)]
Temperature = Annotated[float, Field(ge=0, le=1000)]


class Body(BaseModel):
    """Exact types, no field that there is not, no number that JSON lacks."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class ModelName(Body):
    """Which model to load."""

    name: Text = Field(description="A known name, or one that the server was started with.")


class Prompt(Body):
    """What a model reads: a text, or ids, and what its encoder reads if it has one; and what is edited on the way."""

    model: Text = Field(description="A model's id.")
    text: Text | None = None
    ids: list[Id] | None = Field(None, description="Token ids, instead of a text.")
    source: Text | None = Field(None, description="What an encoder-decoder's encoder reads.")
    edits: list[dict[str, Any]] = Field([], description="Edits as Edit.to_json writes them, in their order.")


class Drawing(Body):
    """How a token is drawn. Without a seed another one each time."""

    temperature: Temperature = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None


class Continuing(Prompt):
    """A prompt to be continued, and how tokens are chosen."""

    max_new_tokens: int | None = Field(None, description="By default as many as there is room for, at most 32.")
    temperature: Temperature = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: list[Text] = Field([], description="Texts before which the continuation ends.")


class Saving(Body):
    """What a file is to hold: the page's state, and the addresses of the answers that it shows."""

    state: dict[str, Any]
    paths: list[Text]


class Fault(BaseModel):
    """Why a request was refused."""

    code: str = Field(description="For programs, as context_length_exceeded.")
    message: str = Field(description="One line for people.")


class Refusal(BaseModel):
    """The answer to a request that was refused."""

    error: Fault
