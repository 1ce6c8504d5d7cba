# SPDX-License-Identifier: Apache-2.0
"""The image's card: what people and tools want to know of a model and the engine does not read.

It holds no time and no path, so that the same checkpoint gives the same image, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from colibri_sdk.convert.description import ModelDescription
from colibri_sdk.convert.quantisation import Plan
from colibri_sdk.convert.weights import ChatFacts, Weights

# Counts changes of the card's fields.
CARD_VERSION = 1

_HASH_BYTES = 1 << 20
_GENERATION_KEYS = (
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "repetition_penalty",
    "max_new_tokens",
)


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


def build_card(
    checkpoint: Weights,
    description: ModelDescription,
    *,
    name: str,
    packer: str,
    plan: Plan,
    kv: str,
    router: str,
    context: int,
    digests: Mapping[str, str],
    special_tokens: Mapping[str, int],
    taking_tokens: Mapping[int, int],
    chat: ChatFacts,
) -> dict[str, Any]:
    """The card as JSON-ready data. Sizes are in bytes, `parameters` counts weights."""
    generation = checkpoint.generation
    taking = {str(token): flags for token, flags in taking_tokens.items() if flags and token in special_tokens.values()}
    return {
        "card_version": CARD_VERSION,
        "packer": packer,
        "name": name,
        "architecture": description.architecture,
        "licence": checkpoint.licence,
        "quantisation": plan.name,
        "plan": plan.text,
        "kv_format": kv,
        "router": router,
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
        **({"taking_tokens": taking} if taking else {}),
        "eos_token_ids": list(description.eos),
        "generation": {key: generation[key] for key in _GENERATION_KEYS if key in generation},
    }


def encode_card(card: Mapping[str, Any]) -> bytes:
    """UTF-8 JSON, keys sorted."""
    return json.dumps(card, sort_keys=True, ensure_ascii=False, indent=1).encode("utf-8", "replace")
