"""Why ranks end badly: error.json, the failure of one rank, and which of several came first.

places (whose code a file is) -> frames -> traces (an exception as values) -> callstack (as Python's text) -> errorfile
(error.json) -> process (ProcessFailure) -> causes (which came first) -> recording (record, ChildFailedError).
stacks reads what a crash leaves on stderr, memory tells whether memory ran out.
"""

from nbproc.failures.callstack import format_trace
from nbproc.failures.causes import first_cause, follows, lost_connection, same
from nbproc.failures.errorfile import error_data, read_data, write_data, write_error
from nbproc.failures.frames import Frame
from nbproc.failures.memory import Oom, OomWatch
from nbproc.failures.process import ProcessFailure, exit_status, failure_of
from nbproc.failures.recording import ChildFailedError, ErrorHandler, get_error_handler, record
from nbproc.failures.stacks import Where, frames_in_dump, where_in_dump, where_of
from nbproc.failures.traces import Trace, from_exception

__all__ = [
    "ChildFailedError",
    "ErrorHandler",
    "Frame",
    "Oom",
    "OomWatch",
    "ProcessFailure",
    "Trace",
    "Where",
    "error_data",
    "exit_status",
    "failure_of",
    "first_cause",
    "follows",
    "format_trace",
    "frames_in_dump",
    "from_exception",
    "get_error_handler",
    "lost_connection",
    "read_data",
    "record",
    "same",
    "where_in_dump",
    "where_of",
    "write_data",
    "write_error",
]
