"""``badput run`` and an untouched script: who is recorded, who is not, and what the script sees."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from badput import identity, run

RUN = [sys.executable, "-m", "badput.cli", "run"]
BOOT = Path(run.BOOT)


def site():
    """The sitecustomize module, loaded under another name and outside `badput run`."""
    spec = importlib.util.spec_from_file_location("boot", BOOT / "sitecustomize.py")
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def start(box, *command, env=None, options=(), **more):
    return subprocess.run(
        [*RUN, "-o", str(box.run), *options, "--", *map(str, command)],
        env={**box.env, **(env or {})}, capture_output=True, text=True, timeout=240, check=False,
        **more,
    )  # fmt: skip


TRAIN = "import torch; torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)"
"""Makes an optimizer."""


def script(box, name, text):
    path = box.folder / name
    path.write_text(text)
    return path


def ranks(box):
    return [p for p in box.rows("processes") if p["role"] == "rank"]


PARTS = [
    ("torchrun", ["python", "/usr/bin/torchrun", "train.py"], {}, "launcher"),
    ("its module", ["python", "-u", "-m", "torch.distributed.run", "t.py"], {}, "launcher"),
    ("accelerate", ["python", "-X", "dev", "/v/bin/accelerate", "launch"], {}, "launcher"),
    ("a rank", ["python", "-u", "train.py"], {"RANK": "0", "LOCAL_RANK": "0"}, "rank"),
    ("a module of a rank", ["python", "-um", "train"], {"LOCAL_RANK": "0"}, "rank"),
    ("an MPI rank", ["python", "t.py"], {"OMPI_COMM_WORLD_RANK": "1"}, "rank"),
    ("the command itself", ["python", "train.py"], {"BADPUT_LAUNCHER": "7"}, "script"),
    ("its code", ["python", "-c", "train()"], {"BADPUT_LAUNCHER": "7"}, "script"),
    ("below a shell script", ["python", "train.py"], {}, "perhaps"),
    ("the pod's rank is none of ours", ["python", "prepare.py"],
     {"RANK": "1", "BADPUT_OUTER": "RANK=1"}, "perhaps"),
    ("but the worker's is", ["python", "train.py"],
     {"RANK": "1", "LOCAL_RANK": "0", "BADPUT_OUTER": "RANK=1"}, "rank"),
    ("a helper of a rank's shell", ["python", "-c", "import sys"], {"RANK": "0"}, "perhaps"),
    ("multiprocessing", ["python", "-c", "from multiprocessing.spawn import spawn_main"],
     {"RANK": "0", "BADPUT_LAUNCHER": "7"}, "perhaps"),
    ("its tracker", ["python", "-c", "from multiprocessing.resource_tracker import main"],
     {"RANK": "0"}, "none"),
    ("pip", ["python", "-m", "pip", "install", "x"], {"BADPUT_LAUNCHER": "7"}, "none"),
    ("pip's script", ["python", "/v/bin/pip", "list"], {"RANK": "0"}, "none"),
    ("badput itself", ["python", "/v/bin/badput", "run", "x"], {"BADPUT_LAUNCHER": "7"}, "none"),
    ("its module", ["python", "-m", "badput.cli", "train"], {"BADPUT_LAUNCHER": "7"}, "none"),
    ("standard input", ["python", "-"], {}, "perhaps"),
    ("nothing", ["python", "-W", "error", "-i"], {}, "perhaps"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "env", "found"), [p[1:] for p in PARTS], ids=[p[0] for p in PARTS]
)
def test_what_a_python_below_us_is(words, env, found):
    assert site().part(env, words, 7) == found


def test_both_lists_of_rank_variables_are_the_same():
    assert sorted(site().RANKS) == sorted(identity.RANK_VARIABLES)


TELL = """
import json, os, sys
print(json.dumps({
    "site": getattr(sys.modules.get("sitecustomize"), "__file__", None),
    "path": [p for p in sys.path if "badput" in p and p.endswith("boot")],
    "PYTHONPATH": os.environ.get("PYTHONPATH"), "AUTO": os.environ.get("BADPUT_AUTO"),
    "argv": sys.argv, "user": getattr(sys, "user_site", None),
}))
"""


def test_the_command_is_recorded_and_sees_its_own_world(box):
    tell = script(box, "tell.py", TELL)
    done = start(box, sys.executable, tell, "--token", "s3cret", env={"LOCAL_RANK": "0"})
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert said["argv"] == [str(tell), "--token", "s3cret"]
    assert said["path"] == []
    box.ends(2)
    (rank,) = ranks(box)
    (launcher,) = [p for p in box.rows("processes") if p["role"] == "launcher"]
    assert rank["parent"] == launcher["process_id"]
    assert (rank["rank"], rank["world_size"]) == (0, 1)
    (begun,) = box.events("start")
    assert begun["attrs"]["probe"] is True
    assert begun["attrs"]["pid"] == rank["pid"]
    everything = json.dumps([box.rows(t) for t in ("processes", "runs", "events")])
    assert "s3cret" not in everything
    box.books()


def test_a_rank_and_what_it_starts_find_the_environment_as_it_was(box):
    tell = script(box, "tell.py", TELL)
    lead = script(box, "lead.py", f"""
