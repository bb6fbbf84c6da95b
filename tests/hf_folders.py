"""The checkpoints under tests/fixtures/hf, loaded once a session."""

import functools
import json
import pathlib

import numpy as np

from gradejax.models.hf_weights import load_checkpoint

ROOT = pathlib.Path(__file__).parent / "fixtures" / "hf"
NAMES = ("gemma", "gemma2", "gemma3", "gpt2", "gpt_oss", "llama", "llama_linear", "llama_sharded",
         "mistral", "mixtral", "phi3", "qwen2", "qwen3")  # fmt: skip
# Here rotary scaling depends on a row's length; these have no greedy texts.
BY_LENGTH = ("llama_dynamic", "phi3_longrope")


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


def raw(name, **entries):
    """config.json of a folder with other entries; ... leaves one out."""
    out = json.loads((ROOT / name / "config.json").read_text()) | entries
    return {k: v for k, v in out.items() if v is not ...}
