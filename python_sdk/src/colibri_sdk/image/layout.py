# SPDX-License-Identifier: Apache-2.0
"""The structs of a Colibri image as NumPy dtypes.

This module mirrors firmware/engine/image.h, field for field, and nothing else. A test compiles that header and compares
every struct's name, offsets and sizes with the dtypes below through DWARF, so that neither side can change alone. The
meaning of each field is documented there and in docs/image-format.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum, IntFlag
from typing import Any

import numpy as np

MAGIC = b"COLIBRI\x1a"
SIGNATURE_MAGIC = b"COLISIG\x1a"
UPDATES_MAGIC = b"COLIUPD\x1a"
FORMAT_VERSION = 2
NUMERIC_VERSION = 1
SIGNATURE_VERSION = 1
PAGE = 4096
DIRECTORY_OFFSET = 128
MAX_SECTIONS = (PAGE - DIRECTORY_OFFSET) // 64
TILE_ROWS = 8
BLOCK = 32
TENSOR_ALIGN = 64
MAX_EOS = 4
MAX_UPDATES = 1022
DIGEST_BYTES = 32  # of an expert: BLAKE2b-256
SIGNED_BYTES = 136  # of SIGNATURE, which its field `signature` covers
UPDATE_SIGNED_BYTES = 128  # likewise of UPDATE, from `bytes` on
NO_RANK = 0xFFFFFFFF
NO_TOKEN = 0xFFFFFFFF
TOKEN_SPECIAL = 1
TOKEN_TAKES_BEFORE = 2
TOKEN_TAKES_AFTER = 4
TOKEN_WORD = 8
TOKENIZER_WHOLE = 1  # flags of TOKENIZER
TOKENIZER_FUSE = 2
TOKENIZER_SINGLE = 4
MAX_RULE_BYTES = 64
MAX_SPLITS = 8
MAX_SPLIT_STATES = 512
SPLIT_MATCH = 0x8000
USER_TRIM = 1
USER_BEGINS = 2
USER_AFTER_TAKER = 4
USER_BEFORE_TAKER = 8
TEMPLATE_MAX_TEXT = 65536

# The engine's limits on dimensions (firmware/engine/image_view.h).
MAX_VOCAB = 1 << 22
MAX_WIDTH = 1 << 20
MAX_CONTEXT = 1 << 22
MAX_LAYERS = 4096
MAX_EXPERTS = 65536
MAX_TOP_K = 64
MAX_INTEGER_SHIFT = 16


class Prng(IntEnum):
    """enum col_prng: the generator that the sampler draws from."""

    SPLITMIX64 = 1


class SectionKind(IntEnum):
    """enum col_section_kind: sections lie in the image in this order."""

    MODEL = 1
    LAYERS = 2
    TOKENIZER = 3
    TEMPLATE = 4
    ROPE = 5
    RESIDENT = 6
    EXPERT_DIR = 7
    CARD = 8
    SIGNATURE = 9
    UPDATES = 10
    EXPERTS = 11


SECTION_NAMES: dict[SectionKind, str] = {kind: kind.name.lower().replace("_", "-") for kind in SectionKind}


# Sections whose checksum in the directory is 0: they change after packing, and have checksums of their own.
SELF_CHECKED = frozenset({SectionKind.SIGNATURE, SectionKind.UPDATES, SectionKind.EXPERTS})


class Algorithm(IntEnum):
    """enum col_signature_algorithm."""

    NONE = 0
    EDDSA = 1


class Format(IntEnum):
    """enum col_format: how a tensor's numbers lie in the image."""

    F32_VECTOR = 1
    F32 = 2
    F16 = 3
    Q8 = 4
    Q4 = 5


class QkNorm(IntEnum):
    """enum col_qk_norm: what of queries and keys is normalised."""

    NONE = 0
    HEAD = 1
    FULL = 2
    LATENT = 3


class RouterScore(IntEnum):
    """enum col_router_score: how a router's logits become scores."""

    LOGIT = 1
    SOFTMAX = 2
    SIGMOID = 3
    INTEGER = 4
    HASH = 5


