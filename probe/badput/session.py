# No pathlib: the training process imports this, and pathlib is slow to import.
# ruff: noqa: PTH100
"""Begin and end of recording: what ``init`` and ``close`` do, loaded only when called."""

from __future__ import annotations

import os
import sys
import time
from typing import cast

from badput import __version__, clock, copying, environment, guard, hooks, identity, stacks
from badput.hooks.frameworks import as_json
from badput.recorder import Recorder
from badput.spawn import ensure_collector
from badput.spool import Spool, SpoolError, above_standard, default_root
from badput.values import SMALL, as_count, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_CLOSE_S = 5.0
_ROLES = ("rank", "launcher")
_born = False
_root: str | None = None


def start(path: str | os.PathLike[str] | None, given: dict[str, Any]) -> Recorder | None:
    """Make a spool and a recorder for this process, and see that a collector runs.

    None, with one line to the user, where nothing can be recorded. Raises only what the
    guard is there for.
    """
    global _born, _root  # noqa: PLW0603 - one probe a process
    run = os.fspath(path) if path is not None else os.environ.get("BADPUT_DIR")
    if not run or _main_module_of_spawned_child():
        return None
    environment.check()
    role = given["role"]
    if role not in _ROLES:
        guard.say("role", f"init(role={role!r}) is not one of {', '.join(_ROLES)}; rank is assumed")
        role = "rank"
    process_id = int.from_bytes(os.urandom(8), "little") >> 1 or 1
    _root = default_root()
    try:
        who = facts(process_id, os.path.abspath(os.fsdecode(run)), role, given)
        who["spool_root"] = _root
        with above_standard():
            spool = Spool(_root, process_id, who)
    except (SpoolError, OSError) as error:
        guard.say("spool", f"recording is off: {error}")
        return None
    _born = True
    recorder = Recorder(spool)
    if traced := os.environ.get("BADPUT_TRACE"):
        from badput import tracing

        tracing.from_environment(recorder, traced)
    _say_when_leaving(recorder)
    _keep_stacks(recorder, _root, who["watch"])
    _attach_hooks(recorder, who["process"], given)
    _see_to_the_spool(recorder, _root, who["run"])
    return recorder


def _see_to_the_spool(recorder: Recorder, root: str, run: str) -> None:
    """Have a collector drain the spool, or a thread copy it where no process may be started."""
    try:
        if os.environ.get("BADPUT_COLLECTOR") == "thread":
            copying.start(recorder, run)
            return
        try:
            ensure_collector(root)
        except Exception as error:
            copying.start(recorder, run)
            if not isinstance(error, OSError):
                raise
            text = f"no collector can be started ({error}); a thread copies what is recorded"
            guard.say("collector start", f"{text}; afterwards: badput collect {run}")
    except Exception as error:  # noqa: BLE001 - what is recorded waits for the next collector
        guard.fail("collector start", error)


def facts(process_id: int, run: str, role: str, given: dict[str, Any]) -> dict[str, Any]:
    """Everything that is known of the process when it begins: the rows of two tables."""
    ticks, start_ns = identity.birth()
    mono, wall = clock.mono(), clock.wall()
    start_ns = wall if _born else min(start_ns, wall)  # a second incarnation begins now
    who = identity.world(role, given["rank"], given["world_size"])
    stages, stage = (
        as_count("stages", given["stages"], SMALL),
        as_count("stage", given["stage"], SMALL),
    )
    replica = as_count("replica", given["replica"], SMALL)
    if replica is None and who["rank"] is not None:
        replica = who["rank"] // stages if stages else who["rank"]
    process = {
        "process_id": process_id,
        "role": role,
        **who,
        "replica": replica,
        "stage": stage,
        "stages": stages,
        "microbatches": as_count("microbatches", given["microbatches"], SMALL),
        "schedule": _text(given["schedule"]),
        "start_ns": start_ns,
        "init_ns": wall,
        "host": identity.host(),
        "boot_id": identity.boot_id(),
        "pid": os.getpid(),
        "frameworks": as_json(),
        **identity.launcher(),
        **identity.gpu(),
        "version": __version__,
    }
    row = {
        "process_id": process_id,
        "time_ns": wall,
        "name": _text(given["name"]),
        "source": "probe",
    }
    return {
        "run": run,
        "anchor_mono_ns": mono,
        "anchor_wall_ns": wall,
        "anchor_boot_ns": mono + clock.boot() - clock.mono(),
        "start_ticks": ticks,
        "error_file": os.environ.get("TORCHELASTIC_ERROR_FILE"),
        "pid_namespace": identity.pid_namespace(),
        "watch": stacks.settings(),
        "gpus": identity.gpu_variables(),
        "process": plain(process),
        "run_row": plain({**row, **_flops(given["flops"])}),
        "config": None if given["config"] is None else plain(given["config"]),
    }


