# SPDX-License-Identifier: Apache-2.0
"""Boards built with a public key start nothing but what is signed; others say that they have none."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from colibri_sdk import emulator, targets
from colibri_sdk.boards import load_board, with_key
from colibri_sdk.build import Firmware, build
from colibri_sdk.convert.progress import Silent
from colibri_sdk.device import Device, DeviceInfo
from colibri_sdk.errors import DeviceError
from colibri_sdk.image.layout import SectionKind
from colibri_sdk.signing import PrivateKey, PublicKey, sign_image
from colibri_sdk.status import Status
from colibri_sdk.update.expert import expert_content, update_expert
from fixed_key import KEY
from forge import Forge

Packed = Callable[[str], Path]
PROMPT = (3, 1, 4, 1, 5)


BOARDS = [pytest.param(name, marks=pytest.mark.qemu) for name in ("virt-aarch64", "virt-riscv64")]


@pytest.fixture(scope="module")
def keyed(public_key: Path) -> Firmware:
    return build(with_key(load_board("host"), public_key))


@pytest.fixture
def image(tiny_mixtral: Packed, tmp_path: Path) -> Path:
    (tmp_path / "x.colibri").write_bytes(tiny_mixtral("q8").read_bytes())
    return tmp_path / "x.colibri"


@contextmanager
def running(firmware: Firmware, image: Path, *arguments: str) -> Iterator[Device]:
    """This machine's board with the image as its medium."""
    with (
        emulator.start(load_board("host"), firmware=firmware, arguments=["--block", str(image), *arguments]) as process,
        Device.open(process, timeout=60) as device,
    ):
        device.wait_for_model()
        yield device


def started(firmware: Firmware, image: Path, *arguments: str) -> DeviceInfo:
    with running(firmware, image, *arguments) as device:
        return device.info()


def answer(device: Device) -> str:
    return device.generate(PROMPT, max_tokens=4, ignore_eos=True).result.logits_sha256


def change_behind_the_crc(image: Path) -> None:
    """Changes weights of every expert so that its CRC-32 stays: by the CRC's polynomial, of which all are multiples."""
    forge = Forge(image)
    polynomial = np.frombuffer((0xEDB88320 << 1 | 1).to_bytes(5, "little"), np.uint8)
    for entry in forge.experts:
        blob = forge.contents(SectionKind.EXPERTS)[int(entry["offset"]) :][: int(entry["bytes"])]
        blob[40:45] ^= polynomial
        assert zlib.crc32(blob) == entry["crc32"]
    forge.write(image)


def refused(info: DeviceInfo, status: Status, where: str) -> bool:
    return (info.state, info.status, info.status_where, info.has_key) == ("no model", status, where, True)


def test_a_board_with_a_key(keyed: Firmware, public_key: Path, image: Path) -> None:
    assert PublicKey.load(public_key).label in str(keyed.elf)
    key = KEY
    assert refused(started(keyed, image), Status.E_SIGNATURE, "unsigned")
    sign_image(image, PrivateKey.new())
    assert refused(started(keyed, image), Status.E_SIGNATURE, "key")
    sign_image(image, key, board="rpi3")
    assert refused(started(keyed, image), Status.E_OTHER_BOARD, "rpi3")
    sign_image(image, key, board="host")
    info = started(keyed, image)
    assert (info.state, info.has_key) == ("ready", True)
    data = np.fromfile(image, np.uint8)
    # A change that keeps all checksums right is the signature's alone to find.
    forge = Forge(image)
    forge.contents(SectionKind.CARD)[5] ^= 1
    forge.seal()
    forge.write(image)
    assert refused(started(keyed, image), Status.E_SIGNATURE, "digest")
    data.tofile(image)
    forge = Forge(image)
    forge.contents(SectionKind.EXPERTS)[3] ^= 1
    forge.seal_experts()
    forge.seal()
    forge.write(image)
    assert refused(started(keyed, image), Status.E_SIGNATURE, "digest")  # the directory is signed, too


def test_a_board_without_a_key_takes_everything_and_says_so(firmware: Callable[[str], Firmware], image: Path) -> None:
    for sign in (False, True):
        if sign:
            sign_image(image, PrivateKey.new(), board="rpi3", counter=9)
        info = started(firmware("host"), image)
        assert (info.state, info.has_key) == ("ready", False)


def test_an_expert_that_was_exchanged_is_found_when_it_is_read(
    keyed: Firmware, firmware: Callable[[str], Firmware], image: Path
) -> None:
    """Its CRC-32 is right; only the digest tells: on each read, or at the start where all is loaded."""
    sign_image(image, KEY)
    right = image.read_bytes()
    on_demand = ("--store", "block", "--cache-slots", "1")
    with running(keyed, image, *on_demand) as device:
        assert device.info().store == "block"
        wanted = answer(device)
        change_behind_the_crc(image)
        for _ in range(2):
            with pytest.raises(DeviceError) as caught:
                answer(device)
            assert caught.value.status == Status.E_SIGNATURE and caught.value.where.startswith("layer ")
        device_state = device.info()
        assert (device_state.state, device_state.has_key) == ("ready", True)
    assert refused(started(keyed, image), Status.E_SIGNATURE, "expert")
    with running(firmware("host"), image, *on_demand) as device:  # the CRC alone does not see it
        assert answer(device) != wanted
    image.write_bytes(right)
    with running(keyed, image, *on_demand) as device:
        assert answer(device) == wanted


def test_a_damaged_expert_is_called_damaged(keyed: Firmware, image: Path) -> None:
    """Its digest is wrong as well, but signing it again would be no help."""
    sign_image(image, KEY)
    forge = Forge(image)
    for entry in forge.experts:
        forge.contents(SectionKind.EXPERTS)[int(entry["offset"])] ^= 1
    with running(keyed, image, "--store", "block", "--cache-slots", "1") as device:
        forge.write(image)
        with pytest.raises(DeviceError) as caught:
            answer(device)
        assert caught.value.status == Status.E_EXPERT_CHECKSUM and caught.value.where.startswith("layer ")
        assert caught.value.got != caught.value.wanted


@pytest.mark.parametrize("name", BOARDS)
def test_boards_of_each_instruction_set(
    name: str, public_key: Path, firmware: Callable[[str], Firmware], image: Path, tmp_path: Path
) -> None:
    """Unsigned it does not start, and says so; signed it answers as any board does, and takes no unsigned expert."""
    board = with_key(load_board(name), public_key)
    built = build(board)
    card = targets.storage_for(board, built, image, tmp_path / "unsigned")
    with emulator.start(board, firmware=built, storage=card) as process, Device.open(process, timeout=60) as device:
        device.wait_for_model()
        assert refused(device.info(), Status.E_SIGNATURE, "unsigned")
    with running(firmware("host"), image) as device:
        wanted = answer(device)
    sign_image(image, KEY, board=name)
    with targets.emulated(board, image, directory=tmp_path / "signed", firmware=built) as target:
        device = target.device
        device.configure("block", cache_slots=1)
        assert answer(device) == wanted
        with expert_content(image, 0, 1) as other, pytest.raises(DeviceError) as caught:
            update_expert(device, other, 0, 0, progress=Silent())
        assert (caught.value.status, caught.value.where) == (Status.E_SIGNATURE, "unsigned")
        assert answer(device) == wanted
