"""The schema of a certificate: what it states about a release, field by field.

docs/certificate.md shows it as a JSON Schema. Numbers of the noise are whole steps and fractions, from which the
proof is recomputed; the doubles beside them follow from these, and are for readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from dphist.aliases import JsonObject
from dphist.certificate.request import LARGEST_WHOLE, AnyRequest
from dphist.certificate.text import FORMAT
from dphist.display import printable
from dphist.errors import InvalidParameter
from dphist.model import (
    FINEST_REACH,
    LARGEST_SCALE,
    LARGEST_VARIANCE,
    MOST_COLUMNS,
    MOST_ROUNDS,
    AnyNoise,
    LaplaceNoise,
    LatticeNoise,
    OffsetRule,
    Plan,
    PublicNoise,
    RoundsNoise,
    SumNoise,
)

_LARGEST_BOUND: Final = 10**40
_DIGITS: Final = "[0-9]{1,60}(/[0-9]{1,60})?"
# Python's $ is also before the end of a last line.
_END: Final = r"$(?!\n)"

Whole = Annotated[int, Meta(ge=0, le=LARGEST_WHOLE)]
Number = Annotated[int, Meta(ge=1, le=LARGEST_WHOLE)]
Steps = Annotated[int, Meta(ge=-LARGEST_WHOLE, le=LARGEST_WHOLE)]
Ratio = Annotated[str, Meta(pattern=f"^{_DIGITS}{_END}", description="A whole number or a fraction, such as 7/3.")]
SignedRatio = Annotated[str, Meta(pattern=f"^-?{_DIGITS}{_END}")]
Lattice = Annotated[int, Meta(ge=2, le=1 << 13, description="Steps for one user.")]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", max_length=64)]
Rounds = Annotated[tuple[Whole, ...], Meta(max_length=MOST_ROUNDS)]
Time = Annotated[str, Meta(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$", max_length=20)]
Version = Annotated[str, Meta(pattern="^[0-9][0-9A-Za-z.+!-]{0,63}" + _END, max_length=64)]


class Part(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A part of a certificate. Other fields than these are refused."""


def _fraction(text: str, largest: Fraction | int = LARGEST_VARIANCE) -> Fraction:
    """The fraction; a `ValueError` if it is larger than any in a plan that can be drawn."""
    number = Fraction(text)
    if not -largest <= number <= largest:
        raise ValueError
    return number


class Guarantee(Part, kw_only=True, frozen=True):
    epsilon: float
    delta: float
    unit: Literal["user"]
    neighbours: Literal["add-or-remove"]
    conditions: tuple[str, ...]


class SumPart(Part, kw_only=True, frozen=True, omit_defaults=True):
    """The noise of a sum, or of a vector with several columns; `sigma` is in units of the values."""

    low: SignedRatio
    high: SignedRatio
    sigma: float
    reach_steps: Annotated[int, Meta(ge=1, le=FINEST_REACH)]
    variance_steps: Ratio
    columns: Annotated[int, Meta(ge=1, le=MOST_COLUMNS)] = 1

    def noise_of(self) -> SumNoise:
        low, high = _fraction(self.low, _LARGEST_BOUND), _fraction(self.high, _LARGEST_BOUND)
        return SumNoise(low, high, self.reach_steps, _fraction(self.variance_steps), self.columns)


Sums = Annotated[tuple[SumPart, ...], Meta(max_length=64)]


class _Law(Part, kw_only=True, frozen=True, omit_defaults=True, tag_field="mechanism"):
    noise: Literal["discrete"]
    sigma: float
    sigma_shared: float
    gamma: float | None
    total_noise: float
    tau: float | None
    threshold: float | None


class GaussianOfOne(_Law, kw_only=True, frozen=True, tag="gshm"):
    """Gaussian noise for users with one item, in rounds."""

    lattice: Lattice
    variance_steps: Ratio
    variance_shared_steps: Ratio
    tau_steps: Whole

    def noise_of(self) -> LatticeNoise:
        shared = _fraction(self.variance_shared_steps)
        return LatticeNoise(self.lattice, _fraction(self.variance_steps), shared, self.tau_steps)


class LaplaceOfOne(_Law, kw_only=True, frozen=True, tag="laplace"):
    """Laplace noise for users with one item, in rounds."""

    scale: Ratio
    tau_steps: Whole

    def noise_of(self) -> LaplaceNoise:
        return LaplaceNoise(_fraction(self.scale, LARGEST_SCALE), self.tau_steps)


