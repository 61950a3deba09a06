"""Real training loops of other frameworks: `python loops.py LOOP FOLDER` trains a model to its end, and another that is killed on its
way and resumed; with the word `asked` after it, one rank is asked to save and stop instead. Prints, as JSON, the status and the loss of each step of the three; of a loop of several processes, of each of them.
"""

import contextlib
import importlib
import json
import os
import pathlib
import random
import socket
import sys
import threading
import time
import warnings

import numpy
import torch

STEPS, KILL_AFTER, EVERY = 29, 10, 4
SIZE, BATCH = 24, 4


def model():
    torch.manual_seed(7)
    layers = [torch.nn.Linear(5, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.GELU(), torch.nn.Linear(16, 1)]
    return torch.nn.Sequential(*layers)


def rows():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SIZE, 5, generator=generator), torch.randn(SIZE, 1, generator=generator)


def with_lightning(folder, tell):
    class Loader:
        """Batches in an order of its own for each epoch; says where it is, as Lightning asks of loaders."""

        def __init__(self):
            self.epoch, self.at = 0, 0

        def __len__(self):
            return SIZE // BATCH

        def __iter__(self):
            inputs, targets = rows()
            order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(self.epoch))
            while self.at < len(self):
                chosen = order[self.at * BATCH : (self.at + 1) * BATCH]
                self.at += 1
                yield inputs[chosen], targets[chosen]
            self.epoch, self.at = self.epoch + 1, 0

        def state_dict(self):
            return {"epoch": self.epoch, "at": self.at}

        def load_state_dict(self, state):
            self.epoch, self.at = state["epoch"], state["at"]

    fit_with_lightning(Loader(), folder, tell)


class Noisy(torch.utils.data.Dataset):
    """The rows with noise that is drawn whenever one is asked for, by whoever asks."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        inputs, targets = rows()
        return inputs[index] + 0.1 * torch.randn(5) + random.random(), targets[index]


def with_standard(folder, tell, **options):
    """Lightning with torch's own data loader, in the order that generators say."""
    fit_with_lightning(torch.utils.data.DataLoader(Noisy(), BATCH, **{"shuffle": True, **options}), folder, tell)


def with_workers(folder, tell):
    with_standard(folder, tell, num_workers=2)


def with_generator(folder, tell):
    with_standard(folder, tell, generator=torch.Generator().manual_seed(5))


def with_drawn(folder, tell):
    sampler = torch.utils.data.WeightedRandomSampler(torch.arange(1.0, SIZE + 1), SIZE)
    with_standard(folder, tell, shuffle=False, sampler=sampler)


def with_limit(folder, tell):
    fit_with_lightning(torch.utils.data.DataLoader(Noisy(), BATCH, shuffle=True), folder, tell, limit_train_batches=4)


def with_ddp(folder, tell):
    fit_with_lightning(torch.utils.data.DataLoader(Noisy(), BATCH, shuffle=True), folder, tell, strategy="ddp", devices=2)


def numbers(folder):
    """A file of tokens below 64, in no order."""
    path, aside = folder / "numbers.bin", folder / f"numbers.{os.getpid()}"
    numpy.random.default_rng(1).integers(0, 64, 8 * 40 + 1, numpy.uint16).tofile(aside)
    # Each process would, and only the first does.
    with contextlib.suppress(FileExistsError):
        os.link(aside, path)
    return path


def tokens(folder, **options):
    import gangline

    # Neither two processes nor the passes divide the batches.
    return gangline.Tokens(numbers(folder), sequence_length=8, global_batch=7, seed=3, source_dtype="uint16", **options)


def language_model():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Embedding(64, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 64))


def with_tokens(folder, tell, **options):
    fit_with_lightning(tokens(folder), folder, tell, net=language_model(), loss=of_labels, **options)


def with_endless_tokens(folder, tell):
    """Without a length, Lightning requests a batch ahead; and it ends epochs that the data doesn't."""
    loader = torch.utils.data.DataLoader(tokens(folder, epochs=None), batch_size=None)
    fit_with_lightning(loader, folder, tell, net=language_model(), loss=of_labels, limit_train_batches=4)


def with_tokens_ddp(folder, tell):
    with_tokens(folder, tell, strategy="ddp", devices=2)


def of_labels(found, labels):
    return torch.nn.functional.cross_entropy(found.view(-1, 64), labels.view(-1))


