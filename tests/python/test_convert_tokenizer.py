# SPDX-License-Identifier: Apache-2.0
"""What tokenizer.json and chat template may say, and that everything else is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from colibri_sdk.convert.template import compile_template, render_chat
from colibri_sdk.convert.tokenizer import CompiledTokenizer, byte_alphabet, compile_tokenizer
from colibri_sdk.convert.tokenizer_pipeline import GPT2_PATTERN
from colibri_sdk.errors import CheckpointError, UsageError
from colibri_sdk.image.layout import SEGMENT, TEMPLATE
from colibri_sdk.segments import Segment

HUMMINGBIRD = Path(__file__).resolve().parents[2] / "models" / "hummingbird" / "tokenizer.json"
Config = dict[str, Any]
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}


def split_then(pattern: Any, behavior: str = "Isolated", *, invert: bool = False) -> Config:
    """A Split, then the byte level."""
    pattern = {"Regex": pattern} if isinstance(pattern, str) else pattern
    part = {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
    return {"type": "Sequence", "pretokenizers": [part, BYTE_LEVEL | {"use_regex": False}]}


@pytest.fixture
def config() -> Config:
    loaded: Config = json.loads(HUMMINGBIRD.read_text("utf-8"))
    return loaded


@pytest.fixture
def compiled() -> CompiledTokenizer:
    return compile_tokenizer(HUMMINGBIRD, 1024)


def compile_config(config: Any, directory: Path, vocab: int = 1024) -> CompiledTokenizer:
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return compile_tokenizer(path, vocab)


def test_alphabet_is_that_of_the_library() -> None:
    assert set(byte_alphabet()) == set(pre_tokenizers.ByteLevel.alphabet())
    for byte in range(0x21, 0x7F):
        assert byte_alphabet()[chr(byte)] == byte


def test_both_spellings_of_merges(config: Config, tmp_path: Path, compiled: CompiledTokenizer) -> None:
    pairs = config["model"]["merges"]
    assert isinstance(pairs[0], list)
    config["model"]["merges"] = ["#version: 0.2", *(" ".join(pair) for pair in pairs)]
    assert compile_config(config, tmp_path) == compiled


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(truncation={"max_length": 512}, padding={"strategy": "BatchLongest"}),
        lambda c: c["model"].update(
            dropout=0.0, continuing_subword_prefix="", end_of_word_suffix="", unk_token="<|eos|>"
        ),
        lambda c: c["pre_tokenizer"].pop("use_regex"),
        lambda c: c["pre_tokenizer"].pop("trim_offsets"),
        lambda c: c.update(post_processor={"type": "ByteLevel", "trim_offsets": False}),
        lambda c: c["added_tokens"][0].update(normalized=True, single_word=False, lstrip=False, rstrip=False),
        lambda c: c.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [BYTE_LEVEL]}),
        lambda c: c.update(pre_tokenizer=split_then(GPT2_PATTERN)),
        lambda c: c.update(pre_tokenizer=split_then(GPT2_PATTERN, "Removed", invert=True)),
        lambda c: c.update(normalizer={"type": "Sequence", "normalizers": []}),
        lambda c: c["model"].update(byte_fallback=False, ignore_merges=False),
        lambda c: c.update(decoder={"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}),
        lambda c: c["model"].pop("type"),
        lambda c: c.pop("version"),
    ],
)
def test_settings_that_change_no_id(
    config: Config, tmp_path: Path, compiled: CompiledTokenizer, change: Callable[[Config], Any]
) -> None:
    change(config)
    assert compile_config(config, tmp_path) == compiled


def test_merges_do_not_make_special_tokens(config: Config, tmp_path: Path, compiled: CompiledTokenizer) -> None:
    config["model"]["vocab"] = {"<|bos|" if v == 1023 else k: v for k, v in config["model"]["vocab"].items()}
    config["model"]["merges"] = []
    without = compile_config(config, tmp_path)
    config["model"]["merges"] = [["<|bos|", ">"]]
    assert compile_config(config, tmp_path) == without


def test_a_vocabulary_smaller_than_the_embeddings(config: Config, tmp_path: Path) -> None:
    config["added_tokens"].append(config["added_tokens"][0] | {"id": 1030, "content": "<|far|>"})
    tokenizer = compile_config(config, tmp_path, vocab=1152)
    assert tokenizer.vocab == 1031
    assert tokenizer.special["<|far|>"] == 1030


@pytest.mark.parametrize(
    ("named", "change"),
    [
        ("normalizer", lambda c: c.update(normalizer={"type": "Lowercase"})),
        ("normalizer.normalizers[1]", lambda c: c.update(
            normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFKC"}]})),
        ("normalizer", lambda c: c.update(normalizer={"type": "Prepend", "prepend": "\u2581"})),
        ("pre_tokenizer", lambda c: c.update(pre_tokenizer=None)),
        ("pre_tokenizer.type", lambda c: c.update(pre_tokenizer={"type": "Whitespace"})),
        ("pre_tokenizer.pretokenizers[1]", lambda c: c.update(
            pre_tokenizer={"type": "Sequence", "pretokenizers": [BYTE_LEVEL, BYTE_LEVEL]})),
        ("pre_tokenizer.pretokenizers[0].pattern is 'a*'", lambda c: c.update(pre_tokenizer=split_then("a*"))),
        ("pre_tokenizer.pretokenizers[0].pattern is", lambda c: c.update(pre_tokenizer=split_then(r"(?<=a)b"))),
        ("pre_tokenizer.pretokenizers[0].pattern is", lambda c: c.update(pre_tokenizer=split_then(r"\p{Klingon}+"))),
        ("pre_tokenizer.pretokenizers[0].pattern ", lambda c: c.update(pre_tokenizer=split_then({"String": "-"}))),
        ("pre_tokenizer.pretokenizers[0].behavior", lambda c: c.update(
            pre_tokenizer=split_then("a", "MergedWithNext"))),
        ("pre_tokenizer.pretokenizers[0].behavior leaves out", lambda c: c.update(
            pre_tokenizer=split_then("a", "Removed", invert=True))),
        ("pre_tokenizer has", lambda c: c.update(
            pre_tokenizer={"type": "Sequence", "pretokenizers": [
                *([{"type": "Digits", "individual_digits": True}] * 8), BYTE_LEVEL]})),
        ("pre_tokenizer.add_prefix_space", lambda c: c["pre_tokenizer"].update(add_prefix_space=True)),
        ("pre_tokenizer.use_regex", lambda c: c["pre_tokenizer"].update(use_regex="yes")),
        ("pre_tokenizer.mystery", lambda c: c["pre_tokenizer"].update(mystery=1)),
        ("decoder.type", lambda c: c.update(decoder={"type": "WordPiece"})),
        ("decoder", lambda c: c.update(decoder=None)),
        ("post_processor.type", lambda c: c.update(post_processor={"type": "BertProcessing"})),
        ("post_processor.single", lambda c: c.update(post_processor={
            "type": "TemplateProcessing", "special_tokens": {},
            "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<|eos|>"}}]})),
        ("version", lambda c: c.update(version="2.0")),
        ("mystery", lambda c: c.update(mystery=True)),
        ("model", lambda c: c.update(model=None)),
        ("model.type", lambda c: c["model"].update(type="Unigram")),
        ("model.type", lambda c: c["model"].update(type="WordPiece")),
        ("model.dropout", lambda c: c["model"].update(dropout=0.1)),
        ("model.byte_fallback", lambda c: c["model"].update(byte_fallback=True)),
        ("model.ignore_merges", lambda c: c["model"].update(ignore_merges="yes")),
        ("model.end_of_word_suffix", lambda c: c["model"].update(end_of_word_suffix="</w>")),
        ("model.continuing_subword_prefix", lambda c: c["model"].update(continuing_subword_prefix="##")),
        ("model.mystery", lambda c: c["model"].update(mystery=0)),
        ("model.vocab", lambda c: c["model"].update(vocab=[])),
        ("model.vocab['extra']", lambda c: c["model"]["vocab"].update(extra=1024)),
        ("model.vocab['extra']", lambda c: c["model"]["vocab"].update(extra=-1)),
        ("model.vocab['extra']", lambda c: c["model"]["vocab"].update(extra=True)),
        ("model.vocab gives id 70", lambda c: c["model"]["vocab"].update(extra=70)),
        ("model.vocab has no token for the byte 0x61", lambda c: c["model"].update(
            merges=[], vocab={k: v for k, v in c["model"]["vocab"].items() if k != "a"})),
        ("model.vocab has '\u4e2d'", lambda c: c["model"].update(
            merges=[], vocab={"\u4e2d" if v == 600 else k: v for k, v in c["model"]["vocab"].items()})),
        ("model.merges", lambda c: c["model"].pop("merges")),
        ("model.merges[0]", lambda c: c["model"]["merges"].insert(0, ["a"])),
        ("model.merges[0]", lambda c: c["model"]["merges"].insert(0, "a b c")),
        ("model.merges[0]", lambda c: c["model"]["merges"].insert(0, [1, 2])),
        ("model.merges[0] needs 'zz'", lambda c: c["model"]["merges"].insert(0, ["z", "z"])),
        ("added_tokens", lambda c: c.update(added_tokens={})),
        ("added_tokens[1].special", lambda c: c["added_tokens"][1].update(special="no")),
        ("added_tokens[2].lstrip", lambda c: c["added_tokens"][2].update(lstrip=1)),
        ("added_tokens[2].rstrip", lambda c: c["added_tokens"][2].update(rstrip="no")),
        ("added_tokens[3].single_word", lambda c: c["added_tokens"][3].update(single_word=True)),
        ("added_tokens[0].id", lambda c: c["added_tokens"][0].update(id=1024)),
        ("added_tokens[0].content", lambda c: c["added_tokens"][0].update(content="")),
        ("added_tokens[0] ", lambda c: c["added_tokens"][0].update(id=5)),
        ("added_tokens[0] ", lambda c: c["added_tokens"][0].update(content="other")),
        ("added_tokens[4] ", lambda c: c["added_tokens"].append(c["added_tokens"][0])),
    ],
)  # fmt: skip
def test_refused_by_name(config: Config, tmp_path: Path, named: str, change: Callable[[Config], Any]) -> None:
    change(config)
    with pytest.raises(CheckpointError) as refused:
        compile_config(config, tmp_path)
    assert f"tokenizer.json: {named}" in str(refused.value)
    assert refused.value.where == "tokenizer.json"


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_tokenizer(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        compile_tokenizer(path, 1024)
    with pytest.raises(CheckpointError, match=r"missing\.json"):
        compile_tokenizer(tmp_path / "missing.json", 1024)


# ------------------------------------------------------------------------------------------------------ chat templates


def kinds(section: bytes) -> list[int]:
    count = int(np.frombuffer(section, "<u4", 1)[0])
    return np.frombuffer(section, SEGMENT, count, TEMPLATE.itemsize)["kind"].tolist()


@pytest.mark.parametrize(
    ("complaint", "template"),
    [
        ("leaves out the user's text", "<|user|>hello<|assistant|>"),
        ("leaves out the user's text", "{{ messages[0].content | upper }}"),
        ("uses the user's text 2 times", "{{ messages[0].content }} {{ messages[0].content }}"),
        ("changes the user's text", "{{ messages[0].content | replace('<', '(') }}"),
        ("changes the user's text", "{{ messages[0].content | tojson }}"),
        ("changes the user's text", "{{ messages[0].content | e }}"),
        ("changes the user's text", "{{ messages[0].content[:100] }}"),
        ("says other things", "{% if 'a' in messages[0].content %}{{ messages[0].content }}{% else %}"
                              "{{ messages[0].content }}!{% endif %}"),
        ("strips some white space", "{{ messages[0].content.lstrip() }}"),
        ("strips some white space", "{{ messages[0].content.strip('\n ') }}"),
        ("is no valid Jinja", "{% for %}"),
        ("cannot be rendered", "{{ raise_exception('needs a system message') }}"),
        ("needs a system message", "{{ raise_exception('needs a system message') }}"),
        ("cannot be rendered", "{{ messages[7]['content']['x'] }}"),
        ("cannot be rendered", "{{ strftime_now('%Y') }}{{ messages[0].content }}"),
        ("cannot be rendered", "{{ messages.append(1) }}{{ messages[0].content }}"),
        ("65536 is the limit", "{{ 'x' * 70000 }}{{ messages[0].content }}"),
    ],
)  # fmt: skip
def test_templates_that_a_device_cannot_fill(compiled: CompiledTokenizer, complaint: str, template: str) -> None:
    with pytest.raises(CheckpointError, match=complaint) as refused:
        compile_template(template, compiled, "<|bos|>", "<|eos|>")
    assert "chat template" in str(refused.value)


def test_a_template_cannot_reach_python(compiled: CompiledTokenizer) -> None:
    escape = "{{ messages.__class__.__mro__[1].__subclasses__() }}{{ messages[0].content }}"
    with pytest.raises(CheckpointError, match="unsafe"):
        compile_template(escape, compiled)


def test_what_templates_use(compiled: CompiledTokenizer) -> None:
    template = (
        "{%- set ns = namespace(turns=0) -%}\n"
        "{% for m in messages %}\n"
        "    {% if m.role == 'system' %}{% continue %}{% endif %}\n"
        "    {% set ns.turns = ns.turns + 1 %}\n"
        "<|user|>{% generation %}{{ m.content }}{% endgeneration %}\n"
        "{% endfor %}\n"
        "{{ {'turns': ns.turns, 'é': None} | tojson }}{{ pad_token is defined }}<|assistant|>"
    )
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
    text = 'hi{"turns": 1, "é": null}False'  # trim_blocks takes the line end after a tag
    assert render_chat(template, messages, compiled.special) == [Segment(2), Segment(text=text), Segment(3)]


def test_the_date_is_given_or_absent(compiled: CompiledTokenizer) -> None:
    template = "{{ strftime_now('%d %b %Y') if strftime_now is defined else 'today' }}{{ messages[0].content }}"
    plain = compile_template(template, compiled)
    dated = compile_template(template, compiled, now=datetime(2024, 7, 26, tzinfo=UTC))
    assert kinds(plain) == kinds(dated) == [2, 3]
    assert plain.endswith(b"today") and dated.endswith(b"26 Jul 2024")


def test_conversations_need_a_template_and_plain_roles(compiled: CompiledTokenizer) -> None:
    message = {"role": "user", "content": "x"}
    with pytest.raises(UsageError, match="no chat template"):
        render_chat(None, [message], compiled.special)
    for role in ("<|assistant|>", "user|>", "", "a b"):
        with pytest.raises(UsageError, match="is no role"):
            render_chat("{{ messages[0].content }}", [message | {"role": role}], compiled.special)


def test_fields_beside_content_are_guarded_too(compiled: CompiledTokenizer) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "<|eos|>"}], "name": "<|bos|>", "n": 3}
    template = "{{ messages[0].name }}{{ messages[0].content[0].text }}{{ messages[0].n }}"
    assert render_chat(template, [message], compiled.special) == [Segment(text="<|bos|><|eos|>3")]


def test_segment_bytes() -> None:
    assert Segment(text="é").text_bytes == b"\xc3\xa9"
    assert Segment(text=b"\xff").text_bytes == b"\xff"
    assert Segment(5, "ignored").text_bytes == b""
