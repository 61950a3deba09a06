"""Tells Gangline what this process asks for of remote datasets: billed requests, retries included, and the bytes that come, by
address. The job's record has them (`gangline show --json`)."""

import atexit
import threading
import time
import weakref

from . import _report

# Seconds between two reports; the first is made at once, others at the end of a pass over the data and of the process.
_INTERVAL = 5.0

# Reentrant: the garbage collector may end a reader at any time.
_lock = threading.RLock()
_COUNTS = ("get", "head", "list", "failed", "bytes")
"""GET, HEAD and LIST requests, those that failed, and bytes."""
_NOTHING = [0] * len(_COUNTS)
_sums = {}
"""The counts, by address, of all that this process has opened."""
_told = {}
_meters = weakref.WeakKeyDictionary()
"""The meter of each open reader of datasets."""
_due = 0.0


class _Meter:
    """What one reader asks for. `read` returns tuples of an address and counts, which only grow; it doesn't keep the reader."""

    def __init__(self, read):
        self._read, self._counted = read, {}

    def count(self):
        """Adds to the sums what was asked for since the last call."""
        now = {}
        for address, *counts in self._read():
            now[address] = [one + other for one, other in zip(now.get(address, _NOTHING), counts, strict=True)]
        with _lock:
            for address, counts in now.items():
                before, sums = self._counted.get(address, _NOTHING), _sums.get(address, _NOTHING)
                _sums[address] = [sum + one - other for sum, one, other in zip(sums, counts, before, strict=True)]
            self._counted = now


def note(reader, read):
    """Has a reader's requests counted from now on, in a job, also when nobody refers to it any more."""
    if _report.is_in_job():
        _meters[reader] = meter = _Meter(read)
        weakref.finalize(reader, meter.count)


def look(is_last=False):
    """Reports what all readers have asked for, if the last report was a while ago or one of them came to the end of a pass."""
    global _due
    # A rank that reports nothing else is booked from outside, and says nothing of this.
    if _report.has_reported() and (is_last or time.monotonic() >= _due):
        _due = time.monotonic() + _INTERVAL
        _count_and_tell()


def _count_and_tell():
    for meter in list(_meters.values()):
        meter.count()
    if _sums == _told or not _report.has_reported():
        return
    with _lock:
        _told.update(_sums)
        message = {address: dict(zip(_COUNTS, counts, strict=True)) for address, counts in _sums.items()}
    _report.say_measured({"datasets": message})


atexit.register(_count_and_tell)
