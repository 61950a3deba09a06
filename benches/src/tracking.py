"""Measures one tracking server over HTTP, as `bench tracking` asks: prints a line of JSON.

Usage: python tracking.py URI fill POINTS, then python tracking.py URI ask RUNS. The token, if one is needed, is in MLFLOW_TRACKING_TOKEN. Batches go over raw
connections of several processes, so that the server is measured and not MLflow's client; `log-metric` goes through that client.
"""

import http.client
import json
import multiprocessing
import os
import socket
import statistics
import sys
import time
import urllib.parse

T0 = 1_760_000_000_000
BATCH = 1000
METRICS = 10
CLIENTS = 4


class Server:
    def __init__(self, uri):
        self.connection = http.client.HTTPConnection(urllib.parse.urlparse(uri).netloc, timeout=600)
        token = os.environ.get("MLFLOW_TRACKING_TOKEN")
        self.headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def call(self, method, path, body=None):
        body = json.dumps(body).encode() if isinstance(body, dict) else body
        try:
            return self.send(method, path, body)
        except (BrokenPipeError, ConnectionResetError, http.client.RemoteDisconnected):
            # A server may end a connection that nobody used for a while.
            self.connection.close()
            return self.send(method, path, body)

    def send(self, method, path, body):
        self.connection.request(method, f"/api/2.0/mlflow/{path}", body, self.headers)
        if "ACKNOWLEDGES_AT_ONCE" in os.environ:
            self.connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        answer = self.connection.getresponse()
        content = answer.read()
        assert answer.status == 200, (answer.status, content[:500])
        return content

    def experiment(self, name):
        return json.loads(self.call("POST", "experiments/create", {"name": name}))["experiment_id"]

    def run(self, experiment, start):
        made = self.call("POST", "runs/create", {"experiment_id": experiment, "start_time": T0 + start, "run_name": f"r{start}"})
        return json.loads(made)["run"]["info"]["run_id"]


def batches(run, points):
    """Bodies of batches: `METRICS` metrics of `BATCH / METRICS` steps each."""
    for first in range(0, points // METRICS, BATCH // METRICS):
        metrics = [
            {"key": f"m{metric}", "value": (metric + 1) / (step + 1), "timestamp": T0 + 350 * step, "step": step}
            for step in range(first, first + BATCH // METRICS)
            for metric in range(METRICS)
        ]
        yield json.dumps({"run_id": run, "metrics": metrics}).encode()


def fill(arguments):
    """Logs the batches of some runs; returns how long each took. The bodies are ready before the clock runs."""
    uri, runs, points = arguments
    server, took = Server(uri), []
    for run in runs:
        bodies = list(batches(run, points))
        for body in bodies:
            begun = time.perf_counter()
            server.call("POST", "runs/log-batch", body)
            took.append(time.perf_counter() - begun)
    return took


def median_ms(call, times):
    call()
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        took.append(time.perf_counter() - begun)
    return 1000 * statistics.median(took)


def client_ms(uri, run):
    """`log_metric` of MLflow's own client, in milliseconds."""
    from mlflow import MlflowClient

    client, steps = MlflowClient(uri), iter(range(1_000_000))
    return median_ms(lambda: client.log_metric(run, "one", 0.5, step=next(steps), synchronous=True), 100)


def many_runs(server, count):
    """Thousands of runs with a metric, a parameter and a tag each, which are then filtered and sorted."""
    experiment = server.experiment("many")
    for index in range(count):
        run = server.run(experiment, index)
        metrics = [{"key": key, "value": (index * 7919 % 1000) / 1000, "timestamp": T0, "step": 1} for key in ("loss", "acc")]
        params = [{"key": "lr", "value": str(index % 5)}]
        server.call("POST", "runs/log-batch", {"run_id": run, "metrics": metrics, "params": params})
    search = {"experiment_ids": [experiment], "max_results": 100, "order_by": ["metrics.loss ASC"], "filter": "params.lr = '3' AND metrics.acc > 0.2"}
    return median_ms(lambda: server.call("POST", "runs/search", search), 5)


def fill_all(uri, points):
    server, count = Server(uri), 100
    experiment = server.experiment("filled")
    runs = [server.run(experiment, index) for index in range(count)]
    with multiprocessing.Pool(CLIENTS) as pool:
        took = pool.map(fill, [(uri, runs[index::CLIENTS], points // count) for index in range(CLIENTS)])
    # A client's own work isn't the server's: what each waits for answers counts.
    return {"metrics_per_second": points / max(sum(one) for one in took)}


def ask_all(uri, many):
    server = Server(uri)
    experiment = json.loads(server.call("GET", "experiments/get-by-name?experiment_name=filled"))["experiment"]["experiment_id"]
    ids = {"experiment_ids": [experiment]}
    found = json.loads(server.call("POST", "runs/search", ids))["runs"]
    runs = [run["info"]["run_id"] for run in found]
    bulk = "&".join(["metric_key=m1", "max_results=320", *[f"run_ids={run}" for run in runs]])
    return {
        "log_metric_ms": client_ms(uri, runs[0]),
        "search_ms": median_ms(lambda: server.call("POST", "runs/search", ids), 5),
        "bulk_ms": median_ms(lambda: server.call("GET", f"metrics/get-history-bulk-interval?{bulk}"), 3),
        "many_ms": many_runs(server, many) if many else None,
    }


if __name__ == "__main__":
    uri, part, count = sys.argv[1:]
    print(json.dumps({"fill": fill_all, "ask": ask_all}[part](uri, int(count))))
