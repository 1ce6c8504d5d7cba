# SPDX-License-Identifier: Apache-2.0
"""Device and the host board, with the fake engine, in real time: hosts that misbehave, crashes and restarts."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from colibri_sdk.device import Device
from colibri_sdk.errors import DeviceError, DeviceFaultError
from colibri_sdk.link.frames import Deframer, Frame, Kind, encode
from colibri_sdk.link.messages import MalformedError, Type
from colibri_sdk.status import Status
from link.by_hand import ByHand, generate_body
from link.host_process import Start, listening

# ----------------------------------------------------------------------------------------------- hosts that misbehave


def test_requests_that_are_wrong_get_one_error_each(line: socket.socket) -> None:
    host = ByHand(line)
    host.open()
    good = generate_body(tokens=1)
    assert host.status_of(Type.GENERATE, good) == 0
    for cut in range(len(good)):
        assert host.status_of(Type.GENERATE, good[:cut]) == Status.E_REQUEST
    assert host.status_of(Type.GENERATE, good + b"x") == Status.E_REQUEST
    assert host.status_of(Type.GENERATE, b"\xff\xff" + good[2:]) == Status.E_REQUEST
    for kind in (0, 21, 40, 63):
        assert host.status_of(kind, b"any") == Status.E_REQUEST_UNKNOWN
    assert host.status_of(Type.HELLO, b"x") == Status.E_REQUEST
    assert host.status_of(Type.STATS, b"") == Status.E_REQUEST
    assert host.status_of(Type.STATS, b"\x02") == Status.E_REQUEST
    assert host.status_of(Type.CANCEL, b"\0") == Status.E_REQUEST
    assert host.status_of(Type.PROVOKE, struct.pack("<I", 4)) == Status.E_REQUEST
    assert host.status_of(Type.LOGITS, struct.pack("<III", 2, 1, 5)) == Status.E_REQUEST
    assert host.status_of(Type.LOGITS, struct.pack("<II", 1, 0xFFFFFFFF)) == Status.E_REQUEST
    assert host.status_of(Type.TOKENIZE, b"\x01" + b"x" * 20000) == Status.E_REQUEST
    assert host.status_of(Type.TOKENIZE, b"\x00" + b"x" * 4096) == Status.E_CONTEXT_FULL
    assert host.status_of(Type.INFO, b"") == 0


def test_messages_that_are_no_requests_are_dropped(line: socket.socket) -> None:
    host = ByHand(line)
    host.open()
    host.send(Type.INFO, b"", request=0)
    host.send(Type.TOKEN, b"", request=1)
    host.send(Type.RESULT, b"", request=2)
    host.put(Kind.DATA, b"\x02\0\0", seq=host.seq)
    host.seq += 1
    host.send(Type.INFO, b"", request=3)
    assert set(host.answers({3})) == {3}


@pytest.mark.parametrize("how", [{"version": 1, "oldest": 1, "newest": 1}, {"oldest": 3, "newest": 9}])
def test_another_protocol_version_is_told(line: socket.socket, how: dict[str, int]) -> None:
    host = ByHand(line)
    host.syn(**how)
    frames = (frame for frame in host.frames() if frame.kind == Kind.RST and frame.session == host.session)
    assert struct.unpack("<iBB", next(frames).payload) == (Status.E_LINK_VERSION, 2, 2)
    assert host.open().session == host.session  # and with the right one it works


def test_a_device_of_another_version_is_named() -> None:
    ours, theirs = socket.socketpair()
    refusal = Frame(Kind.RST, session=0, payload=struct.pack("<iBB", Status.E_LINK_VERSION, 3, 4))

    def refuse() -> None:
        for frame in Deframer().feed(theirs.recv(65536)):
            assert isinstance(frame, Frame)
            theirs.sendall(encode(Frame(Kind.RST, session=frame.session, payload=refusal.payload, version=3)))

    worker = threading.Thread(target=refuse)
    worker.start()
    with pytest.raises(DeviceError, match="versions 3 to 4") as raised:
        Device.open(ours)
    assert raised.value.status == Status.E_LINK_VERSION
    worker.join(10)
    theirs.close()


def test_unknown_sessions_are_reset(line: socket.socket) -> None:
    host = ByHand(line)
    host.put(Kind.PING, session=77)
    frames = (frame for frame in host.frames() if frame.kind == Kind.RST and frame.session == 77)
    assert next(frames).payload[:4] == b"\0\0\0\0"
    host.open()
    host.put(Kind.DATA, b"x" * 20, session=78)
    frames = (frame for frame in host.frames() if frame.kind == Kind.RST and frame.session == 78)
    next(frames)
    assert host.status_of(Type.INFO, b"") == 0


def test_a_flood_of_garbage(line: socket.socket) -> None:
    """Half a megabyte of noise with and without delimiters, in the middle of a session: the next request works."""
    host = ByHand(line)
    host.open()
    noise = np.random.default_rng(7).integers(0, 256, 1 << 19, dtype=np.uint8).tobytes()

    def flood() -> None:
        line.sendall(noise)
        line.sendall(b"\xaa" * 100000)
        line.sendall(b"\0" * 1000)
        host.put(Kind.PING)

    worker = threading.Thread(target=flood)
    worker.start()
    host.wait_for(Kind.ACK)
    worker.join(20)
    assert host.status_of(Type.INFO, b"") == 0


# ------------------------------------------------------------------------------------------------ crashes and restarts


@pytest.mark.parametrize(("kind", "status"), [(1, Status.E_TRAP), (2, Status.E_TRAP), (3, Status.E_WATCHDOG)])
def test_a_fault_is_reported_and_survived(device: Device, kind: int, status: Status) -> None:
    with pytest.raises(DeviceFaultError) as raised:
        device.provoke_fault(kind)
    error = raised.value
    assert error.status == status
    assert {"pc", "sp", "cause", "address"} <= set(error.registers)
    expected = "answer_provoke" if kind == 3 else "hal_provoke_fault"
    assert re.match(rf"{expected}(\+0x[0-9a-f]+)? \((service|faults)\.c:\d+\)", error.symbol)
    assert "lost: request" in error.message
    device.reboot()
    assert device.generate("x", max_tokens=2, ignore_eos=True).result.generated_tokens == 2


def test_a_fault_ends_a_generation(device: Device) -> None:
    generation = device.generate("hello", ignore_eos=True, slide=True)  # without end
    iterator = iter(generation)
    next(iterator)
    with pytest.raises(DeviceFaultError):
        device.provoke_fault(2)
    with pytest.raises(DeviceFaultError):
        for _ in iterator:
            pass
    with pytest.raises(DeviceFaultError):
        _ = generation.result


def test_a_crashed_device_says_so_to_whoever_comes(run_host: Start, tmp_path: Path) -> None:
    path = tmp_path / "line"
    listening(run_host("--listen", f"unix:{path}", stdout=subprocess.PIPE))
    with Device.open(f"unix:{path}") as device, pytest.raises(DeviceFaultError):
        device.provoke_fault(1)
    with pytest.raises(DeviceFaultError):
        Device.open(f"unix:{path}")
    with Device.open(f"unix:{path}", reboot_crashed=True) as device:
        assert device.info().state == "ready"
    with Device.open(f"unix:{path}") as device:
        assert device.info().state == "ready"


def test_reboot(device: Device) -> None:
    assert device.generate("x", max_tokens=3).result.generated_tokens > 0
    device.reboot()
    assert device.stats().tokens == 0
    assert device.info().state == "ready"


class Between:
    """Sits on the line of a device that works, and passes frames on."""

    def __init__(self, device: socket.socket) -> None:
        self.host_end, self._host = socket.socketpair()
        self._device = device
        for ends in ((self._host, self._from_host), (device, self._from_device)):
            threading.Thread(target=self._relay, args=ends, daemon=True).start()

    def _from_host(self, frame: Frame) -> None:
        self._device.sendall(encode(frame))

    def _from_device(self, frame: Frame) -> None:
        self._host.sendall(encode(frame))

    @staticmethod
    def _relay(source: socket.socket, take: Callable[[Frame], None]) -> None:
        deframer = Deframer()
        with contextlib.suppress(OSError):  # the other one has hung up
            while data := source.recv(65536):
                for frame in deframer.feed(data):
                    assert isinstance(frame, Frame)
                    take(frame)


class CrashesWhenItIsUp(Between):
    """Plays a device that crashes just after it has taken a session."""

    def __init__(self, device: socket.socket) -> None:
        self._crashing = self._crashed = False
        self.rebooted = 0
        super().__init__(device)

    def crash_next_session(self) -> None:
        self._crashing = True

    @staticmethod
    def _report() -> bytes:
        body = struct.pack("<IIQQQQQII", 1, 0, 0x1234, 0, 0, 0, 0, 0, 0) + b"\4\0fake"
        return encode(Frame(Kind.FAULT, payload=body))

    def _from_host(self, frame: Frame) -> None:
        if not self._crashed:
            self._device.sendall(encode(frame))
        elif frame.kind == Kind.SYN:
            self._host.sendall(self._report())
        elif frame.kind == Kind.REBOOT:
            self.rebooted += 1
            self._crashed = False

    def _from_device(self, frame: Frame) -> None:
        if self._crashing and frame.kind == Kind.SYN_ACK:
            self._crashing, self._crashed = False, True
            self._host.sendall(encode(frame) + self._report())  # together: no request comes in between
        elif not self._crashed:
            self._host.sendall(encode(frame))


def test_a_crash_between_the_session_and_its_first_request(line: socket.socket) -> None:
    """It was told as "there is no session", and the next restart was asked for in the way of devices that work."""
    crashing = CrashesWhenItIsUp(line)
    with Device.open(crashing.host_end) as device:
        crashing.crash_next_session()
        with pytest.raises(DeviceFaultError, match="0x1234"):
            device.reboot()
        device.reboot()
        assert crashing.rebooted >= 1  # again where the host has read a report late: it may be a new one
        assert device.generate("x", max_tokens=2, ignore_eos=True).result.generated_tokens == 2


class LosesAnswers(Between):
    """A line that swallows what the device says in a session, from a moment on and until the next session."""

    losing = False

    def _from_device(self, frame: Frame) -> None:
        self.losing = self.losing and frame.kind not in (Kind.RST, Kind.SYN_ACK)
        if not self.losing:
            super()._from_device(frame)


def test_a_restart_whose_answer_is_lost_is_a_restart(line: socket.socket) -> None:
    """The device waits a second for the acknowledgement, then it restarts all the same."""
    losing = LosesAnswers(line)
    with Device.open(losing.host_end) as device:
        assert device.generate("x", max_tokens=3).result.generated_tokens > 0
        losing.losing = True
        device.reboot()
        assert not losing.losing
        assert device.stats().tokens == 0


class CutsAMessage(Between):
    """Plays a device whose next message is too short to be one. What is sent again, as its ACK is late, is none."""

    cutting = False
    _session, _next = 0, 0

    def _from_device(self, frame: Frame) -> None:
        if frame.session != self._session:
            self._session, self._next = frame.session, 0
        if frame.kind in (Kind.DATA, Kind.MORE) and frame.seq == self._next:
            self._next = (self._next + 1) % 256
            if self.cutting and frame.kind == Kind.DATA:
                self.cutting = False
                frame = replace(frame, payload=frame.payload[:3])
        super()._from_device(frame)


def test_what_cannot_be_read_ends_the_session(line: socket.socket) -> None:
    """Its request went on in the device, and all others were refused meanwhile."""
    cutting = CutsAMessage(line)
    with Device.open(cutting.host_end) as device:
        generation = device.generate("x", ignore_eos=True, slide=True)  # without end
        cutting.cutting = True
        with pytest.raises(MalformedError, match="only 3 bytes"):
            for _ in generation:
                pass
        assert device.generate("x", max_tokens=2, ignore_eos=True).result.generated_tokens == 2
        cutting.cutting = True
        with pytest.raises(MalformedError, match="only 3 bytes"):
            device.info()
        device.reboot()  # waits for the end of a session
        assert device.stats().tokens == 0
