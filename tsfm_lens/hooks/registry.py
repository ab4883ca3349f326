"""Hook points of TransformerLens on a native model, and each thread's hooks there.

The native model is never edited. Read :class:`HookRegistry`, one per model, then
:class:`HookDispatcher`, one per thread. :mod:`tsfm_lens.hooks.names` derives the hook
points from a wiring; :mod:`tsfm_lens.hooks.scopes` begins and ends blocks.

Setting: Block -> HookScope.open -> HookDispatcher.sync_hooks -> _connect ->
TorchHook.set.
Firing: TorchHook.__call__ -> HookDispatcher._run -> pass_through -> _fire -> _through
-> the user's hook.

Torch hooks are seen by every thread, so each of ours first asks whether it runs in the
thread that set it. Which torch hooks the model needs is computed anew from the open
blocks whenever these change; no counter has to be kept right.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from operator import attrgetter
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformer_lens.hook_points import HookPoint, LensHandle

from tsfm_lens.core.errors import HookError, WiringError
from tsfm_lens.hooks.attention_capture import LOCAL, brackets
from tsfm_lens.hooks.block import Block, Side, TorchHook
from tsfm_lens.hooks.hook_checks import check_recomputation, check_table
from tsfm_lens.hooks.names import HEADS, RESIDUAL, Point, hook_points
from tsfm_lens.hooks.native import (
    fold_leading,
    get_input,
    get_output,
    put_input,
    put_output,
    rms_scale,
    same_bits,
    to_native,
    to_vocabulary,
)
from tsfm_lens.hooks.scopes import HookScope, RunState, acting_hooks, nesting_levels
from tsfm_lens.hooks.weights import head_output_weights
from tsfm_lens.hooks.wiring import Stack, Wiring

ModuleSide = tuple[str, Side]

# ranks of callbacks that come before, and behind, those of all hook points
_FIRST = -1.0
_LAST = float("inf")


class HookRegistry:
    """Hook points of one native model, and the hooks of threads on it.

    Args:
        model: the native module; it is read, hooked while needed, and never edited.
        wiring: the table that says where in the model each part of a transformer is.

    Attributes:
        modules: the modules of the model, by path.
        points: the hook points by name, in order of execution.
        rank: position of each hook point in this order, by name.
        hooked: the TransformerLens object of each hook point, by name.
        inside_attention: the points inside an attention call, by the attention's path
            and the point's ``how``.
        sites: paths of all modules that points are on or in.
        targets: cache of :func:`tsfm_lens.hooks.edit.resolve`: (hook point, head) pairs
            by target of an intervention.

    Raises:
        WiringError: a path of the wiring does not exist in the model, or a size
            differs. The message names the entry and the model's value.
    """

    def __init__(self, model: nn.Module, wiring: Wiring) -> None:
        self.model = model
        self.wiring = wiring
        # a table may name a shared module by any of its paths, such as the embedding
        # that T5 gives to both of its stacks
        self.modules = dict(model.named_modules(remove_duplicate=False))
        # first, since hook_points() would fail on a table without branches
        check_table(model, wiring, self.modules)
        self.points: dict[str, Point] = hook_points(wiring)
        # floats, so that a callback can stand between two points (see _carry_edits)
        self.rank = {name: float(index) for index, name in enumerate(self.points)}
        self.hooked: dict[str, OwnedHookPoint] = {
            name: OwnedHookPoint(self, name) for name in self.points
        }
        self.inside_attention: dict[tuple[str, str], Point] = {
            (point.site.module, point.how): point
            for point in self.points.values()
            if point.how != "site"
        }
        self.sites = {point.site.module for point in self.points.values()}
        self.targets: dict[Hashable, list[tuple[str, int | None]]] = {}
        # a dispatcher lives as long as its thread, which holds it; the set of all of
        # them is weak, so as not to keep it longer
        self.threads = threading.local()
        self.dispatchers = weakref.WeakSet[HookDispatcher]()

    def __reduce__(self) -> tuple[Any, ...]:
        # a copy is made anew, without hooks: locals of threads cannot be copied
        return type(self), (self.model, self.wiring)

    def gains(self, point: Point) -> tuple[float, float]:
        """Return the factors with which a block adds a point's write to the stream.

        Args:
            point: hook point of a write.

        Returns:
            Factor of the write, and factor of the stream; 1 and 1 in a plain sum.
        """
        if point.mix:
            block = self.wiring.stack(point.stack).block(point.layer)
            return point.mix(self.modules[block])
        return (1.0, 1.0)

    @cached_property
    def block_parameters(self) -> dict[tuple[int, int], int]:
        """Number of parameters of each block, by its stack's position and its layer."""
        return {
            (index, layer): sum(
                parameter.numel()
                for parameter in self.modules[stack.block(layer)].parameters()
            )
            for index, stack in enumerate(self.wiring.stacks)
            for layer in range(stack.n_layers)
        }

    @property
    def in_use(self) -> list[str]:
        """Hook points that have a hook."""
        return [
            name
            for name, point in self.hooked.items()
            if point.fwd_hooks or point.bwd_hooks
        ]

    @property
    def busy(self) -> bool:
        """True if any thread has hooks on the model."""
        return any(
            scope.is_open
            # a copy of the set, since a first run in another thread may add to it
            # meanwhile
            for dispatcher in list(self.dispatchers)
            for scope in dispatcher.scopes
        )

    @property
    def session(self) -> HookDispatcher:
        """Hooks of the running thread on the model."""
        try:
            dispatcher: HookDispatcher = self.threads.dispatcher
        # a thread that runs the model for the first time has no dispatcher yet
        except AttributeError:
            dispatcher = self.threads.dispatcher = HookDispatcher(self)
            self.dispatchers.add(dispatcher)
        return dispatcher

    @property
    def level(self) -> int:
        """Number of nested blocks with hooks that act here."""
        return nesting_levels(self.session.acting())

    @property
    def state(self) -> RunState:
        """State of this thread's run."""
        return self.session.state

    def attach(self) -> AbstractContextManager[None]:
        """Make the hooks of ``add_hook`` act while a block runs.

        They act in every lens call by themselves. Code that calls the native model
        directly needs this block; in another block of the lens they act already, and
        only once.

        Returns:
            A block that yields None.
        """
        # each run connects them anew, so that the native model has none of our torch
        # hooks between runs
        if self.session.unconnected():
            return Block(HookScope(self, None))
        return nullcontext()


