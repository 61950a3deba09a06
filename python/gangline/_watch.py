"""Measures where the time of training steps goes, by hooks on a model and its optimizer, and reports it with the steps."""

import atexit
import collections
import gc
import os
import threading
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.utils.data import dataloader

from . import _report
from ._loops import is_gang

# The last gradients are those of the first parameters, as a rule; hooks on all of them would cost more than they tell.
_PARAMETERS_MAX = 16
# Seconds between two looks at the allocator of the device: each takes about 0.1 ms.
_MEMORY_SECONDS = 10.0
# Steps whose times the device hasn't told yet; older ones are given up.
_UNTOLD_MAX = 8
# Functions of torch.distributed that a script calls itself. Those that a wrapped model calls from C++ are seen by its hooks.
_COLLECTIVES = (
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "monitored_barrier",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "send",
)


class HostClock:
    """Times of work that the process itself does: on a CPU a call returns when the work is done."""

    @staticmethod
    def mark():
        return time.perf_counter()

    @staticmethod
    def is_past(mark):
        return True

    @staticmethod
    def seconds(first, last):
        return last - first

    @staticmethod
    def stall(waited, idle, busy):
        """Returns the seconds that training stood still while `waited` seconds passed in the data loader."""
        return waited


class CudaClock:
    """Times of work that a CUDA device does after the call has returned, by events in its current stream
    (docs.nvidia.com/cuda/cuda-runtime-api, Event Management). Known once the device has passed them."""

    @staticmethod
    def mark():
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @staticmethod
    def is_past(mark):
        return mark.query()

    @staticmethod
    def seconds(first, last):
        return first.elapsed_time(last) / 1000

    @staticmethod
    def stall(waited, idle, busy):
        # While the device still had work queued, the wait cost nothing.
        return waited if idle is None else min(waited, CudaClock.seconds(idle, busy))


class _Step:
    """Measurements of one step: pairs of marks, and seconds of the host."""

    def __init__(self):
        self.forward, self.backward, self.optimizer = [], [], []
        # Pairs between which gradients or other tensors were waited for.
        self.exposed = []
        # Seconds in the data loader, with the marks between which the device may have stood still.
        self.waits = []
        self.collecting = 0.0
        self.tokens = 0
        self.end = None


