"""Exported bills are FOCUS, as an independent validator says, and sum to what the nodes offered."""

import csv
import datetime
import json
import os
import pathlib
import subprocess
import sys
import time
from decimal import Decimal

import pyarrow
import pyarrow.parquet
import pytest

from test_jobs import Plane

pytestmark = pytest.mark.skipif(
    not os.environ.get("GANGLINE_BINARY"), reason="GANGLINE_BINARY names no gangline binary: run cargo xtask python"
)
TOOLKIT = pathlib.Path(sys.executable).parent / "focus-toolkit"
# What a rank that reads a dataset from object storage says of it.
READER = """import os, struct, time
folder = os.environ["GANGLINE_DATA_READS"]
os.makedirs(folder)
with open(os.path.join(folder, "own"), "wb") as file:
    put, get, listed, delete, head, failed, received = 0, 2500000, 3, 0, 0, 0, 3000000000
    counts = struct.pack("<7Q", put, get, listed, delete, head, failed, received)
    file.write(b"tally-1\\n" + counts + b"s3://corpus/c4")
time.sleep(1)
"""
# Lines beside device time, and their services.
BESIDE = {
    "network": "Network between devices",
    "support": "Support and surcharges",
    "energy": "Energy",
    "people": "Engineering time",
}
RENAMED = {"ProviderName", "PublisherName", "ServiceProviderName", "HostProviderName"}


@pytest.fixture
def plane(tmp_path):
    config = tmp_path / "priced.toml"
    config.write_text(
        '[storage]\nmeasure_every = "1s"\n[[storage.price]]\npath = "/"\nusd_per_gib_month = "90"\n'
        '[[storage.requests]]\naddress = "s3://corpus"\nusd_per_1000 = "0.0004"\nusd_per_gb = "0.09"\n'
        '[[overhead]]\nline = "network"\nusd_per_device_hour = "0.27"\n'
        '[[overhead]]\nline = "support"\nshare_of_price = 0.1\n'
        '[energy]\nusd_per_kwh = "0.20"\n[[energy.device]]\naccelerator = "cpu"\nwatts = 900\nidle_watts = 100\n'
        '[people]\nusd_per_hour = "90"\nhours_per_failed_job = 0.5\n'
    )
    plane = Plane(tmp_path, ["a=cpu:2", "b=cpu:1"], "--price", "2.49", "--config", str(config))
    yield plane
    plane.close()


def export(plane, version):
    file = plane.folder / f"focus-{version}.csv"
    ended = plane.run("cost", "export", "--from", "2d", "--focus", version, "--output", str(file))
    assert ended.returncode == 0, ended.stderr
    with open(file, newline="") as rows:
        return file, list(csv.DictReader(rows))


def test_parquet_has_what_csv_has(plane):
    plane.ended(plane.submit("good", 'resources: {accelerators: "cpu:2"}\nrun: sleep 1\n'))
    await_storage(plane)
    # Up to a time that has passed, so that both have the same.
    to = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    time.sleep(2)
    csv_file, parquet_file = (plane.folder / f"bill.{end}" for end in ("csv", "parquet"))
    for file in (csv_file, parquet_file):
        ended = plane.run("cost", "export", "--from", "2d", "--to", to, "--format", file.suffix[1:], "--output", str(file))
        assert ended.returncode == 0, ended.stderr
    with open(csv_file, newline="") as rows:
        texts = list(csv.DictReader(rows))
    table = pyarrow.parquet.read_table(parquet_file)
    of = lambda name: table.schema.field(name).type
    assert (of("BilledCost"), of("ChargePeriodStart")) == (pyarrow.decimal128(38, 15), pyarrow.timestamp("us", "UTC"))
    assert (of("x_Estimated"), of("Tags")) == (pyarrow.bool_(), pyarrow.string())
    read = {
        Decimal: Decimal,
        datetime.datetime: datetime.datetime.fromisoformat,
        bool: lambda text: text == "true",
        str: str,
    }
    rows = table.to_pylist()
    assert len(rows) == len(texts) > 2 and list(rows[0]) == list(texts[0])
    for row, text in zip(rows, texts, strict=True):
        for name, value in row.items():
            assert (text[name] == "") if value is None else (read[type(value)](text[name]) == value), (name, value, text[name])


def validate(file):
    return subprocess.run([TOOLKIT, "validate", file], capture_output=True, text=True, timeout=120)


def await_storage(plane):
    for _ in range(100):
        report = plane.ask("cost", "report", "--from", "1h")
        if any(line["line"] == "storage_platform" for line in report["total"]["lines"]):
            return
        time.sleep(0.2)
    raise AssertionError("storage was never measured")


def check_beside(beside, devices, failed):
    hours = sum(Decimal(row["ConsumedQuantity"]) for row in devices)
    for kind, price in (("network", "0.27"), ("support", "0.249")):
        rows = beside[kind]
        assert {row["ListUnitPrice"] for row in rows} == {price} and all(row["x_GpuSeconds"] == "" for row in rows)
        assert abs(sum(Decimal(row["ConsumedQuantity"]) for row in rows) - hours) < Decimal("1e-9"), "each device-hour once"
    energy = sum(Decimal(row["ConsumedQuantity"]) for row in beside["energy"])
    assert hours * Decimal("0.1") < energy < hours * Decimal("0.9")
    assert {row["x_Estimated"] for row in beside["energy"]} == {"true"}
    (people,) = beside["people"]
    of = lambda *names: [people[name] for name in names]
    assert of("ResourceId", "BilledCost", "EffectiveCost", "ConsumedQuantity") == [failed, "0", "45", "0.5"]
    for kind, service in BESIDE.items():
        assert {row["ServiceName"] for row in beside[kind]} == {service}


