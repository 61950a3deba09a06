"""Readers of records by number: jsonl, tar, Arrow, parquet. Each has a length, and an id made of its files' names' ends, sizes
and content at both ends, wherever they lie."""

import bisect
import hashlib
import json
import mmap
import os
import pathlib
import tarfile
import tempfile
import weakref

import numpy

from . import _native
from .errors import Changed, Corrupt, NotFound, Refused

# Bytes of a file's beginning and of its end that are taken into an id.
ID_BYTES = 4096
# What is searched for the ends of lines at once.
SEARCHED_BYTES = 64 << 20
# A line or a member of a tar is at most so long.
RECORD_BYTES_MAX = 256 << 20
FILES_MAX = 100_000
TAR_BLOCK = 512
# Row groups of a parquet file that stay decoded.
DECODED_MAX = 16
COMPRESSED = (".gz", ".zst", ".zstd")
KINDS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".tar": "tar", ".arrow": "arrow", ".parquet": "parquet"}


def open_records(path, cache=None):
    """Opens a file, or all files of records in a folder, in the order of their names."""
    path = pathlib.Path(path)
    if not path.exists():
        raise NotFound(f"find records at {path}: no such file or folder")
    files = _of_saved(path) if path.is_dir() else [path]
    kinds = {kind for file in files if (kind := _kind(file)) is not None}
    files = [file for file in files if _kind(file) is not None]
    if not files:
        raise NotFound(f"find records at {path}: no file whose name ends with {', '.join(KINDS)}, also with .gz or .zst")
    if len(kinds) > 1:
        raise Refused(f"read {path}: its files are of several kinds ({', '.join(sorted(kinds))}): keep them in folders of their own")
    if len(files) > FILES_MAX:
        raise Refused(f"read {path}: it has more than {FILES_MAX} files")
    made = {"jsonl": _Jsonl, "tar": _Tar, "arrow": _Arrow, "parquet": _Parquet}[kinds.pop()]
    return _Joined([made(_unpacked(file, cache), file) for file in files])


def _of_saved(folder):
    """The files of a folder; of one that `datasets` saved, those that its state names, in its order."""
    state = folder / "state.json"
    if not state.exists():
        return sorted(file for file in folder.iterdir() if file.is_file())
    try:
        named = [file["filename"] for file in json.loads(state.read_bytes())["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"read {state}: it names no files of data: {error!r}") from None
    if any(not isinstance(name, str) or pathlib.PurePath(name).name != name for name in named):
        raise Corrupt(f"read {state}: a file of data is outside of the folder")
    return [folder / name for name in named]


def _kind(path):
    name = path.name
    for end in COMPRESSED:
        name = name.removesuffix(end)
    return KINDS.get(pathlib.PurePath(name).suffix)


def _unpacked(path, cache):
    """The file itself, or what it holds uncompressed, which is in a cache once for all processes."""
    if not path.name.endswith(COMPRESSED):
        return path
    if cache is None:
        folder = tempfile.TemporaryDirectory(prefix="gangline-rows-")
        to = pathlib.Path(_native.unpacked(path, folder.name))
        _KEPT[to] = folder
        return to
    return pathlib.Path(_native.unpacked(path, cache))


# Folders that are removed at the end of the process.
_KEPT = {}


class _Mapped:
    """A file in memory, as it was when it was opened."""

    def __init__(self, path, name):
        self.name, self.file = name, open(path, "rb")
        weakref.finalize(self, self.file.close)
        status = os.fstat(self.file.fileno())
        self.size, self.modified = status.st_size, status.st_mtime_ns
        self.bytes = mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ) if self.size else b""
        ends = self.bytes[:ID_BYTES] + self.bytes[max(0, self.size - ID_BYTES) :]
        self.id = hashlib.sha256(self.size.to_bytes(8, "little") + ends).digest()

    def read(self, start, end):
        """Returns bytes; reads the file anew, so that one that was cut short is an error and not the process's end."""
        read = os.pread(self.file.fileno(), end - start, start)
        status = os.fstat(self.file.fileno())
        if len(read) != end - start or (status.st_size, status.st_mtime_ns) != (self.size, self.modified):
            raise Changed(f"read {self.name}: it had {self.size} bytes when it was opened and was changed since; open it again")
        return read


class _Jsonl:
    """Lines that are JSON; those of spaces are no records."""

    def __init__(self, path, name):
        self.file = _Mapped(path, name)
        self.id = self.file.id
        found = [numpy.zeros(1, numpy.int64)]
        for start in range(0, self.file.size, SEARCHED_BYTES):
            part = numpy.frombuffer(self.file.bytes[start : start + SEARCHED_BYTES], numpy.uint8)
            found.append(numpy.flatnonzero(part == ord("\n")) + start + 1)
        ends = numpy.concatenate(found)
        if ends[-1] != self.file.size:
            ends = numpy.append(ends, self.file.size)
        lines = numpy.stack([ends[:-1], ends[1:]], 1)
        # Short lines may be empty; long ones are looked at when they are read.
        short = numpy.flatnonzero(lines[:, 1] - lines[:, 0] < 64)
        empty = [at for at in short if not self.file.bytes[lines[at, 0] : lines[at, 1]].strip()]
        self.numbers = numpy.delete(numpy.arange(len(lines)), empty)
        self.lines = lines[self.numbers]
        longest = int((self.lines[:, 1] - self.lines[:, 0]).max(initial=0))
        if longest > RECORD_BYTES_MAX:
            raise Corrupt(f"read {name}: a line has {longest} bytes, more than {RECORD_BYTES_MAX}")

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, number):
        start, end = self.lines[number].tolist()
        try:
            return json.loads(self.file.read(start, end))
        except ValueError as error:
            raise Corrupt(f"read {self.file.name} at byte {start}: line {self.numbers[number] + 1}: it is no JSON: {error}") from None


