"""A session of MLflow's unmodified client against one server, whose answers are written down as JSON.

The same session runs against `mlflow server` and against Gangline; test_mlflow.py compares what they answered. Ids, times and
addresses differ between any two servers, so each is written as a name in the order in which it was first seen.

Usage: python mlflow_session.py URI OUTPUT
"""

import json
import math
import pathlib
import re
import sys
import tempfile

import mlflow
import numpy as np
import requests
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelOutput, LoggedModelParameter, Metric, Param, RunTag, ViewType
from mlflow.exceptions import MlflowException
from mlflow.tracking._tracking_service.utils import _get_store

T0 = 1_760_000_000_000


class Transcript:
    def __init__(self, uri):
        self.uri, self.names, self.steps = uri, {}, []

    def plain(self, value):
        """Returns a value as JSON, with ids, times and addresses by name."""
        if isinstance(value, float) and not math.isfinite(value):
            return repr(value)
        if value is None or isinstance(value, bool | int | float):
            # Times that the servers take themselves; the session's own are older.
            return "TIME" if isinstance(value, int) and value > 1_763_000_000_000 else value
        if isinstance(value, str):
            value = value.replace(self.uri, "URI")
            # Names that a server makes up.
            value = re.sub(r"^[a-z]+-[a-z]+-\d+$", "NAME", value)
            return re.sub(r"m-[0-9a-f]{32}|[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", self.name, value)
        if isinstance(value, dict):
            return {self.plain(key): self.plain(item) for key, item in sorted(value.items())}
        if isinstance(value, list | tuple | set):
            listed = [self.plain(item) for item in value]
            # Entries have no order.
            is_of_entries = listed and all(isinstance(item, dict) and {"key", "value"} <= item.keys() for item in listed)
            is_history = is_of_entries and len({item["key"] for item in listed}) < len(listed)
            return sorted(listed, key=lambda item: item["key"]) if is_of_entries and not is_history else listed
        if hasattr(value, "to_proto"):
            from mlflow.utils.proto_json_utils import message_to_json

            return self.plain(json.loads(message_to_json(value.to_proto())))
        if hasattr(value, "to_dictionary"):
            return self.plain(value.to_dictionary())
        if hasattr(value, "__dict__"):
            return self.plain({key.lstrip("_"): item for key, item in vars(value).items()})
        return str(value)

    def name(self, match):
        return self.names.setdefault(match[0], f"ID{len(self.names)}")

    def step(self, name, call):
        """Calls, and writes down the answer or the error; returns the answer."""
        name = self.plain(name)
        try:
            answer = call()
        except MlflowException as error:
            self.steps.append({"step": name, "error": error.error_code, "message": self.plain(error.message)})
            return None
        self.steps.append({"step": name, "answer": self.plain(answer)})
        return answer


