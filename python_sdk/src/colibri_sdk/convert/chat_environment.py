# SPDX-License-Identifier: Apache-2.0
"""The Jinja environment that chat templates are written for: the one of the transformers library.

A template comes with the checkpoint, from whoever made it. It runs in Jinja's sandbox and sees plain data only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from colibri_sdk.errors import CheckpointError


class _Generation(jinja2.ext.Extension):
    """{% generation %} marks what the assistant said, for training. It renders as what is in it."""

    tags = {"generation"}  # noqa: RUF012 - Jinja reads it, and types it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def chat_renderer(
    chat_template: str, variables: Mapping[str, str], now: datetime | None
) -> Callable[[Sequence[Mapping[str, Any]], bool], str]:
    """A function of the messages and of add_generation_prompt that renders the template.

    `variables` are names that the template may use, e.g. bos_token; empty ones stay undefined. Templates ask for the
    date by strftime_now(); it is there when `now` is given, so that without it the same input gives the same output.
    Raises CheckpointError where the template is no Jinja, and the function raises it where the template objects."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    if now is not None:
        environment.globals["strftime_now"] = now.strftime
    defined = {name: value for name, value in variables.items() if value}
    try:
        template = environment.from_string(chat_template)
    except (jinja2.TemplateError, RecursionError) as error:
        raise _refusal("is no valid Jinja", error) from error

    def render(messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
        try:
            return template.render(
                messages=list(messages),
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **defined,
            )
        except Exception as error:  # a template is a program: it can fail with anything
            raise _refusal("cannot be rendered", error) from error

    return render


def _refusal(what: str, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"the chat template {what}: {error or type(error).__name__}",
        "Try it with the transformers library; see docs/tokenizer.md for what a template may do.",
        where="chat_template",
    )
