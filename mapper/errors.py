"""The errors that `mapper` raises on purpose, each with the exit code it ends a command with."""


class MapperError(Exception):
    """A request that cannot be served. The message says what, where, expected, found and what to do."""

    exit_code = 2


class BadInputError(MapperError):
    """A file, model or flag that the user has to change."""


class WorkerError(MapperError):
    """A child process that could not be started at all, as opposed to one that a bad candidate killed."""

    exit_code = 70