def experiments(t, client):
    step = t.step
    step("default experiment", lambda: client.get_experiment("0"))
    made = step("create experiment", lambda: client.create_experiment("vision", tags={"team": "a", "note": "ä/ö"}))
    step("create experiment again", lambda: client.create_experiment("vision"))
    step("create experiment without name", lambda: client.create_experiment(""))
    step("create experiment, long name", lambda: client.create_experiment("x" * 501))
    step("create experiment elsewhere", lambda: client.create_experiment("elsewhere", artifact_location="s3://bucket/a"))
    step("get experiment", lambda: client.get_experiment(made))
    step("get experiment by name", lambda: client.get_experiment_by_name("vision"))
    step("get no experiment by name", lambda: client.get_experiment_by_name("nothing"))
    step("get no experiment", lambda: client.get_experiment("987"))
    step("get experiment, bad id", lambda: client.get_experiment("abc"))
    step("set tag", lambda: client.set_experiment_tag(made, "k", "v"))
    step("set tag, bad key", lambda: client.set_experiment_tag(made, "../k", "v"))
    step("delete tag", lambda: client.delete_experiment_tag(made, "k"))
    step("delete no tag", lambda: client.delete_experiment_tag(made, "k"))
    step("rename", lambda: client.rename_experiment(made, "vision2"))
    step("delete", lambda: client.delete_experiment(made))
    step("delete again", lambda: client.delete_experiment(made))
    step("rename deleted", lambda: client.rename_experiment(made, "vision3"))
    step("run in deleted", lambda: client.create_run(made, start_time=T0))
    step("restore", lambda: client.restore_experiment(made))
    for filter_string in [
        None, "name = 'vision2'", "name LIKE 'vis%'", "name ILIKE 'VIS%'", "name LIKE 'VIS%'", "tags.team = 'a'", "tags.team != 'a'",
        "tags.team IS NULL", "tags.`team` IS NOT NULL", "attribute.name != 'vision2'", "experiment_id IN ('0', '1')",
        "experiment_id = '1'", "creation_time > 0", "last_update_time < 5", "foo = 'x'", "metrics.a > 1", "name = 5", "name > 'a'",
    ]:
        step(f"search experiments {filter_string}", lambda: names(client.search_experiments(filter_string=filter_string)))
    for order in [["name"], ["name DESC"], ["experiment_id DESC"], ["creation_time", "name DESC"], ["foo"]]:
        step(f"order experiments {order}", lambda: names(client.search_experiments(order_by=order)))
    page = step("experiments, page 1", lambda: client.search_experiments(max_results=1, order_by=["name"]))
    step("experiments, page 2", lambda: names(client.search_experiments(max_results=1, order_by=["name"], page_token=page.token)))
    step("no experiments", lambda: client.search_experiments(max_results=0))
    step("deleted experiments", lambda: names(client.search_experiments(view_type=ViewType.DELETED_ONLY)))
    return made


def names(found):
    return [item.name for item in found]


def runs(t, client, experiment):
    step = t.step
    run = step("create run", lambda: client.create_run(experiment, start_time=T0, tags={"a": "b"}, run_name="first"))
    id = run.info.run_id
    step("create run, no name", lambda: client.create_run(experiment, start_time=T0 + 5))
    step("create run, two names", lambda: client.create_run(experiment, run_name="x", tags={"mlflow.runName": "y"}))
    step("create run, no experiment", lambda: client.create_run("876"))
    step("log metric", lambda: client.log_metric(id, "loss", 1.5, timestamp=T0, step=1))
    step("log metric again", lambda: client.log_metric(id, "loss", 1.5, timestamp=T0, step=1))
    for index, value in enumerate([0.5, math.nan, math.inf, -math.inf, -0.0, 7, 1e-300]):
        step(f"log {value}", lambda: client.log_metric(id, "odd", value, timestamp=T0 + index, step=index))
    step("log an earlier step", lambda: client.log_metric(id, "odd", 3.0, timestamp=T0, step=-4))
    step("log metric, bad key", lambda: client.log_metric(id, "a;b", 1))
    step("log metric, path", lambda: client.log_metric(id, "../b", 1))
    step("log metric, long key", lambda: client.log_metric(id, "k" * 251, 1))
    step("log metric, no run", lambda: client.log_metric("0" * 32, "a", 1))
    step("log metric, bad time", lambda: client.log_metric(id, "a", 1, timestamp=-5))
    step("log param", lambda: client.log_param(id, "lr", 0.1))
    step("log param again", lambda: client.log_param(id, "lr", 0.1))
    step("change param", lambda: client.log_param(id, "lr", 0.2))
    step("log empty param", lambda: client.log_param(id, "empty", ""))
    step("log long param", lambda: client.log_param(id, "long", "ä" * 6001))
    step("log param, bad key", lambda: client.log_param(id, "a//b", "x"))
    step("set tag", lambda: client.set_tag(id, "mlflow.note.content", "words"))
    step("set long tag", lambda: client.set_tag(id, "long", "x" * 8001))
    step("rename by tag", lambda: client.set_tag(id, "mlflow.runName", "renamed"))
    step("delete tag", lambda: client.delete_tag(id, "a"))
    step("delete no tag", lambda: client.delete_tag(id, "a"))
    metrics = [Metric(f"m{index % 3}", index / 7, T0 + index, index) for index in range(300)]
    params, tags = [Param("p1", "v1"), Param("p2", "v2")], [RunTag("t1", "w1"), RunTag("t1", "w2")]
    step("log batch", lambda: client.log_batch(id, metrics=metrics, params=params, tags=tags))
    step("log batch again", lambda: client.log_batch(id, metrics=metrics, params=params, tags=tags))
    step("log batch, params twice", lambda: client.log_batch(id, params=[Param("q", "1"), Param("q", "2")]))
    step("log batch, changed param", lambda: client.log_batch(id, metrics=[Metric("unseen", 1, T0, 0)], params=[Param("p1", "x")]))
    step("log many params", lambda: client.log_batch(id, params=[Param(f"n{index}", "1") for index in range(150)]))
    step("get run", lambda: client.get_run(id))
    step("get no run", lambda: client.get_run("f" * 32))
    for key in ["loss", "odd", "m1", "nothing"]:
        step(f"history of {key}", lambda: client.get_metric_history(id, key))
    dataset = Dataset("corpus", "d1", "local", '{"uri": "/data"}', '{"cols": 3}', '{"rows": 9}')
    inputs = [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])]
    step("log inputs", lambda: client.log_inputs(id, inputs))
    step("log inputs again", lambda: client.log_inputs(id, inputs))
    step("get run with inputs", lambda: client.get_run(id))
    step("end run", lambda: client.set_terminated(id, "FINISHED", end_time=T0 + 1000))
    step("rename run", lambda: client.update_run(id, name="second", status="FAILED"))
    step("delete run", lambda: client.delete_run(id))
    step("log to deleted", lambda: client.log_metric(id, "loss", 1))
    step("get deleted", lambda: client.get_run(id).info)
    step("restore run", lambda: client.restore_run(id))
    return id


