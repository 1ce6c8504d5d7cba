# SPDX-License-Identifier: Apache-2.0
"""From a checkpoint to an image: `pack`."""

from __future__ import annotations

from colibri_sdk.convert.packer import KV_FORMATS, PackReport
from colibri_sdk.convert.packing import pack
from colibri_sdk.convert.progress import Progress
from colibri_sdk.convert.quantisation import QUANTISATIONS

__all__ = ["KV_FORMATS", "QUANTISATIONS", "PackReport", "Progress", "pack"]
