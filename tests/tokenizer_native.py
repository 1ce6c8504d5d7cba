# SPDX-License-Identifier: Apache-2.0
"""The engine's tokenizer as a test sees it, and the libraries' answers that it is compared with."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import regex
import tokenizers
import unicodedata2
from tokenizers import decoders, models, pre_tokenizers, trainers

from colibri_sdk.convert.tokenizer import CompiledTokenizer, byte_alphabet, compile_tokenizer
from colibri_sdk.image.layout import TOKENIZER
from made_once import MadeOnce
from native import ROOT, SHARED_OBJECT, Native, shared_object

SOURCES = (
    "utf8.c",
    "normalizer.c",
    "rewrite.c",
    "pretokenizer.c",
    "vocabulary.c",
    "tokenizer.c",
    "tokenizer_bpe.c",
    "tokenizer_unigram.c",
    "tokenizer_encode.c",
    "tokenizer_piece.c",
    "template.c",
    "compare.c",
    "detail.c",
)
HUMMINGBIRD = ROOT / "models" / "hummingbird"
OK, E_IMAGE_TOKENIZER, E_UNSUPPORTED, E_TEXT_SIZE, E_BUFFER_SIZE = 0, -13, -14, -17, -22

_SHIM = """
#include "template.h"
#include "utf8.h"
uint32_t shim_tokenizer_view(void);
uint32_t shim_template_view(void);
uint32_t shim_tokenizer_view(void) { return sizeof(struct col_tokenizer_view); }
uint32_t shim_template_view(void) { return sizeof(struct col_template_view); }
size_t shim_pieces(const struct col_tokenizer_view *view, const uint8_t *text, size_t bytes, uint32_t *length);
size_t shim_pieces(const struct col_tokenizer_view *view, const uint8_t *text, size_t bytes, uint32_t *length)
{
    size_t count = 0;
    struct col_pieces pieces;
    col_pieces_begin(&pieces, &view->classes, &view->splits, text, bytes);
    for (size_t at = 0; at < bytes; at += length[count++]) {
        length[count] = (uint32_t)(col_pieces_next(&pieces, at) - at);
    }
    return count;
}
"""
_DECLARATIONS = """
uint32_t shim_tokenizer_view(void);
uint32_t shim_template_view(void);
size_t shim_pieces(const void *, const uint8_t *, size_t, uint32_t *);
uint32_t col_utf8_decode(const uint8_t *, size_t, uint32_t *);
size_t col_utf8_complete(const uint8_t *, size_t);
int col_tokenizer_open(const uint8_t *, uint64_t, uint32_t, void *, void *);
uint64_t col_tokenizer_scratch_bytes(const void *, uint32_t);
int col_tokenizer_encode(const void *, void *, uint32_t, const char *, size_t, bool, uint32_t *, size_t, size_t *);
void col_tokenizer_text(const void *, uint32_t, const uint8_t **, uint32_t *);
void col_tokenizer_next_text(const void *, uint32_t, bool *, const uint8_t **, uint32_t *);
int col_template_open(const uint8_t *, uint64_t, uint32_t, void *, void *);
uint64_t col_template_scratch_bytes(const void *, const void *, uint32_t);
int col_template_encode(const void *, const void *, void *, uint32_t, const char *, size_t, uint32_t *, size_t,
                        size_t *);
