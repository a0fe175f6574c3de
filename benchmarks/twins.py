"""Makes a small twin of a model, to draft for it: some of its layers, trained a little to continue as the model does.

    python -m benchmarks.twins checkpoints/tiny TWIN --layers 2 --steps 150
    python -m benchmarks.twins SmolLM2-135M.gguf TWIN.gguf --layers 15 --questions "Write a story." "What is rain?"

Layers are left out one after the other: the one without which the model still agrees best with itself. A twin of a GGUF
file is one, too, with the tensors as they are, unless it is trained. It learns from answers of the model itself, at
temperature 1: no other text is needed.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import gguf
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import kl_div, log_softmax
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from benchmarks import tasks
from benchmarks.report import print_table
from engine_core.llm import LLM
from engine_core.request import SamplingParams

_LAYER = re.compile(r"(model\.layers\.|blk\.)(\d+)(\..+)")


@dataclass(frozen=True, slots=True)
class Training:
    """How a twin is trained."""

    steps: int
    texts: int = 256
    """That the model writes."""
    length: int = 128
    """Their tokens."""
    texts_per_step: int = 16
    rate: float = 1e-3
    seed: int = 0


def prune(source: Path, kept: Sequence[int], output: Path) -> None:
    """Write the checkpoint ``source`` with the layers ``kept`` alone: a directory, or a GGUF file."""
    if source.is_dir():
        _prune_directory(source, kept, output)
    else:
        _prune_gguf(source, kept, output)


def _place(name: str, kept: Sequence[int]) -> str | None:
    """The name of a tensor in the twin; None if it is left out."""
    found = _LAYER.fullmatch(name)
    if found is None:
        return name
    head, layer, tail = found.groups()
    return f"{head}{kept.index(int(layer))}{tail}" if int(layer) in kept else None


def _prune_directory(source: Path, kept: Sequence[int], output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.is_file() and file.suffix in (".json", ".jinja", ".model"):
            shutil.copy(file, output)
    config = json.loads((source / "config.json").read_text())
    config["num_hidden_layers"] = len(kept)
    if config.get("layer_types"):
        config["layer_types"] = [config["layer_types"][layer] for layer in kept]
    (output / "config.json").write_text(json.dumps(config, indent=2))
    tensors = {
        name: tensor for file in sorted(source.glob("*.safetensors")) for name, tensor in load_file(file).items()
    }
    placed = {_place(name, kept): tensor for name, tensor in tensors.items()}
    (output / "model.safetensors.index.json").unlink(missing_ok=True)
    save_file({name: tensor for name, tensor in placed.items() if name}, output / "model.safetensors", {"format": "pt"})


def _prune_gguf(source: Path, kept: Sequence[int], output: Path) -> None:
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(output, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind, item = field.types[0], field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        value = len(kept) if name == f"{architecture}.block_count" else field.contents()
        writer.add_key_value(name, value, kind, sub_type=item)
    for tensor in reader.tensors:
        if (name := _place(tensor.name, kept)) is not None:
            writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def load(source: Path) -> Any:
    """The model of transformers that computes a checkpoint, in float32."""
    auto: Any = AutoModelForCausalLM
    if source.is_dir():
        return auto.from_pretrained(source, dtype=torch.float32).eval()
    config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
    model = auto.from_config(config, dtype=torch.float32)
    read: Any = load_gguf_checkpoint
    stored = read(str(source), return_tensors=True, model_to_load=model)["tensors"]
    model.load_state_dict(stored, strict=not config.tie_word_embeddings)
    model.tie_weights()
    return model.eval()


@torch.inference_mode()
def choose_layers(model: Any, texts: torch.Tensor, count: int) -> list[int]:
    """The ``count`` layers that keep most of the model's distributions over ``texts`` [B, L].

    Agreement is the sum over tokens of the smaller of two probabilities, in the mean over positions.
    """
    body, every = model.model, list(model.model.layers)
    kept, wanted = list(range(len(every))), model(texts, use_cache=False).logits.softmax(-1)

    def agreement(layers: Sequence[int]) -> float:
        body.layers = torch.nn.ModuleList(every[layer] for layer in layers)
        model.config.num_hidden_layers = len(layers)
        found = model(texts, use_cache=False).logits.softmax(-1)
        return float(torch.minimum(wanted, found).sum(-1).mean())

    while len(kept) > count:
        without = {layer: agreement([other for other in kept if other != layer]) for layer in kept[:-1]}
        worst = max(without, key=without.__getitem__)
        kept.remove(worst)
        print(f"without layer {worst}: {len(kept)} layers agree by {without[worst]:.2f}", flush=True)
    body.layers, model.config.num_hidden_layers = torch.nn.ModuleList(every), len(every)
    return kept


def write_texts(source: Path, count: int, length: int, prompts: Sequence[list[int]], seed: int = 0) -> torch.Tensor:
    """Texts [B, L] that the model writes at temperature 1 after ``prompts``, or after any of its tokens."""
    drawn = Random(seed)
    with LLM(str(source), max_num_seqs=64, kv_cache_memory_bytes="256MiB", max_model_len=max(256, 2 * length)) as llm:
        if prompts:
            begun = [drawn.choice(prompts)[: length // 2] for _ in range(count)]
        else:
            begun = [[drawn.randrange(llm.model.vocab_size)] for _ in range(count)]
        params = [
            SamplingParams(seed=drawn.randrange(1 << 32), max_tokens=length - len(prompt), ignore_eos=True)
            for prompt in begun
        ]
        results = llm.generate(begun, params, use_tqdm=False)
    return torch.tensor(
        [[*prompt, *result.outputs[0].token_ids] for prompt, result in zip(begun, results, strict=True)]
    )


def train(source: Path, kept: Sequence[int], twin: Path, prompts: Sequence[list[int]], training: Training) -> None:
    """Train the layers ``kept`` to have the distributions of all; writes the directory ``twin``, in bfloat16."""
    texts = write_texts(source, training.texts, training.length, prompts, training.seed)
    teacher, student = load(source), load(source).train()
    _keep_layers(student, kept)
    optimizer = torch.optim.AdamW(student.parameters(), lr=training.rate, weight_decay=0.0)
    for step, chosen in enumerate(_batches(len(texts), training)):
        for group in optimizer.param_groups:
            group["lr"] = training.rate * min(1.0, (step + 1) / 20) * (1 - step / training.steps)
        with torch.no_grad():
            wanted = log_softmax(teacher(texts[chosen], use_cache=False).logits, -1)
        found = log_softmax(student(texts[chosen], use_cache=False).logits, -1)
        loss: Any = kl_div(found.flatten(0, 1), wanted.flatten(0, 1), log_target=True, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step + 1 == training.steps:
            print(f"step {step}: {loss.item():.3f} nats", flush=True)
    student.to(torch.bfloat16).save_pretrained(twin)
    _copy_texts(source, twin)


def _keep_layers(model: Any, kept: Sequence[int]) -> None:
    model.model.layers = torch.nn.ModuleList(model.model.layers[layer] for layer in kept)
    model.config.num_hidden_layers = len(kept)
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = [model.config.layer_types[layer] for layer in kept]


def _copy_texts(source: Path, directory: Path) -> None:
    """Copy the tokenizer and its templates."""
    if source.is_dir():
        for file in source.iterdir():
            if file.suffix == ".jinja" or file.name.startswith(("tokenizer", "special_tokens")):
                shutil.copy(file, directory)
    else:
        AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(directory)


def _batches(count: int, training: Training) -> Iterator[list[int]]:
    drawn, waiting = Random(training.seed), list[int]()
    for _ in range(training.steps):
        if len(waiting) < training.texts_per_step:
            waiting = drawn.sample(range(count), count)
        chosen, waiting = waiting[: training.texts_per_step], waiting[training.texts_per_step :]
        yield chosen


def make_twin(
    source: Path, output: Path, layers: int, prompts: Sequence[list[int]], training: Training | None
) -> list[int]:
    """Write a twin of ``source`` to ``output``; returns the layers that it has."""
    texts = write_texts(source, 2, 96, prompts, seed=1)
    kept = choose_layers(load(source), texts, layers)
    if training is None:
        prune(source, kept, output)
    else:
        train(source, kept, output, prompts, training)
    return kept


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="MODEL")
    parser.add_argument("output", type=Path, metavar="TWIN")
    parser.add_argument("--layers", type=int, required=True, help="that the twin has")
    parser.add_argument("--steps", type=int, default=0, help="of training (%(default)s)")
    parser.add_argument("--texts", type=int, default=256, help="that the model writes to train it (%(default)s)")
    parser.add_argument("--questions", nargs="+", default=[], help="that they answer; by default, they begin anywhere")
    arguments = parser.parse_args()
    training = Training(arguments.steps, arguments.texts) if arguments.steps else None
    prompts = tasks.chats(tasks.tokenizer_of(arguments.source), arguments.questions) if arguments.questions else []
    kept = make_twin(arguments.source, arguments.output, arguments.layers, prompts, training)
    print_table([{"twin": str(arguments.output), "layers": " ".join(map(str, kept))}])


if __name__ == "__main__":
    main()
