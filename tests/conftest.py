"""Every test runs with the checks on that turn silent broadcasting and key reuse into errors."""

import gc
import importlib.metadata
import os

# Before jax is imported: four virtual devices, so that the multi-device tests run anywhere.
_FLAGS = ["--xla_force_host_platform_device_count=4"]
if importlib.metadata.version("jaxlib").startswith("0.10."):
    # The tests are mostly compilation of small kernels; this halves it. Other versions may not know
    # the flags, and an unknown one ends the process.
    _FLAGS += ["--xla_backend_optimization_level=1", "--xla_cpu_use_fusion_emitters=false"]
os.environ.setdefault("XLA_FLAGS", " ".join(_FLAGS))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import jax  # noqa: E402
import pytest  # noqa: E402

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


@pytest.fixture(scope="module", autouse=True)
def forget_compiled():
    """Thousands of compiled programs kept alive fill the memory and, in the end, the process's map
    of it: XLA's compiler then crashes."""
    yield
    jax.clear_caches()
    gc.collect()
