"""Runs ml-goodput-measurement's own code on recorded events; started by ``google_ml_goodput``.

It needs that package and nothing of badput. Each line of standard input is a JSON object with
``calls`` (name of a record_* method, a step or event type or null, seconds since the epoch) and
``cache`` (a folder of its own); each answer is one line. Recorder, calculator and cache are the
package's; only its connection to Google Cloud Logging is replaced by a list in memory.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any


class Memory:
    """The stub: what was written is what is read, in the order of time, as the service has it."""

    def __init__(self) -> None:
        self.entries: list[Any] = []

    def write_cloud_logging_entry(self, entry: Any) -> None:
        """Keep an entry."""
        self.entries.append(entry)

    def read_cloud_logging_entries(self, **_: Any) -> tuple[list[Any], tuple[None, None]]:
        """Everything that was written."""
        return self.entries, (None, None)


def score(calls: list[list[Any]], cache: str) -> dict[str, Any]:
    """Goodput in percent and badput by type in percent, as the package gives them."""
    from ml_goodput_measurement.src.goodput import GoodputCalculator, GoodputRecorder

    log = Memory()
    recorder = GoodputRecorder("timeline", "log", logging_enabled=True, cloud_logger=log)
    for name, what, seconds in calls:
        when = datetime.fromtimestamp(seconds, tz=UTC)
        method = getattr(recorder, name)
        if name == "record_step_start_time":
            method(what, when)
        elif what is not None:
            method(when, what)
        else:
            method(when)
    calculator = GoodputCalculator("timeline", "log", cloud_logger=log, cache_dir=cache)
    goodput, badput, _ = calculator.get_job_goodput(include_badput_breakdown=True)
    found: dict[str, float] = {}
    for kind, value in badput.items():
        if isinstance(value, dict):
            found |= {f"{kind.name}: {k}": float(v) for k, v in value.items()}
        else:
            found[kind.name] = float(value)
    return {"goodput": float(goodput), "badput": found}


def main() -> None:
    """Answer line by line. What the package prints goes to standard error."""
    out, sys.stdout = sys.stdout, sys.stderr
    print(json.dumps({"version": version("ml-goodput-measurement")}), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = score(asked["calls"], asked["cache"])
        except Exception as error:  # noqa: BLE001 - an exception is its answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
