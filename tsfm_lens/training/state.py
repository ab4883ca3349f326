"""The state of a run on disk: whole or not there, and of one task alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from tsfm_lens.errors import CheckpointError

STATE = "state.pt"
LOG = "log.jsonl"
HISTORY = "history"


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """Write a state; the old one is replaced only once the new one is whole."""
    part = folder / f"{STATE}.part"
    torch.save(state, part)
    part.replace(folder / STATE)


def identity_of(folder: Path) -> str:
    """The settings of the run in a folder, as its task gave them.

    Raises:
        CheckpointError: there is no run, or its state cannot be read.
    """
    path = folder / STATE
    try:
        identity: str = torch.load(path, map_location="cpu", weights_only=True, mmap=True)["identity"]
    except Exception as error:
        raise CheckpointError(f"no training run in {folder}: {error}") from error
    return identity


def read_state(folder: Path, identity: str, device: torch.device) -> dict[str, Any]:
    """The last state of a run.

    Raises:
        CheckpointError: there is none, it cannot be read, or it is of another task; the message names what differs.
    """
    path = folder / STATE
    if not path.exists():
        raise CheckpointError(f"no {STATE} in {folder}; start without --resume, or give the folder of a run")
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        was = state["identity"]
    except Exception as error:
        raise CheckpointError(f"{path} is no state of a training run: {error}") from error
    if was != identity:
        other = f"other settings{_difference(was, identity)}"
        raise CheckpointError(f"{path} was trained by {other}; go on with those, or give another folder")
    return state


def _difference(was: str, now: str) -> str:
    """The settings that differ, in words; "" where the two are not of one kind."""
    before, after = json.loads(was), json.loads(now)
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return ""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    words = [f"{name}={_short(before.get(name))} then, {_short(after.get(name))} now" for name in names[:3]]
    return f" ({'; '.join(words)})" if words else ""


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def write_snapshot(folder: Path, model: nn.Module, step: int) -> None:
    """Keep the weights of a step in the history."""
    history = folder / HISTORY
    history.mkdir(exist_ok=True)
    state = model.state_dict()
    # tied weights are stored once, as the native formats do
    shared = {tensor.data_ptr(): name for name, tensor in reversed(state.items())}
    weights = {name: state[name].detach().cpu().contiguous() for name in shared.values()}
    part = history / "next.part"
    save_file(weights, part)
    part.replace(history / f"step-{step:06d}.safetensors")


def snapshot_files(folder: Path) -> dict[int, Path]:
    """The files of the history by step."""
    return {int(file.stem.split("-")[1]): file for file in sorted((folder / HISTORY).glob("step-*.safetensors"))}
