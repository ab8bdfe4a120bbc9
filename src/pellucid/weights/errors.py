"""The one error of this room."""


class CheckpointError(ValueError):
    """A checkpoint cannot be read or written as asked: the message names the file, what was expected, what came and
    what to do."""
