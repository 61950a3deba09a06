"""A real job that is killed, resized from 3 ranks to 2, 1 and 3, and rolled back after its loss went bad has trained on exactly
the samples of an undisturbed run, step by step."""

import json
import pathlib

import numpy
import pytest

import gangline
from exactly import BATCH, STEPS, tokens_of
from test_jobs import BINARY, Plane, kill_rank

SCRIPT = pathlib.Path(__file__).parent / "exactly.py"
# The step whose data is bad, in the order of an undisturbed run.
BAD_STEP = 33

pytestmark = pytest.mark.skipif(not BINARY, reason="GANGLINE_BINARY names no gangline binary: run cargo xtask python")


def undisturbed(path):
    """The samples of each step of one rank that nothing disturbs, until more than the job can have read."""
    tokens = tokens_of(path, rank=0, world_size=1, kind="numpy")
    found = {}
    for _ in range(2 * STEPS):
        tokens.next_batch()
        found[tokens.steps] = tokens.samples
    return found


def trained(folder):
    """By attempt: the samples of each step, those of all ranks in their order, of the steps that all ranks ended."""
    attempts = {}
    for file in sorted(folder.glob("trained-*.jsonl")):
        _, attempt, rank = file.stem.split("-")
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        attempts.setdefault(int(attempt), {})[int(rank)] = {step: [tuple(sample) for sample in samples] for step, samples in lines}
    whole = {}
    for attempt, ranks in attempts.items():
        steps = set.intersection(*(set(steps) for steps in ranks.values()))
        whole[attempt] = {step: sum((ranks[rank][step] for rank in sorted(ranks)), []) for step in steps}
    return whole


@pytest.fixture
def plane(tmp_path):
    plane = Plane(tmp_path, ["a=cpu:1", "b=cpu:1", "c=cpu:1"])
    yield plane
    plane.close()


def test_kills_resizes_and_rollbacks_lose_no_sample_and_repeat_none(plane, tmp_path):
    path = tmp_path / "tokens.bin"
    numpy.random.default_rng(1).integers(0, 1 << 16, 8 * 600 + 1, numpy.uint16).tofile(path)
    oracle = undisturbed(path)
    bad = oracle[BAD_STEP][2][2]
    text = 'num_nodes: {min: 1, max: 3}\nresources: {accelerators: "cpu:1"}\n'
    job = plane.submit("exact", f"{text}run: python {SCRIPT} {path} {bad}\n")

    def reach(step, ranks):
        def is_there():
            shown = plane.ask("show", job)
            assert not plane.is_over(shown), plane.printed(job)
            attempt = shown["attempts"][-1] if shown["attempts"] else {"shares": [], "ended_at": None}
            live = [rank for share in attempt["shares"] for rank in share["ranks"] if rank["step"]]
            return len(live) == ranks and (shown["progress"]["step"] or 0) >= step

        plane.until(is_there, f"{job} reaches step {step} on {ranks} ranks")

    reach(7, 3)
    kill_rank(plane, job, 1)
    reach(12, 3)
    plane.run("drain", "c", "--within", "1s")
    reach(18, 2)
    plane.run("drain", "b", "--within", "1s")
    reach(24, 1)
    plane.run("drain", "b", "--undo")
    plane.run("drain", "c", "--undo")
    shown = plane.ended(job)
    about = json.dumps([[attempt["placed_because"], attempt["ended_because"]] for attempt in shown["attempts"]], indent=1)
    assert (shown["state"], shown["progress"]["step"]) == ("succeeded", STEPS), about + plane.printed(job)

    by_attempt = trained(tmp_path)
    widths = {len({rank for share in attempt["shares"] for rank in [r["rank"] for r in share["ranks"]]}) for attempt in shown["attempts"]}
    assert {1, 2, 3} <= widths, about
    # The last attempt leaves out the data that made the loss bad twice, and its steps count on without it.
    last = max(by_attempt)
    first = min(by_attempt[last])
    left_out = next(count for count in range(STEPS) if by_attempt[last][first] == oracle[first + count])
    assert first <= BAD_STEP < first + left_out <= BAD_STEP + 25, (first, left_out, about)
    # Every step of every attempt read the samples that are its own, whatever became of the attempt.
    for attempt, steps in by_attempt.items():
        for step, samples in steps.items():
            assert samples == oracle[step + left_out * (attempt == last)], (attempt, step, about)
    # What the model was trained on: each attempt goes on from a checkpoint of those before it.
    final = {}
    for attempt in sorted(by_attempt):
        begun = min(by_attempt[attempt], default=STEPS)
        final = {step: samples for step, samples in final.items() if step < begun} | by_attempt[attempt]
    assert set(final) == set(range(1, STEPS + 1)), (sorted(final), about)
    each = [sample for samples in final.values() for sample in samples]
    assert len(each) == len(set(each)) == BATCH * STEPS and bad not in {number for _, _, number in each}
    print(f"{len(shown['attempts'])} attempts on {sorted(widths)} ranks, batches {first} to {first + left_out - 1} left out")
