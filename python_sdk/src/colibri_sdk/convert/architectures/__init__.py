# SPDX-License-Identifier: Apache-2.0
"""The architectures that can be packed: one file each, found here by the class name in config.json.

docs/adding-an-architecture.md shows how to add one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from colibri_sdk.convert.architectures import (
    deepseek,
    dense,
    ernie4_5_moe,
    glm4_moe,
    gpt_oss,
    granite,
    mixtral,
    olmoe,
    qwen_moe,
)
from colibri_sdk.convert.description import ModelDescription
from colibri_sdk.errors import CheckpointError

# config.json and the names of the checkpoint's tensors, to a description.
Describe = Callable[[Mapping[str, Any], frozenset[str]], ModelDescription]

_FILES = (deepseek, dense, ernie4_5_moe, glm4_moe, gpt_oss, granite, mixtral, olmoe, qwen_moe)
ARCHITECTURES: Mapping[str, Describe] = {name: file.describe for file in _FILES for name in file.CLASSES}


def describe(config: Mapping[str, Any], tensors: frozenset[str]) -> ModelDescription:
    """The model that config.json describes; `tensors` are the names of the checkpoint's tensors.

    Raises CheckpointError for an architecture or an option that cannot be run, by its name.
    """
    classes = config.get("architectures")
    if not isinstance(classes, list) or len(classes) != 1 or not isinstance(classes[0], str):
        raise CheckpointError(
            f"config.json names the architectures {classes!r}; one class name is expected",
            "Name the directory of a Hugging Face causal language model.",
            where="architectures",
        )
    if classes[0] not in ARCHITECTURES:
        raise CheckpointError(
            f"architecture {classes[0]} is not supported",
            f"Supported: {', '.join(sorted(ARCHITECTURES))}.",
            where="architectures",
        )
    return ARCHITECTURES[classes[0]](config, tensors)