def raw(t, run):
    """What no client sends, and what only pages send."""

    def call(method, path, **arguments):
        answer = requests.request(method, f"{t.uri}/ajax-api/2.0/mlflow/{path}", timeout=30, headers=headers(), **arguments)
        try:
            body = answer.json()
        except ValueError:
            body = {"error_code": "no JSON"}
        # Messages of parsers differ; their codes may not.
        return {"status": answer.status_code, "body": body if answer.status_code == 200 else body["error_code"]}

    for name, method, path, arguments in [
        ("missing run", "POST", "runs/log-metric", {"json": {"key": "a", "value": 1, "timestamp": 1}}),
        ("missing value", "POST", "runs/log-metric", {"json": {"run_id": run, "key": "a", "timestamp": 1}}),
        ("text for a list", "POST", "runs/log-batch", {"json": {"run_id": run, "metrics": "foo"}}),
        ("text for a number", "POST", "runs/log-metric", {"json": {"run_id": run, "key": "a", "value": "x", "timestamp": 1}}),
        ("numbers as texts", "POST", "runs/log-metric", {"json": {"run_id": run, "key": "t", "value": 2, "timestamp": str(T0), "step": "3"}}),
        ("nan", "POST", "runs/log-metric", {"json": {"run_id": run, "key": "n", "value": "NaN", "timestamp": T0}}),
        ("run_uuid", "POST", "runs/log-parameter", {"json": {"run_uuid": run, "run_id": run, "key": "u", "value": "1"}}),
        ("too many metrics", "POST", "runs/log-batch", {"json": {"run_id": run, "metrics": [{"key": "a", "value": 1, "timestamp": 1}] * 1001}}),
        ("batch without key", "POST", "runs/log-batch", {"json": {"run_id": run, "metrics": [{"value": 1, "timestamp": 1}]}}),
        ("bulk without runs", "GET", "metrics/get-history-bulk-interval", {"params": {"metric_key": "m1"}}),
        ("bulk, one end", "GET", "metrics/get-history-bulk-interval", {"params": {"run_ids": run, "metric_key": "m1", "start_step": 3}}),
        ("bulk, wrong ends", "GET", "metrics/get-history-bulk-interval", {"params": {"run_ids": run, "metric_key": "m1", "start_step": 3, "end_step": 1}}),
        ("bulk, too many", "GET", "metrics/get-history-bulk-interval", {"params": {"run_ids": run, "metric_key": "m1", "max_results": 2501}}),
        ("bulk", "GET", "metrics/get-history-bulk-interval", {"params": {"run_ids": run, "metric_key": "m1", "max_results": 7}}),
        ("bulk of one", "GET", "metrics/get-history-bulk-interval", {"params": {"run_ids": run, "metric_key": "m1", "max_results": 1}}),
        ("bulk of steps", "GET", "metrics/get-history-bulk-interval", {"params": {"run_ids": [run], "metric_key": "m0", "max_results": 9, "start_step": 10, "end_step": 200}}),
        ("bulk of nan", "GET", "metrics/get-history-bulk-interval", {"params": {"run_ids": run, "metric_key": "odd"}}),
        ("history, first page", "GET", "metrics/get-history", {"params": {"run_id": run, "metric_key": "loss", "max_results": 5}}),
        ("history of none", "GET", "metrics/get-history", {"params": {"run_id": run, "metric_key": "m1", "max_results": 0}}),
        ("datasets", "POST", "experiments/search-datasets", {"json": {"experiment_ids": ["1"]}}),
        ("too many results", "POST", "runs/search", {"json": {"experiment_ids": ["1"], "max_results": 50001}}),
    ]:
        t.step(f"raw: {name}", lambda: call(method, path, **arguments))