class GroupScore(IntEnum):
    """enum col_group_score: what a group of experts is worth."""

    MAX = 1
    TOP_TWO = 2


class Activation(IntEnum):
    """enum col_activation_kind."""

    SWIGLU = 1
    SWIGLU_CLAMPED = 2


class TokenizerKind(IntEnum):
    """enum col_tokenizer_kind."""

    BYTE_BPE = 1
    CHAR_BPE = 2
    UNIGRAM = 3


class SpacePrefix(IntEnum):
    """enum col_space_prefix: the space that texts begin with."""

    NONE = 0
    EACH = 1
    MISSING = 2
    FIRST = 3


class SpaceStrip(IntEnum):
    """enum col_space_strip: what becomes of that space in a text made from ids."""

    NONE = 0
    ONE = 1
    TOKEN = 2


class Rewrite(IntFlag):
    """COL_REWRITE_*: how a text is rewritten by rules before it is tokenised."""

    RULES = 1
    CLUSTERS = 2
    KEEP = 4
    COLLAPSE = 8
    TRIM = 16
    TRIM_END = 32
    PREFIX = 64


class SegmentKind(IntEnum):
    """enum col_segment_kind: the parts of a rendered chat prompt."""

    TOKEN = 1
    TEXT = 2
    USER = 3


class KvFormat(IntEnum):
    """enum colibri_kv_format of colibri.h. An image never says IMAGE."""

    IMAGE = 0
    F32 = 1
    F16 = 2
    Q8 = 3


HEADER = np.dtype(
    [
        ("magic", "V8"),
        ("format_version", "<u4"),
        ("numeric_version", "<u4"),
        ("image_bytes", "<u8"),
        ("page_bytes", "<u4"),
        ("section_count", "<u4"),
        ("image_id", "V16"),
        ("model_name", "S48"),
        ("prng", "<u4"),
        ("reserved", "<u4", (6,)),
        ("header_crc32", "<u4"),
    ]
)

SECTION = np.dtype(
    [
        ("name", "S16"),
        ("kind", "<u4"),
        ("crc32", "<u4"),
        ("offset", "<u8"),
        ("bytes", "<u8"),
        ("reserved", "<u4", (6,)),
    ]
)

TILE_Q8 = np.dtype([("scale", "<f2", (TILE_ROWS,)), ("q", "i1", (8, BLOCK))])

TILE_Q4 = np.dtype([("scale", "<f2", (TILE_ROWS,)), ("q", "u1", (4, BLOCK))])

TENSOR = np.dtype(
    [
        ("offset", "<u8"),
        ("bytes", "<u8"),
        ("rows", "<u4"),
        ("cols", "<u4"),
        ("format", "<u4"),
        ("reserved", "<u4"),
    ]
)

LINEAR = np.dtype([("weight", TENSOR), ("bias", TENSOR)])

MODEL = np.dtype(
    [
        ("architecture", "S40"),
        ("quantisation", "S24"),
        ("vocab", "<u4"),
        ("hidden", "<u4"),
        ("layers", "<u4"),
        ("context_max", "<u4"),
        ("rotary_dim", "<u4"),
        ("kv_format", "<u4"),
        ("norm_eps", "<f4"),
        ("eos_count", "<u4"),
        ("eos", "<u4", (MAX_EOS,)),
        ("reserved", "<u4", (4,)),
        ("embedding", TENSOR),
        ("final_norm", TENSOR),
        ("head", LINEAR),
    ]
)

ATTENTION = np.dtype(
    [
        ("heads", "<u4"),
        ("kv_heads", "<u4"),
        ("query_dim", "<u4"),
        ("head_dim", "<u4"),
        ("value_dim", "<u4"),
        ("output_dim", "<u4"),
        ("rotary_dim", "<u4"),
        ("window", "<u4"),
        ("qk_norm", "<u4"),
        ("scale", "<f4"),
        ("norm_eps", "<f4"),
        ("qk_norm_eps", "<f4"),
        ("clip", "<f4"),
        ("reserved", "<u4", (3,)),
        ("norm", TENSOR),
        ("query_down", LINEAR),
        ("query_down_norm", TENSOR),
        ("query", LINEAR),
        ("key", LINEAR),
        ("value", LINEAR),
        ("query_norm", TENSOR),
        ("key_norm", TENSOR),
        ("sinks", TENSOR),
        ("absorb", TENSOR),
        ("expand", TENSOR),
        ("output", LINEAR),
    ]
)

