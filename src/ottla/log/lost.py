"""The log of a partition whose directory cannot be read: it holds nothing, and takes nothing."""

from __future__ import annotations

from ottla.log.epochs import Epochs
from ottla.log.handles import Handles
from ottla.log.log import Log, LogConfig
from ottla.log.opening.listing import Loaded
from ottla.log.producer_state import ProducerState
from ottla.log.segment import Segment


def lost_log(handles: Handles, directory: str, config: LogConfig) -> Log:
    """No file is touched, now or later."""
    nothing = Loaded([Segment(directory, 0, 0, 0)], 0, ProducerState(), Epochs(), {})
    log = Log(handles, directory, config, nothing)
    log.fenced = True
    return log
