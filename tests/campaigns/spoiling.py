"""What can be done to a checkpoint, and a slow reader of safetensors that shares no
code with the fast ones.
"""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tsfm_lens.models import architectures

DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "U8": "u1",
    "BOOL": "?",
}
Rng = np.random.Generator
MARK = "pickle-was-read"


def tensors(path: Path) -> dict[str, np.ndarray]:
    """Read a file of safetensors by its definition, without its library."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    data = raw[8 + length :]
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        part = data[slice(*entry["data_offsets"])]
        if entry["dtype"] == "BF16":
            wide = np.frombuffer(part, "<u2").astype("<u4") << 16
            found[name] = wide.view("<f4").reshape(entry["shape"])
        else:
            found[name] = np.frombuffer(part, DTYPES[entry["dtype"]]).reshape(
                entry["shape"]
            )
    return found


def save(name: str, native: Any, folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Write a sound checkpoint of an architecture that loads as long as the patch
    stands.
    """
    architectures()[name].write(native, folder)
    if name == "timesfm-2.5":
        from timesfm.timesfm_2p5.timesfm_2p5_torch import TimesFM_2p5_200M_torch_module

        # the library has its size in the class
        patch.setattr(
            TimesFM_2p5_200M_torch_module, "config", type(native.model).config
        )
    return folder


def rewrite(path: Path, arrays: dict[str, np.ndarray]) -> None:
    save_file(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        path,
        metadata={"format": "pt"},
    )


# --- what is done to a checkpoint
# ------------------------------------------------------------------------------


def _flip(folder: Path, rng: Rng, count: int, *, of_header: bool) -> None:
    path = folder / "model.safetensors"
    raw = bytearray(path.read_bytes())
    start = 8 + struct.unpack("<Q", raw[:8])[0]
    for _ in range(count):
        raw[rng.integers(*((0, start) if of_header else (start, len(raw))))] ^= (
            1 << int(rng.integers(8))
        )
    path.write_bytes(raw)


def header_bits(folder: Path, rng: Rng) -> None:
    _flip(folder, rng, rng.integers(1, 4), of_header=True)


def data_bits(folder: Path, rng: Rng) -> None:
    _flip(folder, rng, rng.integers(1, 9), of_header=False)


def no_numbers(folder: Path, rng: Rng) -> None:
    arrays = tensors(folder / "model.safetensors")
    name = str(
        rng.choice(
            [
                name
                for name, array in arrays.items()
                if array.size and array.dtype.kind == "f"
            ]
        )
    )
    array = arrays[name].copy()
    array.flat[rng.integers(array.size)] = rng.choice([np.nan, np.inf, -np.inf])
    rewrite(folder / "model.safetensors", {**arrays, name: array})


def other_length(folder: Path, rng: Rng) -> None:
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    short = raw[: rng.integers(len(raw))]
    path.write_bytes(
        [short, raw + bytes(rng.integers(1, 64)), b"", raw[:8]][
            rng.choice(4, p=[0.7, 0.1, 0.1, 0.1])
        ]
    )


def other_tensors(folder: Path, rng: Rng) -> None:
    path = folder / "model.safetensors"
    arrays = tensors(path)
    names = list(arrays)
    one, two = (str(name) for name in rng.choice(names, 2, replace=False))
    match rng.integers(7):
        case 0:
            for name in rng.choice(names, rng.integers(1, 4), replace=False):
                del arrays[name]
        case 1:
            arrays[f"{one}_" if rng.random() < 0.5 else one.upper()] = arrays.pop(one)
        case 2:
            arrays[f"extra.{one}"] = arrays[one]
        case 3:
            layers = [part for part in one.split(".") if part.isdigit()]
            for name in [name for name in names if layers and f".{layers[0]}." in name]:
                del arrays[name]
        case 4:
            arrays = {name: arrays[name] for name in rng.permutation(names)}
        case 5:
            arrays[one], arrays[two] = arrays[two], arrays[one]
        case _:
            arrays = {}
    rewrite(path, arrays)


