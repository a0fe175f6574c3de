import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from tests.programs import output_of
from tests.text_core.panicking import Panicking, panic
from tests.text_core.trained_tokenizers import KINDS, tokenizer_json
from text_core.panics import TokenizerPanic
from text_core.tokenizer import Tokenizer, TokenizerError
from text_core.tokenizer_files import (
    TOKENIZER_FILES,
    fingerprint,
    is_tokenizer_file,
    load_json,
    read_tokenizer_files,
)

each_kind = pytest.mark.parametrize("kind", KINDS)

TEXTS = [
    "",
    "the quick brown fox",
    "  naïve café\n\n中文 😀 <s>x</s> <|im_start|>user<|im_end|> a <tool> b",
    "<extra> <mask>the fox<sep_>over the end fox",
    "e\u0301 สวัสดี 12 345 don't \u202e\x00 �",
]


def token(content, **flags):
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True} | flags
    return {"content": content, **flags}


CONFIGS = {
    "none": {},
    "names": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "bos flags, which tokenizer.json overrules": {"bos_token": "<s>", "add_bos_token": False, "add_eos_token": True},
    "a plain word as eos": {"eos_token": "fox", "pad_token": "<pad>"},
    "additional": {"additional_special_tokens": ["<extra>", "the"]},
    "extra": {"extra_special_tokens": ["<extra>", {"__type": "AddedToken", **token("<mask>", lstrip=True)}]},
    "named extra": {"extra_special_tokens": {"image_token": "<extra>"}, "audio_token": "over"},
    "listed": {
        "eos_token": "<tool>",
        "added_tokens_decoder": {
            "9999": token("<sep_>", special=False, rstrip=True),
            "3": token("<|im_start|>", lstrip=True, rstrip=True),
            "4": token("<tool>", special=False),
        },
    },
    "split": {"split_special_tokens": True, "bos_token": "<s>"},
    "typed": {"mask_token": {"__type": "AddedToken", **token("<mask>", lstrip=True)}},
    "cleanup": {"clean_up_tokenization_spaces": False},
}
MAP = {"eos_token": token("end", single_word=True), "additional_special_tokens": ["<extra>"], "bos_token": "<s>"}


def both(tokenizer, directory, config, special_map=None):
    """Ours and transformers' tokenizer from one directory."""
    (directory / "tokenizer.json").write_text(tokenizer_json(tokenizer))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    if special_map is not None:
        (directory / "special_tokens_map.json").write_text(json.dumps(special_map))
    return Tokenizer.from_directory(directory), PreTrainedTokenizerFast.from_pretrained(directory)


def assert_equal(ours, theirs):
    for text in TEXTS:
        for special in (True, False):
            ids = ours.encode(text, add_special_tokens=special)
            assert ids == theirs.encode(text, add_special_tokens=special), (text, special)
            for skip in (True, False):
                assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert ours.vocab_size == len(theirs)
    assert ours.special_tokens == theirs.special_tokens_map
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    for token_id in range(ours.vocab_size):
        skipped = theirs.decode([token_id] * 2, skip_special_tokens=True) == ""
        assert (token_id in ours.special_token_ids) == (skipped and theirs.decode([token_id] * 2) != "")


@each_kind
@pytest.mark.parametrize("config", CONFIGS)
def test_equals_transformers(kind, config, tmp_path):
    assert_equal(*both(KINDS[kind](), tmp_path, CONFIGS[config]))


@each_kind
def test_older_checkpoints_special_tokens_map(kind, tmp_path):
    assert_equal(*both(KINDS[kind](), tmp_path, CONFIGS["names"], MAP))


def test_the_special_tokens_map_is_not_read_beside_a_listed_vocabulary(byte_level, tmp_path):
    assert_equal(*both(byte_level, tmp_path, CONFIGS["listed"], MAP))


def test_truncation_and_padding_of_the_file_are_switched_off(byte_level, tmp_path):
    library = tokenizers.Tokenizer.from_str(tokenizer_json(byte_level))
    library.enable_truncation(3)
    library.enable_padding(length=64)
    ours = Tokenizer.from_files({"tokenizer.json": library.to_str().encode()})
    assert ours.encode(TEXTS[1]) == byte_level.encode(TEXTS[1])


@each_kind
def test_truncation_keeps_the_end_as_transformers_does(kind, tmp_path):
    ours, theirs = both(KINDS[kind](), tmp_path, {"truncation_side": "left"})
    for text in TEXTS:
        for special in (True, False):
            full = ours.encode(text, add_special_tokens=special)
            for limit in range(2, len(full) + 2):
                expected = theirs.encode(text, add_special_tokens=special, truncation=True, max_length=limit)
                got = ours.encode(text, add_special_tokens=special, truncate_prompt_tokens=limit)
                assert got == expected
            assert len(ours.encode(text, truncate_prompt_tokens=1)) <= 1


@each_kind
def test_a_batch_from_many_threads_equals_one_by_one(kind):
    tokenizer = KINDS[kind]()
    texts = [f"{text} {i}" for i in range(20) for text in TEXTS]
    expected = [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_batch(texts) == expected
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(tokenizer.encode, texts)) == expected
        assert list(pool.map(tokenizer.decode, expected)) == [tokenizer.decode(ids) for ids in expected]


@each_kind
def test_token_bytes_make_up_the_text(kind):
    tokenizer = KINDS[kind]()

    @settings(max_examples=30, deadline=None)
    @given(st.text(max_size=20))
    def check(text):
        ids = tokenizer.encode("x " + text, add_special_tokens=False)
        joined = b"".join(map(tokenizer.token_bytes, ids)).decode()
        assert joined.removeprefix(" ") == tokenizer.decode(ids, skip_special_tokens=False).removeprefix(" ")

    check()
    assert tokenizer.token_bytes(10**6) == b""
    assert tokenizer.token_bytes(tokenizer.token_id("</s>")) == b"</s>"


