# SPDX-License-Identifier: Apache-2.0
"""`python -m colibri_sdk` is colibri-sdk."""

from colibri_sdk.cli.main import main

main()
