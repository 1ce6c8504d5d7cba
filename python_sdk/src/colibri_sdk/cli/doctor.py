# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk doctor: is this machine ready?"""

from __future__ import annotations

import click

from colibri_sdk import doctor
from colibri_sdk.boards import list_boards
from colibri_sdk.cli import output
from colibri_sdk.errors import ColibriError


@click.command()
@click.option("--udev-rules", is_flag=True, help="Print the udev rules for the boards, and nothing else.")
@click.option("--port", "-p", help="Check the device there, too: what its firmware runs.")
@output.json_option
def command(udev_rules: bool, port: str | None, as_json: bool) -> int:
    """Check this machine: tools, emulators, permissions. Exit code 1 when something is missing."""
    usb_ids = [usb_id for board in list_boards() for usb_id in board.usb_ids]
    if udev_rules:
        click.echo(doctor.udev_rules(usb_ids), nl=False)
        return 0
    checks = doctor.examine(usb_ids)
    if port is not None:
        checks.append(_device_check(port))
    if as_json:
        output.emit_json(checks)
    else:
        colours = {doctor.Verdict.OK: "green", doctor.Verdict.WARN: "yellow", doctor.Verdict.MISSING: "red"}
        width = max(len(check.name) for check in checks)
        for check in checks:
            verdict = click.style(f"{check.verdict:<8}", fg=colours[check.verdict])
            click.echo(f"{verdict}{check.name:<{width}}  {check.found}")
            if check.advice:
                click.echo(f"{'':8}{'':{width}}  -> {check.advice}")
    return int(any(check.verdict == doctor.Verdict.MISSING for check in checks))


def _device_check(port: str) -> doctor.Check:
    from colibri_sdk.device import Device

    try:
        with Device.open(port) as device:
            info = device.info()
    except ColibriError as error:  # the rest of the report is for finding out why
        return doctor.Check(f"device {port}", doctor.Verdict.MISSING, error.message, error.hint)
    return doctor.check_device(port, info.board, info.has_key)