def fit_with_lightning(loader, folder, tell, net=None, loss=torch.nn.functional.mse_loss, **options):
    import pytorch_lightning as lightning
    from gangline.lightning import CheckpointCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net or model()

        def training_step(self, batch, index):
            inputs, targets = batch
            return loss(self.net(inputs), targets)

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    checkpoints = CheckpointCallback(folder / "store", EVERY, overlap=True)

    class Tell(lightning.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            tell(trainer.global_step, outputs["loss"].item(), checkpoints.last)

    rank = int(os.environ.get("RANK", "0"))
    torch.manual_seed(11 + rank), random.seed(13 + rank)
    trainer = lightning.Trainer(
        max_steps=STEPS, callbacks=[checkpoints, Tell()], logger=False, accelerator="cpu", enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, **options,
    )  # fmt: skip
    trainer.fit(Module(), loader, ckpt_path=checkpoints.newest())


def with_transformers(folder, tell, **options):
    from gangline.transformers import CheckpointCallback, Trainer
    from transformers import TrainerCallback, TrainingArguments

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = model()

        def forward(self, inputs, labels):
            found = self.net(inputs)
            return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}

    checkpoints = CheckpointCallback(folder / "store", EVERY, overlap="RANK" not in os.environ)

    class Tell(TrainerCallback):
        def on_log(self, args, state, control, logs, **kwargs):
            if "loss" in logs:
                tell(state.global_step, logs["loss"], checkpoints.last)

    arguments = TrainingArguments(
        output_dir=str(folder / "out"), max_steps=STEPS, per_device_train_batch_size=BATCH, learning_rate=0.02, weight_decay=0.1,
        save_strategy="no", logging_steps=1, report_to=[], use_cpu=True, disable_tqdm=True, lr_scheduler_type="cosine", seed=3,
    )  # fmt: skip
    data = [{"inputs": inputs, "labels": labels} for inputs, labels in zip(*rows(), strict=True)]
    data = options.get("data", data)
    trainer = Trainer(options.get("net") or Module(), arguments, train_dataset=data, callbacks=[checkpoints, Tell()])
    trainer.train(resume_from_checkpoint=checkpoints.newest())


def with_transformers_tokens(folder, tell):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(7)
    net = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    with_transformers(folder, tell, net=net, data=tokens(folder, labels="same"))


def with_transformers_tokens_ddp(folder, tell):
    with_transformers_tokens(folder, tell)


def with_transformers_ddp(folder, tell):
    with_transformers(folder, tell)


def ganged(loop, folder, kill_after):
    """Two processes train as torchrun would start them: the same of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(2):
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "x"}
        os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        ranks.append(started(loop, folder, kill_after))
    return [ended(*one) for one in ranks]


class Supervisor:
    """Listens as the supervisor of a rank does, and asks it to save and stop once it has told of a step."""

    def __init__(self, folder):
        self.step = folder / "step"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(folder / "rank.sock"))
        self.listener.listen()
        threading.Thread(target=self.ask, daemon=True).start()

    def ask(self):
        connection, _ = self.listener.accept()
        while not self.step.exists():
            time.sleep(0.01)
        connection.sendall(b'{"order":"save_and_stop","grace_ms":60000,"reason":"test"}\n')
        # What the rank says is read until it ends.
        while connection.recv(1 << 16):
            pass


def played(loop, folder, kill_after):
    """Trains in a child: its status, and the losses that it told of."""
    return ended(*started(loop, folder, kill_after))


def started(loop, folder, kill_after):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        os.dup2(2, 1)  # what frameworks print
        # Only the last rank is asked, as if the others' orders were late.
        is_last = os.environ.get("RANK", "0") == str(int(os.environ.get("WORLD_SIZE", "1")) - 1)
        if kill_after == "asked":
            from gangline import _report

            _report._connection = _report._Connection(str(folder / ("rank.sock" if is_last else "late.sock")))

        def tell(step, loss, last):
            os.write(writing, f"{step} {loss!r}\n".encode())
            if kill_after == "asked":
                if step == KILL_AFTER and is_last:
                    (folder / "step").touch()
            elif step == kill_after:
                last.durable()
                os.kill(os.getpid(), 9)

        globals()[f"with_{loop}"](folder, tell)
        sys.exit()
    os.close(writing)
    return child, reading


def ended(child, reading):
    with open(reading) as told:
        losses = [line.split() for line in told]
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), losses


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    loop, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    # What the children would import one by one.
    importlib.import_module("gangline.transformers" if loop.startswith("transformers") else "gangline.lightning")
    play = ganged if loop.endswith("ddp") else played
    (folder / "whole").mkdir(), (folder / "killed").mkdir()
    how = "asked" if "asked" in sys.argv[3:] else KILL_AFTER
    supervisor = Supervisor(folder / "killed") if how == "asked" else None
    runs = (("whole", None), ("killed", how), ("killed", None))
    print(json.dumps([play(loop, folder / name, kill_after) for name, kill_after in runs]))
