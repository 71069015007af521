"""The ``badput`` command.

Light commands run here. Heavy ones are found through the entry points
``badput.commands``, so that a light install can say what to install instead of failing
with a traceback. Exit codes: 0 fine, 1 the check failed, 2 bad usage or input.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from badput import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

COMMANDS: dict[str, tuple[str | None, str]] = {
    "demo": ("app", "open the app on the sample runs of this checkout"),
    "serve": ("app", "open the app on a folder of runs"),
    "report": ("ledger", "print the books of a run: text, JSON, Markdown, HTML or a trace"),
    "fsck": ("ledger", "check that the books of a run close to the nanosecond"),
    "sql": ("ledger", "ask the books of a run with one SELECT"),
    "definitions": ("ledger", "every published goodput, ETTR and MFU from the same books"),
    "compare": ("ledger", "two runs bucket by bucket: what the difference is made of"),
    "gate": ("ledger", "hold a run against bounds, for CI: exit 1 with the sentence that failed"),
    "annotate": ("ledger", "add what only a person knows: stops, spares, held time, rollbacks"),
    "import": ("ledger", "make a run folder from the logs that a run left"),
    "collect": (None, "turn spools that were left behind into Parquet parts"),
    "compact": (None, "turn the many small parts of a run into few bigger ones"),
    "status": (None, "how runs stand right now: step, phase, hangs, goodput, who is behind"),
    "doctor": (None, "what of the recording works on this machine, what does not, and why"),
    "run": (None, "run a training command with the probe inside"),
    "train": ("trainer", "run the reference trainer, with faults if you like"),
}
"""Every command: the extra it needs (None: the base install) and one line of help."""

LIGHT = {
    "collect": "badput.collect",
    "compact": "badput.compact",
    "doctor": "badput.doctor",
    "status": "badput.status",
    "run": "badput.run",
}
"""Where the commands of the base install lie; each module has a ``main``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output went away (`badput report RUN | head`): not our failure.
        _forget_stdout()
        code = 0
    except OSError as error:
        if error.filename is not None:
            raise
        _forget_stdout()
        print(f"badput: cannot write the output: {error.strerror}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        code = 130
    return code


def _run(args: Sequence[str]) -> int:
    """Run what ``args`` ask for; what a user did wrong is a sentence, never a traceback."""
    if not args or args[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0
    if args[0] in ("-V", "--version"):
        print(f"badput {__version__}")
        return 0
    try:
        return _load(args[0])(args[1:])
    except _UsageError as problem:
        print(f"badput: {problem}", file=sys.stderr)
        return 2
    except SystemExit as leaving:  # argparse: --help or bad usage
        return leaving.code if isinstance(leaving.code, int) else 0


def _forget_stdout() -> None:
    """Let the interpreter flush what is left to nowhere, so that it has nothing to say at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _UsageError(Exception):
    """An unknown command, or one that needs a package that the light install does not have."""


def _load(name: str) -> Callable[[Sequence[str]], int]:
    """The function behind a command; raises _UsageError if there is none or its extra is absent."""
    if name not in COMMANDS:
        raise _UsageError(f"no command {name!r}; `badput --help` lists them.")
    extra = COMMANDS[name][0]
    if extra is None:
        return import_module(LIGHT[name]).main
    entries = list(entry_points(group="badput.commands", name=name))
    try:
        for entry in entries:
            return entry.load()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package.startswith("badput"):
            raise _UsageError(
                f"`badput {name}` needs the package {package!r}; "
                f"install it with: pip install 'badput[{extra}]'"
            ) from error
        if entries:
            raise
    raise _UsageError(
        f"`badput {name}` is not installed; try: pip install 'badput[{extra}]' "
        "(in a checkout that moved on: pip install -e '.[all]')"
    )


def _usage() -> str:
    lines = [
        "usage: badput COMMAND [ARG ...]",
        "",
        "Books every GPU-second of a training run exactly once, prices it, and shows where",
        "the money went.",
        "",
        "commands:",
    ]
    lines += [f"  {name:<9} {text}" for name, (_, text) in COMMANDS.items()]
    lines += [
        "",
        "`badput COMMAND --help` explains each. Exit codes: 0 fine, 1 the check failed, 2 bad",
    ]
    lines += ["usage or input."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
