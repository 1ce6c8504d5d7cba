# SPDX-License-Identifier: Apache-2.0
"""Sections that lie: each field changed in turn is refused or stays inside its memory, under ASan and UBSan."""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from colibri_sdk.convert.template import compile_template
from colibri_sdk.convert.tokenizer import CompiledTokenizer, compile_config, compile_tokenizer
from colibri_sdk.image.layout import MERGE, SEGMENT, TEMPLATE, TOKENIZER
from native import ENGINE, FLAGS, ROOT, UBSAN
from tokenizer_native import SOURCES, scramble
from tokenizer_pipelines import sentencepiece_config, with_every_table
from tokenizer_sentencepiece import precompiled, small_charsmap

TEXT = "aab 01  \n\tit's \u4e2d\u6587 \U0001f469\u200d\U0001f52c \u0663 <end>".encode() + b"\xff\xe2\x82"
CHAT = "{{ 'be brief: ' + messages[0]['content'] | trim + '\n<end>go' }}"
VALUES = (0, 1, 2, 3, 4, 7, 8, 63, 64, 255, 256, 0x7FFFFFFF, 0x80000000, 0xFFFFFFF8, 0xFFFFFFFE, 0xFFFFFFFF)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("program") / "tokenizer_ids"
    sources = [ENGINE / name for name in SOURCES] + [ROOT / "tests" / "engine" / "tokenizer_ids.c"]
    command = ["cc", *FLAGS, "-fsanitize=address", *UBSAN, f"-I{ENGINE}", *map(str, sources), "-o", str(out)]
    subprocess.run(command, check=True, timeout=600)
    return out


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> CompiledTokenizer:
    return compile_tokenizer(scramble(tmp_path_factory.mktemp("json") / "scrambled.json", 1), 4096)


KINDS = ("scrambled", "every table", "BPE", "Unigram", "rules")


@pytest.fixture(scope="module", params=KINDS)
def any_kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CompiledTokenizer:
    """Of each kind one; between them no table is always empty."""
    if request.param in ("BPE", "Unigram"):
        return compile_config(request.param, sentencepiece_config(request.param), 4096)
    directory = tmp_path_factory.mktemp("json")
    if request.param == "rules":
        return compile_config("rules", sentencepiece_config("Unigram") | precompiled(small_charsmap(directory)), 4096)
    path = scramble(directory / "scrambled.json", 1)
    if request.param == "every table":
        path = with_every_table(path, directory / "every.json")
    return compile_tokenizer(path, 4096)


@pytest.fixture(scope="module")
def any_template(any_kind: CompiledTokenizer) -> bytes:
    return compile_template(CHAT, any_kind)


@pytest.fixture(scope="module")
def template(tokenizer: CompiledTokenizer) -> bytes:
    return compile_template(CHAT, tokenizer)