class PlanPart(Part, kw_only=True, frozen=True, omit_defaults=True, tag_field="mechanism"):
    """Budget, contract and noise of a plan. The subclasses have the exact numbers of one mechanism each."""

    epsilon: float
    delta: float
    delta_certified: float
    max_nonzero: Number | None
    max_items_per_user: Number
    noise: Literal["discrete"]
    sigma: float
    sigma_shared: float
    gamma: float | None
    total_noise: float
    tau: float | None
    threshold: float | None
    lower_threshold: Number = 1

    def noise_of(self) -> AnyNoise:
        raise NotImplementedError


class _OnLattice(PlanPart, kw_only=True, frozen=True):
    lattice: Lattice
    variance_steps: Ratio
    variance_shared_steps: Ratio
    tau_steps: Whole | None
    offset: OffsetRule = "none"
    sums: Sums = ()

    def _numbers(self) -> tuple[int, Fraction, Fraction]:
        return self.lattice, _fraction(self.variance_steps), _fraction(self.variance_shared_steps)

    def noise_of(self) -> AnyNoise:
        if self.tau_steps is None:
            raise ValueError
        sums = tuple(part.noise_of() for part in self.sums)
        return LatticeNoise(*self._numbers(), self.tau_steps, self.offset, sums)


class GaussianPlan(_OnLattice, kw_only=True, frozen=True, tag="gshm"):
    """Gaussian noise for each count, and a threshold."""


class SharedGaussianPlan(_OnLattice, kw_only=True, frozen=True, tag="csh"):
    """Gaussian noise for each count and for all alike, and a threshold."""


class TopPlan(_OnLattice, kw_only=True, frozen=True, tag="top-k"):
    """Gaussian noise with a count of rank k + 1 that is subtracted, and released by the rule `offset`."""


class PublicPlan(_OnLattice, kw_only=True, frozen=True, tag="known-domain"):
    """Gaussian noise for a public list of items, without a threshold."""

    def noise_of(self) -> AnyNoise:
        return PublicNoise(*self._numbers(), sums=tuple(part.noise_of() for part in self.sums))


class LaplacePlan(PlanPart, kw_only=True, frozen=True, tag="laplace"):
    """Laplace noise for each count, and a threshold."""

    scale: Ratio
    tau_steps: Whole

    def noise_of(self) -> AnyNoise:
        return LaplaceNoise(_fraction(self.scale, LARGEST_SCALE), self.tau_steps)


class RoundsPlan(PlanPart, kw_only=True, frozen=True, tag="rounds"):
    """Items are found in rounds with pooled evidence, and then measured."""

    lattice: Lattice
    variance_steps: Ratio
    parts_of_rounds: Rounds
    part_of_sizes: Whole
    part_of_measurement: Whole
    thresholds_steps: Rounds
    cuts_steps: Rounds
    growth: Whole
    alone: GaussianOfOne | LaplaceOfOne | None
    shared: Whole = 0
    sums: Sums = ()

    def noise_of(self) -> AnyNoise:
        return RoundsNoise(
            self.lattice, _fraction(self.variance_steps), self.parts_of_rounds, self.thresholds_steps,
            self.cuts_steps, self.part_of_sizes, self.part_of_measurement, self.max_items_per_user, self.growth,
            None if self.alone is None else self.alone.noise_of(), self.shared,
            tuple(part.noise_of() for part in self.sums), self.max_nonzero or 0,
        )  # fmt: skip


AnyPlan = GaussianPlan | SharedGaussianPlan | TopPlan | PublicPlan | LaplacePlan | RoundsPlan


def plan_part(plan: Plan) -> AnyPlan:
    part: AnyPlan = msgspec.convert(plan.claims(), AnyPlan)
    return part


class Counts(Part, kw_only=True, frozen=True):
    """How exact the counts are; in rounds each has a margin of its own, in a column beside it.

    All counts are above `threshold`. `decimals` is null if counts are whole without rounding, or not rounded.
    """

    standard_error: float | None
    covariance: float | UnsetType = UNSET
    offset: float | None = None
    lower_threshold: Number | UnsetType = UNSET
    threshold: float | None = None
    decimals: Annotated[int, Meta(ge=0, le=40)] | None = None


