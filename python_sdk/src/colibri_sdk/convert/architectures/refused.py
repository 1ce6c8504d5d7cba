# SPDX-License-Identifier: Apache-2.0
"""Well-known models with experts that cannot be packed, each with the reason: what it computes and the engine does not.

A name is a class of config.json or general.architecture of a GGUF file. Whoever wants to add one of them sees here
what it takes beyond a file for its names.
"""

from __future__ import annotations

from collections.abc import Mapping

_REASONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "its norms are LayerNorm with biases in the place of RMSNorm, and sparsemixer chooses its experts: each weight "
        "is a softmax over the experts near the largest score",
        ("PhimoeForCausalLM", "PhiMoEForCausalLM", "phimoe"),
    ),
    ("its norms are LayerNorm in the place of RMSNorm", ("DbrxForCausalLM", "dbrx")),
    (
        "its routers weigh what goes into an expert, not what comes out, and some layers do not rotate",
        ("Llama4ForCausalLM", "Llama4ForConditionalGeneration", "llama4"),
    ),
    ("a tanh caps the scores of its attention", ("Grok1ModelForCausalLM", "Grok1ForCausalLM", "grok")),
    (
        "its experts stand beside attention and a dense network, and read what goes into the layer",
        ("ArcticForCausalLM", "arctic"),
    ),
    ("its attention has experts, too", ("JetMoeForCausalLM",)),
    (
        "some of its experts only pass on what they get, and each layer has two attentions",
        ("LongcatFlashForCausalLM",),
    ),
    ("its layers are short convolutions and attention by turns", ("Lfm2MoeForCausalLM", "lfm2moe")),
    (
        "its Mamba layers keep a state in the place of keys and values",
        (
            "JambaForCausalLM",
            "jamba",
            "GraniteMoeHybridForCausalLM",
            "granitehybrid",
            "NemotronHForCausalLM",
            "nemotron_h_moe",
        ),
    ),
    (
        "most of its layers have linear attention, which keeps a state in the place of keys and values",
        (
            "MiniMaxForCausalLM",
            "MiniMaxText01ForCausalLM",
            "MiniMaxM1ForCausalLM",
            "Qwen3NextForCausalLM",
            "qwen3next",
            "Qwen3_5MoeForCausalLM",
            "Qwen3_5MoeForConditionalGeneration",
            "qwen35moe",
            "KimiLinearForCausalLM",
            "kimi-linear",
        ),
    ),
    (
        "its attention looks only at the positions that an indexer picks",
        ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM", "glm-dsa"),
    ),
    (
        "it is an encoder with a decoder",
        ("SwitchTransformersForConditionalGeneration", "NllbMoeForConditionalGeneration"),
    ),
)

REASONS: Mapping[str, str] = {name: reason for reason, names in _REASONS for name in names}


def because(name: str) -> str:
    """The reason as the end of a sentence, with a colon before it; nothing for a name without one."""
    return f": {REASONS[name]}" if name in REASONS else ""


def advice(name: str, supported: str) -> str:
    """What to do in the place of `name`. `supported`: the names that can be packed."""
    if name in REASONS:
        return (
            f"No option changes that: the engine has no such layer. Take a model of another architecture: {supported}."
        )
    return f"Supported: {supported}."
