"""Verdicts: right programs pass, E09 and E10 are wrong, faults of the tests are missing."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gradejax.tasks import sandbox
from gradejax.tasks.sandbox import Limits, check

ADD = "assert add(2,3)==5"
GOOD = "def add(a,b):\n    return a+b"
BOTH = pytest.mark.parametrize("namespaces", [True, False])


def verdict(program, tests=ADD, entry_point="add", **given):
    return check(program, tests, entry_point, **given)


# --- E09: passing without being right -----------------------------------------------------------

E09 = {
    "exit0": "import os\nos._exit(0)",
    "systemexit": "raise SystemExit(0)",
    "forged": "def add(a,b):\n    return 0\nprint('ALL TESTS PASSED')",
    "always_equal": "class Z:\n    def __eq__(self,o): return True\ndef add(a,b):\n    return Z()",
    "atexit": "import atexit,os\natexit.register(lambda: os._exit(0))\ndef add(a,b):\n    return 0",
    "stub": "def add(a,b):\n    return 0",
}


def exit_code_of_program_and_tests_together(program: str) -> int:
    """The faulty way: the assertions run in the program's interpreter, exit code 0 is a pass."""
    run = subprocess.run([sys.executable, "-I", "-S", "-c", f"{program}\n{ADD}"],
                         capture_output=True, timeout=60)  # fmt: skip
    return run.returncode


@pytest.mark.parametrize("name", E09)
def test_e09_ways_to_pass_without_being_right(name):
    assert verdict(E09[name]).outcome == "wrong"


def test_e09_the_faulty_way_is_met_by_four_of_them():
    passed = {name for name in E09 if exit_code_of_program_and_tests_together(E09[name]) == 0}
    assert passed == {"exit0", "systemexit", "always_equal", "atexit"}


@BOTH
def test_e09_files_and_variables_are_out_of_reach(tmp_path, monkeypatch, namespaces):
    marker = tmp_path / "marker.txt"
    marker.write_text("here")
    monkeypatch.setenv("SOME_API_KEY", "secret-key")
    program = f"""
import os
try:
    os.remove({str(marker)!r})
except OSError:
    pass
print(sorted(os.environ), os.environ["HOME"], os.listdir(os.environ["HOME"]))
def add(a, b):
    return a + b
"""
    result = verdict(program, limits=Limits(namespaces=namespaces))
    assert result.outcome == "correct"  # the reward is by the tests alone
    assert marker.read_text() == "here"
    assert "SOME_API_KEY" not in result.output and "'HOME'" in result.output
    assert os.path.expanduser("~") not in result.output.split() and result.output.endswith("[]\n")
    assert result.network_isolated and result.files_isolated


def test_e09_an_exception_cannot_end_a_loop_of_the_tests_early():
    # raised as it is, StopIteration would end `map`, and all() of nothing is true
    tests = "assert all(ok for ok in map(lambda x: add(x, 1) == x + 1, [1, 2]))"
    result = verdict("def add(a, b):\n    raise StopIteration", tests)
    assert result.outcome == "wrong" and "StopIteration" in result.reason
    assert all(map(lambda x: next(iter(())), [1, 2]))  # noqa: C417  (the faulty way)


def test_a_swallowed_failure_of_the_program_is_no_pass():
    tests = "try:\n    add(1, 2)\nexcept BaseException:\n    pass"
    assert verdict("import os\ndef add(a, b):\n    os._exit(0)", tests).outcome == "wrong"
    assert verdict("def add(a, b):\n    raise ValueError", tests).outcome == "correct"


# --- E10: ending everything ---------------------------------------------------------------------

E10 = {
    "loop": ("while True: pass", "timeout|ended"),
    "child": ("import subprocess; subprocess.Popen(['sleep','300']); import time; time.sleep(300)",
              "."),  # there is no `sleep` in the sandbox
    "memory": ("x = bytearray(64 * 2**30)", "MemoryError"),
    "output": ("while True: print('y'*1000)", "output"),
    "grandchild_keeps_stdout": ("import os\nif os.fork()==0:\n    os.setsid(); import time; "
                                "time.sleep(300)", "."),
}  # fmt: skip


