"""The file format of the feature store: immutable segments of many records each.

    magic (8 bytes) · header length (uint64) · sha256 of the header · header · payload
    header   JSON: format, payload_bytes, payload_sha256, keys
    payload  length of the table (uint64) · table · array bytes
    table    JSON, one entry a key: meta and [name, dtype, shape, offset] per array

All numbers are little-endian. The keys stand in the header, so an index is made without reading
the payload; each part has its own checksum. A file gets its name only when it is whole and synced
(write to a temporary name, fsync, rename), so a segment is either complete or damaged, never
half-written. Nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

MAGIC = b"GJXSEG1\n"
SUFFIX = ".seg"
TEMPORARY_PREFIX = ".tmp-"
_FORMAT = 1
_PREFIX_BYTES = len(MAGIC) + 8 + 32
_ALIGN = 16
_DTYPES = {np.dtype(d).name: np.dtype(d) for d in (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", ml_dtypes.bfloat16)}


class Record(NamedTuple):
    """One stored thing: its content key, JSON facts, and named arrays."""

    key: str
    meta: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]


class CorruptSegment(Exception):
    """A segment's bytes are not what was written."""


class StoreWriteError(OSError):
    """A segment could not be saved. Everything saved before is intact."""


def write_segment(folder: Path, records: Sequence[Record]) -> Path:
    """Save `records` as one new file in `folder` and return its path.

    Raises: StoreWriteError when the disk is full or refuses; no partial file is left.
      ValueError for an array dtype that the format does not hold.
    """
    pieces = _pack(records)
    n_bytes = sum(len(piece) for piece in pieces)
    # Time first, so that names sort by age; the rest keeps two processes apart.
    stem = f"{time.time_ns():020d}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    temporary, path = folder / f"{TEMPORARY_PREFIX}{stem}", folder / f"{stem}{SUFFIX}"
    try:
        with open(temporary, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise  # Ctrl-C
        raise StoreWriteError(
            error.errno, f"could not save {len(records)} records ({n_bytes:,} bytes): "
            f"{error.strerror}. What was saved before is intact; free space and run again to go "
            "on from there", str(folder)) from error
    _sync_folder(folder)
    return path


def read_keys(path: Path) -> list[str]:
    """Keys of a segment, from its header alone. Raises: CorruptSegment, FileNotFoundError."""
    with open(path, "rb") as file:
        header, start = _read_header(file)
        size = os.fstat(file.fileno()).st_size
    if size != start + header["payload_bytes"]:
        raise CorruptSegment(f"{size:,} bytes, expected {start + header['payload_bytes']:,}")
    return header["keys"]


def read_records(path: Path) -> list[Record]:
    """All records of a segment, checksums verified. Raises: CorruptSegment, FileNotFoundError."""
    with open(path, "rb") as file:
        header, _ = _read_header(file)
        payload = file.read()
    if len(payload) != header["payload_bytes"]:
        raise CorruptSegment(f"payload of {len(payload):,} bytes, "
                             f"expected {header['payload_bytes']:,}")
    if hashlib.sha256(payload).hexdigest() != header["payload_sha256"]:
        raise CorruptSegment("payload checksum does not match")
    (table_bytes,) = struct.unpack_from("<Q", payload)
    table = json.loads(payload[8:8 + table_bytes])
    return [Record(key, entry["meta"], {a[0]: _array(payload, a) for a in entry["arrays"]})
            for key, entry in zip(header["keys"], table, strict=True)]


def _read_header(file) -> tuple[dict, int]:
    prefix = file.read(_PREFIX_BYTES)
    if len(prefix) < _PREFIX_BYTES or not prefix.startswith(MAGIC):
        raise CorruptSegment("not a segment file")
    (length,) = struct.unpack_from("<Q", prefix, len(MAGIC))
    # A damaged length must not ask for exabytes.
    if length > os.fstat(file.fileno()).st_size:
        raise CorruptSegment("header longer than the file")
    body = file.read(length)
    if hashlib.sha256(body).digest() != prefix[len(MAGIC) + 8:]:
        raise CorruptSegment("header checksum does not match")
    header = json.loads(body)
    if header["format"] != _FORMAT:
        raise CorruptSegment(f"format {header['format']}, this version reads {_FORMAT}")
    return header, _PREFIX_BYTES + length


def _pack(records: Sequence[Record]) -> list[bytes]:
    blocks, table, offset = [], [], 0
    for record in records:
        entries = []
        for name, value in record.arrays.items():
            value = np.asarray(value)
            if value.dtype.name not in _DTYPES:
                raise ValueError(f"record {record.key}: array {name!r} has dtype {value.dtype}; "
                                 f"choose from {sorted(_DTYPES)}")
            little = value.astype(value.dtype.newbyteorder("<"), order="C", copy=False)
            block = little.tobytes()
            block += b"\0" * (-len(block) % _ALIGN)
            entries.append([name, value.dtype.name, list(value.shape), offset])
            blocks.append(block)
            offset += len(block)
        table.append({"meta": dict(record.meta), "arrays": entries})
    text = json.dumps(table, separators=(",", ":"), allow_nan=False).encode("ascii")
    text += b" " * (-(8 + len(text)) % _ALIGN)
    payload = [struct.pack("<Q", len(text)), text, *blocks]
    digest = hashlib.sha256()
    for piece in payload:
        digest.update(piece)
    header = json.dumps({
        "format": _FORMAT, "payload_bytes": sum(map(len, payload)),
        "payload_sha256": digest.hexdigest(), "keys": [r.key for r in records]}).encode("ascii")
    return [MAGIC, struct.pack("<Q", len(header)), hashlib.sha256(header).digest(), header,
            *payload]


def _array(payload: bytes, entry: Sequence) -> np.ndarray:
    _, name, shape, offset = entry
    (table_bytes,) = struct.unpack_from("<Q", payload)
    count = int(np.prod(shape, dtype=np.int64))
    flat = np.frombuffer(payload, _DTYPES[name], count, 8 + table_bytes + offset)
    # A copy, so that one kept vector does not keep the whole segment in memory.
    return flat.reshape(shape).copy()


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut (not every file system can)."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
