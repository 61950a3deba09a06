"""Tells Gangline what this process asks for of remote datasets: billed requests, retries included, and the bytes that come, by
address. The job's record has them (`gangline show --json`)."""

import atexit
import threading
import time
import weakref

from . import _report

# Seconds between two reports; the first is made at once, and the last at the process's end.
_INTERVAL = 5.0

_lock = threading.Lock()
_sums = {}
"""By address: GET, HEAD and LIST requests, and bytes, of all that this process has opened."""
_meters = weakref.WeakSet()
_told = {}


class Meter:
    """Counts what one reader of datasets asks for. `read` returns tuples of an address and its counts, which only grow."""

    def __init__(self, read):
        self._read = read
        self._counted = {}
        self._due = 0.0
        if _report.is_in_job():
            _meters.add(self)

    def look(self):
        """Reports what has come since the last look, if that was a while ago."""
        if self in _meters and time.monotonic() >= self._due:
            self._due = time.monotonic() + _INTERVAL
            self.count()
            _tell()

    def count(self):
        now = {}
        for address, *counts in self._read():
            now[address] = [one + other for one, other in zip(now.get(address, [0] * 4), counts, strict=True)]
        with _lock:
            for address, counts in now.items():
                before = self._counted.get(address, [0] * 4)
                sums = _sums.get(address, [0] * 4)
                _sums[address] = [sum + one - other for sum, one, other in zip(sums, counts, before, strict=True)]
            self._counted = now


def _tell():
    """Reports the sums if they changed, in a process that reports what it does: others are booked from outside."""
    if _sums == _told or not _report.has_reported():
        return
    with _lock:
        _told.update(_sums)
        names = ("get", "head", "list", "bytes")
        message = {address: dict(zip(names, counts, strict=True)) for address, counts in _sums.items()}
    _report.say_measured({"datasets": message})


@atexit.register
def _at_end():
    for meter in list(_meters):
        meter.count()
    _tell()
