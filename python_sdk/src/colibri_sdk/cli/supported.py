# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk supported: what can be packed and run."""

from __future__ import annotations

from pathlib import Path

import click

from colibri_sdk.cli import output


@click.command()
@click.option("--markdown", is_flag=True, help="As README.md has it.")
@click.option(
    "--update",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Put the Markdown between the markers of FILE, e.g. README.md.",
)
@output.json_option
def command(markdown: bool, update: Path | None, as_json: bool) -> None:
    """List what is supported: architectures, formats, routers, rotary scalings, tokenizers."""
    from colibri_sdk import supported

    if update is not None:
        output.note(f"{update}: {'brought up to date' if supported.update(update) else 'is up to date'}")
    elif as_json:
        output.emit_json(supported.as_json())
    elif markdown:
        click.echo(supported.markdown())
    else:
        for table in supported.tables():
            output.table(list(table.columns), table.plain(), title=f"\n{table.title}")
