# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk update: experts and models of devices in the field."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from colibri_sdk.cli import options, output
from colibri_sdk.cli.terminated import Terminated
from colibri_sdk.errors import LinkLostError, LinkTimeoutError, UsageError

if TYPE_CHECKING:
    from colibri_sdk.flash.contents import Signed
    from colibri_sdk.targets import Target
    from colibri_sdk.update.expert import ExpertUpdate
    from colibri_sdk.update.model import ModelUpdate
    from colibri_sdk.update.signer import Signer

F = TypeVar("F", bound=Callable[..., Any])


def target_options(function: F) -> F:
    """Those of every command that talks to a device, and --card."""
    card = click.option(
        "--card",
        type=click.Path(exists=True, path_type=Path),
        help="A card image, or a card in this machine's reader, instead of a device: it is started here.",
    )
    return card(options.device_options(function))


def place_options(function: F) -> F:
    """--layer, --expert."""
    layer = click.option("--layer", "-l", type=click.IntRange(0), help="Layer, from 0.")
    expert = click.option("--expert", "-e", type=click.IntRange(0), help="Expert of that layer, from 0.")
    return layer(expert(function))


@contextmanager
def open_target(card: Path | None, values: dict[str, Any]) -> Iterator[Target]:
    from colibri_sdk import targets

    if card is None:
        with options.open_target(**values) as target:
            if values["model"] is not None:
                output.note("the emulated board's card is thrown away with this command; `flash` and --card keep one")
            yield target
        return
    for name in ("port", "board_name", "model", "cpu", "memory", "baud"):
        if values[name] is not None:
            word = name.removesuffix("_name").replace("_", "-")
            raise UsageError(f"--card and --{word} do not go together", "--card is started on this machine.")
    limit = {} if values["timeout"] is None else {"timeout": values["timeout"]}
    with targets.on_card(card, log=output.note, public_key=values["public_key"], **limit) as target:
        yield target


def terms_options(others: str) -> Callable[[F], F]:
    """--key, --counter, --any-board: see `_signer`. `others`: images beside NEW whose counter is signed with."""
    counter = click.option(
        "--counter",
        type=click.IntRange(0, 2**64 - 1),
        help=f"Security counter to sign with. Default: that of NEW, else of {others}, if --key signed it; else 0.",
    )
    any_board = click.option("--any-board", is_flag=True, help="Sign for every board, not only for the device's kind.")
    return lambda function: options.signing_key_option(counter(any_board(function)))


force_option = click.option(
    "--force", is_flag=True, help="With --card: update also what a board that trusts a key would not start afterwards."
)


def _check_card(card: Path | None, update: Signed | None, force: bool, values: dict[str, Any]) -> None:
    """A card is started by a board that takes all that is whole; the board that gets it might then refuse to start.

    UsageError when the card's own images are signed with another key than `update` (None: it is unsigned), or when they
    ask for a higher counter."""
    if card is None:
        if force:
            raise UsageError("--force is for cards", "Name one with --card, or leave --force out: devices decide.")
        return
    if force or values["public_key"] is not None:  # with a key the board checks it all
        return
    from colibri_sdk.flash.contents import signed_models

    for model in signed_models(card):
        if update is None:
            how = "is not signed"
        elif update.key_id != model.key_id:
            how = "is signed with another key"
        elif update.counter < model.counter:
            how = f"has security counter {update.counter}, below {model.counter}"
        else:
            continue
        raise UsageError(
            f"the model on {card.name} is signed, and the update {how}: a board that trusts the model's key would not "
            "start any more",
            "Sign with --key and --counter; give the board's --public-key, and all is checked as there; or insist: "
            "--force.",
        )


@contextmanager
def resumable(if_given_up: str) -> Iterator[None]:
    """A line that breaks and Ctrl-C are no loss: what is said then is how to go on, and what holds until then."""
    try:
        yield
    except (LinkLostError, LinkTimeoutError) as error:
        error.hint = f"{error.hint} Then run the same command again: what has arrived need not travel again.".strip()
        raise
    except (KeyboardInterrupt, Terminated):
        output.note(f"Run the same command again to go on: what has arrived need not travel again. {if_given_up}")
        raise


_EXPERT_GIVEN_UP = "Until then the device answers with the old expert, or the new one if it was all there."
_MODEL_GIVEN_UP = (
    "Until then the device runs the old model, or the new one on trial: `update status` says which, `update rollback` "
    "gives the update up."
)


