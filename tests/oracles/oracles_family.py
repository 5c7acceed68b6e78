"""Independent oracles for the exact privacy of the whole family, one pair of neighbours at a time.

Neighbours H (with the user) and H' (without): j counts are non-zero in both, s of them larger by one in H,
and r counts are 1 in H and 0 in H'. Thresholding a shared count is post-processing, and irrelevant for
large counts, so what is observed is the noisy shared counts and which of the new ones passed. Write x for
the noisy shared counts minus those of H, W for Z_shared:

    P (H):  x_i = Z_i + W, and no new count passes with probability Phi((tau - W)/sigma)^r given W
    Q (H'): x_i = Z_i + W - v_i, v having s ones; there are no new counts

"Some new count passed" is impossible under Q. On its complement P has the density p(x) g(x), where
g(x) = Pr[none passes | x]. Hence
    add    D(P||Q) = Pr[some passes] + integral (p g - e^epsilon q)_+
    remove D(Q||P) = integral (q - e^epsilon p g)_+

Two numbers suffice for x: the mean M of all j, and the contrast C (mean of the s minus mean of the j - s).
They are independent under both laws: M ~ N(0, sigma^2/j + sigma_shared^2), shifted by -s/j under Q;
C ~ N(0, sigma^2 j/(s(j-s))), shifted by -1 under Q, and free of W. W given x is normal with precision
1/sigma_shared^2 + j/sigma^2 and mean T = M j/(gamma + j), so that g is a function of M alone. Given M, the
integral over C is a Gaussian hockey stick with mu^2 = s(j-s)/(j sigma^2).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from flint import arb, ctx
from mpmath import mp, mpf

from oracles import (
    DPS,
    NEGLIGIBLE,
    Real,
    adaptive_integral,
    delta_gaussian,
    from_ball,
    hockey_stick_scaled,
    infinite_event,
    log_normal_cdf,
    normal_cdf,
    normal_density,
    real,
    real_line_integral,
    to_ball,
)

_NEGLIGIBLE = arb(str(NEGLIGIBLE))


class Noise(NamedTuple):
    """The mechanism: the two standard deviations and the threshold above one."""

    sigma: mpf
    shared: mpf
    tau: mpf

    @property
    def gamma(self) -> mpf:
        """sigma^2/sigma_shared^2."""
        return (self.sigma / self.shared) ** 2


@cache
def _none_of(noise: Noise, r: int, w: Real) -> mpf:
    """Phi((tau - w)/sigma)^r: no new count passes, given the shared noise w."""
    return mp.exp(r * log_normal_cdf((noise.tau - w) / noise.sigma))


@cache
def _none_at_nodes(noise: Noise, r: int, step: mpf) -> dict[int, arb]:
    """Phi((tau - w)/sigma)^r at w = n step, by n, as far as it was needed."""
    return {}


@cache
def none_passes(*, noise: Noise, r: int, j: int, mean: Real) -> mpf:
    """g(M) = E over W ~ N(M j/(gamma+j), sigma^2/(gamma+j)) of Phi((tau - W)/sigma)^r, by quadrature.

    The trapezoidal nodes are multiples of a power of two, the same for all M, so that each Phi is computed
    once; the normal weights follow from each other by their ratios. On a line at the distance y from the real
    one |Phi(a + i b)| <= e^(b^2/2) Phi(a), so the integrand is at most e^(y^2/(2 t^2)) times its real values with
    t^2 = sigma^2/(gamma + j + r). Hence the rule is off by 2 e^(-2 pi^2 t^2/step^2) of the integral at most,
    which is below 1e-33 for a step of t/2.
    """
    spread = noise.sigma / mp.sqrt(noise.gamma + j)
    centre = mean * j / (noise.gamma + j)
    narrow = noise.sigma / mp.sqrt(noise.gamma + j + r)
    step = mpf(2) ** (int(mp.floor(mp.log(narrow, 2))) - 1)
    first = int(mp.floor(centre / step))
    h = step / spread
    known = _none_at_nodes(noise, r, step)
    with ctx.workprec(mp.prec + 30):
        shrink, total, peak = to_ball(mp.exp(-(h**2))), arb(0), arb(0)
        # The node `first` and all above it, then all below it.
        for sign, start in ((1, first), (-1, first - 1)):
            x = sign * (start * step - centre) / spread
            weight, ratio = to_ball(mp.exp(-(x**2) / 2)), to_ball(mp.exp(-h * (x + h / 2)))
            before, n = arb(-1), start
            while True:
                if n not in known:
                    known[n] = to_ball(_none_of(noise, r, n * step))
                value = weight * known[n]
                total, peak = total + value, peak.max(value)
                if value <= before and value <= _NEGLIGIBLE * peak:
                    break
                before, n, weight, ratio = value, n + sign, weight * ratio, ratio * shrink
        area = from_ball(total) * step
    return area / (spread * mp.sqrt(2 * mp.pi))


def shifted_density(x: Real, *, mean: Real, deviation: Real) -> mpf:
    """Density of N(mean, deviation^2) at x."""
    return normal_density((x - mean) / deviation) / deviation


def squared_sensitivity(*, j: int, s: int, sigma: Real, sigma_shared: Real) -> mpf:
    """v^T Sigma^-1 v, v = (1^s, 0^(j-s)), Sigma = sigma^2 I + sigma_shared^2 11^T, by a matrix solve."""
    with mp.workdps(DPS):
        if s == 0:
            return mpf(0)
        covariance = mp.ones(j) * real(sigma_shared) ** 2 + mp.eye(j) * real(sigma) ** 2
        v = mp.matrix([1] * s + [0] * (j - s))
        return (v.T * mp.lu_solve(covariance, v))[0]


def winning_interval(f: Callable[[Any], Any], *, level: Real, reach: Real) -> tuple[mpf, mpf] | None:
    """The set where a concave f exceeds the level, an interval, to about 20 digits; None if it is empty.

    Only [-reach, reach] is searched, which is to hold all the mass that matters: an end beyond it is
    reported as infinite. The maximum is located by bisecting the sign of a difference quotient.
    """
    inner = _argmax(f, reach=reach)
    if f(inner) <= level:
        return None
    left = -mp.inf if f(-reach) > level else _root(f, -reach, inner, level)
    right = mp.inf if f(reach) > level else _root(f, inner, reach, level)
    return left, right


def _argmax(f: Callable[[Any], Any], *, reach: Real) -> mpf:
    """The maximiser of a concave f on [-reach, reach] to about 1e-9 reach (an error of second order in f)."""
    nudge = reach * mpf("1e-9")

    def rising(x: mpf) -> bool:
        return bool(f(x + nudge) > f(x))

    low, high = -real(reach), real(reach)
    if not rising(low):
        return low
    while high - low > nudge:
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) else (low, middle)
    return (low + high) / 2


def _root(f: Callable[[Any], Any], low: Real, high: Real, level: Real) -> mpf:
    """Where f crosses the level between points on opposite sides of it: bisection, then a secant rule."""
    outside = f(low) <= level
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if (f(middle) <= level) == outside else (low, middle)
    return mp.findroot(lambda x: f(x) - level, (low, high), solver="anderson", tol=mpf("1e-38"), maxsteps=200)


def between(low: Real, high: Real) -> mpf:
    """Pr[low < N(0,1) < high], taken in the tail where it does not cancel."""
    if low > 0:
        return normal_cdf(-low) - normal_cdf(-high)
    return normal_cdf(high) - normal_cdf(low)


@cache
def delta_case(
    *, j: int, r: int, s: int, sigma: Real, sigma_shared: Real, tau: Real, epsilon: Real, direction: str
) -> mpf:
    """The exact divergence of a pair of neighbours: "add" is D(P||Q), "remove" is D(Q||P) (see the top)."""
    if direction not in ("add", "remove") or not 0 <= s <= j or r < 0:
        raise ValueError("no such case")
    with mp.workdps(DPS):
        noise = Noise(real(sigma), real(sigma_shared), real(tau))
        eps = real(epsilon)
        if r == 0:
            root = mp.sqrt(squared_sensitivity(j=j, s=s, sigma=sigma, sigma_shared=sigma_shared))
            return delta_gaussian(sensitivity=root, sigma=1, epsilon=eps)
        if j == 0 or noise.shared == 0:
            return _independent_case(noise, r=r, s=s, eps=eps, add=direction == "add")
        some = _some_passes(noise, r) if direction == "add" else mpf(0)
        finite = _one_number_case if s in (0, j) else _two_number_case
        return some + finite(noise, j=j, r=r, s=s, eps=eps, add=direction == "add")


def _some_passes(noise: Noise, r: int) -> mpf:
    """Pr[some of r new counts passes]."""
    return infinite_event(count=r, sigma=noise.sigma, sigma_shared=noise.shared, tau=noise.tau)


def _independent_case(noise: Noise, *, r: int, s: int, eps: Real, add: bool) -> mpf:
    """No shared counts, or no shared noise: the new counts are independent of x and g is a constant.

    The shared counts are then a Gaussian pair at distance sqrt(s)/sigma (0 when there are none).
    """
    some = _some_passes(noise, r)
    factor, mu = mp.exp(eps), mp.sqrt(s) / noise.sigma
    if add:
        return some + hockey_stick_scaled(a=1 - some, b=factor, mu=mu)
    return hockey_stick_scaled(a=mpf(1), b=factor * (1 - some), mu=mu)


def _two_number_case(noise: Noise, *, j: int, r: int, s: int, eps: Real, add: bool) -> mpf:
    """0 < s < j: integral over M of the closed Gaussian hockey stick in C, mu^2 = s(j-s)/(j sigma^2).

    In the direction "remove" there may be two peaks (M low, where q > p; M high, where g is small), which
    is why nine standard deviations around both means are always covered.
    """
    deviation = mp.sqrt(noise.sigma**2 / j + noise.shared**2)
    shift, factor = -mpf(s) / j, mp.exp(eps)
    mu = mp.sqrt(mpf(s) * (j - s) / j) / noise.sigma

    def integrand(mean: mpf) -> mpf:
        p = shifted_density(mean, mean=0, deviation=deviation)
        p *= none_passes(noise=noise, r=r, j=j, mean=mean)
        q = shifted_density(mean, mean=shift, deviation=deviation)
        a, b = (p, factor * q) if add else (q, factor * p)
        return hockey_stick_scaled(a=a, b=b, mu=mu)

    return adaptive_integral(integrand, low=shift - 9 * deviation, high=9 * deviation, width=3 * deviation)


def _one_number_case(noise: Noise, *, j: int, r: int, s: int, eps: Real, add: bool) -> mpf:
    """s = 0 or s = j: there is no contrast (or it is the same under both), so p g / q depends on M alone.

    ln(p g/q) = s M/(j V) + s^2/(2 j^2 V) + ln g(M), with V = Var M, is concave in M (g is log-concave as a
    marginal of a log-concave function): p g exceeds e^epsilon q on an interval, and q exceeds e^epsilon p g
    outside of one. Integral of p g over an interval: given W, M ~ N(W, sigma^2/j), so average over W.
    """
    deviation = mp.sqrt(noise.sigma**2 / j + noise.shared**2)
    shift = mpf(s) / j
    slope = shift / deviation**2

    def log_ratio(mean: mpf) -> mpf:
        line = slope * (mean + shift / 2)
        return line + mp.log(none_passes(noise=noise, r=r, j=j, mean=mean))

    def excess(low: mpf, high: mpf) -> mpf:
        kept = _mass_without_passing(noise, j=j, r=r, low=low, high=high)
        other = between((low + shift) / deviation, (high + shift) / deviation)
        return kept - mp.exp(eps) * other if add else other - mp.exp(eps) * kept

    interval = winning_interval(log_ratio, level=eps if add else -eps, reach=40 * deviation + shift)
    if add:
        return mpf(0) if interval is None else excess(*interval)
    if interval is None:
        return excess(-mp.inf, mp.inf)
    low, high = interval
    return (mpf(0) if low == -mp.inf else excess(-mp.inf, low)) + excess(high, mp.inf)


def _mass_without_passing(noise: Noise, *, j: int, r: int, low: Real, high: Real) -> mpf:
    """Pr[low < M < high and none of the r new counts passes] under P, as one integral over W."""
    narrow = noise.sigma / mp.sqrt(j)

    def integrand(z: mpf) -> mpf:
        w = noise.shared * z
        none = _none_of(noise, r, w)
        return normal_density(z) * none * between((low - w) / narrow, (high - w) / narrow)

    return real_line_integral(integrand, low=mpf(-9), high=mpf(9), step=mpf(1) / 2)


def delta_family(
    *, k: int, m: int, sigma: Real, sigma_shared: Real, tau: Real, epsilon: Real
) -> tuple[mpf, tuple[int, int, int, str]]:
    """The largest delta_case over all 0 <= s <= j, j + r <= k, r + s <= m and both directions (small k)."""
    best: tuple[mpf, tuple[int, int, int, str]] = (mpf(-1), (0, 0, 0, "add"))
    for j in range(k + 1):
        for r in range(min(k - j, m) + 1):
            for s in range(min(j, m - r) + 1):
                for direction in ("add", "remove"):
                    value = delta_case(
                        j=j, r=r, s=s, sigma=sigma, sigma_shared=sigma_shared, tau=tau, epsilon=epsilon,
                        direction=direction,
                    )  # fmt: skip
                    if value > best[0]:
                        best = (value, (j, r, s, direction))
    return best


def offset_bound(
    *,
    j: int,
    r: int,
    s: int,
    a: Real,
    sigma: Real,
    sigma_shared: Real,
    tau: Real,
    epsilon: Real,
    direction: str,
) -> mpf:
    """An upper bound of delta_case by revealing the shared noise, shifted by the offset a on the side of H'.

    H shows (H_i + Z_i, W) and H' shows (H'_i + a + Z_i, W - a): the sums are those of the mechanism. Given
    w, none of the new counts passes with probability Phi((tau - w)/sigma)^r, independently of the rest; the
    s counts differ by 1 - a and the others by -a, so that mu^2 = (s (1-a)^2 + (j-s) a^2)/sigma^2, and the
    last coordinate has the densities N(0, sigma_shared^2) and N(-a, sigma_shared^2).
    """
    if direction not in ("add", "remove") or not 0 <= s <= j or r < 0:
        raise ValueError("no such case")
    with mp.workdps(DPS):
        noise, offset = Noise(real(sigma), real(sigma_shared), real(tau)), real(a)
        add, factor = direction == "add", mp.exp(real(epsilon))
        mu = mp.sqrt(s * (1 - offset) ** 2 + (j - s) * offset**2) / noise.sigma
        if noise.shared == 0:
            if offset != 0:
                raise ValueError("without shared noise there is no offset")
            return _independent_case(noise, r=r, s=s, eps=real(epsilon), add=add)
        some = _some_passes(noise, r) if add else mpf(0)
        if mu == 0:
            return some + _offset_without_counts(noise, r=r, offset=offset, eps=real(epsilon), add=add)

        def integrand(w: mpf) -> mpf:
            p = shifted_density(w, mean=0, deviation=noise.shared)
            p *= _none_of(noise, r, w)
            q = shifted_density(w, mean=-offset, deviation=noise.shared)
            x, y = (p, factor * q) if add else (q, factor * p)
            return hockey_stick_scaled(a=x, b=y, mu=mu)

        low, high = min(-offset, mpf(0)) - 9 * noise.shared, max(-offset, mpf(0)) + 9 * noise.shared
        return some + adaptive_integral(integrand, low=low, high=high, width=3 * noise.shared)


def _offset_without_counts(noise: Noise, *, r: int, offset: Real, eps: Real, add: bool) -> mpf:
    """The offset bound's integral for mu = 0: (A - B)_+ has kinks, A > B on an interval or outside one."""
    if r == 0:
        return delta_gaussian(sensitivity=offset, sigma=noise.shared, epsilon=eps)
    slope = offset / noise.shared**2

    def log_ratio(w: mpf) -> mpf:
        return slope * (w + offset / 2) + r * log_normal_cdf((noise.tau - w) / noise.sigma)

    def gain(w: mpf) -> mpf:
        p = shifted_density(w, mean=0, deviation=noise.shared) * _none_of(noise, r, w)
        q = shifted_density(w, mean=-offset, deviation=noise.shared)
        return p - mp.exp(eps) * q if add else q - mp.exp(eps) * p

    reach = 13 * noise.shared + abs(offset)
    interval = winning_interval(log_ratio, level=eps if add else -eps, reach=reach)
    if add:
        pieces = [] if interval is None else [interval]
    else:
        pieces = [(-reach, reach)] if interval is None else [(-reach, interval[0]), (interval[1], reach)]
    total = mpf(0)
    for left, right in pieces:
        low, high = max(left, -reach), min(right, reach)
        if low < high:
            total += mp.quad(gain, mp.linspace(low, high, 30), method="gauss-legendre")
    return total
