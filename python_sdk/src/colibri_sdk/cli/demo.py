# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk demo: the whole way from a checkpoint to answers of an emulated board."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from colibri_sdk.cli import options, output
from colibri_sdk.cli.run import show_grid

if TYPE_CHECKING:
    from colibri_sdk.answers import Answer
    from colibri_sdk.targets import Target

PROMPTS = (
    "set pump 3 to 40 percent",
    "what's the temperature of the north tank?",
    "turn off all the lights on floor 2 in ten minutes",
)


@click.command()
@click.option("--board", "-b", "board_name", default="rpi3", show_default=True, help="The board to emulate.")
@click.option("--prompt", "prompts", multiple=True, help="Your own prompt; may be given several times.")
@options.quant_option
@options.public_key_option
@options.signing_key_option
@options.store_options
@output.json_option
def command(
    board_name: str,
    prompts: tuple[str, ...],
    quant: str,
    public_key: Path | None,
    key: Path | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Build the firmware, pack the demo model, write a card, boot it in the emulator, ask, and show the figures.

    With --public-key the firmware runs only what the key's owner signed, and --key signs the model for this board; with
    --key alone the firmware trusts its public half.
    """
    from colibri_sdk import paths, targets
    from colibri_sdk.answers import ask
    from colibri_sdk.errors import NoDeviceError, UsageError

    if public_key is not None and key is None:
        raise UsageError(
            f"a board that trusts {public_key} does not start the demo's model, which is packed here and not signed",
            "Give the private half too, with --key, which signs it.",
        )
    store = options.take_store(values)
    board = options.chosen_board(board_name, public_key=public_key or key)
    if not board.emulated:
        raise NoDeviceError(
            f"{board.name} has no emulator", "Choose another --board; `colibri-sdk boards` says which have."
        )
    with output.Progress("packing") as progress:
        image = targets.image_for(paths.models_dir() / "hummingbird", quant=quant, log=output.note, progress=progress)
    answers: list[Answer] = []
    with (
        tempfile.TemporaryDirectory(prefix="demo-", dir=paths.build_dir()) as scratch,
        targets.emulated(
            board,
            _signed(image, key, board.name, scratch),
            directory=Path(scratch),
            log=output.note,
            store=store,
        ) as target,
    ):
        for prompt in prompts or PROMPTS:
            if not as_json:
                click.echo(f"\n> {prompt}")
            answers.append(
                ask(target.device, prompt, on_token=None if as_json else lambda token: output.piece(token.text))
            )
            if not as_json:
                click.echo()
        sizes = _sizes(target, image)
        has_key = target.device.info().has_key
    if as_json:
        output.emit_json(_summary(answers, list(prompts or PROMPTS), {**sizes, "has_key": has_key}))
    else:
        _show(board_name, answers, sizes, has_key)


def _signed(image: Path, key: Path | None, board: str, scratch: str) -> Path:
    """The image, or a copy that is signed for the board: the image is kept for other runs, with other keys."""
    if key is None:
        return image
    from colibri_sdk.signing import PrivateKey, sign_image

    copy = Path(scratch) / image.name
    shutil.copyfile(image, copy)
    sign_image(copy, PrivateKey.load(key), board=board)
    return copy


def _sizes(target: Target, image: Path) -> dict[str, int]:
    firmware = target.firmware
    assert firmware is not None
    stats = target.device.stats()
    return {
        "firmware_bytes": (firmware.binary or firmware.elf).stat().st_size,
        "image_bytes": image.stat().st_size,
        "card_bytes": target.card.stat().st_size if target.card else 0,
        "arena_bytes": stats.arena_bytes,
        "arena_peak_bytes": stats.arena_peak_bytes,
    }


def _summary(answers: list[Answer], prompts: list[str], figures: dict[str, int]) -> dict[str, Any]:
    """The first answer's fields at the top, as `run` has them; then sizes and whether there is a key; then all."""
    each = [{"prompt": prompt, **answer.as_json()} for prompt, answer in zip(prompts, answers, strict=True)]
    return {**each[0], **figures, "answers": each}


def _show(board_name: str, answers: list[Answer], sizes: dict[str, int], has_key: bool) -> None:
    from colibri_sdk.update.report import takes

    click.echo()
    arena, peak = sizes["arena_bytes"], sizes["arena_peak_bytes"]
    output.table(
        ["", ""],
        [
            ["board", f"{board_name}, emulated"],
            *([["takes", takes(has_key)]] if has_key else []),
            ["kernels", answers[0].stats.kernels],
            ["firmware", output.size(sizes["firmware_bytes"])],
            ["image", output.size(sizes["image_bytes"])],
            ["arena", f"{output.size(arena)}, high-water mark {output.count(peak)}"],
        ],
    )
    click.echo()
    output.table(
        ["answer", "tokens", "first token, board", "by the wall", "tokens/s, board", "by the wall"],
        [_speed_row(number, answer.timings) for number, answer in enumerate(answers, 1)],
        title="Speed, by the emulated board's clock and by the wall clock",
        right="rrrrrr",
    )
    click.echo()
    total = [
        [sum(counts) for counts in zip(*layers, strict=True)]
        for layers in zip(*(answer.experts for answer in answers), strict=True)
    ]
    show_grid("Experts chosen (tokens), per layer", total)


def _speed_row(number: int, timings: dict[str, float]) -> list[str]:
    return [
        str(number),
        f"{timings['prompt_tokens']} + {timings['generated_tokens']}",
        *(f"{1000 * timings[f'{clock}_time_to_first_token_s']:.1f} ms" for clock in ("device", "wall")),
        *(f"{timings[f'{clock}_tokens_per_second']:.1f}" for clock in ("device", "wall")),
    ]