def headers():
    import os

    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


def search(t, client):
    experiment = t.step("create experiment to search", lambda: client.create_experiment("searched"))
    for index in range(12):
        tags = {"kind": "even" if index % 2 == 0 else "Odd", "mlflow.user": f"u{index % 3}"}
        run = client.create_run(experiment, start_time=T0 + index * 7 % 12, run_name=f"run-{index}", tags=tags)
        id = run.info.run_id
        t.plain(id)
        if index != 7:
            value = math.nan if index == 4 else math.inf if index == 5 else index / 3
            client.log_metric(id, "acc", value, step=index, timestamp=T0)
            client.log_metric(id, "val loss", 10 - index, timestamp=T0)
        client.log_param(id, "lr", str(index % 4))
        if index % 3 == 0:
            client.log_param(id, "model", "GPT-x")
        dataset = Dataset(f"set{index % 2}", f"d{index % 3}", "local", "{}")
        client.log_inputs(id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "eval" if index % 2 else "train")])])
        if index % 4 == 0:
            client.set_terminated(id, "FINISHED", end_time=T0 + 100 * index)
        if index == 11:
            client.delete_run(id)
    found = lambda **arguments: names([run.info for run in client.search_runs([experiment], **rename(arguments))])  # noqa: E731
    rename = lambda arguments: {"run_view_type": ViewType.ACTIVE_ONLY} | arguments  # noqa: E731

    def names(infos):
        return [info.run_name for info in infos]

    for filter_string in FILTERS:
        t.step(f"search {filter_string}", lambda: found(filter_string=filter_string))
    for order in ORDERS:
        t.step(f"order {order}", lambda: found(order_by=order))
    t.step("deleted runs", lambda: found(run_view_type=ViewType.DELETED_ONLY))
    t.step("all runs", lambda: found(run_view_type=ViewType.ALL))
    token, pages = None, []
    for _ in range(4):
        page = client.search_runs([experiment], max_results=4, order_by=["metrics.acc DESC"], page_token=token)
        pages.append([run.info.run_name for run in page])
        token = page.token
        if token is None:
            break
    t.step("pages", lambda: pages)
    t.step("no experiment", lambda: names([run.info for run in client.search_runs(["765"])]))
    t.step("whole answer", lambda: client.search_runs([experiment], max_results=2, order_by=["attributes.run_name"]))
    frame = t.step("as a table", lambda: None) or mlflow.search_runs([experiment], order_by=["attributes.run_name"], max_results=3)
    t.step("columns", lambda: sorted(frame.columns))


