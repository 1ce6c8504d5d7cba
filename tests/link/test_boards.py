# SPDX-License-Identifier: Apache-2.0
"""Faults, restarts and cancelling over the real UART drivers of emulated boards, with the real engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from colibri_sdk.device import Device
from colibri_sdk.errors import DeviceFaultError
from colibri_sdk.status import Status


@pytest.mark.qemu
@pytest.mark.parametrize("name", ["rpi3", "virt-riscv64"])
def test_a_board_reports_faults_restarts_and_cancels(
    emulated: Callable[..., Device], hummingbird: Callable[[str], Path], name: str
) -> None:
    device = emulated(name, hummingbird("q8"))
    for kind, status, function in (
        (1, Status.E_TRAP, "hal_provoke_fault"),
        (2, Status.E_TRAP, "hal_provoke_fault"),
        (3, Status.E_WATCHDOG, "answer_provoke"),
    ):
        with pytest.raises(DeviceFaultError) as raised:
            device.provoke_fault(kind)
        assert raised.value.status == status
        assert raised.value.symbol.startswith(function)
        device.reboot()
        assert device.info().state == "ready"
    generation = device.generate("set pump 3 to 40 percent", ignore_eos=True)
    for token in generation:
        if token.index == 3:
            break
    assert generation.result.finish_reason == "cancelled"
    assert device.generate("set pump 3 to 40 percent").result.finish_reason == "eos"
    assert device.stats().canary_intact
