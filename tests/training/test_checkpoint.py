"""Checkpoints: exact, never lost, never torn, strict about what they restore into."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from gradejax.training.checkpoint import CheckpointError, Checkpoints


@flax.struct.dataclass
class State:
    params: dict
    opt_state: tuple
    step: jax.Array
    key: jax.Array


def make(scale=1.0):
    values = np.random.default_rng(3).standard_normal((5, 3)).astype(np.float32) * scale
    # twelve layers: as strings they sort 0, 1, 10, 11, 2 (fault C07)
    layers = [jnp.full((2,), i, jnp.float32) for i in range(12)]
    params = {"w": jnp.asarray(values), "half": jnp.asarray(values, jnp.bfloat16), "layers": layers}
    return State(params, optax.adam(1e-3).init(params), jnp.int32(7), jax.random.key(5))


def assert_same_bits(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize("abstract", [False, True])
def test_round_trip_is_exact_in_another_manager(tmp_path, abstract):
    state = make()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(7, state, {"seed": 3})
    # another manager knows nothing of the first, as a new process does
    with Checkpoints(tmp_path) as checkpoints:
        target = jax.eval_shape(make) if abstract else make(0.0)
        restored = checkpoints.restore(target)
        assert checkpoints.meta() == {"seed": 3}
    assert_same_bits(restored, state)
    assert [float(x[0]) for x in restored.params["layers"]] == list(range(12))
    draws = [jax.random.normal(s.key, (3,)) for s in (restored, state)]
    np.testing.assert_array_equal(*draws)


def test_numpy_leaves_stay_numpy_and_64_bit(tmp_path):
    state = {"count": np.arange(3, dtype=np.int64), "x": np.ones(2, np.float32)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
        restored = checkpoints.restore(state)
    assert_same_bits(restored, state)
    assert isinstance(restored["x"], np.ndarray)


def test_what_does_not_fit_is_named_and_nothing_is_cast(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        saved = {"w": jnp.ones((2, 3)), "b": jnp.ones(4), "old": jnp.ones(1), "k": make().key}
        checkpoints.save(1, saved)
        other = {
            "w": jnp.ones((3, 2)), "b": jnp.ones(4, jnp.bfloat16), "new": jnp.ones(1),
            "k": jax.random.key(0, impl="rbg"),
        }  # fmt: skip
        with pytest.raises(CheckpointError) as error:
            checkpoints.restore(other)
    text = str(error.value)
    assert "w: checkpoint has ((2, 3), 'float32'), this system has ((3, 2), 'float32')" in text
    assert "b: checkpoint has ((4,), 'float32'), this system has ((4,), 'bfloat16')" in text
    assert "old: in the checkpoint, not in this system" in text
    assert "new: missing from the checkpoint" in text
    assert "k: checkpoint has ((2,), 'uint32'), this system has ((4,), 'uint32')" in text


def test_newest_and_best_are_kept(tmp_path):
    # C08: kept_of_fault_best_3 would be [200, 300, 400], the newest gone
    scores = {100: 0.5, 200: 0.62, 300: 0.61, 400: 0.58, 500: float("nan"), 600: 0.55}
    state = {"w": jnp.ones(2)}
    with Checkpoints(tmp_path, keep=1, keep_best=2) as checkpoints:
        assert checkpoints.latest_step() is None and checkpoints.best_step() is None
        for step, score in scores.items():
            checkpoints.save(step, state, score=score)
        assert checkpoints.all_steps() == [200, 300, 600]
        assert (checkpoints.latest_step(), checkpoints.best_step()) == (600, 200)
    with Checkpoints(tmp_path, keep=1, keep_best=2) as checkpoints:
        assert (checkpoints.latest_step(), checkpoints.best_step()) == (600, 200)
        checkpoints.save(700, state)  # no score at all
        assert checkpoints.all_steps() == [200, 300, 700]


def test_only_committed_steps_count_and_as_numbers(tmp_path):
    # C06: as text "9" > "20"
    with Checkpoints(tmp_path, keep=9) as checkpoints:
        for step in (9, 10, 20):
            checkpoints.save(step, {"w": jnp.full(2, step, jnp.float32)})
    shutil.copytree(tmp_path / "20", tmp_path / "30.orbax-checkpoint-tmp-170333")
    (tmp_path / "40").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest_step() == 20
        assert checkpoints.all_steps() == [9, 10, 20]
        assert float(checkpoints.restore({"w": jnp.zeros(2)})["w"][0]) == 20
        with pytest.raises(CheckpointError, match=r"no checkpoint of step 40 .*\[9, 10, 20\]"):
            checkpoints.restore({"w": jnp.zeros(2)}, 40)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_step_already_there_is_left_alone(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"w": jnp.zeros(2)})
        checkpoints.save(1, {"w": jnp.ones(2)})
        assert float(checkpoints.restore({"w": jnp.ones(2)})["w"].sum()) == 0


def run_python(code, *args, devices=1):
    env = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)], env=env, text=True,
        capture_output=True, timeout=120,
    )  # fmt: skip


def test_a_state_of_eight_devices_restores_on_one_two_and_four(tmp_path):
    done = run_python(
        """
        import sys, jax, jax.numpy as jnp
        from jax.sharding import AxisType, NamedSharding, PartitionSpec
        from gradejax.training.checkpoint import Checkpoints
        mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
        rows = NamedSharding(mesh, PartitionSpec("data", None))
        x = jax.device_put(jnp.arange(32, dtype=jnp.float32).reshape(8, 4), rows)
        with Checkpoints(sys.argv[1]) as checkpoints:
            checkpoints.save(1, {"x": x, "key": jax.random.key(3)})
        """,
        tmp_path, devices=8,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    key = jax.eval_shape(lambda: jax.random.key(0))
    with Checkpoints(tmp_path, read_only=True) as checkpoints:
        for count in (1, 2, 4):
            mesh = jax.make_mesh(
                (count,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count]
            )
            rows = NamedSharding(mesh, PartitionSpec("data", None))
            target = {"x": jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=rows), "key": key}
            got = checkpoints.restore(target)
            shapes = {s.data.shape for s in got["x"].addressable_shards}
            assert shapes == {({1: 8, 2: 4, 4: 2}[count], 4)}
            assert float(got["x"].sum()) == 496
            np.testing.assert_array_equal(got["x"][5], [20, 21, 22, 23])
            assert jax.random.key_data(got["key"]).tolist() == [0, 3]
        # no sharding asked for: not the eight devices of the file, but the first one here
        got = checkpoints.restore({"x": jax.ShapeDtypeStruct((8, 4), jnp.float32), "key": key})
        assert got["x"].devices() == {jax.devices()[0]}
        got = checkpoints.restore({"x": np.zeros((8, 4), np.float32), "key": key})
        assert isinstance(got["x"], np.ndarray) and got["x"].sum() == 496


def test_kill_in_the_middle_of_a_save_leaves_the_older_checkpoint(tmp_path):
    done = run_python(
        """
        import os, pathlib, signal, sys, threading
        import jax.numpy as jnp, numpy as np
        from gradejax.training.checkpoint import Checkpoints
        folder = pathlib.Path(sys.argv[1])
        checkpoints = Checkpoints(folder)
        checkpoints.save(1, {"w": jnp.arange(4.0)})
        def watch():
            while not any(p.is_file() for p in folder.glob("2.*/state*/**/*")):
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Thread(target=watch, daemon=True).start()
        big = np.random.default_rng(0).standard_normal(8_000_000)
        checkpoints.save(2, {"w": jnp.asarray(big)})
        """,
        tmp_path,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = sorted(p.name for p in tmp_path.iterdir())
    assert left[0] == "1" and left[1].startswith("2.") and len(left) == 2  # it was in the middle
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.all_steps() == [1]
        np.testing.assert_array_equal(checkpoints.restore({"w": jnp.zeros(4)})["w"], np.arange(4))
        for _ in range(100):  # the torn one gives its space back, in a thread of its own
            if [p.name for p in tmp_path.iterdir()] == ["1"]:
                break
            time.sleep(0.1)
        assert [p.name for p in tmp_path.iterdir()] == ["1"]
        checkpoints.save(2, {"w": jnp.ones(4)})
        assert checkpoints.latest_step() == 2


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("no mount command")
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def check_full_disk(folder, fill, free):
    checkpoints = Checkpoints(folder, keep=3)
    checkpoints.save(1, {"w": jnp.arange(4.0)})
    fill()
    with pytest.raises(CheckpointError, match=r"could not save step 2 .*\(\[1\]\) are untouched"):
        checkpoints.save(2, {"w": jnp.ones(4)})
    assert checkpoints.all_steps() == [1] and [p.name for p in folder.iterdir()] == ["1"]
    assert float(checkpoints.restore({"w": jnp.zeros(4)})["w"].sum()) == 6
    free()
    checkpoints.save(2, {"w": jnp.ones(4)})
    assert checkpoints.all_steps() == [1, 2]
    checkpoints.close()


def test_a_full_disk_leaves_earlier_checkpoints_and_says_so(small_disk):
    filler = small_disk / "filler"

    def fill():
        with open(filler, "wb", buffering=0) as file, pytest.raises(OSError):
            while True:
                file.write(bytes(4096))

    check_full_disk(small_disk / "checkpoints", fill, filler.unlink)


def test_a_save_that_fails_leaves_earlier_checkpoints(tmp_path, monkeypatch):
    rename = os.rename

    def refuse(source, *args, **kwargs):
        if "2." in pathlib.Path(source).name:
            raise OSError(28, "No space left on device")
        return rename(source, *args, **kwargs)

    check_full_disk(
        tmp_path / "checkpoints", lambda: monkeypatch.setattr(os, "rename", refuse),
        monkeypatch.undo,
    )  # fmt: skip


def test_a_damaged_checkpoint_is_named_with_what_else_there_is(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, {"w": jnp.arange(64.0)})
    for file in (tmp_path / "2" / "state").rglob("*"):
        if file.is_file() and "d" in file.parts[-2:]:
            file.write_bytes(file.read_bytes()[:10])
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(CheckpointError, match=r"step 2 .*cannot be read.*other steps.*\[1\]"):
            checkpoints.restore({"w": jnp.zeros(64)})
        assert float(checkpoints.restore({"w": jnp.zeros(64)}, 1)["w"][-1]) == 63


def test_read_only_changes_nothing_on_disk(tmp_path):
    with Checkpoints(tmp_path / "c") as checkpoints:
        checkpoints.save(1, {"w": jnp.ones(2)})
    (tmp_path / "c" / "2.orbax-checkpoint-tmp").mkdir()  # another process is just saving
    with Checkpoints(tmp_path / "c", read_only=True) as checkpoints:
        assert checkpoints.latest_step() == 1
        with pytest.raises(CheckpointError, match="read only"):
            checkpoints.save(3, {"w": jnp.ones(2)})
    assert sorted(os.listdir(tmp_path / "c")) == ["1", "2.orbax-checkpoint-tmp"]
    with pytest.raises(CheckpointError, match="no folder of checkpoints"):
        Checkpoints(tmp_path / "none", read_only=True)
    assert not (tmp_path / "none").exists()


def test_what_cannot_be_stored_is_refused_by_name(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(ValueError, match="without elements cannot be stored: memory/keys"):
            checkpoints.save(1, {"memory": {"keys": jnp.zeros((0, 3))}, "w": jnp.ones(2)})
        with pytest.raises(ValueError, match="state leaf 'step' is a int, not an array"):
            checkpoints.save(1, {"step": 3})
        assert checkpoints.all_steps() == []
        with pytest.raises(CheckpointError, match="no checkpoint under .*; steps there: none"):
            checkpoints.restore({"w": jnp.ones(2)})
    with pytest.raises(ValueError, match="keep must be >= 1"):
        Checkpoints(tmp_path, keep=0)


def data_files(folder, item):
    """Files of an item that hold values, the largest first."""
    files = [f for f in (folder / item).rglob("*") if f.is_file()]
    return sorted(files, key=lambda f: -f.stat().st_size)


def test_a_state_that_is_not_what_was_saved_is_refused(tmp_path):
    """orbax reads a file of other values without a sign: the digest beside it tells."""
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, {"w": jnp.full(64, step, jnp.float32)}, {"seed": 3})
    # Whole, valid, and another state: what a flipped bit in an uncompressed chunk amounts to.
    with Checkpoints(tmp_path / "other") as checkpoints:
        checkpoints.save(2, {"w": jnp.full(64, 9, jnp.float32)}, {"seed": 3})
    shutil.rmtree(tmp_path / "2" / "state")
    shutil.copytree(tmp_path / "other" / "2" / "state", tmp_path / "2" / "state")
    with Checkpoints(tmp_path, read_only=True) as checkpoints:
        said = r"step 2 .*not what was saved.*other steps there: \[1\]. Use an earlier step"
        with pytest.raises(CheckpointError, match=said):
            checkpoints.restore({"w": jnp.zeros(64)})
        assert float(checkpoints.restore({"w": jnp.zeros(64)}, 1)["w"][0]) == 1


def test_no_flipped_bit_gives_another_state(tmp_path):
    state = make()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {"seed": 3})
    target = make(0.0)
    rng = np.random.default_rng(0)
    refused = 0
    for file in data_files(tmp_path / "1", "state")[:4]:
        whole = file.read_bytes()
        for at in rng.integers(0, 8 * len(whole), 12):
            flipped = bytearray(whole)
            flipped[at // 8] ^= 1 << (at % 8)
            file.write_bytes(flipped)
            with Checkpoints(tmp_path, read_only=True) as checkpoints:
                try:
                    assert_same_bits(checkpoints.restore(target), state)
                except CheckpointError:
                    refused += 1
        file.write_bytes(whole)
    assert refused > 0


@pytest.mark.parametrize("damage", ["torn", "deleted", "other"])
def test_damaged_facts_are_named(tmp_path, damage):
    with Checkpoints(tmp_path) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, {"w": jnp.ones(3)}, {"seed": 3})
    (file,) = [f for f in data_files(tmp_path / "2", "meta") if "seed" in f.read_text()]
    if damage == "torn":
        file.write_text(file.read_text()[:20])
    elif damage == "deleted":
        shutil.rmtree(file.parent)
    else:
        file.write_text(file.read_text().replace('"seed": 3', '"seed": 4'))
    with Checkpoints(tmp_path, keep_best=1) as checkpoints:
        with pytest.raises(CheckpointError, match=r"step 2 .*other steps there: \[1\]"):
            checkpoints.meta()
        assert checkpoints.meta(1) == {"seed": 3}
        checkpoints.save(3, {"w": jnp.ones(3)}, score=1.0)  # a torn one stops no run


def test_a_kill_at_any_moment_of_a_save_leaves_whole_checkpoints(tmp_path):
    """A real process is killed a little later each time; what counts as saved is what was saved."""
    code = """
        import sys
        import jax.numpy as jnp
        from gradejax.training.checkpoint import Checkpoints
        checkpoints = Checkpoints(sys.argv[1], keep=2)
        step = (checkpoints.latest_step() or 0) + 1
        print("ready", flush=True)
        while True:
            checkpoints.save(step, {"w": jnp.full(200_000, step, jnp.float32)}, {"step": step})
            step += 1
        """
    before = 0
    for wait in (0.05, 0.13, 0.31):
        child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)],
                                 stdout=subprocess.PIPE, text=True)  # fmt: skip
        assert child.stdout.readline() == "ready\n"
        time.sleep(wait)
        child.kill()
        child.wait()
        child.stdout.close()
        with Checkpoints(tmp_path) as checkpoints:
            for step in checkpoints.all_steps():
                state = checkpoints.restore({"w": jnp.zeros(200_000)}, step)
                assert (np.asarray(state["w"]) == step).all()
                assert checkpoints.meta(step) == {"step": step}
            latest = checkpoints.latest_step() or 0
            assert latest >= before
            before = latest


def test_a_disk_that_became_read_only_is_a_storage_error(tmp_path, monkeypatch):
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, {"w": jnp.ones(2)})
        rename = os.rename

        def refuse(source, target, *args, **kwargs):
            if str(target).endswith(".deleted"):
                raise OSError(30, "Read-only file system")
            return rename(source, target, *args, **kwargs)

        monkeypatch.setattr(os, "rename", refuse)
        with pytest.raises(CheckpointError, match="could not delete step 1 .*Read-only"):
            checkpoints.save(2, {"w": jnp.ones(2)})
        monkeypatch.undo()
        assert checkpoints.all_steps() == [1, 2]
