# SPDX-License-Identifier: Apache-2.0
"""The image's card: what people and tools want to know of a model and the engine does not read.

It holds no time and no path, so that the same checkpoint gives the same image, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colibri_sdk.convert.checkpoint import Checkpoint, read_json
from colibri_sdk.convert.description import ModelDescription

# Counts changes of the card's fields.
CARD_VERSION = 1

_HASH_BYTES = 1 << 20
_SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
)
_GENERATION_KEYS = (
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "repetition_penalty",
    "max_new_tokens",
)
_TOKEN_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True)
class ChatFacts:
    """What the checkpoint says about its chat prompts. Strings are None where it says nothing."""

    template: str | None
    tokens: Mapping[str, str]  # role, e.g. "bos_token", to the token's text

    def token(self, role: str) -> str:
        return self.tokens.get(role, "")


def source_files(checkpoint: Checkpoint) -> list[Path]:
    """The checkpoint's files that an image is made of, in the order of their names."""
    small = [checkpoint.directory / name for name in _SMALL_FILES]
    return sorted([path for path in small if path.is_file()] + list(checkpoint.shards))


def hash_files(paths: list[Path], advance: Callable[[int, str], None]) -> dict[str, str]:
    """SHA-256 in hexadecimal of each file, by name; `advance` hears of bytes read and of which file."""
    digests: dict[str, str] = {}
    for path in paths:
        sha = hashlib.sha256()
        with path.open("rb") as file:
            while piece := file.read(_HASH_BYTES):
                sha.update(piece)
                advance(len(piece), path.name)
        digests[path.name] = sha.hexdigest()
    return digests


def chat_facts(directory: Path) -> ChatFacts:
    """From tokenizer_config.json, special_tokens_map.json and chat_template.jinja, all of them optional."""
    settings = read_json(directory / "special_tokens_map.json", required=False)
    settings |= read_json(directory / "tokenizer_config.json", required=False)
    tokens = {}
    for role in _TOKEN_ROLES:
        value = settings.get(role)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            tokens[role] = content
    return ChatFacts(_template(directory, settings), tokens)


def _template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    alone = directory / "chat_template.jinja"
    if alone.is_file():
        return alone.read_text("utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        # Several templates with names; the one for plain chat is called "default".
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def licence(directory: Path) -> str | None:
    """The licence that README.md states in its front matter, where it has one."""
    readme = directory / "README.md"
    if not readme.is_file():
        return None
    front = re.match(r"---\r?\n(.*?)\r?\n---", readme.read_text("utf-8", "replace"), re.DOTALL)
    line = front and re.search(r"^licen[cs]e:[ \t]*(\S.*)$", front.group(1), re.MULTILINE)
    return line.group(1).strip().strip("'\"") if line else None


def build_card(
    checkpoint: Checkpoint,
    description: ModelDescription,
    *,
    name: str,
    packer: str,
    quantisation: str,
    kv: str,
    context: int,
    digests: Mapping[str, str],
    special_tokens: Mapping[str, int],
    chat: ChatFacts,
) -> dict[str, Any]:
    """The card as JSON-ready data. Sizes are in bytes, `parameters` counts weights."""
    generation = read_json(checkpoint.directory / "generation_config.json", required=False)
    return {
        "card_version": CARD_VERSION,
        "packer": packer,
        "name": name,
        "architecture": description.architecture,
        "licence": licence(checkpoint.directory),
        "quantisation": quantisation,
        "kv_format": kv,
        "context": context,
        "parameters": description.parameters(),
        "active_parameters": description.active_parameters(),
        "shape": {
            "vocab": description.vocab,
            "hidden": description.hidden,
            "layers": len(description.layers),
            "heads": [layer.attention.heads for layer in description.layers],
            "kv_heads": [layer.attention.kv_heads for layer in description.layers],
            "experts": [len(layer.experts) for layer in description.layers],
            "top_k": [layer.top_k for layer in description.layers],
            "expert_width": [layer.expert_width for layer in description.layers],
        },
        "sources": dict(digests),
        "chat_template": chat.template,
        "tokens": dict(chat.tokens),
        "special_tokens": dict(special_tokens),
        "eos_token_ids": list(description.eos),
        "generation": {key: generation[key] for key in _GENERATION_KEYS if key in generation},
    }


def encode_card(card: Mapping[str, Any]) -> bytes:
    """UTF-8 JSON, keys sorted."""
    return json.dumps(card, sort_keys=True, ensure_ascii=False, indent=1).encode("utf-8", "replace")
