"""A lens as a torch module.

:class:`NativeModule` passes torch's own methods (``to``, ``train``, ``parameters``,
``state_dict``) on to the native model, so that its weights, precision and mode are
those of the lens. Hooks and forwards are in :mod:`tsfm_lens.models.base`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformer_lens import HookedRootModule

from tsfm_lens.hooks.registry import HookRegistry
from tsfm_lens.models.adapter import Adapter, check_precision
from tsfm_lens.models.devices import checked_device


class NativeModule(HookedRootModule):  # type: ignore[misc]
    """Tree of hook points that acts as the native model does in torch.

    Calls of :class:`torch.nn.Module` reach the native model, under its own names.

    What torch builds on these follows: ``eval``, ``half``, ``cuda``, ``to``,
    ``parameters``, ``requires_grad_`` and others. ``modules()`` and ``get_submodule``
    are of the tree.
    """

    adapter: Adapter
    registry: HookRegistry

    @property
    def training(self) -> bool:
        """Whether the native model is in training mode, with dropout."""
        return bool(self.adapter.model.training)

    @training.setter
    def training(self, mode: bool) -> None:
        # torch sets it of every module; that of the native model is its own
        return

    @property
    def context_level(self) -> int:
        """Number of nested blocks with hooks in this thread and task."""
        return self.registry.level

    @context_level.setter
    def context_level(self, level: int) -> None:
        # TransformerLens sets it once, to 0
        return

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the native model.

        In training mode dropout makes every forward different.

        Args:
            mode: training mode if True, else evaluation mode.

        Returns:
            The lens itself.
        """
        super().train(mode)
        self.adapter.model.train(mode)
        return self

    def apply(self, fn: Callable[[nn.Module], None]) -> Self:
        """Call a function with every module of the native model.

        Args:
            fn: function of a module, which may change it.

        Returns:
            The lens itself.
        """
        self.adapter.model.apply(fn)
        return self

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move or cast the native model.

        Args:
            args: device or precision, as torch's ``to`` takes them.
            kwargs: ``device``, ``dtype`` and other keyword arguments of it.

        Returns:
            The lens itself.

        Raises:
            InputError: the device is not here, or the model does not run in the
                precision.
        """
        device = kwargs.get("device", args[0] if args else None)
        # a tensor or dtype may stand in this place, too. No number can be read from the
        # meta device, by which others are checked.
        if isinstance(device, str | int | torch.device) and str(device) != "meta":
            checked_device(device)
        super().to(*args, **kwargs)
        return self

    def cuda(self, device: int | torch.device | None = None) -> Self:
        """Move the native model to a GPU.

        Args:
            device: index or name of the GPU; the current one if None.

        Returns:
            The lens itself.

        Raises:
            InputError: the device is not here.
        """
        return self.to("cuda" if device is None else device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Replace every weight, which is how torch moves and casts a module.

        Returns:
            The lens itself.

        Raises:
            InputError: the model does not run in the precision.
        """
        # ``fn`` tells its precision by what it returns alone. It is asked before any
        # weight is replaced, since a cast that is refused midway cannot be undone.
        weight = next(self.parameters())
        check_precision(self.adapter, fn(weight.detach().new_empty(1)).dtype)
        self.adapter.model._apply(fn, recurse)
        return self

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Iterate over names and parameters of the native model.

        Args:
            prefix: what every name begins with.
            recurse: include those of modules within the model.
            remove_duplicate: name a shared one once.

        Returns:
            Pairs of a name and a parameter.
        """
        result: Iterator[tuple[str, nn.Parameter]] = (
            self.adapter.model.named_parameters(prefix, recurse, remove_duplicate)
        )
        return result

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Iterate over names and buffers of the native model.

        Args:
            prefix: what every name begins with.
            recurse: include those of modules within the model.
            remove_duplicate: name a shared one once.

        Returns:
            Pairs of a name and a buffer.
        """
        result: Iterator[tuple[str, Tensor]] = self.adapter.model.named_buffers(
            prefix, recurse, remove_duplicate
        )
        return result

    def get_parameter(self, target: str) -> nn.Parameter:
        """Return a parameter of the native model by its name there.

        Args:
            target: dotted name below the native model.

        Returns:
            The parameter itself.
        """
        result: nn.Parameter = self.adapter.model.get_parameter(target)
        return result

    def get_buffer(self, target: str) -> Tensor:
        """Return a buffer of the native model by its name there.

        Args:
            target: dotted name below the native model.

        Returns:
            The buffer itself.
        """
        result: Tensor = self.adapter.model.get_buffer(target)
        return result

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the native model's state, as ``lens.model.state_dict`` does.

        Args:
            args: positional arguments of torch's ``state_dict``.
            kwargs: its keyword arguments.

        Returns:
            Tensors by their names in the native model.
        """
        result: dict[str, Any] = self.adapter.model.state_dict(*args, **kwargs)
        return result

    def load_state_dict(
        self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Load a state into the native model, as ``lens.model`` itself does.

        Runs that were made before are refused afterwards.

        Args:
            state_dict: tensors by their names in the native model.
            args: further positional arguments of torch's ``load_state_dict``.
            kwargs: its keyword arguments, such as ``strict``.

        Returns:
            Missing and unexpected keys, as torch returns them.
        """
        return self.adapter.model.load_state_dict(state_dict, *args, **kwargs)
