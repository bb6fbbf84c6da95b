import dataclasses

import numpy as np
import pytest

from gradejax.evaluation import routers
from gradejax.evaluation.baselines import best_single
from gradejax.types import Records


@pytest.fixture
def clusters(make_records):
    """make(n, seed, first_id): A1 is right where x < 0, A2 where x > 0, M0 never."""

    def make(n, seed, first_id, missing=()):
        rng = np.random.default_rng(seed)
        side = rng.integers(0, 2, n)
        x = np.stack(
            [(2 * side - 1) * rng.uniform(1, 2, n), rng.normal(size=n), np.full(n, 3.0)], 1
        )
        answers = np.stack([side, 1 - side, np.ones(n)], 1)
        return make_records(answers, gold=[0] * n, ids=first_id + np.arange(n), missing=missing), x

    return make


def both(clusters, make_pool, test_missing=(), train_missing=()):
    train, x = clusters(60, 0, 0, train_missing)
    test, x_test = clusters(40, 1, 1000, test_missing)
    return train, x, test, x_test, make_pool(9, 5, 1)


@pytest.mark.parametrize("router", [routers.router_logistic, routers.router_knn])
def test_learns_who_knows_what(clusters, make_pool, router):
    routed = router(*both(clusters, make_pool))
    np.testing.assert_array_equal(routed.outcome.correct, 1)
    np.testing.assert_array_equal(routed.outcome.agents, 1)
    assert set(routed.outcome.active_params) == {9, 5}  # paid only for the one asked, never M0
    train, x, test, x_test, pool = both(clusters, make_pool)
    assert best_single(test, pool).correct.mean() < 0.7


@pytest.mark.parametrize("router", [routers.router_logistic, routers.router_knn])
def test_missing_agents_are_not_asked(clusters, make_pool, router):
    # On test question 0 A1 and A2 are missing, on question 1 everyone.
    missing = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    out = router(*both(clusters, make_pool, missing)).outcome
    assert out.covered[0] and out.active_params[0] == 1 and not out.covered[1]
    assert out.correct[2:].all()


@pytest.mark.parametrize("router", [routers.router_logistic, routers.router_knn])
def test_an_agent_never_seen_in_training_is_never_asked(clusters, make_pool, router):
    out = router(*both(clusters, make_pool, train_missing=[(q, 1) for q in range(60)]))
    assert np.all(out.predicted[:, 1] == -np.inf)
    assert not np.any(out.outcome.active_params == 5)


@pytest.mark.parametrize("router", [routers.router_logistic, routers.router_knn])
def test_missing_training_calls_are_not_wrong_answers(clusters, make_pool, router):
    # Two thirds of A1's calls failed. Scored as wrong, A1 would look right on a third of its own
    # side.
    missing = [(q, 0) for q in range(60) if q % 3]
    routed = router(*both(clusters, make_pool, train_missing=missing))
    np.testing.assert_array_equal(routed.outcome.correct, 1)


@pytest.mark.parametrize("router", [routers.router_logistic, routers.router_knn])
def test_padding_and_row_order_are_inert(clusters, make_pool, padded, router):
    train, x, test, x_test, pool = both(clusters, make_pool)
    rubbish = np.full((2, 3), np.nan)
    plain = router(train, x, test, x_test, pool)
    long = router(
        padded(train),
        np.concatenate([x, rubbish]),
        padded(test),
        np.concatenate([x_test, rubbish]),
        pool,
    )
    assert plain.chosen == long.chosen
    for field in dataclasses.fields(plain.outcome):
        np.testing.assert_array_equal(
            getattr(plain.outcome, field.name), getattr(long.outcome, field.name)[:40]
        )
    assert not long.outcome.covered[40:].any()
    turned = router(_reverse(train), x[::-1], test, x_test, pool)
    assert turned.chosen == plain.chosen
    np.testing.assert_allclose(turned.predicted, plain.predicted, atol=1e-3)


def _reverse(records):
    fields = {name: getattr(records, name) for name in records.__dataclass_fields__}
    return Records(
        **{
            n: tuple(p[::-1] for p in v) if isinstance(v, tuple) else v[::-1]
            for n, v in fields.items()
        }
    )


def test_logistic_matches_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(2)
    x = rng.normal(size=(120, 5))
    right = (rng.random((120, 3)) < 1 / (1 + np.exp(-x @ rng.normal(size=(5, 3))))).astype(float)
    weight = (rng.random((120, 3)) < 0.8).astype(float)
    theta = routers.fit_logistic(x, right, weight, 0.03)
    for a in range(3):
        rows = weight[:, a] > 0
        peer = linear_model.LogisticRegression(C=1 / (0.03 * rows.sum()), tol=1e-8, max_iter=5000)
        peer.fit(x[rows], right[rows, a])
        np.testing.assert_allclose(theta[:-1, a], peer.coef_[0], atol=2e-3)
        np.testing.assert_allclose(theta[-1, a], peer.intercept_[0], atol=2e-3)


