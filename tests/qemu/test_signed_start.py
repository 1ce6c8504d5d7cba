# SPDX-License-Identifier: Apache-2.0
"""Boards built with a public key start nothing but what is signed; others say that they have none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from colibri_sdk import emulator
from colibri_sdk.boards import load_board, with_key
from colibri_sdk.build import Firmware, build
from colibri_sdk.device import Device, DeviceInfo
from colibri_sdk.image.layout import SectionKind
from colibri_sdk.signing import PrivateKey, PublicKey, new_key, sign_image
from colibri_sdk.status import Status
from forge import Forge

Packed = Callable[[str], Path]


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_key(tmp_path_factory.mktemp("keys"))[0]


@pytest.fixture(scope="module")
def keyed(key_file: Path) -> Firmware:
    return build(with_key(load_board("host"), key_file))


@pytest.fixture
def image(tiny_mixtral: Packed, tmp_path: Path) -> Path:
    (tmp_path / "x.colibri").write_bytes(tiny_mixtral("q8").read_bytes())
    return tmp_path / "x.colibri"


def started(firmware: Firmware, image: Path, *arguments: str) -> DeviceInfo:
    with (
        emulator.start(load_board("host"), firmware=firmware, arguments=["--block", str(image), *arguments]) as process,
        Device.open(process, timeout=60) as device,
    ):
        device.wait_for_model()
        return device.info()


def refused(info: DeviceInfo, status: Status, where: str) -> bool:
    return (info.state, info.status, info.status_where, info.has_key) == ("no model", status, where, True)


def test_a_board_with_a_key(keyed: Firmware, key_file: Path, image: Path) -> None:
    assert PublicKey.load(key_file).label in str(keyed.elf)
    key = PrivateKey.load(key_file)
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