class Watch:
    """Hooks on a model and its optimizer, until `close`. See gangline.torch.watch."""

    def __init__(self, first_step, clock):
        self._clock, self._completed = clock, first_step
        self._thread, self._process = threading.get_ident(), os.getpid()
        self._step, self._untold = _Step(), collections.deque(maxlen=_UNTOLD_MAX)
        self._starts = {}
        self._idle_since = self._last_gradient = self._collecting_since = None
        self._waited, self._depth = 0.0, 0
        # The step that is done and that nobody has reported, its tokens, and the last one that was.
        self._pending, self._tokens, self._reported = None, 0, None
        self._script_reports = False
        self._memory_at, self._retries = 0.0, 0
        self._handles, self._replaced = [], []

    def begin(self, model, optimizer):
        """Sets all hooks."""
        self._handles = [
            model.register_forward_pre_hook(_uncompiled(self._model_is_called), with_kwargs=True),
            model.register_forward_hook(_uncompiled(self._model_returns)),
            optimizer.register_step_pre_hook(self._optimizer_begins),
            optimizer.register_step_post_hook(self._optimizer_ended),
        ]
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in trained[:_PARAMETERS_MAX]:
            self._handles.append(parameter.register_post_accumulate_grad_hook(self._gradient_is_there))
        self._replace(torch.autograd, "backward", self._around_backward)
        self._replace(dataloader._BaseDataLoaderIter, "__next__", self._around_fetch)
        self._replace(torch, "save", self._around_save)
        self._replace(dcp, "save", self._around_save)
        for name in _COLLECTIVES if dist.is_available() else ():
            if hasattr(dist, name):
                self._replace(dist, name, self._around_collective)
        gc.callbacks.append(self._collection)
        # The last step is reported when the next one begins, or here.
        atexit.register(self.close)

    def close(self):
        """Removes all hooks. A step that is done and not reported is reported."""
        if self._replaced:
            self.tell()
            for handle in self._handles:
                handle.remove()
            for owner, name, original, wrapped in self._replaced:
                # Whoever wrapped the function later still calls ours, which measures into nothing.
                if vars(owner)[name] is wrapped:
                    setattr(owner, name, original)
            gc.callbacks.remove(self._collection)
            atexit.unregister(self.close)
            self._handles, self._replaced = [], []
        _report.forget(self)

    def _is_ours(self):
        return threading.get_ident() == self._thread and os.getpid() == self._process

    def _replace(self, owner, name, around):
        original = vars(owner)[name]

        def wrapped(*args, **kwargs):
            if not (self._replaced and self._is_ours()):
                return original(*args, **kwargs)
            return around(original, args, kwargs)

        wrapped.__name__, wrapped.__doc__, wrapped.__wrapped__ = name, original.__doc__, original
        setattr(owner, name, wrapped)
        self._replaced.append((owner, name, original, wrapped))

    # The parts of a step, in the order in which they come.

    def _around_fetch(self, fetch, args, kwargs):
        self.tell()
        begun = time.perf_counter()
        try:
            with _report.measured_data():
                return fetch(*args, **kwargs)
        finally:
            self._waited += time.perf_counter() - begun

    def _model_is_called(self, model, inputs, named):
        if model.training and torch.is_grad_enabled() and self._is_ours():
            self.forward_begins(named.get("input_ids", inputs[0] if inputs else None))

    def forward_begins(self, inputs):
        """Notes that a forward pass for training begins. Calls of the model within it don't count."""
        if self._handles and "forward" not in self._starts:
            self.tell()
            self._step.tokens += _tokens_of(inputs)
            self._starts["forward"] = self._clock.mark()
            self._ends_wait(self._starts["forward"])

    def _ends_wait(self, mark):
        if self._waited:
            self._step.waits.append((self._waited, self._idle_since, mark))
            self._waited = 0.0

    def _model_returns(self, model, inputs, outputs):
        if self._is_ours():
            self.forward_ended()

    def forward_ended(self):
        """Notes that the forward pass has ended."""
        self._ended("forward", self._step.forward)

    def _around_backward(self, backward, args, kwargs):
        self._last_gradient, begun = None, self._clock.mark()
        self._ends_wait(begun)
        try:
            return backward(*args, **kwargs)
        finally:
            ended = self._clock.mark()
            self._step.backward.append((begun, ended))
            # A model that is wrapped for several ranks waits for their gradients after its own last one.
            if self._last_gradient is not None and is_gang():
                self._step.exposed.append((self._last_gradient, ended))
            self._idle_since = ended
            if "optimizer" in self._starts:
                # The passes are in the closure that the optimizer was given, as Lightning does.
                self._starts["optimizer"] = ended

    def _gradient_is_there(self, parameter):
        self._last_gradient = self._clock.mark()

    def _around_collective(self, collective, args, kwargs):
        if self._depth or kwargs.get("async_op"):
            return collective(*args, **kwargs)
        begun, self._depth = self._clock.mark(), 1
        try:
            return collective(*args, **kwargs)
        finally:
            self._depth = 0
            self._step.exposed.append((begun, self._clock.mark()))

    def _around_save(self, save, args, kwargs):
        destination = kwargs.get("f", args[1] if len(args) > 1 else None)
        is_to_memory = save.__name__ == "save" and hasattr(destination, "getvalue")
        if is_to_memory:
            return save(*args, **kwargs)
        self.tell()
        with _report.checkpoint_phase():
            return save(*args, **kwargs)

    def _optimizer_begins(self, optimizer, args, kwargs):
        self._starts["optimizer"] = self._clock.mark()

    def _optimizer_ended(self, optimizer, args, kwargs):
        self._ended("optimizer", self._step.optimizer)
        self.tell()
        self._starts.clear()
        # An optimizer that was just restored may have made steps before.
        self._completed = (_steps_of(optimizer) or 1) if self._completed is None else self._completed + 1
        self._step.end = self._idle_since = self._clock.mark()
        self._untold.append(self._step)
        self._pending, self._tokens, self._step = self._completed, self._step.tokens, _Step()

    def _collection(self, stage, info):
        if stage == "start":
            self._collecting_since = time.perf_counter()
        elif self._collecting_since is not None:
            self._step.collecting += time.perf_counter() - self._collecting_since
            self._collecting_since = None

    def _ended(self, name, pairs):
        begun = self._starts.pop(name, None)
        if begun is not None:
            pairs.append((begun, self._clock.mark()))

    # What is told, and by whom.

    def tell(self):
        """Reports the step that is done, unless the script reports its steps itself."""
        if self._pending is not None:
            step, self._pending = self._pending, None
            if not self._script_reports:
                self._reported = step
                _report.say_measured({"step": step} | self._of_step() | self._measured())

    def completed(self, message):
        """Returns a report of the script with what was measured of the step that it is about."""
        step = message.get("step")
        if step is None:
            return message
        measured = self._measured()
        if self._pending is None and self._reported is None:
            # The script reports each step before it is done, or does so without any that is seen here.
            self._script_reports = True
        elif self._pending is not None:
            measured |= self._of_step()
            # A script that tells some of its steps may number them otherwise; none may go back.
            message["step"] = step if self._reported is None else max(step, self._reported + 1)
            self._completed, self._pending = message["step"], None
            if self._reported is not None:
                self._reported = message["step"]
        elif not self._script_reports and step <= self._reported:
            # Told already: a second report would be a second step.
            del message["step"]
        metrics = measured.pop("metrics", {}) | message.get("metrics", {})
        return measured | message | ({"metrics": metrics} if metrics else {})

    def _of_step(self):
        return {"tokens": self._tokens} if self._tokens else {}

    def _measured(self):
        phases, metrics = collections.Counter(), collections.Counter()
        while self._untold and self._clock.is_past(self._untold[0].end):
            step = self._untold.popleft()
            phases["data"] += sum(self._clock.stall(*wait) for wait in step.waits)
            phases["communication"] += self._sum(step.exposed)
            metrics["python.gc_seconds"] += step.collecting
            metrics["torch.forward_seconds"] += self._sum(step.forward)
            metrics["torch.backward_seconds"] += self._sum(step.backward)
            metrics["torch.optimizer_seconds"] += self._sum(step.optimizer)
        if not phases:
            return {}
        return {"phase_seconds": dict(phases), "metrics": dict(metrics) | self._memory()}

    def _sum(self, pairs):
        return sum(self._clock.seconds(first, last) for first, last in pairs)

    def _memory(self):
        now = time.monotonic()
        if self._clock is not CudaClock or now - self._memory_at < _MEMORY_SECONDS:
            return {}
        statistics, self._memory_at = torch.cuda.memory_stats(), now
        before, self._retries = self._retries, statistics["num_alloc_retries"]
        return {
            "torch.alloc_retries": float(self._retries - before),
            "torch.memory_allocated_bytes": float(statistics["allocated_bytes.all.current"]),
            "torch.memory_reserved_bytes": float(statistics["reserved_bytes.all.current"]),
        }


def _uncompiled(hook):
    """Returns a hook that torch.compile calls and doesn't trace: times would become constants."""
    disable = getattr(getattr(torch, "compiler", None), "disable", None)
    return disable(hook) if disable else hook


def _tokens_of(inputs):
    """Returns the number of tokens in the inputs of a model: whole numbers, in batches of sequences."""
    is_tokens = isinstance(inputs, torch.Tensor) and inputs.dim() == 2 and inputs.dtype in (torch.int64, torch.int32)
    return inputs.numel() if is_tokens else 0


def _steps_of(optimizer):
    """Returns the steps that the optimizer counts in its state, as Adam's family does."""
    counts = (state.get("step") for state in optimizer.state.values())
    return max((int(count) for count in counts if count is not None), default=None)
