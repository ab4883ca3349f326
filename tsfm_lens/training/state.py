"""State, log and history of a run on disk.

A folder holds the last state, from which a run resumes, a log of one line per saved
state or evaluation, and in its history the weights of chosen steps. :func:`read_state`
and :func:`put_back` restore a run and say which part of a file does not fit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from tsfm_lens.core.errors import CheckpointError
from tsfm_lens.core.io import replacing, write_atomically

__all__ = ["read_log"]

STATE = "state.pt"
LOG = "log.jsonl"
HISTORY = "history"
_PARTS: dict[str, Any] = {
    "model": dict,
    "optimizer": dict,
    "step": int,
    "seconds": int | float,
    # of the steps since the last line of the log
    "losses": Tensor,
    "identity": str,
    # state of torch's generator on the CPU
    "random": Tensor,
    # lowest measure, and its step
    "best": tuple | list | None,
    "best_weights": dict | None,
    # whether the patience is used up
    "ended": bool,
}
"""Types of the parts of a state, by name."""


def run_files(folder: Path) -> list[str]:
    """Name the files that a run has left in a folder; empty where there is none."""
    return [name for name in (STATE, LOG, HISTORY) if (folder / name).exists()]


def read_identity(folder: Path) -> str:
    """Read the identity of a run's task: its settings as JSON.

    Returns:
        The text.

    Raises:
        CheckpointError: there is no run.
    """
    path = folder / STATE
    try:
        # mapped into memory, so that the weights are not read from disk
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        return str(state["identity"])
    except Exception as error:
        raise CheckpointError(f"no training run in {folder}: {error}") from error


def read_state(folder: Path, identity: str, device: torch.device) -> dict[str, Any]:
    """Read the last state of a run.

    Returns:
        The state by name.

    Raises:
        CheckpointError: there is none, it is damaged, or it is of another task.
    """
    path = folder / STATE
    if not path.exists():
        raise CheckpointError(
            f"no {STATE} in {folder}; start without --resume, or give the folder of"
            " a run"
        )
    try:
        state: Any = torch.load(path, map_location=device, weights_only=True)
    # says nothing against the file
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
        raise _damage_error(
            path, "it is cut short, or no state of a training run"
        ) from error
    if not isinstance(state, dict):
        raise _damage_error(
            path, f"it is not a state of a training run, but a {type(state).__name__}"
        )
    if missing := [name for name in _PARTS if name not in state]:
        raise _damage_error(path, f"it holds no {' and no '.join(missing)}")
    for name, kind in _PARTS.items():
        if not isinstance(state[name], kind):
            expected = getattr(kind, "__name__", str(kind))
            raise _damage_error(
                path,
                f"{name} is of type {type(state[name]).__name__}, expected {expected}",
            )
    if state["step"] < 0:
        raise _damage_error(path, f"it is of step {state['step']}, expected 0 or more")
    if state["identity"] != identity:
        difference = _difference(path, state["identity"], identity)
        raise CheckpointError(
            f"{path} was trained by other settings{difference}; continue with those, or"
            " give another folder"
        )
    return dict(state)


def _damage_error(path: Path, fault: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is damaged: {fault}; put a whole copy of it there, or begin again in"
        " another folder"
    )


def put_back(
    folder: Path,
    state: Mapping[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Restore a model, an optimiser and torch's generator on the CPU.

    Raises:
        CheckpointError: a part does not fit; the message names it, or the first of the
            weights at fault.
    """
    path = folder / STATE
    for part in ("model", "best_weights"):
        if state[part] is not None:
            _check_weights(path, part, state[part], model)
    model.load_state_dict(state["model"])
    try:
        optimizer.load_state_dict(state["optimizer"])
    except Exception as error:
        raise _damage_error(
            path,
            f"its optimizer is not one of {type(optimizer).__name__} for this model",
        ) from error
    try:
        # read_state has mapped all tensors to the device of the model
        torch.set_rng_state(state["random"].cpu())
    except (RuntimeError, TypeError) as error:
        raise _damage_error(path, "random is not a state of random numbers") from error


