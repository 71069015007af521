"""What stands beside the end of a process: error files and kills for lack of memory."""

from __future__ import annotations

import json
import os

import pytest

from badput.evidence import Evidence, error_signature, oom_counter, oom_kills

TRACE = """Traceback (most recent call last):
  File "/home/x/train.py", line 12, in main
    raise ValueError("secret")
ValueError: secret
"""


def written(path, said):
    path.write_text(said if isinstance(said, str) else json.dumps(said))
    return str(path)


@pytest.mark.parametrize(
    ("said", "signature"),
    [
        ({"message": {"message": "ValueError: secret", "extraInfo": {"py_callstack": TRACE}}},
         "ValueError at train.py:12"),
        ({"message": {"message": "torch.OutOfMemoryError: secret"}}, "torch.OutOfMemoryError"),
        ({"message": {"message": "KeyError: x", "extraInfo": None}}, "KeyError"),
        ({"message": {"message": "Zero", "extraInfo": 5}}, "Zero"),
        ({"message": "RuntimeError: secret"}, "RuntimeError"),
        ({"message": "the password is secret"}, None),
        ({"message": {"message": 5}}, None),
        ({"message": None}, None),
        ([], None),
        ("{cut", None),
        ("", None),
    ],
)  # fmt: skip
def test_only_type_and_place_are_taken_from_an_error_file(tmp_path, said, signature):
    assert error_signature(written(tmp_path / "error.json", said)) == signature


def test_an_error_file_that_is_none_says_nothing(tmp_path):
    assert error_signature(str(tmp_path)) is None
    assert error_signature(str(tmp_path / "missing")) is None
    os.mkfifo(tmp_path / "pipe")
    assert error_signature(str(tmp_path / "pipe")) is None


def test_kills_for_memory_are_counted_from_the_begin(tmp_path, monkeypatch):
    counter = tmp_path / "memory.events"
    counter.write_text("low 0\noom 7\noom_kill 3\noom_group_kill 9\n")
    assert oom_kills(str(counter)) == 3
    monkeypatch.setattr("badput.evidence.oom_counter", lambda pid: str(counter))
    found = Evidence({"process": {"pid": 1}}, here=True)
    assert found.attrs() == {}
    counter.write_text("oom_kill 5\n")
    assert found.attrs() == {"oom_kill_rise": 2}
    counter.unlink()
    assert found.attrs() == {}
    assert oom_kills(None) is None
    assert Evidence({"process": {"pid": 1}}, here=False).attrs() == {}


def test_our_own_control_group_is_found_or_there_is_none():
    name = oom_counter(os.getpid())
    assert name is None or name.startswith("/sys/fs/cgroup/")
    assert oom_counter(999_999_999) is None


def test_the_end_of_a_rank_has_the_signature_of_its_error_file(own_box, wait_until):
    path = own_box.folder / "error.json"
    child = own_box.start(
        "import badput, os, sys\nbadput.init(os.environ['RUN'])\nwith badput.step(): pass\n"
        "sys.stdin.readline()\nos._exit(1)",
        stdin=-1,
        env={"TORCHELASTIC_ERROR_FILE": str(path)},
    )
    wait_until(lambda: own_box.rows("steps") != [], "the first step")
    written(path, {"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": TRACE}}})
    child.communicate("\n")
    (end,) = own_box.ends()
    assert end["attrs"]["error_signature"] == "ValueError at train.py:12"
    assert "secret" not in json.dumps(own_box.rows("events"))
