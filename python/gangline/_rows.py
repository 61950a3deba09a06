"""`gangline.Rows`: batches of records that aren't tokens, in the same order and with the same positions as gangline.Tokens."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import _native
from ._order import Ordered, absolute, cache_of, one_of, options_of
from ._records import open_records

Path = str | os.PathLike[str]


class Rows(Ordered):
    """Iterates over batches of records: one rank's rows of each global batch, as a list.

        def encode(record):
            return tokenizer.apply_chat_template(record["messages"], return_dict=True)

        for records in gangline.Rows("chats.jsonl", global_batch=64, seed=1, transform=encode):
            batch = collate(records)

    source: a file or folder of records, or several by name, to be mixed. Read are jsonl (a dict for each line), WebDataset's
        tar (a dict for each key, of the bytes of its files by the ends of their names, and "__key__"), Hugging Face's
        `save_to_disk` folders, Arrow files and parquet (a dict for each row; these need pyarrow). jsonl and tar may be
        compressed by gzip or zstd. Or s3://bucket/folder of those, or https://host/file.jsonl.
    transform: what makes of a record what the batch holds, such as a chat template and a tokenizer. It is called once for
        each record of this rank, in order.
    collate: what makes a batch of the list.
    unpacked: the folder in which compressed files are unpacked; every process that reads them finds them there
        [default: a folder for temporary files that is removed with this process].
    cache, cache_limit: as of gangline.Tokens.

    The other options are those of gangline.Tokens. So are the promises: global batch k is the same records in the same order
    at any number of ranks; a gangline.Store takes it as it is, and goes on behind the batches that were given. What
    `transform` draws at random is its own affair. Raises NotFound, Corrupt or Refused.
    """

    def __init__(
        self,
        source: Path | Mapping[str, Path],
        *,
        global_batch: int,
        seed: int = 0,
        shuffle: str = "global",
        transform: Callable[[Any], Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        weights: Mapping[str, float] | Sequence[tuple[int, Mapping[str, float]]] | None = None,
        held_out: int | None = None,
        part: str = "training",
        epochs: int | None = 1,
        rank: int | None = None,
        world_size: int | None = None,
        unpacked: Path | None = None,
        cache: Path | None = None,
        cache_limit: int | None = None,
    ) -> None:
        sources = dict(source) if isinstance(source, Mapping) else {"": source}
        one_of("shuffle", shuffle, ("blocks", "global", "none"))
        self.rank, self.world_size, options = options_of(
            sources, rank, world_size, global_batch=global_batch, seed=seed, shuffle=shuffle, weights=weights,
            held_out=held_out, part=part, epochs=epochs,
        )  # fmt: skip
        # What was fetched stays in the cache as long as this refers to it.
        self._fetched, paths = [], []
        for path in map(os.fspath, sources.values()):
            if "://" in path:
                self._fetched.append(_native.fetch(path, cache_of(cache, cache_limit)))
                path = self._fetched[-1].path()
            paths.append(path)
        self._records = [open_records(path, unpacked) for path in paths]
        counts = [len(records) for records in self._records]
        content = hashlib.sha256(b"".join(records.id for records in self._records)).digest()[:16]
        ids = [f"{records.id.hex()} (of sizes and ends of files)" for records in self._records]
        places = [absolute(os.fspath(path)) for path in sources.values()]
        super().__init__(list(sources), _native.Records(counts, content, options), places, ids, options)
        self._transform, self._collate = transform, collate
        self._last = []

    def next_batch(self) -> Any:
        """Returns the next batch, without regard to passes."""
        with self._lock:
            self._leave_out()
            before = self._native.state()
            taken = self._native.next()
            try:
                records = [self._records[source][number] for source, _, number in taken]
                made = records if self._transform is None else [self._transform(record) for record in records]
                batch = made if self._collate is None else self._collate(made)
            except BaseException:
                # The batch wasn't given: the next call tries it again.
                self._native.restore(before, True)
                raise
            self._last = taken
            return batch

    @property
    def samples(self) -> list[tuple[str, int, int]]:
        """The name of the source (empty if there is one), the epoch and the number of each record of the last batch."""
        return [(self._names[source], epoch, number) for source, epoch, number in self._last]

    @property
    def sizes(self) -> dict[str, int]:
        """The records of each source in the part that is read."""
        return dict(zip(self._names, self._native.counts(), strict=True))