@pytest.mark.parametrize("name", E10)
def test_e10_from_a_worker_thread(name):
    program, pattern = E10[name]
    results, before = [], set(_supervisors())

    def work():
        results.append(verdict(program, limits=Limits(seconds=2)))

    thread = threading.Thread(target=work)
    start = time.monotonic()
    thread.start()
    thread.join(60)
    # 5 s on a machine of one's own, and it is far less than the 300 s the programs sleep
    assert time.monotonic() - start < 30
    (result,) = results
    assert result.outcome == "wrong" and result.seconds < 3
    assert re.search(pattern, result.reason), result
    assert len(result.output) <= 1_000_000
    assert set(_supervisors()) <= before  # neither running nor zombie


def test_a_pause_of_the_machine_is_not_the_programs_time():
    # the supervisor stops for longer than the limit and goes on
    program = "import time\ndef add(a, b):\n    time.sleep(1)\n    return a + b"
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(verdict, program, limits=Limits(seconds=2.5))
        deadline = time.monotonic() + 60
        while not (family := _supervisors()) and time.monotonic() < deadline:
            time.sleep(.02)
        time.sleep(.3)
        for pid in family:
            os.kill(pid, 19)
        time.sleep(3)
        for pid in family:
            os.kill(pid, 18)
        assert future.result().outcome == "correct"


def _supervisors() -> list[int]:
    pids = []
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError):  # a thread that has ended meanwhile
            pids += pathlib.Path(f"/proc/self/task/{thread}/children").read_text().split()
    return [int(pid) for pid in pids]


@BOTH
def test_when_the_caller_is_killed_everything_ends(namespaces):
    script = f"""
from gradejax.tasks.sandbox import Limits, check
program = "import time\\ntime.sleep(300)"
check(program, "add(1, 2)", "add", limits=Limits(seconds=200, namespaces={namespaces}), find=False)
"""
    caller = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + 60
    while len(family := family_of(caller.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(.05)
    assert len(family) >= 3  # supervisor, trial, program
    caller.kill()
    caller.wait()
    while any(map(alive, family)) and time.monotonic() < deadline:
        time.sleep(.05)
    assert not any(map(alive, family))


def family_of(pid: int) -> list[int]:
    text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    children = [int(child) for child in text.split()]
    return children + [pid for child in children if alive(child) for pid in family_of(child)]


def alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


@BOTH
def test_many_in_a_row_and_at_once_leave_nothing(namespaces):
    limits = Limits(namespaces=namespaces)
    verdict(GOOD, limits=limits)
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    children = set(_supervisors())
    temporary = {name for name in os.listdir("/tmp") if name.startswith("sandbox-")}
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda _: verdict(GOOD, limits=limits).outcome, range(24)))
    assert outcomes == ["correct"] * 24
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
    assert {name for name in os.listdir("/tmp") if name.startswith("sandbox-")} <= temporary
    assert set(_supervisors()) <= children  # neither running nor zombie


# --- what is served -----------------------------------------------------------------------------

ECHO = "def echo(*a, **k):\n    return [*a, k] if k else a[0] if len(a) == 1 else list(a)"


def test_plain_values_keep_their_types():
    tests = """
import math
for value in (0, -1, True, None, 1.0, "é\\ud800", b"\\x00", (1, (2,)), [1, [2.5]],
              {1: "a", "b": (3,)}, {1, 2}, frozenset({3}), 2j, 10**5000, -(2**53), math.inf,
              {(1, 2): None}):
    back = echo(value)
    assert type(back) is type(value) and back == value
assert math.isnan(echo(math.nan)) and math.copysign(1, echo(-0.0)) == -1
assert echo(1, 2, key=[3]) == [1, 2, {"key": [3]}]
"""
    assert verdict(ECHO, tests, "echo").outcome == "correct"


def test_a_program_may_return_kinds_of_plain_values():
    program = """
from collections import Counter, OrderedDict, defaultdict, namedtuple
from fractions import Fraction
P = namedtuple("P", "x y")
def echo(name):
    return {"counter": Counter("aab"), "ordered": OrderedDict(a=1), "named": P(1, 2),
            "half": Fraction(1, 2), "default": defaultdict(list, a=[1])}[name]
"""
    tests = """
assert echo("counter") == {"a": 2, "b": 1} and echo("ordered") == {"a": 1}
assert echo("named") == (1, 2) and echo("half") == 0.5 and echo("default") == {"a": [1]}
"""
    assert verdict(program, tests, "echo").outcome == "correct"


