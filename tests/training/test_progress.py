"""What is shown: the metrics asked for, warnings once, plain lines where there is no terminal."""

import io

from gradejax.training.progress import ProgressLine

NAMES = {"loss": "loss", "entropy/depth": "H(depth)", "agents": "agents", "usage": "usage"}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_plain_lines_come_now_and_then_and_at_the_end():
    out = io.StringIO()
    with ProgressLine(NAMES, 50, file=out, every=3600) as line:
        for step in range(1, 51):
            line.update(step, {"loss": 1 / step, "agents": None, "usage": [0.5, 1.0], "other": 9})
    assert out.getvalue().splitlines() == [
        "step 1/50  loss 1.000  agents -  usage 0.500/1.000",
        "step 50/50  loss 0.020  agents -  usage 0.500/1.000",
    ]


def test_every_row_is_shown_when_asked_for():
    out = io.StringIO()
    line = ProgressLine(["loss"], 3, file=out, every=0)
    for step in (1, 2):
        line.update(step, {"loss": float("nan")})
    assert out.getvalue() == "step 1/3  loss nan\nstep 2/3  loss nan\n"


def test_a_warning_is_said_once():
    out = io.StringIO()
    line = ProgressLine([], 3, file=out)
    line.warn("agent A1 is never asked")
    line.warn("agent A1 is never asked")
    line.warn("gate depth: entropy 0.01", key="depth")
    line.warn("gate depth: entropy 0.02", key="depth")
    line.say("done")
    line.say("done")
    assert out.getvalue().splitlines() == [
        "warning: agent A1 is never asked", "warning: gate depth: entropy 0.01", "done", "done",
    ]  # fmt: skip


def test_a_terminal_gets_a_live_line_and_warnings_above_it(monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with ProgressLine(NAMES, 10, file=out) as line:
        line.update(4, {"loss": 0.25, "entropy/depth": 1.0986, "agents": 2345.6})
        line.warn("gate [read] collapsed")
        line.warn("gate [read] collapsed")
    text = out.getvalue()
    assert "4/10" in text and "loss 0.250  H(depth) 1.099  agents 2.35e+03" in text
    assert text.count("warning: gate [read] collapsed") == 1  # brackets are not markup
