# SPDX-License-Identifier: Apache-2.0
"""Compiles a SentencePiece model (tokenizer.model) into the tokenizer section of an image.

It is read where a checkpoint brings no tokenizer.json. The ids are those of the sentencepiece library. Its rules of
normalisation go into the image as they are in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2 as protocol

from colibri_sdk.convert.charsmap import AS_IT_IS, NO_RULES, CharsmapError, Rules, read_rules
from colibri_sdk.convert.split_table import compile_splits
from colibri_sdk.convert.tokenizer import UNKNOWN_PENALTY, CompiledTokenizer, taking
from colibri_sdk.convert.tokenizer_pipeline import SPACE_MARK, Pipeline
from colibri_sdk.convert.tokenizer_section import Merge, Tables, build_section
from colibri_sdk.convert.tokenizer_source import Source
from colibri_sdk.image.layout import (
    TOKEN_WORD,
    TOKENIZER_FUSE,
    TOKENIZER_SINGLE,
    Rewrite,
    SpacePrefix,
    SpaceStrip,
    TokenizerKind,
)


class PieceType(IntEnum):
    """ModelProto.SentencePiece.Type; GGUF has the same numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Piece:
    text: str
    score: float
    type: PieceType


def compile_model(
    path: Path, vocab: int, added: Sequence[Mapping[str, Any]] = (), *, bos: bool = True
) -> CompiledTokenizer:
    """Reads tokenizer.model; `vocab` is the number of the model's embeddings, which no token id may reach. `added` are
    tokens beyond the file's, as mappings with "id", "content" and "special". With `bos`, texts begin with the file's
    bos token.

    Raises CheckpointError, which names what is at fault, for anything that the engine would do differently."""
    source = Source(path.name)
    proto = protocol.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except OSError as error:
        raise source.refuse("cannot be read:", error.strerror or str(error)) from error
    except DecodeError as error:
        raise source.refuse("is no SentencePiece model:", str(error), "Download the file again.") from error
    rules, trainer = proto.normalizer_spec, proto.trainer_spec
    if proto.denormalizer_spec.precompiled_charsmap:
        raise source.unsupported("denormalizer_spec", proto.denormalizer_spec.name, "none")
    if not rules.escape_whitespaces or trainer.treat_whitespace_as_suffix:
        raise source.unsupported(
            "normalizer_spec.escape_whitespaces", rules.escape_whitespaces, "spaces in front, escaped"
        )
    kinds = {trainer.BPE: TokenizerKind.CHAR_BPE, trainer.UNIGRAM: TokenizerKind.UNIGRAM}
    if trainer.model_type not in kinds:
        name = trainer.ModelType.Name(trainer.model_type)
        raise source.unsupported("trainer_spec.model_type", name, "BPE, UNIGRAM")
    pieces = [Piece(piece.piece, piece.score, PieceType(piece.type)) for piece in proto.pieces]
    first = trainer.bos_id if bos and 0 <= trainer.bos_id < len(pieces) else None
    spaces = Spaces(first=rules.add_dummy_prefix, trim=rules.remove_extra_whitespaces)
    charsmap = charsmap_of(source, "normalizer_spec.precompiled_charsmap", rules.precompiled_charsmap)
    return compile_pieces(source, pieces, kinds[trainer.model_type], vocab, added, spaces, charsmap, bos=first)


def charsmap_of(source: Source, field: str, blob: bytes) -> Rules:
    try:
        return read_rules(blob)
    except CharsmapError as error:
        raise source.refuse(field, str(error), "Download the file again.") from error


@dataclass(frozen=True)
class Spaces:
    first: bool  # texts get a space in front
    trim: bool  # spaces at a text's ends go, and of several side by side one stays


