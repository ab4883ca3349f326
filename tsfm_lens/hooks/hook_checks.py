"""Obstacles to hooks, found before or while the model runs: compilation, replaced modules, recomputation."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import torch
import torch.utils.checkpoint
from torch import nn

from tsfm_lens.errors import HookError, WiringError

_CHECKPOINT = torch.utils.checkpoint.__file__


def refuse_hidden(model: nn.Module, modules: Iterable[tuple[str, nn.Module]]) -> None:
    """Refuse hooks on modules whose call does not reach them.

    Args:
        model: the native module.
        modules: (path, the module that stood there when the lens was made).

    Raises:
        WiringError: the module, or one that it is part of, is compiled or was replaced.
    """
    _refuse_compiled("", model)
    by_path: dict[str, nn.Module | None] = {"": model}
    for path, module in modules:
        at = ""
        for part in path.split("."):
            parent, at = by_path[at], f"{at}.{part}" if at else part
            if at not in by_path:
                here = by_path[at] = None if parent is None else parent._modules.get(part)
                if here is not None and at != path:
                    _refuse_compiled(at, here)
        if by_path[path] is not module:
            raise WiringError(
                f"module {path!r} was taken out of the model or replaced after the lens was made, so a hook on it "
                "would do nothing. Make a new lens of the changed model: load(model)."
            )
        _refuse_compiled(path, module)


def _refuse_compiled(path: str, module: nn.Module) -> None:
    """Refuse ``module.compile()``, and ``torch.compile`` of a module or of its forward, by what torch sets on each."""
    forward = module.__dict__.get("forward", type(module).forward)
    is_wrapped = "_orig_mod" in module._modules or hasattr(forward, "_torchdynamo_orig_callable")
    if is_wrapped or module._compiled_call_impl is not None:
        raise WiringError(
            f"{path or 'the model'} ({type(module).__name__}) is compiled, and compiled code passes hooks by. Set "
            "hooks on a model that is not: load it without torch.compile, or undo it, module._compiled_call_impl = "
            "None after module.compile(), module._orig_mod in place of torch.compile(module), and "
            "del module.__dict__['forward'] after module.forward = torch.compile(module.forward)."
        )


def refuse_recomputation(name: str, gradients_at_start: bool) -> None:
    """Refuse a hook in code that gradient checkpointing will run again in the backward pass, maybe without the hook.

    Args:
        name: of the hook point that is passed now.
        gradients_at_start: whether gradients were recorded when the run began; reentrant checkpoints switch it off.

    Raises:
        HookError: a checkpoint is on the way from the model's call to this hook point.
    """
    if torch.is_grad_enabled():
        # a checkpoint that keeps recording shows as a pair of hooks on what autograd saves
        is_possible = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    else:
        is_possible = gradients_at_start
    if is_possible and _inside_checkpoint():
        raise HookError(
            f"{name} is passed inside a gradient checkpoint: backward() would run that part of the model again, "
            "and after the block without its hooks, which gives wrong gradients. Turn checkpointing off "
            "(model.gradient_checkpointing_disable(), or model.eval() where it is for training only), or run under "
            "torch.no_grad()."
        )


def _inside_checkpoint() -> bool:
    frame = sys._getframe()
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        if frame.f_code.co_filename == _CHECKPOINT:
            return True
    return False
