"""The tiny server answers every request with a reply or with what is wrong with it."""

import pathlib

import pytest

from experiments.serve_tiny import TinyServer

MODEL = str(pathlib.Path(__file__).parents[2] / "checkpoints" / "arithmetic")
CHAT = [{"role": "user", "content": "Calculate 5 - 3 + 6."}]


@pytest.fixture(scope="module")
def server():
    with TinyServer(MODEL) as server:
        yield server


def ask(server, **options):
    return server.complete({"model": MODEL, "messages": CHAT, "max_tokens": 8, **options})


def text(server, **options):
    status, body = ask(server, **options)
    assert status == 200, body
    return body["choices"][0]["message"]["content"]


def test_seeds_of_64_bits(server):
    """A negative one ended the request without an answer."""
    assert text(server, seed=-1) == text(server, seed=2**32 - 1) == text(server, seed=2**64 - 1)
    assert text(server, seed=None) == text(server, seed=0) == text(server)


@pytest.mark.parametrize(
    "options, status, words",
    [
        ({"model": "other"}, 404, "no model 'other'"),
        ({"seed": float("inf")}, 400, "OverflowError"),
        ({"seed": "x"}, 400, "ValueError"),
        ({"temperature": -1}, 400, "temperature must be"),
        ({"messages": 5}, 400, "expected a list of messages"),
        ({"max_tokens": "many"}, 400, ""),
        ({"messages": [{"role": "user", "content": "1 + " * 5000}]}, 400, "context"),
    ],
)
def test_what_is_wrong_is_said(server, options, status, words):
    got, body = ask(server, **options)
    assert got == status and words in body["error"]["message"]
