# Any Python below `badput run` executes this at its start: nothing slow is imported, and it must
# be read by old versions too.
# ruff: noqa: PTH100, PTH119, PTH120, S110, SIM105, BLE001, UP031, UP036
"""Lets ``badput run`` in: its folder is first on PYTHONPATH, so each Python below loads this.

It decides what the process is, lets badput begin where that is a rank, takes itself off the
path, and then loads the ``sitecustomize`` that would have been loaded without it.
"""

from __future__ import annotations

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
LAUNCHERS = {
    "accelerate", "accelerate-launch", "accelerate.commands.accelerate_cli",
    "accelerate.commands.launch", "composer", "composer.cli.launcher", "deepspeed",
    "deepspeed.launcher.launch", "deepspeed.launcher.runner", "ds", "fabric", "horovodrun", "ray",
    "torch.distributed.launch", "torch.distributed.run", "torchrun", "torchx",
}  # fmt: skip
"""Programs and modules that start ranks and are none."""
TOOLS = {"badput", "badput.cli", "conda", "ensurepip", "pip", "pip3", "uv", "venv", "virtualenv"}
"""Programs and modules that are no ranks; what badput's own commands start is judged by itself."""
RANKS = ("RANK", "LOCAL_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
         "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "PMI_RANK",
         "MPI_LOCALRANKID")  # fmt: skip
"""The same as ``badput.identity.RANK_VARIABLES``, which is not loaded yet."""


def program(words: list[str]) -> tuple[str, str]:
    """What this Python was started to run: ("c" or "m" or "", the code, module or script)."""
    index = 1
    while index < len(words):
        word = words[index]
        if word == "-" or not word.startswith("-"):
            return "", word
        if word.startswith("--"):
            index += 2 if word == "--check-hash-based-pycs" else 1
            continue
        for at, letter in enumerate(word[1:], 2):
            if letter in "cm":
                rest = words[index + 1 :]
                return letter, word[at:] or (rest[0] if rest else "")
            if letter in "WX":
                index += 0 if word[at:] else 1
                break
        index += 1
    return "", ""


def part(env: dict[str, str], words: list[str], parent: int) -> str:
    """What this process is: ``rank``, ``script`` (a rank unless it starts ranks), ``perhaps`` (a
    rank if it trains), ``launcher``, or ``none``.
    """
    kind, what = program(words)
    name = what if kind else os.path.basename(what)
    if kind != "c" and name in LAUNCHERS:
        return "launcher"
    if (kind != "c" and name in TOOLS) or what.startswith("from multiprocessing.resource_tracker"):
        return "none"
    before = [item.partition("=") for item in env.get("BADPUT_OUTER", "").split(",")]
    outer = {name: value for name, _, value in before}  # what was there before `badput run`
    told = any(env.get(n) and env[n] != outer.get(n) for n in RANKS)
    direct = env.get("BADPUT_LAUNCHER") == str(parent)
    if kind == "c" and (what.startswith("from multiprocessing") or not direct):
        return "perhaps"
    return "rank" if told else "script" if direct else "perhaps"


def begin() -> None:
    """Hand over to badput where this process may be a rank."""
    env = os.environ
    mode = env.get("BADPUT_AUTO")
    if not mode or env.get("BADPUT_DISABLE") == "1":
        return
    words: list[str] = getattr(sys, "orig_argv", sys.argv)
    found = part(dict(env), words, os.getppid())
    if found == "launcher":
        env["BADPUT_LAUNCHER"] = str(os.getpid())
    if found in ("launcher", "none"):
        return
    if sys.version_info < (3, 11):
        if found != "perhaps":
            sys.stderr.write("badput: this process is not recorded: it runs Python "
                             "%d.%d, and badput needs 3.11\n" % sys.version_info[:2])  # fmt: skip
        return
    home = os.path.dirname(os.path.dirname(HERE))
    sys.path.insert(0, home)  # for this one import: what lies beside badput is not the program's
    try:
        import badput  # noqa: F401  # pyright: ignore[reportUnusedImport]
    finally:
        sys.path.remove(home)
    from badput import auto

    auto.begin(found, program(words), HERE)


def chain() -> None:
    """Load the next ``sitecustomize`` on the path, in our place."""
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != HERE]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401  # pyright: ignore[reportUnusedImport, reportMissingImports]
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


def interrupted() -> None:
    """End by the signal, as Python does after a Ctrl-C that nobody caught.

    From here an exception would be told as a fatal error of the interpreter, with exit code 1.
    """
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


try:
    if os.environ.get("BADPUT_AUTO"):
        try:
            begin()
        except Exception:  # whatever it is, the program starts
            pass
    chain()
except KeyboardInterrupt:
    interrupted()
