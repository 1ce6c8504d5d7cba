# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk monitor: what a device says of itself."""

from __future__ import annotations

from typing import Any

import click

from colibri_sdk.cli import options


@click.command()
@options.device_options
def command(**values: Any) -> None:
    """Show a device's log lines, and what else it prints, until Ctrl-C. Attaching does not reset the device."""
    with options.open_target(**values) as target:
        for line in target.device.logs:
            click.echo(line)
