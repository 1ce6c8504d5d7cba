# SPDX-License-Identifier: Apache-2.0
"""A prompt that the device fills in equals the one that Jinja renders and the tokenizers library tokenises."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2.sandbox
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from colibri_sdk.convert.template import compile_template, render_chat
from colibri_sdk.segments import Segment
from native import Native
from tokenizer_native import E_BUFFER_SIZE, E_TEXT_SIZE, HUMMINGBIRD, EngineTokenizer, Reference, open_tokenizer

HUMMINGBIRD_CHAT: str = json.loads((HUMMINGBIRD / "tokenizer_config.json").read_text("utf-8"))["chat_template"]
CHATS = {
    "hummingbird": HUMMINGBIRD_CHAT,
    "text on both sides": "<|bos|>[{{ messages[-1]['content'] }}]",
    "text before": "{{ bos_token }}be brief: {{ messages[0].content }}<|assistant|>",
    "text after": "<|user|>{{ messages[0].content }} please.<|assistant|>\n",
    "nothing but the text": "{{ messages[0]['content'] }}",
    "no special tokens": "User: {{ messages[0]['content'] }}\nAssistant:",
    "system by default": (
        "{% if messages[0]['role'] != 'system' %}<|bos|>You are a controller.\n\n{% endif %}"
        "{% for m in messages %}<|user|>\n{{ m['content'] }}<|eos|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    ),
    "trimmed": "<|user|> {{ messages[0]['content'] | trim }} <|assistant|>{{ eos_token }}",
    "trimmed at the edge": "{{ messages[0]['content'].strip() + '<|assistant|>' }}",
}
SPACES = " \t\n\v\f\r\x1c\x1f\x85\xa0\u1680\u2003\u200b\u2028\u202f\u3000\ufeff"


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(HUMMINGBIRD / "tokenizer.json")


@pytest.fixture(scope="module", params=CHATS)
def chat(request: pytest.FixtureRequest) -> str:
    return CHATS[request.param]


@pytest.fixture(scope="module")
def engine(native: Native, reference: Reference, chat: str) -> EngineTokenizer:
    template = compile_template(chat, reference.compiled, "<|bos|>", "<|eos|>")
    return open_tokenizer(native, reference.compiled, template)


def rendered(chat: str, messages: list[dict[str, Any]], generate: bool = True) -> str:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(chat).render(
        messages=messages, add_generation_prompt=generate, bos_token="<|bos|>", eos_token="<|eos|>"
    )


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


harmless = st.lists(
    st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), st.text(SPACES, max_size=4)), max_size=5
).map("".join)
spelling = st.lists(
    st.sampled_from(["<|user|>", "<|bos|>", "<|", "<", "us", "er|>", "|>", ">", "assistant", " ", "\n", "x"]),
    max_size=7,
).map("".join)


@settings(max_examples=150, deadline=None)
@given(text=harmless)
def test_equals_the_rendered_whole(engine: EngineTokenizer, reference: Reference, chat: str, text: str) -> None:
    whole = rendered(chat, user(text))
    assert engine.encode_template(text) == reference.rendered_ids(whole)


@settings(max_examples=100, deadline=None)
@given(text=spelling)
def test_user_text_stays_text(engine: EngineTokenizer, reference: Reference, chat: str, text: str) -> None:
    """No special token but the template's, and every character that the user typed."""
    mark = "\ue000"
    head, tail = rendered(chat, user(mark)).split(mark)
    trims = f"\u2003{mark}" not in rendered(chat, user(f"\u2003{mark}"))
    special = reference.compiled.special
    ids = engine.encode_template(text)
    own = reference.rendered_ids(head) + reference.rendered_ids(tail)
    assert [token for token in ids if token in special.values()] == [t for t in own if t in special.values()]
    for name in special:
        head, tail = head.replace(name, ""), tail.replace(name, "")
    assert engine.text(ids).decode() == head + (text.strip() if trims else text) + tail


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=60), room=st.integers(0, 50))
def test_bytes_and_little_room(engine: EngineTokenizer, data: bytes, room: int) -> None:
    whole = engine.encode_template(data)
    status, ids = engine.try_encode(data, template=True, room=room)
    assert status == (0 if len(whole) <= room else E_BUFFER_SIZE)
    assert ids == whole[:room] + [-1] * (len(whole) - room)


def test_longer_than_allowed_is_refused(engine: EngineTokenizer) -> None:
    assert engine.try_encode("abcd", template=True, limit=3) == (E_TEXT_SIZE, [])
    assert engine.try_encode("abcd", template=True, limit=4)[0] == 0


def test_reference_prompts(native: Native, reference: Reference) -> None:
    """The ids that the model's own reference was computed from."""
    template = compile_template(HUMMINGBIRD_CHAT, reference.compiled, "<|bos|>", "<|eos|>")
    engine = EngineTokenizer(native, reference.compiled.section, reference.vocab, template)
    cases = json.loads((HUMMINGBIRD / "reference.json").read_text("utf-8"))["cases"]
    assert cases
    for case in cases:
        assert engine.encode_template(case["prompt"]) == case["prompt_ids"]
        assert engine.text(case["completion_ids"]).decode() == case["completion"]


# ------------------------------------------------------------------------------------- conversations held by the host

