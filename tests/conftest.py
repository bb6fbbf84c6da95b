"""Every test runs with the checks on that turn silent broadcasting and key reuse into errors."""

import os

# Before jax is imported: four virtual devices, so that the multi-device tests run anywhere.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def shared():
    """Folder with real benchmark items and Hugging Face Flax fixtures (GRADEJAX_SHARED)."""
    path = os.environ.get("GRADEJAX_SHARED")
    if not path or not os.path.isdir(path):
        pytest.skip("GRADEJAX_SHARED does not name a folder with the shared data and fixtures")
    return path


@pytest.fixture
def x64():
    """Run one test in double precision and put the switch back."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)
