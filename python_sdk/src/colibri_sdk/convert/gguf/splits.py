# SPDX-License-Identifier: Apache-2.0
"""How byte-level vocabularies split texts, by the names that tokenizer.ggml.pre has for it: as the models' own
tokenizer.json files say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Split:
    """`patterns` cut in turn; then, where `gpt2`, GPT-2's own pattern. `whole_words`: a word that is a token stays
    whole, and texts begin with the bos token unless the file says otherwise."""

    patterns: tuple[str, ...] = ()
    gpt2: bool = False
    form: str | None = None  # Unicode normalisation before
    whole_words: bool = False

    def normalizer(self) -> dict[str, Any] | None:
        return None if self.form is None else {"type": self.form}

    def pre_tokenizer(self) -> dict[str, Any]:
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": self.gpt2}
        if not self.patterns:
            return level
        splits = [
            {"type": "Digits", "individual_digits": True}
            if pattern == _DIGIT
            else {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            for pattern in self.patterns
        ]
        return {"type": "Sequence", "pretokenizers": [*splits, level]}


_DIGIT = r"\p{N}"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)

# Letters that have case, as the older DeepSeek vocabularies list them.
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b"
    "\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134"
    "\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17"
    "\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK = (
    r"[\r\n]",
    rf"\s?[{_CASED}]+",
    r"\s?[!-/:-~" + "\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    _DIGIT,
)

# What llama.cpp does where a file names no split, or "default".
_DEFAULT = (
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
)

_HAN_UPPER, _HAN_LOWER = (part[:-1] + r"&&[^\p{Han}]]" for part in (_UPPER, _LOWER))
_KIMI_K2 = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{_HAN_UPPER}*{_HAN_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_HAN_UPPER}+{_HAN_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}" + _TAIL
)

PRE_TOKENIZERS: Mapping[str, Split] = {
    "default": Split(_DEFAULT),
    "gpt-2": Split(gpt2=True),
    "olmo": Split(gpt2=True, form="NFC"),
    **dict.fromkeys(("refact", "starcoder", "smollm"), Split((_DIGIT,), gpt2=True)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), Split((_LLAMA3,), whole_words=True)),
    **dict.fromkeys(("glm4", "chatglm-bpe"), Split((_LLAMA3,))),
    "qwen2": Split((_QWEN2,), form="NFC"),
    "deepseek-r1-qwen": Split((_QWEN2,)),
    **dict.fromkeys(("gpt-4o", "llama4"), Split((_O200K,))),
    "deepseek-llm": Split(_DEEPSEEK),
    "deepseek-v3": Split(_DEEPSEEK3),
    "kimi-k2": Split((_KIMI_K2,)),
}
