"""gradejax: train the small layer that coordinates a pool of frozen language models."""

__version__ = "0.1.0"
__all__ = ["load_lm", "restore"]


def __getattr__(name: str):
    # Imported on first use: the engine underneath should load without orbax or tokenizers.
    if name == "restore":
        from gradejax.training.restore import restore

        return restore
    if name == "load_lm":
        from gradejax.generation.language_model import load_lm

        return load_lm
    raise AttributeError(f"module 'gradejax' has no attribute {name!r}")
