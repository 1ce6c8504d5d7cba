# SPDX-License-Identifier: Apache-2.0
"""Boards, as their files boards/NAME.toml describe them. The build and the SDK read them through this one module.

The import costs little: the build uses it before anything else of the SDK is needed.
"""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from colibri_sdk import paths
from colibri_sdk.errors import UsageError

DEVICES = ("pins", "console", "clock", "block", "power", "watchdog")


@dataclass(frozen=True)
class Region:
    """A range of physical addresses; bytes."""

    name: str
    base: int
    bytes: int

    @property
    def end(self) -> int:
        return self.base + self.bytes


@dataclass(frozen=True)
class Memory:
    """Where the firmware may live; all sizes in bytes."""

    ram: Region
    load_address: int
    stack_bytes: int
    fault_stack_bytes: int
    device_regions: tuple[Region, ...]


@dataclass(frozen=True)
class Flash:
    """How a model gets onto the board's storage: method is "sd-card", "raw-disk" or "none"."""

    method: str
    firmware_file: str = ""
    required_boot_files: tuple[str, ...] = ()
    config_txt: str = ""

    @property
    def boots(self) -> bool:
        """Does the card hold the firmware, too? Such a board boots what its card has."""
        return self.method == "sd-card"


@dataclass(frozen=True)
class EmulatorSettings:
    """How the board is emulated: kind is "none", "process" (the host board) or "qemu"."""

    kind: str
    program: str = ""
    machine: str = ""
    cpus: tuple[str, ...] = ()
    memory_bytes: int = 0
    storage: str = "none"
    storage_power_of_two: bool = False
    storage_bytes_per_second: int = 0  # as measured; 0: it was not
    firmware: str = "elf"
    firmware_option: str = "-kernel"
    console: int = 0
    channel: str = "socket"
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Board:
    """One board. `memory` is None for the host, whose memory is the system's."""

    name: str
    title: str
    description: str
    architecture: str
    baud: int
    usb_ids: tuple[str, ...]
    flash: Flash
    emulator: EmulatorSettings
    memory: Memory | None
    path: Path
    data: Mapping[str, Any] = field(repr=False, compare=False)
    memory_label: str = ""  # of a build that uses less memory than the board has: "64M"
    public_key: Path | None = None  # of a build that trusts this key alone
    key_label: str = ""  # names it: "key-1f0a23c4"

    @property
    def build_name(self) -> str:
        """The name of its directory below build/."""
        return "-".join(filter(None, (self.name, self.memory_label, self.key_label)))

    @property
    def emulated(self) -> bool:
        """Can it be started here, by QEMU or as a process?"""
        return self.emulator.kind != "none"

    @property
    def is_host(self) -> bool:
        return self.architecture == "host"

    @property
    def devices(self) -> dict[str, Mapping[str, Any]]:
        """The board's device tables by their role, each with its `driver`."""
        return {name: self.data[name] for name in DEVICES if name in self.data}

    def as_json(self) -> dict[str, Any]:
        """For machines: the fields that a script would ask for."""
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "architecture": self.architecture,
            "emulated": self.emulated,
            "emulator_cpus": list(self.emulator.cpus),
            "flash": self.flash.method,
            "baud": self.baud,
            "usb_ids": list(self.usb_ids),
            "ram_bytes": self.memory.ram.bytes if self.memory else None,
            "drivers": {name: device["driver"] for name, device in self.devices.items()},
        }


@functools.cache
def _validator(schema: Path) -> Any:
    import jsonschema

    return jsonschema.Draft202012Validator(json.loads(schema.read_text("utf-8")))


def load_board(name: str, directory: Path | None = None) -> Board:
    """The board of that name; UsageError names what exists, or the file and key that are wrong."""
    directory = directory or paths.boards_dir()
    path = directory / f"{name}.toml"
    if "/" in name or not path.is_file():
        known = ", ".join(_names(directory))
        raise UsageError(f"there is no board '{name}'", f"Boards: {known}. A new one is a file boards/NAME.toml.")
    return _read(path)


