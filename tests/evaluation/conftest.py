"""Hand-made records: an answer table is all that an evaluation test needs to say."""

import numpy as np
import pytest

from gradejax.types import Pool, Records


@pytest.fixture
def make_records():
    """make(answers [Q][A+1], gold [Q], ...): everything else has a plain default."""

    def make(answers, gold, *, missing=(), valid=None, family=None, tokens=None, ids=None):
        answers = np.asarray(answers, np.int32)
        n, columns = answers.shape
        available = np.ones((n, columns), bool)
        for row, column in missing:
            available[row, column] = False
        n_candidates = max(int(answers.max()), int(np.max(gold)), 0) + 1
        return Records(
            ids=np.arange(n, dtype=np.int32) if ids is None else np.asarray(ids, np.int32),
            valid=np.ones(n, bool) if valid is None else np.asarray(valid, bool),
            family=np.zeros(n, np.int32) if family is None else np.asarray(family, np.int32),
            features=tuple(np.zeros((n, 2), np.float32) for _ in range(columns)),
            available=available,
            answers=np.where(available, answers, -1).astype(np.int32),
            candidates=np.zeros((n, n_candidates, 2), np.float32),
            candidate_mask=np.ones((n, n_candidates), bool),
            choices=np.ones(n, bool),
            gold=np.asarray(gold, np.int32),
            tokens=np.full((n, columns), 10, np.int32)
            if tokens is None
            else np.asarray(tokens, np.int32),
        )

    return make


@pytest.fixture
def make_pool():
    """make(params) with agents A1, A2, ... and M0 last."""

    def make(*params):
        agents = tuple(f"A{i + 1}" for i in range(len(params) - 1))
        return Pool(
            agents=agents,
            managers=("math",),
            manager_of=(0,) * len(agents),
            params=tuple(params),
            widths=(2,) * len(params),
            candidate_width=2,
            trunk_width=2,
        )

    return make


@pytest.fixture
def padded():
    """padded(records): the same questions with two rows of rubbish that valid marks as padding."""

    def pad(records):
        def extend(x):
            # The rubbish would count as right, answered and expensive if it were looked at.
            return np.concatenate([x, np.repeat(x[:1], 2, 0)])

        fields = {}
        for name in records.__dataclass_fields__:
            value = getattr(records, name)
            fields[name] = tuple(map(extend, value)) if isinstance(value, tuple) else extend(value)
        fields["valid"][-2:] = False
        fields["answers"][-2:] = 0
        fields["gold"][-2:] = 0
        fields["available"][-2:] = True
        fields["tokens"][-2:] = 10_000
        return Records(**fields)

    return pad
