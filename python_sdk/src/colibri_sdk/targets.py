# SPDX-License-Identifier: Apache-2.0
"""Getting to a device that answers: a real one on a port, or an emulated board with an image on its card.

The command line and the tests both come through here, so what the tests boot is what a user boots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colibri_sdk import ports
from colibri_sdk.errors import ColibriError, NoDeviceError, TransferError, UsageError

if TYPE_CHECKING:
    from colibri_sdk.boards import Board
    from colibri_sdk.build import Firmware
    from colibri_sdk.device import Device, DeviceInfo
    from colibri_sdk.emulator import Emulator
    from colibri_sdk.store import StoreChoice

Log = Callable[[str], None]

# Longest time for an emulated board to boot, read its card (slowest: 1.3 MB/s) and answer.
EMULATOR_TIMEOUT_SECONDS = 120.0
# The same for a real device, which has booted before.
PORT_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class Target:
    """An open device and what is known about it. `board`, `firmware`, `emulator`, `card` only when it is emulated."""

    device: Device
    where: str
    board: Board | None = None
    firmware: Firmware | None = None
    emulator: Emulator | None = None
    card: Path | None = None


def image_for(model: Path, *, quant: str = "q8", log: Log | None = None, progress: Any = None) -> Path:
    """The image to use for `model`: itself, or, for a checkpoint, one packed now and kept in build/.

    A checkpoint is a directory or a GGUF file. The kept image is used again as long as the checkpoint's files and the
    packer are those that it was made from. Raises ImageError for a file of another kind.
    """
    from filelock import FileLock

    from colibri_sdk.convert.quantisation import parse
    from colibri_sdk.image.kinds import require_image
    from colibri_sdk.paths import build_dir

    if not is_checkpoint(model) and model.is_file():
        require_image(model)
        return model
    if not model.is_file() and not (model / "config.json").is_file():
        raise UsageError(
            f"{model} is neither an image nor a checkpoint",
            "Give a .colibri file, a .gguf file or a directory with config.json.",
        )
    images = build_dir() / "images"
    images.mkdir(parents=True, exist_ok=True)
    out = images / f"{model_name(model)}-{parse(quant).file_name}.colibri"
    origin = out.with_suffix(".origin")
    with FileLock(out.with_suffix(".lock")):
        wanted = fingerprint(model)
        if not out.is_file() or not origin.is_file() or origin.read_text() != wanted:
            from colibri_sdk.convert import pack

            if log:
                log(f"packing {model} as {quant}")
            origin.unlink(missing_ok=True)
            pack(model, out, quant=quant, progress=progress)
            origin.write_text(wanted)
    return out


def is_checkpoint(path: Path) -> bool:
    """A directory, or a GGUF file: what is packed before it is used."""
    return path.is_dir() or (path.is_file() and path.suffix == ".gguf")


def model_name(checkpoint: Path) -> str:
    """A checkpoint's name for files that are made of it: the directory's, or the file's without its ending."""
    return checkpoint.resolve().name.removesuffix(".gguf")


def fingerprint(checkpoint: Path) -> str:
    """A line for each file of a checkpoint and of the packer: path, bytes, time of its last change."""
    package = Path(__file__).resolve().parent
    own = [*checkpoint.resolve().iterdir()] if checkpoint.is_dir() else [checkpoint.resolve()]
    files = [*own, *(package / "convert").rglob("*.py"), *(package / "image").rglob("*.py")]
    lines = []
    for file in sorted(files):
        status = file.stat()
        lines.append(f"{file} {status.st_size} {status.st_mtime_ns}\n")
    return "".join(lines)


def storage_for(board: Board, firmware: Firmware, image: Path, directory: Path, *, log: Log | None = None) -> Path:
    """What the emulated board reads its model from: a card written in `directory`, or the image itself."""
    from colibri_sdk.flash import write_card

    if board.is_host:
        return image
    directory.mkdir(parents=True, exist_ok=True)
    card = directory / f"{board.name}.img"
    if log:
        log(f"writing {card.name}")
    write_card(board, firmware=firmware, model=image, to=card, boot_files=None)
    return card