class OwnedHookPoint(HookPoint):  # type: ignore[misc]
    """Hook point of a registry.

    A hook that is set here while a block is open is connected to the model at once.
    """

    name: str

    def __init__(self, registry: HookRegistry, name: str) -> None:
        super().__init__()
        self._registry = registry
        self.name = name

    def add_hook(self, *args: Any, **kwargs: Any) -> LensHandle:
        """Add a hook as TransformerLens does.

        It acts from here on, also in a pass that is under way.

        Returns:
            The handle whose ``remove`` takes the hook off.
        """
        handle = super().add_hook(*args, **kwargs)
        self._registry.session.include(self.name)
        return handle

    def register_forward_hook(self, hook: Any, **options: Any) -> RemovableHandle:
        """Register a hook of ``add_hook``.

        Returns:
            The handle whose ``remove`` takes the hook off.

        Raises:
            HookError: the hook is of torch or another library, which would never be
                called.
        """
        self._check_origin(hook)
        result: RemovableHandle = super().register_forward_hook(hook, **options)
        return result

    def register_full_backward_hook(
        self, hook: Any, prepend: bool = False
    ) -> RemovableHandle:
        """Register a hook of ``add_hook``.

        Returns:
            The handle whose ``remove`` takes the hook off.

        Raises:
            HookError: the hook is of torch or another library, which would never be
                called.
        """
        self._check_origin(hook)
        result: RemovableHandle = super().register_full_backward_hook(hook, prepend)
        return result

    def register_forward_pre_hook(self, hook: Any, **options: Any) -> RemovableHandle:
        """Refuse the hook: TransformerLens sets none of this kind."""
        self._check_origin(hook)
        result: RemovableHandle = super().register_forward_pre_hook(hook, **options)
        return result

    def _check_origin(self, hook: Any) -> None:
        """Refuse hooks that torch, or a library such as captum, sets.

        The native model does not call this module.
        """
        # what TransformerLens registers is a function local to HookPoint.add_hook, and
        # by this alone it can be told from the hook of another library
        if not getattr(hook, "__qualname__", "").startswith("HookPoint.add_hook."):
            site = self._registry.points[self.name].site
            if site.side == "in":
                side = "input"
            else:
                side = "output"
            raise HookError(
                f"{self.name} is no module of the native model, so a torch hook on it"
                f" would not be called. Name the native module instead, whose {side} it"
                f" shows: lens.model.get_submodule({site.module!r}); hooks of"
                f" TransformerLens's kind are set by lens.add_hook({self.name!r},"
                " function)"
            )

    def add_scoped(
        self, hook: Any, direction: Literal["fwd", "bwd"], level: int
    ) -> None:
        """Add the hook of a block, but leave connecting it to the block."""
        super().add_hook(hook, dir=direction, level=level)


