"""What a program that runs without pytest logs."""

import logging


def warnings_of(logger: str = "pfo_fs") -> list[str]:
    """Returns a list to which each warning is added from now on."""
    told: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(logger).addHandler(handler)
    return told
