# SPDX-License-Identifier: Apache-2.0
"""A conversation with a model: what was said so far, rendered into the next prompt.

The device keeps nothing between two requests. Its own template knows one turn; a prompt of several turns is rendered
here, from the chat template in the image's card, and sent as segments, so that special tokens come from the template
alone and never from what somebody typed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from colibri_sdk.segments import Segment

# A model whose context is shorter is made for single commands: earlier turns would fill it, and mislead it.
SHORT_CONTEXT = 2048


@dataclass
class Conversation:
    """`card` is the image's card; None, or one without a chat template, makes every prompt stand alone."""

    card: Mapping[str, Any] | None
    keep: bool = True  # whether earlier turns go into the next prompt
    turns: list[tuple[str, str]] = field(default_factory=list)

    @property
    def remembers(self) -> bool:
        return self.keep and self.card is not None and _has_template(self.card)

    def prompt(self, text: str) -> str | Sequence[Segment]:
        """What to send for `text`: the text alone (the device wraps it), or the whole conversation as segments."""
        if self.card is None or not self.remembers or not self.turns:
            return text
        from colibri_sdk.convert.template import render_chat

        messages = [
            {"role": role, "content": content}
            for turn in self.turns
            for role, content in zip(("user", "assistant"), turn, strict=True)
        ]
        messages.append({"role": "user", "content": text})
        taking = {int(token): flags for token, flags in self.card.get("taking_tokens", {}).items()}
        return render_chat(
            self.card["chat_template"],
            messages,
            self.card.get("special_tokens", {}),
            self.card.get("tokens", {}),
            taking=taking,
        )

    def add(self, text: str, answer: str) -> None:
        """A turn that came to its end."""
        self.turns.append((text, answer))

    def forget_oldest(self) -> bool:
        """Drops the oldest turn from the next prompt, to make room; False when there is none in it."""
        if not self.turns or not self.remembers:
            return False
        del self.turns[0]
        return True

    def reset(self) -> None:
        """Begins anew."""
        self.turns.clear()


def _has_template(card: Mapping[str, Any]) -> bool:
    """Is there a chat template, and what belongs to it? A card says what whoever made the image wants."""
    special, tokens, taking = (card.get(name, {}) for name in ("special_tokens", "tokens", "taking_tokens"))
    return (
        isinstance(card.get("chat_template"), str)
        and card["chat_template"] != ""
        and all(isinstance(one, Mapping) for one in (special, tokens, taking))
        and all(isinstance(one, int) for one in (*special.values(), *taking.values()))
        and all(isinstance(one, str) for one in tokens.values())
        and all(special)
        and all(re.fullmatch("[0-9]{1,9}", token) for token in taking)
    )
