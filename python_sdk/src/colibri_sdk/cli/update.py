# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk update: experts and models of devices in the field."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from colibri_sdk.cli import options, output
from colibri_sdk.errors import LinkLostError, LinkTimeoutError, UsageError

if TYPE_CHECKING:
    from colibri_sdk.targets import Target
    from colibri_sdk.update.expert import ExpertUpdate
    from colibri_sdk.update.model import ModelUpdate

F = TypeVar("F", bound=Callable[..., Any])


def target_options(function: F) -> F:
    """Those of every command that talks to a device, and --card."""
    card = click.option(
        "--card",
        type=click.Path(exists=True, path_type=Path),
        help="A card image, or a card in this machine's reader, instead of a device: it is started here.",
    )
    return card(options.device_options(function))


@contextmanager
def open_target(card: Path | None, values: dict[str, Any]) -> Iterator[Target]:
    from colibri_sdk import targets

    if card is None:
        with options.open_target(**values) as target:
            yield target
        return
    for name in ("port", "board_name", "model", "cpu", "baud"):
        if values[name] is not None:
            word = name.removesuffix("_name")
            raise UsageError(f"--card and --{word} do not go together", "--card is started on this machine.")
    limit = {} if values["timeout"] is None else {"timeout": values["timeout"]}
    with targets.on_card(card, log=output.note, **limit) as target:
        yield target


@contextmanager
def resumable() -> Iterator[None]:
    """A line that breaks is no loss: the error says how to go on."""
    try:
        yield
    except (LinkLostError, LinkTimeoutError) as error:
        error.hint = f"{error.hint} Then run the same command again: what has arrived need not travel again.".strip()
        raise


@click.group()
def command() -> None:
    """Replace one expert or the whole model of a device, and see, confirm or take back what was done.

    Nothing that the device needs is overwritten: power may fail at any moment, and it starts with the old model or the
    new one, whole (docs/field-update.md).
    """


@command.command("expert")
@click.argument("new", type=click.Path(exists=True, path_type=Path))
@click.option("--layer", "-l", type=click.IntRange(0), help="Layer, from 0.")
@click.option("--expert", "-e", type=click.IntRange(0), help="Expert of that layer, from 0.")
@target_options
@output.json_option
def expert_command(
    new: Path, layer: int | None, expert: int | None, card: Path | None, as_json: bool, **values: Any
) -> None:
    """Replace one expert of the running model by the one in NEW, while the device goes on answering.

    NEW is an image whose expert of the same place is taken, or a file with the blob alone. It takes effect between two
    tokens.
    """
    from colibri_sdk import targets
    from colibri_sdk.update.expert import expert_content, update_expert

    if layer is None or expert is None:
        raise UsageError("which expert?", "Give --layer and --expert.")
    source = targets.image_for(new, quant=values["quant"], log=output.note)
    with (
        expert_content(source, layer, expert) as content,
        open_target(card, values) as target,
        resumable(),
        output.Progress(f"expert {layer}/{expert}", rate=True) as progress,
    ):
        done = update_expert(target.device, content, layer, expert, progress=progress)
    if as_json:
        output.emit_json(done)
    else:
        _show_expert(done)


def _show_expert(done: ExpertUpdate) -> None:
    name = f"expert {done.layer}/{done.expert}"
    if done.unchanged:
        click.echo(f"{name} is that one already, generation {done.generation}")
        return
    kept = f", {output.size(done.kept_bytes)} were there" if done.kept_bytes else ""
    click.echo(
        f"{name} replaced, generation {done.generation}: {output.size(done.sent_bytes)} sent{kept}, "
        f"{done.seconds:.1f} s"
    )


@command.command("model")
@click.argument("new", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--tries",
    type=click.IntRange(1, 100),
    help="Starts of an unconfirmed model before the device returns to the old one by itself. Default: 3.",
)
@click.option("--no-confirm", is_flag=True, help="Leave the new model on trial.")
@target_options
@output.json_option
def model_command(
    new: Path, tries: int | None, no_confirm: bool, card: Path | None, as_json: bool, **values: Any
) -> None:
    """Write the image NEW beside the running model, start it on trial, check it, and confirm it.

    Only experts and pages that the device does not hold travel. A model that does not start or fails a check is taken
    back. A command that was interrupted goes on where it stopped when it is run again.
    """
    from colibri_sdk import targets
    from colibri_sdk.update.model import update_model

    image = targets.image_for(new, quant=values["quant"], log=output.note)
    with open_target(card, values) as target, resumable(), output.Progress(new.name, rate=True) as progress:
        done = update_model(
            target.device, image, progress=progress, log=output.note, tries=tries or 0, confirm=not no_confirm
        )
    if as_json:
        output.emit_json(done)
    else:
        _show_model(done)


def _show_model(done: ModelUpdate) -> None:
    if done.unchanged:
        click.echo(f"the device runs that model already, from slot {done.slot}: {done.image_id}")
        return
    traffic = done.traffic
    output.table(
        ["", ""],
        [
            ["model", f"{done.image_id}, slot {done.slot}, {'confirmed' if done.confirmed else 'on trial'}"],
            ["sent", f"{output.size(traffic.sent_bytes)} in {done.seconds:.1f} s, {traffic.experts_sent} experts"],
            ["copied", f"{output.size(traffic.copied_bytes)}, {traffic.experts_copied} experts"],
            ["were there", f"{output.size(traffic.kept_bytes)}, {traffic.experts_kept} experts"],
            *[[check.name, check.found] for check in done.checks],
        ],
    )
    if not done.confirmed:
        output.note("Confirm it with `colibri-sdk update confirm`; unconfirmed it is taken back after its last start.")


@command.command("status")
@target_options
@output.json_option
def status_command(card: Path | None, as_json: bool, **values: Any) -> None:
    """Show slots, trial, replaced experts and any update that is open; and what became of the last trial."""
    from colibri_sdk.update import report
    from colibri_sdk.update.calls import UpdateCalls

    with open_target(card, values) as target:
        status = UpdateCalls(target.device).status()
    if as_json:
        output.emit_json(report.as_json(status))
        return
    output.table(["", ""], report.rows(status))
    for line in report.advice(status):
        output.note(line)


@command.command("confirm")
@target_options
@output.json_option
def confirm_command(card: Path | None, as_json: bool, **values: Any) -> None:
    """Keep the model that runs on trial; from now on it is the one that starts."""
    from colibri_sdk.update.calls import UpdateCalls
    from colibri_sdk.update.model import slot_name

    with open_target(card, values) as target:
        done = UpdateCalls(target.device).confirm()
    if as_json:
        output.emit_json({"active": slot_name(done.active), "security_counter": done.counter})
    else:
        click.echo(f"confirmed: slot {slot_name(done.active)} starts from now on, security counter {done.counter}")


@command.command("rollback")
@target_options
@output.json_option
def rollback_command(card: Path | None, as_json: bool, **values: Any) -> None:
    """Give up an open update and take a model on trial back; the old model runs again when this ends."""
    from colibri_sdk.update.model import withdraw

    with open_target(card, values) as target:
        anything = withdraw(target.device)
        image_id = target.device.info().image_id
    if as_json:
        output.emit_json({"given_up": anything, "image_id": image_id})
    else:
        click.echo(f"taken back: the device runs {image_id}" if anything else "there is nothing to take back")
