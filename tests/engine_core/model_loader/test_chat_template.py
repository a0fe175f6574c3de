"""The chat template of an option, instead of a checkpoint's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from engine_core.config import ModelConfig
from engine_core.errors import ConfigError, UnsupportedModelError
from engine_core.model_loader.chat_template import with_template
from text_core.chat_templates import ChatTemplates

TEXT = "{% for message in messages %}{{ message.content }}{% endfor %}"
FILES = {"tokenizer.json": b"{}", "chat_template.jinja": b"old", "additional_chat_templates/rag.jinja": b"old"}


@pytest.mark.parametrize("as_file", [True, False])
def test_an_option_replaces_every_template_of_the_checkpoint(as_file: bool, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text(TEXT)
    given = str(tmp_path / "t.jinja") if as_file else TEXT
    expected = {"tokenizer.json": b"{}", "chat_template.jinja": TEXT.encode()}
    assert with_template(FILES, ModelConfig(model="m", chat_template=given)) == expected
    assert with_template(FILES, ModelConfig(model="m")) == FILES


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    missing = str(tmp_path / "t.jinja")
    with pytest.raises(ConfigError, match=r"chat_template=.*expected a file that can be read.*\(No such file"):
        with_template(FILES, ModelConfig(model="m", chat_template=missing))


def test_a_file_that_is_no_template_is_refused_before_it_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**20 + 1)
    for given, words in {
        str(tmp_path / "pipe"): "a regular file, or the text",
        str(tmp_path): "a regular file, or the text",
        "/dev/zero": "a regular file, or the text",
        str(tmp_path / "large"): "a file of at most 1048576 bytes",
        "a\0b": "a file that can be read",
    }.items():
        with pytest.raises(ConfigError, match=f"chat_template=.*expected {words}"):
            with_template(FILES, ModelConfig(model="m", chat_template=given))


@pytest.mark.parametrize("kind", ["DeepseekOCRForCausalLM", "DeepseekOCR2ForCausalLM", "LlamaForCausalLM"])
def test_a_model_whose_publisher_gives_none_has_ringlines(kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [kind]}))
    files = {"tokenizer.json": b"{}", "tokenizer_config.json": b'{"bos_token": "<bos>"}'}
    templates = ChatTemplates.from_files(with_template(files, ModelConfig(model=str(tmp_path))))
    if kind == "LlamaForCausalLM":
        assert not templates.names
        return
    picture, text = {"type": "image"}, {"type": "text", "text": "<|grounding|>Convert the document to markdown."}
    expected = "<bos><image>\n<|grounding|>Convert the document to markdown."
    for content in ([picture, text], [text, picture]):  # clients send both, the model knows one order
        assert templates.render([{"role": "user", "content": content}], placeholder="<image>") == expected
    assert templates.render([{"role": "user", "content": "<image>\nFree OCR."}]) == "<bos><image>\nFree OCR."


@pytest.mark.parametrize(
    "own",
    [
        {"chat_template.jinja": b"own"},
        {"additional_chat_templates/rag.jinja": b"own"},
        {"tokenizer_config.json": b'{"chat_template": "own"}'},
        {"tokenizer_config.json": b"damaged"},
        {"tokenizer_config.json": b"[" * 10**6},
    ],
)
def test_a_template_of_the_checkpoint_stays(own: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["DeepseekOCRForCausalLM"]}))
    files = {"tokenizer.json": b"{}"} | own
    assert with_template(files, ModelConfig(model=str(tmp_path))) == files
    replaced = with_template(files, ModelConfig(model=str(tmp_path), chat_template=TEXT))
    assert replaced["chat_template.jinja"] == TEXT.encode()


@pytest.mark.parametrize("kind", ["option", "labels", "layout", "chats"])
def test_a_reranker_has_the_template_of_its_model_card_instead_of_that_of_chats(kind: str, tmp_path: Path) -> None:
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    options = {"pooler_config": '{"classifier_from_token": ["no", "yes"]}'} if kind == "option" else {}
    if kind == "labels":
        config |= {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    if kind == "layout":
        (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.cross_encoder.LogitScore"}]')
    (tmp_path / "config.json").write_text(json.dumps(config))
    files = {"tokenizer.json": b"{}"} if kind == "layout" else FILES
    templates = ChatTemplates.from_files(with_template(files, ModelConfig(model=str(tmp_path), **options)))
    messages = [{"role": "query", "content": "What?"}, {"role": "document", "content": "That."}]
    rendered = templates.render(messages)
    if kind == "chats":
        assert rendered == "old"
        return
    assert rendered == (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a '
        "web search query, retrieve relevant passages that answer the query\n<Query>: What?\n<Document>: That."
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


@pytest.mark.parametrize("as_file", [True, False])
def test_a_layout_shows_pairs_with_its_own_template_and_variables(as_file: bool, tmp_path: Path) -> None:
    """As sentence-transformers does, whatever the template does with the roles."""
    own = b"{% for each in messages %}[{{ each.role }}] {{ each.content }} {% endfor %}"
    own += b"{{ add_generation_prompt }} {{ n }}"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}))
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.cross_encoder.LogitScore"}]')
    config = json.dumps({} if as_file else {"chat_template": own.decode()}).encode()
    files = {"tokenizer.json": b"{}", "tokenizer_config.json": config} | (
        {"chat_template.jinja": own} if as_file else {}
    )
    shown = []
    for arguments in ({}, {"add_generation_prompt": True, "n": "it's", "restore_suffix": False}):
        fields = {"processing_kwargs": {"chat_template": arguments}}
        (tmp_path / "sentence_bert_config.json").write_text(json.dumps(fields))
        templates = ChatTemplates.from_files(with_template(files, ModelConfig(model=str(tmp_path))))
        messages = [{"role": "query", "content": "What?"}, {"role": "document", "content": "That."}]
        shown.append(templates.render(messages, add_generation_prompt=False))
    assert shown == ["[query] What? [document] That. False ", "[query] What? [document] That. True it's"]
    (tmp_path / "sentence_bert_config.json").write_text('{"processing_kwargs": {"chat_template": {"n": [1]}}}')
    with pytest.raises(UnsupportedModelError, match=r"chat_template has n=\[1\], which is not supported"):
        with_template(files, ModelConfig(model=str(tmp_path)))
