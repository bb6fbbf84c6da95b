import threading

import pytest

from gradejax.experts.budget import Budget, Cost, Limits


def test_without_limits_everything_fits():
    budget = Budget()
    assert budget.reserve(Cost(1e9, 1e9)) and budget.over is None


def test_what_is_put_aside_counts_until_the_true_cost_is_known():
    budget = Budget(Limits(tokens=100))
    most = Cost(60, 0)
    assert budget.reserve(most) is True
    assert budget.reserve(most) is None  # 120 if both cost the most: wait, do not give up
    budget.settle(most, Cost(30, 0))
    assert budget.reserve(most) is True
    budget.settle(most, Cost(30, 0))
    assert budget.reserve(most) is False
    assert "tokens: 60 of 100 are spent and the next call may take 60" in budget.over
    # A cheaper call later would fit, but where asking stops must not depend on the order.
    assert budget.reserve(Cost(1, 0)) is False
    assert (budget.spent, budget.calls) == (Cost(60, 0), 2)


def test_money_and_time():
    budget = Budget(Limits(money=1.0))
    assert budget.reserve(Cost(5, 0.6)) is True
    budget.settle(Cost(5, 0.6), Cost(5, 0.6))
    assert budget.reserve(Cost(5, 0.6)) is False and "money: 0.6 of 1" in budget.over
    now = [50.0]
    budget = Budget(Limits(seconds=10), clock=lambda: now[0])
    assert budget.reserve(Cost(1, 1)) is True  # time counts from the first call
    now[0] = 59.9
    assert budget.reserve(Cost(1, 1)) is True
    now[0] = 60.0
    assert budget.reserve(Cost(1, 1)) is False and "time of 10 s" in budget.over


def test_rounding_leaves_nothing_reserved():
    # 0.1 + 0.2 - 0.1 - 0.2 is 2.8e-17, not 0: the last cent would wait for a call that never ends.
    assert 0.1 + 0.2 - 0.1 - 0.2 != 0
    budget = Budget(Limits(money=1.0))
    a, b = Cost(0, 0.1), Cost(0, 0.2)
    assert budget.reserve(a) and budget.reserve(b)
    budget.settle(a, Cost(0, 0))
    budget.settle(b, Cost(0, 0))
    assert budget.reserve(Cost(0, 1.0)) is True


def test_threads_together_never_exceed_the_limit():
    budget, most = Budget(Limits(tokens=1000)), Cost(10, 0)

    def work():
        while (fits := budget.reserve(most)) is not False:
            if fits:
                budget.settle(most, Cost(10, 0))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert (budget.spent.tokens, budget.calls) == (1000, 100)


@pytest.mark.parametrize("limits", [{"tokens": 0}, {"money": -1.0}, {"seconds": float("nan")},
                                    {"tokens": True}, {"money": "5"}])
def test_limits_are_numbers_above_0(limits):
    with pytest.raises(ValueError, match=f"budget: {next(iter(limits))} must be a number above 0"):
        Limits(**limits)