"""
_CANARY = bytes(range(0xC0, 0xE0))


def tokenizer_library(once: MadeOnce) -> Native:
    directory = once("tokenizer", lambda directory: shared_object(directory, SOURCES, _SHIM))
    return Native(directory / SHARED_OBJECT, _DECLARATIONS)


class EngineTokenizer:
    """An opened tokenizer section, with a template section if there is one. Every buffer is exact and guarded."""

    def __init__(self, native: Native, section: bytes, vocab: int, template: bytes = b"") -> None:
        self._native = native
        self._section = section
        ffi, lib = native.ffi, native.lib
        self._keep = [ffi.new("uint64_t[]", (len(data) + 7) // 8 + 1) for data in (section, template)]
        for kept, data in zip(self._keep, (section, template), strict=True):
            ffi.memmove(kept, data, len(data))
        self._detail = ffi.new("uint8_t[48]")
        self._view = ffi.new("uint64_t[]", lib.shim_tokenizer_view() // 8 + 1)
        self._template_view = ffi.new("uint64_t[]", lib.shim_template_view() // 8 + 1)
        at = [ffi.cast("const uint8_t *", kept) for kept in self._keep]
        self.status = lib.col_tokenizer_open(at[0], len(section), vocab, self._view, self._detail)
        if self.status == OK and template:
            self.status = lib.col_template_open(at[1], len(template), vocab, self._template_view, self._detail)

    @property
    def where(self) -> str:
        return bytes(self._detail)[:32].split(b"\0")[0].decode()

    def encode(
        self, text: str | bytes, *, begins: bool = True, room: int | None = None, limit: int | None = None
    ) -> list[int]:
        status, ids = self.try_encode(text, begins=begins, room=room, limit=limit)
        assert status == OK
        return ids

    def encode_template(self, text: str | bytes) -> list[int]:
        status, ids = self.try_encode(text, template=True)
        assert status == OK
        return ids

    def try_encode(
        self,
        text: str | bytes,
        *,
        template: bool = False,
        begins: bool = True,
        room: int | None = None,
        limit: int | None = None,
    ) -> tuple[int, list[int]]:
        """(status, ids); with too little room the ids are padded to the count that was said to be needed."""
        lib, ffi = self._native.lib, self._native.ffi
        data = text.encode() if isinstance(text, str) else text
        limit = len(data) if limit is None else limit
        size = lib.col_template_scratch_bytes(self._template_view, self._view, limit) if template else 0
        size = max(size, lib.col_tokenizer_scratch_bytes(self._view, limit))
        room = max(2 * len(data), limit) + 4096 if room is None else room
        scratch = _guarded(size)
        ids = _guarded(4 * room)
        count = ffi.new("size_t *")
        head = [self._template_view, self._view] if template else [self._view]
        encode = lib.col_template_encode if template else lib.col_tokenizer_encode
        rest = [] if template else [begins]
        status = encode(
            *head, ffi.from_buffer(scratch), limit, data, len(data), *rest,
            ffi.from_buffer("uint32_t[]", ids), room, count,
        )  # fmt: skip
        assert bytes(scratch[size:]) == _CANARY, "wrote past the scratch memory"
        assert bytes(ids[4 * room :]) == _CANARY, "wrote past the ids"
        written = np.frombuffer(ids, np.uint32, min(room, count[0])).tolist()
        return status, written + [-1] * (count[0] - len(written))

    def pieces(self, text: str | bytes) -> list[int]:
        """Lengths in bytes of the pre-tokeniser's pieces."""
        data = text.encode() if isinstance(text, str) else text
        lengths = np.zeros(len(data), np.uint32)
        into = self._native.array("uint32_t", lengths)
        return lengths[: self._native.lib.shim_pieces(self._view, data, len(data), into)].tolist()

    def text(self, ids: Iterable[int]) -> bytes:
        ffi = self._native.ffi
        at, length = ffi.new("const uint8_t **"), ffi.new("uint32_t *")
        out = bytearray()
        for token in ids:
            self._native.lib.col_tokenizer_text(self._view, token, at, length)
            out += ffi.buffer(at[0], length[0])[:]
        return bytes(out)

    @property
    def unknown(self) -> int:
        return int(np.frombuffer(self._section, TOKENIZER, 1)[0]["unknown"])

    @property
    def byte_ids(self) -> set[int]:
        head = np.frombuffer(self._section, TOKENIZER, 1)[0]
        return set(np.frombuffer(self._section, "<u4", int(head["byte_count"]), int(head["byte_ids"])).tolist())

    def joined(self, ids: Iterable[int]) -> bytes:
        """The text of all ids, without the space that encoding put in front."""
        ffi = self._native.ffi
        at, length, begun = ffi.new("const uint8_t **"), ffi.new("uint32_t *"), ffi.new("bool *")
        out = bytearray()
        for token in ids:
            self._native.lib.col_tokenizer_next_text(self._view, token, begun, at, length)
            out += ffi.buffer(at[0], length[0])[:]
        return bytes(out)


def open_tokenizer(native: Native, compiled: CompiledTokenizer, template: bytes = b"") -> EngineTokenizer:
    """One that the engine must take."""
    engine = EngineTokenizer(native, compiled.section, compiled.vocab, template)
    assert engine.status == OK, engine.where
    return engine


def _guarded(size: int) -> bytearray:
    return bytearray(b"\xa5" * size + _CANARY)


