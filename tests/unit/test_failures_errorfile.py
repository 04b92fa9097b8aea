"""error.json: torch's schema with ours beside it, written whole, read with care."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from unittest import mock

import pytest

from nbproc.failures import (
    ChildFailedError,
    ErrorHandler,
    Oom,
    ProcessFailure,
    error_data,
    exit_status,
    failure_of,
    get_error_handler,
    record,
    write_error,
)
from nbproc.failures.errorfile import read_data, read_time, read_trace


class Sentinel(Exception):
    """What the victims here raise."""


@record
def raises() -> None:
    raise Sentinel("foobar")


@record
def exits(code: object) -> None:
    raise SystemExit(code)


@record
def returns(value: int) -> int:
    return value


@record
def watches(failure: ProcessFailure) -> None:
    raise ChildFailedError("trainer", {0: failure})


@pytest.fixture
def error_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    return path


def written(path: Path, exc: BaseException, rank: int = 0) -> ProcessFailure:
    assert write_error(path, exc, {}, rank)
    return failure_of(rank, 997, 1, path, None)


# ------------------------------------------------------------------------------------------------------------- writing


def test_the_file_has_torchs_schema_and_ours(tmp_path: Path):
    before = time.time()
    assert write_error(tmp_path / "deep" / "error.json", Sentinel("foobar"), {}, 3)
    data = json.loads((tmp_path / "deep" / "error.json").read_text())
    assert data["message"]["message"] == "Sentinel: foobar"
    assert data["message"]["extraInfo"]["py_callstack"].endswith("Sentinel: foobar\n")
    assert int(data["message"]["extraInfo"]["timestamp"]) >= int(before)
    assert data["nbproc"]["version"] == 1
    assert data["nbproc"]["rank"] == 3
    assert before <= data["nbproc"]["time"] <= time.time()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["error.json"]


def test_torch_reads_our_file(tmp_path: Path):
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure as Torchs

    write_error(tmp_path / "error.json", Sentinel("foobar"), {}, 0)
    failure = Torchs(local_rank=0, pid=1, exitcode=1, error_file=str(tmp_path / "error.json"))
    assert failure.message["message"] == "Sentinel: foobar"


def test_we_read_torchs_file(error_file: Path):
    from torch.distributed.elastic.multiprocessing.errors import record as torchs

    def fails() -> None:
        raise Sentinel("foobar")

    with pytest.raises(Sentinel):
        torchs(fails)()
    failure = failure_of(0, 1, 1, error_file, None)
    assert failure.words == "Sentinel: foobar"
    assert failure.trace is None
    assert failure.own_clock


@pytest.mark.parametrize("place", ["file/error.json", "directory"])
def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path, place: str):
    (tmp_path / "file").write_text("")
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "x").write_text("")
    assert not write_error(tmp_path / place, Sentinel("x"), {}, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["directory", "file"]


def test_a_full_disk_leaves_nothing_half(tmp_path: Path):
    with mock.patch("nbproc.failures.errorfile.os.replace", side_effect=OSError(28, "No space left on device")):
        assert not write_error(tmp_path / "error.json", Sentinel("x"), {}, 0)
    assert list(tmp_path.iterdir()) == []


def test_an_exception_that_cannot_be_described_still_leaves_a_file(tmp_path: Path):
    with mock.patch("nbproc.failures.errorfile.from_exception", side_effect=MemoryError):
        assert write_error(tmp_path / "error.json", Sentinel("x"), {}, 0)
    assert failure_of(0, 1, 1, tmp_path / "error.json", None).words.startswith("Sentinel: <it could not be described")


# ------------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("timestamp", [10, "10"])
def test_plain_string_messages_are_read(tmp_path: Path, timestamp: object):
    path = tmp_path / "error.json"
    path.write_text(json.dumps({"message": "test error message", "timestamp": timestamp}))
    failure = ProcessFailure(local_rank=0, pid=997, exitcode=1, error_file=str(path))
    assert failure.message == "test error message"
    assert failure.timestamp == 10
    assert failure.words == "test error message"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"unknown_key": 1}', '{"message": 3}', "\x00", '"text"'])
def test_a_damaged_file(tmp_path: Path, content: str):
    path = tmp_path / "error.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="not an error file"):
        ProcessFailure(local_rank=0, pid=997, exitcode=1, error_file=str(path))
    failure = failure_of(0, 997, 1, path, None)
    assert failure.words == "exited with code 1 before returning"
    assert failure.error_file == "<N/A>"


def test_a_damaged_trace_leaves_the_message(tmp_path: Path):
    path = tmp_path / "error.json"
    data = error_data(Sentinel("x"), {}, 0)
    data["nbproc"] = {"time": "soon", "trace": {"frames": 3}}
    path.write_text(json.dumps(data))
    failure = failure_of(0, 1, 1, path, None)
    assert failure.trace is None
    assert failure.words == "Sentinel: x"
    assert read_time(data) == float(data["message"]["extraInfo"]["timestamp"])
    assert read_trace({"message": "", "nbproc": []}) is None


# ------------------------------------------------------------------------------------------------------ ProcessFailure


def test_process_failure(error_file: Path):
    ErrorHandler().record_exception(Sentinel("foobar"))
    failure = ProcessFailure(local_rank=0, pid=997, exitcode=1, error_file=str(error_file))
    assert (failure.local_rank, failure.pid, failure.exitcode) == (0, 997, 1)
    assert failure.error_file == str(error_file)
    assert failure.error_file_data["message"]["extraInfo"]["timestamp"] == str(failure.timestamp)
    assert failure.message
    assert failure.signal_name() == "<N/A>"
    assert failure.timestamp == int(failure.time)
    assert failure.timestamp_isoformat()[10] == "_"


def test_process_failure_by_signal():
    failure = ProcessFailure(0, 997, -11, "ignored.json")
    assert failure.signal_name() == "SIGSEGV"
    assert failure.message == "Signal 11 (SIGSEGV) received by PID 997"
    assert ProcessFailure(0, 997, -250, "").signal_name() == "<N/A>"


def test_process_failure_without_a_file():
    failure, other = ProcessFailure(0, 997, 138, "ignored.json"), ProcessFailure(0, 997, -9, "")
    assert failure.signal_name() == "<N/A>"
    assert failure.error_file == "<N/A>"
    assert failure.message == "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    assert failure.error_file_data["errorTraits"]["category"] == "system_terminated_error"
    assert "errorTraits" not in other.error_file_data  # torch shares one dict among all


@pytest.mark.parametrize(
    ("exitcode", "options", "words"),
    [
        (3, {}, "exited with code 3 before returning"),
        (0, {}, "exited with code 0 before returning"),
        (7, {"returned": True}, "exited with code 7 after returning"),
        (3, {"is_function": False}, "exited with code 3"),
        (127, {"is_function": False}, "exited with code 127 (what it was told to run was not found)"),
        (
            137,
            {"is_function": False},
            "exited with code 137 (128 + 9: a process it waited for was killed by SIGKILL)",
        ),
        (-9, {}, "was killed by SIGKILL (may have run out of memory)"),
        (-9, {"oom": Oom.YES}, "was killed by SIGKILL (out of memory)"),
        (-11, {"oom": Oom.YES}, "was killed by SIGSEGV (invalid memory access in native code)"),
        (-6, {"returned": True}, "was killed by SIGABRT (native code called abort()) after returning"),
        (-200, {}, "was killed by signal 200"),
        (None, {"reason": "could not be started: too many processes"}, "could not be started: too many processes"),
    ],
)
def test_ends_in_words(exitcode: int | None, options: dict[str, object], words: str):
    failure = failure_of(0, 5, exitcode, None, None, **options)  # type: ignore[arg-type]
    assert failure.words == words
    assert not failure.raised


@pytest.mark.parametrize(
    ("exc", "words"),
    [
        (KeyboardInterrupt(), "was interrupted (KeyboardInterrupt)"),
        (SystemExit(1), "exited with code 1 before returning"),
        (SystemExit("no data"), "exited with code 1 before returning: no data"),
        (ValueError("first line\nsecond line"), "ValueError: first line"),
        (ValueError("\n\n  late"), "ValueError:"),
        (ValueError("x" * 1000), "ValueError: " + "x" * 284 + " ..."),
    ],
)
def test_exceptions_in_words(tmp_path: Path, exc: BaseException, words: str):
    assert written(tmp_path / "error.json", exc).words == words


@pytest.mark.parametrize(
    ("code", "status"),
    [(None, (0, "")), (0, (0, "")), (3, (3, "")), (True, (1, "")), (-1, (255, "")), ("text", (1, "text"))],
)
def test_exit_status(code: object, status: tuple[int, str]):
    assert exit_status(SystemExit(code)) == status


def test_data_that_came_another_way_stands_in_for_the_file(tmp_path: Path):
    failure = failure_of(0, 1, 1, tmp_path / "gone" / "error.json", None, data=error_data(Sentinel("x"), {}, 0))
    assert failure.words == "Sentinel: x"
    assert failure.own_clock
    assert failure_of(0, 1, 1, None, None, data={"message": 3}).words == "exited with code 1 before returning"


# ------------------------------------------------------------------------------------------------ record, ErrorHandler


def test_record_writes_the_error_file(error_file: Path):
    with pytest.raises(Sentinel):
        raises()
    failure = failure_of(0, 1, 1, error_file, None)
    assert failure.words == "Sentinel: foobar"
    assert failure.where is not None
    assert failure.where.function == "raises"


def test_record_without_an_error_file_raises_all_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    with pytest.raises(Sentinel):
        raises()


def test_record_hands_on_the_result(error_file: Path):
    assert returns(3) == 3
    assert not error_file.exists()


def test_record_and_sys_exit(error_file: Path):
    assert exits(0) is None
    with pytest.raises(SystemExit):
        exits(1)
    assert not error_file.exists()


def test_record_copies_the_childs_error_file(error_file: Path, tmp_path: Path):
    child = written(tmp_path / "0" / "error.json", Sentinel("in the child"))
    with pytest.raises(ChildFailedError):
        watches(child)
    expected = read_data(child.error_file)
    assert expected is not None
    expected["message"]["errorCode"] = 1
    assert read_data(error_file) == expected


def test_record_understands_torchs_child_failed_error(error_file: Path, tmp_path: Path):
    from torch.distributed.elastic.multiprocessing import errors

    write_error(tmp_path / "child.json", Sentinel("in the child"), {}, 0)
    failure = errors.ProcessFailure(0, 1, 1, str(tmp_path / "child.json"))

    @record
    def main() -> None:
        raise errors.ChildFailedError("t", {0: failure})

    with pytest.raises(errors.ChildFailedError):
        main()
    assert failure_of(0, 1, 1, error_file, None).words == "Sentinel: in the child"


def test_record_of_a_child_without_an_error_file_writes_none(error_file: Path):
    with pytest.raises(ChildFailedError):
        watches(failure_of(0, 1, 1, None, None))
    assert not error_file.exists()


def test_write_error_copies_the_childs_error_file_too(tmp_path: Path):
    child = written(tmp_path / "child.json", Sentinel("in the child"))
    failure = written(tmp_path / "error.json", ChildFailedError("t", {0: child}))
    assert failure.words == "Sentinel: in the child"


def test_a_handler_of_ones_own(error_file: Path):
    handler = mock.Mock(spec=ErrorHandler)
    with pytest.raises(ZeroDivisionError):
        record(lambda: 1 / 0, error_handler=handler)()
    handler.initialize.assert_called_once()
    handler.record_exception.assert_called_once()
    assert not error_file.exists()


def test_initialize_enables_faulthandler():
    with mock.patch("faulthandler.enable") as enable:
        get_error_handler().initialize()
    enable.assert_called_once()
    with (
        mock.patch("faulthandler.enable", side_effect=RuntimeError("no stderr")),
        pytest.warns(UserWarning, match="no stderr"),
    ):
        ErrorHandler().initialize()


def test_dump_error_file_makes_the_same_file(error_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = tmp_path / "source.json"
    write_error(source, RuntimeError("foobar"), {}, 0)
    error_file.write_text("[]")
    ErrorHandler().dump_error_file(str(source))
    assert error_file.read_bytes() == source.read_bytes()
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")
    ErrorHandler().dump_error_file(str(source))
    ErrorHandler().dump_error_file(str(tmp_path / "missing.json"))


def test_the_exit_code_is_noted_where_there_is_a_place():
    handler = ErrorHandler()
    data = {"message": {"message": "x"}}
    handler.override_error_code_in_rootcause_data("f", data, 3)
    assert data["message"]["errorCode"] == 3  # type: ignore[comparison-overlap]
    for other in ({"message": "text"}, {"no message": 1}):
        before = dict(other)
        handler.override_error_code_in_rootcause_data("f", other, 3)
        assert other == before


def test_child_failed_error_is_torchs_table(tmp_path: Path):
    first, second = written(tmp_path / "0.json", Sentinel("rank 0")), written(tmp_path / "1.json", Sentinel("rank 1"))
    third = failure_of(2, 997, -11, None, None)
    error = ChildFailedError("trainer.par", {0: first, 1: second, 2: third})
    assert error.get_first_failure() == (0, first)
    text = str(error)
    assert "trainer.par FAILED" in text
    assert text.index("Sentinel: rank 1") < text.index("Root Cause (first observed failure)") < text.index("rank 0")
    assert "exitcode  : -11 (pid: 997) (SIGSEGV)" in text
    assert "<NO_OTHER_FAILURES>" in str(ChildFailedError("x", {0: first}))
    with pytest.raises(AssertionError):
        ChildFailedError("x", {})


def test_the_table_is_like_torchs(tmp_path: Path):
    from torch.distributed.elastic.multiprocessing import errors

    write_error(tmp_path / "0.json", Sentinel("rank 0"), {}, 0)
    arguments = (0, 997, 1, str(tmp_path / "0.json"))
    ours = ChildFailedError("t", {0: ProcessFailure(*arguments)})
    torchs = errors.ChildFailedError("t", {0: errors.ProcessFailure(*arguments)})
    assert str(ours).splitlines() == [line.rstrip() for line in str(torchs).splitlines()]


def test_failures_can_be_pickled(tmp_path: Path):
    import pickle

    failure = written(tmp_path / "0.json", Sentinel("x"))
    error = ChildFailedError("t", {0: failure})
    assert pickle.loads(pickle.dumps(error)).failures == {0: failure}


def test_importing_failures_imports_no_torch():
    import subprocess
    import sys

    code = "import sys, nbproc.failures, nbproc.explain; sys.exit('torch' in sys.modules or 'IPython' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ), check=False).returncode == 0
