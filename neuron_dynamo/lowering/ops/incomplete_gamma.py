"""The regularised incomplete gamma functions P(a, x) (igamma) and Q(a, x) (igammac).

The choice between Temme's uniform expansion (DLMF 8.12.3), the power series (8.11.4, 8.7.3) and the continued fraction (8.9.2), and the
prefactor by Lanczos's sum, are those of Boost's Math Toolkit ("Incomplete Gamma Functions", J. Maddock), which SciPy and ATen share.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from neuron_dynamo.lowering.builder import Builder, Scalar, Value, compute_dtype
from neuron_dynamo.lowering.loops import needs_while
from neuron_dynamo.lowering.promote import together
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.series import polynomial, ratio
from neuron_dynamo.lowering.structured import reduce, while_loop

aten = torch.ops.aten

_LANCZOS_G = 6.024680040776729583740234375
_LANCZOS_TOP = (
    0.006061842346248907,
    0.5098416655656676,
    19.519927882476175,
    449.9445569063168,
    6955.999602515376,
    75999.29304014542,
    601859.6171681099,
    3481712.154980646,
    14605578.087685067,
    43338889.32467614,
    86363131.2881386,
    103794043.11634454,
    56906521.913471565,
)
_LANCZOS_BOTTOM = (
    1.0,
    66.0,
    1925.0,
    32670.0,
    357423.0,
    2637558.0,
    13339535.0,
    45995730.0,
    105258076.0,
    150917976.0,
    120543840.0,
    39916800.0,
    0.0,
)
_TEMME = (
    (
        -0.3333333333333333,
        0.08333333333333333,
        -0.014814814814814815,
        0.0011574074074074073,
        0.0003527336860670194,
        -0.0001787551440329218,
        3.919263178522438e-05,
        -2.1854485106799924e-06,
        -1.85406221071516e-06,
        8.296711340953087e-07,
        -1.7665952736826078e-07,
        6.707853543401498e-09,
        1.0261809784240309e-08,
        -4.382036018453353e-09,
        9.14769958223679e-10,
    ),
    (
        -0.001851851851851852,
        -0.003472222222222222,
        0.0026455026455026454,
        -0.0009902263374485596,
        0.00020576131687242798,
        -4.018775720164609e-07,
        -1.8098550334489977e-05,
        7.64916091608111e-06,
        -1.6120900894563446e-06,
        4.647127802807434e-09,
        1.378633446915721e-07,
        -5.752545603517705e-08,
        1.1951628599778148e-08,
        -1.7543241719747647e-11,
        -1.0091543710600413e-09,
    ),
    (
        0.004133597883597883,
        -0.0026813271604938273,
        0.0007716049382716049,
        2.0093878600823047e-06,
        -0.00010736653226365161,
        5.2923448829120125e-05,
        -1.2760635188618728e-05,
        3.423578734096138e-08,
        1.3721957309062932e-06,
        -6.298992138380055e-07,
        1.4280614206064242e-07,
        -2.0477098421990866e-10,
        -1.409252991086752e-08,
        6.228974084922022e-09,
    ),
    (
        0.0006494341563786008,
        0.00022947209362139917,
        -0.0004691894943952557,
        0.00026772063206283885,
        -7.561801671883977e-05,
        -2.396505113867297e-07,
        1.1082654115347302e-05,
        -5.6749528269915965e-06,
        1.4230900732435883e-06,
        -2.7861080291528143e-11,
        -1.6958404091930278e-07,
        8.099464905388083e-08,
    ),
    (
        -0.0008618882909167117,
        0.0007840392217200666,
        -0.0002990724803031902,
        -1.4638452578843418e-06,
        6.641498215465122e-05,
        -3.968365047179435e-05,
        1.1375726970678419e-05,
        2.507497226237533e-10,
        -1.6954149536558305e-06,
        8.907507532205309e-07,
        -2.292934834000805e-07,
    ),
    (
        -0.00033679855336635813,
        -6.972813758365858e-05,
        0.0002772753244959392,
        -0.00019932570516188847,
        6.797780477937208e-05,
        1.419062920643967e-07,
        -1.3594048189768693e-05,
        8.018470256334202e-06,
        -2.291481176508095e-06,
    ),
    (
        0.0005313079364639922,
        -0.0005921664373536939,
        0.0002708782096718045,
        7.902353232660328e-07,
        -8.153969367561969e-05,
        5.61168275310625e-05,
        -1.8329116582843375e-05,
    ),
    (
        0.00034436760689237765,
        5.171790908260592e-05,
        -0.00033493161081142234,
        0.0002812695154763237,
        -0.00010976582244684731,
        -1.2741009095484485e-07,
        2.7744451511563645e-05,
    ),
    (
        -0.0006526239185953094,
        0.0008394987206720873,
        -0.000438297098541721,
        -6.969091458420552e-07,
        0.00016644846642067547,
        -0.00012783517679769218,
    ),
    (
        -0.0005967612901927463,
        -7.204895416020011e-05,
        0.0006782308837667328,
        -0.0006401475260262758,
    ),
    (
        0.0013324454494800656,
        -0.0019144384985654776,
    ),
)
"""Coefficients d[k][n] of a^-k eta^n, as far as they count in float64 for a > 20 and |eta| < 0.37."""

_MAX_TERMS = 2000


class _Region(NamedTuple):
    """Where each form serves; everywhere else of the inner domain it is the continued fraction."""

    temme: Value
    lower: Value
    small: Value


@lowering(aten.igamma.default, guard=needs_while)
def igamma(b: Builder, a: Value | Scalar, x: Value | Scalar) -> Value:
    return _regularised(b, a, x, upper=False)


@lowering(aten.igammac.default, guard=needs_while)
def igammac(b: Builder, a: Value | Scalar, x: Value | Scalar) -> Value:
    return _regularised(b, a, x, upper=True)


def _regularised(b: Builder, shape: Value | Scalar, argument: Value | Scalar, upper: bool) -> Value:
    a, x = together(b, [shape, argument], compute_dtype(b.out.dtype))
    zero, one, infinity = b.like(a, 0), b.like(a, 1), b.like(a, math.inf)
    inner = _all(b, b.compare("GT", a, zero), b.compare("GT", x, zero), b.compare("NE", a, infinity), b.compare("NE", x, infinity))
    inside_a, inside_x = b.select(inner, a, one), b.select(inner, x, one)
    result = _inner(b, inside_a, inside_x, inner, upper)

    # On the border: P is 1 where a = 0 or x = inf, 0 where x = 0 or a = inf, and undefined where the two meet.
    full = b.binary("or", b.compare("EQ", a, zero), b.compare("EQ", x, infinity))
    empty = b.binary("or", b.compare("EQ", x, zero), b.compare("EQ", a, infinity))
    border = b.select(b.binary("xor", full, empty), b.convert(b.logical_not(full) if upper else full, a.dtype), b.like(a, math.nan))
    outside = b.binary("or", b.compare("LT", a, zero), b.compare("LT", x, zero))
    outside = b.binary("or", outside, _all(b, b.compare("EQ", a, zero), b.is_nan(x)))
    border = b.select(outside, b.like(a, math.nan), border)
    return b.convert(b.select(inner, result, border), b.out.dtype)


def _inner(b: Builder, a: Value, x: Value, inner: Value, upper: bool) -> Value:
    one = b.like(a, 1)
    region = _regions(b, a, x, upper)
    prefactor = _prefactor(b, a, x)
    serves = _all(b, inner, b.logical_not(region.temme))
    lower = b.div(b.mul(_lower_series(b, a, x, _all(b, serves, region.lower)), prefactor), a)
    serves = _all(b, serves, b.logical_not(region.lower))
    fraction = b.mul(_fraction(b, a, x, _all(b, serves, b.logical_not(region.small))), prefactor)
    complement = b.select(region.small, _upper_series(b, a, x, _all(b, serves, region.small)), fraction)
    result = b.select(region.lower, b.sub(one, lower), complement) if upper else b.select(region.lower, lower, b.sub(one, complement))
    return b.select(region.temme, _temme(b, a, x, upper), result)


def _all(b: Builder, first: Value, *others: Value) -> Value:
    for other in others:
        first = b.binary("and", first, other)
    return first


def _regions(b: Builder, a: Value, x: Value, upper: bool) -> _Region:
    def less(left: Value | float, right: Value | float) -> Value:
        left, right = (b.like(a, v) if not isinstance(v, Value) else v for v in (left, right))
        return b.compare("LT", left, right)

    apart = b.div(b.unary("abs", b.sub(x, a)), a)
    medium = _all(b, less(20, a), less(a, 200), less(apart, 0.3))
    large = _all(b, less(200, a), less(apart, b.div(b.like(a, 4.5), b.unary("sqrt", a))))
    small = b.compare("LE", x, b.like(x, 1.1))
    if upper:
        tiny = b.compare("LE", x, b.like(x, 0.5))
        below = b.select(tiny, less(b.div(b.like(x, -0.4), b.unary("log", x)), a), less(b.mul(x, b.like(x, 1.1)), a))
        lower = b.select(small, below, less(x, a))
    else:
        lower = b.logical_not(_all(b, less(1, x), less(a, x)))
    return _Region(b.binary("or", medium, large), lower, small)


def _prefactor(b: Builder, a: Value, x: Value) -> Value:
    """x^a e^-x / gamma(a)."""
    one = b.like(a, 1)
    apart = b.compare("GT", b.unary("abs", b.sub(a, x)), b.mul(a, b.like(a, 0.4)))
    exponent = b.sub(b.sub(b.mul(a, b.unary("log", x)), x), _lgamma(b, a))
    far = b.unary("exponential", exponent)
    far = b.select(b.compare("LT", exponent, b.like(a, -math.log(torch.finfo(a.dtype).max))), b.like(a, 0), far)

    shifted = b.add(a, b.like(a, _LANCZOS_G - 0.5))
    inverse = b.div(one, a)
    gamma = b.select(
        b.compare("GT", a, one),
        ratio(b, inverse, _LANCZOS_TOP[::-1], _LANCZOS_BOTTOM[::-1]),
        ratio(b, a, _LANCZOS_TOP, _LANCZOS_BOTTOM),
    )
    root = b.div(b.unary("sqrt", b.mul(shifted, b.like(a, math.exp(-1)))), gamma)
    direct = b.mul(b.unary("exponential", b.sub(a, x)), b.binary("power", b.div(x, shifted), a))
    excess = b.div(b.add(b.sub(x, a), b.like(a, 0.5 - _LANCZOS_G)), shifted)
    logarithm = b.mul(a, b.sub(b.unary("log_plus_one", excess), excess))
    logarithm = b.add(logarithm, b.div(b.mul(x, b.like(x, 0.5 - _LANCZOS_G)), shifted))
    limit = b.like(a, 200)
    moderate = _all(b, b.compare("LT", a, limit), b.compare("LT", x, limit))
    near = b.mul(root, b.select(moderate, direct, b.unary("exponential", logarithm)))
    return b.select(apart, far, near)


def _lgamma(b: Builder, x: Value) -> Value:
    return b.chlo("lgamma", [x], x.shape, x.dtype)


Terms = Callable[[Value, list[Value]], tuple[list[Value], Value]]


def _sum(b: Builder, start: list[Value], active: Value, term: Terms) -> list[Value]:
    """Iterate (number, state) -> (state, finished) where `active`, each element until it is finished; numbers count from 1."""

    def more(carried: list[Value]) -> Value:
        count, active = carried[:2]
        return b.binary("and", b.compare("LE", count, b.like(count, _MAX_TERMS)), reduce(b, active, range(active.ndim), "or"))

    def body(carried: list[Value]) -> list[Value]:
        count, active, *state = carried
        number = b.broadcast(b.convert(count, state[0].dtype), state[0].shape, ())
        after, finished = term(number, state)
        kept = [b.select(active, new, old) for new, old in zip(after, state, strict=True)]
        return [b.add(count, b.like(count, 1)), b.binary("and", active, b.logical_not(finished)), *kept]

    return while_loop(b, [b.scalar(1, torch.int32), active, *start], more, body)[2:]


def _precision(b: Builder, x: Value) -> Value:
    return b.mul(x, b.like(x, torch.finfo(x.dtype).eps / 2))


def _lower_series(b: Builder, a: Value, x: Value, active: Value) -> Value:
    """Sum of x^n / ((a + 1) ... (a + n))."""

    def term(number: Value, state: list[Value]) -> tuple[list[Value], Value]:
        place, product, total, x = state
        place = b.add(place, b.like(place, 1))
        product = b.mul(product, b.div(x, place))
        total = b.add(total, product)
        return [place, product, total, x], b.compare("LE", product, _precision(b, total))

    return _sum(b, [a, b.like(a, 1), b.like(a, 1), x], active, term)[2]


def _upper_series(b: Builder, a: Value, x: Value, active: Value) -> Value:
    """Q for small x, without the cancellation in 1 - P."""

    def term(number: Value, state: list[Value]) -> tuple[list[Value], Value]:
        product, total, a, x = state
        product = b.mul(product, b.div(b.neg(x), number))
        part = b.div(product, b.add(a, number))
        total = b.add(total, part)
        return [product, total, a, x], b.compare("LE", b.unary("abs", part), _precision(b, b.unary("abs", total)))

    total = _sum(b, [b.like(a, 1), b.like(a, 0), a, x], active, term)[1]
    power = b.mul(a, b.unary("log", x))
    first = b.neg(b.unary("exponential_minus_one", b.sub(power, _lgamma(b, b.add(a, b.like(a, 1))))))
    return b.sub(first, b.mul(b.unary("exponential", b.sub(power, _lgamma(b, a))), total))


def _fraction(b: Builder, a: Value, x: Value, active: Value) -> Value:
    """Convergents p / q of the continued fraction, scaled down before they overflow."""
    big = 1 / (torch.finfo(a.dtype).eps if a.dtype == torch.float64 else torch.finfo(a.dtype).eps / 2)
    one = b.like(a, 1)

    def term(number: Value, state: list[Value]) -> tuple[list[Value], Value]:
        y, z, p_before, q_before, p, q, value = state
        y, z = b.add(y, b.like(y, 1)), b.add(z, b.like(z, 2))
        factor = b.mul(y, number)
        p_after = b.sub(b.mul(p, z), b.mul(p_before, factor))
        q_after = b.sub(b.mul(q, z), b.mul(q_before, factor))
        usable = b.compare("NE", q_after, b.like(q, 0))
        quotient = b.div(p_after, q_after)
        change = b.unary("abs", b.div(b.sub(value, quotient), quotient))
        finished = b.binary("and", usable, b.compare("LE", change, _precision(b, b.like(a, 1))))
        grown = b.compare("GT", b.unary("abs", p_after), b.like(p, big))
        scale = b.select(grown, b.like(p, 1 / big), b.like(p, 1))
        scaled = [b.mul(v, scale) for v in (p, q, p_after, q_after)]
        return [y, z, *scaled, b.select(usable, quotient, value)], finished

    y = b.sub(one, a)
    z = b.add(b.add(x, y), one)
    p, q = b.add(x, one), b.mul(z, x)
    return _sum(b, [y, z, one, x, p, q, b.div(p, q)], active, term)[6]


def _temme(b: Builder, a: Value, x: Value, upper: bool) -> Value:
    one, two = b.like(a, 1), b.like(a, 2)
    sigma = b.div(b.sub(x, a), a)
    size = b.unary("sqrt", b.mul(b.sub(sigma, b.unary("log_plus_one", sigma)), two))
    eta = b.select(b.compare("LT", x, a), b.neg(size), size)
    inverse = b.div(one, a)
    negligible = torch.finfo(a.dtype).eps / 100
    total = b.like(a, 0)
    rows = [_significant(row, 0.37, negligible * 20.0**k) for k, row in enumerate(_TEMME)]
    for row in reversed([row for row in rows if row]):
        total = b.add(b.mul(total, inverse), polynomial(b, eta, row[::-1]))
    root = b.unary("sqrt", b.mul(a, b.like(a, 0.5)))
    argument = b.mul(eta, root) if upper else b.neg(b.mul(eta, root))
    result = b.mul(b.chlo("erfc", [argument], a.shape, a.dtype), b.like(a, 0.5))
    bell = b.unary("exponential", b.mul(b.mul(eta, eta), b.mul(a, b.like(a, -0.5))))
    correction = b.div(b.mul(bell, total), b.unary("sqrt", b.mul(a, b.like(a, 2 * math.pi))))
    return b.add(result, correction) if upper else b.sub(result, correction)


def _significant(row: tuple[float, ...], bound: float, negligible: float) -> tuple[float, ...]:
    """The row up to its last coefficient that counts for arguments within `bound`."""
    count = max((n + 1 for n, c in enumerate(row) if abs(c) * bound**n > negligible), default=0)
    return row[:count]