def test_logistic_at_infinite_penalty_is_the_base_rate():
    x = np.random.default_rng(3).normal(size=(50, 4))
    right = np.zeros((50, 2))
    right[:10, 0] = right[:40, 1] = 1
    theta = routers.fit_logistic(x, right, np.ones((50, 2)), 1e6)
    np.testing.assert_allclose(1 / (1 + np.exp(-theta[-1])), [0.2, 0.8], atol=1e-3)
    np.testing.assert_allclose(theta[:-1], 0, atol=1e-4)


def test_knn_by_hand():
    x = np.array([[0.0], [1.0], [2.0], [10.0]])
    right = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    weight = np.array([[1.0, 1.0], [1.0, 1.0], [0.0, 1.0], [1.0, 1.0]])
    one, three = routers.knn_predict(x, right, weight, np.array([[0.1]]), [1, 3], prior=0.0)
    np.testing.assert_allclose(one, [[1, 0]])
    np.testing.assert_allclose(three, [[1 / 2, 1 / 3]])  # the missing call is left out: not 1/3
    (smooth,) = routers.knn_predict(x, right, weight, np.array([[0.1]]), [1], prior=1.0)
    np.testing.assert_allclose(smooth, [[(1 + 1 / 3) / 2, (0 + 1 / 2) / 2]])
    (own,) = routers.knn_predict(x, right, weight, x, [1], prior=0.0, leave_one_out=True)
    np.testing.assert_allclose(own[0], [0, 0])  # its own label would give [1, 0]


def test_knn_matches_scikit_learn():
    neighbors = pytest.importorskip("sklearn.neighbors")
    rng = np.random.default_rng(4)
    x, x_query = rng.normal(size=(83, 6)), rng.normal(size=(31, 6))
    right = rng.integers(0, 2, (83, 3)).astype(float)
    for k, ours in zip(
        (2, 7),
        routers.knn_predict(x, right, np.ones_like(right), x_query, [2, 7], 0.0),
        strict=True,
    ):
        peer = neighbors.KNeighborsRegressor(k).fit(x, right)
        np.testing.assert_allclose(ours, peer.predict(x_query), atol=1e-12)


def test_settings_are_chosen_on_training_questions_only(clusters, make_pool):
    train, x, test, x_test, pool = both(clusters, make_pool)
    other = test.replace(gold=1 - test.gold)  # every test label turned round
    for router in (routers.router_logistic, routers.router_knn):
        first, second = router(train, x, test, x_test, pool), router(train, x, other, x_test, pool)
        assert first.chosen == second.chosen
        np.testing.assert_array_equal(first.predicted, second.predicted)


def test_cross_validation_prefers_what_generalises(make_records, make_pool):
    # 40 noise inputs, 60 questions, 7 of 10 right for A1 and 4 of 10 for A2 at random: the weakest
    # penalty fits noise, the strongest asks A1 always. A choice by training accuracy takes the
    # weakest.
    rng = np.random.default_rng(5)
    answers = np.stack([rng.random(60) > 0.7, rng.random(60) > 0.4, np.ones(60)], 1).astype(int)
    train = make_records(answers, gold=[0] * 60)
    test = make_records(answers[:5], gold=[0] * 5, ids=range(100, 105))
    x = rng.normal(size=(60, 40))
    routed = routers.router_logistic(train, x, test, x[:5], make_pool(9, 5, 1))
    assert routed.chosen >= 0.1
    # And the final fit uses it: the same as if it had been the only choice.
    only = routers.router_logistic(
        train, x, test, x[:5], make_pool(9, 5, 1), l2_grid=(routed.chosen,)
    )
    np.testing.assert_array_equal(routed.predicted, only.predicted)


def test_few_training_questions(clusters, make_pool):
    test, x_test = clusters(5, 1, 100)
    for n in (1, 2, 3):
        train, x = clusters(n, 0, 0)
        for router in (routers.router_logistic, routers.router_knn):
            assert router(train, x, test, x_test, make_pool(9, 5, 1)).outcome.covered.all()


def test_wrong_input_is_refused(clusters, make_pool):
    train, x, test, x_test, pool = both(clusters, make_pool)
    with pytest.raises(ValueError, match=r"expected \[60, E\]"):
        routers.router_knn(train, x[:-1], test, x_test, pool)
    with pytest.raises(ValueError, match="both a training and a test question"):
        routers.router_knn(train, x, train, x, pool)
    with pytest.raises(ValueError, match="needs training questions"):
        routers.router_logistic(train.replace(valid=np.zeros(60, bool)), x, test, x_test, pool)
