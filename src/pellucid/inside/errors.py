"""What can go wrong when someone looks inside."""


class SiteError(ValueError):
    """A site's name that this model does not have."""


class WeightsChangedError(ValueError):
    """The weights are no longer those that a trace was made with."""


class LedgerError(ValueError):
    """A question that no sum of writes answers exactly, or one that was put wrongly."""


class EditError(ValueError):
    """An edit that makes no sense for this model, or that collides with another."""


class MetricError(ValueError):
    """A metric that does not give one number a row."""


class GraphError(ValueError):
    """An edge that this model does not have, or two runs whose parts do not stand for one another."""


class TraceFileError(ValueError):
    """A file that holds no trace of this model."""
