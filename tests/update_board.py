# SPDX-License-Identifier: Apache-2.0
"""A board that takes updates, as far as a host can tell: PROTOCOL.md's requests 11 to 19 by its text, in Python.

It shares nothing with the SDK's codecs. `cut_after` breaks the line, `images` shows what lies in the slots.
"""

from __future__ import annotations

import hashlib
import struct
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from colibri_sdk.errors import ColibriError, DeviceError, DeviceFaultError, LinkLostError, LinkTimeoutError
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.status import Status

PAGE = 4096
EXPERT, MODEL = 1, 2
NONE, ON_TRIAL, CONFIRMED, WITHDRAWN, TRIES_USED, INVALID = range(6)


def refuse(status: Status, where: str = "", got: int = 0, wanted: int = 0) -> DeviceError:
    return DeviceError(status.name, "", status=status, where=where, got=got, wanted=wanted)


NAMES = dict(enumerate(("status", "begin", "data", "commit", "confirm", "rollback", "list", "copy", "crc"), 11))


@dataclass
class Open:
    """The update that is open."""

    kind: int
    target: bytearray
    page: bytes
    update: bytes = b""
    key: bytes = b""  # what BEGIN named: the same again resumes


@dataclass
class Board:
    """`slots` 2: a volume; 1: an image without one."""

    image: Path
    slots: int = 2
    slot_bytes: int = 1 << 20
    writable: bool = True
    counter: int = 0
    name: str = "fake"
    crashes: int = 0  # starts of a trial that end in a fault
    hangs: int = 0  # those that are silent first
    silence: type[ColibriError] = LinkTimeoutError
    refuses_trial: Status | None = None  # why a trial does not load
    selftest_ok: bool = True
    probe_sha256: str = ""
    cut_after: int | None = None  # UPDATE_DATA until the line breaks
    asked: Counter[str] = field(default_factory=Counter)
    received: int = 0  # bytes of UPDATE_DATA
    quantisation: str = "q8"
    copied: int = 0
    begun: bytes = b""  # the struct col_update of the last update of an expert
    refusals: list[DeviceError] = field(default_factory=list)  # of UPDATE_BEGIN, before it works
    without_model: Status | None = None  # why nothing starts
    working: int = 0  # so many questions after the state are answered with "at work"

    def __post_init__(self) -> None:
        self.images = [bytearray(self.image.read_bytes()).ljust(self.slot_bytes, b"\0"), bytearray(self.slot_bytes)]
        self.active = self.running = 1
        self.trial = self.tries = self.tries_left = self.last_result = self.last_status = 0
        self.open: Open | None = None
        self.hung = False
        self.experts = self._directory(0)
        self.sequence = 1
        self.swaps = 0

    # ------------------------------------------------------------------------------------------------ what it holds

    def _parsed(self, slot: int) -> ImageFile | None:
        data = self.images[slot]
        if data[:8] != b"COLIBRI\x1a":
            return None
        (size,) = struct.unpack_from("<Q", data, 16)
        with tempfile.NamedTemporaryFile(suffix=".colibri") as file:
            file.write(data[:size])
            file.flush()
            return ImageFile(Path(file.name))

    def _directory(self, slot: int) -> list[list[Any]]:
        """[layer, expert, generation, crc, offset, bytes, digest] each."""
        image = self._parsed(slot)
        if image is None:
            return []
        with image:
            places = [image.place(index) for index in range(len(image.experts))]
            return [
                [int(e["layer"]), int(e["expert"]), p.generation, p.crc32, p.offset, p.size, p.digest]
                for e, p in zip(image.experts, places, strict=True)
            ]

    def image_id(self, slot: int) -> bytes:
        return bytes(self.images[slot][32:48]) if self.images[slot][:8] == b"COLIBRI\x1a" else bytes(16)

    # ------------------------------------------------------------------------------------------- as a Device appears

    def request(self, kind: int, body: bytes = b"", *, meanwhile: Callable[[], object] | None = None) -> bytes:
        self.asked[NAMES[kind]] += 1
        if meanwhile is not None:
            self.working = 1
            meanwhile()
            self.working = 0
        return bytes(getattr(self, f"_{NAMES[kind]}")(body))

    def requests(self, kind: int, bodies: Iterable[bytes], *, ahead: int) -> Iterator[bytes]:
        for body in bodies:
            yield self.request(kind, body)

    def info(self) -> SimpleNamespace:
        slot = self.running - 1
        (size,) = struct.unpack_from("<Q", self.images[slot].ljust(24, b"\0"), 16)
        return SimpleNamespace(
            image_id=self.image_id(slot).hex(),
            image_bytes=size,
            vocab=64,
            board=self.name,
            state="ready" if self.without_model is None else "no model",
            status=self.without_model or 0,
            status_where="unsigned",
            status_got=0,
            status_wanted=1,
            model_architecture="MixtralForCausalLM",
            quantisation=self.quantisation,
            hidden=64,
            has_key=False,
        )

    def selftest(self) -> SimpleNamespace:
        return SimpleNamespace(ok=self.selftest_ok, kernels="fake", cases=5, failed="dot", failed_size=32)

    def generate(self, ids: list[int], **_: Any) -> SimpleNamespace:
        return SimpleNamespace(result=SimpleNamespace(generated_tokens=4, logits_sha256=self.probe_sha256))

    def reboot(self) -> None:
        if self.hung:
            self.hung = False
            raise DeviceFaultError("the watchdog fired")
        self.open = None
        self.running = self.active
        if self.trial and self.tries_left:
            self.tries_left -= 1
            if self.refuses_trial is not None:
                self._end_trial(INVALID, self.refuses_trial)
                return
            self.running = self.trial
            if self.crashes:
                self.crashes -= 1
                raise DeviceFaultError("the processor trapped")
            if self.hangs:
                self.hangs -= 1
                self.hung = True
                raise self.silence("nothing is heard")
        elif self.trial:
            self._end_trial(TRIES_USED, 0)
        self.experts = self._directory(self.running - 1)

    def _end_trial(self, result: int, status: int) -> None:
        self.trial, self.last_result, self.last_status = 0, result, status

    # ------------------------------------------------------------------------------------------------------ requests

    def _status(self, body: bytes) -> bytes:
        assert body == b""
        slots = self.slots if self.images[0] else 0
        kind = self.open.kind if self.open else 0
        volume = self.slots == 2
        places = [self.running, self.active, self.trial] if volume else [0, 0, 0]
        state = 2 if self.working else int(self.open is not None)
        head = struct.pack("<8B", state, kind, slots, self.writable, *places, 0)
        head += struct.pack("<IIIi", self.tries_left, self.tries, self.last_result, self.last_status)
        head += struct.pack("<6I", self.swaps, 14, 1, 0, 0, 0)
        target = len(self.open.target) if self.open else 0
        work = (100 // self.working, 100) if self.working else (0, 0)
        self.working = max(0, self.working - 1)
        head += struct.pack("<6Q", self.sequence, self.counter, target, *work, self.slot_bytes)
        return head + self.image_id(0) + self.image_id(1)

    def _begin(self, body: bytes) -> bytes:
        kind, tries = struct.unpack_from("<II", body)
        if self.refusals:
            raise self.refusals.pop()
        if not self.writable:
            raise refuse(Status.E_READ_ONLY)
        if self.open is not None and self.open.key == body:
            return struct.pack("<QQB7x", len(self.open.target), 0, 1)
        return self._begin_expert(body) if kind == EXPERT else self._begin_model(body, tries)

    def _begin_expert(self, body: bytes) -> bytes:
        update = self.begun = body[8:]
        assert len(update) == 256
        _, size, layer, expert, generation, _ = struct.unpack_from("<QQIIII", update)
        entry = self._entry(layer, expert)
        if size != entry[5]:
            raise refuse(Status.E_IMAGE_EXPERT, "bytes", size, entry[5])
        if update[72:88] != self.image_id(self.running - 1):
            raise refuse(Status.E_UPDATE_BASE, "image")
        if generation <= entry[2]:
            raise refuse(Status.E_COUNTER, "generation", generation, entry[2] + 1)
        if self.open is None or self.open.kind != EXPERT:  # what an interrupted attempt has left stays on the medium
            self.spare = getattr(self, "spare", bytearray(size))
        self.open = Open(EXPERT, self.spare, b"", update, body)
        return struct.pack("<QQB7x", size, 99 * PAGE, 0)

    def _begin_model(self, body: bytes, tries: int) -> bytes:
        page, signature = body[8 : 8 + PAGE], body[8 + PAGE :]
        assert len(signature) == 256 and signature[:8] == b"COLISIG\x1a"
        if self.slots != 2:
            raise refuse(Status.E_UPDATE_PLACE, "slot")
        if self.trial:
            raise refuse(Status.E_UPDATE_STATE, "trial")
        if self.running != self.active:
            raise refuse(Status.E_UPDATE_STATE, "running")
        (counter,) = struct.unpack_from("<Q", signature, 16)
        if counter < self.counter:
            raise refuse(Status.E_COUNTER, "counter", counter, self.counter)
        (size,) = struct.unpack_from("<Q", page, 16)
        if size > self.slot_bytes:
            raise refuse(Status.E_UPDATE_PLACE, "slot", size, self.slot_bytes)
        slot = self.images[2 - self.active]
        slot[:PAGE] = bytes(PAGE)
        self.tries = tries or 3
        self.open = Open(MODEL, slot, page, key=body)
        self.model_bytes = size
        return struct.pack("<QQB7x", size, 0, 0)

    def _data(self, body: bytes) -> bytes:
        if self.cut_after is not None:
            if self.cut_after == 0:
                self.cut_after = None
                raise LinkLostError("the line broke", "Check the cable.")
            self.cut_after -= 1
        (offset,) = struct.unpack_from("<Q", body)
        data = body[8:]
        target = self._target(offset, len(data))
        assert len(data) % 512 == 0 and 0 < len(data) <= 24 * 512
        target[offset : offset + len(data)] = data
        self.received += len(data)
        return b""

    def _target(self, offset: int, size: int) -> bytearray:
        if self.open is None:
            raise refuse(Status.E_UPDATE_STATE)
        limit = self.model_bytes if self.open.kind == MODEL else len(self.open.target)
        if offset % 512 or offset + size > limit or (self.open.kind == MODEL and offset < PAGE):
            raise refuse(Status.E_UPDATE_STATE, "offset", offset, limit)
        return self.open.target

    def _copy(self, body: bytes) -> bytes:
        source, target, size = struct.unpack("<QQQ", body)
        data = self._running_bytes(source, size)
        self._target(target, size)[target : target + size] = data
        self.copied += size
        return struct.pack("<I", zlib.crc32(data))

    def _running_bytes(self, offset: int, size: int) -> bytes:
        image = self.images[self.running - 1]
        if offset + size > struct.unpack_from("<Q", image, 16)[0]:
            raise refuse(Status.E_UPDATE_STATE, "offset")
        return bytes(image[offset : offset + size])

    def _crc(self, body: bytes) -> bytes:
        what, _, offset, size = struct.unpack("<IIQQ", body)
        data = self._running_bytes(offset, size) if what else self._target(offset, size)[offset : offset + size]
        return struct.pack("<I", zlib.crc32(data))

    def _commit(self, body: bytes) -> bytes:
        assert body == b"" and self.open is not None
        update, self.sequence = self.open, self.sequence + 1
        if update.kind == EXPERT:
            _, size, layer, expert, generation, crc = struct.unpack_from("<QQIIII", update.update)
            digest = hashlib.blake2b(update.target, digest_size=32).digest()
            if digest != update.update[88:120] or zlib.crc32(update.target) != crc:
                raise refuse(Status.E_EXPERT_CHECKSUM, "digest")
            self._entry(layer, expert)[2:7] = [generation, crc, 99 * PAGE, size, digest]
            self.swaps += 1
        else:
            self._check_model(update)
            update.target[:PAGE] = update.page
            self.trial, self.tries_left, self.last_result = 3 - self.active, self.tries, ON_TRIAL
        self.open = None
        return struct.pack("<Q", self.sequence)

    def _check_model(self, update: Open) -> None:
        whole = update.page + bytes(update.target[PAGE : self.model_bytes])
        with tempfile.NamedTemporaryFile(suffix=".colibri") as file:
            file.write(whole)
            file.flush()
            with ImageFile(Path(file.name)) as image:
                wrong = [check.name for check in image.verify() if not check.ok]
        if wrong:
            raise refuse(Status.E_IMAGE_CHECKSUM, wrong[0])

    def _confirm(self, body: bytes) -> bytes:
        assert body == b""
        if not self.trial or self.running != self.trial:
            raise refuse(Status.E_UPDATE_STATE, "running" if self.trial else "trial")
        self.active = self.trial
        self._end_trial(CONFIRMED, 0)
        return struct.pack("<B7xQ", self.active, self.counter)

    def _rollback(self, body: bytes) -> bytes:
        assert body == b""
        was_open, was_trial = self.open is not None, bool(self.trial)
        self.open = None
        if was_trial:
            self._end_trial(WITHDRAWN, 0)
        return struct.pack("<BBB5x", was_open, was_trial, self.running != self.active)

    def _entry(self, layer: int, expert: int) -> list[Any]:
        for entry in self.experts:
            if entry[:2] == [layer, expert]:
                return entry
        raise refuse(Status.E_IMAGE_EXPERT, "expert", expert)

    def _list(self, body: bytes) -> bytes:
        """Two at a time, so that a host must ask more than once."""
        (first,) = struct.unpack("<I", body)
        here = self.experts[first : first + 2]
        entries = [struct.pack("<IIIIQQ", *entry[:6]) + entry[6] for entry in here]
        return struct.pack("<II", len(self.experts), len(here)) + b"".join(entries)
