"""The dashboard for Grafana, read by Grafana's own SDK, which is generated from Grafana's schema."""

import json
import pathlib

from grafana_foundation_sdk.cog import encoder
from grafana_foundation_sdk.models import dashboard

FILE = pathlib.Path(__file__).parents[2] / "docs" / "prometheus" / "gangline.dashboard.json"


def lost(before, after, place=""):
    """Places of a document that differ in another one; what the other one adds is no difference."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            yield from lost(value, after[key], f"{place}/{key}") if key in after else [f"{place}/{key}"]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, pair in enumerate(zip(before, after)):
            yield from lost(*pair, f"{place}/{number}")
    elif before != after:
        yield place


def test_the_dashboard_is_one_by_grafanas_schema():
    written = json.loads(FILE.read_text())
    read = dashboard.Dashboard.from_json(written)
    again = json.loads(encoder.JSONEncoder().encode(read))
    assert list(lost(written, again)) == [], "the schema doesn't have these"
    unknown = {**written, "titel": "a mistake"}
    again = json.loads(encoder.JSONEncoder().encode(dashboard.Dashboard.from_json(unknown)))
    assert list(lost(unknown, again)) == ["/titel"], "a mistake is noticed"


def test_panels_lie_beside_each_other():
    panels = json.loads(FILE.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        grid = panel["gridPos"]
        cells = {(x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])}
        assert not cells & taken and all(x < 24 for x, _ in cells), panel["title"]
        taken |= cells