def test_an_export_is_valid_focus_and_sums_to_the_capacity(plane):
    (plane.folder / "reader.py").write_text(READER)
    reads = plane.submit("reads", f'resources: {{accelerators: "cpu:1"}}\nrun: python3 {plane.folder}/reader.py\n')
    good = plane.submit("good", 'resources: {accelerators: "cpu:2"}\nrun: sleep 1\n')
    bad = plane.submit(
        "bad", 'resources: {accelerators: "cpu:1"}\nrun: "sleep 1; exit 3"\nrecovery: {max_faults: 0}\n'
    )
    assert plane.ended(good)["state"] == "succeeded" and plane.ended(bad)["state"] == "failed"
    assert plane.ended(reads)["state"] == "succeeded"
    await_storage(plane)
    file, rows = export(plane, "1.4")
    judged = validate(file)
    assert judged.returncode == 0 and "OK" in judged.stdout, judged.stdout + judged.stderr

    kinds = {row["x_CostKind"] for row in rows}
    assert {"failed_run", "idle_spare", "unreported", "storage_platform"} <= kinds
    stored = [row for row in rows if row["x_CostKind"].startswith("storage_")]
    devices = [row for row in rows if row["ServiceCategory"] == "Compute"]
    asked = {row["x_CostKind"]: row for row in rows if row["ResourceId"] == "s3://corpus/c4"}
    beside = {kind: [row for row in rows if row["x_CostKind"] == kind] for kind in BESIDE}
    assert len(stored) + len(devices) + len(asked) + sum(map(len, beside.values())) == len(rows)
    check_beside(beside, devices, bad)
    of = lambda kind: [asked[kind][name] for name in ("ServiceCategory", "PricingQuantity", "PricingUnit", "BilledCost")]
    assert of("requests") == ["Storage", "2500", "1000 Requests", "1"] and of("transfer") == ["Networking", "3", "GB", "0.27"]
    assert asked.keys() == {"requests", "transfer"}, "lists have no price, and so no row"
    assert {row["CapacityReservationStatus"] for row in devices} == {"Used", "Unused"}
    assert all(row["ConsumedUnit"] == "GiB-Hours" and row["PricingUnit"] == "GiB-Months" for row in stored)
    tags = [json.loads(row["Tags"]) for row in devices]
    assert {tag["job"] for tag in tags if tag} == {good, bad, reads}
    for row in rows:
        exact = Decimal(row["ListUnitPrice"]) * Decimal(row["PricingQuantity"])
        assert abs(exact - Decimal(row["ListCost"])) < Decimal("1e-12"), row
    report = plane.ask("cost", "report", "--from", "2d")
    heading, *groups = plane.run("cost", "report", "--from", "2d", "--by", "job").stdout.splitlines()[2:]
    of_job = next(group for group in groups if group.startswith(f"{reads} "))
    assert "REQUESTS" in heading and str(report["total"]["requests"]) in of_job.split(), "one job asked for all"
    exported = sum(Decimal(row["x_GpuSeconds"]) for row in devices)
    assert 0 < exported <= Decimal(report["capacity_seconds"]), "the report is later, and so has more"

    # Our own bill is one of FOCUS too; the ledger has more by now, since nodes went on being offered.
    beside = plane.ask("cost", "reconcile", "--tolerance", "100", str(file))
    assert beside["billed_nano_dollars"] == sum(Decimal(row["BilledCost"]) for row in rows) * 10**9
    assert {node["node"]: node["verdict"] for node in beside["nodes"]} == {"a": "matched", "b": "matched"}
    for node in beside["nodes"]:
        hours = sum(Decimal(row["ConsumedQuantity"]) for row in devices if row["ResourceId"] == node["node"])
        assert abs(Decimal(node["billed_device_hours"]) - hours) < Decimal("1e-9")
        assert node["by_time_nano_dollars"] <= 0 and abs(node["by_price_nano_dollars"]) < 1000, node
    services = {"Storage of training data", "Reading of training data", *BESIDE.values()}
    assert {other["service"] for other in beside["unmatched"]} == services
    assert beside["overlap_count"] == 0

    # The validator judges by 1.4: of a file of 1.2 it finds wrong only what 1.4 renamed.
    older, same = export(plane, "1.2")
    assert len(same) >= len(rows)
    found = validate(older).stdout.splitlines()
    wrong = [line for line in found if line.strip().startswith("[")]
    assert wrong and all(any(name in line for name in RENAMED) for line in wrong), found


def test_a_file_that_is_there_and_time_without_a_price(tmp_path):
    plane = Plane(tmp_path, ["a=cpu:1"])
    try:
        file, rows = export(plane, "1.2")
        assert rows == [], "nothing has a price"
        again = plane.run("cost", "export", "--from", "1h", "--output", str(file))
        assert again.returncode == 1 and "can't be made" in again.stderr
        told = plane.run("cost", "report", "--from", "1h")
        assert "not priced" in told.stdout and "not priced" in told.stderr
    finally:
        plane.close()
