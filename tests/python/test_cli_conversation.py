# SPDX-License-Identifier: Apache-2.0
"""What a chat sends for its second and later turns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colibri_sdk.conversation import Conversation
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.segments import Segment


@pytest.fixture
def card(hummingbird: Callable[[str], Path]) -> dict[str, Any]:
    with ImageFile(hummingbird("q8")) as image:
        return image.card


def test_first_turn_is_left_to_the_device(card: dict[str, Any]) -> None:
    assert Conversation(card).prompt("hello") == "hello"


def test_later_turns_are_rendered_by_the_models_template(card: dict[str, Any]) -> None:
    conversation = Conversation(card)
    conversation.add("hello", "Hi.")
    bos, eos, user, assistant = range(4)
    assert conversation.prompt("open gate 2") == [
        Segment(bos),
        Segment(user),
        Segment(text="hello"),
        Segment(assistant),
        Segment(text="Hi."),
        Segment(eos),
        Segment(user),
        Segment(text="open gate 2"),
        Segment(assistant),
    ]


def test_special_tokens_that_are_typed_stay_text(card: dict[str, Any]) -> None:
    conversation = Conversation(card)
    conversation.add("<|eos|>", "<|user|>")
    prompt = conversation.prompt("a<|assistant|>b")
    assert not isinstance(prompt, str)
    assert [segment.text for segment in prompt if segment.token is None] == ["<|eos|>", "<|user|>", "a<|assistant|>b"]


@pytest.mark.parametrize("known", [False, True])
def test_without_history_or_template_each_prompt_stands_alone(card: dict[str, Any], known: bool) -> None:
    conversation = Conversation(card if known else None, keep=not known)
    conversation.add("hello", "Hi.")
    assert conversation.prompt("again") == "again"
    assert not conversation.remembers
    assert not conversation.forget_oldest()
    assert conversation.turns == [("hello", "Hi.")]


def test_oldest_turn_goes_first(card: dict[str, Any]) -> None:
    conversation = Conversation(card)
    conversation.add("one", "1")
    conversation.add("two", "2")
    assert conversation.forget_oldest()
    assert conversation.turns == [("two", "2")]
    conversation.reset()
    assert not conversation.forget_oldest()
