"""A store backed by an archive: saves stay in a folder of this machine until they are archived, and
checkpoints that this machine lacks are fetched from the archive."""

import hashlib
import os
import pathlib
import warnings

from .errors import ArchiveFailedWarning, Refused, Unreachable

_HASH_DIGITS = 16


def is_address(path: str | os.PathLike[str]) -> bool:
    """Reports whether a store's path is an archive's address: s3://bucket/prefix or file:///folder."""
    return "://" in os.fspath(path)


def folder_of(address: str) -> str:
    """Returns the folder on this machine for an archive's checkpoints: below GANGLINE_CACHE_DIR, or else
    the user's cache folder."""
    name = hashlib.blake2b(address.rstrip("/").encode()).hexdigest()[:_HASH_DIGITS]
    folder = cache_folder("checkpoints") / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return str(folder)


def cache_folder(name: str) -> pathlib.Path:
    """Returns the folder of this name below GANGLINE_CACHE_DIR, or else the user's cache folder."""
    own = os.environ.get("GANGLINE_CACHE_DIR")
    base = pathlib.Path(own) if own else pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "gangline"
    return base / name


def refuse_address(path: str | os.PathLike[str]) -> None:
    """Refuses an address for a store of several ranks, which communicate through a folder."""
    if is_address(path):
        raise Refused(f"open {path} for several ranks: give a folder that all of them see, and archive={os.fspath(path)!r}")


class Remote:
    """The archive behind a store."""

    def __init__(self, native, place):
        self.place = place
        self._native = native

    def steps(self):
        """Returns the steps of its whole checkpoints, in order."""
        return self._native.archive_steps(self.place)

    def info(self, step):
        """Returns the content of a checkpoint's manifest, as JSON."""
        return self._native.archive_info(step, self.place)

    def fetch(self, step):
        """Fetches a checkpoint that only the archive has; without a step the newest, if it was saved after
        the local ones."""
        here = [listed[0] for listed in self._native.list()]
        if step is not None:
            if step not in here:
                self._native.pull(step, self.place)
            return
        try:
            self._native.pull_newer(self.place)
        except Unreachable as error:
            if not here:
                raise
            text = f"{self.place[0]} can't be asked, so the newest checkpoint of this machine is taken: {error}"
            warnings.warn(text, ArchiveFailedWarning, stacklevel=4)


def place(address, rate, key_file=None):
    """Returns an archive's address and settings, as the native store takes them."""
    # A job's requests are noted, and what its archives hold.
    ours = ("HOME", "GANGLINE_DATA_READS")
    is_setting = lambda name, value: (name.startswith("AWS_") or name in ours) and value.isascii()  # noqa: E731
    settings = {name: value for name, value in os.environ.items() if is_setting(name, value)}
    key_file = key_file or os.environ.get("GANGLINE_ARCHIVE_KEY_FILE") or None
    return os.fspath(address), settings, rate, None if key_file is None else os.fspath(key_file)
