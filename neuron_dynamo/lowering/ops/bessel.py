"""Bessel functions of the first and second kind, orders 0 and 1, and the spherical one of order 0.

Rational approximations of the Cephes Math Library (S. Moshier), routines j0, j1, y0 and y1: to 5 about the zeros of the function, beyond as
a modulus and a phase (DLMF 10.17).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from neuron_dynamo.lowering.builder import Builder, Value
from neuron_dynamo.lowering.ops.elementwise import widened
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.series import polynomial, ratio

aten = torch.ops.aten

_PP0 = (
    0.0007969367292973471,
    0.08283523921074408,
    1.239533716464143,
    5.447250030587687,
    8.74716500199817,
    5.303240382353949,
    1.0,
)
_PQ0 = (
    0.0009244088105588637,
    0.08562884743544745,
    1.2535274390105895,
    5.470977403304171,
    8.761908832370695,
    5.306052882353947,
    1.0,
)
_QP0 = (
    -0.011366383889846916,
    -1.2825271867050931,
    -19.553954425773597,
    -93.20601521237683,
    -177.68116798048806,
    -147.07750515495118,
    -51.41053267665993,
    -6.050143506007285,
)
_QQ0 = (
    64.3178256118178,
    856.4300259769806,
    3882.4018360540163,
    7240.467741956525,
    5930.727011873169,
    2062.0933166032783,
    242.0057402402914,
)
_RP0 = (
    -4794432209.782018,
    1956174919465.5657,
    -249248344360967.72,
    9708622510473064.0,
)
_RQ0 = (
    499.563147152651,
    173785.4016763747,
    48440965.83399621,
    11185553704.535683,
    2112775201154.892,
    310518229857422.56,
    3.1812195594320496e16,
    1.7108629408104315e18,
)
_PP1 = (
    0.0007621256162081731,
    0.07313970569409176,
    1.1271960812968493,
    5.112079511468076,
    8.424045901417724,
    5.214515986823615,
    1.0,
)
_PQ1 = (
    0.0005713231280725487,
    0.06884559087544954,
    1.105142326340617,
    5.073863861286015,
    8.399855543276042,
    5.209828486823619,
    1.0,
)
_QP1 = (
    0.05108625947501766,
    4.982138729512334,
    75.82382841325453,
    366.7796093601508,
    710.8563049989261,
    597.4896124006136,
    211.68875710057213,
    25.207020585802372,
)
_QQ1 = (
    74.23732770356752,
    1056.4488603826283,
    4986.410583376536,
    9562.318924047562,
    7997.041604473507,
    2826.1927851763908,
    336.0936078106983,
)
_RP1 = (
    -899971225.7055594,
    452228297998.19403,
    -72749424522181.83,
    3682957328638529.0,
)
_RQ1 = (
    620.8364781180543,
    256987.25675774884,
    83514679.14319493,
    22151159547.97925,
    4749141220799.914,
    784369607876235.9,
    8.952223361846274e16,
    5.322786203326801e18,
)
_YP0 = (
    15592.436785523574,
    -14663929.59039716,
    5435264770.518765,
    -982136065717.9115,
    87590639439536.7,
    -3466283033847297.0,
    4.4273326857256984e16,
    -1.8495080043698668e16,
)
_YQ0 = (
    1041.2835366425984,
    626107.330137135,
    268919633.39381415,
    86400248710.3935,
    20297961275010.555,
    3171577528429750.5,
    2.5059625617265306e17,
)
_YP1 = (
    1263204747.9017804,
    -647355876379.1603,
    114509511541823.73,
    -8127702555013251.0,
    2.024394757135949e17,
    -7.788771962659501e17,
)
_YQ1 = (
    594.3015923461282,
    235564.09294306856,
    73481194.44597217,
    18760131610.870617,
    3882312774962.3857,
    620557727146953.8,
    6.871410873553005e16,
    3.9727060811656064e18,
)


def _j0(b: Builder, x: Value) -> Value:
    x = b.unary("abs", x)
    square = b.mul(x, x)
    near = b.mul(_zeros(b, square, (5.78318596294678452118e00, 3.04712623436620863991e01)), ratio(b, square, _RP0, _RQ0))
    near = b.select(b.compare("LT", x, b.like(x, 1e-5)), b.sub(b.like(x, 1), b.mul(square, b.like(x, 0.25))), near)
    return b.select(b.compare("LE", x, b.like(x, 5)), near, _far(b, x, "cosine", 0.25, _PP0, _PQ0, _QP0, _QQ0))


def _j1(b: Builder, x: Value) -> Value:
    size = b.unary("abs", x)
    square = b.mul(x, x)
    near = b.mul(b.mul(ratio(b, square, _RP1, _RQ1), size), _zeros(b, square, (1.46819706421238932572e01, 4.92184563216946036703e01)))
    result = b.select(b.compare("LE", size, b.like(x, 5)), near, _far(b, size, "cosine", 0.75, _PP1, _PQ1, _QP1, _QQ1))
    return b.select(b.compare("LT", x, b.like(x, 0)), b.neg(result), result)


def _y0(b: Builder, x: Value) -> Value:
    square = b.mul(x, x)
    near = b.add(ratio(b, square, _YP0, _YQ0), b.mul(b.mul(b.like(x, 2 / math.pi), b.unary("log", x)), _j0(b, x)))
    return _second_kind(b, x, near, _far(b, x, "sine", 0.25, _PP0, _PQ0, _QP0, _QQ0))


def _y1(b: Builder, x: Value) -> Value:
    product = b.sub(b.mul(_j1(b, x), b.unary("log", x)), b.div(b.like(x, 1), x))
    near = b.add(b.mul(x, ratio(b, b.mul(x, x), _YP1, _YQ1)), b.mul(b.like(x, 2 / math.pi), product))
    return _second_kind(b, x, near, _far(b, x, "sine", 0.75, _PP1, _PQ1, _QP1, _QQ1))


def _zeros(b: Builder, square: Value, zeros: Sequence[float]) -> Value:
    """Product of (square - zero), which keeps the function exact where it vanishes."""
    first, second = (b.sub(square, b.like(square, zero)) for zero in zeros)
    return b.mul(first, second)


def _second_kind(b: Builder, x: Value, near: Value, far: Value) -> Value:
    """-inf at 0, NaN below."""
    zero = b.like(x, 0)
    result = b.select(b.compare("LE", x, b.like(x, 5)), near, far)
    result = b.select(b.compare("LT", x, zero), b.like(x, math.nan), result)
    return b.select(b.compare("EQ", x, zero), b.like(x, -math.inf), result)


def _far(
    b: Builder,
    x: Value,
    wave: str,
    phase: float,
    pp: Sequence[float],
    pq: Sequence[float],
    qp: Sequence[float],
    qq: Sequence[float],
) -> Value:
    """sqrt(2 / (pi x)) (P cos(x - phase pi) - Q sin(x - phase pi)) for x > 5; with sine and cosine changed, and a plus, for Y."""
    inverse = b.div(b.like(x, 5), x)
    square = b.mul(inverse, inverse)
    angle = b.sub(x, b.like(x, phase * math.pi))
    sine, cosine = b.unary("sine", angle), b.unary("cosine", angle)
    even, odd = ratio(b, square, pp, pq), b.mul(inverse, ratio(b, square, qp, qq))
    swing = b.sub(b.mul(even, cosine), b.mul(odd, sine)) if wave == "cosine" else b.add(b.mul(even, sine), b.mul(odd, cosine))
    return b.div(b.mul(swing, b.like(x, math.sqrt(2 / math.pi))), b.unary("sqrt", x))


def _spherical_j0(b: Builder, x: Value) -> Value:
    """sin(x) / x; its series near 0, where the quotient is 0 / 0."""
    square = b.mul(x, x)
    near = polynomial(b, square, [(-1) ** (n // 2) / math.factorial(n + 1) for n in range(12, -1, -2)])
    result = b.select(b.compare("LT", b.unary("abs", x), b.like(x, 0.5)), near, b.div(b.unary("sine", x), x))
    return b.select(b.compare("EQ", b.unary("abs", x), b.like(x, math.inf)), b.like(x, 0), result)


def _unary(body: Callable[[Builder, Value], Value]) -> Callable[[Builder, Value], Value]:
    return lambda b, x: widened(b, x, lambda wide: body(b, wide))


lowering(aten.special_bessel_j0.default)(_unary(_j0))
lowering(aten.special_bessel_j1.default)(_unary(_j1))
lowering(aten.special_bessel_y0.default)(_unary(_y0))
lowering(aten.special_bessel_y1.default)(_unary(_y1))
lowering(aten.special_spherical_bessel_j0.default)(_unary(_spherical_j0))
