# SPDX-License-Identifier: Apache-2.0
"""libcolibri through cffi: the engine's own plan, validation, self-test and checksums on the host.

The SDK computes nothing that the engine computes: it calls it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cffi import FFI

from colibri_sdk.engine.header import header_path, read_header
from colibri_sdk.engine.memory import MappedImage
from colibri_sdk.errors import BuildError, UsageError
from colibri_sdk.status import failure

KV_CHOICES = {"image": 0, "f32": 1, "f16": 2, "q8": 3}
_KV_NAMES = {value: name for name, value in KV_CHOICES.items()}


@dataclass(frozen=True)
class Region:
    """One part of the arena. `offset` counts from the arena's start; both in bytes."""

    name: str
    offset: int
    bytes: int


@dataclass(frozen=True)
class Plan:
    """The exact memory of an engine, in bytes (struct colibri_plan)."""

    arena_bytes: int
    image_bytes: int
    front_bytes: int
    resident_bytes: int
    expert_bytes: int
    active_bytes: int
    context: int
    batch: int
    max_text_bytes: int
    kv_format: str
    cache_slots: int
    slot_bytes: int
    regions: tuple[Region, ...]


@dataclass(frozen=True)
class SelftestReport:
    """Outcome of comparing kernels with the scalar reference (struct colibri_selftest_report)."""

    kernels: str
    cases: int
    failures: int
    failed: str
    failed_size: int

    @property
    def ok(self) -> bool:
        return self.failures == 0


