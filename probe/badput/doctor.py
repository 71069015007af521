"""``badput doctor``: what of the recording works on this machine, what does not, and why."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_DESCRIPTION = """\
What of the recording works on this machine, what does not, and why.

Every line is ok, warn (something is missing, recording works) or fail, with what to do about
it. A test of everything from the first record to Parquet is done in a folder of its own. With
RUN, that folder is looked at too. Exit codes: 0 recording works, 1 it does not, 2 bad usage."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="badput doctor",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", metavar="RUN", nargs="?", help="a run folder that is to be written")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--no-self-test", action="store_true", help="leave the self test out")
    args = parser.parse_intermixed_args(sys.argv[1:] if argv is None else list(argv))
    from badput.checks import all_checks
    from badput.neutral import emit

    found = list(all_checks(args.run, self_test=not args.no_self_test))
    bad = any(f.level == "fail" for f in found)
    if args.json:
        rows = [f.row() for f in found]
        print(json.dumps({"schema": "badput.doctor/1", "ok": not bad, "checks": rows}, indent=1))
        return int(bad)
    for finding in found:
        emit(f"{finding.level:<5}{finding.name:<16}{finding.text}")
        if finding.todo:
            emit(f"{'':<21}-> {finding.todo}")
    print("recording works here" if not bad else "recording does not work here: see fail above")
    return int(bad)