FILTERS = [
    "", "metrics.acc > 1", "metrics.acc >= 1", "metrics.acc < 1", "metrics.acc <= 1", "metrics.acc = 1", "metrics.acc != 1",
    "metrics.acc = 0", "metrics.acc > 1e300", "metrics.`val loss` < 5", 'metrics."val loss" < 5 and params.lr = "1"',
    "metric.acc > -1.5 AND tag.kind = 'even'", "metrics.nothing > 0", "params.lr = '2'", "params.lr != '2'", "params.lr LIKE '%'",
    "params.model LIKE 'gpt%'", "params.model ILIKE 'gpt%'", "params.model LIKE 'GPT__'", "param.model IS NULL",
    "parameters.model IS NOT NULL", "tags.kind = 'odd'", "tags.kind ILIKE 'odd'", "tags.nothing IS NULL", "tags.nothing = 'x'",
    "attributes.status = 'FINISHED'", "status != 'FINISHED'", "attr.status LIKE 'RUN%'", "start_time > 1760000000002",
    "attributes.start_time = 1760000000002", "end_time > 1760000000100", "end_time != 5", "Created <= 1760000000001",
    "run_name = 'run-3'", "attributes.run_name LIKE 'run-1%'", "attributes.`run name` != 'run-3'", "`Run Name` = 'run-4'",
    "run_id IN ('nothing')", "run_id NOT IN ('nothing')", "user_id = 'nobody'", "artifact_uri LIKE 'mlflow-artifacts:%'",
    "dataset.name = 'set1'", "datasets.digest != 'd0'", "dataset.context = 'eval'", "dataset.name IN ('set0', 'x')",
    "dataset.digest NOT IN ('d0', 'd1')", "dataset.context LIKE 'tr%' AND metrics.acc > 1", "tags.mlflow.user = 'u1'",
    "tags.`mlflow.user` = 'u1' AND params.lr = '1'",
    "metrics.acc", "metrics.acc >", "acc > 1", "metrics.acc > '1'", "params.lr = 1", "params.lr > '1'", "params.lr = lr", "x.y = 'z'",
    "attributes.foo = 'x'", "metrics.acc > 1 OR metrics.acc < 0", "(metrics.acc > 1)", "start_time LIKE 'x'", "status IN ('RUNNING')",
    "run_id IN ()", "metrics.acc IS NULL", "tags.a-b = 'x'", "metrics.acc == 1", "1 < metrics.acc", "params.lr = 'x", "dataset.foo = 'x'",
    "   ", "metrics.acc > 1;", "tags.kind = 'it''s'", "metrics.acc ILIKE 5", "params.lr IN ('1')",
]  # fmt: skip
ORDERS = [
    [], ["metrics.acc"], ["metrics.acc DESC"], ["metrics.`val loss` ASC"], ["params.model", "metrics.acc DESC"], ["params.model DESC"],
    ["tags.kind", "params.lr DESC"], ["start_time"], ["attributes.start_time DESC"], ["Created"], ["end_time DESC"], ["end_time"],
    ["run_name"], ["status", "run_name DESC"], ["metrics.nothing"], ["metrics.acc foo"], ["foo.bar"], ["lifecycle_stage"], [""],
    ["metrics.acc DESC ASC"],
]  # fmt: skip


def generated(t, client, seed):
    """Filters that nobody thought of: conjunctions of random clauses over the runs of `search`."""
    import random

    draw = random.Random(seed)
    experiment = client.get_experiment_by_name("searched").experiment_id

    def clause():
        match draw.randrange(6):
            case 0:
                return f"metrics.{draw.choice(['acc', '`val loss`', 'none'])} {draw.choice(['>', '>=', '<', '<=', '=', '!='])} {draw.choice([-1, 0, 1, 2.5, 1e9, 3])}"
            case 1:
                return f"params.{draw.choice(['lr', 'model'])} {draw.choice(['=', '!=', 'LIKE', 'ILIKE'])} '{draw.choice(['1', '2', 'GPT-x', 'gpt%', '%', '_'])}'"
            case 2:
                return f"tags.{draw.choice(['kind', '`mlflow.user`', 'none'])} {draw.choice(['=', '!=', 'LIKE', 'ILIKE'])} '{draw.choice(['even', 'odd', 'u1', 'U%', '%d%'])}'"
            case 3:
                return f"{draw.choice(['params.model', 'tags.kind', 'tags.none'])} IS {draw.choice(['NULL', 'NOT NULL'])}"
            case 4:
                return f"{draw.choice(['start_time', 'end_time'])} {draw.choice(['>', '<=', '!='])} {T0 + draw.randrange(900)}"
            case _:
                return f"dataset.{draw.choice(['name', 'digest', 'context'])} {draw.choice(['=', '!=', 'LIKE'])} '{draw.choice(['set0', 'd1', 'eval', '%t%'])}'"

    for _ in range(150):
        filter_string = " AND ".join(clause() for _ in range(draw.randrange(1, 4)))
        order = [f"{draw.choice(['metrics.acc', 'params.lr', 'tags.kind', 'end_time', 'metrics.none'])} {draw.choice(['ASC', 'DESC'])}"]
        t.step(
            f"search {filter_string} by {order}",
            lambda: [run.info.run_name for run in client.search_runs([experiment], filter_string=filter_string, order_by=order)],
        )


