"""`python -m gangline import SOURCE STORE --step N`: imports a checkpoint that torch wrote, as `gangline
checkpoint import` does."""

import argparse
import json
import pathlib
import sys

from .errors import Error, Refused


def main(arguments=None):
    """Runs the command line, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m gangline", description="Checkpoints for PyTorch, numpy and JAX.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("import", help="bring a checkpoint that torch wrote into a store")
    command.add_argument("source", type=pathlib.Path, help="a file of torch.save, or a folder of torch.distributed.checkpoint")
    command.add_argument("store", type=pathlib.Path, help="the folder of checkpoints; it is made if it isn't there")
    command.add_argument("--step", type=int, required=True, help="the step that the checkpoint gets")
    command.add_argument("--json", action="store_true", help="say what there is then as JSON")
    try:
        told = _import(parser.parse_args(arguments))
    except Error as error:
        print(f"failed to {error}", file=sys.stderr)
        return 1
    print(told)
    return 0


def _import(args):
    from ._imports import import_checkpoint
    from ._store import Store

    if not args.source.exists():
        raise Refused(f"import {args.source}: there is no such file or folder")
    with Store(args.store, keep=None) as store:
        if args.step in [listed.step for listed in store.list()]:
            raise Refused(f"import {args.source}: there is a checkpoint of step {args.step} in {args.store}; choose another --step")
        saved = import_checkpoint(args.source, store, args.step)
        [info] = [listed.info for listed in store.list() if listed.step == args.step]
    files = sum(1 for path in args.source.iterdir() if path.suffix == ".distcp") if args.source.is_dir() else 1
    told = {"step": args.step, "files": files, "tensors": len(info.tensors), "bytes": saved.bytes}
    if args.json:
        return json.dumps({**told, "content_hash": saved.content_hash}, indent=2)
    return f"step {args.step}: {told['tensors']} tensors, {told['bytes']} bytes of {files} files, written and checked"


if __name__ == "__main__":
    sys.exit(main())
