"""Devices of this machine, checked before any work is done for one."""

from __future__ import annotations

from typing import Any

import torch

from tsfm_lens.core.errors import InputError


def checked_device(device: Any) -> torch.device:
    """Return a device that is here and can hold numbers.

    Raises:
        InputError: it is not; the message names the devices that are here.
    """
    try:
        checked = torch.device(device)
        # a GPU reports some errors late, and the number comes back only after its work
        torch.zeros(1, device=checked).item()
    # torch without CUDA raises an AssertionError for a CUDA device
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        # of drivers that are broken, torch's own words say more than that none is there
        details = ""
        if is_broken(device):
            details = f" (torch says: {error})"
        raise InputError(
            f"no device {str(device)!r} here; there is {', '.join(devices())}{details}"
        ) from error
    return checked


def devices() -> list[str]:
    """List the devices that torch can use here, "cpu" first."""
    found = ["cpu"]
    if torch.cuda.is_available():
        found += [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


def is_broken(device: Any) -> bool:
    """Return whether torch lists a device, though a number cannot be put there."""
    name = str(device)
    return any(other == name or other.startswith(f"{name}:") for other in devices())
