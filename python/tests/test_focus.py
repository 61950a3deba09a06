"""Exported bills are FOCUS, as an independent validator says, and sum to what the nodes offered."""

import csv
import json
import os
import pathlib
import subprocess
import sys
from decimal import Decimal

import pytest

from test_jobs import Plane

pytestmark = pytest.mark.skipif(
    not os.environ.get("GANGLINE_BINARY"), reason="GANGLINE_BINARY names no gangline binary: run cargo xtask python"
)
TOOLKIT = pathlib.Path(sys.executable).parent / "focus-toolkit"
RENAMED = {"ProviderName", "PublisherName", "ServiceProviderName", "HostProviderName"}


@pytest.fixture
def plane(tmp_path):
    plane = Plane(tmp_path, ["a=cpu:2", "b=cpu:1"], "--price", "2.49")
    yield plane
    plane.close()


def export(plane, version):
    file = plane.folder / f"focus-{version}.csv"
    ended = plane.run("cost", "export", "--from", "2d", "--focus", version, "--output", str(file))
    assert ended.returncode == 0, ended.stderr
    with open(file, newline="") as rows:
        return file, list(csv.DictReader(rows))


def validate(file):
    return subprocess.run([TOOLKIT, "validate", file], capture_output=True, text=True, timeout=120)


def test_an_export_is_valid_focus_and_sums_to_the_capacity(plane):
    good = plane.submit("good", 'resources: {accelerators: "cpu:2"}\nrun: sleep 1\n')
    bad = plane.submit(
        "bad", 'resources: {accelerators: "cpu:1"}\nrun: "sleep 1; exit 3"\nrecovery: {max_faults: 0}\n'
    )
    assert plane.ended(good)["state"] == "succeeded" and plane.ended(bad)["state"] == "failed"
    file, rows = export(plane, "1.4")
    judged = validate(file)
    assert judged.returncode == 0 and "OK" in judged.stdout, judged.stdout + judged.stderr

    kinds = {row["x_CostKind"] for row in rows}
    assert {"failed_run", "idle_spare", "unreported"} <= kinds
    assert {row["CapacityReservationStatus"] for row in rows} == {"Used", "Unused"}
    tags = [json.loads(row["Tags"]) for row in rows]
    assert {tag["job"] for tag in tags if tag} == {good, bad}
    for row in rows:
        exact = Decimal(row["ListUnitPrice"]) * Decimal(row["PricingQuantity"])
        assert abs(exact - Decimal(row["ListCost"])) < Decimal("1e-12"), row
    report = plane.ask("cost", "report", "--from", "2d")
    exported = sum(Decimal(row["x_GpuSeconds"]) for row in rows)
    assert 0 < exported <= Decimal(report["capacity_seconds"]), "the report is later, and so has more"

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