def _keep_stacks(recorder: Recorder, root: str, wants: dict[str, Any]) -> None:
    """Keep Python stacks for the hang watch, where the environment asks for them."""
    try:
        if wants.get("stacks") or wants.get("ptrace"):
            stacks.start(recorder, root)
    except Exception as error:  # noqa: BLE001 - guard
        guard.fail("stacks", error)


def _text(value: object) -> str | None:
    return None if value is None else str(plain(value))


def _flops(flops: object) -> dict[str, Any]:
    """FLOPs a token (a number), or a formula id with its inputs: (id, {...}) or {"formula": id}."""
    if flops is None:
        return {}
    if isinstance(flops, dict):
        given = cast("dict[str, Any]", flops)
        inputs = {k: v for k, v in given.items() if k != "formula"}
        return {"flops_formula": _text(given.get("formula")), "flops_inputs": inputs}
    if isinstance(flops, (tuple, list)):
        formula, *rest = cast("list[Any]", flops) or [None]
        return {"flops_formula": _text(formula), "flops_inputs": rest[0] if rest else {}}
    if isinstance(flops, str):
        return {"flops_formula": flops, "flops_inputs": {}}
    return {"flops_formula": "per_token", "flops_inputs": {"flops_per_token": flops}}


def _main_module_of_spawned_child() -> bool:
    """True while a spawned child runs the main module again: it is not a rank of its own."""
    process = sys.modules.get("multiprocessing.process")
    current = getattr(process, "current_process", None)
    return current is not None and getattr(current(), "_inheriting", False)


def stop(recorder: Recorder, timeout: float) -> None:
    """Close the spool and wait up to ``timeout`` s until all is in Parquet."""
    stacks.stop()
    recorder.close()
    disconnect(recorder)
    deadline = time.monotonic() + min(max(timeout, 0.0), MAX_CLOSE_S)
    try:
        if copying.active():
            copying.last_copy()
        elif _root is not None:
            ensure_collector(_root)
        while not recorder.spool.acknowledged() and time.monotonic() < deadline:
            time.sleep(0.02)
        guard.cannot_write(recorder.spool.control, recorder.spool.run)
    finally:
        recorder.spool.release()


def _attach_hooks(recorder: Recorder, process: dict[str, Any], given: dict[str, Any]) -> None:
    try:
        auto = given["auto_steps"] or os.environ.get("BADPUT_AUTO_STEPS") == "1"
        names = hooks.choose(given["hooks"], os.environ.get("BADPUT_HOOKS"))
        hooks.install(recorder, process, names, auto_steps=bool(auto))
    except Exception as error:  # noqa: BLE001 - without hooks the rest is recorded all the same
        guard.fail("hooks", error)


def unhook() -> None:
    """Take the hooks back, while what they still hold can be recorded."""
    hooks.remove()


def disconnect(recorder: Recorder) -> None:
    """Make sure that step and span objects still held somewhere write nothing any more."""
    recorder.owner = 0
    recorder.spool.retire()


def after_fork(recorder: Recorder) -> None:
    """In a forked child: the maps are shared with the parent, so let go of them."""
    import threading

    global _born  # noqa: PLW0603 - one probe a process
    _born = False
    hooks.remove()
    recorder.lock = threading.RLock()  # another thread of the parent may have held it
    disconnect(recorder)
    spool = recorder.spool
    spool.control = bytearray(4096)  # type: ignore[assignment]
    spool.state = recorder.step.state = memoryview(spool.control).cast("Q")


def _say_when_leaving(recorder: Recorder) -> None:
    """At the interpreter's end, but before our maps go, tell the collector that it comes."""
    import atexit

    leave = recorder.spool.leaving

    def badput_leaving() -> None:
        try:
            hooks.flush(recorder)
            leave()
        except Exception as error:  # noqa: BLE001 - guard
            guard.fail("end", error)

    atexit.register(badput_leaving)