def compile_pieces(
    source: Source,
    pieces: Sequence[Piece],
    kind: TokenizerKind,
    vocab: int,
    added: Sequence[Mapping[str, Any]] = (),
    spaces: Spaces = Spaces(first=True, trim=False),
    rules: Rules = NO_RULES,
    *,
    bos: int | None,
) -> CompiledTokenizer:
    """The same of pieces that were read from some other file."""
    ids: dict[str, int] = {}
    special: dict[str, int] = {}
    early: dict[str, int] = {}
    symbols: dict[str, int] = {}  # pieces that rules do not change and that are never cut
    byte_ids: dict[int, int] = {}
    takes: dict[int, int] = {}
    unigram = kind == TokenizerKind.UNIGRAM
    for token, piece in enumerate(pieces):
        source.token_id(token, f"piece {token}", vocab)
        if piece.text in ids or not piece.text:
            raise source.refuse(f"piece {token}", f"is {piece.text!r}, which is empty or there twice")
        ids[piece.text] = token
        match piece.type:
            case PieceType.UNKNOWN | PieceType.CONTROL:
                special[piece.text] = token
            case PieceType.USER_DEFINED:
                symbols[piece.text] = token
            case PieceType.BYTE:
                byte_ids[_byte(source, token, piece.text)] = token
            case PieceType.UNUSED:
                if not unigram:  # would be made of others and then cut again
                    raise source.unsupported(f"piece {token}", piece.text, "no unused pieces")
            case PieceType.NORMAL:
                if not abs(piece.score) < 1e30:
                    raise source.refuse(f"piece {token}", f"has the score {piece.score}")
    if byte_ids and len(byte_ids) != 256:
        raise source.refuse("pieces", f"has tokens for {len(byte_ids)} bytes of 256")
    for entry in added:
        _add(source, entry, vocab, ids, special if entry.get("special") is True else early, takes)
    for text in symbols:
        if " " in text:
            raise source.unsupported("user-defined piece", text, "U+2581 for spaces")
        if SPACE_MARK in text and (len(rules.units) or spaces.trim):
            raise source.unsupported("user-defined piece", text, "none with U+2581 where texts are normalised")
    normal = {p.text: token for token, p in enumerate(pieces) if p.type == PieceType.NORMAL and " " not in p.text}
    if SPACE_MARK not in normal and SPACE_MARK not in symbols:
        raise source.refuse("pieces", "has no piece U+2581, by which spaces are spelled")
    unknown = next((token for token, piece in enumerate(pieces) if piece.type == PieceType.UNKNOWN), None)
    if unknown is None:
        raise source.refuse("pieces", "has no unknown piece")
    symbols = {text: token for text, token in symbols.items() if text not in special}
    texts = _texts(pieces, byte_ids, {**special, **early})
    tables = Tables(
        kind=kind,
        texts=texts,
        special=frozenset(special.values()),
        byte_ids=[byte_ids[byte] for byte in range(256)] if byte_ids else [],
        merges=[] if unigram else _merges(source, pieces, normal),
        scores=_scores(pieces, normal, symbols, unknown, len(texts)) if unigram else [],
        sorted=[*normal.values(), *(symbols.values() if unigram else ())],
        early=list(early.values()),
        late=list(symbols.values()),
        unknown=unknown,
        flags=TOKENIZER_FUSE | (TOKENIZER_SINGLE if unigram else 0),
        taking=takes,
    )
    pipeline = Pipeline(
        form=None,
        byte_level=False,
        splits=compile_splits([], words=any(flags & TOKEN_WORD for flags in takes.values())),
        prefix=SpacePrefix.NONE,
        strip=SpaceStrip.ONE if spaces.first or spaces.trim else SpaceStrip.NONE,
        rewrite=Rewrite.RULES
        | Rewrite.KEEP
        | (Rewrite.PREFIX if spaces.first else AS_IT_IS)
        | (Rewrite.TRIM | Rewrite.COLLAPSE if spaces.trim else AS_IT_IS),
        rules=rules,
    )
    prefix = () if bos is None else (bos,)
    return CompiledTokenizer(build_section(pipeline, tables), special, takes, len(tables.texts), prefix)


def _scores(
    pieces: Sequence[Piece], normal: Mapping[str, int], symbols: Mapping[str, int], unknown: int, count: int
) -> list[float]:
    """What the library adds up, in its arithmetic: a symbol gets so much that it is never cut, and an unknown
    character less than the worst piece."""
    single = np.array([pieces[token].score for token in normal.values()] or [0.0], np.float32)
    scores = [float(np.float32(piece.score)) for piece in pieces] + [0.0] * (count - len(pieces))
    best = max(single.max(), np.finfo(np.float32).tiny)  # where the library's search for the best score begins
    for text, token in symbols.items():
        scores[token] = float(np.float32(len(text.encode("utf-8"))) * best) - 0.1
    scores[unknown] = float(single.min() - np.float32(UNKNOWN_PENALTY))
    return scores


def _byte(source: Source, token: int, text: str) -> int:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        try:
            return int(text[3:5], 16)
        except ValueError:
            pass
    raise source.refuse(f"piece {token}", f"is {text!r}, which is no byte")


def _add(
    source: Source,
    entry: Mapping[str, Any],
    vocab: int,
    ids: dict[str, int],
    to: dict[str, int],
    takes: dict[int, int],
) -> None:
    """A token beyond the file's, or one of them with another role."""
    text = entry.get("content")
    field = f"added token {text!r}"
    if not isinstance(text, str) or not text:
        raise source.refuse(field, "is not a text")
    token = source.token_id(entry.get("id"), field, vocab)
    flags = taking(source, entry, field, special=entry.get("special") is True)
    if flags:
        takes[token] = flags
    if ids.get(text, token) != token or (text not in ids and token in ids.values()):
        raise source.refuse(field, f"(id {token}) contradicts the pieces")
    ids[text] = token
    to[text] = token


def _texts(pieces: Sequence[Piece], byte_ids: Mapping[int, int], names: Mapping[str, int]) -> list[bytes]:
    texts = [b""] * (1 + max(len(pieces) - 1, *names.values()))
    for token, piece in enumerate(pieces):
        texts[token] = piece.text.replace(SPACE_MARK, " ").encode("utf-8")
    for byte, token in byte_ids.items():
        texts[token] = bytes([byte])
    for text, token in names.items():
        texts[token] = text.encode("utf-8")
    return texts


def _merges(source: Source, pieces: Sequence[Piece], normal: Mapping[str, int]) -> list[Merge]:
    """Any two neighbours merge whose texts together are a piece, those with the highest score first."""
    scores = sorted({pieces[token].score for text, token in normal.items() if len(text) > 1}, reverse=True)
    rank = {score: number for number, score in enumerate(scores)}
    merges = [
        Merge(normal[text[:cut]], normal[text[cut:]], token, rank[pieces[token].score])
        for text, token in normal.items()
        for cut in range(1, len(text))
        if text[:cut] in normal and text[cut:] in normal
    ]
    single = set().union(*map(set, normal)) - set(normal)
    if single:
        raise source.refuse("pieces", f"has no piece for {min(single)!r}, of which longer ones consist")
    return _dense(merges)


def _dense(merges: Iterable[Merge]) -> list[Merge]:
    """Ranks without gaps, in their order: pieces that nothing merges to have none."""
    ordered = sorted(merges, key=lambda merge: merge.rank)
    ranks = {rank: number for number, rank in enumerate(dict.fromkeys(merge.rank for merge in ordered))}
    return [Merge(merge.left, merge.right, merge.merged, ranks[merge.rank]) for merge in ordered]
