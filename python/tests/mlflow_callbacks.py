"""Trains with Hugging Face's and with Lightning's trainer, which log to MLflow by their own callbacks, and prints what the server
has of both runs as JSON: test_mlflow.py compares a real server's with Gangline's.

Usage: python mlflow_callbacks.py URI FOLDER
"""

import json
import os
import sys

import mlflow
import torch
import transformers
from mlflow import MlflowClient
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.loggers import MLFlowLogger
from torch.utils.data import DataLoader

SAMPLES, STEPS = 16, 6


class Small(LightningModule):
    def __init__(self, width=4):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(width, 1)

    def training_step(self, batch, _):
        loss = self.layer(batch).square().mean()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def lightning(uri, folder):
    torch.manual_seed(1)
    logger = MLFlowLogger("lightning", run_name="small", tracking_uri=uri, log_model=False)
    trainer = Trainer(
        max_steps=STEPS, log_every_n_steps=1, logger=logger, accelerator="cpu", default_root_dir=folder,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(Small(), DataLoader(torch.randn(SAMPLES, 4), batch_size=2))


def hugging_face(folder):
    torch.manual_seed(1)
    os.environ["MLFLOW_EXPERIMENT_NAME"] = "hugging-face"
    config = transformers.GPT2Config(n_layer=1, n_head=1, n_embd=8, n_positions=8, vocab_size=32)
    words = torch.arange(SAMPLES * 8).reshape(SAMPLES, 8) % 32
    arguments = transformers.TrainingArguments(
        output_dir=folder, max_steps=STEPS, logging_steps=2, per_device_train_batch_size=2, report_to="mlflow", run_name="tiny",
        save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    data = [{"input_ids": row, "labels": row} for row in words]
    transformers.Trainer(transformers.GPT2LMHeadModel(config), arguments, train_dataset=data).train()


def shown(client, experiment):
    """The run without times and places, which differ between any two trainings."""
    (run,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    # Two logs of one value at one step are one point if they fall into one millisecond.
    steps = {key: sorted({point.step for point in client.get_metric_history(run.info.run_id, key)}) for key in sorted(run.data.metrics)}
    losses = {key: value for key, value in run.data.metrics.items() if key.endswith("loss")}
    params = {key: value for key, value in run.data.params.items() if "dir" not in key}
    return {"name": run.info.run_name, "status": run.info.status, "steps": steps, "losses": losses, "params": params, "tags": sorted(run.data.tags)}


if __name__ == "__main__":
    uri, folder = sys.argv[1:]
    mlflow.set_tracking_uri(uri)
    lightning(uri, folder)
    hugging_face(folder)
    client = MlflowClient()
    print(json.dumps({name: shown(client, name) for name in ("lightning", "hugging-face")}))