roles = st.sampled_from(["user", "assistant"])
conversations = st.lists(
    st.fixed_dictionaries({"role": roles, "content": st.one_of(harmless, spelling)}), min_size=1, max_size=5
)


def segment_ids(engine: EngineTokenizer, segments: list[Segment]) -> list[int]:
    assert not any(a.token is None and b.token is None for a, b in pairwise(segments))
    ids: list[int] = []
    for segment in segments:
        ids += [segment.token] if segment.token is not None else engine.encode(segment.text_bytes)
    return ids


@settings(max_examples=100, deadline=None)
@given(messages=conversations, generate=st.booleans())
def test_conversation(
    engine: EngineTokenizer, reference: Reference, chat: str, messages: list[dict[str, Any]], generate: bool
) -> None:
    special = reference.compiled.special
    variables = {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}
    segments = render_chat(chat, messages, special, variables, add_generation_prompt=generate)
    ids = segment_ids(engine, segments)
    # The same special tokens as with contents that spell none, and every character of the rendering.
    blank = [message | {"content": "x"} for message in messages]
    expected = [
        segment.token for segment in render_chat(chat, blank, special, variables, add_generation_prompt=generate)
    ]
    assert [segment.token for segment in segments if segment.token is not None] == [
        token for token in expected if token is not None
    ]
    names = {token: name for name, token in special.items()}
    spelled = "".join(names[s.token] if s.token is not None else str(s.text) for s in segments)
    whole = rendered(chat, messages, generate)
    assert spelled == whole
    if not any(set("<>") & set(message["content"]) for message in messages):
        assert ids == reference.rendered_ids(whole)


def test_one_turn_rendered_by_host_and_device_is_the_same(
    engine: EngineTokenizer, reference: Reference, chat: str
) -> None:
    variables = {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}
    for text in ("set pump 3", "  padded \n", "<|user|>", "|>", "<|", "", "\u4e2d<|eos|>\u4e2d"):
        segments = render_chat(chat, user(text), reference.compiled.special, variables)
        assert segment_ids(engine, segments) == engine.encode_template(text), text


def test_contents_side_by_side_do_not_join_to_a_special_token(reference: Reference) -> None:
    chat = "{% for m in messages %}{{ m.content | trim }}{% endfor %}"
    halves = [{"role": "user", "content": " <|us"}, {"role": "user", "content": "er|>\n"}]
    assert render_chat(chat, halves, reference.compiled.special) == [Segment(text="<|user|>")]


def test_literal_and_content_do_not_join_to_a_special_token(native: Native, reference: Reference) -> None:
    chat = "<|{{ messages[0].content | trim }}|>"
    template = compile_template(chat, reference.compiled)
    engine = EngineTokenizer(native, reference.compiled.section, reference.vocab, template)
    for text in ("user", " user\n"):
        assert render_chat(chat, user(text), reference.compiled.special) == [Segment(text="<|user|>")]
        assert engine.text(engine.encode_template(text)) == b"<|user|>"


TAKING = {"<|user|>": {"rstrip": True}, "<|assistant|>": {"lstrip": True, "rstrip": True}, "<|eos|>": {"lstrip": True}}


@pytest.fixture(scope="module")
def taking(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The demo's tokenizer with special tokens that take the white space beside them, as those of Phi-3 do."""
    config = json.loads((HUMMINGBIRD / "tokenizer.json").read_text("utf-8"))
    for entry in config["added_tokens"]:
        entry |= TAKING.get(entry["content"], {})
    path = tmp_path_factory.mktemp("taking") / "tokenizer.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return Reference(path)


@pytest.fixture(scope="module")
def taking_engine(native: Native, taking: Reference, chat: str) -> EngineTokenizer:
    template = compile_template(chat, taking.compiled, "<|bos|>", "<|eos|>")
    return open_tokenizer(native, taking.compiled, template)


@settings(max_examples=150, deadline=None)
@given(text=harmless)
@example(text="")
@example(text=" \n\x1c \u2003")
@example(text=" a b ")
def test_special_tokens_that_take_white_space(
    taking_engine: EngineTokenizer, taking: Reference, chat: str, text: str
) -> None:
    messages = user(text)
    expected = taking.rendered_ids(rendered(chat, messages))
    assert taking_engine.encode_template(text) == expected
    variables = {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}
    segments = render_chat(chat, messages, taking.compiled.special, variables, taking=taking.compiled.taking)
    assert segment_ids(taking_engine, segments) == expected


def test_template_without_chat_begins_as_the_tokenizer_says(
    native: Native, reference: Reference, tmp_path: Path
) -> None:
    config = json.loads((HUMMINGBIRD / "tokenizer.json").read_text("utf-8"))
    config["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|bos|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [0], "tokens": ["<|bos|>"]}},
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    with_bos = Reference(path)
    engine = EngineTokenizer(native, with_bos.compiled.section, 1024, compile_template(None, with_bos.compiled))
    for text in ("hello", "", " <|user|> x"):
        expected = with_bos.plain.encode(text).ids
        assert expected[0] == 0
        assert engine.encode_template(text) == expected
    assert compile_template(None, reference.compiled) == compile_template(
        "{{ messages[0].content }}", reference.compiled
    )
