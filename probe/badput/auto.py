# No pathlib: the training process imports this, and pathlib is slow to import.
# ruff: noqa: PTH109, PTH113, PTH118
"""Recording a script that does not know badput: what the ``sitecustomize`` of ``badput run`` calls.

A process that is a rank begins at once. One that may be one, such as a child of multiprocessing
or a program started by a shell script, begins when it makes an optimizer.
"""

from __future__ import annotations

import os
import sys

import badput
from badput import guard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OWN = (b"badput.init(", b"from badput import init")
_MAX_SCRIPT = 1 << 20
_begun = False
_ours: int | None = None
"""The incarnation that we began."""


def begin(part: str, program: tuple[str, str], boot: str) -> None:
    """Begin to record this process, now or when it turns out to train.

    ``part`` is ``rank``, ``script`` or ``perhaps``; ``boot`` the folder that is to vanish from
    the PYTHONPATH of processes that a rank starts: its workers and tools are no ranks.
    """
    try:
        own = calls_init(program)
        if part == "perhaps":
            if not own:
                _when_it_trains()
            return
        if part == "rank":
            forget(boot)
        if not own:
            start()
            _tell_children()
    except Exception as error:  # noqa: BLE001 - guard
        guard.fail("auto", error)


def start() -> None:
    """Begin to record this process with automatic steps."""
    global _begun, _ours  # noqa: PLW0603 - one probe a process
    if _begun or process_id() is not None:  # the program was faster
        return
    _begun = True
    badput.init(auto_steps=True)
    _ours = process_id()
    from badput.hooks import when_imported

    when_imported("transformers.trainer", _adapt_trainer)


def _adapt_trainer(module: Any) -> None:
    """Each Trainer from here on has our callback; one that the script gave as well comes first."""
    from badput.adapters.transformers import BadputCallback

    module.DEFAULT_CALLBACKS.append(BadputCallback)


def forget(boot: str) -> None:
    """Take what ``badput run`` put there out of the environment of processes started later."""
    os.environ.pop("BADPUT_AUTO", None)
    old = os.environ.get("PYTHONPATH", "")
    kept = [p for p in old.split(os.pathsep) if p != boot]
    if len(kept) == len(old.split(os.pathsep)):
        return
    if kept:
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)
    else:
        del os.environ["PYTHONPATH"]


def calls_init(program: tuple[str, str]) -> bool:
    """True if the script itself calls ``badput.init``: then that call says what is recorded."""
    kind, what = program
    if kind == "c":
        return any(word in what.encode() for word in _OWN)
    path = _file_of(what) if kind else what
    if path is None or not os.path.isfile(path):
        return False
    with open(path, "rb") as handle:
        text = handle.read(_MAX_SCRIPT)
    return any(word in text for word in _OWN)


def _file_of(module: str) -> str | None:
    """The file that ``python -m module`` runs; nothing is imported to find it."""
    below = module.replace(".", os.sep)
    ends = (os.path.join(below, "__main__.py"), below + ".py")
    # The working folder comes first on the path, but is not on it yet when site is loaded.
    places = (os.path.join(base, end) for base in [os.getcwd(), *sys.path] for end in ends)
    return next(filter(os.path.isfile, places), None)


def second_init() -> str | None:
    """What to say of an ``init`` of the program that comes after ours; None where none was ours."""
    if _ours is None or _ours != process_id():
        return None
    return (
        "badput run records this process already, so this init() is ignored, and with it name, "
        "flops, config and places in the pipeline; call badput.init in the file that is run"
    )


def process_id() -> int | None:
    """Id of the process incarnation that is being recorded here."""
    recorder = badput._recorder  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return None if recorder is None else recorder.spool.process_id


def _tell_children() -> None:
    """Ranks that this process starts name it, so that the books take it for their launcher."""
    number = process_id()
    if number is not None:
        os.environ["BADPUT_PARENT"] = str(number)


def _when_it_trains() -> None:
    from badput.hooks import when_imported

    when_imported("torch.optim.optimizer", _arm)


def _arm(module: Any) -> None:
    """Begin once the process has made an optimizer.

    At its first step would be too late: torch is then walking the list of its step hooks, to
    which ours have to be added.
    """
    kind = module.Optimizer
    original = kind.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        if not _begun:
            _trains(kind, original, __init__)

    __init__.__wrapped__ = original  # pyright: ignore[reportFunctionMemberAccess]
    kind.__init__ = __init__


def _trains(kind: Any, original: object, ours: object) -> None:
    try:
        if kind.__init__ is ours:
            kind.__init__ = original
        start()
    except Exception as error:  # noqa: BLE001 - guard
        guard.fail("auto", error)
