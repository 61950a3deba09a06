"""Trains a tiny GPT-2 of transformers on tokens, as a job whose checkpoints become models."""

import os
import sys

import gangline
import torch
from transformers import GPT2Config, GPT2LMHeadModel

data, steps, folder = sys.argv[1], int(sys.argv[2]), os.environ["GANGLINE_CHECKPOINT_DIR"]
torch.manual_seed(0)
config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
tokens = gangline.Tokens(data, sequence_length=16, global_batch=4, seed=3, labels="same", epochs=None)
store = gangline.Store(folder, keep=2)
for step in range(1, steps + 1):
    batch = tokens.next_batch()
    loss = model(**batch).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    gangline.report(step=step, loss=loss.item())
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": tokens}
    store.save(step, state, {"loss": loss.item()}).durable()
store.close()
config.save_pretrained(os.environ["CONFIG"])
torch.save(model.state_dict(), os.path.join(os.environ["CONFIG"], "expected.pt"))
