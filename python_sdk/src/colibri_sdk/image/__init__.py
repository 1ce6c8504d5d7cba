# SPDX-License-Identifier: Apache-2.0
"""The image: its layout, a writer and a reader."""
