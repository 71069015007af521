"""What is printed of paths and messages is one line of text, whatever they hold."""

from __future__ import annotations

import io
import os

import pytest

from badput import collector, parts
from badput.cli import main as badput_main
from badput.neutral import emit, neutral

NAME = os.fsdecode(b"run\nbadput: all is well\x1b[31m\xff\xe2\x80\xae")
SHOWN = r"run\nbadput: all is well\x1b[31m\xff\u202e"


@pytest.fixture
def run(tmp_path):
    """A run folder with an odd name."""
    path = tmp_path / NAME
    for first in (0, 1):
        rows = [{"process_id": 5, "seq": first, "time_ns": 1, "kind": "end", "attrs": "{}"}]
        parts.write_rows(path, "events", f"{5:016x}-{first:012d}", rows)
    return path


def test_text_is_shown_with_escapes():
    assert neutral("größe 100 %") == "größe 100 %"
    assert neutral(NAME) == SHOWN
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    emit("größe\n", stream)
    stream.flush()
    assert stream.buffer.getvalue() == b"gr\\xf6\\xdfe\\n\n"


@pytest.mark.parametrize(
    "command",
    [
        ["compact", "RUN"],
        ["compact", "RUN/absent"],
        ["collect", "RUN"],
        ["collect", "RUN/absent"],
        ["status", "RUN", "--no-goodput"],
        ["status", "RUN/absent"],
        ["doctor", "RUN", "--no-self-test"],
    ],
    ids=" ".join,
)
def test_every_command_shows_a_path_in_one_line(run, box, capsys, command):
    words = [str(run) if w == "RUN" else str(run / "absent") if "/" in w else w for w in command]
    assert badput_main(words) in (0, 1, 2)
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert SHOWN in text
    assert "\nbadput: all is well" not in text
    assert "\x1b" not in text
    text.encode()


def test_so_does_the_collectors_log(capsys):
    collector.log(NAME)
    assert capsys.readouterr().err.endswith(f": {SHOWN}\n")
