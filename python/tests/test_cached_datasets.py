"""Jobs that read a remote dataset: the node's cache is known to the platform, the next job goes where the data is, and each job's
record has the requests that were sent for it, as many as the server counts."""

import collections
import http.server
import pathlib
import re
import threading

import numpy
import pytest

from test_jobs import BINARY, Plane

pytestmark = pytest.mark.skipif(not BINARY, reason="GANGLINE_BINARY names no gangline binary: run cargo xtask python")

BYTES = 20 << 20
READER = """
import sys, gangline
gangline.phase("compute")
tokens = gangline.Tokens(sys.argv[1], sequence_length=1024, global_batch=64, source_dtype="uint16", kind="numpy")
for _ in tokens:
    gangline.report(tokens.steps)
"""

SILENT = """
import os, signal, sys, gangline
tokens = gangline.Tokens(sys.argv[1], sequence_length=1024, global_batch=64, source_dtype="uint16", kind="numpy")
for _ in tokens:
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves one object with ranges, and counts the requests and the bytes for it."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.answer("head", 200, b"", len(self.server.content))

    def do_GET(self):
        first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
        part = self.server.content[first : last + 1]
        self.answer("get", 206, part, len(part), f"bytes {first}-{first + len(part) - 1}/{len(self.server.content)}")

    def answer(self, kind, status, part, length, of=None):
        self.server.counted.update({kind: 1, "bytes": len(part)})
        self.send_response(status)
        self.send_header("ETag", '"one"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(length))
        if of:
            self.send_header("Content-Range", of)
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.content = numpy.random.default_rng(1).integers(0, 1 << 16, BYTES // 2, numpy.uint16).tobytes()
    server.counted = collections.Counter()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def plane(tmp_path):
    plane = Plane(tmp_path, ["a=cpu:2", "b=cpu:2"])
    yield plane
    plane.close()


def test_a_job_goes_where_its_data_is_and_its_requests_are_the_servers(plane, server, tmp_path):
    url = f"http://127.0.0.1:{server.server_port}/tokens.bin"
    (tmp_path / "reader.py").write_text(READER)
    blocker = plane.submit("blocker", 'resources: {accelerators: "cpu:2"}\nrun: sleep 600\n')
    plane.until(lambda: plane.ask("show", blocker)["state"] == "running", "the blocker runs")

    def reader(name, cache):
        text = f'resources: {{accelerators: "cpu:2"}}\ndatasets: ["{url}"]\nenvs: {{GANGLINE_DATA_CACHE: "{tmp_path / cache}"}}\n'
        job = plane.submit(name, f"{text}run: python {tmp_path / 'reader.py'} {url}\n")
        shown = plane.ended(job)
        assert shown["state"] == "succeeded", plane.printed(job)
        return shown

    first = reader("first", "cache")
    (reads,) = first["dataset_reads"]
    nowhere = {"in_region_bytes": 0, "cross_region_bytes": 0}
    expected = {"dataset": url, "list": 0, "put": 0, "failed": 0, **server.counted, **nowhere}
    assert reads == expected, "two ranks fetch it once, and look at it once"
    # Three ranges, and the object's beginning, which says what it is.
    assert (reads["get"], reads["head"], reads["bytes"] - BYTES) == (4, 1, 16384)
    bill = plane.ask("cost", "show", first["id"])["total"]
    assert (bill["requests"], bill["unpriced_requests"], bill["bytes_read"]) == (5, 5, reads["bytes"]), "nobody gave a price"
    assert f"data         20.0 MiB of {url} fetched by 5 requests (measured)" in plane.run("show", first["id"]).stdout

    def held(node):
        (found,) = (found for found in plane.ask("nodes")["nodes"] if found["name"] == node)
        return found.get("cached_datasets", [])

    assert held("b") == [{"dataset": url, "here_bytes": BYTES, "bytes": BYTES}] and held("a") == []
    assert re.search(rf"{re.escape(url)} +20.0 MiB +20.0 MiB", plane.run("nodes", "b").stdout)
    plane.run("cancel", blocker)
    plane.ended(blocker)

    second = reader("second", "cache")
    assert second["attempts"][0]["shares"][0]["node"] == "b", "a is as free, and comes first"
    assert second["attempts"][0]["placed_because"].endswith("; 20.0 MiB of its datasets are there")
    assert (second["dataset_reads"][0]["get"], server.counted["get"]) == (0, 4), "everything was there"

    # A cache that somebody removed is known to be empty after the next job that looks there.
    for file in sorted((tmp_path / "cache").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    idle = f'resources: {{accelerators: "cpu:2"}}\ndatasets: ["{url}"]\nenvs: {{GANGLINE_DATA_CACHE: "{tmp_path / "cache"}"}}\nrun: "true"\n'
    assert plane.ended(plane.submit("idle", idle))["attempts"][0]["shares"][0]["node"] == "b"
    plane.until(lambda: held("b") == [], "the cache is known to be gone")
    assert pathlib.Path(tmp_path / "cache").exists()

    # A rank that reports nothing, and is killed, has said all the same what it asked for.
    (tmp_path / "silent.py").write_text(SILENT)
    before = collections.Counter(server.counted)
    silent = f'recovery: {{max_faults: 0}}\nenvs: {{GANGLINE_DATA_CACHE: "{tmp_path / "elsewhere"}"}}\n'
    killed = plane.ended(plane.submit("silent", f"{silent}run: python {tmp_path / 'silent.py'} {url}\n"))
    asked = {"dataset": url, "list": 0, "put": 0, "failed": 0, **(server.counted - before), **nowhere}
    assert (killed["state"], killed["dataset_reads"]) == ("failed", [asked])
