"""What a mask of known values is: rows and columns hidden as a whole, and a band."""

from dataclasses import dataclass

import numpy as np

from tpuport.attention.provenance.bands import Band

MOST_ELEMENTS = 4096 * 4096


@dataclass(frozen=True)
class Found:
    """A boolean mask [B or 1, Q, T] is `keys_BT & queries_BQ & band`."""

    keys_BT: np.ndarray
    queries_BQ: np.ndarray
    band: Band


def inspect(visible_BQT: np.ndarray) -> Found | None:
    """The structure of a mask, or None if it has no such one."""
    keys_BT, queries_BQ = np.asarray(visible_BQT.any(1)), np.asarray(visible_BQT.any(2))
    rows, columns = np.nonzero(visible_BQT.any(0))
    if rows.size == 0:
        return Found(keys_BT, np.ones_like(queries_BQ), Band())
    distances = columns - rows
    low, high = int(distances.min()), int(distances.max())
    outer = keys_BT[:, None, :] & queries_BQ[:, :, None]
    apart = np.arange(visible_BQT.shape[2])[None, :] - np.arange(visible_BQT.shape[1])[:, None]
    for band in (Band(), Band(None, high), Band(low, None), Band(low, high)):
        allowed = (band.low is None or apart >= band.low) & (band.high is None or apart <= band.high)
        if (visible_BQT == (outer & allowed)).all():
            return _least(keys_BT, queries_BQ, np.broadcast_to(allowed, apart.shape), band)
    return None


def _least(keys_BT: np.ndarray, queries_BQ: np.ndarray, allowed_QT: np.ndarray, band: Band) -> Found:
    """Without the keys and queries that are hidden in any case."""
    keys_BT = keys_BT | ~(queries_BQ[:, :, None] & allowed_QT).any(1)
    queries_BQ = queries_BQ | ~(keys_BT[:, None, :] & allowed_QT).any(2)
    return Found(keys_BT, queries_BQ, band)
