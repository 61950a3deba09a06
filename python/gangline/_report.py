"""Tells Gangline what this rank does and measures, over the socket that it gave the rank (docs/reference/rank-protocol.md).

Outside of a Gangline job every call checks its arguments and does nothing. A call never waits: what the socket doesn't take
at once is kept, up to a limit, and sent with the next call; beyond that it is dropped and counted. Only the process that
imported this module reports; a forked data-loading worker stays silent.
"""

import contextlib
import json
import os
import socket
import threading
import time

# Bytes that wait for the socket; further messages are dropped.
_WAITING_BYTES_MAX = 1 << 18
# Seconds before a lost connection is tried again.
_RETRY_SECONDS = 1.0
# Saves that the supervisor hasn't been told of; a rank that reports nothing keeps no more of them. A store has two in flight.
_SAVES_MAX = 4
# The supervisor's limits, by docs/reference/rank-protocol.md.
METRICS_MAX = 64
_NAME_BYTES_MAX = 200
_COUNT_MAX = 1 << 53
_PHASES = ("init", "restore", "data", "compute", "communication", "straggler_wait", "checkpoint", "done")


class _Connection:
    """The connection to the supervisor."""

    def __init__(self, path):
        self._path = path
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._socket = None
        self._retry_at = 0.0
        self._unsent = bytearray()
        self._unread = b""
        self.phase = None
        self.has_reported = False
        self.stop = None
        self.dropped = 0
        self.saves = []
        self.loss = None
        # Hooks that measure steps (gangline.torch.watch), and whether they measure the time in the data loader now.
        self.watch = None
        self.is_data_measured = False

    def say(self, message):
        if self._path is None or os.getpid() != self._process:
            return
        # The supervisor may read it late, and several messages at a time.
        line = (json.dumps({**message, "at": time.monotonic()}) + "\n").encode()
        with self._lock:
            if len(self._unsent) + len(line) > _WAITING_BYTES_MAX:
                self.dropped += 1
            else:
                self._unsent += line
            self._exchange()

    def hear(self):
        if self._path is None or os.getpid() != self._process:
            return None
        with self._lock:
            self._exchange()
            return self.stop

    def _exchange(self):
        try:
            if self._connect():
                self._send()
                self._receive()
        except OSError:
            # The supervisor is being replaced or is gone: what was cut off can't be continued on another connection.
            self._socket.close()
            self._socket, self._retry_at = None, time.monotonic() + _RETRY_SECONDS
            del self._unsent[: self._unsent.find(b"\n") + 1]
            self._unread = b""

    def _connect(self):
        if self._socket is not None:
            return True
        if time.monotonic() < self._retry_at:
            return False
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(self._path)
        except OSError:
            connection.close()
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            return False
        connection.setblocking(False)
        self._socket = connection
        return True

    def _send(self):
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]

    def _receive(self):
        with contextlib.suppress(BlockingIOError):
            while received := self._socket.recv(1 << 16):
                *lines, self._unread = (self._unread + received).split(b"\n")
                for line in lines:
                    self._order(line)
            raise ConnectionResetError("the supervisor closed the connection")

    def _order(self, line):
        with contextlib.suppress(ValueError):
            order = json.loads(line)
            if isinstance(order, dict) and order.get("order") == "save_and_stop":
                self.stop = StopRequest(str(order.get("reason", "")), float(order.get("grace_ms", 0)) / 1000)


class StopRequest:
    """An order to save a checkpoint and exit with 94 (or with 0 if the work is done)."""

    def __init__(self, reason, grace_seconds):
        self.reason = reason
        """Why."""
        self.grace_seconds = grace_seconds
        """Seconds between the order and the end of the process."""

    def __repr__(self):
        return f"StopRequest(reason={self.reason!r}, grace_seconds={self.grace_seconds})"


_connection = _Connection(os.environ.get("GANGLINE_SOCKET") or None)


def report(step=None, *, loss=None, tokens=None, total_steps=None, **metrics):
    """Reports what this rank measured; with a step, also that the step is done.

    `tokens` are those of this step and rank, `total_steps` is the step at which training will end. Every other argument is
    a metric, up to 64; names that aren't Python's are passed as `report(step, **{"eval/f1": 0.9})`. Values are numbers or
    whatever `float()` takes, such as a tensor with one element (which waits for its device). NaN and infinities are kept.

    A TypeError or ValueError names the argument that can't be meant, inside a job or not.
    """
    message = {}
    for name, count in (("step", step), ("tokens", tokens), ("total_steps", total_steps)):
        if count is not None:
            message[name] = _count(name, count)
    if loss is not None:
        message["loss"] = _connection.loss = _number("loss", loss)
    if len(metrics) > METRICS_MAX:
        raise ValueError(f"report has {len(metrics)} metrics, more than {METRICS_MAX}: report some of them less often")
    values = {_named(name): _number(name, value) for name, value in metrics.items() if value is not None}
    if values:
        message["metrics"] = values
    if message and _connection.watch is not None:
        message = _connection.watch.completed(message)
    if message:
        _connection.has_reported = True
        _connection.say(message)
        tell_durable()