@dataclass(frozen=True)
class Connection:
    """Callback that a hook point needs at one side of a module.

    Connections of several hook points with one ``side`` and ``key`` become a single
    :class:`Callback`, of this rank and function.
    """

    side: ModuleSide
    key: str
    rank: float
    call: Callable[..., Any] | None


@dataclass
class Callback:
    """Callback at one side of a module, with its rank and the points that it serves.

    The lowest rank comes first. A ``call`` of None notes that the module ran to its
    end.
    """

    rank: float
    call: Callable[..., Any] | None
    names: set[str] = field(default_factory=set)


class HookDispatcher:
    """One thread's hooks on a model.

    Its open blocks, in order of entry, alone determine the torch hooks there.
    """

    def __init__(self, registry: HookRegistry) -> None:
        self._registry = registry
        self._wiring = registry.wiring
        self._thread = threading.current_thread()
        self.scopes: tuple[HookScope[Any], ...] = ()
        self.state = RunState(sample_major=registry.wiring.sample_major)
        self._torch_hooks: dict[ModuleSide, TorchHook] = {}
        self._callbacks: dict[ModuleSide, list[Callback]] = {}
        self._connections: dict[str, list[Connection]] = {}
        self._tracking = list(self._track())
        # paths of the attention modules whose calls it observes
        self.attentions: dict[nn.Module, str] = {}
        # for each attention that was entered, by path: whether torch's attention
        # function was called in it
        self.called: dict[str, bool] = {}
        # whether gradients were recorded when the model was entered
        self._gradients = False
        # by hook point, of the pass that runs: edits of a branch's input (see
        # _carry_edits), and z (see _connect_result)
        self._edits: dict[str, Tensor] = {}
        self._heads: dict[str, Tensor] = {}

    def acting(self) -> list[HookScope[Any]]:
        """Return the open blocks that act on what runs now.

        Errors are those of :meth:`HookScope.acts`.
        """
        return [*filter(HookScope.acts, self.scopes)]

    def _active_hooks(self, name: str) -> list[Any]:
        """Return the hooks that act at a hook point."""
        point = self._registry.hooked[name]
        return acting_hooks((*point.fwd_hooks, *point.bwd_hooks), self.acting())

    def unconnected(self) -> list[str]:
        """Return the hook points where a hook acts and that no block has connected."""
        # a block that was broken off, or ended in another thread, has left hooks behind
        if (self._torch_hooks and not self.scopes) or not all(
            scope.is_open for scope in self.scopes
        ):
            self.sync_hooks()
        # asked before every run, mostly of a model without hooks
        in_use = self._registry.in_use
        if not in_use:
            return []
        connected = set().union(*[scope.targets for scope in self.acting()])
        return [
            name
            for name in in_use
            if name not in connected and self._active_hooks(name)
        ]

    def include(self, name: str) -> None:
        """Connect a hook point that got a hook while a block is open."""
        if self.scopes:
            scopes = self.acting()
        else:
            scopes = []
        if scopes and not any(name in scope.targets for scope in scopes):
            scopes[-1].include(name)

    def across_rows(self, *, parts: bool = True) -> list[str]:
        """Return the hook points whose hooks may look at several series at once.

        A batch must not be split then.

        A function with a true attribute ``by_row`` treats every row of a batch by
        itself. One with a true attribute ``by_place`` does so if the run's state says
        which rows run; ``parts`` means that the lens splits the batch and notes that.
        """
        marks = ("by_row", "by_place") if parts else ("by_row",)

        def is_separate(hook: Any) -> bool:
            return any(getattr(hook, mark, False) for mark in marks)

        return [
            name
            for name in self._registry.in_use
            if not all(map(is_separate, self._active_hooks(name)))
        ]

    def check_hooks_met(self, scope: HookScope[Any]) -> None:
        """Raise HookError if the model ran without passing a hook point of a block."""
        points = self._registry.points
        names = scope.names
        silent = [name for name in names if name not in scope.trace]
        inert = [
            name
            for name in silent
            if not scope.full_runs.isdisjoint(self._witnesses(points[name]))
        ]
        if inert:
            path = points[inert[0]].site.module
            kind = type(self._registry.modules[path]).__name__
            rest = ""
            if len(inert) > 1:
                rest = f" (and {len(inert) - 1} more hook points)"
            raise HookError(
                f"the model ran, but never passed {inert[0]}{rest}, so the hooks there"
                f" did nothing: the wiring expects it at {path!r} ({kind}), which was"
                " not called. Code that uses the weights of a module without calling"
                " it passes hooks by (nn.MultiheadAttention, which is wired with"
                " z_inside=True; fused kernels), and so does a stack whose output was"
                " computed before the block and handed in. Wire a module that is"
                " called, turn the fused path off, or run the stack inside the block."
            )
        if len(silent) == len(names) and not scope.full_runs and scope.elsewhere:
            raise HookError(
                "the model ran in another thread only, or in another task, and hooks"
                " act where their block was opened: those on"
                f" {names[0]}{' and other points' if len(names) > 1 else ''} did"
                " nothing. Open the block inside the function that the other thread or"
                " task runs."
            )

    def _witnesses(self, point: Point) -> tuple[str, ...]:
        """Return modules that cannot run to their end without passing a hook point.

        These are the model, and the point's block.
        """
        block = self._wiring.stack(point.stack).block(max(point.layer, 0))
        # hook_embed has no layer, but is what the first block reads; the last norm and
        # the head lie in no block
        if point.layer >= 0 or point.name.endswith("hook_embed"):
            return ("", block)
        return ("",)

    def sync_hooks(self) -> None:
        """Bring the hooks on the model in line with the open blocks.

        After an interrupt, another call completes it.
        """
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            # the garbage collector ended this thread's block from another thread; its
            # hooks no longer act, and this thread takes them off with its next block
            return
        self.scopes = tuple([scope for scope in self.scopes if scope.is_open])
        callbacks: dict[ModuleSide, dict[str, Callback]] = {}
        for scope in self.scopes:
            for name in scope.targets:
                if name not in self._connections:
                    self._connections[name] = [
                        *self._tracking,
                        *self._connect(self._registry.points[name]),
                    ]
                for connection in self._connections[name]:
                    by_key = callbacks.setdefault(connection.side, {})
                    new = Callback(connection.rank, connection.call)
                    by_key.setdefault(connection.key, new).names.add(name)
        # begin() in _track() notes this where the model is entered, but a run of only a
        # part of the model never enters it
        if callbacks and not self._torch_hooks:
            self._gradients = torch.is_grad_enabled()
        for side in tuple(self._torch_hooks):
            if side not in callbacks:
                # removed from the module first and from the dict second; below, entered
                # in the dict first: a hook on a module is always found in the dict by
                # the next call, even after an interrupt
                self._torch_hooks[side].remove()
                self._torch_hooks.pop(side, None)
        # always a new dict: _run sees by its identity that hooks were set or taken off
        self._callbacks = {
            side: sorted(by_key.values(), key=attrgetter("rank"))
            for side, by_key in callbacks.items()
        }
        for side in callbacks:
            if side not in self._torch_hooks:
                self._torch_hooks[side] = TorchHook(
                    self._registry.modules[side[0]], side[1], partial(self._run, side)
                )
            self._torch_hooks[side].set()
        observed = self.attentions
        self.attentions = {
            self._registry.modules[side[0]]: side[0]
            for side in callbacks
            if "check" in callbacks[side]
        }
        # also where none is observed any more: listen() then drops this dispatcher
        if observed or self.attentions:
            LOCAL.interceptor.listen(self)
        if not self.scopes:
            # remains of a run that was broken off
            self._edits.clear()
            self._heads.clear()

    def _run(
        self, side: ModuleSide, module: nn.Module, args: Any, kwargs: Any, *output: Any
    ) -> Any:
        """Call the callbacks at a side of a module in order of rank.

        Torch's own order is that of setting.

        Returns:
            What replaces the arguments or the output of the module; None if nothing
            does.
        """
        scopes = self.acting()
        replacement = None
        callbacks = self._callbacks.get(side, [])
        # no block acts if another thread or task runs the module
        if len(scopes) < len(self.scopes):
            for scope in self.scopes:
                if scope not in scopes and not scope.is_aside:
                    scope.elsewhere = True
            callbacks = [
                callback
                for callback in callbacks
                if any(not callback.names.isdisjoint(scope.targets) for scope in scopes)
            ]
        if scopes:
            queue = callbacks
        else:
            queue = []
        while queue:
            callback, *queue = queue
            if callback.call is None:
                for scope in scopes:
                    scope.full_runs.add(side[0])
                continue
            known = self._callbacks
            new = callback.call(module, args, kwargs, *output)
            if new is not None:
                replacement = new
                if output:
                    output = (new,)
                else:
                    args, kwargs = new
            if known is not self._callbacks:
                # a hook has set another one, maybe further down at this side
                queue = [
                    later
                    for later in self._callbacks.get(side, [])
                    if later.rank > callback.rank
                ]
        return replacement

    def _connect(self, point: Point) -> list[Connection]:
        """Return the connections that one hook point needs on the model."""
        path = point.site.module
        rank = self._registry.rank[point.name]
        # when a module is entered, torch decides whether it has any hooks to call. The
        # modules around this one therefore get one in advance: a hook that runs here
        # may set another at their end
        around = [site for site in self._registry.sites if path.startswith(f"{site}.")]
        noted = dict.fromkeys((*self._witnesses(point), *around))
        # last of all, these note which modules ran to their end, by which a hook that
        # was never called can be told from a model that never ran
        connections = [
            Connection((module, "out"), "ran", _LAST, None) for module in noted
        ]
        if point.how == "result":
            connections += self._connect_result(point)
        elif point.how != "site":
            connections += self._connect_attention(path, point.joined)
        else:
            side = (path, point.site.side)
            connections.append(Connection(side, point.name, rank, self._at_site(point)))
        if point.aside:
            return [*connections, self._carry_edits(point)]
        return connections

    def _connect_attention(
        self, path: str, joined: Callable[..., Any] | None = None
    ) -> Iterator[Connection]:
        """Turn the interceptor on around an attention.

        An attention that runs without its attention call is refused.

        Yields:
            Where the interceptor is turned on, where off, and where its call is
            checked.
        """

        def enter(module: nn.Module, *call: Any) -> Any:
            # "" for a module that is only around an attention, see brackets; nobody
            # reads that entry
            attention_path = self.attentions.get(module, "")
            self.called[attention_path] = False
            LOCAL.interceptor.enter(module)
            return joined and joined(*call)

        def check(module: nn.Module, *_call: Any) -> None:
            # a hook that ran inside this attention may have started its observation,
            # so that enter() was not called; that is no fault
            if self.called.pop(path, True) is False:
                raise WiringError(
                    f"{path} ({type(module).__name__}) computed attention without"
                    " torch's scaled_dot_product_attention, so its inside cannot be"
                    " seen. Load the model with its 'sdpa' attention, without xformers"
                    " or another fused replacement."
                )

        for bracket in brackets(path, self._registry.modules[path]):
            yield Connection(
                # "end" also follows a forward that failed, after which the mode must be
                # off
                (bracket, "end"),
                "capture",
                _FIRST,
                lambda module, *_call: LOCAL.interceptor.leave(module),
            )
            yield Connection((bracket, "in"), "capture", _LAST, enter)
        yield Connection((path, "out"), "check", _FIRST, check)

    def _track(self) -> Iterator[Connection]:
        """Yield the connections that keep :attr:`state` up to date."""
        state = self.state
        site = self._wiring.sizes_from

        def begin(*_call: Any) -> None:
            self._gradients = torch.is_grad_enabled()

        def count_steps(
            _module: nn.Module, _args: Any, _kwargs: Any, output: Any
        ) -> None:
            steps = self._wiring.steps_per_readout
            state.step += steps if isinstance(steps, int) else steps(output)

        def note_sizes(
            _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> None:
            assert site is not None
            shape = get_input(args, kwargs, site.arg).shape
            lengths = dict(zip(site.layout.split(), shape, strict=True))
            state.sizes = {axis: lengths[axis] for axis in ("series", "variate")}

        def note_offset(
            stack: Stack,
            _module: nn.Module,
            args: tuple[Any, ...],
            kwargs: dict[str, Any],
        ) -> None:
            assert stack.cached is not None
            state.offset[stack.name] = stack.cached(args, kwargs)

        yield Connection(("", "in"), "begun", _FIRST, begin)
        for stack in self._wiring.stacks:
            if stack.cached is not None:
                yield Connection(
                    (stack.entry, "in"),
                    f"entered {stack.name}",
                    _FIRST,
                    partial(note_offset, stack),
                )
        if site is not None:
            yield Connection((site.module, "in"), "sizes", _FIRST, note_sizes)
        head = self._wiring.unembed.module
        yield Connection((head, "out"), "read out", _FIRST, count_steps)

    def _at_site(self, point: Point) -> Callable[..., Any]:
        """Make the torch hook of a hook point on a module's inputs or output."""
        arg = point.site.arg
        enters = point.site.side == "in"
        get: Callable[..., Tensor] = get_input if enters else get_output
        put: Callable[..., Any] = put_input if enters else put_output

        def pass_through(
            _module: nn.Module, args: Any, kwargs: Any, *output: Any
        ) -> Any:
            # get_input() takes (args, kwargs, arg), and get_output() (output, arg)
            values = output
            if enters:
                values = (args, kwargs)
            tensor = get(*values, arg)
            new = self._fire(point, tensor)
            # None tells torch to keep what the module got or gave, whatever its type
            if new is tensor:
                return None
            return put(*values, arg, new)

        return pass_through

    def _carry_edits(self, point: Point) -> Connection:
        """Add an edit on the way into a branch to the branch's write.

        The stream then has it, too.

        Returns:
            The connection at the output of the branch.
        """
        registry = self._registry
        write = self._registry.points[point.aside]

        def after(_module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> Any:
            # popped, as the next pass of a rollout must not carry it again
            change = self._edits.pop(point.name, None)
            if change is None:
                return None
            # the block computes write_gain · write + stream_gain · stream from a stream
            # without the change; the write has to bring stream_gain · change instead
            write_gain, stream_gain = registry.gains(write)
            edit = to_native(
                change * (stream_gain / write_gain),
                write.site.layout,
                RESIDUAL,
                self._sizes(point),
            )
            tensor = get_output(output, write.site.arg)
            return put_output(
                output, write.site.arg, tensor + edit.reshape(tensor.shape)
            )

        # after the hook point of the write itself
        return Connection(
            (write.site.module, "out"),
            f"edits of {point.name}",
            registry.rank[write.name] + 0.5,
            after,
        )

    def _connect_result(self, point: Point) -> Iterator[Connection]:
        """Compute each head's write.

        A norm behind the heads is frozen to the scale of this pass. The attention's
        output changes only if a hook edits a head's write.

        Yields:
            Connections before and after the module that mixes the heads.
        """
        stack = self._wiring.stack(point.stack)
        rank = self._registry.rank[point.name]
        writer = stack.attention(point.kind, point.layer)
        path = point.site.module
        if writer.post_norm:
            layout = writer.write.layout
        else:
            layout = writer.stream_layout

        def before(
            _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> None:
            # hook_z fires first at this input, as its rank is lower: this is z with its
            # edits
            self._heads[point.name] = get_input(args, kwargs, 0)

        def after(
            norm: nn.Module, args: tuple[Any, ...], _kwargs: Any, output: Any
        ) -> Any:
            weights = head_output_weights(
                self._registry.model, stack, point.layer, point.kind
            )
            factor = self._registry.gains(point)[0]
            sizes = self._sizes(point)
            heads = fold_leading(self._heads.pop(point.name), point.site.layout)
            z = to_vocabulary(heads, point.site.layout, HEADS, sizes)
            # (batch, head, pos, d_head) @ (head, d_head, d_model), back to (batch, pos,
            # head, d_model)
            result = (z.transpose(-2, -3) @ weights.to(z)).transpose(-2, -3)
            tensor = get_output(output, 0)
            if writer.post_norm:
                scale = rms_scale(norm, get_input(args, {}, 0))
                # a norm without a gain has one factor a token, (…, 1), where the layout
                # has d_model
                expanded = fold_leading(scale.expand_as(tensor), layout)
                scale = to_vocabulary(expanded, layout, RESIDUAL, sizes)
                result = result * scale.unsqueeze(-2)
            if factor != 1.0:
                result = result * factor
            new = self._through(point, result)
            if new is result:
                return None
            # added to the native output, as the sum of the heads lacks the bias and
            # rounds otherwise
            change = to_native(
                (new - result).sum(dim=-2) / factor, layout, RESIDUAL, sizes
            )
            return put_output(output, 0, tensor + change.reshape(tensor.shape))

        write_path = path
        if writer.post_norm:
            write_path = f"{stack.block(point.layer)}.{writer.post_norm}"
        yield Connection((write_path, "out"), point.name, rank, after)
        if writer.z_inside:
            yield from self._connect_attention(path)
        else:
            yield Connection((path, "in"), point.name, rank, before)

    def in_use_inside(self, path: str, how: str) -> bool:
        """Return whether a hook acts at a point inside an attention."""
        point = self._registry.inside_attention.get((path, how))
        # asked at every attention call, mostly of points that no block has connected
        return (
            point is not None
            and any(
                point.name in scope.targets and scope.acts() for scope in self.scopes
            )
            and bool(self._active_hooks(point.name))
        )

    def fire_inside(self, path: str, how: str, tensor: Tensor) -> Tensor:
        """Pass a tensor inside an attention to the hooks of its point.

        ``how`` is "q", "k", "v", "scores", "pattern", "z", or "result", which is z
        after all its hooks.

        Returns:
            The tensor, or what the hooks made of it.
        """
        if not self.in_use_inside(path, how):
            return tensor
        point = self._registry.inside_attention[path, how]
        # kept for _connect_result, since no output matrix is called that takes z
        # (z_inside)
        if how == "result":
            self._heads[point.name] = tensor
            return tensor
        return self._fire(point, tensor)

    def _sizes(self, point: Point) -> dict[str, int]:
        """Return the lengths of axes that layouts may fold together."""
        return {**self.state.sizes, "head": self._wiring.stack(point.stack).n_heads}

    def _fire(self, point: Point, native: Tensor) -> Tensor:
        """Pass a native tensor to a hook point's hooks.

        Returns:
            What the hooks made of it, or the same tensor if none changed it.
        """
        layout = point.site.layout
        axes = point.axes
        sizes = self._sizes(point)
        value = to_vocabulary(fold_leading(native, layout), layout, axes, sizes)
        # hooks see a write as the stream receives it, after the block has scaled it
        factor = self._registry.gains(point)[0]
        if factor != 1.0:
            value = value * factor
        # a library may repeat keys and values for every query head before the call
        copies = 1
        if point.heads:
            copies = value.shape[2] // point.heads
        distinct = value
        if copies > 1:
            # copies of one head lie side by side, as repeat_interleave makes them
            distinct = value[:, :, ::copies]
        # a pass that was broken off may have left an edit here
        self._edits.pop(point.name, None)
        new = self._through(point, distinct)
        if new is distinct:
            return native
        if copies > 1:
            new = new.repeat_interleave(copies, dim=2)
        if point.aside:
            self._edits[point.name] = new - value
        if factor != 1.0:
            new = new / factor
        # the reshape splits the leading axes again that fold_leading joined
        return to_native(new, layout, axes, sizes).reshape(native.shape)

    def _through(self, point: Point, value: Tensor) -> Tensor:
        """Pass a value in the vocabulary's axes through the hooks that act here."""
        check_recomputation(point.name, self._gradients)
        scopes = self.acting()
        for scope in scopes:
            scope.trace.add(point.name)
        hook_point = self._registry.hooked[point.name]
        backward_hooks = hook_point.bwd_hooks
        if backward_hooks and (
            len(acting_hooks(backward_hooks, scopes)) < len(backward_hooks)
        ):
            raise HookError(
                f"another thread has backward hooks on {point.name}, or another task"
                " has, and torch cannot keep them apart. Let one block with backward"
                " hooks end before another thread or task hooks the same points."
            )
        hooks = acting_hooks(hook_point.fwd_hooks, scopes)
        if all(getattr(hook, "reads_only", False) for hook in hooks):
            # torch calls backward hooks only for what went through a call of their
            # module
            if hook_point.bwd_hooks:
                result: Tensor = hook_point(value)
                return result
            for hook in hooks:
                hook(value, hook=hook_point)
            return value
        # hooks may write in place, so they get a copy
        copy = value.clone()
        new = hook_point(copy)
        # compared by bits, since torch's version counter misses writes through numpy or
        # the storage. With gradients the copy must go on: a hook may have kept it, for
        # retain_grad(), and gets a gradient only if the model uses that very tensor
        if new is copy and not copy.requires_grad and same_bits(copy, value):
            return value
        if not isinstance(new, Tensor) or _describe(new) != _describe(value):
            if isinstance(new, Tensor):
                found = f"shape {_describe(new)}"
            else:
                found = f"a {type(new).__name__}"
            raise WiringError(
                f"the hook on {point.name} returned {found}, expected"
                f" {_describe(value)} ({' '.join(point.axes)})"
            )
        # a tensor made under torch.inference_mode() may not enter the graph of a run
        # outside of it
        if new.is_inference() and not torch.is_inference_mode_enabled():
            return new.clone()
        return new


def _describe(tensor: Tensor) -> str:
    """Describe the shape, type and device of a tensor."""
    return (
        f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')} on"
        f" {tensor.device}"
    )


class Namespace(nn.Module):
    """Part of the tree of hook points; the native model holds the weights."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            names = ", ".join(self._modules) if "_modules" in self.__dict__ else ""
        raise AttributeError(
            f"no {name!r} here, only hook points: {names}. Weights are in"
            " lens.weights.heads(layer) and .mlp(layer)"
        )


def attach_point(root: nn.Module, name: str, point: nn.Module) -> None:
    """Register a hook point in a tree of plain modules.

    Its dotted name is its path there; layers are in module lists.
    """
    parts = name.split(".")
    for part, child in pairwise(parts):
        if part not in root._modules:
            root.add_module(part, nn.ModuleList() if child.isdigit() else Namespace())
        root = root.get_submodule(part)
    root.add_module(parts[-1], point)
