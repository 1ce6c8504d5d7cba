# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk chat: a conversation at the terminal."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from colibri_sdk.cli import options, output
from colibri_sdk.errors import EXIT_INTERRUPTED, ColibriError, DeviceError, UsageError

if TYPE_CHECKING:
    from colibri_sdk.answers import Answer
    from colibri_sdk.conversation import Conversation
    from colibri_sdk.device import Device

HELP = """\
/reset    forget the conversation
/history  show what the model is told of it
/stats    figures of the last answer
/quit     end (so do Ctrl-D, and Ctrl-C twice)
Ctrl-C during an answer cancels it."""


@click.command()
@click.argument("model_argument", metavar="[MODEL]", required=False, type=click.Path(exists=True, path_type=Path))
@options.device_options
@options.store_options
@options.sampling_options
@click.option("--history/--no-history", default=None, help="Tell the model the earlier turns. Default: see above.")
@click.option(
    "--card",
    "card_image",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=("The image that the device on --port holds, for its chat template. Default: looked for in build/images."),
)
def command(model_argument: Path | None, history: bool | None, card_image: Path | None, **values: Any) -> int:
    """Talk to a model, on a real device or an emulated board (as in `run`).

    With --history earlier turns are part of each prompt, as the model's chat template writes them; when the context is
    full the oldest are left out. With --no-history each prompt stands alone. The default is --history for models with
    a context of 2048 positions or more: shorter ones, such as hummingbird, are made for single commands.
    """
    from colibri_sdk.conversation import SHORT_CONTEXT, Conversation

    sampling = options.take(options.SAMPLING_NAMES, values)
    store = options.take_store(values)
    if model_argument is not None:
        if values["model"] is not None:
            raise UsageError("MODEL is given twice", "Leave --model out.")
        values["model"] = model_argument
    with options.open_model(store=store, **values) as target:
        info = target.device.info()
        keep = info.context >= SHORT_CONTEXT if history is None else history
        conversation = Conversation(_card(info.image_id, card_image) if keep else None, keep)
        output.note(f"{info.model} ({info.quantisation}) on {target.where}. /help lists commands.")
        if keep and not conversation.remembers:
            output.note("The chat template of the device's image is not known here (--card): each prompt stands alone.")
        elif not keep:
            output.note(
                "Each prompt stands alone" + (" (--history tells the model the turns before)." * (history is None))
            )
        return _Chat(target.device, conversation, sampling).run()


def _card(image_id: str, named: Path | None) -> Mapping[str, Any] | None:
    """The card of the image with that identity: of the one named, or of one that was packed on this machine."""
    from colibri_sdk.errors import ImageError
    from colibri_sdk.image.reader import ImageFile
    from colibri_sdk.paths import build_dir

    candidates = [named] if named else sorted((build_dir() / "images").glob("*.colibri"))
    for path in candidates:
        with contextlib.suppress(ImageError), ImageFile(path) as image:
            if image.image_id == image_id:
                return image.card
    if named:
        raise UsageError(
            f"the device holds another image than {named} ({image_id})", "Leave --card out, or name that one."
        )
    return None


@contextlib.contextmanager
def _interrupt_calls(cancel: Callable[[], bool]) -> Iterator[None]:
    """While this is active, Ctrl-C calls `cancel`, and raises KeyboardInterrupt only when there was nothing to cancel.

    In a thread of its own: the main thread may hold a lock of the link at that moment.
    """
    main = threading.main_thread().ident
    assert main is not None
    active = True
    changing = threading.Lock()  # so that the signal does not come when its handler is gone
    nothing_to_cancel = threading.Event()

    def try_to_cancel() -> None:
        # A link that is lost is what the main thread is about to hear of, too.
        with contextlib.suppress(ColibriError):
            if not cancel():
                with changing:
                    if active:
                        nothing_to_cancel.set()
                        signal.pthread_kill(main, signal.SIGINT)  # unlike a flag, wakes it where it waits

    def interrupted(*_: object) -> None:
        if nothing_to_cancel.is_set():
            raise KeyboardInterrupt
        threading.Thread(target=try_to_cancel, daemon=True).start()

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        try:
            with changing:
                active = False
        finally:
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _line_editing() -> Iterator[None]:
    """Editing and a history of the input, as in a shell, when a person types."""
    if not sys.stdin.isatty():
        yield
        return
    import readline

    from colibri_sdk.paths import state_dir

    file: Path | None = None
    with contextlib.suppress(OSError):  # no home, none yet: a chat goes without
        file = state_dir() / "chat-history"
        readline.read_history_file(file)
    readline.set_history_length(1000)
    try:
        yield
    finally:
        if file is not None:
            with contextlib.suppress(OSError):
                readline.write_history_file(file)


class _Chat:
    """The loop: a line, its answer."""

    def __init__(self, device: Device, conversation: Conversation, sampling: dict[str, Any]) -> None:
        self._device = device
        self._conversation = conversation
        self._sampling = sampling
        self._last: Answer | None = None

    def run(self) -> int:
        """Exit code: 0 after the end of the input, 130 after Ctrl-C twice."""
        interrupted = False
        with _line_editing():
            while True:
                try:
                    line = input("> " if sys.stdin.isatty() else "").strip()
                except EOFError:
                    return 0
                except KeyboardInterrupt:
                    click.echo()
                    if interrupted:
                        return EXIT_INTERRUPTED
                    interrupted = True
                    output.note("Ctrl-C again, or Ctrl-D, ends the chat.")
                    continue
                interrupted = False
                if line == "/quit":
                    return 0
                if line.startswith("/"):
                    self._command(line)
                elif line:
                    self._answer(line)

    def _command(self, line: str) -> None:
        if line == "/reset":
            self._conversation.reset()
            output.note("forgotten")
        elif line == "/history":
            for question, answer in self._conversation.turns:
                click.echo(f"> {question}\n{output.said(answer)}")
        elif line == "/stats" and self._last:
            from colibri_sdk.cli.run import show_details

            show_details(self._last)
        else:
            output.note(HELP)

    def _answer(self, text: str) -> None:
        """One answer; when the prompt does not fit the context, again without the oldest turn."""
        from colibri_sdk.status import Status

        while True:
            try:
                answer = self._ask(text)
                break
            except KeyboardInterrupt:  # before the request was sent, or after its end
                click.echo()
                output.note("(cancelled)")
                return
            except DeviceError as error:
                if error.status not in (Status.E_CONTEXT_FULL, Status.E_TEXT_SIZE):
                    raise
                if not self._conversation.forget_oldest():
                    output.note(f"error: {error}")
                    return
                output.note("(the context is full: the oldest turn is left out)")
        click.echo()
        self._last = answer
        if answer.result.finish_reason == "cancelled":
            output.note("(cancelled)")
        else:
            self._conversation.add(text, answer.result.text)
        if answer.result.finish_reason == "context":
            output.note("(the context is full: /reset begins anew)")

    def _ask(self, text: str) -> Answer:
        from colibri_sdk.answers import ask

        prompt = self._conversation.prompt(text)
        with _interrupt_calls(self._device.cancel):
            return ask(
                self._device,
                prompt,
                on_token=lambda token: output.piece(token.text),
                chat=isinstance(prompt, str),
                **self._sampling,
            )
