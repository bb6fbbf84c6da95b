r"""Formulas: read, compared by math-verify, within limits that hold in threads and in processes."""

import multiprocessing
import subprocess
import sys
import threading
import time

import pytest

from gradejax.systems.questions import candidates_of
from gradejax.tasks import math_pool, maths
from gradejax.tasks.answers import KINDS, make_task
from gradejax.tasks.base import Example, Outcome
from gradejax.tasks.prompts import FORMATS

TASK = make_task("math", "math", FORMATS["open"])
# sympy evaluates the integral for ever; no guard of ours knows it
ENDLESS = r"\int_0^1 \frac{\sin(x^7+x)\ln(x^3+2)}{\sqrt{x^5+x+1}+\cos(x^4)}dx"


def judge(text, gold):
    return TASK.judge(text, "stop", Example("m", "?", None, gold))


@pytest.mark.parametrize(
    "gold, given",
    [
        (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt2}"),
        (r"\frac{\sqrt{2}}{2}", "sqrt(2)/2"),
        (r"\frac{\sqrt{2}}{2}", "√2/2"),
        (r"\frac{1}{2}", "0.5"),
        (r"\frac{1}{2}", r"\dfrac12"),
        ("(x+1)^2", "x^2+2x+1"),
        ("x^{100}", "x**100"),
        (r"3\pi", "3*pi"),
        (r"\{1,2\}", r"\{2, 1\}"),  # a set has no order
        ("1,2", "2,1"),
        (r"\left(3,\frac{\pi}{2}\right)", r"(3,\pi/2)"),
        ("[0,1)", "[0, 1)"),
        (r"(-\infty,2)\cup(3,\infty)", "(3, infinity) ∪ (-infinity, 2)"),
        (r"\left(\frac{3}{5},\frac{8}{3}\right]", "(0.6, 8/3]"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix} 1 \\ 2 \end{bmatrix}"),
        ("x=5", "5"),
        ("12_{8}", "12_8"),
        ("12_8", "12"),  # the question names the base
        ("6", "12/2=6"),
        ("5", "x = 5"),
        ("6-5i", "-5i+6"),
        ("1/3", "0.333333"),
        (r"\text{Evelyn}", "Evelyn"),
        (r"\text{(C)}", "C"),
        (r"5\text{ cm}^2", "5"),
        (r"90^\circ", "90"),
        (r"\$32,\!348", "32348"),
        (r"25\%", "25"),
        (r"x \in [1,2]", "[1,2]"),
        (r"1 \pm \sqrt{2}", r"1+\sqrt{2}, 1-\sqrt{2}"),
        (r"\sin^2 x+\cos^2 x", "1"),
        ("x^5-x^4+x^3-x^2+x-1", "(x-1)(x^4+x^2+1)"),  # many powers are no tower of powers
    ],
)
def test_equal(gold, given):
    judged = judge(f"\\boxed{{{given}}}", gold)
    assert judged.outcome is judged.strict is Outcome.RIGHT


