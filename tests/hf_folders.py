"""The checkpoints under tests/fixtures/hf, loaded once a session."""

import functools
import pathlib

import numpy as np

from gradejax.models.hf_weights import load_checkpoint

ROOT = pathlib.Path(__file__).parent / "fixtures" / "hf"
NAMES = ("llama", "llama_sharded", "phi3", "qwen2")


@functools.cache
def checkpoint(name):
    return load_checkpoint(ROOT / name)


@functools.cache
def expected(name):
    with np.load(ROOT / name / "expected.npz", allow_pickle=False) as arrays:
        return dict(arrays)


def rows_of(name):
    """The prompts of expected.npz without their padding."""
    want = expected(name)
    return [row[real].tolist() for row, real in zip(want["tokens"], want["mask"], strict=True)]
