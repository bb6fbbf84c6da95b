"""How long 25,000 cached replies take to load: one JSON line.

    python -m experiments.bench.feature_store
"""

import json
import tempfile
import time

import numpy as np

from gradejax.experts.features import FeatureStore
from gradejax.experts.segments import Record


def main(records: int = 25_000) -> None:
    arrays = {
        "tokens": np.arange(60, dtype=np.int32),
        "hidden": np.random.default_rng(0).normal(size=256),
        "logprobs": np.zeros(60, np.float32),
    }
    keys = [f"{i:064x}" for i in range(records)]
    with tempfile.TemporaryDirectory() as folder:
        store = FeatureStore(folder)
        for i in range(0, records, 256):
            store.put_many(Record(k, {"text": "a reply " * 20}, arrays) for k in keys[i : i + 256])
        start = time.perf_counter()
        found = FeatureStore(folder).get_many(keys)
        seconds = time.perf_counter() - start
    if any(r is None for r in found):
        raise RuntimeError("records were lost between writing and reading")
    print(json.dumps({"bench": "feature_store", "records": records, "load_s": round(seconds, 2)}))


if __name__ == "__main__":
    main()
