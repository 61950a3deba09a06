"""Memory that a store takes for copies of what it saves: bounded, and given back, as its settings say."""

import subprocess
import sys
import textwrap

import gangline
import pytest
import torch

STATE_MIB = 96


def resident(folder, options):
    """What a process holds beyond its state after two saves at once and one more, in sizes of the state; then after `close`."""
    code = f"""
        import pathlib, sys
        import gangline, numpy

        def pages():
            return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096 / ({STATE_MIB} << 20)

        state = {{"w": numpy.ones({STATE_MIB} << 20, numpy.uint8)}}
        store = gangline.Store(sys.argv[1], **{options!r})
        store.save(1, {{"w": numpy.ones(8, numpy.uint8)}}).durable()
        before = pages()
        saves = [store.save(step, state) for step in (2, 3)]
        highest = pages() - before
        [save.durable() for save in saves]
        store.save(4, state).durable()
        kept = pages() - before
        store.close()
        print(highest, kept, pages() - before)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code), folder], capture_output=True, text=True, check=True)
    return [float(figure) for figure in ended.stdout.split()]


def test_two_copies_are_kept_until_close(tmp_path):
    _, kept, closed = resident(tmp_path, {})
    assert 0.9 < kept < 2.3 and closed < 0.3


def test_memory_is_given_back_after_each_save_if_that_is_wanted(tmp_path):
    _, kept, closed = resident(tmp_path, {"keep_memory": False})
    assert kept < 0.3 and closed < 0.3


def test_copies_take_no_more_than_is_allowed(tmp_path):
    highest, kept, _ = resident(tmp_path, {"memory_max": int(1.5 * STATE_MIB) << 20})
    assert highest < 1.3 and 0.9 < kept < 1.3


def test_a_save_that_can_never_fit_and_what_is_no_size_are_refused(tmp_path):
    with gangline.Store(tmp_path, memory_max=1 << 20) as store:
        with pytest.raises(gangline.Refused, match="memory_max"):
            store.save(1, {"w": torch.ones(1 << 20)})
        store.save(1, {"w": torch.ones(1000)}).durable()
    for wrong in (0, -1, 1.5, "1GB"):
        with pytest.raises(gangline.Refused, match="give a number of bytes"):
            gangline.Store(tmp_path, memory_max=wrong)