def artifacts(t, client, run):
    step = t.step
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "a b").mkdir()
        (folder / "plain.txt").write_text("hello")
        (folder / "a b" / "ü.bin").write_bytes(bytes(range(256)) * 5000)
        (folder / "empty").write_bytes(b"")
        step("log artifact", lambda: client.log_artifact(run, str(folder / "plain.txt")))
        step("log artifacts", lambda: client.log_artifacts(run, str(folder), "deep/er"))
    step("log text", lambda: client.log_text(run, "text", "texts/t.txt"))
    step("log text again", lambda: client.log_text(run, "other text", "texts/t.txt"))
    step("log dict", lambda: client.log_dict(run, {"a": [1, 2]}, "d.json"))
    listed = lambda path=None: [[file.path, file.is_dir, file.file_size] for file in client.list_artifacts(run, path)]  # noqa: E731
    step("list", listed)
    step("list deep", lambda: listed("deep/er"))
    step("list deeper", lambda: listed("deep/er/a b"))
    step("list a file", lambda: listed("d.json"))
    step("list nothing", lambda: listed("nothing"))
    with tempfile.TemporaryDirectory() as folder:
        path = step("download", lambda: None) or client.download_artifacts(run, "deep", folder)
        got = {str(file.relative_to(path)): hash_of(file) for file in pathlib.Path(path).rglob("*") if file.is_file()}
        step("downloaded", lambda: got)
    step("load text", lambda: mlflow.artifacts.load_text(f"runs:/{run}/texts/t.txt"))
    step("load nothing", lambda: mlflow.artifacts.load_text(f"runs:/{run}/nothing.txt"))
    for path in ["..%2Fx", "a%2F..%2F..%2Fx", "%252e%252e%2Fx"]:
        answer = requests.get(f"{t.uri}/api/2.0/mlflow-artifacts/artifacts/{path}", timeout=30, headers=headers())
        step(f"traverse {path}", lambda: answer.status_code)


def hash_of(file):
    import hashlib

    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