import os, subprocess, sys
env = {{**os.environ, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}}
code = "import subprocess, sys; subprocess.run([sys.executable, sys.argv[1]])"
open("rank.py", "w").write(code)
subprocess.run([sys.executable, "rank.py", {str(tell)!r}], env=env, check=True)
""")  # fmt: skip
    for before in (None, str(box.folder)):
        env = {} if before is None else {"PYTHONPATH": before}
        done = start(box, sys.executable, lead, env=env, cwd=box.folder)
        said = json.loads(done.stdout)
        assert (said["PYTHONPATH"], said["AUTO"]) == (before, None)
        assert said["site"] is None or not said["site"].startswith(str(BOOT))


def test_a_script_that_starts_the_ranks_is_their_launcher(box):
    rank = script(box, "rank.py", "import time; time.sleep(0.5)")
    lead = script(box, "lead.py", f"""
import os, subprocess, sys
ranks = [subprocess.Popen([sys.executable, {str(rank)!r}], env={{**os.environ, "RANK": str(n),
         "LOCAL_RANK": str(n), "WORLD_SIZE": "2"}}) for n in range(2)]
sys.exit(max(r.wait() for r in ranks))
""")  # fmt: skip
    assert start(box, sys.executable, lead).returncode == 0
    box.ends(4)
    report = box.books()
    assert len(report["sessions"]) == 1
    assert report["run"]["world_size"] == 2


def test_an_interrupt_while_python_starts_ends_it_as_an_interrupt_does(box):
    folder = box.folder / "mine"
    folder.mkdir()
    text = "import os, signal\nif 'BADPUT_AUTO' in os.environ: signal.raise_signal(signal.SIGINT)\n"
    (folder / "sitecustomize.py").write_text(text)
    below = start(box, sys.executable, "-c", "print(1)", env={"PYTHONPATH": str(folder)})
    assert (below.returncode, below.stdout) == (-signal.SIGINT, "")
    assert "Fatal" not in below.stderr


def test_a_hook_that_is_none_is_refused_before_the_command_starts(box):
    found = subprocess.run(
        [*RUN, "--hooks", "+gc,optimiser", "--", "true"],
        env=box.env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 2
    assert "there is no hook 'optimiser'; there are" in found.stderr


@pytest.mark.parametrize("broken", [False, True])
def test_the_users_own_sitecustomize_runs_as_ever(box, broken):
    folder = box.folder / "mine"
    folder.mkdir()
    text = "import sys\nsys.user_site = getattr(sys, 'user_site', '') + 'x'\n"
    (folder / "sitecustomize.py").write_text(text + ("1 / 0\n" if broken else ""))
    (folder / "usercustomize.py").write_text("import sys\nsys.user_site += 'u'\n")
    tell = script(box, "tell.py", TELL)
    env = {**box.env, "PYTHONPATH": str(folder)}
    plain = subprocess.run(
        [sys.executable, str(tell)], env=env, capture_output=True, text=True, check=True
    )
    below = start(box, sys.executable, tell, env={"PYTHONPATH": str(folder)})
    assert below.stderr == plain.stderr * 2  # `badput run` is a Python too
    assert ("Error in sitecustomize" in below.stderr) == broken
    expected, said = json.loads(plain.stdout), json.loads(below.stdout)
    assert (said["user"], said["site"]) == (expected["user"], expected["site"])
    box.ends(2)
    assert len(ranks(box)) == 1


@pytest.mark.parametrize("option", ["-I", "-E", "-S", "-sE"])
def test_where_python_lets_nobody_in_the_command_is_recorded_alone(box, option):
    done = start(box, sys.executable, option, "-c", "raise SystemExit(5)")
    assert done.returncode == 5
    assert "only the command's start and end are recorded" in done.stderr
    box.ends(1)
    assert ranks(box) == []
    (begun,) = box.events("start")
    assert begun["attrs"]["probe"] is False
    (end,) = box.events("exit")
    assert end["attrs"]["exit_code"] == 5
    assert box.books()["sessions"] == []


def test_a_script_that_calls_init_itself_is_left_to_it(box):
    own = script(box, "own.py", """
import badput
badput.init(name="mine", config={"lr": 1})
for _ in range(3):
    with badput.step(tokens=5):
        pass
badput.close()
""")  # fmt: skip
    done = start(box, sys.executable, own)
    assert (done.returncode, done.stderr) == (0, "")
    box.ends(2)
    assert len(ranks(box)) == 1
    report = box.books()
    assert (report["run"]["name"], report["steps"]["executed"]) == ("mine", 3)


@pytest.mark.parametrize("file", ["train.py", "train/__main__.py"])
def test_a_module_that_calls_init_itself_is_left_to_it(box, file):
    (box.folder / "pack" / file).parent.mkdir(parents=True)
    script(box, f"pack/{file}", """