class _Tar:
    """WebDataset's samples: the files of neighbouring names that are the same up to the first dot of their last part."""

    def __init__(self, path, name):
        self.file = _Mapped(path, name)
        self.id = self.file.id
        self.samples, end = [], 0
        try:
            with tarfile.open(path, "r:") as tar:
                for member in tar:
                    end = member.offset_data + -(-member.size // TAR_BLOCK) * TAR_BLOCK
                    if member.isfile():
                        self.add(member)
        except (tarfile.TarError, EOFError) as error:
            raise Corrupt(f"read {name}: no tar file, or cut off: {error}") from None
        # tarfile takes a header that is cut off for the end.
        if self.file.bytes[end : end + TAR_BLOCK] != bytes(TAR_BLOCK):
            raise Corrupt(f"read {name} at byte {end}: no block of zeros ends it: cut off")

    def add(self, member):
        folder, slash, base = member.name.rpartition("/")
        stem, dot, end = base.partition(".")
        if not dot or not stem:
            return
        if member.offset_data + member.size > self.file.size or member.size > RECORD_BYTES_MAX:
            raise Corrupt(f"read {self.file.name} at byte {member.offset}: {member.name} has {member.size} bytes, which aren't there")
        key = folder + slash + stem
        if not self.samples or self.samples[-1][0] != key:
            self.samples.append((key, {}))
        parts = self.samples[-1][1]
        if end in parts:
            raise Corrupt(f"read {self.file.name} at byte {member.offset}: {member.name} is there twice")
        parts[end] = (member.offset_data, member.offset_data + member.size)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, number):
        key, parts = self.samples[number]
        return {"__key__": key} | {end: self.file.read(*place) for end, place in parts.items()}


class _Arrow:
    """Record batches of an Arrow file, or of a stream as `datasets` writes it."""

    def __init__(self, path, name):
        arrow = _pyarrow(name)
        self.name, self.id = name, _Mapped(path, name).id
        source = arrow.memory_map(str(path))
        try:
            with source:
                is_file = source.read(6) == b"ARROW1"
                source.seek(0)
                opened = arrow.ipc.open_file(source) if is_file else arrow.ipc.open_stream(source)
                self.batches = list(map(opened.get_batch, range(opened.num_record_batches))) if is_file else list(opened)
        except (arrow.ArrowInvalid, OSError) as error:
            raise Corrupt(f"read {name}: no Arrow file or stream: {error}") from None
        self.ends = numpy.cumsum([batch.num_rows for batch in self.batches]).tolist()

    def __len__(self):
        return self.ends[-1] if self.ends else 0

    def __getitem__(self, number):
        at = bisect.bisect_right(self.ends, number)
        inside = number - (self.ends[at - 1] if at else 0)
        return self.batches[at].slice(inside, 1).to_pylist()[0]


class _Parquet:
    """Row groups of a parquet file, of which those read last stay decoded."""

    def __init__(self, path, name):
        arrow = _pyarrow(name)
        import pyarrow.parquet

        self.name, self.id = name, _Mapped(path, name).id
        try:
            self.file = pyarrow.parquet.ParquetFile(path)
        except (arrow.ArrowInvalid, OSError) as error:
            raise Corrupt(f"read {name}: no parquet file: {error}") from None
        groups = range(self.file.num_row_groups)
        self.ends = numpy.cumsum([self.file.metadata.row_group(at).num_rows for at in groups]).tolist()
        self.decoded = {}

    def __len__(self):
        return self.ends[-1] if self.ends else 0

    def __getitem__(self, number):
        at = bisect.bisect_right(self.ends, number)
        group = self.decoded.pop(at, None)
        if group is None:
            if len(self.decoded) == DECODED_MAX:
                del self.decoded[next(iter(self.decoded))]
            group = self.file.read_row_group(at)
        self.decoded[at] = group
        inside = number - (self.ends[at - 1] if at else 0)
        return group.slice(inside, 1).to_pylist()[0]


class _Joined:
    """The records of files, one file after the other."""

    def __init__(self, parts):
        self.parts, self.ends = parts, numpy.cumsum([len(part) for part in parts]).tolist()
        self.id = hashlib.sha256(b"".join(part.id for part in parts)).digest()

    def __len__(self):
        return self.ends[-1]

    def __getitem__(self, number):
        at = bisect.bisect_right(self.ends, number)
        return self.parts[at][number - (self.ends[at - 1] if at else 0)]


def _pyarrow(name):
    try:
        import pyarrow
    except ModuleNotFoundError:
        raise Refused(f"read {name}: Arrow and parquet need pyarrow: pip install pyarrow, or write jsonl") from None
    return pyarrow