def test_exceptions_of_the_program_can_be_expected():
    program = "class Own(Exception): pass\ndef f(x):\n    raise {0: ValueError, 1: Own}[x]('no')"
    tests = """
try:
    f(0)
except ValueError as error:
    assert "no" in str(error)
else:
    assert False
"""
    assert verdict(program, tests, "f").outcome == "correct"
    wrong = verdict(program, "f(1)", "f")
    assert wrong.outcome == "wrong" and "Own: no" in wrong.reason


def test_helpers_of_the_prompt_are_the_data_sets_own():
    prompt = 'import math\ndef twice(x):\n    return 2 * x\n\ndef half(x):\n    """Half of x."""\n'
    tests = "def check(candidate):\n    assert candidate(twice(3)) == 3 and twice(1) == 2"
    assert verdict("    return x / 2\n", tests, "half", prompt=prompt).outcome == "correct"
    # a program that brings a twice of its own does not change the tests' one
    cheat = "def twice(x):\n    return 0\ndef half(x):\n    return 0"
    assert verdict(cheat, tests, "half", prompt=prompt).outcome == "wrong"
    # the program may use imports and helpers of the prompt that it does not repeat
    user = "def half(x):\n    return math.floor(x / 2) + twice(0)"
    assert verdict(user, tests, "half", prompt=prompt).outcome == "correct"


def test_other_functions_of_the_program_can_be_called():
    program = "def put(x):\n    return [x]\ndef get(x):\n    return x[0]"
    assert verdict(program, "assert get(put(3)) == 3", "get").outcome == "correct"


def test_arguments_go_by_value():
    tests = "given = [3, 1]\nassert first(given) == 3\nassert given == [3, 1]"
    assert verdict("def first(x):\n    return x.pop(0)", tests, "first").outcome == "correct"


@pytest.mark.parametrize(
    "tests, reason",
    [
        ("assert add(2, 3) ==", "cannot be run"),
        ("assert add(2, 3) == FIVE", "FIVE"),
        ("assert 5 == 5", "never called"),
        ("def check(candidate):\n    pass", "never called"),
        ("assert add(len, 3) == 5", "cannot be sent"),
    ],
)
def test_tests_that_say_nothing_about_the_program_are_missing(tests, reason):
    result = verdict(GOOD, tests)
    if "FIVE" in tests:
        # a name that nobody defines might be the program's; called, it would be
        assert result.outcome == "wrong"
    else:
        assert result.outcome == "missing" and reason in result.reason, result


@pytest.mark.parametrize("reply", ["", "I do not know.", "The sum is 5."])
def test_a_reply_without_code_is_no_answer(reply):
    prompt = 'def add(a, b):\n    """The sum."""\n'
    result = verdict(reply, prompt=prompt)
    assert (result.outcome, result.code, result.calls) == ("no_answer", None, 0)


@pytest.mark.parametrize(
    "program, reason",
    [
        ("def sub(a, b):\n    return a + b", "no attribute 'add'"),
        ("def add(a, b):\n    return a +", "SyntaxError"),
        ("def add(a):\n    return a", "TypeError"),
        ("add = 3", "not callable"),
        ("def add(a, b):\n    return map(int, [a])", "map"),
    ],
)
def test_ordinary_mistakes_are_wrong_with_a_reason(program, reason):
    result = verdict(program, find=False)
    assert result.outcome == "wrong" and reason in result.reason


def test_installed_packages_are_hidden_unless_asked_for():
    program = "import numpy\ndef add(a, b):\n    return numpy.add(a, b)"
    hidden = verdict(program)
    assert hidden.outcome == "wrong" and "numpy" in hidden.reason
    shown = verdict(program, limits=Limits(packages=True, memory=1 << 30, seconds=60))
    assert shown.outcome == "correct", shown  # a numpy integer is sent as the int that it equals


def test_user_errors():
    with pytest.raises(ValueError, match="name of a function"):
        verdict(GOOD, entry_point="add(2")
    with pytest.raises(ValueError, match="seconds above 0"):
        Limits(seconds=0)
    with pytest.raises(ValueError, match="64 MiB"):
        Limits(memory=1 << 20)


# --- other users and machines -------------------------------------------------------------------

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import check
PROGRAMS = ("def add(a,b): return a+b", "import os; os.kill(os.getppid(), 9)", sys.argv[2])
for namespaces in (True, False):
    for program in PROGRAMS:
        limits = check.Limits(seconds=20, namespaces=namespaces)
        r = check.check(program, "assert add(2,3)==5", "add", limits=limits)
        print(r.outcome, r.level, r.network_isolated, r.files_isolated, sep=",")