ROUTER = np.dtype(
    [
        ("experts", "<u4"),
        ("top_k", "<u4"),
        ("score", "<u4"),
        ("normalise", "<u4"),
        ("scale", "<f4"),
        ("groups", "<u4"),
        ("top_groups", "<u4"),
        ("group_score", "<u4"),
        ("map_first", "<u4"),
        ("map_tokens", "<u4"),
        ("integer_scale", "<f4"),
        ("integer_shift", "<u4"),
        ("smallest_sum", "<f4"),
        ("reserved", "<u4", (3,)),
        ("gate", LINEAR),
        ("correction", TENSOR),
        ("integer_table", TENSOR),
    ]
)

FFN = np.dtype([("gate", LINEAR), ("up", LINEAR), ("down", LINEAR)])

LAYER = np.dtype(
    [
        ("attention", ATTENTION),
        ("router", ROUTER),
        ("activation", "<u4"),
        ("limit", "<f4"),
        ("alpha", "<f4"),
        ("shared_width", "<u4"),
        ("expert_width", "<u4"),
        ("first_expert", "<u4"),
        ("expert_bytes", "<u8"),
        ("reserved", "<u4", (8,)),
        ("norm", TENSOR),
        ("shared_gate", TENSOR),
        ("shared", FFN),
        ("expert", FFN),
    ]
)

EXPERT = np.dtype(
    [
        ("offset", "<u8"),
        ("bytes", "<u8"),
        ("crc32", "<u4"),
        ("pin", "<u4"),
        ("layer", "<u4"),
        ("expert", "<u4"),
        ("digest", "V32"),
    ]
)

SIGNATURE = np.dtype(
    [
        ("magic", "V8"),
        ("version", "<u4"),
        ("algorithm", "<u4"),
        ("counter", "<u8"),
        ("board", "S32"),
        ("key_id", "V16"),
        ("digest", "V64"),
        ("signature", "V64"),
        ("reserved", "<u4", (13,)),
        ("crc32", "<u4"),
    ]
)

UPDATE_HEAD = np.dtype(
    [
        ("magic", "V8"),
        ("sequence", "<u8"),
        ("count", "<u4"),
        ("entries_crc32", "<u4"),
        ("image_id", "V16"),
        ("reserved", "<u4", (117,)),
        ("crc32", "<u4"),
    ]
)

UPDATE = np.dtype(
    [
        ("offset", "<u8"),
        ("bytes", "<u8"),
        ("layer", "<u4"),
        ("expert", "<u4"),
        ("generation", "<u4"),
        ("crc32", "<u4"),
        ("counter", "<u8"),
        ("board", "S32"),
        ("image_id", "V16"),
        ("digest", "V32"),
        ("key_id", "V16"),
        ("signature", "V64"),
        ("reserved", "<u4", (14,)),
    ]
)

TOKENIZER = np.dtype(
    [
        ("kind", "<u4"),
        ("flags", "<u4"),
        ("prefix", "<u4"),
        ("strip", "<u4"),
        ("vocab", "<u4"),
        ("unknown", "<u4"),
        ("max_token_bytes", "<u4"),
        ("text_bytes", "<u4"),
        ("byte_count", "<u4"),
        ("merge_slots", "<u4"),
        ("merge_count", "<u4"),
        ("score_count", "<u4"),
        ("sorted_count", "<u4"),
        ("early_count", "<u4"),
        ("late_count", "<u4"),
        ("class_count", "<u4"),
        ("classes_used", "<u4"),
        ("first_space", "<u4"),
        ("split_count", "<u4"),
        ("move_count", "<u4"),
        ("decomposition_count", "<u4"),
        ("composition_count", "<u4"),
        ("order_count", "<u4"),
        ("point_count", "<u4"),
        ("rewrite", "<u4"),
        ("rule_count", "<u4"),
        ("rule_bytes", "<u4"),
        ("first_word", "<u4"),
        ("byte_ids", "<u4"),
        ("token_offsets", "<u4"),
        ("token_flags", "<u4"),
        ("token_text", "<u4"),
        ("merges", "<u4"),
        ("scores", "<u4"),
        ("sorted", "<u4"),
        ("early", "<u4"),
        ("late", "<u4"),
        ("classes", "<u4"),
        ("splits", "<u4"),
        ("moves", "<u4"),
        ("decompositions", "<u4"),
        ("compositions", "<u4"),
        ("orders", "<u4"),
        ("points", "<u4"),
        ("rules", "<u4"),
        ("rule_text", "<u4"),
        ("reserved", "<u4", (2,)),
    ]
)

