"""Variables of the environment that make no sense cost the user one line."""

from __future__ import annotations

import pytest

from badput import environment, guard, hooks, stacks, telemetry, tracing


@pytest.mark.parametrize("name", ["BADPUT_HANG_S", "BADPUT_HANG_SLOW_S"])
@pytest.mark.parametrize("value", ["abc", "-3", "nan", "inf"])
def test_a_limit_that_is_no_number_is_said_and_the_default_is_used(
    name, value, monkeypatch, caplog
):
    guard.reset()
    monkeypatch.setenv(name, value)
    assert stacks.settings() == {}
    assert f"{name}={value!r} is no number of seconds from 0 up" in caplog.text
    monkeypatch.setenv(name, "")
    caplog.clear()
    guard.reset()
    assert stacks.settings() == {}
    assert caplog.text == ""
    monkeypatch.setenv(name, " 0 ")
    assert list(stacks.settings().values()) == [0.0]


NONSENSE = {
    "BADPUT_DISABLE": "yes",
    "BADPUT_AUTO_STEPS": "true",
    "BADPUT_STACKS": "on",
    "BADPUT_PTRACE": "2",
    "BADPUT_COLLECTOR": "threads",
    "BADPUT_ATTEMPT": "-1",
    "BADPUT_SAMPLE_S": "1e300",
    "BADPUT_GPUS": "mine",
    "BADPUT_TRACE": "5:99999999999999999999999",
    "BADPUT_HOOKS": "-",
    "BADPUT_HANG_S": "1e30",
}


def test_nonsense_in_every_variable_costs_one_sentence_each_and_no_step(own_box):
    child = own_box.run_child(
        """
import badput, os
badput.init(os.environ["RUN"])
for _ in range(5):
    with badput.step():
        pass
badput.close(5)
""",
        env=NONSENSE,
    )
    assert child.returncode == 0
    lines = child.stderr.splitlines()
    for name, value in NONSENSE.items():
        (line,) = [text for text in lines if f"{name}=" in text or f"{name}:" in text]
        assert repr(value) in line
    assert len(lines) == len(NONSENSE)
    own_box.ends()
    assert len(own_box.rows("steps")) == 5


@pytest.mark.parametrize(
    "value", ["", "0", "1", "thread", "3", "5", "all"], ids=lambda value: value or "empty"
)
def test_what_makes_sense_is_not_complained_about(monkeypatch, value):
    for name in NONSENSE:
        monkeypatch.delenv(name, raising=False)
    good = {
        "1": environment.FLAGS, "0": environment.FLAGS, "": environment.FLAGS,
        "thread": ["BADPUT_COLLECTOR"], "3": ["BADPUT_ATTEMPT"], "5": ["BADPUT_SAMPLE_S"],
        "all": ["BADPUT_GPUS"],
    }  # fmt: skip
    for name in good[value]:
        monkeypatch.setenv(name, value)
    assert environment.problems() == []


@pytest.mark.parametrize(
    "text",
    ["5:", ":5", "1:2:3", "x", "steps", "steps=5,every=0", "every=2", "steps=-1", "5:1e3",
     f"0:{1 << 47}", f"steps=5,every={1 << 70}", "steps=5,stride=2", "9" * 5000, " ", "=", "٣:"],
)  # fmt: skip
def test_a_trace_that_makes_no_sense_is_one_sentence_with_variable_and_value(text, caplog):
    class Recorder:
        trace = "as before"

    guard.reset()
    tracing.from_environment(Recorder(), text)
    assert Recorder.trace == "as before"
    (line,) = caplog.records
    assert f"BADPUT_TRACE={text[:60]!r} is none of START:COUNT" in line.getMessage()


@pytest.mark.parametrize("word", ["-", "+", "--gc", "+-gc", "\x1b[31m"])
def test_a_word_that_is_no_hook_is_shown_as_it_was_given(word, caplog):
    guard.reset()
    assert hooks.choose(None, word) == hooks.DEFAULT
    (line,) = caplog.records
    assert f"BADPUT_HOOKS: there is no hook {word!r}" in line.getMessage()


@pytest.mark.parametrize("value", ["1e300", "-1", "nan", "86401"])
def test_the_collector_does_not_wait_longer_than_it_can(monkeypatch, value):
    said = []
    monkeypatch.setenv("BADPUT_SAMPLE_S", value)
    assert telemetry.interval(said.append) == telemetry.INTERVAL_S
    assert f"BADPUT_SAMPLE_S={value!r}" in said[0]