class Doubler(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        return np.asarray(model_input) * 2


def models(t, client, experiment):
    step = t.step
    mlflow.set_experiment(experiment_id=experiment)
    with mlflow.start_run(run_name="trains") as run:
        mlflow.log_params({"depth": 3})
        info = mlflow.pyfunc.log_model(name="doubler", python_model=Doubler(), pip_requirements=["numpy"], registered_model_name="doublers")
        mlflow.log_metric("score", 0.9, step=2, model_id=info.model_id)
    step("run with outputs", lambda: slim(client.get_run(run.info.run_id)))
    logged = step("logged model", lambda: slim_model(client.get_logged_model(info.model_id)))
    step("model files", lambda: sorted(file.path for file in client.list_logged_model_artifacts(info.model_id)))
    step("predict", lambda: mlflow.pyfunc.load_model("models:/doublers/1").predict(np.array([1, 2])).tolist())
    step("predict by id", lambda: mlflow.pyfunc.load_model(f"models:/{info.model_id}").predict(np.array([3])).tolist())
    step("model tags", lambda: client.set_logged_model_tags(info.model_id, {"x": "y"}))
    step("delete model tag", lambda: client.delete_logged_model_tag(info.model_id, "x"))
    step("delete no model tag", lambda: client.delete_logged_model_tag(info.model_id, "x"))
    store = _get_store()
    made = step("create model", lambda: store.create_logged_model(experiment, "by-hand", run.info.run_id, None, [LoggedModelParameter("p", "1")], "kind"))
    step("finalize", lambda: client.finalize_logged_model(made.model_id, "READY"))
    step("create model, bad name", lambda: store.create_logged_model(experiment, "a/b", None, None, None, None))
    step("outputs", lambda: client.log_outputs(run.info.run_id, [LoggedModelOutput(made.model_id, 4)]))
    for filter_string in [None, "name = 'by-hand'", "metrics.score > 0.5", "params.p = '1'", "model_type = 'kind'", "foo = 1", "tags.x = 'y'"]:
        step(f"search models {filter_string}", lambda: [model.name for model in client.search_logged_models([experiment], filter_string=filter_string)])
    for order in [[{"field_name": "name"}], [{"field_name": "metrics.score", "ascending": False}], [{"field_name": "name", "ascending": False}], [{"field_name": "foo"}]]:
        step(f"order models {order}", lambda: [model.name for model in client.search_logged_models([experiment], order_by=order)])
    step("delete model", lambda: client.delete_logged_model(made.model_id))
    step("get deleted model", lambda: client.get_logged_model(made.model_id))
    return run.info.run_id, logged


def slim(run):
    """A run without what the client says of its own process."""
    tags = {key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.source") and key != "mlflow.user"}
    return {"metrics": run.data.metrics, "params": run.data.params, "tags": sorted(tags), "outputs": run.outputs, "status": run.info.status}


def slim_model(model):
    return {"name": model.name, "status": model.status, "params": model.params, "metrics": model.metrics, "type": model.model_type, "source": model.source_run_id}


def registry(t, client, run):
    step = t.step
    step("create registered", lambda: client.create_registered_model("net", tags={"a": "b"}, description="a net"))
    step("create registered again", lambda: client.create_registered_model("net"))
    step("create registered, bad name", lambda: client.create_registered_model("a/b"))
    step("create registered, no name", lambda: client.create_registered_model(" "))
    for index in range(3):
        step(f"version {index}", lambda: client.create_model_version("net", f"s3://bucket/{index}", run, tags={"n": str(index)}, description=f"d{index}"))
    step("version of nothing", lambda: client.create_model_version("nothing", "s3://bucket/x"))
    step("version of a model", lambda: client.create_model_version("net", "models:/net/1"))
    step("version of no model", lambda: client.create_model_version("net", "models:/net/99"))
    step("get version", lambda: client.get_model_version("net", "2"))
    step("get no version", lambda: client.get_model_version("net", "22"))
    step("get version, bad number", lambda: client.get_model_version("net", "x"))
    step("download uri", lambda: client.get_model_version_download_uri("net", "4"))
    step("describe version", lambda: client.update_model_version("net", "2", "words"))
    step("describe", lambda: client.update_registered_model("net", "more words"))
    step("stage", lambda: client.transition_model_version_stage("net", "1", "production"))
    step("stage, archive", lambda: client.transition_model_version_stage("net", "2", "Production", archive_existing_versions=True))
    step("stage, bad", lambda: client.transition_model_version_stage("net", "2", "best"))
    step("archived", lambda: client.get_model_version("net", "1").current_stage)
    step("latest", lambda: sorted(version.version for version in client.get_latest_versions("net")))
    step("latest in stage", lambda: [version.version for version in client.get_latest_versions("net", ["Production"])])
    step("alias", lambda: client.set_registered_model_alias("net", "champion", "2"))
    step("alias, moved", lambda: client.set_registered_model_alias("net", "champion", "3"))
    for alias in ["latest", "v3", "a b", ""]:
        step(f"alias {alias!r}", lambda: client.set_registered_model_alias("net", alias, "2"))
    step("alias of no version", lambda: client.set_registered_model_alias("net", "x", "77"))
    step("by alias", lambda: client.get_model_version_by_alias("net", "champion"))
    step("by no alias", lambda: client.get_model_version_by_alias("net", "nobody"))
    step("get registered", lambda: client.get_registered_model("net"))
    step("tags", lambda: client.set_registered_model_tag("net", "k", "v"))
    step("version tags", lambda: client.set_model_version_tag("net", "1", "k", "v"))
    step("delete tags", lambda: client.delete_registered_model_tag("net", "k"))
    step("delete no tags", lambda: client.delete_registered_model_tag("net", "k"))
    step("delete version tags", lambda: client.delete_model_version_tag("net", "1", "k"))
    step("delete alias", lambda: client.delete_registered_model_alias("net", "champion"))
    step("second", lambda: client.create_registered_model("Net2"))
    for filter_string in [None, "name = 'net'", "name LIKE 'n%'", "name ILIKE 'n%'", "tags.a = 'b'", "name != 'net'", "foo = 'x'", "name = 1"]:
        step(f"search registered {filter_string}", lambda: names(client.search_registered_models(filter_string)))
    for order in [["name DESC"], ["name ASC"], ["foo"]]:
        step(f"order registered {order}", lambda: names(client.search_registered_models(order_by=order)))
    versions = lambda filter_string, **arguments: [[v.name, v.version] for v in client.search_model_versions(filter_string, **arguments)]  # noqa: E731
    for filter_string in ["", "name = 'net'", f"run_id = '{run}'", f"run_id IN ('{run}')", "source_path LIKE 's3://%'", "tags.n = '1'", "name LIKE 'NE%'", "version_number > 2", "foo = 'x'"]:
        step(f"search versions {filter_string}", lambda: versions(filter_string))
    step("order versions", lambda: versions("name = 'net'", order_by=["version_number ASC"]))
    step("delete version", lambda: client.delete_model_version("net", "4"))
    step("version after that", lambda: client.create_model_version("net", "s3://bucket/5").version)
    step("rename", lambda: client.rename_registered_model("net", "network"))
    step("rename to taken", lambda: client.rename_registered_model("network", "Net2"))
    step("delete registered", lambda: client.delete_registered_model("network"))
    step("get deleted registered", lambda: client.get_registered_model("network"))
    step("versions of deleted", lambda: versions("name = 'network'"))


def webhooks(t, client):
    step, url = t.step, "http://127.0.0.1:9/hook"
    made = step("create webhook", lambda: client.create_webhook("told", url, ["model_version.created", "registered_model.created"], secret="s"))
    again = step("create webhook of this name", lambda: client.create_webhook("told", url, ["model_version_tag.set"], description="d", status="DISABLED"))
    for name in ["", "-a", "a b", "x" * 64, "a.b_c-d"]:
        step(f"create webhook {name}", lambda: client.create_webhook(name, url, ["model_version_alias.created"]).name)
    for bad in ["ftp://h", "h", "", "http://"]:
        step(f"create webhook to {bad}", lambda: client.create_webhook("n", bad, ["model_version_alias.created"]))
    step("create webhook without events", lambda: client.create_webhook("n", url, []))
    step("get webhook", lambda: client.get_webhook(made.webhook_id))
    step("get no webhook", lambda: client.get_webhook("nothing"))
    step("list webhooks", lambda: [hook.name for hook in client.list_webhooks()])
    step("webhooks, page 1", lambda: [hook.name for hook in client.list_webhooks(max_results=2)])
    step("webhooks, page 2", lambda: [h.name for h in client.list_webhooks(max_results=2, page_token=client.list_webhooks(max_results=2).token)])
    step("too many webhooks", lambda: client.list_webhooks(max_results=1001))
    step("update webhook", lambda: client.update_webhook(made.webhook_id, name="renamed", events=["model_version_alias.deleted"]))
    step("disable webhook", lambda: client.update_webhook(made.webhook_id, status="DISABLED", description="no longer"))
    step("enable webhook", lambda: client.update_webhook(made.webhook_id, status="ACTIVE", url="http://127.0.0.1:9/other"))
    step("update webhook, bad url", lambda: client.update_webhook(made.webhook_id, url="ftp://h"))
    step("update no webhook", lambda: client.update_webhook("nothing", name="n"))
    step("test webhook", lambda: client.test_webhook(made.webhook_id).success)
    step("test no webhook", lambda: client.test_webhook("nothing"))
    step("delete webhook", lambda: client.delete_webhook(again.webhook_id))
    step("delete webhook again", lambda: client.delete_webhook(again.webhook_id))
    step("list webhooks that are left", lambda: [hook.name for hook in client.list_webhooks()])


def main(uri, output):
    mlflow.set_tracking_uri(uri)
    client, t = MlflowClient(), Transcript(uri)
    experiment = experiments(t, client)
    run = runs(t, client, experiment)
    raw(t, run)
    search(t, client)
    generated(t, client, 27)
    artifacts(t, client, run)
    trained, _ = models(t, client, experiment)
    registry(t, client, trained)
    webhooks(t, client)
    pathlib.Path(output).write_text(json.dumps(t.steps, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
