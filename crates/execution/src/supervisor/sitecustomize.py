"""Written by Gangline: lets this process write its stacks to a file when the supervisor of a hung rank asks.

Python imports one module of this name when it starts. This one hands on to the next, if there is one, and leaves
nothing else behind. GANGLINE_STACKS set to nothing in a job's `envs` switches it off.
"""


def _offer_stacks():
    import os

    path = os.environ.get("GANGLINE_STACKS")
    if not path:
        return
    import _signal
    import faulthandler

    # SIGSTKFLT: Linux never sends it by itself, and no known program uses it.
    number = 16
    if _signal.getsignal(number) == _signal.SIG_DFL:
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        faulthandler.register(number, file=file, all_threads=True)


def _hand_on():
    import os
    import sys

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != here]
    this = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize":
            raise
    finally:
        if this is not None:
            sys.modules.setdefault("sitecustomize", this)


try:
    _offer_stacks()
except Exception:
    # No process fails because its stacks can't be shown.
    pass
_hand_on()