@pytest.mark.parametrize(
    "gold, given",
    [
        ("(1,2)", "(2,1)"),  # a tuple has
        ("[1,2]", "(1,2)"),
        ("1/3", "0.33"),
        ("x^2+1", "2"),
        (r"42\sqrt{3}", "42"),  # the number inside a formula
        ("p-q", "q-p"),
        (r"\text{Evelyn}", "Angela"),
        ("6", "5=6"),
        ("12", "12_8"),
        ("12_8", "12_{9}"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"),
    ],
)
def test_different(gold, given):
    judged = judge(f"\\boxed{{{given}}}", gold)
    assert judged.outcome is Outcome.WRONG and not judged.cannot_compare


@pytest.mark.parametrize("given", ["x+", r"\frac{1}{2", "9^{9^{9^9}}", "99999999!", "(" * 200])
def test_what_does_not_parse_or_end_cannot_be_compared_e03(given):
    judged = judge("ANSWER: " + given, "x+2")
    assert judged.outcome is Outcome.WRONG and judged.cannot_compare


@pytest.mark.parametrize(
    "text, answer",
    [
        ("So $S = 3 + 4$, which is $7$.", "7"),
        ("The answer is $x^2$. We are done.", "x^2"),
        ("Thus the answers are \\boxed{1} and \\boxed{2}.", "1, 2"),
        ("\\boxed{15\\frac{39}{40}}, or $\\boxed{\\frac{639}{40}}$.", "\\frac{639}{40}"),
        ("\\boxed{5}. No, that is wrong: \\boxed{7}", "7"),
        ("\\boxed{44}. We check our answer: $17\\cdot 44 = 748$", "44"),
        ("ANSWER: $\\frac{1}{2}$", "\\frac{1}{2}"),
        ("<think>\\boxed{1}</think>\\boxed{2}", "2"),
        ("<think>\\boxed{1}", None),
        ("I do not know how to solve this problem.", None),
    ],
)
def test_where_formulas_are_stated(text, answer):
    assert KINDS["math"].extract(text, Example("m", "?", None, "7")) == answer


def test_equal_formulas_are_one_candidate_of_a_vote():
    example = Example("m", "?", None, r"\frac{\sqrt{2}}{2}")
    texts = [r"\boxed{2}", r"\boxed{\frac{1}{\sqrt2}}", r"\boxed{\sqrt{2}/2}", r"\boxed{0.5}"]
    judged = [TASK.judge(text, "stop", example) for text in texts]
    candidates, said, gold = candidates_of(example, TASK, judged)
    # apart, the two right answers would be an error, and a vote would not add them up
    assert said == [0, 1, 1, 2] and gold == {1}
    assert candidates == ("2", r"\frac{1}{\sqrt{2}}", "0.5")


@pytest.mark.parametrize(
    "text",
    [r"\boxed{1/0}", "ANSWER: 5/0", "41/0", r"\boxed{\frac{7}{0}}", r"\boxed{-3/00}",
     r"\boxed{0/0}", "ANSWER: 2/\u0660"],
)  # fmt: skip
@pytest.mark.parametrize("gold", ["2", "0.5", "1/3", "0"])
def test_a_division_by_zero_is_a_wrong_answer_and_no_error(text, gold):
    # it once raised ZeroDivisionError, which ended the run with all of its replies
    assert judge(text, gold).outcome is Outcome.WRONG


def _compare(pool, results, *request):
    results.append(pool.compare(*request))


def test_the_limit_holds_in_threads_and_the_pool_goes_on():
    pool = math_pool.Pool(2)
    try:
        assert pool.compare("x+1", "1+x", 5.0) == (True, True)
        results = []
        threads = [
            threading.Thread(target=_compare, args=(pool, results, *request))
            for request in ((ENDLESS, "1", 0.5), ("x+1", "1+x", 5.0))
        ]
        start = time.process_time()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == [(False, False), (True, True)]
        assert time.process_time() - start < 5  # of this process: it only waits
        assert pool.compare("2x", "x+x", 5.0) == (True, True)
    finally:
        pool.close()
    assert all(worker.process.poll() is not None for worker in pool._workers)


def test_a_worker_that_dies_is_replaced():
    pool = math_pool.Pool(1)
    try:
        assert pool.compare("x+1", "1+x", 5.0) == (True, True)
        (worker,) = pool._workers
        worker.process.kill()
        worker.process.wait()
        assert pool.compare("x+1", "1+x", 5.0) == (False, False)
        assert pool.compare("x+1", "1+x", 5.0) == (True, True)
    finally:
        pool.close()


def _in_a_daemon(queue):
    queue.put(maths.same("(y+1)^2", "y^2+2y+1"))


def test_comparisons_work_in_daemonic_processes():
    # such a process may not have multiprocessing children; math-verify's own alarm needs the main
    # thread; neither concerns a plain subprocess
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_in_a_daemon, args=(queue,), daemon=True)
    process.start()
    assert queue.get(timeout=300) is True
    process.join()


def test_a_forked_process_does_not_use_its_parents_workers():
    code = (
        "import os\n"
        "from gradejax.tasks import math_pool, maths\n"
        "assert maths.same('(y+1)^2', 'y^2+2y+1')\n"
        "mine = math_pool.pool()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    fine = math_pool._pool is None and maths.same('(z+1)^2', 'z^2+2z+1')\n"
        "    os._exit(0 if fine else 1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
        "assert math_pool.pool() is mine and maths.same('(u+1)^2', 'u^2+2u+1')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
