"""How commands end where output, terminal or patience fail: no traceback, a status of its own."""

import pathlib
import subprocess
import sys

import pytest

from experiments import command

ROOT = pathlib.Path(__file__).parents[2]


def ends(work: str, *, shell: str = "{python}", **options) -> subprocess.CompletedProcess:
    """A process that runs ``work``, the body of a function, as a command."""
    program = f"from experiments import command\ndef work():\n {work}\nexit(command.run(work))"
    line = "set -o pipefail; " + shell.format(python=f"'{sys.executable}' -c \"$PROGRAM\"")
    return subprocess.run(
        ["bash", "-c", line], text=True, capture_output=True, check=False, cwd=ROOT,
        env={"PROGRAM": program, "PATH": "/usr/bin:/bin"} | options,
    )  # fmt: skip


@pytest.mark.parametrize("error, said", [
    (ValueError("expected a, got b"), "error: expected a, got b\n"),
    (FileNotFoundError("x does not exist"), "error: x does not exist\n"),
    (ImportError("install x"), "error: install x\n"), (MemoryError(), "error: not enough memory\n"),
])  # fmt: skip
def test_what_the_user_can_mend_is_one_line(error, said, capsys):
    def work():
        raise error

    assert command.run(work) == 2 and capsys.readouterr().err == said
    assert command.run(lambda: 1) == 1


def test_a_fault_of_the_program_is_not_hidden():
    with pytest.raises(KeyError):
        command.run(lambda: {}["a"])


def test_a_reader_that_has_enough_ends_it_quietly():
    got = ends("print('a\\n' * 300_000); return 0", shell="{python} | head -n 1")
    assert (got.returncode, got.stdout, got.stderr) == (141, "a\n", "")
    short = ends("print('a'); return 0", shell="{python} | true")  # fails only when flushed
    assert short.returncode in (0, 141) and short.stderr == ""


def test_a_full_disk_is_said_once():
    got = ends("print('a'); return 0", shell="{python} > /dev/full")
    assert got.returncode == 2 and got.stderr.count("\n") == 1 and "No space left" in got.stderr
    assert ends("print('a'); return 0", shell="{python} >&-").stderr == ""


def test_what_a_terminal_cannot_show_is_escaped():
    got = ends("print('5 \\u2248 6'); return 0", PYTHONIOENCODING="ascii")
    assert (got.returncode, got.stdout) == (0, "5 \\u2248 6\n")


def test_ctrl_c_is_no_traceback():
    """Python's own handler is put back: a background shell ignores SIGINT for its children."""
    got = ends("import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
               "signal.raise_signal(signal.SIGINT)")  # fmt: skip
    assert (got.returncode, got.stderr) == (130, "interrupted\n")
