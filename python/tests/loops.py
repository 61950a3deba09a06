"""Real training loops of other frameworks: `python loops.py LOOP FOLDER` trains a model to its end, and another that is killed on its
way and resumed. Prints, as JSON, the status and the loss of each step of the three; of a loop of several processes, of each of them.
"""

import importlib
import json
import os
import pathlib
import random
import socket
import sys
import warnings

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


def fit_with_lightning(loader, folder, tell, **options):
    import pytorch_lightning as lightning
    from gangline.lightning import CheckpointCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = model()

        def training_step(self, batch, index):
            inputs, targets = batch
            return torch.nn.functional.mse_loss(self.net(inputs), targets)

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


def with_transformers(folder, tell):
    from gangline.transformers import CheckpointCallback
    from transformers import Trainer, TrainerCallback, TrainingArguments

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
    trainer = Trainer(Module(), arguments, train_dataset=data, callbacks=[checkpoints, Tell()])
    trainer.train(resume_from_checkpoint=checkpoints.newest())


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


def played(loop, folder, kill_after):
    """Trains in a child: its status, and the losses that it told of."""
    return ended(*started(loop, folder, kill_after))


def started(loop, folder, kill_after):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        os.dup2(2, 1)  # what frameworks print

        def tell(step, loss, last):
            os.write(writing, f"{step} {loss!r}\n".encode())
            if step == kill_after:
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
    runs = (("whole", None), ("killed", KILL_AFTER), ("killed", None))
    print(json.dumps([play(loop, folder / name, kill_after) for name, kill_after in runs]))