import badput
badput.init(name="mine", flops=6e9)
with badput.step(tokens=5):
    pass
""")  # fmt: skip
    done = start(box, sys.executable, "-m", "pack.train", cwd=box.folder)
    assert (done.returncode, done.stderr) == (0, "")
    box.ends(2)
    assert len(ranks(box)) == 1
    assert [(r["name"], r["flops_formula"]) for r in box.rows("runs") if r["name"]] == [
        ("mine", "per_token")
    ]


def test_init_out_of_sight_is_ignored_with_one_line(box):
    script(box, "hidden.py", "import badput\ndef go():\n    badput.init()\n    badput.init()\n")
    done = start(box, sys.executable, script(box, "t.py", "import hidden; hidden.go()"))
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert "badput run records this process already, so this init() is ignored" in done.stderr
    box.ends(2)
    assert len(ranks(box)) == 1


@pytest.mark.parametrize(
    ("first", "then"),
    [("import hidden; hidden.go()", TRAIN), (TRAIN, "import badput; badput.init(name='mine')")],
    ids=["init in another file", "init after the optimizer"],
)
def test_below_a_shell_script_init_of_the_program_counts(box, first, then):
    script(box, "hidden.py", "import badput\ndef go():\n    badput.init(name='mine')\n")
    path = script(box, "t.py", f"{first}\n{then}\n")
    done = start(box, "sh", "-c", f"{sys.executable} {path}; true")
    assert (done.returncode, done.stderr) == (0, "")
    box.ends(2)
    assert len(ranks(box)) == 1
    assert [r["name"] for r in box.rows("runs") if r["name"]] == ["mine"]


def test_badput_run_below_badput_run_is_no_rank(box):
    inner = box.folder / "inner"
    done = start(box, *RUN, "-o", inner, "--", sys.executable, "-c", "pass")
    assert (done.returncode, done.stderr) == (0, "")
    box.ends(1)
    assert ranks(box) == []
    box.run = inner
    box.ends(2)
    assert len(ranks(box)) == 1


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    """Python of a venv that has neither badput nor pyarrow."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def test_a_python_without_our_packages_is_recorded_all_the_same(own_box, bare_python):
    code = """
import os, signal, sys, importlib.util
import badput
assert importlib.util.find_spec("pyarrow") is None
assert not any(p.endswith(("site-packages", "probe")) and "bare" not in p for p in sys.path)
with badput.step(tokens=5):
    pass
os.environ["SEEN"] = "1"
badput.close(5)
"""
    done = start(own_box, bare_python, script(own_box, "t.py", code))
    assert (done.returncode, done.stderr) == (0, "")
    own_box.ends(2)
    assert [row["tokens"] for row in own_box.rows("steps")] == [5]


def test_its_collector_is_started_with_our_python(own_box, bare_python, wait_until):
    code = f"""
import os, time
import badput
with badput.step(tokens=5):
    pass
open({str(own_box.folder / "there")!r}, "w").close()
while not os.path.exists({str(own_box.folder / "go")!r}):
    time.sleep(0.02)
badput.close(5)
"""
    child = subprocess.Popen(
        [*RUN, "-o", str(own_box.run), "--", str(bare_python), str(script(own_box, "t.py", code))],
        env=own_box.env,
    )
    wait_until((own_box.folder / "there").exists, "the step")
    own_box.kill_collectors()
    (own_box.folder / "go").touch()
    assert child.wait(60) == 0
    own_box.ends(2)
    assert [row["tokens"] for row in own_box.rows("steps")] == [5]


def test_the_folder_is_new_unless_given(box):
    done = subprocess.run(
        [*RUN, "--", "sh", "-c", "true"],
        env=box.env, capture_output=True, text=True, check=True, cwd=box.folder,
    )  # fmt: skip
    (made,) = (box.folder / "runs").iterdir()
    assert done.stderr == f"badput run: the run folder is runs/{made.name}\n"
    env = {**box.env, "SLURM_JOB_ID": "77"}
    for _ in range(2):  # a requeue comes back to the same one
        subprocess.run(
            [*RUN, "--", "true"], env=env, check=True, cwd=box.folder, capture_output=True
        )
    assert {p.name for p in (box.folder / "runs").iterdir()} == {made.name, "job-77"}
    file = box.folder / "file"
    file.touch()
    refused = start(box, "true", options=["-o", str(file)])
    assert refused.returncode == 2
    assert "not a folder" in refused.stderr


def test_many_pythons_below_a_shell_are_not_taken_for_ranks(box):
    one = f"{sys.executable} -c 'import json'"
    assert start(box, "sh", "-c", f"{one}; {one}; RANK=0 {one}").returncode == 0
    box.ends(1)
    assert ranks(box) == []


def test_help_and_the_list_of_commands_name_it():
    said = subprocess.run([*RUN, "--help"], capture_output=True, text=True, check=True).stdout
    assert "torchrun" in said
    assert os.environ.get("COLUMNS") or "RUN_DIR" in said
