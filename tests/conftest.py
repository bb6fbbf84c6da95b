"""Every test runs with the checks on that turn silent broadcasting and key reuse into errors."""

import gc
import importlib.metadata
import os
import pathlib
import signal

# Before jax is imported: four virtual devices, so that the multi-device tests run anywhere.
_FLAGS = ["--xla_force_host_platform_device_count=4"]
if importlib.metadata.version("jaxlib").startswith("0.10."):
    # The tests are mostly compilation of small kernels; this halves it (113 s to 62 s of CPU time
    # for generation/test_score_groups.py). Other versions may not know the flags, and an unknown
    # one ends the process.
    _FLAGS += [
        "--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true",
        "--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1",
    ]  # fmt: skip
os.environ.setdefault("XLA_FLAGS", " ".join(_FLAGS))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# What one module, process or run has compiled the next one reads (25 s to 9 s for a second run of
# objectives/test_advantages.py).
_CACHE = pathlib.Path(__file__).parents[1] / ".pytest_cache" / "compiled"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
# A background job is started with SIGINT ignored, which the children of the tests would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


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