def with_memory(board: Board, ram_bytes: int) -> Board:
    """The same board with less memory, for firmware that keeps to it: to try a small board without having one.

    An emulated board whose firmware uses all of its memory gets no more than that either.
    """
    if board.memory is None:
        raise UsageError(f"{board.name} has no memory of its own", "Use --memory-limit there.")
    memory, emulator = board.memory, board.emulator
    used = memory.load_address - memory.ram.base + memory.stack_bytes + memory.fault_stack_bytes
    if ram_bytes % (1 << 20) != 0 or not used < ram_bytes <= memory.ram.bytes:
        raise UsageError(
            f"{board.name} cannot have {ram_bytes} bytes of memory",
            f"Give whole megabytes, at most {memory.ram.bytes >> 20}M.",
        )
    emulated = ram_bytes if emulator.memory_bytes == memory.ram.bytes else emulator.memory_bytes
    return replace(
        board,
        memory=replace(memory, ram=replace(memory.ram, bytes=ram_bytes)),
        emulator=replace(emulator, memory_bytes=emulated),
        data={**board.data, "memory": {**board.data["memory"], "ram_bytes": ram_bytes}},
        memory_label=f"{ram_bytes >> 20}M",
    )


def with_key(board: Board, path: Path) -> Board:
    """The same board with firmware that runs only what was signed by the owner of the public key in `path`."""
    from colibri_sdk.signing import PublicKey

    return replace(board, public_key=path.resolve(), key_label=PublicKey.load(path).label)


def list_boards(directory: Path | None = None) -> list[Board]:
    """All boards, by name."""
    directory = directory or paths.boards_dir()
    return [_read(directory / f"{name}.toml") for name in _names(directory)]


def _names(directory: Path) -> list[str]:
    return sorted(path.stem for path in directory.glob("*.toml"))


def _fail(path: Path, key: str, message: str) -> UsageError:
    return UsageError(
        f"{path}: {key}: {message}" if key else f"{path}: {message}",
        "boards/schema.json describes every key; docs/adding-a-board.md explains them.",
    )


def _read(path: Path) -> Board:
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _fail(path, "", f"not valid TOML: {error}") from error
    _check_schema(path, data)
    memory = _memory(path, data["memory"]) if "memory" in data else None
    if data["name"] != path.stem:
        raise _fail(path, "name", f"is '{data['name']}', but the file is called {path.name}")
    flash, emulator = dict(data["flash"]), dict(data["emulator"])
    if memory and emulator["kind"] == "qemu" and emulator["memory_bytes"] < memory.ram.bytes:
        raise _fail(path, "emulator.memory_bytes", "is less than memory.ram_bytes")
    return Board(
        name=data["name"],
        title=data["title"],
        description=data["description"],
        architecture=data["architecture"],
        baud=data["link"]["baud"],
        usb_ids=tuple(data["link"]["usb_ids"]),
        flash=Flash(**{key: _frozen(value) for key, value in flash.items()}),
        emulator=EmulatorSettings(**{key: _frozen(value) for key, value in emulator.items()}),
        memory=memory,
        path=path,
        data=data,
    )


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _check_schema(path: Path, data: Mapping[str, Any]) -> None:
    errors = list(_validator(path.parent / "schema.json").iter_errors(data))
    if errors:
        # The deepest error is the most telling one: a wrong key rather than "the table does not match".
        error = max(errors, key=lambda e: len(e.absolute_path))
        raise _fail(path, ".".join(map(str, error.absolute_path)), error.message)


def _memory(path: Path, table: Mapping[str, Any]) -> Memory:
    ram = Region("RAM", table["ram_base"], table["ram_bytes"])
    regions = tuple(Region(r["name"], r["base"], r["bytes"]) for r in table["device_regions"])
    if not ram.base <= table["load_address"] < ram.end:
        raise _fail(path, "memory.load_address", "lies outside the RAM")
    for i, region in enumerate(regions):
        for other in (ram, *regions[:i]):
            if region.base < other.end and other.base < region.end:
                raise _fail(path, f"memory.device_regions.{i}", f"'{region.name}' overlaps '{other.name}'")
    return Memory(ram, table["load_address"], table["stack_bytes"], table["fault_stack_bytes"], regions)