class Library:
    """An open libcolibri. It has no state of its own; any number of engines may use it."""

    def __init__(self, path: Path) -> None:
        header = read_header(header_path().read_text("utf-8"))
        self.path = path
        self.constants = header.constants
        self.ffi = FFI()
        self.ffi.cdef(header.declarations)
        try:
            self.lib: Any = self.ffi.dlopen(str(path))
            # A library of another version lacks a function: better said now than in the middle of a call.
            for line in dir(self.lib):
                getattr(self.lib, line)
        except (OSError, AttributeError) as error:
            raise BuildError(
                f"{path} cannot be used as libcolibri: {error}",
                "Build it with `scons host`, or point COLIBRI_LIBRARY at a library of this version.",
            ) from error

    @classmethod
    def load(cls, path: Path | None = None) -> Library:
        """The library at `path`, or at $COLIBRI_LIBRARY, or the one of this checkout, which is built when necessary."""
        named = os.environ.get("COLIBRI_LIBRARY")
        if path is None and named:
            path = Path(named)
        if path is None:
            from colibri_sdk.build import build_host_library

            path = build_host_library()
        return cls(path)

    # --------------------------------------------------------------------------------------------------- questions

    def status_text(self, status: int) -> str:
        """The engine's sentence for a status code."""
        return self._string(self.lib.colibri_status_text(self.ffi.cast("colibri_status", status)))

    def kernels(self) -> list[str]:
        """Names of the kernel sets that this processor can run, the most preferred last."""
        names: list[str] = []
        while (name := self.lib.colibri_kernels_name(len(names))) != self.ffi.NULL:
            names.append(self._string(name))
        return names

    def plan(
        self,
        image: Path,
        *,
        context: int = 0,
        batch: int = 0,
        kv: str = "image",
        max_text: int = 0,
        cache_slots: int | None = None,
        arena_limit: int = 0,
    ) -> Plan:
        """The memory that an engine for `image` needs; zeros mean the defaults of colibri.h.

        With `cache_slots` experts are read on demand and each layer keeps so many; 0: as many as `arena_limit` allows.
        Raises ImageError for an inconsistent image, DeviceError when more than `arena_limit` bytes are needed, and
        UsageError for a wrong option or an unreadable file.
        """
        config, _keep = self.config(
            context=context, batch=batch, kv=kv, max_text=max_text, cache_slots=cache_slots, arena_limit=arena_limit
        )
        return self.plan_mapped(MappedImage(self.ffi, image), config)

    def plan_mapped(self, mapped: MappedImage, config: Any) -> Plan:
        """The same for an image that is mapped already."""
        plan, detail = self.ffi.new("struct colibri_plan *"), self.detail()
        self.check(
            self.lib.colibri_plan(mapped.pointer, mapped.bytes, config, plan, detail), detail, subject=mapped.path.name
        )
        regions = tuple(
            Region(self._string(region.name), region.offset, region.bytes)
            for region in plan.region[0 : plan.region_count]
        )
        return Plan(
            arena_bytes=plan.arena_bytes,
            image_bytes=plan.image_bytes,
            front_bytes=plan.front_bytes,
            resident_bytes=plan.resident_bytes,
            expert_bytes=plan.expert_bytes,
            active_bytes=plan.active_bytes,
            context=plan.context,
            batch=plan.batch,
            max_text_bytes=plan.max_text_bytes,
            kv_format=kv_name(plan.kv_format),
            cache_slots=plan.cache_slots,
            slot_bytes=plan.slot_bytes,
            regions=regions,
        )

    def validate(self, image: Path) -> None:
        """Everything about an image that can be checked without running it. Raises ImageError."""
        mapped, detail = MappedImage(self.ffi, image), self.detail()
        self.check(self.lib.colibri_validate(mapped.pointer, mapped.bytes, detail), detail, subject=image.name)

    def selftest(self, kernels: str | None = None) -> SelftestReport:
        """Compares one kernel set, or all that can run here, with the scalar reference.

        A difference is in the report; an unknown name raises DeviceError.
        """
        size = self.constants["COLIBRI_SELFTEST_BYTES"]
        align = self.constants["COLIBRI_ARENA_ALIGN"]
        memory = self.ffi.new("char[]", size + align)
        start = int(self.ffi.cast("uintptr_t", memory))
        report = self.ffi.new("struct colibri_selftest_report *")
        name = self.ffi.NULL if kernels is None else self.ffi.new("char[]", kernels.encode())
        status = self.lib.colibri_selftest(name, memory + (-start % align), size, report)
        if status != self.lib.COLIBRI_E_KERNELS_WRONG:
            self.check(status, None, subject=kernels or "the self-test")
        return SelftestReport(
            kernels=self._string(report.kernels),
            cases=report.cases,
            failures=report.failures,
            failed=self._string(report.failed),
            failed_size=report.failed_size,
        )

    def crc32(self, data: bytes, crc: int = 0) -> int:
        """The engine's CRC-32; start with 0."""
        return int(self.lib.colibri_crc32(crc, self.ffi.from_buffer(data), len(data)))

    # ---------------------------------------------------------------------------------------------------- plumbing

    def config(
        self,
        *,
        context: int = 0,
        batch: int = 0,
        kv: str = "image",
        max_text: int = 0,
        kernels: str | None = None,
        skip_content_check: bool = False,
        cache_slots: int | None = None,
        arena_limit: int = 0,
        prefetch: bool = False,
    ) -> tuple[Any, list[Any]]:
        """A struct colibri_config, and what must stay alive as long as it is used. `cache_slots` None: no storage."""
        if kv not in KV_CHOICES:
            raise UsageError(f"unknown KV cache format {kv!r}", f"Choose one of {', '.join(KV_CHOICES)}.")
        numbers = {"context": context, "batch": batch, "max_text": max_text, "cache_slots": cache_slots or 0}
        for name, value in {**numbers, "arena_limit": arena_limit}.items():
            if not 0 <= value < (2**32 if name in numbers else 2**64):
                raise UsageError(f"{name} = {value} is out of range", "0 means the default.")
        config = self.ffi.new("struct colibri_config *")
        config.context, config.batch, config.max_text_bytes = context, batch, max_text
        config.kv_format = KV_CHOICES[kv]
        config.skip_content_check = skip_content_check
        config.storage.depth = 0 if cache_slots is None else 1
        config.cache_slots, config.arena_limit, config.prefetch = cache_slots or 0, arena_limit, prefetch
        keep: list[Any] = []
        if kernels is not None:
            keep.append(self.ffi.new("char[]", kernels.encode()))
            config.kernels = keep[0]
        return config, keep

    def detail(self) -> Any:
        """An empty struct colibri_detail."""
        return self.ffi.new("struct colibri_detail *")

    def check(self, status: int, detail: Any, *, subject: str) -> None:
        """Raises the exception of a negative status; `subject` names what was worked on."""
        if status == self.lib.COLIBRI_OK:
            return
        where, got, wanted = ("", 0, 0) if detail is None else (self._string(detail.where), detail.got, detail.wanted)
        raise failure(int(status), self.status_text(status), subject=subject, where=where, got=got, wanted=wanted)

    def _string(self, pointer: Any) -> str:
        return bytes(self.ffi.string(pointer)).decode("utf-8", "replace")


def kv_name(value: int) -> str:
    """ "f32", "f16" or "q8" of an enum colibri_kv_format."""
    return _KV_NAMES.get(int(value), str(value))
