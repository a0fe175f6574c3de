"""Embedding models to measure: BERT's shapes with random weights, in sentence-transformers' layout.

``python -m benchmarks.embedding_shapes MODEL FILE.gguf`` writes one as GGUF, for llama.cpp; it needs the gguf package.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.work import WORDS

_VOCABULARY = 30_522
_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_COMPLETE = "modules.json"
"""The last file that is written."""
_MOST_TOKENS = 512
_MODULES = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))


@dataclass(frozen=True, slots=True)
class BertShape:
    """The sizes of an encoder, and how its rows become a vector."""

    hidden: int
    inner: int
    layers: int
    heads: int
    pooling: str
    """``mean`` or ``cls``"""


SHAPES = {"minilm": BertShape(384, 1536, 6, 12, "mean"), "bge-base": BertShape(768, 3072, 12, 12, "cls")}
"""all-MiniLM-L6-v2 and bge-base-en-v1.5"""


def find_embedder(name: str, models: Path) -> Path:
    """The directory of a shape's checkpoint, written if missing."""
    directory = (models / name).resolve()
    if not (directory / _COMPLETE).exists():
        print(f"making {directory}", flush=True)
        write_checkpoint(SHAPES[name], directory)
    return directory


def write_checkpoint(shape: BertShape, directory: Path) -> None:
    """Write random weights, a tokenizer and the modules behind the encoder."""
    import torch
    from transformers import AutoConfig, AutoModel
    from transformers.models.bert.tokenization_bert import BertTokenizer

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "bert",
        vocab_size=_VOCABULARY,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        max_position_embeddings=_MOST_TOKENS,
    )
    model: Any = AutoModel
    model.from_config(config, add_pooling_layer=False).save_pretrained(directory)
    vocabulary = directory / "vocab.txt"
    vocabulary.write_text("\n".join(_pieces()) + "\n")
    tokenizer: Any = BertTokenizer
    tokenizer(str(vocabulary), model_max_length=_MOST_TOKENS).save_pretrained(directory)
    pooling = {"word_embedding_dimension": shape.hidden}
    pooling |= {f"pooling_mode_{mode}": mode.startswith(shape.pooling) for mode in ("cls_token", "mean_tokens")}
    (directory / "1_Pooling").mkdir(exist_ok=True)
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (directory / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": _MOST_TOKENS}))
    modules = [
        {"idx": idx, "name": str(idx), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for idx, (path, kind) in enumerate(_MODULES)
    ]
    (directory / _COMPLETE).write_text(json.dumps(modules))


def _pieces() -> list[str]:
    """A vocabulary in which every word of the texts is one piece."""
    known = [*_SPECIAL_TOKENS, *dict.fromkeys(word.lower() for word in WORDS)]
    return [*known, *(f"[unused{number}]" for number in range(_VOCABULARY - len(known)))]


def write_gguf(directory: Path, file: Path) -> None:
    """Write the model in ``directory`` as GGUF, in float32."""
    import gguf
    from safetensors.numpy import load_file

    config = json.loads((directory / "config.json").read_text())
    pooling = json.loads((directory / "1_Pooling" / "config.json").read_text())
    writer = gguf.GGUFWriter(file, "bert")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    kinds = gguf.PoolingType
    writer.add_pooling_type(kinds.MEAN if pooling["pooling_mode_mean_tokens"] else kinds.CLS)
    _add_vocabulary(writer, (directory / "vocab.txt").read_text().split("\n")[:-1])
    for name, tensor in _gguf_tensors(load_file(directory / "model.safetensors"), config["num_hidden_layers"]):
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: Any, pieces: list[str]) -> None:
    """A word's first piece is marked, as llama.cpp's WordPiece wants it."""
    special = set(_SPECIAL_TOKENS)
    control, normal = 3, 1  # gguf.TokenType
    writer.add_tokenizer_model("bert")
    writer.add_token_list([piece if piece in special else f"▁{piece}" for piece in pieces])
    writer.add_token_types([control if piece in special else normal for piece in pieces])
    writer.add_token_type_count(2)
    writer.add_pad_token_id(pieces.index("[PAD]"))
    writer.add_unk_token_id(pieces.index("[UNK]"))
    writer.add_bos_token_id(pieces.index("[CLS]"))
    writer.add_sep_token_id(pieces.index("[SEP]"))
    writer.add_mask_token_id(pieces.index("[MASK]"))


_OUTSIDE = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
_OF_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def _gguf_tensors(tensors: Mapping[str, Any], layers: int) -> Iterator[tuple[str, Any]]:
    names = dict(_OUTSIDE)
    for layer in range(layers):
        names |= {f"encoder.layer.{layer}.{theirs}": f"blk.{layer}.{ours}" for theirs, ours in _OF_LAYER.items()}
    for theirs, ours in names.items():
        for kind in ("weight", "bias"):
            if f"{theirs}.{kind}" in tensors:
                yield f"{ours}.{kind}", tensors[f"{theirs}.{kind}"]


if __name__ == "__main__":
    write_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
