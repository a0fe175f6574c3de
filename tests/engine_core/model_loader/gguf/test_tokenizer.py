"""A GGUF file's tokenizer: the ids of the tokenizer that it was made of, the words of each pre-tokenizer, what ends an
answer, chat templates, and fields that cannot be used.
"""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import pytest
import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError
from engine_core.model_loader.gguf.pre_tokenizers import PRE_TOKENIZERS
from engine_core.model_loader.gguf.reader import GgufFile
from engine_core.model_loader.gguf.tokenizer import eos_token_ids, tokenizer_files
from engine_core.model_loader.tokenizer import tokenizer_directory
from engine_core.model_loader.tokenizer_json import merges_by_score
from text_core.chat_templates import ChatTemplates
from text_core.tokenizer import Tokenizer as TextTokenizer
from text_core.tokenizer_files import read_tokenizer_files

from ....text_core.trained_tokenizers import CORPUS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = [
    *CORPUS[:: len(CORPUS) // 12],
    "",
    " ",
    "  a\n\n b\t c   ",
    "Don't DON'T we'll 12345 6.7e8",
    "def f(x):\n    if x:\n\t\treturn  {'a': [x]}   # so\n\n\n",
    "cafe\u0301 e\u0301 ﬁ ½ \u00a0\u3000\u200b\u0000 \ufffd",
    "<|im_start|>user\nhi<|im_end|>\n<think>  x</think>",
    "中文字符，测试 日本語 한국어 สวัสดี नमस्ते 😀👩‍👩‍👧",
]


def loaded(fields: dict[str, Any]) -> TextTokenizer:
    return TextTokenizer.from_files(contents(fields))


def contents(fields: dict[str, Any]) -> dict[str, bytes]:
    return {name: json.dumps(content).encode() for name, content in tokenizer_files(file(fields)).items()}


def file(fields: dict[str, Any]) -> GgufFile:
    return GgufFile(Path("some.gguf"), fields, {})


@cache
def trained(nfc: bool) -> Tokenizer:
    """A byte-level BPE that the library trains and runs, with GPT-2's words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC() if nfc else None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["<think>", "</think>"])
    return tokenizer


def byte_level(pre: str = "gpt-2", nfc: bool = False) -> dict[str, Any]:
    """The metadata of ``trained``."""
    tokenizer = trained(nfc)
    added = tokenizer.get_added_tokens_decoder()
    size = tokenizer.get_vocab_size()
    tokens = [tokenizer.id_to_token(token_id) for token_id in range(size)]
    kinds = [NORMAL if i not in added else CONTROL if added[i].special else USER_DEFINED for i in range(size)]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


@pytest.mark.parametrize(("pre", "nfc"), [("gpt-2", False), ("olmo", True)])
def test_byte_level(pre: str, nfc: bool) -> None:
    own, original = loaded(byte_level(pre, nfc)), trained(nfc)
    for text in TEXTS:
        ids = original.encode(text).ids
        assert own.encode(text) == ids, text
        assert own.decode(ids, skip_special_tokens=False) == original.decode(ids, skip_special_tokens=False)
        assert own.decode(ids) == original.decode(ids)


WORDS_OF = "I'M 12345 naïve e\u0301x don't  (a)/\n\n  HTTPServer日本½ "
LLAMA3 = "I|'M| |123|45| naïve| e|\u0301x| don|'t| | (|a|)/\n\n| | HTTPServer日本|½| "
WORDS = {
    "llama-bpe": LLAMA3,
    "glm4": LLAMA3,
    "dbrx": LLAMA3,
    "qwen2": "I|'M| |1|2|3|4|5| naïve| e|\u0301x| don|'t| | (|a|)/\n\n| | HTTPServer日本|½| ",
    "qwen35": "I|'M| |1|2|3|4|5| naïve| e\u0301x| don|'t| | (|a|)/\n\n| | HTTPServer日本|½| ",
    "gpt-4o": "I'M| |123|45| naïve| e\u0301x| don't| | (|a|)/\n\n| | HTTPServer日本|½| ",
    "tekken": "I|'M| |1|2|3|4|5| naïve| e\u0301x| don|'t| | (|a|)/\n\n| | HTTPServer日本|½| ",
    "smollm": "I|'|M| |1|2|3|4|5| naïve| e|\u0301|x| don|'t| | (|a|)/|\n\n | HTTPServer日本|½| ",
    "gpt-2": "I|'|M| 12345| naïve| e|\u0301|x| don|'t| | (|a|)/|\n\n | HTTPServer日本|½| ",
    "deepseek-llm": "I|'|M| |1|2|3|4|5| na|ï|ve| e|\u0301|x| don|'|t| | (|a|)/|\n|\n| | HTTPServer|日本|½| ",
    "deepseek-coder": "I|'|M| |1|2|3|4|5| naïve| e|\u0301|x| don|'|t| | (|a|)/|\n|\n| | HTTPServer|日本|½| ",
    "hunyuan": "I|'M| |1|2|3|4|5| naïve| e|\u0301x| don|'t| | (|a|)/\n\n| | HTTPServer日本|½| ",
    "seed-coder": "I|'M| |1|2|3|4|5| naïve| e|\u0301x| don|'t| | (|a|)/|\n\n| | HTTPServer日本|½| ",
    "minicpm5": LLAMA3,
    "kimi-k2": "I'M| |123|45| naïve| e\u0301x| don't| | (|a|)/\n\n| | HTTPServer|日本|½| ",
    "tiny_aya": "I'M| |12|345| naïve| e\u0301x| don't| | (|a|)/\n\n| | HTTPServer日本|½| ",
    "exaone-moe": "I|'M| |1|2|3|4|5| naïve e\u0301x don|'t| | (|a|)/\n|\n| | HTTPServer日本|½| ",
    "deepseek-v3": "I|'M| |123|45| naïve| e\u0301x| don|'t| | (|a|)/\n\n| | HTTPServer|日本|½| ",
}
"""The words, divided by bars. llama.cpp gives the published vocabularies of each name the same ids on 999 texts; those
from hunyuan to exaone-moe were not compared.
"""


@pytest.mark.parametrize("pre", WORDS)
def test_words(pre: str) -> None:
    parts = json.loads(contents(byte_level(pre))["tokenizer.json"])["pre_tokenizer"]["pretokenizers"]
    sequence = pre_tokenizers.Sequence([])
    sequence.__setstate__(json.dumps({"type": "Sequence", "pretokenizers": parts[:-1]}).encode())
    assert "|".join(word for word, _ in sequence.pre_tokenize_str(WORDS_OF)) == WORDS[pre]


def test_every_name_has_a_pattern_that_can_be_used() -> None:
    for pre in PRE_TOKENIZERS:
        assert loaded(byte_level(pre)).decode(loaded(byte_level(pre)).encode(TEXTS[3])) == TEXTS[3]


@cache
def model(**options: Any) -> sentencepiece.SentencePieceProcessor:
    """A BPE that SentencePiece trains and runs, and that changes no text."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=written, model_type="bpe", vocab_size=600, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.99,
        minloglevel=2, **options,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())


