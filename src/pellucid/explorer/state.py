"""All that a server holds."""

from collections.abc import Callable, Sequence

from ..front import Model, load
from .models import Models
from .settings import Settings
from .traces import Traces
from .worker import Worker


class State:
    """One worker, the models it works with, and the runs that are kept of them."""

    def __init__(
        self,
        given: Sequence[Model],
        settings: Settings,
        names: Sequence[str] = (),
        load: Callable[[str], Model] = load,
    ):
        self.settings = settings
        self.worker = Worker(settings.waiting)
        self.traces = Traces(settings.held)
        self.models = Models(given, names, load, settings.models, self.traces.let_go)

    def begin(self, name: str) -> None:
        """Load a model as soon as the worker can."""
        self.models.loading = name
        self.worker.submit(lambda job: self.models.load_first(name))