@click.group()
def command() -> None:
    """Replace one expert or the whole model of a device, and see, confirm or take back what was done.

    Nothing that the device needs is overwritten: power may fail at any moment, and it starts with the old model or the
    new one, whole (docs/field-update.md).
    """


@command.command("expert")
@click.argument("new", type=click.Path(exists=True, path_type=Path))
@place_options
@terms_options("--base or an emulated board's --model")
@click.option(
    "--base",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The image that the device runs: where NEW is not signed with --key, its security counter is signed with.",
)
@force_option
@target_options
@output.json_option
def expert_command(
    new: Path,
    layer: int | None,
    expert: int | None,
    key: Path | None,
    counter: int | None,
    any_board: bool,
    base: Path | None,
    force: bool,
    card: Path | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Replace one expert of the running model by the one in NEW, while the device goes on answering.

    NEW is an image whose expert of the same place is taken, a file with the blob alone, or an update made by
    `update sign`, which knows its place. The expert takes effect between two tokens.
    """
    from colibri_sdk import targets
    from colibri_sdk.update.package import is_package

    if new.is_file() and is_package(new):
        if key is not None:
            raise UsageError(f"{new} is what `update sign` made, signed or not", "Leave --key out, or sign it anew.")
        _signer(new, key, counter, any_board, card, values, base)
        done = _send_package(new, layer, expert, card, force, values)
    else:
        packed = targets.is_checkpoint(new)  # else it may be an image, or an expert alone
        source = targets.image_for(new, quant=values["quant"], log=output.note) if packed else new
        signer = _signer(source, key, counter, any_board, card, values, base)
        _check_card(card, signer.signed if signer else None, force, values)
        done = _send_expert(source, layer, expert, signer, card, values)
    if as_json:
        output.emit_json(done)
    else:
        _show_expert(done)


def _send_expert(
    source: Path,
    layer: int | None,
    expert: int | None,
    signer: Signer | None,
    card: Path | None,
    values: dict[str, Any],
) -> ExpertUpdate:
    from colibri_sdk.targets import require_model
    from colibri_sdk.update.expert import check_relation, expert_content, update_expert

    at, which = _place(layer, expert)
    with (
        expert_content(source, at, which) as content,
        open_target(card, values) as target,
        resumable(_EXPERT_GIVEN_UP),
    ):
        require_model(target.device, "the device")
        info = target.device.info()
        check_relation(
            source,
            architecture=info.model_architecture,
            quantisation=info.quantisation,
            hidden=info.hidden,
            whose="the device's model",
        )
        with output.Progress(f"expert {at}/{which}", rate=True) as progress:
            return update_expert(target.device, content, at, which, progress=progress, signer=signer)


def _send_package(
    new: Path, layer: int | None, expert: int | None, card: Path | None, force: bool, values: dict[str, Any]
) -> ExpertUpdate:
    from colibri_sdk.targets import require_model
    from colibri_sdk.update.expert import update_expert
    from colibri_sdk.update.package import open_package

    with open_package(new) as package:
        place = (package.layer, package.expert)
        if (place[0] if layer is None else layer, place[1] if expert is None else expert) != place:
            raise UsageError(f"{new} is for expert {place[0]}/{place[1]}", "Leave --layer and --expert out.")
        _check_card(card, package.signed, force, values)
        with (
            open_target(card, values) as target,
            resumable(_EXPERT_GIVEN_UP),
            output.Progress(f"expert {place[0]}/{place[1]}", rate=True) as progress,
        ):
            require_model(target.device, "the device")
            return update_expert(target.device, package.content, *place, progress=progress, prepared=package.update)


def _place(layer: int | None, expert: int | None) -> tuple[int, int]:
    if layer is None or expert is None:
        raise UsageError("which expert?", "Give --layer and --expert.")
    return layer, expert


def _signer(
    new: Path,
    key: Path | None,
    counter: int | None,
    any_board: bool,
    card: Path | None,
    values: dict[str, Any],
    base: Path | None = None,
) -> Signer | None:
    """What signs on the way; None without --key. The counter is never the device's (update/signer.py)."""
    if key is None:
        if counter is not None or any_board or base is not None:
            raise UsageError("--counter, --base and --any-board are of a signature", "Give --key, or leave them out.")
        return None
    from colibri_sdk.signing import PrivateKey
    from colibri_sdk.update.signer import Signer, counter_of

    if card is not None and not any_board:
        raise UsageError(
            "a card does not say which board will get it",
            "Sign for any board, with --any-board, or sign for one elsewhere: `update sign`, `keys sign`.",
        )
    private = PrivateKey.load(key)
    if counter is None:
        counter = counter_of([path for path in (new, base, values["model"]) if path is not None], private.public)
    return Signer(private, counter, any_board)


@command.command("sign")
@click.argument("new", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--base",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="The image that the devices run.",
)
@place_options
@click.option(
    "--generation",
    type=click.IntRange(1, 2**32 - 1),
    help="Higher than what the devices have, which `update status --experts` lists. Default: 1.",
)
@click.option("--counter", type=click.IntRange(0, 2**64 - 1), help="Security counter. Default: the base image's.")
@click.option("--board", "board_name", default="", help="The only board that may take it. Default: any.")
@options.signing_key_option
@click.option("--output", "-o", "out", type=click.Path(dir_okay=False, path_type=Path), help="The file to write.")
@output.json_option
def sign_command(
    new: Path,
    base: Path,
    layer: int | None,
    expert: int | None,
    generation: int | None,
    counter: int | None,
    board_name: str,
    key: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Make a file that `update expert` sends, without the key: the expert of NEW in that place, signed with --key.

    NEW is as for `update expert`. Without --key the update is unsigned, for boards that were built without a key.
    """
    import numpy as np

    from colibri_sdk.boards import load_board
    from colibri_sdk.cli.keys import signed_by
    from colibri_sdk.image.layout import UPDATE
    from colibri_sdk.image.reader import ImageFile
    from colibri_sdk.signing import PrivateKey, sign_update
    from colibri_sdk.update.expert import check_relation, describe_update, expert_content
    from colibri_sdk.update.package import Package, write_package

    at, which = _place(layer, expert)
    if board_name:
        load_board(board_name)
    private = None if key is None else PrivateKey.load(key)
    path = out or Path(f"{base.stem}-{at}-{which}.update")
    with ImageFile(base) as image, expert_content(base, at, which) as old, expert_content(new, at, which) as content:
        check_relation(
            new,
            architecture=image.architecture,
            quantisation=image.quantisation,
            hidden=int(image.model["hidden"]),
            whose=base.name,
        )
        if content.bytes != old.bytes:
            raise UsageError(
                f"expert {at}/{which} of {base.name} has {old.bytes} bytes, the new one {content.bytes}",
                "Pack the checkpoint as the base was packed.",
            )
        update = describe_update(
            content,
            at,
            which,
            generation=1 if generation is None else generation,
            image_id=image.image_id,
            counter=image.signature.counter if counter is None else counter,
            board=board_name,
        )
        update = sign_update(np.frombuffer(update, UPDATE)[0], private) if private else update
        write_package(path, update, content)
        fields = Package(update, content).fields()
    if as_json:
        output.emit_json({"update": path, **fields})
        return
    how = signed_by(fields["key_id"], fields["counter"], fields["board"]) if private else "not signed"
    click.echo(f"{path}: expert {at}/{which} for {base.name}, generation {fields['generation']}, {how}")


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
@terms_options("an emulated board's --model")
@force_option
@target_options
@output.json_option
def model_command(
    new: Path,
    tries: int | None,
    no_confirm: bool,
    key: Path | None,
    counter: int | None,
    any_board: bool,
    force: bool,
    card: Path | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Write the image NEW beside the running model, start it on trial, check it, and confirm it.

    Only experts and pages that the device does not hold travel. A model that does not start or fails a check is taken
    back. A command that was interrupted goes on where it stopped when it is run again.
    """
    from colibri_sdk import targets
    from colibri_sdk.image.reader import ImageFile
    from colibri_sdk.update.model import update_model
    from colibri_sdk.update.signer import signed_of

    image = targets.image_for(new, quant=values["quant"], log=output.note)
    with ImageFile(image):
        pass  # a file that is none is found before a device is started, or waited for
    signer = _signer(image, key, counter, any_board, card, values)
    _check_card(card, signer.signed if signer else signed_of(image), force, values)
    with (
        open_target(card, values) as target,
        resumable(_MODEL_GIVEN_UP),
        _signed_image(image, signer, target) as signed,
        output.Progress(new.name, rate=True) as progress,
    ):
        done = update_model(
            target.device, signed, progress=progress, log=output.note, tries=tries or 0, confirm=not no_confirm
        )
    if as_json:
        output.emit_json(done)
    else:
        _show_model(done)


@contextmanager
def _signed_image(image: Path, signer: Signer | None, target: Target) -> Iterator[Path]:
    """The image itself, or a copy that is signed for the device."""
    if signer is None:
        yield image
        return
    from colibri_sdk.update.calls import UpdateCalls

    board = target.device.info().board
    signer.check(board, UpdateCalls(target.device).status().counter)
    with tempfile.TemporaryDirectory(prefix="colibri-") as directory:
        copy = Path(directory) / image.name
        shutil.copyfile(image, copy)
        signer.image(copy, board)
        yield copy


def _experts(count: int) -> str:
    return f"{count} expert{'' if count == 1 else 's'}"


def _show_model(done: ModelUpdate) -> None:
    if done.unchanged:
        click.echo(f"the device runs that model already, from slot {done.slot}: {done.image_id}")
        return
    traffic = done.traffic
    output.table(
        ["", ""],
        [
            ["model", f"{done.image_id}, slot {done.slot}, {'confirmed' if done.confirmed else 'on trial'}"],
            ["sent", f"{output.size(traffic.sent_bytes)} in {done.seconds:.1f} s, {_experts(traffic.experts_sent)}"],
            ["copied", f"{output.size(traffic.copied_bytes)}, {_experts(traffic.experts_copied)}"],
            ["were there", f"{output.size(traffic.kept_bytes)}, {_experts(traffic.experts_kept)}"],
            *[[check.name, check.found] for check in done.checks],
        ],
    )
    if not done.confirmed:
        output.note("Confirm it with `colibri-sdk update confirm`; unconfirmed it is taken back after its last start.")


@command.command("status")
@click.option("--experts", is_flag=True, help="Also which experts were replaced, and the generation of each.")
@target_options
@output.json_option
def status_command(experts: bool, card: Path | None, as_json: bool, **values: Any) -> None:
    """Show slots, trial, replaced experts and any update that is open; and what became of the last trial."""
    from colibri_sdk.targets import why_no_model
    from colibri_sdk.update import report
    from colibri_sdk.update.calls import UpdateCalls

    with open_target(card, values) as target:
        calls = UpdateCalls(target.device)
        status, info = calls.status(), target.device.info()
        # The device lists all its experts, 64 bytes each, which takes its time on a slow line.
        listed = calls.directory() if experts and status.updates else []
    replaced = [entry for entry in listed if entry.generation]
    missing = why_no_model(info, info.board)
    # A card was started by this machine's firmware, which says nothing of the firmware of the board that gets it.
    has_key = info.has_key if card is None or values["public_key"] is not None else None
    advice = report.advice(status)
    if card is not None and status.trial:
        advice.append(
            f"Each look at a card starts it: {status.tries_left} of the trial's starts are left after this one."
        )
    if as_json:
        no_model = None if missing is None else missing.message
        places = [{name: getattr(one, name) for name in ("layer", "expert", "generation")} for one in replaced]
        found = {**report.as_json(status), "advice": advice, "has_key": has_key, "no_model": no_model}
        output.emit_json({**found, **({"replaced": places} if experts else {})})
        return
    rows = [*report.rows(status, starts=missing is None), ["takes", report.takes(has_key)]]
    rows += [[f"expert {one.layer}/{one.expert}", f"generation {one.generation}"] for one in replaced]
    output.table(["", ""], rows)
    if missing is not None:
        output.note(str(missing))
    for line in advice:
        output.note(line)


# Why a device confirms nothing, by what it names.
_NOT_TO_CONFIRM = {
    "trial": ("no model is on trial", "`colibri-sdk update status` says what runs, and what became of the last trial."),
    "running": (
        "the model on trial does not run",
        "Run its `update model` again, which starts it, or `update rollback`.",
    ),
}


@command.command("confirm")
@target_options
@output.json_option
def confirm_command(card: Path | None, as_json: bool, **values: Any) -> None:
    """Keep the model that runs on trial; from now on it is the one that starts."""
    from colibri_sdk.errors import DeviceError
    from colibri_sdk.status import Status
    from colibri_sdk.update.calls import UpdateCalls
    from colibri_sdk.update.model import slot_name

    with open_target(card, values) as target:
        try:
            done = UpdateCalls(target.device).confirm()
        except DeviceError as error:
            if error.status == Status.E_UPDATE_STATE and error.where in _NOT_TO_CONFIRM:
                error.message, error.hint = _NOT_TO_CONFIRM[error.where]
            raise
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