class Findings(Part, kw_only=True, frozen=True):
    """What a release in rounds shows besides its counts. All of it follows from noisy numbers.

    `found` are the numbers of items that were known, found by users with one item, and found in each round.
    `sizes` are the users by number of found items, in steps, up to the `bounds`; `limit` is that of the
    measurement (0 without one), and `needed` the users with which an item has an even chance of being found.
    `reason` says why margins may be too narrow, or is None.
    """

    found: Annotated[tuple[Whole, ...], Meta(max_length=MOST_ROUNDS + 2)]
    sizes: Annotated[tuple[Steps, ...], Meta(max_length=1000)] = field(name="noisy_sizes_steps")
    bounds: Annotated[tuple[Number, ...], Meta(max_length=1000)] = field(name="sizes_up_to")
    limit: Whole
    needed: Whole | None
    reason: Annotated[str, Meta(max_length=300)] | None


class BookingPart(Part, kw_only=True, frozen=True):
    """The entry of a ledger in which the release was booked before its noise was drawn."""

    ledger: Annotated[str, Meta(pattern="^[0-9a-f]{32}$", max_length=32)]
    dataset: str
    entry: Number
    hash: Digest


class SumFacts(Part, kw_only=True, frozen=True, tag_field="kind", tag="sum"):
    name: str
    column: str
    low: float
    high: float
    own_standard_error: float
    standard_error: float
    covariance_with_count: float
    covariance_between_items: float
    bias_at_threshold: float


class MeanFacts(Part, kw_only=True, frozen=True, tag_field="kind", tag="mean"):
    name: str
    column: str
    low: float
    high: float
    own_standard_error: float


class VectorFacts(Part, kw_only=True, frozen=True, tag_field="kind", tag="vector"):
    name: str
    columns: tuple[str, ...]
    norm: float
    standard_error: float


class Output(Part, kw_only=True, frozen=True, omit_defaults=True):
    """The data. `sha256` is of a file's bytes, of the values of a database table, or of a folder's `files`."""

    name: str
    kind: str
    sha256: Digest
    files: dict[str, Digest] | None = None
    columns: tuple[str, ...]
    types: tuple[str, ...] | None = None
    rows: Whole
    escape_formulas: bool = False

    def type_of(self) -> dict[str, str]:
        """The Arrow type of each column, as far as they are named."""
        return dict(zip(self.columns, self.types or (), strict=False))


class Signature(Part, kw_only=True, frozen=True):
    algorithm: Literal["ed25519"]
    public_key: str
    value: str


class Statement(Part, kw_only=True, frozen=True):
    """A certificate without the facts about its output, which follow when it is written."""

    format: Annotated[str, Meta(pattern=f"^{FORMAT}$")]
    dphist: Version
    created: Time
    private: bool
    guarantee: Guarantee | None
    caveats: tuple[str, ...]
    request: AnyRequest
    plan: AnyPlan
    counts: Counts
    findings: Findings | UnsetType = UNSET
    booking: BookingPart | UnsetType = UNSET
    sums: tuple[SumFacts | MeanFacts | VectorFacts, ...] | UnsetType = UNSET

    def to_dict(self) -> JsonObject:
        data: JsonObject = msgspec.json.decode(msgspec.json.encode(self))
        return data


class Certificate(Statement, kw_only=True, frozen=True):
    output: Output
    signature: Signature | UnsetType = UNSET
    self_sha256: Digest


def decode(document: Mapping[str, object]) -> Statement:
    """The statement or certificate in an untrusted document; `InvalidParameter` unless it has the schema."""
    if document.get("format") != FORMAT:
        raise InvalidParameter(f"the certificate does not have the format {FORMAT}")
    try:
        return msgspec.convert(document, Certificate if "output" in document else Statement)
    except UnicodeError:
        raise InvalidParameter("the certificate is invalid: it has text that is not Unicode") from None
    except msgspec.ValidationError as error:
        raise InvalidParameter(f"the certificate is invalid: {printable(str(error))[:200]}") from None


def output_of(document: Mapping[str, object] | None) -> Output | None:
    """What a document states about its data, if it has the schema."""
    try:
        return None if document is None else msgspec.convert(document.get("output"), Output)
    except ValueError:
        return None


# msgspec looks up the fields of a type at its first use, and crashes if several threads do so at once. A module is
# imported by one thread.
msgspec.json.Decoder(Certificate)
