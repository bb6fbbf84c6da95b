"""gradejax: train the small layer that coordinates a pool of frozen language models.

`restore(workdir)` gives a trained system that answers questions, `load_lm(name)` one language
model; `Example` is a question with options, `ExpertSpec` a model on a seat of the pool.
"""

import importlib

__version__ = "0.1.0"
__all__ = ["Example", "ExpertSpec", "load_lm", "restore"]

_HOME = {
    "Example": "gradejax.tasks.base",
    "ExpertSpec": "gradejax.experts.spec",
    "load_lm": "gradejax.generation.language_model",
    "restore": "gradejax.training.restore",
}


def __getattr__(name: str):
    # Imported on first use: the engine underneath should load without orbax or tokenizers.
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'gradejax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
