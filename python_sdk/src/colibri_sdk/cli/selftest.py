# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk selftest: do the kernels give the reference's bits?"""

from __future__ import annotations

from typing import Any

import click

from colibri_sdk.cli import options, output
from colibri_sdk.errors import EXIT_DEVICE


@click.command()
@options.device_options
@click.option("--host", is_flag=True, help="Test this machine's library; no device.")
@output.json_option
def command(host: bool, as_json: bool, **values: Any) -> int:
    """Compare a device's kernels with the scalar reference, bit by bit. Exit code 8 when one differs."""
    if host:
        from colibri_sdk.engine import Library

        report = _fields(Library.load().selftest())
    else:
        with options.open_target(**values) as target:
            report = _fields(target.device.selftest())
    if as_json:
        output.emit_json(report)
    elif report["failures"]:
        click.echo(
            "{kernels}: {failures} of {cases} comparisons differ, first {failed} at size {failed_size}".format(**report)
        )
    else:
        click.echo("{kernels}: {cases} comparisons, all bits equal".format(**report))
    return EXIT_DEVICE if report["failures"] else 0


def _fields(report: object) -> dict[str, Any]:
    """What the host's and a device's report have in common."""
    return {name: getattr(report, name) for name in ("kernels", "cases", "failures", "failed", "failed_size")}