DECOMPOSITION = np.dtype([("point", "<u4"), ("first", "<u2"), ("count", "<u2")])

COMPOSITION = np.dtype([("first", "<u4"), ("second", "<u4"), ("composed", "<u4")])

MERGE = np.dtype([("left", "<u4"), ("right", "<u4"), ("rank", "<u4"), ("merged", "<u4")])

SEGMENT = np.dtype([("kind", "<u4"), ("value", "<u4"), ("bytes", "<u4"), ("reserved", "<u4")])

TEMPLATE = np.dtype([("segment_count", "<u4"), ("reserved", "<u4", (3,))])

# The C constant that each number above mirrors.
CONSTANTS: dict[str, int] = {
    "COL_FORMAT_VERSION": FORMAT_VERSION,
    "COL_NUMERIC_VERSION": NUMERIC_VERSION,
    "COL_SIGNATURE_VERSION": SIGNATURE_VERSION,
    "COL_SIGNED_BYTES": SIGNED_BYTES,
    "COL_UPDATE_SIGNED_BYTES": UPDATE_SIGNED_BYTES,
    "COL_MAX_UPDATES": MAX_UPDATES,
    "COL_PAGE": PAGE,
    "COL_MAX_SECTIONS": MAX_SECTIONS,
    "COL_TILE_ROWS": TILE_ROWS,
    "COL_BLOCK": BLOCK,
    "COL_MAX_EOS": MAX_EOS,
    "COL_NO_RANK": NO_RANK,
    "COL_NO_TOKEN": NO_TOKEN,
    "COL_MAX_SPLITS": MAX_SPLITS,
    "COL_MAX_SPLIT_STATES": MAX_SPLIT_STATES,
    "COL_SPLIT_MATCH": SPLIT_MATCH,
    "COL_TOKENIZER_WHOLE": TOKENIZER_WHOLE,
    "COL_TOKENIZER_FUSE": TOKENIZER_FUSE,
    "COL_TOKENIZER_SINGLE": TOKENIZER_SINGLE,
    "COL_TOKEN_SPECIAL": TOKEN_SPECIAL,
    "COL_TOKEN_TAKES_BEFORE": TOKEN_TAKES_BEFORE,
    "COL_TOKEN_TAKES_AFTER": TOKEN_TAKES_AFTER,
    "COL_TOKEN_WORD": TOKEN_WORD,
    "COL_MAX_RULE_BYTES": MAX_RULE_BYTES,
    "COL_REWRITE_RULES": Rewrite.RULES,
    "COL_REWRITE_CLUSTERS": Rewrite.CLUSTERS,
    "COL_REWRITE_KEEP": Rewrite.KEEP,
    "COL_REWRITE_COLLAPSE": Rewrite.COLLAPSE,
    "COL_REWRITE_TRIM": Rewrite.TRIM,
    "COL_REWRITE_TRIM_END": Rewrite.TRIM_END,
    "COL_REWRITE_PREFIX": Rewrite.PREFIX,
    "COL_USER_TRIM": USER_TRIM,
    "COL_USER_BEGINS": USER_BEGINS,
    "COL_USER_AFTER_TAKER": USER_AFTER_TAKER,
    "COL_USER_BEFORE_TAKER": USER_BEFORE_TAKER,
    "COL_TEMPLATE_MAX_TEXT": TEMPLATE_MAX_TEXT,
    "COL_MAX_VOCAB": MAX_VOCAB,
    "COL_MAX_WIDTH": MAX_WIDTH,
    "COL_MAX_CONTEXT": MAX_CONTEXT,
    "COL_MAX_LAYERS": MAX_LAYERS,
    "COL_MAX_EXPERTS": MAX_EXPERTS,
    "COL_MAX_TOP_K": MAX_TOP_K,
    "COL_MAX_INTEGER_SHIFT": MAX_INTEGER_SHIFT,
}