def run(program: Path, directory: Path, cases: Iterable[tuple[bytes, bytes, bytes]], vocab: int = 4096) -> list[str]:
    """One line of the program's answer for each (tokenizer section, template section, text)."""
    file = directory / "cases"
    with file.open("wb") as out:
        for section, template, text in cases:
            out.write(struct.pack("<4I", len(section), len(template), len(text), vocab) + section + template + text)
    done = subprocess.run([program, file], capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


def put(data: bytes, offset: int, value: int) -> bytes:
    return data[:offset] + struct.pack("<I", value) + data[offset + 4 :]


def word(data: bytes, offset: int) -> int:
    return int(struct.unpack_from("<I", data, offset)[0])


def test_sound_sections_are_accepted(
    program: Path, tmp_path: Path, any_kind: CompiledTokenizer, any_template: bytes
) -> None:
    (line,) = run(program, tmp_path, [(any_kind.section, any_template, TEXT)])
    assert line.startswith("0 0 ") and " | " in line


# Fields of which another value makes another sound section, which only answers differently.
FREE = {"flags", "prefix", "strip", "unknown", "first_space", "first_word", "classes_used", "rewrite"}


def test_each_head_field(program: Path, tmp_path: Path, any_kind: CompiledTokenizer, any_template: bytes) -> None:
    """Every field of the head is one that counts: any other value is refused, and the field or its table is named."""
    section = any_kind.section
    field = {int(TOKENIZER.fields[name][1]): name for name in TOKENIZER.names}
    names, cases = [], []
    for offset in range(0, TOKENIZER.itemsize, 4):
        now = word(section, offset)
        for value in {*VALUES, now - 1 & 0xFFFFFFFF, now + 1, now + 8, now ^ 0x80000000, 2 * now & 0xFFFFFFFF} - {now}:
            names.append((field.get(offset, "reserved"), value & 0xFFFFFFFF))
            cases.append((put(section, offset, value & 0xFFFFFFFF), any_template, TEXT))
    lines = run(program, tmp_path, cases)
    assert len(lines) == len(cases)
    free = set()
    for (name, value), line in zip(names, lines, strict=True):
        status, _, where = line.split(" ", 2)
        if status == "0":
            free.add(name)
            continue
        assert status in ("-13", "-14"), f"{name} = {value:#x}: {line}"
        assert where.startswith("tokenizer"), line
    assert free <= FREE
    assert free


def test_every_length_but_the_right_one(
    program: Path, tmp_path: Path, any_kind: CompiledTokenizer, any_template: bytes
) -> None:
    section, template = any_kind.section, any_template
    lengths = [*range(0, 200, 4), *range(200, len(section), len(section) // 50), *range(len(section) - 9, len(section))]
    cases = [(section[:length], template, TEXT) for length in lengths] + [(section + bytes(4), template, TEXT)]
    assert all(line.startswith("-13 ") for line in run(program, tmp_path, cases))
    lengths = list(range(len(template)))
    lines = run(program, tmp_path, [(section, template[:length], TEXT) for length in lengths])
    assert all(line.startswith("0 -13 template") for line in lines)


def test_lies_in_newer_tables(program: Path, tmp_path: Path, any_kind: CompiledTokenizer, any_template: bytes) -> None:
    """Each table that is not empty, its entries in turn replaced by what none may be."""
    section = any_kind.section
    head = np.frombuffer(section[: TOKENIZER.itemsize], TOKENIZER)[0]
    at = {name: int(head[name]) for name in TOKENIZER.names if name != "reserved"}
    vocab, special = at["vocab"], next(iter(any_kind.special.values()))

    def half(offset: int, value: int) -> bytes:
        return section[:offset] + struct.pack("<H", value) + section[offset + 2 :]

    columns = at["classes_used"] + 1
    lies: dict[str, list[bytes]] = {}
    for name in ("sorted", "early", "late"):
        table = at[name]
        if at[f"{name}_count"] > 1:
            swapped = (
                section[:table] + section[table + 4 : table + 8] + section[table : table + 4] + section[table + 8 :]
            )
            lies[name] = [
                put(section, table, value) for value in (vocab, 0xFFFFFFFF, special, word(section, table + 4))
            ]
            lies[name].append(swapped)
    if at["split_count"]:
        states = word(section, at["splits"])
        lies["splits"] = [put(section, at["splits"], value) for value in (0, 1, 513, 0x80000000, 0xFFFFFFFF)]
        lies["moves"] = [half(at["moves"] + 2 * (columns + 1), value) for value in (states, 0x7FFF, 0xFFFF)]
        lies["moves"] += [half(at["moves"] + 2 * (2 * columns - 1), value) for value in (1, 0x8001)]
    if at["decomposition_count"]:
        lies["decompositions"] = [put(section, at["decompositions"] + 8, value) for value in (0, 0x110000)]
        lies["decompositions"] += [half(at["decompositions"] + 4, 0xFFFF), half(at["decompositions"] + 6, 0)]
        lies["compositions"] = [put(section, at["compositions"] + 12, value) for value in (0, 0x110000)]
        lies["compositions"] += [put(section, at["compositions"] + 8, value) for value in (0xD800, 0x110000)]
        lies["orders"] = [put(section, at["orders"], 1 << 8), put(section, at["orders"] + 8, 0)]
        lies["points"] = [put(section, at["points"], value) for value in (0xDFFF, 0x110000, 0xFFFFFFFF)]
    if at["score_count"]:
        doubles = (float("nan"), float("inf"), -float("inf"), 1e31)
        table = at["scores"] + 8 * 270
        lies["scores"] = [section[:table] + struct.pack("<d", value) + section[table + 8 :] for value in doubles]
    if at["rule_count"]:
        last = at["rule_text"] + at["rule_bytes"] - 1
        lies["rule_text"] = [section[:last] + b"x" + section[last + 1 :]]
    expected = [f"tokenizer.{name}" for name, sections in lies.items() for _ in sections]
    lines = run(program, tmp_path, [(one, any_template, TEXT) for sections in lies.values() for one in sections])
    got = [line.split(" ")[2] for line in lines]
    # The number of moves follows from the states.
    assert [name.replace("move_count", "splits") for name in got] == expected


def test_tries_that_lead_anywhere(program: Path, tmp_path: Path, any_kind: CompiledTokenizer) -> None:
    """A trie is not checked beforehand: whatever its units are, a walk stays in it and ends."""
    section = any_kind.section
    head = np.frombuffer(section[: TOKENIZER.itemsize], TOKENIZER)[0]
    if not head["rule_count"]:
        pytest.skip("has no rules")
    start, end = int(head["rules"]), int(head["rules"]) + 4 * int(head["rule_count"])
    source = random.Random(3)
    template = compile_template(CHAT, any_kind)
    cases = []
    for _ in range(100):
        units = [word(section, at) for at in range(start, end, 4)]
        for _ in range(source.randint(1, 40)):
            at = source.choice([0, source.randrange(len(units))])
            units[at] = source.choice(
                [source.getrandbits(32), source.getrandbits(20), units[at] ^ 1 << source.randrange(32)]
            )
        text = "".join(source.choices("e\u0301\u00e9\u00a0\ufb01\u4e2d\u6587a \x01", k=40)).encode() + source.randbytes(
            4
        )
        cases.append((section[:start] + struct.pack(f"<{len(units)}I", *units) + section[end:], template, text))
    assert len(run(program, tmp_path, cases)) == len(cases)


def test_lies_in_the_tables(program: Path, tmp_path: Path, tokenizer: CompiledTokenizer, template: bytes) -> None:
    section = tokenizer.section
    head = np.frombuffer(section[: TOKENIZER.itemsize], TOKENIZER)[0]
    at = {name: int(head[name]) for name in TOKENIZER.names if name != "reserved"}
    merges = np.frombuffer(section, MERGE, at["merge_slots"], at["merges"])
    used = next(slot for slot in range(len(merges)) if merges[slot]["rank"] != 0xFFFFFFFF)
    other = next(slot for slot in range(used + 1, len(merges)) if merges[slot]["rank"] != 0xFFFFFFFF)
    merge = at["merges"] + 16 * used
    special = tokenizer.special["<end>"]
    longer = int(merges[other]["merged"])
    lies = {
        "tokenizer.byte_ids": [
            put(section, at["byte_ids"] + 4 * byte, value)
            for byte in (0, 97, 255)
            for value in (at["vocab"], 0xFFFFFFFF, special, longer, word(section, at["byte_ids"] + 4 * (byte ^ 1)))
        ],
        "tokenizer.token_offsets": [
            put(section, at["token_offsets"] + 4 * index, value)
            for index, value in ((0, 1), (5, 0), (5, 0xFFFFFFFF), (9, at["text_bytes"] + 1), (at["vocab"], 2**31))
        ],
        "tokenizer.token_flags": [put(section, at["token_flags"] + 8, 0x10000000)],
        "tokenizer.merges.rank": [put(section, merge + 8, value) for value in (at["merge_count"], 0xFFFFFFFE)],
        "tokenizer.merges.left": [
            put(section, merge + offset, value) for offset in (0, 4) for value in (at["vocab"], 0xFFFFFFFF, special)
        ],
        "tokenizer.merges.merged": [
            put(section, merge + 12, value)
            for value in (at["vocab"], 0xFFFFFFFF, special, word(section, merge), word(section, merge + 4))
        ],
        "tokenizer.merge_count": [put(section, merge + 8, 0xFFFFFFFF)],
        "tokenizer.classes": [
            put(section, at["classes"] + 4 * index, value)
            for index, value in ((0, 1 << 8), (5, 0), (7, 0xFFFFFF00), (3, word(section, at["classes"] + 8)), (0, 200))
        ],
    }
    expected = [name for name, sections in lies.items() for _ in sections]
    lines = run(program, tmp_path, [(one, template, TEXT) for sections in lies.values() for one in sections])
    assert [line.split(" ")[2] for line in lines] == expected


def test_lies_in_the_template(program: Path, tmp_path: Path, tokenizer: CompiledTokenizer, template: bytes) -> None:
    table = np.frombuffer(template, SEGMENT, word(template, 0), TEMPLATE.itemsize)
    assert [int(kind) for kind in table["kind"]] == [2, 3, 2, 1, 2]  # text, user, text, token, text
    cases = []
    for offset in range(0, TEMPLATE.itemsize + table.nbytes, 4):
        now = word(template, offset)
        cases += [(offset, value) for value in {*VALUES, 4096, now + 1, now ^ 0x80000000} - {now}]
    lines = run(program, tmp_path, [(tokenizer.section, put(template, *case), TEXT) for case in cases])
    accepted = []
    for (offset, value), line in zip(cases, lines, strict=True):
        _, status, where = line.split(" ", 2)
        if status == "0":
            accepted.append((offset, value))
        else:
            assert status == "-13" and where.startswith("template"), line
    # What is left is another sound template: another token, no trimming, another beginning, tokens that take.
    rows = [divmod(offset - TEMPLATE.itemsize, SEGMENT.itemsize) for offset, _ in accepted]
    assert set(rows) == {(1, 4), (3, 4)}
    assert all(value < (16 if row == 1 else 4096) for (row, _), (_, value) in zip(rows, accepted, strict=True))


@pytest.mark.parametrize("seed", range(2))
def test_random_damage(
    program: Path, tmp_path: Path, any_kind: CompiledTokenizer, any_template: bytes, seed: int
) -> None:
    source = random.Random(seed)
    cases = []
    for _ in range(300):
        section, chat = bytearray(any_kind.section), bytearray(any_template)
        for target in source.choices((section, chat), weights=(3, 1), k=source.randint(1, 3)):
            if source.random() < 0.7:
                target[source.randrange(len(target))] = source.randrange(256)
            else:
                offset = 4 * source.randrange(len(target) // 4)
                target[offset : offset + 4] = struct.pack("<I", source.choice(VALUES))
        cases.append((bytes(section), bytes(chat), TEXT + source.randbytes(20)))
    assert len(run(program, tmp_path, cases)) == len(cases)
