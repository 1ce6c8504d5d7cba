# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share: which device, and how to sample."""

from __future__ import annotations

import contextlib
import functools
import math
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from colibri_sdk.cli import output
from colibri_sdk.errors import ColibriError, DeviceError, ImageError, UsageError

if TYPE_CHECKING:
    from colibri_sdk.boards import Board
    from colibri_sdk.device import Device
    from colibri_sdk.store import StoreChoice
    from colibri_sdk.targets import Target

F = TypeVar("F", bound=Callable[..., Any])


class FiniteRange(click.FloatRange):
    """A range of numbers; click takes nan for one, and inf where no end is given."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no number that can be used.", param, ctx)
        return number


# The longest --timeout, 11 days: the system's waits end somewhere.
MOST_SECONDS = 1_000_000
# What a request can count.
COUNT = click.IntRange(0, 2**32 - 1)

KV_FORMATS = ("f32", "f16", "q8")


def _plan(_context: click.Context, _option: click.Parameter, value: str) -> str:
    """A wrong plan is refused before anything else is done."""
    from colibri_sdk.convert.quantisation import parse

    parse(value)
    return value


quant_option = click.option(
    "--quant",
    metavar="PLAN",
    default="q8",
    show_default=True,
    callback=_plan,
    help="Number formats of the weights: q8, q4, i8, f16, f32, or a plan like q8,experts=q4.",
)


def prompts_option(*, required: bool) -> Callable[[F], F]:
    """--prompts FILE, as colibri_sdk.profiling.prompts reads it."""
    return click.option(
        "--prompts",
        required=required,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help='A prompt on each line; in a .jsonl file {"prompt": TEXT} or {"ids": [NUMBERS]}.',
    )


def _all(options: list[Callable[[F], F]]) -> Callable[[F], F]:
    return lambda function: functools.reduce(lambda f, option: option(f), reversed(options), function)


def size(_context: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    """For options in bytes: 4096, 512K, 64M."""
    from colibri_sdk.store import parse_size

    return None if value is None else parse_size(value)


memory_option = click.option(
    "--memory",
    metavar="SIZE",
    callback=size,
    help="Firmware for an emulated board with less memory, e.g. 64M.",
)


public_key_option = click.option(
    "--public-key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Firmware that runs only what this key's owner signed (`colibri-sdk keys`).",
)


signing_key_option = click.option(
    "--key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Private key to sign with, for a board that was built with its public half (`colibri-sdk keys`).",
)


def device_options(function: F) -> F:
    """--port, --board, --model, --quant, --cpu, --memory, --public-key, --baud, --timeout: see `open_target`."""
    return _all(
        [
            click.option("--port", "-p", help="Serial port, socket://HOST:PORT or unix:PATH. Default: $COLIBRI_PORT."),
            click.option("--board", "-b", "board_name", help="Board; with an image it is emulated."),
            click.option("--model", "-m", type=click.Path(exists=True, path_type=Path), help="Image or checkpoint."),
            quant_option,
            click.option("--cpu", help="Processor model of the emulated board, where it has a choice."),
            memory_option,
            public_key_option,
            click.option("--baud", type=int, help="Speed of the real device's serial line. Default: 115200."),
            click.option(
                "--timeout",
                type=FiniteRange(0, MOST_SECONDS, min_open=True),
                help="Longest wait, in seconds. Default: 30; for an emulated board 120.",
            ),
        ]
    )(function)


def sampling_options(function: F) -> F:
    """The request's parameters, named as Device.generate names them."""
    return _all(
        [
            click.option("--max-tokens", type=COUNT, default=0, help="Longest answer; 0: what fits."),
            click.option("--temperature", type=FiniteRange(0, 100), default=0.0, help="0: always the likeliest."),
            click.option("--top-k", type=COUNT, default=0, help="Choose among that many; 0: all."),
            click.option("--top-p", type=FiniteRange(0, 1), default=0.0, help="... up to this probability; 0: all."),
            click.option("--repetition-penalty", type=FiniteRange(0), default=0.0, help="> 1 avoids repeating."),
            click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, help="Of the random numbers."),
            click.option("--stop", multiple=True, help="Text that ends the answer; up to four times."),
            click.option("--slide", is_flag=True, help="Forget the middle of a full context and go on, not end."),
            click.option("--slide-keep", type=click.IntRange(0, 65535), default=0, help="Tokens that --slide keeps."),
        ]
    )(function)


