"""Real training loops of other frameworks: `python loops.py FRAMEWORK FOLDER` trains a model to its end, and another that is killed
on its way and resumed. Prints, as JSON, the status and the loss of each step of the three.
"""

import importlib
import json
import os
import pathlib
import sys
import warnings

import torch

STEPS, KILL_AFTER, EVERY = 14, 9, 4
SIZE, BATCH = 24, 4


def model():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Dropout(0.3), torch.nn.GELU(), torch.nn.Linear(16, 1))


def rows():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SIZE, 5, generator=generator), torch.randn(SIZE, 1, generator=generator)


def with_lightning(folder, tell):
    import pytorch_lightning as lightning
    from gangline.lightning import CheckpointCallback

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

    checkpoints = CheckpointCallback(folder / "store", EVERY)

    class Tell(lightning.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            tell(trainer.global_step, outputs["loss"].item(), checkpoints.last)

    torch.manual_seed(11)
    trainer = lightning.Trainer(
        max_steps=STEPS, callbacks=[checkpoints, Tell()], logger=False, accelerator="cpu", enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(Module(), Loader(), ckpt_path=checkpoints.newest())


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

    checkpoints = CheckpointCallback(folder / "store", EVERY)

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


def played(framework, folder, kill_after):
    """Trains in a child: its status, and the losses that it told of."""
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

        globals()[f"with_{framework}"](folder, tell)
        sys.exit()
    os.close(writing)
    with open(reading) as told:
        losses = [line.split() for line in told]
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), losses


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    framework, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    # What the children would import one by one.
    importlib.import_module({"lightning": "gangline.lightning", "transformers": "gangline.transformers"}[framework])
    (folder / "whole").mkdir(), (folder / "killed").mkdir()
    runs = (("whole", None), ("killed", KILL_AFTER), ("killed", None))
    print(json.dumps([played(framework, folder / name, kill_after) for name, kill_after in runs]))
