# SPDX-License-Identifier: Apache-2.0
"""The command colibri-sdk: one file per command, loaded when it is called."""