@each_kind
def test_tokens_of_white_space(kind):
    tokenizer = KINDS[kind]()
    texts = {i: tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)}
    expected = [i for i, text in texts.items() if text.isspace() and len(text) <= 16]
    assert list(tokenizer.white_space_ids) == expected != []


def test_a_token_may_be_a_part_of_a_character(byte_level):
    first = byte_level.encode("😀")[0]
    begin = byte_level.token_bytes(first)
    assert 0 < len(begin) < 4
    assert "😀".encode().startswith(begin)


@pytest.mark.parametrize(("declared", "contents"), [(None, ["</s>"]), (3, ["</s>", "<|im_start|>"]), ([3, 4], None)])
def test_eos_tokens_come_from_both_files(byte_level, declared, contents):
    files = {
        "tokenizer.json": tokenizer_json(byte_level).encode(),
        "tokenizer_config.json": b'{"eos_token": "</s>"}',
        "generation_config.json": json.dumps({"eos_token_id": declared}).encode(),
    }
    contents = contents or ["</s>", "<|im_start|>", "<|im_end|>"]
    assert Tokenizer.from_files(files).eos_token_ids == {byte_level.token_id(content) for content in contents}


def test_fingerprint_covers_every_allowed_file_and_nothing_else(byte_level):
    base = {"tokenizer.json": tokenizer_json(byte_level).encode(), "tokenizer_config.json": b"{}"}
    reference = Tokenizer.from_files(base).fingerprint()
    assert reference == fingerprint(dict(reversed(base.items())))
    assert reference == fingerprint({**base, "model.safetensors": b"x", "../tokenizer.json": b"y"})
    others = [{**base, name: b'{"a": 1}'} for name in TOKENIZER_FILES]
    others += [{**base, "additional_chat_templates/tool_use.jinja": b"x"}, {"tokenizer.json": base["tokenizer.json"]}]
    assert len({reference, *map(fingerprint, others)}) == len(others) + 1


def test_only_allowed_files_are_read(tmp_path):
    for name in (
        *TOKENIZER_FILES,
        "config.json",
        "additional_chat_templates/rag.jinja",
        "additional_chat_templates/x.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    files = read_tokenizer_files(tmp_path)
    assert set(files) == {*TOKENIZER_FILES, "additional_chat_templates/rag.jinja"}
    assert all(map(is_tokenizer_file, files))
    for name in (
        "../tokenizer.json",
        "/tokenizer.json",
        "a/tokenizer.json",
        "additional_chat_templates/../x.jinja",
        "",
    ):
        assert not is_tokenizer_file(name)


def test_a_template_beside_the_tokenizer_is_read_if_it_is_the_only_one(tmp_path):
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "beside"}))
    assert read_tokenizer_files(tmp_path) == {"chat_template.jinja": b"beside"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "own"}))
    assert "chat_template.jinja" not in read_tokenizer_files(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("file")
    assert read_tokenizer_files(tmp_path)["chat_template.jinja"] == b"file"
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "chat_template.json").write_text("{}")
    with pytest.raises(TokenizerError, match="must hold a text named chat_template"):
        read_tokenizer_files(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no tokenizer.json"),
        ({"tokenizer.json": b"{"}, "tokenizer.json cannot be read"),
        ({"tokenizer.json": b"{}"}, "tokenizer.json cannot be read"),
        ({"tokenizer_config.json": b"[]"}, "tokenizer_config.json must hold a JSON object, not list"),
        ({"tokenizer_config.json": b"\xff"}, "tokenizer_config.json is not valid JSON"),
        ({"tokenizer_config.json": b'{"added_tokens_decoder": {"x": {}}}'}, "must map token ids to tokens"),
        ({"tokenizer_config.json": b'{"eos_token": {"content": 7}}'}, "eos_token .* must be text or an object"),
        ({"special_tokens_map.json": b"nope"}, "special_tokens_map.json is not valid JSON"),
        ({"tokenizer_config.json": b'{"extra_special_tokens": ["\\ud800"]}'}, r"'\\ud800' is not Unicode"),
    ],
)
def test_damaged_files_are_named(byte_level, files, message):
    if files and "tokenizer.json" not in files:
        files = {"tokenizer.json": tokenizer_json(byte_level).encode()} | files
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_files(files)


def test_a_panic_of_the_library_is_an_error(byte_level, monkeypatch):
    files = {"tokenizer.json": tokenizer_json(byte_level).encode()}
    tokenizer = Tokenizer.from_files(files)
    tokenizer._tokenizer = Panicking()
    for call in (lambda: tokenizer.encode("a"), lambda: tokenizer.decode([1]), lambda: tokenizer.text_bytes([1])):
        with pytest.raises(TokenizerPanic):
            call()
    monkeypatch.setattr("text_core.tokenizer._load", panic)
    with pytest.raises(TokenizerError, match="panicked"):
        Tokenizer.from_files(files)


def test_the_text_tier_loads_without_torch_and_transformers():
    program = """
import sys
import text_core.chat_templates, text_core.choice_decoder, text_core.tokenizer
print(sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'transformers', 'grpc', 'engine_core'}))
"""
    assert output_of(sys.executable, "-c", program).strip() == "[]"


def test_json_nested_too_deeply_is_an_error():
    with pytest.raises(TokenizerError, match=r"tokenizer_config.json is not valid JSON"):
        load_json({"tokenizer_config.json": b"[" * 100_000}, "tokenizer_config.json")