def _slots(_context: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    if value is None or value == "auto":
        return None if value is None else 0
    if not re.fullmatch("[0-9]{1,10}", value) or not 1 <= int(value) < 2**32:
        raise UsageError(
            f"--cache-slots takes a number from 1 on or auto, not '{value}'",
            "`colibri-sdk plan IMAGE --profile TRACE` says what each number would read.",
        )
    return int(value)


def store_options(function: F) -> F:
    """How the device reaches the experts; `take_store` makes a StoreChoice of them."""
    return _all(
        [
            click.option(
                "--store",
                type=click.Choice(["auto", "memory", "block"]),
                help="Experts in memory, or read from the card when they are needed. Default: memory if all fits.",
            ),
            click.option(
                "--cache-slots",
                metavar="N|auto",
                callback=_slots,
                help="With --store block: experts that each layer keeps; auto: as many as the memory takes.",
            ),
            click.option("--prefetch", is_flag=True, help="With --store block: guess the next layer's experts."),
            click.option(
                "--memory-limit",
                metavar="SIZE",
                callback=size,
                help="Memory for image, arena and prompt, e.g. 64M. Default: what the board has.",
            ),
        ]
    )(function)


STORE_NAMES = ("store", "cache_slots", "prefetch", "memory_limit")


def take_store(values: dict[str, Any]) -> StoreChoice | None:
    """Moves the store options out of a command's keyword arguments. None when none of them is given."""
    from colibri_sdk.store import StoreChoice

    store, slots, prefetch, limit = take(STORE_NAMES, values).values()
    if store == "memory" and (slots is not None or prefetch):
        raise UsageError(
            "--cache-slots and --prefetch are about experts that are read when they are needed, --store memory is not",
            "Leave --store out, or say --store block.",
        )
    if store is None and slots is None and not prefetch and limit is None:
        return None
    return StoreChoice(
        store=store or ("block" if slots is not None or prefetch else "auto"),
        cache_slots=slots or 0,
        prefetch=prefetch,
        memory_limit=limit or 0,
    )


SAMPLING_NAMES = (
    *("max_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "seed"),
    *("stop", "slide", "slide_keep"),
)
DEVICE_NAMES = ("port", "board_name", "model", "quant", "cpu", "memory", "public_key", "baud", "timeout")


def take(names: tuple[str, ...], values: dict[str, Any]) -> dict[str, Any]:
    """Moves the named options out of a command's keyword arguments."""
    return {name: values.pop(name) for name in names}


def chosen_board(name: str, *, memory: int | None = None, public_key: Path | None = None) -> Board:
    """The board of that name, with so much memory and trusting that key where they are given."""
    from colibri_sdk.boards import load_board, with_key, with_memory

    board = load_board(name)
    if memory is not None:
        board = with_memory(board, memory)
    return board if public_key is None else with_key(board, public_key)


def _configure(device: Device, store: StoreChoice) -> None:
    """As `store` says. Where that cannot be, the device would answer nobody until its next start or choice: so it gets
    the one of a start."""
    try:
        store.configure(device)
    except (DeviceError, ImageError):
        with contextlib.suppress(ColibriError):  # of the two errors the first says what is wrong
            device.configure()
            output.note("the device runs its model as after a start again")
        raise


@contextmanager
def open_target(
    *,
    port: str | None = None,
    board_name: str | None = None,
    model: Path | None = None,
    quant: str = "q8",
    cpu: str | None = None,
    memory: int | None = None,
    public_key: Path | None = None,
    baud: int | None = None,
    timeout: float | None = None,
    store: StoreChoice | None = None,
) -> Iterator[Target]:
    """The device that the options mean, set up anew as `store` says.

    An image means an emulated board (--board, default: the host board, this machine); no image means a real one on
    --port, $COLIBRI_PORT or the only port that matches.
    """
    from colibri_sdk import targets
    from colibri_sdk.boards import load_board

    limit = {} if timeout is None else {"timeout": timeout}
    if model is None:
        for option, value in (("--cpu", cpu), ("--memory", memory), ("--public-key", public_key)):
            if value is not None:
                raise UsageError(
                    f"{option} is for emulated boards", f"Give an image with --model, or leave {option} out."
                )
        board = load_board(board_name) if board_name else None
        with targets.on_port(port, board, baud=baud, **limit) as target:
            if store:
                _configure(target.device, store)
            yield target
        return
    if port:
        raise UsageError(
            "--port is a real device, an image means an emulated board",
            "Leave one of the two out. To put an image on a real card use `colibri-sdk flash`.",
        )
    if baud is not None:
        raise UsageError(
            "--baud is for real devices, an image means an emulated board, whose line has no speed",
            "Leave --baud out, or leave the image out and name a device with --port.",
        )
    board = chosen_board(board_name or "host", memory=memory, public_key=public_key)
    with output.Progress("packing") as progress:
        image = targets.image_for(model, quant=quant, log=output.note, progress=progress)
    with tempfile.TemporaryDirectory(prefix="colibri-") as scratch:
        options: dict[str, Any] = {**limit, **({"cpu": cpu} if cpu else {})}
        with targets.emulated(board, image, directory=Path(scratch), log=output.note, store=store, **options) as target:
            yield target


@contextmanager
def open_model(**values: Any) -> Iterator[Target]:
    """The same of a device that is to have a model; of one that has none, its reason is the error."""
    from colibri_sdk.targets import require_model

    with open_target(**values) as target:
        require_model(target.device, target.where)
        yield target
