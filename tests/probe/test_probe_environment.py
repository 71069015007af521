"""Variables of the environment that make no sense cost the user one line."""

from __future__ import annotations

import pytest

from badput import guard, stacks


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
