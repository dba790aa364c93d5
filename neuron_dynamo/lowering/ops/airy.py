"""The Airy function Ai, by the Cephes Math Library's routine airy (S. Moshier): Maclaurin's series in the middle, asymptotic forms
(DLMF 9.7) with rational corrections outside."""

from __future__ import annotations

import math

import torch

from neuron_dynamo.lowering.builder import Builder, Value
from neuron_dynamo.lowering.ops.elementwise import widened
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.series import polynomial, ratio

aten = torch.ops.aten

_AN = (
    0.346538101525629,
    12.007595273964581,
    76.27960536152345,
    168.08922493463058,
    159.75639135016442,
    70.53609068404442,
    14.026469116338967,
    1.0,
)
_AD = (
    0.5675945326387702,
    14.75625625848472,
    84.51389701414746,
    177.31808814540045,
    164.2346928715297,
    71.47784008255756,
    14.095913560783403,
    1.0,
)
_AFN = (
    -0.1316963234183318,
    -0.6264565444319123,
    -0.6931580360369335,
    -0.2797799815451191,
    -0.04919001326095003,
    -0.004062659235948854,
    -0.0001592764962392621,
    -2.776491081552329e-06,
    -1.6778769848911465e-08,
)
_AFD = (
    13.356042070655324,
    32.682503279522464,
    26.736704094149957,
    9.187074029072596,
    1.4752914677166642,
    0.11568717379518804,
    0.004402916416152112,
    7.547203482874142e-05,
    4.5185009297058035e-07,
)
_AGN = (
    0.01973399320916857,
    0.39110302961568827,
    1.0657989759959559,
    0.9391692298166502,
    0.35146565610554764,
    0.06338889196289255,
    0.005858041130483885,
    0.000282851600836737,
    6.98793669997261e-06,
    8.117892395543892e-08,
    3.415517847659236e-10,
)
_AGD = (
    9.30892908077442,
    19.835292871831214,
    15.564662893286462,
    5.476860694229755,
    0.9542936116189619,
    0.08645808263523921,
    0.004126565238242226,
    0.00010125908511650914,
    1.1716673321441352e-06,
    4.9183457006293e-09,
)


@lowering(aten.special_airy_ai.default)
def special_airy_ai(b: Builder, x: Value) -> Value:
    """Ai(x); NaN at either infinity and 0 above 103.892, as in ATen's kernel."""

    def body(x: Value) -> Value:
        result = b.select(b.compare("LT", x, b.like(x, -2.09)), _oscillating(b, x), _middle(b, x))
        result = b.select(b.compare("GE", x, b.like(x, 2.09)), _decaying(b, x), result)
        result = b.select(b.compare("GT", x, b.like(x, 103.892)), b.like(x, 0), result)
        return b.select(b.compare("EQ", b.unary("abs", x), b.like(x, math.inf)), b.like(x, math.nan), result)

    return widened(b, x, body)


def _oscillating(b: Builder, x: Value) -> Value:
    size = b.neg(x)
    root = b.unary("sqrt", size)
    phase = b.div(b.mul(b.mul(size, b.like(x, 2)), root), b.like(x, 3))
    inverse = b.div(b.like(x, 1), phase)
    square = b.mul(inverse, inverse)
    even = b.add(b.mul(square, ratio(b, square, _AFN, _AFD)), b.like(x, 1))
    odd = b.mul(inverse, ratio(b, square, _AGN, _AGD))
    angle = b.add(phase, b.like(x, math.pi / 4))
    swing = b.sub(b.mul(b.unary("sine", angle), even), b.mul(b.unary("cosine", angle), odd))
    return b.mul(b.div(b.like(x, 1 / math.sqrt(math.pi)), b.unary("sqrt", root)), swing)


def _decaying(b: Builder, x: Value) -> Value:
    root = b.unary("sqrt", x)
    zeta = b.div(b.mul(b.mul(x, b.like(x, 2)), root), b.like(x, 3))
    decay = b.mul(b.mul(b.unary("sqrt", root), b.like(x, 2)), b.unary("exponential", zeta))
    return b.div(b.mul(b.like(x, 1 / math.sqrt(math.pi)), ratio(b, b.div(b.like(x, 1), zeta), _AN, _AD)), decay)


def _middle(b: Builder, x: Value) -> Value:
    """DLMF 9.4.1 over |x| < 2.09, to the last term that float64 sees."""
    even, odd = [1.0], [1.0]
    for k in range(1, 14):
        even.insert(0, even[0] / ((3 * k - 1) * (3 * k)))
        odd.insert(0, odd[0] / ((3 * k) * (3 * k + 1)))
    cube = b.mul(b.mul(x, x), x)
    first = b.mul(polynomial(b, cube, even), b.like(x, 0.355028053887817239260))
    return b.sub(first, b.mul(b.mul(polynomial(b, cube, odd), x), b.like(x, 0.258819403792806798405)))