class Reference:
    """One tokenizer.json in the tokenizers library, with and without its special tokens."""

    def __init__(self, path: Path) -> None:
        self.path = path
        config = json.loads(path.read_text("utf-8"))
        self.full = tokenizers.Tokenizer.from_file(str(path))
        usual = [entry for entry in config["added_tokens"] if not entry["special"]]
        self.plain = tokenizers.Tokenizer.from_str(json.dumps(config | {"added_tokens": usual}))
        self.normalizer = self.plain.normalizer
        self.vocab: int = max(self.full.get_vocab(with_added_tokens=True).values()) + 1
        self.compiled = compile_tokenizer(path, self.vocab)
        self._spell = {byte: character for character, byte in byte_alphabet().items()}

    def normal(self, text: str) -> str:
        normal: str = text if self.normalizer is None else self.normalizer.normalize_str(text)
        return normal

    def pieces(self, text: str) -> list[int]:
        """Lengths in bytes of the byte-level pieces of a normalised text: they have one character for each byte."""
        return [len(spelled) for spelled, _ in self.plain.pre_tokenizer.pre_tokenize_str(text)]

    def ids(self, text: str) -> list[int]:
        """As text, whatever it spells."""
        ids: list[int] = self.plain.encode(text, add_special_tokens=False).ids
        return ids

    def rendered_ids(self, text: str) -> list[int]:
        """With special tokens where they are spelled."""
        ids: list[int] = self.full.encode(text, add_special_tokens=False).ids
        return ids

    def byte_ids(self, data: bytes) -> list[int]:
        """Bytes of any kind: GPT-2's pattern by the regex module, then the library's model for each piece."""
        spelled = ("".join(self._spell[byte] for byte in piece) for piece in split_bytes(data))
        return [token.id for piece in spelled for token in self.plain.model.tokenize(piece)]


def split_text(text: str) -> list[int]:
    """Lengths in bytes of the library's pieces."""
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True).pre_tokenize_str(text)
    return [len(spelled) for spelled, _ in pieces]  # one character for each byte


def split_bytes(data: bytes) -> list[bytes]:
    """Pieces of bytes of any kind. An invalid byte is a surrogate to Python and none of the pattern's classes."""
    text = data.decode("utf-8", "surrogateescape")
    # What Unicode had not assigned in the tokenizer's version may be a letter to regex's newer one.
    shadow = "".join("\x01" if unicodedata2.category(character) == "Cn" else character for character in text)
    matches = _GPT2.finditer(shadow)
    return [text[match.start() : match.end()].encode("utf-8", "surrogateescape") for match in matches]


_GPT2 = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


def _save(tokenizer: tokenizers.Tokenizer, path: Path) -> Path:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))
    return path


def train(path: Path) -> Path:
    """A tokenizer with long merges: numbers of several scripts, runs of white space, CJK, emoji, punctuation."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    source = random.Random(7)
    alphabets = [
        "0123456789",
        "٠١٢٣٤٥",
        " \t\n",
        "中文字元日本語",
        "áéa\u0301e\u0301",
        "👩\u200d🔬😀",
        "abcab",
        "'stredlm",
        "!?.,-=#",
    ]
    lines = ["".join(source.choices(source.choice(alphabets), k=source.randint(1, 24))) for _ in range(4000)]
    lines += ["".join(source.choices(lines, k=3)) for _ in range(1000)]
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        min_frequency=2,
        special_tokens=["<s>", "</s>", "<s><s>", "[INST]"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return _save(tokenizer, path)


def scramble(path: Path, seed: int) -> Path:
    """A tokenizer as no training makes it: merges in random order, tokens that several merges lead to."""
    source = random.Random(seed)
    letters = [character for character, byte in byte_alphabet().items() if chr(byte) in "aab 01\n\xe4\xb8\xad"]
    vocab = {character: index for index, character in enumerate(byte_alphabet())}
    parts = list(letters)
    for _ in range(300):
        joined = source.choice(parts) + source.choice(parts)
        if joined not in vocab and len(joined) <= 12:
            vocab[joined] = len(vocab)
            parts.append(joined)
    merges = [
        (token[:cut], token[cut:])
        for token in vocab
        for cut in range(1, len(token))
        if token[:cut] in vocab and token[cut:] in vocab
    ]
    source.shuffle(merges)
    vocab["<end>"] = len(vocab)
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.add_special_tokens(["<end>", "<more>"])
    return _save(tokenizer, path)


def all_references(directory: Path) -> dict[str, Reference]:
    paths: dict[str, Any] = {
        "hummingbird": HUMMINGBIRD / "tokenizer.json",
        "trained": train(directory / "trained.json"),
    }
    for seed in (1, 2):
        paths[f"scrambled-{seed}"] = scramble(directory / f"scrambled-{seed}.json", seed)
    return {name: Reference(path) for name, path in paths.items()}
