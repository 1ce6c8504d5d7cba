# SPDX-License-Identifier: Apache-2.0
"""How evenly a router uses its experts, and when that deserves a warning.

Of one layer with E experts, of which expert e was chosen by n(e) tokens, mean m = sum n / E:

- utilisation: the share of experts with n(e) > 0;
- coefficient of variation: standard deviation of n over m. 0 when all are used alike; 1 / sqrt(m) by chance alone;
- effective experts: exp(-sum p ln p) with p = n / sum n (the exponential of Shannon's entropy): E when all are used
  alike, 1 when it is always the same one;
- dead experts: those with n(e) = 0 once m is at least 5, where an even router leaves one unused with a chance of about
  exp(-5).

The coefficient of variation is the measure of Shazeer et al., "Outrageously Large Neural Networks" (2017), section 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

# Tokens per expert, on average, from which on a layer is judged at all.
ENOUGH_TOKENS = 5.0
# Coefficient of variation above which a layer is called uneven.
UNEVEN = 1.0
# Share of the experts' time spent waiting for reads above which a layer is called starved.
STARVED = 0.5


@dataclass(frozen=True)
class Balance:
    """One layer's figures; see this module."""

    tokens: int
    mean: float  # tokens per expert
    utilisation: float
    variation: float
    effective: float
    dead: tuple[int, ...]
    busiest: int
    busiest_share: float  # of the busiest expert's tokens to the mean


def balance(counts: Sequence[int]) -> Balance | None:
    """Of the tokens that chose each expert of one layer; None before any has."""
    n = np.asarray(counts, np.float64)
    total = float(n.sum())
    if total == 0:
        return None
    mean = total / len(n)
    p = n[n > 0] / total
    dead = tuple(np.flatnonzero(n == 0).tolist()) if mean >= ENOUGH_TOKENS else ()
    return Balance(
        tokens=int(total),
        mean=mean,
        utilisation=float(np.count_nonzero(n)) / len(n),
        variation=float(n.std()) / mean,
        effective=float(np.exp(-(p * np.log(p)).sum())),
        dead=dead,
        busiest=int(n.argmax()),
        busiest_share=float(n.max()) / mean,
    )


def warnings(layer: int, figures: Balance | None, *, stalled: float = 0.0) -> Iterator[str]:
    """Sentences about one layer; `stalled` is the share of its experts' time that was spent waiting for reads."""
    if figures is not None and figures.dead:
        shown = ", ".join(map(str, figures.dead[:8])) + (" …" if len(figures.dead) > 8 else "")
        number = len(figures.dead)
        yield f"layer {layer}: {number} expert{'s' if number > 1 else ''} never chosen ({shown})"
    if figures is not None and figures.variation > UNEVEN and figures.mean >= ENOUGH_TOKENS:
        yield (
            f"layer {layer}: uneven, coefficient of variation {figures.variation:.2f}; expert {figures.busiest} has "
            f"{figures.busiest_share:.1f} times the mean"
        )
    if stalled > STARVED:
        yield f"layer {layer}: {100 * stalled:.0f} % of its experts' time is waiting for reads; more cache slots help"
