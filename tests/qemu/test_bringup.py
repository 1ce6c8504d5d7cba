# SPDX-License-Identifier: Apache-2.0
"""Each board's start-up code and drivers, without the runtime: what the bring-up program measures must be right."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bringup import BOARDS, Console, built, function_at, symbols
from colibri_sdk import emulator
from colibri_sdk.boards import load_board

pytestmark = pytest.mark.qemu

MIB = 1 << 20
TRAP, WATCHDOG = 1, 2
ABSENT, OUT_OF_RANGE = -1, -4
DISK_BYTES = 64 * MIB

Boot = Callable[..., Console]


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Boot]:
    """boot(board, disk=None, ...) -> its console, the banner read into `console.banner`."""
    with ExitStack() as running:

        def start(name: str, disk: Path | None = None, **options: Any) -> Console:
            board, firmware = built(name)
            arguments = list(options.pop("arguments", ()))
            if board.flash.method == "sd-card" and disk is not None:
                # The bring-up program is no part of a card: the board is given it directly, whatever is on the disk.
                arguments += ["-drive", f"if=sd,format=raw,file={disk}"]
                disk = None
            machine = emulator.start(board, firmware=firmware, storage=disk, arguments=arguments, **options)
            running.enter_context(machine)
            console = Console(machine)
            running.callback(console.close)
            return console

        yield start


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A disk whose every block is different, and not the same as its neighbours shifted."""
    path = tmp_path / "disk.img"
    block = bytearray(512)
    with path.open("wb") as file:
        for number in range(4 * MIB // 512):
            block[:] = (number * 2654435761 % 2**32).to_bytes(4, "little") * 128
            block[0:4] = number.to_bytes(4, "little")
            file.write(block)
        file.truncate(DISK_BYTES)
    return path


@pytest.mark.parametrize("name", BOARDS)
def test_boots_and_says_what_the_board_file_says(name: str, boot: Boot) -> None:
    console = boot(name)
    board, firmware = built(name)
    banner = console.banner
    assert banner.string("name") == name
    assert banner.string("architecture") == board.architecture
    assert banner["baud"] == board.baud
    assert board.memory is not None
    assert banner["memory"] % 4096 == 0
    assert banner["memory"] + banner["bytes"] == board.memory.ram.end
    assert banner["memory"] == symbols(firmware.elf)["hal_memory_start"][0]
    assert console.ask("echo The quick brown fox").text == "echo The quick brown fox"


@pytest.mark.parametrize("name", BOARDS)
def test_the_whole_memory_is_there(name: str, boot: Boot) -> None:
    console = boot(name)
    reply = console.ask("memory")
    assert reply["pages"] == console.banner["bytes"] // 4096
    assert reply["wrong"] == 0


@pytest.mark.parametrize("name", BOARDS)
def test_clock_advances_at_its_frequency(name: str, boot: Boot) -> None:
    reply = boot(name).ask("clock")
    assert reply["backwards"] == 0
    assert reply["last"] - reply["first"] >= reply["frequency"] // 100
    # What QEMU 7.2 implements: CNTFRQ_EL0 62.5 MHz; CLINT 10 MHz (virt) and 1 MHz (sifive_u).
    expected = {"virt-riscv64": 10_000_000, "hifive-unleashed": 1_000_000}.get(name, 62_500_000)
    assert reply["frequency"] == expected


@pytest.mark.parametrize("name", BOARDS)
def test_copies_are_right_at_all_alignments(name: str, boot: Boot) -> None:
    reply = boot(name).ask("copies")
    assert reply["cases"] == 20 * 20 * 72
    assert reply["wrong"] == 0


@pytest.mark.parametrize("name", BOARDS)
def test_floats_follow_the_numeric_contract(name: str, boot: Boot) -> None:
    reply = boot(name).ask("floats")
    assert reply["control"] == 0  # round to nearest even, no flush to zero, no default NaN, no traps
    assert reply["third"] == 0x3EAAAAAB  # 1/3 rounded to nearest
    assert reply["denormal"] == 0x00400000  # half the smallest normal number
    assert reply["root"] == 0x3FB504F3  # sqrt(2)
    assert reply["fused"] == 0  # (1 + 2^-12)^2 - (1 + 2^-11): an FMA would keep 2^-24


def disks(names: tuple[str, ...] = BOARDS) -> list[Any]:
    return [pytest.param(name, (), id=name) for name in names] + [
        pytest.param("virt-aarch64", ("-global", "virtio-mmio.force-legacy=false"), id="virt-aarch64-modern"),
        pytest.param("virt-riscv64", ("-global", "virtio-mmio.force-legacy=false"), id="virt-riscv64-modern"),
    ]


@pytest.mark.parametrize(("name", "arguments"), disks())
def test_disk_is_read_exactly(name: str, arguments: tuple[str, ...], boot: Boot, disk: Path) -> None:
    console = boot(name, disk, arguments=arguments)
    reply = console.ask("disk")
    assert reply["status"] == 0
    assert reply["blocks"] == DISK_BYTES // 512
    content = disk.read_bytes()
    # More than a megabyte at once; single blocks; odd counts; an address that is only aligned to 4; the last block.
    for block, count, offset in ((0, 2560, 0), (7, 1, 0), (1, 3, 4), (4095, 257, 12), (DISK_BYTES // 512 - 1, 1, 0)):
        reply = console.ask(f"read {block} {count} {offset}")
        assert reply["status"] == 0, (block, count)
        assert reply["crc"] == zlib.crc32(content[block * 512 : (block + count) * 512]), (block, count)
        assert reply["beyond"] == 0xEE, "bytes behind the last block were written"
    assert console.ask(f"read {DISK_BYTES // 512} 1 0")["status"] == OUT_OF_RANGE
    assert console.ask(f"read {DISK_BYTES // 512 - 1} 2 0")["status"] == OUT_OF_RANGE
    assert console.ask("read 7 1 0")["crc"] == zlib.crc32(content[7 * 512 : 8 * 512])


@pytest.mark.parametrize(("name", "arguments"), disks())
def test_disk_is_written_exactly(name: str, arguments: tuple[str, ...], boot: Boot, disk: Path) -> None:
    console = boot(name, disk, arguments=arguments)
    assert console.ask("disk")["status"] == 0
    expected = bytearray(disk.read_bytes())
    for block, count, seed in ((3, 1, 1), (100, 65, 2)):
        assert console.ask(f"write {block} {count} {seed}")["status"] == 0
        pattern = bytearray()
        x = seed
        for _ in range(count * 512):
            x = (x * 1664525 + 1013904223) % 2**32
            pattern.append(x >> 24)
        expected[block * 512 : (block + count) * 512] = pattern
    reply = console.ask("read 99 67 0")
    assert reply["crc"] == zlib.crc32(expected[99 * 512 : 166 * 512])
    console.running.stop()
    assert disk.read_bytes() == expected


@pytest.mark.parametrize("name", ["rpi3", "hifive-unleashed"])
def test_high_capacity_card_beyond_its_first_two_gigabytes(name: str, boot: Boot, tmp_path: Path) -> None:
    """Cards above 2 GB count in blocks instead of bytes."""
    card = tmp_path / "large.img"
    pattern = bytes(range(256)) * 16
    with card.open("wb") as file:
        file.truncate(8 << 30)
        file.seek(6 << 30)
        file.write(pattern)
    console = boot(name, card)
    reply = console.ask("disk")
    assert reply["status"] == 0
    assert reply["blocks"] == (8 << 30) // 512
    reply = console.ask(f"read {(6 << 30) // 512} 8 0")
    assert reply["status"] == 0
    assert reply["crc"] == zlib.crc32(pattern)


@pytest.mark.parametrize("name", BOARDS)
def test_missing_medium_is_absent_not_a_hang(name: str, boot: Boot) -> None:
    console = boot(name)
    assert console.ask("disk")["status"] == ABSENT
    assert console.ask("read 0 1 0")["status"] != 0
    assert console.ask("echo still here").text == "echo still here"


@pytest.mark.parametrize("name", ["virt-aarch64", "virt-riscv64"])
def test_disk_error_is_reported_and_passes(name: str, boot: Boot, disk: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.write_text('[inject-error]\nevent = "read_aio"\nerrno = "5"\nsector = "2048"\nonce = "on"\n')
    drive = f"if=none,id=bad,format=raw,file=blkdebug:{rules}:{disk},rerror=report"
    console = boot(name, arguments=("-drive", drive, "-device", "virtio-blk-device,drive=bad"))
    assert console.ask("disk")["status"] == 0
    assert console.ask("read 2048 1 0")["status"] == -3
    reply = console.ask("read 2048 1 0")
    assert reply["status"] == 0
    assert reply["crc"] == zlib.crc32(disk.read_bytes()[2048 * 512 : 2049 * 512])


def exception(architecture: str, cause: int) -> str:
    """What the cause register says, in words. AArch64: ESR_EL1.EC; RISC-V: mcause."""
    if architecture == "aarch64":
        return {0x00: "illegal", 0x25: "load", 0x24: "load"}.get(cause >> 26, hex(cause))
    return {2: "illegal", 5: "load", 7: "store"}.get(cause, hex(cause))


@pytest.mark.parametrize("name", BOARDS)
def test_illegal_instruction_is_reported_where_it_happened(name: str, boot: Boot) -> None:
    fault = boot(name).ask("fault 1")
    board, firmware = built(name)
    assert fault["kind"] == TRAP
    assert function_at(firmware.elf, fault["pc"]) == "hal_provoke_fault"
    assert exception(board.architecture, fault["cause"]) == "illegal"
    bottom, top = (symbols(firmware.elf)[mark][0] for mark in ("hal_stack_bottom", "hal_stack_top"))
    assert bottom <= fault["sp"] < top
    registers = fault.all("r")
    assert len(registers) == 31
    if board.architecture == "riscv64":
        assert registers[1] == fault["sp"]  # x2


@pytest.mark.parametrize("name", BOARDS)
def test_stray_load_is_reported_with_its_address(name: str, boot: Boot) -> None:
    fault = boot(name).ask("fault 2")
    board, firmware = built(name)
    assert fault["kind"] == TRAP
    assert function_at(firmware.elf, fault["pc"]) == "hal_provoke_fault"
    assert exception(board.architecture, fault["cause"]) == "load"
    assert fault["address"] == symbols(firmware.elf)["hal_stack_guard"][0]


@pytest.mark.parametrize("name", BOARDS)
def test_stack_overflow_traps_at_the_guard_page(name: str, boot: Boot) -> None:
    fault = boot(name).ask("overflow")
    _, firmware = built(name)
    guard = symbols(firmware.elf)["hal_stack_guard"][0]
    assert fault["kind"] == TRAP
    assert guard <= fault["address"] < guard + 4096
    assert function_at(firmware.elf, fault["pc"]) == "dig"


@pytest.mark.parametrize("name", BOARDS)
def test_watchdog_interrupts_a_loop_and_names_it(name: str, boot: Boot) -> None:
    console = boot(name)
    assert console.ask("starve")["status"] == 0
    fault = console.read()
    assert fault["kind"] == WATCHDOG
    assert function_at(built(name)[1].elf, fault["pc"]) == "check_starve"


@pytest.mark.parametrize("name", BOARDS)
def test_watchdog_that_is_kicked_or_stopped_stays_silent(name: str, boot: Boot) -> None:
    """By a clock that counts instructions: by this machine's, time passes between two kicks when QEMU has to wait."""
    console = boot(name, arguments=("-icount", "shift=6,sleep=off"))
    for _ in range(2):  # it can be started again
        reply = console.ask("kick")
        assert reply["status"] == 0
        assert reply.text.endswith("stopped")


@pytest.mark.parametrize("name", BOARDS)
def test_waiting_lasts_as_long_as_asked_or_until_there_is_input(name: str, boot: Boot) -> None:
    console = boot(name)
    reply = console.ask("wait")
    assert reply["silent"] >= reply["frequency"] * 30 // 1000
    reply = console.ask("echo woken")
    assert reply.text.startswith("input")
    assert console.read().text == "echo woken"  # nothing of the input was lost


@pytest.mark.parametrize("name", BOARDS)
def test_watchdog_fires_while_the_console_waits(name: str, boot: Boot) -> None:
    console = boot(name)
    assert console.ask("sleep")["status"] == 0
    fault = console.read()
    assert fault["kind"] == WATCHDOG


@pytest.mark.parametrize("name", BOARDS)
@pytest.mark.parametrize("command", ["reset", "doublefault"])
def test_board_starts_again(name: str, command: str, boot: Boot) -> None:
    console = boot(name)
    console.ask("echo before")
    reply = console.ask(command)
    if command == "doublefault":  # the report itself, then a fault in the reporting
        assert reply["kind"] == TRAP
        reply = console.read()
    assert reply.text == console.banner.text
    assert console.ask("echo after").text == "echo after"


@pytest.mark.parametrize("name", ["rpi3", "virt-aarch64", "virt-riscv64"])
def test_board_switches_itself_off(name: str, boot: Boot) -> None:
    console = boot(name)
    console.send("off 0")
    assert console.running.wait(300.0) == 0
    assert console.closed_by_board


def test_test_finisher_hands_out_an_exit_code(boot: Boot) -> None:
    console = boot("virt-riscv64")
    console.send("off 7")
    assert console.running.wait(300.0) == 7


@pytest.mark.parametrize("cpu", load_board("virt-aarch64").emulator.cpus)
def test_other_processors(cpu: str, boot: Boot) -> None:
    console = boot("virt-aarch64", cpu=cpu)
    assert console.ask("floats")["fused"] == 0
    assert console.ask("fault 2")["address"] == symbols(built("virt-aarch64")[1].elf)["hal_stack_guard"][0]


@pytest.mark.parametrize("options", ["virtualization=on", "secure=on", "secure=on,virtualization=on"])
def test_entered_at_higher_exception_levels(options: str, boot: Boot) -> None:
    """From EL2, and from EL3 with and without an EL2, the program ends up at EL1 all the same."""
    console = boot("virt-aarch64", arguments=("-M", f"virt,{options}"))
    fault = console.ask("fault 1")
    assert fault["status"] & 0xF == 4  # SPSR_EL1.M: EL1 with SP_EL0
    assert function_at(built("virt-aarch64")[1].elf, fault["pc"]) == "hal_provoke_fault"


def test_raspberry_pi_entered_at_el3_on_all_cores(boot: Boot) -> None:
    """QEMU enters an ELF file so; a raw image at EL2 on one core."""
    elf = built("rpi3")[1].elf
    console = boot("rpi3", arguments=("-kernel", str(elf)))
    assert console.ask("echo once").text == "echo once"
    assert console.ask("starve")["status"] == 0
    fault = console.read()
    assert fault["kind"] == WATCHDOG
    assert fault["status"] & 0xF == 4
