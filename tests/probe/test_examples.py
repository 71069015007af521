"""The example scripts, run as a user runs them, and what their books say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d",
            "--rdzv-endpoint", "127.0.0.1:0"]  # fmt: skip
ACCELERATE = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines",
              "1", "--mixed_precision", "no", "--dynamo_backend", "no"]  # fmt: skip


def run(box, name, *before, after=(), code=0, **env):
    """Run an example to its end and read its books."""
    script = EXAMPLES / f"{name}.py"
    done = subprocess.run(
        [sys.executable, *before, str(script), str(box.run), *after],
        env={**box.env, "HF_HUB_OFFLINE": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
             "OMP_NUM_THREADS": "1", **env},
        capture_output=True, text=True, timeout=240, check=False, cwd=box.folder,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done


def steps(box, **wanted):
    report = box.books()
    found = {name: report["steps"][name] for name in wanted}
    assert found == wanted
    return report


def saves(report):
    return [(c["op"], c["step"]) for c in report["checkpoints"]]


def test_plain_loop(box, needs):
    needs("torch")
    run(box, "plain_loop")
    box.ends(1)
    report = steps(box, executed=30, kept=30, lost=0)
    assert report["tokens"]["processed"] == 30 * 8 * 16
    assert saves(report) == [("save", 10), ("save", 20), ("save", 30)]
    assert {"E.eval", "E.save", "G.data"} <= measured(report)
    assert all(row["loss"] > 0 and row["forward_ns"] > 0 for row in box.rows("steps"))


def measured(report):
    return {leaf for leaf, entry in report["leaves"].items() if entry["gpu_ns"] != "0"}


def test_ddp(box, needs):
    needs("torch")
    run(box, "ddp", *TORCHRUN)
    box.ends(2)
    report = steps(box, executed=20, kept=20, lost=0)
    assert report["run"]["world_size"] == 2
    assert report["tokens"]["processed"] == 2 * 20 * 8 * 16
    assert "C.rendezvous" in measured(report)
    assert {row["scheduler"] for row in box.rows("processes")} <= {
        "torchrun",
        "slurm",
        "kubernetes",
    }


def test_fsdp2(box, needs):
    needs("torch")
    run(box, "fsdp2", *TORCHRUN)
    box.ends(2)
    report = steps(box, executed=20, kept=20, lost=0)
    assert report["run"]["world_size"] == 2
    assert set(saves(report)) == {("save", 10), ("save", 20)}
    assert sum(row["samples"] for row in box.rows("steps")) == 2 * 20 * 8


def test_accelerate(box, needs):
    needs("torch", "accelerate")
    run(box, "accelerate_loop", *ACCELERATE)
    box.ends(1)
    report = steps(box, executed=20, kept=20, lost=0)  # 40 batches
    assert report["tokens"]["processed"] == 40 * 4 * 16
    rows = box.rows("steps")
    assert {(row["tokens"], row["samples"], row["applied"]) for row in rows} == {(128, 8, True)}
    assert saves(report) == [("save", 20)]


def test_transformers_trainer(box, needs):
    needs("torch", "transformers", "accelerate")
    run(box, "hf_trainer")
    box.ends(1)
    report = steps(box, executed=20, kept=20, lost=0)
    assert report["tokens"]["processed"] == 20 * 2 * 2 * 16
    rows = box.rows("steps")
    assert [r["step"] for r in rows if r["loss"] is not None] == [5, 10, 15, 20]
    assert [r["step"] for r in rows if r["grad_norm"] is not None] == [5, 10, 15, 20]
    assert saves(report) == [("save", 10), ("save", 20)]
    assert {"E.eval", "E.save"} <= measured(report)
    (note,) = box.events("note")
    assert "not finite" in note["attrs"]["text"]


def test_transformers_trainer_below_badput_run(box, needs, tmp_path):
    needs("torch", "transformers", "accelerate")
    text = (EXAMPLES / "hf_trainer.py").read_text()
    for line in ("badput.init(", "import badput\n", "from badput.", "badput.close("):
        text = "".join(w for w in text.splitlines(keepends=True) if line not in w + "\n")
    text = text.replace(", callbacks=[BadputCallback()]", "")
    text = text.replace('    with badput.span("model"):\n        model', "    model")
    assert "badput." not in text.split('"""')[2]
    plain = tmp_path / "hf_plain.py"
    plain.write_text(text)
    before = ["-m", "badput.cli", "run", "-o", str(box.run), "--", sys.executable, str(plain)]
    run(box, "hf_trainer", *before, str(box.folder / "out"))
    box.ends(2)
    report = steps(box, executed=20, kept=20, lost=0)
    assert report["tokens"]["processed"] == 1280
    assert [r["step"] for r in box.rows("steps") if r["loss"] is not None] == [5, 10, 15, 20]
    assert saves(report) == [("save", 10), ("save", 20)]


CRASH = """
import os, runpy, signal, sys
from transformers import TrainerCallback
import badput.adapters.transformers as adapter
class Crash(adapter.BadputCallback):
    def on_step_end(self, args, state, control, **kwargs):
        super().on_step_end(args, state, control, **kwargs)
        if state.global_step == 13:
            os.kill(os.getpid(), signal.SIGKILL)
if os.environ["CRASH"] == "1":
    adapter.BadputCallback = Crash
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_transformers_trainer_killed_and_resumed(box, tmp_path, needs):
    needs("torch", "transformers", "accelerate")
    wrapper = tmp_path / "crash.py"
    wrapper.write_text(CRASH)
    run(box, "hf_trainer", str(wrapper), code=-signal.SIGKILL, CRASH="1")
    run(box, "hf_trainer", str(wrapper), after=["--resume"], CRASH="0")
    box.ends(2)
    report = steps(box, executed=23, kept=20, lost=3)  # killed in step 13, resumed from 10
    assert [(s["first_step"], s["last_step"]) for s in report["sessions"]] == [(1, 13), (11, 20)]
    assert report["tokens"]["processed"] == 23 * 64
    assert report["tokens"]["kept"] == 20 * 64


def test_a_trainer_callback_that_fails_leaves_the_training_alone(box, tmp_path, needs):
    needs("torch", "transformers", "accelerate")
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text("""
import os, runpy, sys
del os.environ["BADPUT_STRICT"]
import badput
import badput.adapters.transformers as adapter
def broken(*args, **kwargs):
    raise ValueError("broken")
adapter.badput = type("Broken", (), {"__getattr__": lambda self, name: broken})()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
""")
    done = run(box, "hf_trainer", str(wrapper))
    assert "train_loss" in done.stdout
    assert "training is not affected" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_example_is_run():
    # untouched: by the tests of `badput run`
    tested = {"plain_loop", "ddp", "fsdp2", "accelerate_loop", "hf_trainer", "untouched"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested
    assert all(os.access(path, os.R_OK) for path in EXAMPLES.glob("*.py"))
