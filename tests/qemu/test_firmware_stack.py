# SPDX-License-Identifier: Apache-2.0
"""The stack bound of the build's report, held against what the firmware really used.

RAM is zero when an emulated machine starts, and the firmware writes its stacks only by using them: the lowest byte that
is not zero marks how deep a stack ever was.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bringup import BOARDS, symbols
from colibri_sdk import targets
from colibri_sdk.boards import load_board
from colibri_sdk.build import Firmware
from colibri_sdk.emulator import Emulator
from colibri_sdk.errors import DeviceFaultError

pytestmark = pytest.mark.qemu


def depth(running: Emulator, elf: Path, bottom: str, top: str) -> int:
    """Bytes of a stack that were ever used."""
    low, high = (symbols(elf)[mark][0] for mark in (bottom, top))
    used = running.read_memory(low, high - low)
    return len(used.lstrip(b"\0"))


@pytest.mark.parametrize("name", BOARDS)
def test_measured_stack_is_within_the_reported_bound(
    name: str, firmware: Callable[[str], Firmware], hummingbird: Callable[[str], Path], tmp_path: Path
) -> None:
    built = firmware(name)
    with targets.emulated(load_board(name), hummingbird("q4"), directory=tmp_path, firmware=built) as target:
        device, running = target.device, target.emulator
        assert running is not None
        answer = device.generate(
            "set pump 3 to 40 percent", temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.1, seed=7,
            max_tokens=24, stop=("never",), trace_routing=True, trace_logits=True,
        )  # fmt: skip
        assert len(list(answer)) > 0
        device.stats()
        device.selftest()
        device.tokenize("a tank is a tank")
        assert running.read_memory(symbols(built.elf)["hal_stack_guard"][0], 4096) == bytes(4096)
        used = depth(running, built.elf, "hal_stack_bottom", "hal_stack_top")
        bound = built.report["stack_worst"]
        assert 1000 < used <= bound <= built.report["stack_bytes"]

        assert depth(running, built.elf, "hal_fault_stack_bottom", "hal_fault_stack_top") == 0
        with pytest.raises(DeviceFaultError) as fault:
            device.provoke_fault(1)
        assert fault.value.symbol.startswith("hal_provoke_fault")
        used = depth(running, built.elf, "hal_fault_stack_bottom", "hal_fault_stack_top")
        assert 300 < used <= built.report["fault_stack_worst"] <= built.report["fault_stack_bytes"]
