"""``python -m badput_trainer.rank CONFIG_JSON``: the process of one stage, tied to its launcher.

Loading torch takes seconds. A launcher that is killed meanwhile must not leave its stages
behind, so this comes first and loads nothing else.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT = "BADPUT_TRAINER_PARENT"
"""Environment variable with the launcher's pid: a stage does not outlive its launcher."""

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    """Run the stage. Returns 0, or 1 after a failure or when the launcher is gone."""
    if not tied_to_launcher():
        return 1
    from badput_trainer import worker

    return worker.main(argv)


def tied_to_launcher() -> bool:
    """Ask the kernel to kill this process with its launcher; False if that is gone already."""
    parent = os.environ.get(PARENT)
    if parent is None:
        return True  # started by hand
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == int(parent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