# The C struct that each dtype mirrors.
STRUCTS: dict[str, np.dtype[np.void]] = {
    "col_header": HEADER,
    "col_section": SECTION,
    "col_tile_q8": TILE_Q8,
    "col_tile_q4": TILE_Q4,
    "col_tensor": TENSOR,
    "col_model": MODEL,
    "col_linear": LINEAR,
    "col_attention": ATTENTION,
    "col_router": ROUTER,
    "col_ffn": FFN,
    "col_layer": LAYER,
    "col_expert": EXPERT,
    "col_signature": SIGNATURE,
    "col_update_head": UPDATE_HEAD,
    "col_update": UPDATE,
    "col_tokenizer": TOKENIZER,
    "col_decomposition": DECOMPOSITION,
    "col_composition": COMPOSITION,
    "col_merge": MERGE,
    "col_segment": SEGMENT,
    "col_template": TEMPLATE,
}

# The C enum that each IntEnum mirrors, with the prefix of its constants.
ENUMS: dict[str, tuple[type[IntEnum], str]] = {
    "col_prng": (Prng, "COL_PRNG_"),
    "col_section_kind": (SectionKind, "COL_SECTION_"),
    "col_signature_algorithm": (Algorithm, "COL_SIGNATURE_"),
    "col_format": (Format, "COL_"),
    "col_qk_norm": (QkNorm, "COL_QK_NORM_"),
    "col_router_score": (RouterScore, "COL_SCORE_"),
    "col_group_score": (GroupScore, "COL_GROUP_"),
    "col_activation_kind": (Activation, "COL_ACTIVATION_"),
    "col_tokenizer_kind": (TokenizerKind, "COL_TOKENIZER_"),
    "col_space_prefix": (SpacePrefix, "COL_PREFIX_"),
    "col_space_strip": (SpaceStrip, "COL_STRIP_"),
    "col_segment_kind": (SegmentKind, "COL_SEGMENT_"),
    "colibri_kv_format": (KvFormat, "COLIBRI_KV_"),
}


def tensor_paths(dtype: np.dtype[np.void]) -> Iterator[tuple[str, ...]]:
    """Where a struct's col_tensor entries are: field names from the outside in, ("attention", "query", "weight")."""
    for name in dtype.names or ():
        if dtype[name] == TENSOR:
            yield (name,)
        elif dtype[name].names:
            yield from ((name, *rest) for rest in tensor_paths(dtype[name]))


def member(record: Any, path: tuple[str, ...]) -> Any:
    """record[path[0]][path[1]] and so on, of one struct or of an array of them."""
    for name in path:
        record = record[name]
    return record


def align_up(value: int, step: int) -> int:
    """The smallest multiple of `step` that is not below `value`."""
    return -(-value // step) * step


def tensor_bytes(fmt: Format, rows: int, cols: int) -> int:
    """Exact length in bytes of a [rows][cols] tensor in format `fmt`, padding rows and columns included."""
    if fmt is Format.F32_VECTOR:
        return 4 * cols
    row_groups = -(-rows // TILE_ROWS)
    blocks = -(-cols // BLOCK)
    match fmt:
        case Format.F32:
            return row_groups * cols * TILE_ROWS * 4
        case Format.F16:
            return row_groups * cols * TILE_ROWS * 2
        case Format.Q8:
            return row_groups * blocks * TILE_Q8.itemsize
        case Format.Q4:
            return row_groups * blocks * TILE_Q4.itemsize
