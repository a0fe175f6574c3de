"""Encoders, models for embeddings and models that score; and some that do neither this nor generate text."""

from __future__ import annotations

from tests.engine_core.models.published.entry import Fields, Published, falls_back, model, refused, serves, sizes
from tests.engine_core.models.published.mistral import MISTRAL
from tests.engine_core.models.published.qwen import QWEN2, QWEN3


def _encoder(architecture: str, model_type: str, **fields: object) -> Fields:
    return model(architecture, model_type, **fields) | sizes(768, 3072, 12, 12)


def _xlm_roberta(architecture: str, positions: int) -> Fields:
    fields = _encoder(architecture, "xlm-roberta", vocab_size=250002, max_position_embeddings=positions)
    return fields | sizes(1024, 4096, 24, 16) | {"type_vocab_size": 1, "pad_token_id": 1}


_RERANKER = _xlm_roberta("XLMRobertaForSequenceClassification", 8194) | {"id2label": {"0": "LABEL_0"}}
_LAST_TOKEN = {
    "modules": [{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}],
    "1_Pooling/config": {"word_embedding_dimension": 1024, "pooling_mode_lasttoken": True},
}
ENCODERS: tuple[Published, ...] = (
    serves("google-bert/bert-base-uncased", 0.1089, _encoder("BertForMaskedLM", "bert", vocab_size=30522)),
    serves(
        "sentence-transformers/all-MiniLM-L6-v2",
        0.02257,
        _encoder("BertModel", "bert", vocab_size=30522) | sizes(384, 1536, 6, 12),
    ),
    serves("BAAI/bge-m3", 0.5667, _xlm_roberta("XLMRobertaModel", 8194)),
    serves("BAAI/bge-reranker-v2-m3", 0.5678, _RERANKER),
    serves("intfloat/multilingual-e5-large", 0.5588, _xlm_roberta("XLMRobertaModel", 514)),
    serves(
        "answerdotai/ModernBERT-base",
        0.149,
        _encoder("ModernBertForMaskedLM", "modernbert", vocab_size=50368) | sizes(768, 1152, 22, 12),
    ),
    refused(
        "microsoft/deberta-v3-base",
        "/config.json names no architecture (architectures=None): expected a list such as ['LlamaForCausalLM']",
        _encoder("", "deberta-v2") | {"architectures": None},
    ),
    falls_back(
        "distilbert/distilbert-base-uncased-finetuned-sst-2-english",
        0.06695,
        model("DistilBertForSequenceClassification", "distilbert", dim=768, n_layers=6, n_heads=12, vocab_size=30522),
    ),
    serves(
        "nomic-ai/nomic-embed-text-v1.5",
        0.1367,
        model("NomicBertModel", "nomic_bert", n_embd=768, n_layer=12, n_head=12)
        | {"auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"}},
    ),
    serves(
        "intfloat/e5-mistral-7b-instruct",
        7.114,
        MISTRAL | sizes(4096, 14336, 32, 32, 8) | {"architectures": ["MistralModel"]},
        **_LAST_TOKEN,
    ),
    refused(
        "Alibaba-NLP/gte-Qwen2-1.5B-instruct",
        "is_causal=False is not supported: expected true, as no token may attend to later ones",
        QWEN2
        | sizes(1536, 8960, 28, 12, 2)
        | {"auto_map": {"AutoModelForCausalLM": "modeling_qwen.Qwen2ForCausalLM"}, "is_causal": False},
        **_LAST_TOKEN,
    ),
    serves(
        "Qwen/Qwen3-Embedding-0.6B",
        0.5958,
        QWEN3 | sizes(1024, 3072, 28, 16, 8) | {"tie_word_embeddings": True, "vocab_size": 151669},
        **_LAST_TOKEN,
    ),
    refused(
        "google-t5/t5-base",
        "an encoder-decoder or a part of one",
        model("T5ForConditionalGeneration", "t5", is_encoder_decoder=True, d_model=768),
    ),
    refused(
        "facebook/bart-large-cnn",
        "an encoder-decoder or a part of one",
        model("BartForConditionalGeneration", "bart", is_encoder_decoder=True),
    ),
    serves(
        "Skywork/Skywork-Reward-V2-Llama-3.1-8B",
        7.505,
        model("LlamaForSequenceClassification", "llama", id2label={"0": "LABEL_0"})
        | sizes(4096, 14336, 32, 32, 8)
        | {"vocab_size": 128256},
    ),
)
