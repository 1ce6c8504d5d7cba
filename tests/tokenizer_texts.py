# SPDX-License-Identifier: Apache-2.0
"""Texts that tokenizers disagree about, for property tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

WHITE = " \t\n\v\f\r\x1c\x1d\x1e\x1f\x85\xa0\u1680\u180e\u2000\u2007\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
DIGITS = "0123456789\u0664\u0967\u0e53\u2162\u00bd\u3007\u2460\U0001d7d8\U00010107"
SCRIPTS = "azAZ\u00e9\u00df\u0130\u0434\u05d0\u0639\u0939\u4e2d\u6587\u3042\u30ab\uac00\U00020000\U0001f600"
MARKS = "\u0301\u0308\u093e\u0e31\u200d\ufe0f\u20e3\U0001f3fd\U000e0061"
CONTROLS = "\x00\x01\x07\x08\x1b\x7f\x80\x9f\ufffd\ufffe\U0010ffff\ue000"
SPELLINGS = [
    "<|bos|>",
    "<|user|>",
    "<|assistant|>",
    "<|eos|>",
    "<s>",
    "</s>",
    "<s><s>",
    "[INST]",
    "<end>",
    "<more>",
    "<|",
]
WORDS = [
    "'s",
    "'t",
    "'re",
    "'ve",
    "'m",
    "'ll",
    "'d",
    "'S",
    "'",
    "''",
    "don't",
    "we'll",
    "\u2019s",
    "\U0001f469\u200d\U0001f52c",
    "aab",
    "ab",
]

any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
hard_text = st.lists(
    st.one_of(
        *(
            st.text(alphabet, min_size=1, max_size=6)
            for alphabet in (WHITE, DIGITS, SCRIPTS, MARKS, CONTROLS, "aab 01\n中")
        ),
        st.sampled_from(SPELLINGS + WORDS),
        st.sampled_from(" \t\n"),
    ),
    max_size=16,
).map("".join)

# What the patterns of later tokenizers look at: cases, line ends, digits in threes, marks, contractions of any case.
CASES = "aZ\u00df\u01c5\u02b0\u05d0\u0301\u0130\u212a\u017f"
LINES = "\r\n /!.\u3000\t"
CONTRACTIONS = ["'S", "'s", "'\u017f", "'Ll", "'RE", "'vE", "'M", "'D", "'t", "'T", "'", "a'S"]
CJK = "\u4e00\u9fa5\u9fa6\u3040\u309f\u30a0\u30ff\u3100\uac00\ud7a3\u0800\uff01\u3002"
COMPOSED = (
    "\u00e9e\u0301\u0323\u0327\u1100\u1161\u11a8\uac00\u212b\u0344\u0958\u09c7\u09be\ufb2c\u1e9b\u0f73"
    "\uf900\U0001d15e\U0002f800"
)

pattern_text = st.lists(
    st.one_of(
        *(st.text(alphabet, min_size=1, max_size=6) for alphabet in (CASES, LINES, CJK, COMPOSED, DIGITS, "012345")),
        st.sampled_from(CONTRACTIONS),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
        st.sampled_from(" \n"),
    ),
    max_size=16,
).map("".join)

# Every code point but surrogates and what is far from any that Unicode assigns.
CHARACTERS = [
    chr(point)
    for point in (*range(0xD800), *range(0xE000, 0x32400), *range(0xE0000, 0xE0200), *range(0x10FFF0, 0x110000))
]


def in_parts(characters: Sequence[str]) -> Iterator[Sequence[str]]:
    """A hundred at a time: for longer texts the libraries and the sanitizers take twice as long per character."""
    return (characters[start : start + 128] for start in range(0, len(characters), 128))