def _check_weights(
    path: Path, part: str, weights: Mapping[str, Any], model: nn.Module
) -> None:
    target = model.state_dict()
    # checked before anything is loaded: load_state_dict would stop halfway, with some
    # of the weights replaced
    missing = [name for name in target if name not in weights]
    extra = [str(name) for name in weights if name not in target]
    for names, verb in ((missing, "lacks"), (extra, "holds, and the model has not,")):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise _damage_error(path, f"{part} {verb} {names[0]}{more}")
    for name, weight in target.items():
        saved = weights[name]
        if isinstance(saved, Tensor):
            found = str(list(saved.shape))
        else:
            found = type(saved).__name__
        expected = str(list(weight.shape))
        if found != expected:
            raise _damage_error(
                path, f"{name} of {part} is {found}, expected {expected}"
            )


def _difference(path: Path, former: str, current: str) -> str:
    """Describe the settings that differ between two identities.

    Returns:
        The text, "" unless both are mappings of settings.
    """
    try:
        before = json.loads(former)
        after = json.loads(current)
    except ValueError as error:
        raise _damage_error(
            path,
            f"its identity is {_short(former)}, expected JSON of the run's settings",
        ) from error
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return ""
    names = [
        name for name in {**before, **after} if before.get(name) != after.get(name)
    ]
    changes = [
        f"{name}={_short(before.get(name))} then, {_short(after.get(name))} now"
        for name in names[:3]
    ]
    if changes:
        return f" ({'; '.join(changes)})"
    return ""


def _short(value: object) -> str:
    text = json.dumps(value)
    if len(text) <= 60:
        return text
    return f"{text[:57]}…"


def write_snapshot(folder: Path, model: nn.Module, step: int) -> None:
    """Keep the weights of a step in the history."""
    history = folder / HISTORY
    history.mkdir(exist_ok=True)
    state = model.state_dict()
    # tied weights are stored once, as the native formats do, under their first name,
    # which overwrites the others
    owners = {_memory(name, state[name]): name for name in reversed(state)}
    # copies, since safetensors refuses tensors that share memory
    weights = {
        name: state[name].detach().cpu().clone(memory_format=torch.contiguous_format)
        for name in owners.values()
    }
    write_atomically(history / f"step-{step:06d}.safetensors", save(weights))


def _memory(name: str, tensor: Tensor) -> tuple[Any, ...]:
    """Identify the numbers that a tensor holds; tied tensors hold the same."""
    # empty tensors have no memory, and other views of one memory hold other numbers
    if not tensor.numel():
        return (name,)
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def snapshot_files(folder: Path) -> dict[int, Path]:
    """List the files of the history by step."""
    return {
        int(file.stem.split("-")[1]): file
        # below a million steps, names of six digits sort as their numbers do
        for file in sorted((folder / HISTORY).glob("step-*.safetensors"))
    }


def read_log(file: str | Path) -> list[dict[str, Any]]:
    """Read the lines of a log.

    An incomplete last line is left out.

    Args:
        file: of lines of JSON, as a training run writes it.

    Returns:
        A mapping with "step" for each line.

    Raises:
        CheckpointError: there is no such file, or a line before the last one is no
            JSON.

    Example:
        >>> lines = ['{"step": 1, "loss": 0.5}', '{"step": 2, "lo']
        >>> _ = (folder / "log.jsonl").write_text(chr(10).join(lines))
        >>> training.read_log(folder / "log.jsonl")
        [{'step': 1, 'loss': 0.5}]
    """
    path = Path(file)
    if not path.exists():
        raise CheckpointError(
            f"there is no log {path}; expected that of a training run"
        )
    raw_lines = path.read_text(encoding="utf-8").splitlines()
    lines = []
    for position, raw in enumerate(raw_lines):
        try:
            lines.append(json.loads(raw))
        except json.JSONDecodeError as error:
            # a run that is killed leaves half a line at the end, and nowhere else
            if position < len(raw_lines) - 1:
                raise CheckpointError(
                    f"{path}, line {position + 1}: {error}; expected a line of JSON"
                ) from error
    return lines


def cut(file: Path, step: int) -> None:
    """Drop the lines of a log that are of later steps."""
    if file.exists():
        lines = [line for line in read_log(file) if line["step"] <= step]
        with replacing(file) as part:
            part.write_text(
                # an incomplete last line is gone with it, so that append begins a line
                # of its own
                "".join(json.dumps(line) + "\n" for line in lines),
                encoding="utf-8",
            )


def append(file: Path, line: dict[str, Any]) -> None:
    """Add a line to a log."""
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
