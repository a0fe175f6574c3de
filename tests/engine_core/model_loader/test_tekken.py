"""``tekken.json`` converted: the ids that the tokenizer library's own BPE gives, and tiktoken's procedure."""

from __future__ import annotations

import json
import random
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError
from engine_core.model_loader.tekken import read_tekken
from engine_core.model_loader.tokenizer import tokenizer_directory
from text_core.chat_templates import ChatTemplateError, ChatTemplates
from text_core.tokenizer import Tokenizer as TextTokenizer
from text_core.tokenizer_files import read_tokenizer_files

from ...text_core.trained_tokenizers import CORPUS

PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}"
    r"\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>"]
NUM_SPECIAL = 10
TEXTS = [*CORPUS, "", " ", "  a\n\n b\t", "Don'tShout 12345", "e\u0301 😀\u0000 \u3000\u0085x", "-" * 40 + " " * 40]


def tekken(tokens: Sequence[bytes], unused: Sequence[bytes] = (), **changed: Any) -> dict[str, Any]:
    """A file's content; ``changed`` replaces parts, ``config`` by part."""
    config = {
        "pattern": PATTERN,
        "num_vocab_tokens": len(tokens) + len(unused),
        "default_vocab_size": len(tokens) + NUM_SPECIAL,
        "default_num_special_tokens": NUM_SPECIAL,
        "version": "v13",
    } | changed.pop("config", {})
    vocab = [
        {"rank": rank, "token_bytes": b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate([*tokens, *unused])
    ]
    special = [{"rank": i, "token_str": content, "is_control": True} for i, content in enumerate(SPECIAL)]
    return {"config": config, "vocab": vocab, "special_tokens": special} | changed


def converted(directory: Path, content: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(read_tekken(write(directory, content))[0]))


def write(directory: Path, content: dict[str, Any]) -> Path:
    path = directory / "tekken.json"
    path.write_text(json.dumps(content))
    return path


@cache
def trained() -> tuple[Tokenizer, tuple[bytes, ...]]:
    """A byte-level BPE of the library's own making, and the bytes of its tokens by id."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    text = TextTokenizer.from_files({"tokenizer.json": tokenizer.to_str().encode()})
    return tokenizer, tuple(map(text.token_bytes, range(text.vocab_size)))


def test_ids_are_those_of_the_library_trained_on_the_same_words(tmp_path: Path) -> None:
    """The file has no merges; those of the library are recovered. Tokens beyond the vocabulary's size are not used."""
    reference, tokens = trained()
    ours = converted(tmp_path, tekken(tokens, unused=[b"the quick", b"qu" * 9]))
    for text in TEXTS:
        ids = [NUM_SPECIAL + token_id for token_id in reference.encode(text).ids]
        assert ours.encode(text, add_special_tokens=False).ids == ids
        assert ours.encode(text).ids == [1, *ids]
        assert ours.decode(ids) == text
    assert ours.get_vocab_size() == NUM_SPECIAL + len(tokens)


def tiktoken_ids(text: bytes, ranks: dict[bytes, int]) -> list[int]:
    """tiktoken's procedure for one word, as its documentation has it."""
    if text in ranks:
        return [ranks[text]]
    parts = [bytes([byte]) for byte in text]
    while True:
        joined = [ranks.get(one + other, len(ranks)) for one, other in pairwise(parts)]
        lowest = min(joined, default=len(ranks))
        if lowest == len(ranks):
            return [ranks[part] for part in parts]
        at = joined.index(lowest)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def test_ids_are_tiktokens_whatever_the_ranks(tmp_path: Path) -> None:
    """Also where no training would give such ranks: tokens that nothing makes, and parts that rank after the whole."""
    chance = random.Random(0)
    for _ in range(20):
        longer = {bytes(chance.choices(b"abc", k=chance.randint(2, 6))) for _ in range(chance.randint(5, 60))}
        tokens = [bytes([byte]) for byte in range(256)] + chance.sample(sorted(longer), len(longer))
        ranks = {token: rank for rank, token in enumerate(tokens)}
        ours = converted(tmp_path, tekken(tokens))
        for _ in range(50):
            word = bytes(chance.choices(b"abc", k=chance.randint(1, 30)))
            ids = [NUM_SPECIAL + token_id for token_id in tiktoken_ids(word, ranks)]
            assert ours.encode(word.decode(), add_special_tokens=False).ids == ids


def test_special_tokens_have_the_first_ids_and_are_read_in_a_text(tmp_path: Path) -> None:
    ours = converted(tmp_path, tekken(trained()[1]))
    ids = ours.encode("[INST]fox</s><SPECIAL_9>", add_special_tokens=False).ids
    assert (ids[0], *ids[-2:]) == (3, 2, 9)
    assert ours.decode(ids) == "fox"
    assert [ours.id_to_token(token_id) for token_id in range(NUM_SPECIAL)] == [
        *SPECIAL, "<SPECIAL_6>", "<SPECIAL_7>", "<SPECIAL_8>", "<SPECIAL_9>",
    ]  # fmt: skip


def test_older_files_list_no_special_tokens(tmp_path: Path) -> None:
    tokens = trained()[1]
    sizes = {"default_vocab_size": len(tokens) + 30, "default_num_special_tokens": 30, "version": "v3"}
    older = tekken(tokens, config=sizes)
    del older["special_tokens"]
    ours = converted(tmp_path, older)
    known = {"<unk>": 0, "<s>": 1, "</s>": 2, "[INST]": 3, "[TOOL_CALLS]": 9, "<pad>": 11, "[TOOL_CONTENT]": 19}
    assert {content: ours.token_to_id(content) for content in known} == known
    assert ours.token_to_id("<SPECIAL_29>") == 29


def dropped(part: str) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.pop(part)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["config"].update(pattern=r"\w+"), r"tekken\.json: pattern '\\\\w\+' is not supported: expected"),
        (lambda c: c["config"].update(default_vocab_size=5000), "vocab must have the ranks 0 to 4989 in order"),
        (lambda c: c["vocab"][300].update(token_bytes=c["vocab"][301]["token_bytes"]), "each with bytes of its own"),
        (lambda c: c["vocab"][0].update(token_bytes="/////w=="), "must have all 256 single bytes"),
        (lambda c: c["vocab"][300].update(token_bytes="?"), r"tekken\.json cannot be read: "),
        (lambda c: c["vocab"][300].update(token_bytes="PHM+"), "special_tokens and vocab have a token in common"),
        (lambda c: c["special_tokens"][5].update(rank=7), "special_tokens must have the ranks from 0 on"),
        (lambda c: c["special_tokens"][5].update(token_str="</s>"), "special_tokens must be at most 10"),
        (lambda c: c["special_tokens"][1].update(token_str="<bos>"), "all different, <s> among them"),
        (lambda c: c["config"].update(default_num_special_tokens=3, default_vocab_size=300), "must be at most 3"),
        (
            dropped("special_tokens"),
            "special_tokens is missing in version v13: only v1, v2, v3, v7 have none",
        ),
    ],
)
def test_what_is_not_tekken_is_refused_by_name(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    content = tekken(trained()[1])
    change(content)
    with pytest.raises(CheckpointError, match=message):
        read_tekken(write(tmp_path, content))


def test_a_checkpoint_with_tekken_alone(tmp_path: Path) -> None:
    """Completions work; a chat is refused unless there is a template."""
    reference, tokens = trained()
    write(tmp_path, tekken(tokens))
    ids = [1, *(NUM_SPECIAL + token_id for token_id in reference.encode("the quick fox").ids)]
    config = ModelConfig(model=str(tmp_path))
    with tokenizer_directory(config) as directory:
        files = read_tokenizer_files(directory)
    tokenizer = TextTokenizer.from_files(files)
    assert tokenizer.encode("the quick fox") == ids
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    with pytest.raises(ChatTemplateError, match="the model has no chat template"):
        ChatTemplates.from_files(files).render([{"role": "user", "content": "hi"}])

    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "[/INST]"}')
    with tokenizer_directory(config) as directory:
        chat = ChatTemplates.from_files(read_tokenizer_files(directory))
    assert chat.render([{"role": "user", "content": "hi"}]) == "<s>hi[/INST]"
