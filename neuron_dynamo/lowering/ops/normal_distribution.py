"""Functions about the normal distribution that need expansions of their own: the scaled complementary error function and the inverse of the
cumulative distribution. ndtr and log_ndtr are PyTorch's decompositions to these and erfc."""

from __future__ import annotations

import math

import torch

from neuron_dynamo.lowering.builder import Builder, Value
from neuron_dynamo.lowering.ops.elementwise import widened
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.series import chebyshev, ratio

aten = torch.ops.aten

_ERFCX = (
    5.068148904796111e-17,
    7.418235256624044e-17,
    -1.2507950530688648e-15,
    -1.864562880419313e-15,
    3.3478119482868056e-14,
    3.25254814814874e-14,
    -9.65469674843344e-13,
    1.9455868545777347e-13,
    2.86879501093067e-11,
    -6.318088340886684e-11,
    -7.754400208831351e-10,
    4.521959811218287e-09,
    1.076499946567091e-08,
    -2.1886401049234397e-07,
    7.74038306619849e-07,
    4.13902798607301e-06,
    -6.916973302501207e-05,
    0.0004907758365258086,
    -0.002413163540417608,
    0.009074997670705265,
    -0.026658668435305753,
    0.05920993999819189,
    -0.08424913336651792,
    -0.004590054580646478,
    2.3551578691348034,
)
"""Of (1 + 2x) erfcx(x), x >= 0, in t = (x - 3.75) / (x + 3.75): the form of Shepherd and Laframboise, Math. Comp. 36 (1981) 249."""

_P0 = (
    -59.96335010141079,
    98.00107541859997,
    -56.67628574690703,
    13.931260938727968,
    -1.2391658386738125,
)
_Q0 = (
    1.0,
    1.9544885833814176,
    4.676279128988815,
    86.36024213908905,
    -225.46268785411937,
    200.26021238006066,
    -82.03722561683334,
    15.90562251262117,
    -1.1833162112133,
)
_P1 = (
    4.0554489230596245,
    31.525109459989388,
    57.16281922464213,
    44.08050738932008,
    14.684956192885803,
    2.1866330685079025,
    -0.1402560791713545,
    -0.03504246268278482,
    -0.0008574567851546854,
)
_Q1 = (
    1.0,
    15.779988325646675,
    45.39076351288792,
    41.3172038254672,
    15.04253856929075,
    2.504649462083094,
    -0.14218292285478779,
    -0.03808064076915783,
    -0.0009332594808954574,
)
_P2 = (
    3.2377489177694603,
    6.915228890689842,
    3.9388102529247444,
    1.3330346081580755,
    0.20148538954917908,
    0.012371663481782003,
    0.00030158155350823543,
    2.6580697468673755e-06,
    6.239745391849833e-09,
)
_Q2 = (
    1.0,
    6.02427039364742,
    3.6798356385616087,
    1.3770209948908132,
    0.21623699359449663,
    0.013420400608854318,
    0.00032801446468212774,
    2.8924786474538068e-06,
    6.790194080099813e-09,
)


@lowering(aten.special_erfcx.default)
def special_erfcx(b: Builder, x: Value) -> Value:
    """exp(x^2) erfc(x); below 0 by 2 exp(x^2) - erfcx(-x)."""

    def body(x: Value) -> Value:
        size = b.unary("abs", x)
        argument = b.sub(b.like(x, 2), b.div(b.like(x, 15), b.add(size, b.like(x, 3.75))))
        positive = b.div(chebyshev(b, argument, _ERFCX), b.add(b.mul(size, b.like(x, 2)), b.like(x, 1)))
        negative = b.sub(b.mul(b.unary("exponential", b.mul(x, x)), b.like(x, 2)), positive)
        return b.select(b.compare("LT", x, b.like(x, 0)), negative, positive)

    return widened(b, x, body)


@lowering(aten.special_ndtri.default)
def special_ndtri(b: Builder, y: Value) -> Value:
    """The x below which the standard normal distribution has probability y, by the Cephes Math Library's routine ndtri (S. Moshier)."""

    def body(y: Value) -> Value:
        zero, one, tail = b.like(y, 0), b.like(y, 1), math.exp(-2)
        upper = b.compare("GT", y, b.like(y, 1 - tail))
        folded = b.select(upper, b.sub(one, y), y)
        centred = b.sub(folded, b.like(y, 0.5))
        square = b.mul(centred, centred)
        inner = b.add(centred, b.mul(centred, b.mul(square, ratio(b, square, _P0, _Q0))))
        inner = b.mul(inner, b.like(y, math.sqrt(2 * math.pi)))

        x = b.unary("sqrt", b.mul(b.unary("log", folded), b.like(y, -2)))
        z = b.div(one, x)
        near, far = b.mul(z, ratio(b, z, _P1, _Q1)), b.mul(z, ratio(b, z, _P2, _Q2))
        correction = b.select(b.compare("LT", x, b.like(y, 8)), near, far)
        outer = b.sub(b.sub(x, b.div(b.unary("log", x), x)), correction)
        outer = b.select(upper, outer, b.neg(outer))

        result = b.select(b.compare("GT", folded, b.like(y, tail)), inner, outer)
        result = b.select(b.compare("EQ", y, zero), b.like(y, -math.inf), result)
        result = b.select(b.compare("EQ", y, one), b.like(y, math.inf), result)
        outside = b.binary("or", b.compare("LT", y, zero), b.compare("GT", y, one))
        return b.select(outside, b.like(y, math.nan), result)

    return widened(b, y, body)
