# SPDX-License-Identifier: Apache-2.0
"""The table of status codes and messages against the compiled code's debug information."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from colibri_sdk.engine import Engine, Library
from colibri_sdk.errors import DeviceError, ImageError
from colibri_sdk.link import messages
from colibri_sdk.link.frames import Kind
from colibri_sdk.link.symbols import Symbols, register_names
from colibri_sdk.status import Status, failure, hint


def enumerations(elf: Path) -> dict[str, dict[str, int]]:
    """All enums of the debug information: name -> constant -> value."""
    found: dict[str, dict[str, int]] = {}
    with elf.open("rb") as file:
        for unit in ELFFile(file).get_dwarf_info().iter_CUs():
            for entry in unit.iter_DIEs():
                if entry.tag == "DW_TAG_enumeration_type" and "DW_AT_name" in entry.attributes:
                    constants = found.setdefault(entry.attributes["DW_AT_name"].value.decode(), {})
                    for child in entry.iter_children():
                        value = child.attributes["DW_AT_const_value"].value
                        constants[child.attributes["DW_AT_name"].value.decode()] = value
    return found


@pytest.fixture(scope="module")
def enums(fake_host: Path) -> dict[str, dict[str, int]]:
    return enumerations(fake_host)


def test_status_codes(enums: dict[str, dict[str, int]]) -> None:
    compiled = {name.removeprefix("COLIBRI_"): value for name, value in enums["colibri_status"].items()}
    assert {status.name: int(status) for status in Status} == compiled


@pytest.mark.parametrize(
    ("c_name", "prefix", "python"),
    [
        ("message_type", "MESSAGE_", messages.Type),
        ("frame_kind", "FRAME_", Kind),
        ("device_state", "DEVICE_", messages.DeviceState),
        ("colibri_finish", "COLIBRI_FINISH_", messages.Finish),
        ("provoke_kind", "PROVOKE_", messages.Provoke),
    ],
)
def test_the_links_numbers(enums: dict[str, dict[str, int]], c_name: str, prefix: str, python: type) -> None:
    compiled = {name.removeprefix(prefix): value for name, value in enums[c_name].items()}
    assert {member.name: int(member) for member in python} == compiled  # type: ignore[attr-defined]


def test_each_status_has_a_sentence_and_a_hint(sim_library: Path) -> None:
    library = ctypes.CDLL(str(sim_library))
    library.colibri_status_text.restype = ctypes.c_char_p
    sentences = [library.colibri_status_text(int(status)) for status in Status]
    assert len(set(sentences)) == len(sentences)
    assert b"unknown status" not in sentences
    assert library.colibri_status_text(-1000) == b"unknown status"
    assert all(hint(status) for status in Status if status is not Status.OK)
    assert hint(0) == hint(-1000) == ""


def test_families() -> None:
    for status in Status:
        if status is Status.OK:
            continue
        error = failure(status, "sentence", subject="subject", where="place", got=1, wanted=2)
        of_image = status.name.startswith("E_IMAGE") or status is Status.E_OTHER_BOARD
        assert type(error) is (ImageError if of_image else DeviceError)
        assert (error.status, error.where, error.got, error.wanted) == (status, "place", 1, 2)
        numbers = "1 bytes, of 2 that may be used" if status is Status.E_MODEL_TOO_LARGE else "1, wanted 2"
        assert str(error).startswith(f"subject: sentence (place: {numbers})\n")


@pytest.mark.parametrize(
    ("status", "where", "words"),
    [
        (Status.E_SIGNATURE, "unsigned", "(unsigned)"),
        (Status.E_OTHER_BOARD, "rpi3", "(rpi3)"),
        (Status.E_UPDATE_BASE, "image", "(image)"),
        (Status.E_UPDATE_STATE, "trial", "(trial)"),
        (Status.E_COUNTER, "counter", "(counter: 0, wanted 1)"),
        (Status.E_STORAGE_EMPTY, "model partition", "(model partition: 0, wanted 1)"),
    ],
)
def test_a_no_and_a_yes_are_not_shown_as_numbers(status: Status, where: str, words: str) -> None:
    error = failure(status, "sentence", subject="subject", where=where, got=0, wanted=1)
    assert error.message == f"subject: sentence {words}"
    assert (error.got, error.wanted) == (0, 1)


def test_a_text_for_a_model_without_a_tokenizer(tiny: Callable[[str, str], Path], host_library: Path) -> None:
    """The advice was to build and flash the firmware again."""
    engine = Engine(Library.load(host_library), tiny("llama", "q8"))
    with pytest.raises(ImageError, match="the model has no tokenizer") as raised:
        engine.prompt("hello")
    assert raised.value.status == Status.E_IMAGE_UNSUPPORTED and "token ids" in raised.value.hint


def test_symbols(fake_host: Path) -> None:
    symbols = Symbols(fake_host)
    with fake_host.open("rb") as file:
        (symbol,) = ELFFile(file).get_section_by_name(".symtab").get_symbol_by_name("link_pump")
    address = symbol["st_value"]
    assert symbols.describe(address).startswith("link_pump (link.c:")
    assert symbols.describe(address + 2).startswith("link_pump+0x2 (link.c:")
    assert symbols.describe(0) == ""


def test_register_names() -> None:
    assert register_names("aarch64", 31)[-1] == "x30"
    assert register_names("riscv64", 31)[0] == "x1"
    assert register_names("x86_64", 15)[7] == "r8"
    assert register_names("other", 3) == ["r0", "r1", "r2"]
    assert len(set(register_names("x86_64", 34))) == 34