def saved(step, path):
    """Reports a checkpoint that the script has saved itself, with `torch.save` say: of which step, and its file or folder, whose
    size is told. It is durable by now: written aside, synced and renamed. One rank says it, once all have saved.

    Saves of this package's stores into `GANGLINE_CHECKPOINT_DIR` are reported without this call. A TypeError or ValueError
    names the argument that can't be meant, an OSError a path that isn't there, inside a job or not.
    """
    message = {"step": _count("step", step), "bytes": _size(path)}
    _connection.has_reported = True
    _connection.say({"checkpoint": message})


def _size(path):
    if not os.path.isdir(path):
        return os.stat(path).st_size
    files = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sum(os.lstat(file).st_size for file in files)


def watched_by(watch):
    """Has `report` complete the script's reports by what `watch` measures. The rank counts as computing from now on."""
    _connection.watch = watch
    _enter("compute")


def forget(watch):
    """Ends what `watched_by` began."""
    if _connection.watch is watch:
        _connection.watch = None


def is_in_job():
    """Reports whether there is a supervisor to report to."""
    return _connection._path is not None


def has_reported():
    """Reports whether this rank reports what it does."""
    return _connection.has_reported


def watching():
    """Returns what measures this rank's steps, if anything does."""
    return _connection.watch


def say_measured(message):
    """Reports what the script doesn't report itself."""
    _connection.say(message)
    tell_durable()


@contextlib.contextmanager
def measured_data():
    """Returns a context in whose block the wait for data is measured by somebody else than `data_phase`."""
    before, _connection.is_data_measured = _connection.is_data_measured, True
    try:
        yield
    finally:
        _connection.is_data_measured = before


class phase:
    """Says what this rank does from now on: `init`, `restore`, `data`, `compute`, `communication`, `straggler_wait`,
    `checkpoint` or `done`. Device time is booked by phase, and each step's seconds in each phase become metrics.

    As a context manager it returns to the phase before at the end of the block:

        with gangline.phase("data"):
            batch = next(batches)
    """

    def __init__(self, name):
        if name not in _PHASES:
            raise ValueError(f"there is no phase {name!r}: it is one of {', '.join(_PHASES)}")
        self._before = _connection.phase
        _enter(name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        _enter(self._before or "compute")


def _enter(name):
    _connection.phase = name
    _connection.has_reported = True
    _connection.say({"phase": name})


def data_phase(is_here):
    """Returns what books the time until a batch is here as `data`, in a rank that reports what it does; `is_here` tells whether
    nothing has to be waited for."""
    is_booked = _connection.phase == "data" or _connection.is_data_measured
    if not _connection.has_reported or is_booked or is_here():
        return contextlib.nullcontext()
    return phase("data")


def checkpoint_phase():
    """Returns a context in whose block a rank that reports its work is in the phase `checkpoint`: for the time that training
    waits for a save."""
    if not _connection.has_reported or _connection.phase == "checkpoint":
        return contextlib.nullcontext()
    return phase("checkpoint")


def note_save(save, folder, is_first_rank):
    """Notes a save, so that `tell_durable` reports it to the supervisor. Only the first rank's saves into the job's own
    checkpoint folder are noted: a job doesn't go on from a second store, such as one of its best models."""
    job_folder = os.environ.get("GANGLINE_CHECKPOINT_DIR")
    if job_folder and is_first_rank and os.path.realpath(folder) == os.path.realpath(job_folder):
        _connection.saves = [*_connection.saves[1 - _SAVES_MAX :], save]


def tell_durable():
    """Reports to the supervisor the noted saves that have become durable since the last call, if this rank reports its work.
    Never waits. A save that failed isn't reported: whoever asks for the save gets its error."""
    if not _connection.saves or not _connection.has_reported or os.getpid() != _connection._process:
        return
    with _connection._lock:
        ended = [save for save in _connection.saves if save.done()]
        _connection.saves = [save for save in _connection.saves if save not in ended]
    for saved in filter(None, (save.outcome() for save in ended)):
        _connection.say({"checkpoint": {"step": saved.step, "bytes": saved.bytes}})


def last_loss():
    """Returns the loss that this process reported last, inside of a job or not; None if it has reported none."""
    return _connection.loss


def stop_requested():
    """Returns the `StopRequest` if this rank is to save and stop, or None. In a gang let one rank ask and broadcast the
    answer, so that all stop after the same step."""
    return _connection.hear()


def _count(name, value):
    try:
        count = value.__index__()
    except (AttributeError, TypeError):
        raise TypeError(f"report: {name} is a {type(value).__qualname__}, not a whole number") from None
    if not 0 <= count <= _COUNT_MAX:
        raise ValueError(f"report: {name} is {count}, which is not between 0 and 2^53")
    return count


def _number(name, value):
    if isinstance(value, (str, bytes)):
        raise TypeError(f"report: {name} is a {type(value).__qualname__}, not a number")
    try:
        # A loss that gradients are computed of; torch warns of its conversion.
        return float(value.detach() if getattr(value, "requires_grad", False) else value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TypeError(f"report: {name} is not a number: {error}") from error


def is_name(name):
    """Reports whether a metric may have this name."""
    return bool(name) and len(name.encode()) <= _NAME_BYTES_MAX and all(ord(letter) >= 32 for letter in name) and not _is_ours(name)


def _is_ours(name):
    return name.startswith("gangline.")


def _named(name):
    if is_name(name):
        return name
    if not _is_ours(name):
        raise ValueError(f"report: the metric's name {name[:80]!r} is empty, too long, or has control characters")
    raise ValueError(f"report: the name {name!r} begins with \"gangline.\", which is kept for Gangline's own metrics")
