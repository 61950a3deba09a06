"""What other coders make of the same bytes, for `cargo xtask bench coding`.

Usage: peers.py CHECKPOINT KIND... A line of the output is kind, peer, coded bytes per raw byte, and gigabytes of raw data that one
core codes and decodes in a second (CPU time of all threads, so that other work on the machine hardly counts).
"""

import pathlib
import sys
import time

import lz4.frame
import zipnn
import zstandard

BLOCK = 1 << 20
BYTES_MAX = 48 << 20


def blocks_of(folder, kind):
    data = (folder / "data.bin").read_bytes()
    lines = [line.split("\t") for line in (folder / "index.tsv").read_text().splitlines()]
    found = b"".join(data[int(o) : int(o) + int(n)] for k, _, o, n, *_ in lines if k == kind)[:BYTES_MAX]
    element = next(e for k, e, *_ in lines if k == kind)
    return element, [found[start : start + BLOCK] for start in range(0, len(found), BLOCK)]


def peers_of(element):
    for level in (1, 3):
        encoder, decoder = zstandard.ZstdCompressor(level), zstandard.ZstdDecompressor()
        yield f"zstd-{level}", encoder.compress, decoder.decompress
    yield "lz4", lz4.frame.compress, lz4.frame.decompress
    znn = zipnn.ZipNN(bytearray_dtype={"bf16": "bfloat16", "f32": "float32"}[element], input_format="byte")
    # It writes into its input, so it gets a copy, whose making isn't counted.
    yield "zipnn", znn.compress, znn.decompress


def rate(call, inputs):
    outputs, seconds = [], 0.0
    for block in inputs:
        mine = bytes(bytearray(block))
        begin = time.process_time()
        outputs.append(call(mine))
        seconds += time.process_time() - begin
    return outputs, seconds


def main(folder, kinds):
    for kind in kinds:
        element, blocks = blocks_of(folder, kind)
        total = sum(map(len, blocks))
        for name, encode, decode in peers_of(element):
            coded, encoding = rate(encode, blocks)
            back, decoding = rate(decode, [bytes(c) for c in coded])
            assert all(bytes(b) == block for b, block in zip(back, blocks)), name
            size = sum(map(len, coded)) / total
            print(kind, name, f"{size:.4f}", f"{total / encoding / 1e9:.3f}", f"{total / decoding / 1e9:.3f}", sep="\t")


main(pathlib.Path(sys.argv[1]), sys.argv[2:])