def other_shapes(folder: Path, rng: Rng) -> None:
    arrays = tensors(folder / "model.safetensors")
    name = str(rng.choice([name for name, array in arrays.items() if array.size > 1]))
    array = arrays[name]
    forms: list[Callable[[], np.ndarray]] = [
        lambda: array.T,
        lambda: array[None],
        lambda: array[:-1],
        lambda: array.reshape(-1),
        lambda: np.concatenate([array, array]),
        lambda: array[:0],
        lambda: array.astype("<f2"),
        lambda: array.astype("<f8"),
        lambda: array.astype("<i4"),
        lambda: array > 0,
    ]
    rewrite(
        folder / "model.safetensors",
        {**arrays, name: forms[rng.integers(len(forms))]()},
    )


def poison(path: Path, marks: Path) -> None:
    """A pickle that leaves a mark where it is read."""

    class Marking:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return os.mkdir, (str(marks / MARK),)

    path.write_bytes(pickle.dumps(Marking()))


def decoys(folder: Path, rng: Rng) -> None:
    path = folder / "model.safetensors"
    outside = folder.parent / "outside.safetensors"
    poison(
        folder
        / str(rng.choice(["pytorch_model.bin", "model.pt", "model.ckpt", "model.pkl"])),
        folder.parent,
    )
    arrays = {
        name: array + array.dtype.type(1)
        for name, array in tensors(path).items()
        if array.dtype.kind == "f"
    }
    rewrite(outside, arrays)
    match rng.integers(10):
        case 0:
            path.rename(folder / "decoy.safetensors")
        case 1:
            rewrite(folder / "decoy.safetensors", arrays)
        case 2:
            path.unlink()
            path.symlink_to(outside)
        case 3:
            path.unlink()
            path.symlink_to(folder / "nowhere.safetensors")
        case 4:
            path.unlink()
            path.mkdir()
        case 5:
            path.unlink()
            os.mkfifo(path)
        case 6:
            path.write_text(
                "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize"
                " 3872008\n"
            )
        case 7:
            (folder / "adapter_config.json").write_text(
                json.dumps({"base_model_name_or_path": str(folder.parent)})
            )
        case 8:
            path.unlink()
            path.symlink_to(path.name)
        case _:
            (
                shutil.copy(folder / "pytorch_model.bin", path)
                if (folder / "pytorch_model.bin").exists()
                else None
            )


ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1000,
    10**12,
    -(10**30),
    0.5,
    1e300,
    math.nan,
    math.inf,
    "",
    "12",
    "\0",
    "os.system",
    "${oc.env:HOME}",
    "../x",
    "a" * 5000,
    [],
    [1],
    [math.nan],
    {},
    {"_target_": "os.system"},
    [{}],
)


def settings(folder: Path, rng: Rng) -> None:
    names = [
        name
        for name in ("config.json", "generation_config.json")
        if (folder / name).exists()
    ]
    path = folder / names[0 if rng.random() < 0.85 else -1]
    config = json.loads(path.read_text())
    positions = [(config, key) for key in config]
    for node, key in positions:
        inner = node[key]
        if isinstance(inner, dict | list):
            positions += [
                (inner, name)
                for name in (inner if isinstance(inner, dict) else range(len(inner)))
            ]
    for _ in range(rng.integers(1, 3)):
        node, key = positions[rng.integers(len(positions))]
        way = rng.random()
        if way < 0.85 or isinstance(node, list):
            node[key] = copy.deepcopy(ODD[rng.integers(len(ODD))])
        elif way < 0.95:
            node.pop(key, None)
        else:
            node["sliding_window"] = 4
    path.write_text(json.dumps(config))


KINDS = (
    header_bits,
    data_bits,
    no_numbers,
    other_length,
    other_tensors,
    other_shapes,
    decoys,
    settings,
)
