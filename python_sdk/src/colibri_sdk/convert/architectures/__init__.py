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
    refused,
)
from colibri_sdk.convert.description import ModelDescription
from colibri_sdk.errors import CheckpointError

# Quantised checkpoints whose numbers are read: MXFP4, as gpt-oss is published.
READABLE_METHODS = ("mxfp4",)

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
            f"architecture {classes[0]} is not supported{refused.because(classes[0])}",
            refused.advice(classes[0], ", ".join(sorted(ARCHITECTURES))),
            where="architectures",
        )
    _refuse_quantised(config)
    return ARCHITECTURES[classes[0]](config, tensors)


def _refuse_quantised(config: Mapping[str, Any]) -> None:
    """Weights that another program has quantised in its own way have other names and other meanings."""
    settings = config.get("quantization_config")
    method = settings.get("quant_method") if isinstance(settings, dict) else settings
    if settings is not None and method not in READABLE_METHODS:
        raise CheckpointError(
            f"config.json has quantization_config with quant_method = {method!r}, which is not supported",
            f"Take the checkpoint that it was made from. Supported: {', '.join(READABLE_METHODS)}.",
            where="quantization_config",
        )