"""


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        time.sleep(300)
    os._exit(0)
os.wait()
def add(a, b):
    return 0
"""


def processes_of(uid: int) -> set[str]:
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            found |= {name} if os.stat(f"/proc/{name}").st_uid == uid else set()
        except FileNotFoundError:
            continue
    return found


def test_as_an_ordinary_user(tmp_path):
    system = shutil.which("python3", path="/usr/bin")
    if os.getuid() != 0 or system is None:
        pytest.skip("needs root, to become another user, and an interpreter that all may read")
    before = processes_of(65534)
    # where that user can read it: pytest's folders are closed
    folder = pathlib.Path("/tmp") / f"as_user_{os.getpid()}"
    shutil.copytree(pathlib.Path(sandbox.__file__).parent, folder,
                    ignore=shutil.ignore_patterns("__init__.py", "__pycache__"))  # fmt: skip
    try:
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)
        run = subprocess.run([system, "-I", "-c", SCRIPT, str(folder), DAEMON],
                             capture_output=True, text=True, cwd="/",
                             user=65534, group=65534, extra_groups=[],
                             timeout=300)  # fmt: skip
    finally:
        shutil.rmtree(folder)
    lines = run.stdout.split()
    assert len(lines) == 6, run.stderr
    assert [line.split(",")[0] for line in lines] == ["correct", "wrong", "wrong"] * 2
    assert all(line.endswith("True,True") for line in lines)
    assert processes_of(65534) <= before  # killpg would miss the grandchild


def test_a_machine_that_denies_namespaces_is_served_and_the_result_says_so(tmp_path):
    # a copy whose `unshare` fails as it does in a container
    folder = tmp_path / "denied"
    shutil.copytree(pathlib.Path(sandbox.__file__).parent, folder)
    file = folder / "confine.py"
    text = file.read_text()
    assert "def _unshare(root: bool) -> None:\n" in text
    file.write_text(text.replace("def _unshare(root: bool) -> None:\n",
                                 "def _unshare(root):\n    raise PermissionError(1, 'denied')\n"))
    (folder / "__init__.py").unlink()
    script = ("import sys, json, dataclasses; sys.path.insert(0, sys.argv[1]); import check\n"
              f"r = check.check({GOOD!r}, {ADD!r}, 'add')\n"
              "print(json.dumps(dataclasses.asdict(r)))")
    run = subprocess.run([sys.executable, "-I", "-c", script, str(folder)], capture_output=True,
                         text=True, timeout=120)  # fmt: skip
    said = json.loads(run.stdout)
    assert (said["outcome"], said["level"]) == ("correct", "basic")
    assert not said["processes_isolated"] and said["network_isolated"] and said["files_isolated"]
    assert said["weaker_because"] == ["namespaces: PermissionError: [Errno 1] denied"]


# --- HumanEval ----------------------------------------------------------------------------------


def rows(shared, name):
    with open(f"{shared}/data/{name}.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_all_humaneval_reference_solutions_pass(shared):
    items = rows(shared, "humaneval.test")

    def run(item):
        return check(item["answer"], item["test"], item["entry_point"], prompt=item["question"])

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(run, items))
    assert len(results) == 164
    failed = {i["id"]: r for i, r in zip(items, results, strict=True) if r.outcome != "correct"}
    assert not failed


# Where the source's verdict is not ours: it ran the reply without the prompt, whose encode_cyclic
# the test needs; the function itself is right, and passes with the prompt before it.
HUMANEVAL_DISAGREEMENTS = {"HumanEval/38": "correct"}


def test_humaneval_completions_get_their_verdicts(shared):
    items = {item["id"]: item for item in rows(shared, "humaneval.test")}
    replies = [row for row in rows(shared, "completions") if row["benchmark"] == "humaneval"]
    assert len(replies) == 12
    for row in replies:
        item = items[row["id"]]
        tests, name = item["test"], item["entry_point"]
        result = check(row["completion"], tests, name, prompt=item["question"])
        expected = "correct" if row["correct"] else "wrong"
        assert result.outcome == HUMANEVAL_DISAGREEMENTS.get(row["id"], expected), row["id"]
