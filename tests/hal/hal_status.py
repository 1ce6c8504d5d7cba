# SPDX-License-Identifier: Apache-2.0
"""enum hal_status of firmware/hal/hal.h."""

OK, ABSENT, TIMEOUT, IO_ERROR, RANGE = 0, -1, -2, -3, -4
