"""Airy's function Ai, by Cephes' rational approximations, which are torch's as well.

Near -2.1 torch's own values are off by 3e-6, in double precision too; these agree with
SciPy's.
"""

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.operators.declarations import Lowering, on_arrays

# Beyond these, power series end and expansions for large arguments begin; and there is
# nothing but 0.
_NEAR = 2.09
_LARGEST = 103.892
_TERMS = 20  # of the power series, which is more than float64 needs up to `_NEAR`
# Ai(0), -Ai'(0) and 1 / sqrt(pi).
_AT_ZERO = 0.355028053887817239
_SLOPE = 0.258819403792806798
_SCALE = 0.564189583547756287

# Numerators and denominators, the highest power first: of Ai above, and of its two
# parts below.
_ABOVE = (
    (
        3.46538101525629032477e-1, 1.20075952739645805542e1, 7.62796053615234516538e1, 1.68089224934630576269e2,
        1.59756391350164413639e2, 7.05360906840444183113e1, 1.40264691163389668864e1, 9.99999999999999995305e-1,
    ),
    (
        5.67594532638770212846e-1, 1.47562562584847203173e1, 8.45138970141474626562e1, 1.77318088145400459522e2,
        1.64234692871529701831e2, 7.14778400825575695274e1, 1.40959135607834029598e1, 1.00000000000000000470,
    ),
)  # fmt: skip
_COSINE_PART = (
    (
        -1.31696323418331795333e-1, -6.26456544431912369773e-1, -6.93158036036933542233e-1, -2.79779981545119124951e-1,
        -4.91900132609500318020e-2, -4.06265923594885404393e-3, -1.59276496239262096340e-4, -2.77649108155232920844e-6,
        -1.67787698489114633780e-8,
    ),
    (
        1.0, 1.33560420706553243746e1, 3.26825032795224613948e1, 2.67367040941499554804e1, 9.18707402907259625840,
        1.47529146771666414581, 1.15687173795188044134e-1, 4.40291641615211203805e-3, 7.54720348287414296618e-5,
        4.51850092970580378464e-7,
    ),
)  # fmt: skip
_SINE_PART = (
    (
        1.97339932091685679179e-2, 3.91103029615688277255e-1, 1.06579897599595591108, 9.39169229816650230044e-1,
        3.51465656105547619242e-1, 6.33888919628925490927e-2, 5.85804113048388458567e-3, 2.82851600836737019778e-4,
        6.98793669997260967291e-6, 8.11789239554389293311e-8, 3.41551784765923618484e-10,
    ),
    (
        1.0, 9.30892908077441974853, 1.98352928718312140417e1, 1.55646628932864612953e1, 5.47686069422975497931,
        9.54293611618961883998e-1, 8.64580826352392193095e-2, 4.12656523824222607191e-3, 1.01259085116509135510e-4,
        1.17166733214413521882e-6, 4.91834570062930015649e-9,
    ),
)  # fmt: skip


def airy_ai(x: jax.Array) -> jax.Array:
    """Traced. Ai(x), NaN at both infinities as in torch."""
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    values = jnp.where(
        x < -_NEAR, _below(x), jnp.where(x >= _NEAR, _above(x), _near_zero(x))
    )
    return jnp.where(jnp.isinf(x), jnp.nan, jnp.where(x > _LARGEST, 0, values))


def _rational(
    coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: jax.Array
) -> jax.Array:
    numerator, denominator = (
        jnp.polyval(jnp.asarray(part, x.dtype), x) for part in coefficients
    )
    return numerator / denominator


def _above(x: jax.Array) -> jax.Array:
    x = jnp.clip(x, _NEAR, _LARGEST)
    exponent = 2 * x * jnp.sqrt(x) / 3
    scale = _SCALE * jnp.exp(-exponent) / (2 * jnp.sqrt(jnp.sqrt(x)))
    return scale * _rational(_ABOVE, 1 / exponent)


def _below(x: jax.Array) -> jax.Array:
    x = jnp.where(x < -_NEAR, -x, _NEAR)
    angle = 2 * x * jnp.sqrt(x) / 3
    inverse = 1 / angle
    square = inverse * inverse
    cosine_part = 1 + square * _rational(_COSINE_PART, square)
    sine_part = inverse * _rational(_SINE_PART, square)
    theta = angle + jnp.pi / 4
    return (
        _SCALE
        / jnp.sqrt(jnp.sqrt(x))
        * (jnp.sin(theta) * cosine_part - jnp.cos(theta) * sine_part)
    )


def _near_zero(x: jax.Array) -> jax.Array:
    """By the two power series of Airy's equation."""
    x = jnp.clip(x, -_NEAR, _NEAR)
    cube = x * x * x
    term_of_first, term_of_second = jnp.ones_like(x), x
    first, second = term_of_first, term_of_second
    for k in range(3, 3 * _TERMS, 3):
        term_of_first = term_of_first * cube / ((k - 1) * k)
        term_of_second = term_of_second * cube / (k * (k + 1))
        first, second = first + term_of_first, second + term_of_second
    return _AT_ZERO * first - _SLOPE * second


LOWERINGS = (
    Lowering(
        torch.ops.aten.special_airy_ai.default, on_arrays(airy_ai), "has no lowering"
    ),
)
METHODS = ()