@contextmanager
def emulated(
    board: Board,
    image: Path,
    *,
    directory: Path,
    firmware: Firmware | None = None,
    timeout: float = EMULATOR_TIMEOUT_SECONDS,
    log: Log | None = None,
    store: StoreChoice | None = None,
    **options: Any,
) -> Iterator[Target]:
    """Boots `board` with `image` on its card and waits until the model is loaded, as `store` says if it is given.
    `options` go to emulator.start.

    `directory` gets the card image; firmware is built when none is given.
    """
    from colibri_sdk import emulator
    from colibri_sdk.build import build

    say = log or (lambda _: None)
    if firmware is None:
        say(f"building the firmware of {board.name}")
        firmware = build(board, log=None)
    storage = storage_for(board, firmware, image, directory, log=log)
    card = storage if storage != image else None
    say(f"booting {board.name}")
    with (
        emulator.start(board, firmware=firmware, storage=storage, **options) as running,
        _device(running, firmware, timeout) as device,
    ):
        if store:
            store.configure(device)
        require_model(device, board.name)
        yield Target(device, f"{board.name} (emulated)", board, firmware, running, card)


def _device(running: Emulator, firmware: Firmware, timeout: float) -> Device:
    """The board's device. EmulatorError, with what both have said, when it does not answer."""
    from colibri_sdk.device import Device

    try:
        return Device.open(running, timeout=timeout, elf=firmware.elf)
    except (NoDeviceError, TransferError) as error:
        raise running.failure(f"{running.name} does not answer: {error.message}") from error


@contextmanager
def on_card(
    card: Path,
    *,
    timeout: float = EMULATOR_TIMEOUT_SECONDS,
    log: Log | None = None,
    public_key: Path | None = None,
) -> Iterator[Target]:
    """The host board with `card`, a card image or a real card, as its storage: what it writes lasts. With a public key
    it starts and takes what that key signed, for any board or for `host`; without, all that is whole.

    A card that is mounted or otherwise in use is refused. No model on the card is no error here."""
    from colibri_sdk import emulator
    from colibri_sdk.boards import load_board, with_key
    from colibri_sdk.build import build
    from colibri_sdk.flash import blockdev
    from colibri_sdk.flash.claim import claimed

    if card.is_block_device():
        blockdev.check(card, force=True)
    elif not card.is_file():
        raise UsageError(f"{card} is neither a card image nor a disk", "Write one with `colibri-sdk flash`.")
    board = load_board("host")
    if public_key is not None:
        board = with_key(board, public_key)
    with claimed(card):
        firmware = build(board, log=None)
        if log:
            log(f"starting {card.name} on this machine")
        with (
            emulator.start(board, firmware=firmware, arguments=["--block", str(card)]) as running,
            _device(running, firmware, timeout) as device,
        ):
            yield Target(device, f"{card} (on this machine)", board, firmware, running, card)


def require_model(device: Device, where: str) -> None:
    """Raises ImageError or DeviceError with the device's reason when it has no model."""
    reason = why_no_model(device.info(), where)
    if reason is not None:
        raise reason


def why_no_model(info: DeviceInfo, where: str) -> ColibriError | None:
    """The device's reason for having no model; None when it has one. `where` names the device."""
    from colibri_sdk.status import failure, status_name

    if info.state != "no model":
        return None
    return failure(
        info.status,
        f"no model: {status_name(info.status)}",
        subject=where,
        where=info.status_where,
        got=info.status_got,
        wanted=info.status_wanted,
    )


@contextmanager
def on_port(
    port: str | None, board: Board | None, *, timeout: float = PORT_TIMEOUT_SECONDS, baud: int | None = None
) -> Iterator[Target]:
    """Opens the device on `port`, or on the only port that `board` (or any board) matches."""
    from colibri_sdk.boards import list_boards
    from colibri_sdk.device import Device

    usb_ids = [usb_id for candidate in ([board] if board else list_boards()) for usb_id in candidate.usb_ids]
    chosen = ports.choose(port, usb_ids, what=f"a {board.name}" if board else "a board")
    ports.check_usable(chosen)
    with Device.open(chosen, timeout=timeout, baud=baud) as device:
        yield Target(device, chosen, board)
