"""How byte-level tokenizers split a text into words, by the name in ``tokenizer.ggml.pre``.

A GGUF file has only the name. The patterns here are those of the models' published ``tokenizer.json``. llama.cpp
follows these in its own kind of regular expressions, with the same words but for a few rare characters.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """The steps before the merges."""

    patterns: tuple[str, ...]
    """Applied in turn: each splits the pieces so far into its matches and the text between them."""
    nfc: bool = False
    """Normalize the text to NFC first."""
    ignore_merges: bool = False
    """A word that is a token becomes that token, even if no merges lead to it."""
    adds_bos: bool = False
    """Begin a text with bos if the file does not say."""


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _cl100k(digits: str) -> str:
    """OpenAI's pattern of that name; ``digits`` matches a number."""
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"


def _o200k(digits: str, contractions: str) -> str:
    """OpenAI's pattern of that name, which also splits where capitals begin."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    begin, end = r"[^\r\n\p{L}\p{N}]?", contractions and f"{contractions}?"
    letters = rf"{begin}{upper}*{lower}+{end}|{begin}{upper}+{lower}*{end}"
    return rf"{letters}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}"


def _kimi() -> str:
    """``_o200k``, but ideographs are words by themselves."""
    others = _o200k(r"\p{N}{1,3}", _CONTRACTIONS).replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace(r"\n/]", r"\n]")
    return rf"\p{{Han}}+|{others}"


def _exaone_moe() -> str:
    """``_cl100k``, but several words are one, and few line breaks are joined."""
    words, marks = r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+", r" ?[^\s\p{L}\p{N}]+[\r\n/]?"
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{words}|\p{{N}}|{marks}|\s*[\r\n]|\s+(?!\S)|\s+"


def _characters(ranges: str) -> str:
    """A character class from ranges of code points, so that no editor changes lookalikes."""
    return "[" + "".join(rf"\x{{{one.replace('-', '}-' + chr(92) + 'x{')}}}" for one in ranges.split()) + "]"


_DEEPSEEK_LETTERS = _characters(
    "41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376-377 37b-37d 37f 386 388-38a 38c 38e-3a1 "
    "3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a "
    "1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 "
    "1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128 "
    "212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183-2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2-2cf3 a640-a66d "
    "a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 "
    "104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943"
)
"""Letters of scripts with capitals, as in DeepSeek's tokenizer."""
_DEEPSEEK_MARKS = _characters("21-2f 3a-7e ff01-ff0f ff1a-ff5e 2018-201f 3000-3002")
_DEEPSEEK_IDEOGRAPHS = _characters("4e00-9fa5 800-4e00 ac00-d7ff")
_IDEOGRAPHS_AND_KANA = _characters("4e00-9fa5 3040-309f 30a0-30ff")
_DEEPSEEK_V3_WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BLANKS}"
)

_LLAMA3 = _cl100k(r"\p{N}{1,3}")
_QWEN2 = _cl100k(r"\p{N}")
_QWEN35 = _QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
_SINGLE_DIGITS = PreTokenizer((r"\p{N}", _GPT2))
_GPT_4O = PreTokenizer((_o200k(r"\p{N}{1,3}", _CONTRACTIONS),))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0"),
        PreTokenizer((_LLAMA3,), ignore_merges=True, adds_bos=True),
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), PreTokenizer((_LLAMA3,))),
    "glm4": PreTokenizer((_LLAMA3,), ignore_merges=True),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), PreTokenizer((_QWEN2,), nfc=True)),
    **dict.fromkeys(("hunyuan", "megrez", "kormo", "solar-open", "stablelm2"), PreTokenizer((_QWEN2,))),
    "qwen35": PreTokenizer((_QWEN35,), nfc=True),
    "seed-coder": PreTokenizer((_QWEN2.replace(r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}\r\n]+"),)),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", _cl100k(r"\p{N}+")), ignore_merges=True),
    "exaone-moe": PreTokenizer((_exaone_moe(),)),
    **dict.fromkeys(("bailingmoe", "bailingmoe2"), PreTokenizer((_QWEN2.replace(r"\s*[\r\n]+", r"\s*[\r\n]"),))),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), _GPT_4O),
    "tiny_aya": PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", *_GPT_4O.patterns)),
    "kimi-k2": PreTokenizer((_kimi(),)),
    "tekken": PreTokenizer((_o200k(r"\p{N}", ""),), ignore_merges=True, adds_bos=True),
    **dict.fromkeys(("smollm", "starcoder", "refact", "exaone", "minerva-7b", "mellum2"), _SINGLE_DIGITS),
    "command-r": PreTokenizer(_SINGLE_DIGITS.patterns, nfc=True),
    **dict.fromkeys(
        ("gpt-2", "phi-2", "exaone4", "gigachat", "granite-docling", "mellum", "trillion", "a.x-4.0"),
        PreTokenizer((_GPT2,)),
    ),
    **dict.fromkeys(("mpt", "olmo"), PreTokenizer((_GPT2,), nfc=True)),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?{_DEEPSEEK_LETTERS}+",
            rf"\s?{_DEEPSEEK_MARKS}+",
            r"\s+$",
            rf"{_DEEPSEEK_IDEOGRAPHS}+",
            r"\p{N}",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", rf"{_DEEPSEEK_IDEOGRAPHS}+", r"\p{N}")),
    **dict.fromkeys(
        ("deepseek-v3", "hunyuan-dense", "joyai-llm"),
        PreTokenizer((r"\p{N}{1,3}", rf"{_IDEOGRAPHS_AND_KANA}+", _DEEPSEEK_V3_WORDS)),
    ),
}
