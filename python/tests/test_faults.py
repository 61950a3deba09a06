"""What goes wrong below: flipped bits, killed writers, full disks, programs that end early."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import warnings

import gangline
import numpy
import pytest
import torch
from gangline._pieces import own_bytes
from gangline._store import Writer


def run(path, code, **options):
    """Runs a script with the store's folder as its first argument."""
    script = "import gangline, numpy, os, sys\npath = sys.argv[1]\n" + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, timeout=120, **options)


def save(path, *steps):
    with gangline.Store(path, keep=None) as store:
        for step in steps:
            store.save(step, {"model": {"w": torch.full((1000,), float(step)), "b": torch.ones(7)}, "step": step}).durable()


def flip(path, step, needle):
    """Flips a bit of the tensor whose bytes are these."""
    [shard] = pathlib.Path(path, f"step-{step:010}").glob("*.safetensors")
    data = bytearray(shard.read_bytes())
    data[data.index(needle) + 1] ^= 4
    shard.write_bytes(data)
    return shard


def test_a_flipped_bit_is_named_and_the_checkpoint_before_is_offered(tmp_path):
    save(tmp_path, 1, 2)
    shard = flip(tmp_path, 2, torch.full((1000,), 2.0).numpy().tobytes())
    store = gangline.Store(tmp_path)
    with pytest.raises(gangline.Corrupt, match="model.w") as corrupt:
        store.load(2)
    assert shard.name in str(corrupt.value)
    report = store.verify(2)
    [problem] = report.problems
    assert (report.is_good, problem.tensor, problem.file) == (False, "model.w", str(shard))
    with pytest.warns(gangline.SkippedWarning, match="step 2"):
        assert store.load()["step"] == 1
    with pytest.warns(gangline.SkippedWarning, match="step 2"):
        assert store.latest().step == 1
    into = {"model": {"w": torch.zeros(1000), "b": torch.zeros(7)}, "step": 0}
    with pytest.warns(gangline.SkippedWarning):
        assert store.load(into=into)["model"]["w"].unique().tolist() == [1]
    assert store.verify(1).is_good


def test_flipped_values_are_found_too(tmp_path):
    save(tmp_path, 1)
    flip(tmp_path, 1, b'{"version"')
    with pytest.raises(gangline.Corrupt, match="__gangline__.values"):
        gangline.Store(tmp_path).load(1)


def test_a_writer_killed_in_a_save_leaves_the_one_before(tmp_path):
    save(tmp_path, 1)
    code = """
        from gangline._pieces import bytes_piece
        from gangline._store import Writer
        store = Writer(path, (0, 2, 0), None)  # rank 1 of the gang never comes, so this save can't end
        store.send(2, [bytes_piece("w", bytes(1000)), bytes_piece("v", bytes(1000))], None)
        while not os.path.exists(path + "/.partial-0000000002-by-0-of-2/shard-00000-of-00002.safetensors"):
            pass
        os.kill(os.getpid(), 9)
    """
    assert run(tmp_path, code).returncode == -signal.SIGKILL
    assert [name for name in os.listdir(tmp_path) if name.startswith(".partial")], "it was killed half-way"
    store = gangline.Store(tmp_path)
    assert store.load()["step"] == 1 and [listed.step for listed in store.list()] == [1]
    assert sorted(os.listdir(tmp_path)) == [".gangline", "step-0000000001"], "the rest was cleared away"


def test_a_killed_writer_never_leaves_anything_but_a_good_checkpoint(tmp_path):
    code = """
        store = gangline.Store(path)
        for step in range(10**6):
            save = store.save(step, {"w": numpy.full(1 << 19, float(step)), "step": step})
            if not step:
                save.durable()
                print("ready", flush=True)
    """
    script = "import gangline, numpy, sys\npath = sys.argv[1]\n" + textwrap.dedent(code)
    for delay in (0.2, 0.31, 0.45):
        with subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE) as child:
            assert child.stdout.readline() == b"ready\n"
            time.sleep(delay)  # anywhere: what must hold must hold at every instant
            child.kill()
        with gangline.Store(tmp_path) as store:
            state = store.load()
            assert numpy.unique(state["w"]).tolist() == [state["step"]]
            assert all(store.verify(listed.step).is_good for listed in store.list())


def test_the_end_of_the_program_waits_for_what_is_under_way(tmp_path):
    ended = run(tmp_path, "store = gangline.Store(path); store.save(1, {'w': numpy.ones(8 << 20)})")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert gangline.Store(tmp_path).latest().step == 1


BREAK = """
    import shutil
    store = gangline.Store(path + "/s")
    store.save(1, {"step": 1}).durable()
    shutil.rmtree(path + "/s")
    open(path + "/s", "w").close()
    save = store.save(2, {"step": 2})
"""


def test_a_failure_in_the_background_is_raised_by_who_asks_and_else_by_the_next_save(tmp_path):
    asked = "try:\n    save.durable()\nexcept gangline.IoFailed as error:\n    print('asked', error)\nstore.close()"
    ended = run(tmp_path, textwrap.dedent(BREAK) + asked)
    assert ended.returncode == 0 and ended.stdout.startswith("asked"), ended
    (tmp_path / "s").unlink()
    unasked = "while not save.done(): pass\nstore.save(3, {})"
    ended = run(tmp_path, textwrap.dedent(BREAK) + unasked)
    assert ended.returncode == 1 and "IoFailed" in ended.stderr, ended


