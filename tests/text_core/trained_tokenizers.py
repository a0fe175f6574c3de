"""Tokenizers of the three kinds in use, trained here on a small corpus; each is made once per session."""

from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from text_core.tokenizer import Tokenizer as TextTokenizer

WORDS = "the quick brown fox jumps over lazy dogs while counting 12 345 apples isn't it? don't! naïve café".split()  # noqa: SIM905
CJK = ["中文字符测试", "日本語のテキスト", "한국어 문장입니다", "東京都の天気は", "สวัสดีครับ", "नमस्ते दुनिया"]
EMOJI = ["😀😃🎉", "👩‍👩‍👧", "🇩🇪🏳️‍🌈", "e\u0301a\u0308o\u0302", "👍🏽"]
CORPUS = [" ".join(WORDS[i:] + WORDS[:i]) for i in range(len(WORDS))] * 4 + (CJK + EMOJI) * 6
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]


@cache
def byte_level() -> TextTokenizer:
    """Like GPT-2's, Llama 3's and Qwen's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    return _files(tokenizer)


@cache
def sentencepiece_bpe() -> TextTokenizer:
    """Like Llama 2's: Metaspace and byte fallback, a leading space dropped, bos added."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=560, special_tokens=SPECIAL + bytes_, limit_alphabet=60, show_progress=False
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("▁[^▁]*"), "isolated")  # for training only: keeps words apart
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.pre_tokenizer = None
    return _files(_with_bos(_without_special(tokenizer, bytes_)))


@cache
def unigram() -> TextTokenizer:
    """Like T5's and ALBERT's."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=400, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _files(_with_bos(tokenizer))


def _with_bos(tokenizer: Tokenizer) -> Tokenizer:
    bos = ("<s>", tokenizer.token_to_id("<s>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[bos])
    return tokenizer


def _without_special(tokenizer: Tokenizer, contents: list[str]) -> Tokenizer:
    """Make added tokens plain vocabulary entries again, as the byte tokens of a SentencePiece model are."""
    import json

    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["content"] not in contents]
    return Tokenizer.from_str(json.dumps(spec))


def _files(tokenizer: Tokenizer) -> TextTokenizer:
    loaded = TextTokenizer.from_files({"tokenizer.json": tokenizer.to_str().encode()})
    _contents[loaded.fingerprint()] = tokenizer.to_str()
    return loaded


_contents: dict[str, str] = {}


def tokenizer_json(tokenizer: TextTokenizer) -> str:
    """The content of ``tokenizer.json`` of a tokenizer made here."""
    return _contents[tokenizer.fingerprint()]


KINDS = {"byte_level": byte_level, "sentencepiece_bpe": sentencepiece_bpe, "unigram": unigram}
