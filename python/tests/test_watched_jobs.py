"""gangline.torch.watch in a real job of two ranks: what `gangline why` and `gangline show` say of it."""

import pathlib

from test_jobs import Plane, plane, pytestmark  # noqa: F401

SCRIPT = pathlib.Path(__file__).parent / "watched.py"


def test_why_names_slow_data_saves_and_collections_and_the_part_of_the_plan(plane):  # noqa: F811
    text = 'resources: {accelerators: "cpu:2"}\nrecovery: {max_faults: 0}\n'
    text += "plan: {tokens_per_second_per_accelerator: 5000, mfu: 0.4}\n"
    job = plane.submit("watched", f"{text}run: python {SCRIPT}\n")

    def answer():
        shown = plane.ask("show", job)
        assert not plane.is_over(shown), plane.printed(job)
        why = plane.ask("why", job)
        causes = {cause["kind"]: cause for cause in why["causes"]}
        return (why, causes) if why["steps"] >= 8 and {"data", "checkpoint", "garbage_collection"} <= set(causes) else None

    why, causes = plane.until(answer, "enough steps are judged, and what makes them slow is known")
    assert causes["data"]["ranks"] == [1] and 0.1 < causes["data"]["share"] <= 1, why
    assert causes["checkpoint"]["ranks"] == [0] and causes["garbage_collection"]["ranks"] == [0], why
    assert {"data", "compute", "communication", "checkpoint"} <= set(why["phases"]), why
    plan = why["plan"]
    # 50 tokens of each rank in a step of 80 ms at least.
    assert 0 < plan["tokens_per_second_per_accelerator"] < 50 / 0.08, plan
    assert plan["share"] == plan["tokens_per_second_per_accelerator"] / 5000 and abs(plan["mfu"] - 0.4 * plan["share"]) < 1e-9
    said = plane.run("why", job).stdout
    assert "of its plan" in said and "of 5000 tokens/s on each accelerator, MFU" in said, said
    shown = plane.ask("show", job)
    assert shown["progress"]["tokens"] > 0 and shown["plan"]["share"] > 0, shown
    assert shown["accrued"]["buckets"] and "of its plan" in plane.run("show", job).stdout
    names = {name["metric"] for name in plane.ask("series", job)["metrics"]}
    assert {"tokens", "torch.forward_seconds", "torch.backward_seconds", "torch.optimizer_seconds", "python.gc_seconds"} <= names