def sentencepiece_fields(original: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    """The metadata that llama.cpp's converter makes of it."""
    ids = range(original.vocab_size())
    user_defined = [i for i in ids if original.id_to_piece(i) in ("  ", "▁▁", "\n\n", "<tag>")]

    def kind(token_id: int) -> int:
        if original.is_unknown(token_id):
            return UNKNOWN
        if original.is_control(token_id):
            return CONTROL
        return USER_DEFINED if token_id in user_defined else BYTE if original.is_byte(token_id) else NORMAL

    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [
            original.id_to_piece(i).replace("▁", " ") if i in user_defined else original.id_to_piece(i) for i in ids
        ],
        "tokenizer.ggml.scores": [original.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": list(map(kind, ids)),
    }


def test_sentencepiece_as_llamas() -> None:
    original = model()
    own = loaded(sentencepiece_fields(original))
    assert (own.special_tokens["bos_token"], own.special_tokens["eos_token"]) == ("<s>", "</s>")
    for text in [text for text in TEXTS if text]:
        ids = original.encode(text)
        assert own.encode(text) == [1, *ids], text
        assert own.decode(ids) == original.decode(ids) == text


def test_sentencepiece_as_gemmas() -> None:
    """No space before a text; runs of spaces and newlines are tokens that the trainer did not learn."""
    original = model(add_dummy_prefix=False, user_defined_symbols=("▁▁", "\n\n", "<tag>"))
    fields = sentencepiece_fields(original) | {"tokenizer.ggml.add_space_prefix": False}
    own = loaded(fields | {"tokenizer.ggml.add_bos_token": False})
    for text in [*TEXTS, "a  b   c    d", "<tag>x</tag> <tag>", "\n\n\n a"]:
        ids = original.encode(text)
        assert own.encode(text) == ids, text
        assert own.decode(ids) == text


class Attempts(dict[str, float]):
    """Scores of pieces, and how often a text was looked up in them."""

    count = 0

    def __contains__(self, piece: object) -> bool:
        self.count += 1
        return super().__contains__(piece)


def test_merges_are_all_pairs_of_pieces_by_score_and_a_long_piece_costs_few_attempts() -> None:
    pieces = ["a", "b", "ab", "ba", "aba", "abab", "c" * 7, "ab" * 3, "ab" * 20_000, "c" * 39_999]
    scores = Attempts({piece: -float(score) for score, piece in enumerate(pieces)})
    assert merges_by_score(scores) == [
        ("a", "b"), ("b", "a"), ("a", "ba"), ("ab", "a"), ("ab", "ab"), ("aba", "b"), ("ab", "abab"), ("abab", "ab"),
    ]  # fmt: skip
    assert scores.count < 100


def test_pieces_that_can_be_split_in_too_many_ways_are_refused() -> None:
    tokens = ["<unk>", *("a" * length for length in range(1, 1000))]
    fields = {"model": "llama", "tokens": tokens, "scores": [0.0] * 1000, "token_type": [UNKNOWN, *[NORMAL] * 999]}
    expected = r"^some\.gguf: tokenizer\.ggml\.tokens is not usable: it has pieces of 999 lengths, up to 999 characters"
    with pytest.raises(CheckpointError, match=expected):
        tokenizer_files(file({f"tokenizer.ggml.{name}": value for name, value in fields.items()}))


def test_listed_merges_as_gemma_4s() -> None:
    """The same merges, listed instead of scored."""
    original = model(add_dummy_prefix=False)
    fields = sentencepiece_fields(original) | {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
    merges = json.loads(contents(fields)["tokenizer.json"])["model"]["merges"]
    own = loaded(fields | {"tokenizer.ggml.model": "gemma4", "tokenizer.ggml.merges": list(map(" ".join, merges))})
    for text in TEXTS:
        assert own.encode(text) == [1, *original.encode(text)], text


def test_special_tokens_of_phi_3_take_the_blanks_after_them() -> None:
    fields = sentencepiece_fields(model()) | {"general.architecture": "phi3"}
    fields["tokenizer.ggml.tokens"] = [*fields["tokenizer.ggml.tokens"], "<|user|>"]
    fields["tokenizer.ggml.scores"], fields["tokenizer.ggml.token_type"] = (
        [*fields["tokenizer.ggml.scores"], -1000.0], [*fields["tokenizer.ggml.token_type"], CONTROL]
    )  # fmt: skip
    own = loaded(fields)
    assert own.encode("<|user|>\n the") == own.encode("<|user|>the")
    assert own.encode("<s>\n the") != own.encode("<s>the")


def test_bos_and_eos_around_a_text() -> None:
    fields = byte_level("llama-bpe")
    ids = loaded(fields | {"tokenizer.ggml.add_bos_token": False}).encode("the fox")
    assert loaded(fields).encode("the fox") == [1, *ids]
    both = fields | {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    assert loaded(both).encode("the fox") == [1, *ids, 2]
    assert loaded(both).encode("the fox", add_special_tokens=False) == ids


@pytest.mark.parametrize(
    ("tokens", "fields", "ends"),
    [
        (["<|im_end|>", "<|endoftext|>", "<think>"], {"eos_token_id": 0}, [0, 1]),
        (["<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"], {"eos_token_id": 1, "eom_token_id": 2}, [1, 2, 0]),
        (["<|return|>", "<|end|>", "<|call|>", "<|endoftext|>"], {"eos_token_id": 0}, [0, 2, 3]),
        (["<|end|>", "<|user|>"], {"eot_token_id": 1}, [1, 0]),
        (["<|user|>"], {"eos_token_id": 2**32 - 1}, []),
    ],
)
def test_what_ends_an_answer(tokens: list[str], fields: dict[str, int], ends: list[int]) -> None:
    named = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [CONTROL] * len(tokens)}
    assert eos_token_ids(file(named | {f"tokenizer.ggml.{name}": value for name, value in fields.items()})) == ends


def test_text_that_ends_nothing() -> None:
    """``</s>`` is an ordinary token of vocabularies that were trained on code."""
    tokens = {"tokenizer.ggml.tokens": ["</s>", "<eos>"], "tokenizer.ggml.token_type": [NORMAL, CONTROL]}
    assert eos_token_ids(file(tokens)) == [1]
    assert eos_token_ids(file({})) == []


def test_chat_templates() -> None:
    fields = byte_level() | {"tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"}
    chat = [{"role": "user", "content": "hi"}]
    assert ChatTemplates.from_files(contents(fields)).render(chat) == "<|im_start|>hi<|im_end|>"
    named = {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "tools"}
    templates = ChatTemplates.from_files(contents(fields | named))
    assert templates.render(chat, template_name="tool_use") == "tools"
    assert templates.render(chat) == "<|im_start|>hi<|im_end|>"


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "model": ({"model": "rwkv"}, "model is 'rwkv', which is not supported: expected one of gpt2, llama, gemma4"),
    "pre": ({"pre": "default"}, "pre is 'default', which is not supported: expected one of llama-bpe, "),
    "tokens": ({"tokens": None}, "tokens is missing, or empty"),
    "text": ({"tokens": "abc"}, "tokens is 'abc': expected a list of texts"),
    "twice": ({"tokens": ["a", "b", "a"]}, "tokens has 'a' twice"),
    "many": ({"tokens": ["a"] * (2**21 + 1)}, "tokens has 2097153 tokens: expected at most 2097152"),
    "types": ({"token_type": [1, 1]}, r"token_type is a list of 2: expected \d+ numbers, one for each token"),
    "merges": ({"merges": None}, "merges is missing"),
    "merge": ({"merges": ["zz zz"]}, "merges number 0, 'zz zz', is not of two tokens that make a third"),
    "id": ({"eos_token_id": 10**6}, r"eos_token_id is 1000000: expected an id below \d+"),
    "bos": ({"bos_token_id": None, "add_bos_token": True}, "bos_token_id is missing, although add_bos_token is true"),
    "flag": ({"add_bos_token": 1}, "add_bos_token is 1: expected true or false"),
    "scores": ({"model": "llama"}, "scores is missing"),
    "short": ({"model": "llama", "scores": [0.0]}, "scores is a list of 1: expected"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_fields_that_cannot_be_used(name: str) -> None:
    changes, message = BROKEN[name]
    changed = {f"tokenizer.ggml.{field}": value for field, value in changes.items()}
    fields = {field: value for field, value in (byte_level() | changed).items() if value is not None}
    with pytest.raises(CheckpointError, match=rf"^some\.gguf: tokenizer\.ggml\.{message}"):
        tokenizer_files(file(fields))


def write(path: Path, fields: dict[str, Any]) -> Path:
    """A file without tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(fields["tokenizer.ggml.model"])
    writer.add_tokenizer_pre(fields["tokenizer.ggml.pre"])
    writer.add_token_list(fields["tokenizer.ggml.tokens"])
    writer.add_token_types(fields["tokenizer.ggml.token_type"])
    writer.add_token_merges(fields["tokenizer.ggml.merges"])
    writer.add_eos_token_id(fields["tokenizer.ggml.eos_token_id"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_of_a_file(tmp_path: Path) -> None:
    model = write(tmp_path / "some.gguf", byte_level())
    with tokenizer_directory(ModelConfig(model=str(model))) as directory:
        own = TextTokenizer.from_files(read_tokenizer_files(directory))
    assert own.eos_token_ids == {2, 0}
    assert [own.encode(text) for text in TEXTS] == [trained(False).encode(text).ids for text in TEXTS]
    (tmp_path / "other").mkdir()
    trained(True).save(str(tmp_path / "other" / "tokenizer.json"))
    with tokenizer_directory(ModelConfig(model=str(model), tokenizer=str(tmp_path / "other"))) as directory:
        assert directory == tmp_path / "other"


def test_of_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    model = write(tmp_path / "some.gguf", byte_level() | {"tokenizer.ggml.pre": "viking"})
    expected = rf"^{model}: tokenizer\.ggml\.pre is 'viking', which .*; --tokenizer names another directory or model$"
    with (
        pytest.raises(CheckpointError, match=expected),
        tokenizer_directory(ModelConfig(model=str(model))),
    ):
        pass