@pytest.mark.parametrize("end", ["store.close()", "", "del store"])
def test_a_failure_nobody_asked_about_never_ends_in_success(tmp_path, end):
    ended = run(tmp_path, textwrap.dedent(BREAK) + end)
    assert ended.returncode == 1 and "IoFailed" in ended.stderr, ended


def test_an_exception_in_the_block_is_not_hidden_by_a_failed_save(tmp_path):
    with pytest.warns(gangline.SaveFailedWarning), pytest.raises(ZeroDivisionError):
        with gangline.Store(tmp_path / "s") as store:
            shutil.rmtree(tmp_path / "s")
            (tmp_path / "s").write_text("")
            store.save(1, {})
            raise ZeroDivisionError


def test_retention_that_fails_is_a_warning_at_the_next_save_or_at_the_end(tmp_path):
    store = gangline.Store(tmp_path, keep=1)
    store.save(1, {}).durable()
    in_the_way = tmp_path / ".deleted-0000000001"  # where step 1 is moved before it is removed
    in_the_way.write_text("")
    saved = store.save(2, {}).durable()
    assert saved.removed == () and ".deleted-0000000001" in saved.retention_error
    with pytest.warns(gangline.RetentionFailedWarning, match="step 2 is durable") as warned:
        store.save(3, {})
    assert warned[0].filename == __file__
    with pytest.warns(gangline.RetentionFailedWarning, match="step 3 is durable"):
        store.close()
    in_the_way.unlink()
    with warnings.catch_warnings(action="error"), gangline.Store(tmp_path, keep=1) as store:
        assert store.save(4, {}).durable().removed == (1, 2, 3)


def test_a_wait_may_be_bounded_and_asked_again(tmp_path):
    first, second = Writer(tmp_path, (0, 2, 0), None), Writer(tmp_path, (1, 2, 0), None)
    one = first.send(1, [own_bytes("a", b"1")], None)
    for seconds in (0, 0.01):
        with pytest.raises(gangline.TimedOut, match="step 1"):
            one.durable(timeout=seconds)
    assert not one.done()
    other = second.send(1, [own_bytes("b", b"2")], None)
    assert one.durable(timeout=60).step == other.durable().step == 1 == one.durable().step
    assert one.done()
    first.close(), second.close()


def test_a_forked_child_leaves_the_store_alone(tmp_path):
    code = """
        store = gangline.Store(path)
        store.save(1, {"step": 1})
        child = os.fork()
        if not child:
            try:
                store.save(2, {})
            except gangline.Refused as refused:
                print(refused, flush=True)
            store.close()
            del store
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        store.save(3, {"step": 3})
    """
    ended = run(tmp_path, code)
    assert ended.stdout.splitlines() == ["use a store in a forked process: open it again there", "7"], ended
    assert gangline.Store(tmp_path).latest().step == 3


def test_the_gil_is_free_while_a_save_copies_and_waits(tmp_path):
    import threading

    ticks, stop = [0], threading.Event()

    def tick():
        while not stop.is_set():
            ticks[0] += 1

    thread = threading.Thread(target=tick)
    with gangline.Store(tmp_path) as store:
        state = {"w": torch.ones(128 << 20)}
        thread.start()
        before = ticks[0]
        save = store.save(1, state)
        during_copy, before = ticks[0] - before, ticks[0]
        save.durable()
        during_wait = ticks[0] - before
        stop.set()
    thread.join()
    assert during_copy > 1000 and during_wait > 1000, (during_copy, during_wait)


def test_a_disk_error_is_passed_over_like_a_flipped_bit(tmp_path):
    save(tmp_path, 1, 2)
    manifest = tmp_path / "step-0000000002" / "manifest.json"
    manifest.unlink()
    # Linux answers every read of it at 0 with EIO.
    manifest.symlink_to("/proc/self/mem")
    with pytest.raises(OSError, match="Input/output error"):
        manifest.read_bytes()
    store = gangline.Store(tmp_path)
    with pytest.warns(gangline.SkippedWarning, match="step 2"):
        assert store.load()["step"] == 1
    with pytest.warns(gangline.SkippedWarning, match="step 2"):
        assert store.latest().step == 1
    with pytest.raises(gangline.Corrupt, match="can't be read to its end"):
        store.load(2)


def test_a_folder_whose_name_is_not_utf_8_is_a_store_like_any_other(tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    save(folder, 1, 2)
    flip(folder, 2, torch.full((1000,), 2.0).numpy().tobytes())
    store = gangline.Store(folder)
    [problem] = store.verify(2).problems
    assert problem.tensor == "model.w" and "caf" in problem.file
    with pytest.warns(gangline.SkippedWarning, match="step 2"):
        assert store.load()["step"] == 1


def test_what_the_system_refuses_has_its_number(tmp_path):
    code = """
        import errno, resource
        store = gangline.Store(path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        try:
            store.save(1, {"w": numpy.zeros(1 << 20)}).durable()
        except gangline.IoFailed as failed:
            print(failed.errno == errno.EFBIG, "File too large" in str(failed))
    """
    ran = run(tmp_path, code)
    assert ran.stdout == "True True\n", ran.stdout + ran.stderr
