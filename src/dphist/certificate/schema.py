"""The schema of a certificate: what it states about a release, field by field.

Docstrings are the descriptions of docs/reference/certificate.md and of the JSON Schema. `verify` checks what is
under *Attributes*; it can only repeat what is under *Declared*. Numbers of the noise are whole steps and
fractions, from which the proof is recomputed; the doubles beside them follow from these, and are for readers.
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
    """What the release guarantees.

    Attributes:
        epsilon: Privacy loss ε.
        delta: Probability that the ε guarantee may fail.
        unit: What is protected: all events of one user.
        neighbours: Datasets that are compared: with and without one user.
        conditions: What only the publisher can ensure, as codes.
    """

    epsilon: float
    delta: float
    unit: Literal["user"]
    neighbours: Literal["add-or-remove"]
    conditions: tuple[str, ...]


class SumPart(Part, kw_only=True, frozen=True, omit_defaults=True):
    """The noise of a sum, or of a vector.

    Attributes:
        low: Least value of a user, as a fraction.
        high: Largest value of a user.
        sigma: Standard deviation of the noise, in units of the values.
        reach_steps: Steps in half the range: the most by which one user moves the sum.
        variance_steps: Variance of the noise in squared steps.
        columns: More than 1 for a vector: its columns, each with noise of its own.
    """

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
    """Noise.

    Attributes:
        mechanism: The kind of noise.
        noise: The noise is drawn in whole steps.
        sigma: Standard deviation of the noise of each count.
        sigma_shared: Standard deviation of the noise that all counts share; 0 for none.
        gamma: Variance of each count's own noise divided by that of the shared noise; null without.
        total_noise: Standard deviation of a released count.
        tau: The threshold minus the least count that gets noise; null without a threshold.
        threshold: Counts above it are released, before an offset is added back.
    """

    noise: Literal["discrete"]
    sigma: float
    sigma_shared: float
    gamma: float | None
    total_noise: float
    tau: float | None
    threshold: float | None


class GaussianOfOne(_Law, kw_only=True, frozen=True, tag="gshm"):
    """Gaussian noise for users with one item, in rounds.

    Attributes:
        lattice: Steps for one user.
        variance_steps: Variance of the noise in squared steps.
        variance_shared_steps: 0: nothing is shared.
        tau_steps: tau in steps.
    """

    lattice: Lattice
    variance_steps: Ratio
    variance_shared_steps: Ratio
    tau_steps: Whole

    def noise_of(self) -> LatticeNoise:
        shared = _fraction(self.variance_shared_steps)
        return LatticeNoise(self.lattice, _fraction(self.variance_steps), shared, self.tau_steps)


class LaplaceOfOne(_Law, kw_only=True, frozen=True, tag="laplace"):
    """Laplace noise for users with one item, in rounds.

    Attributes:
        scale: Scale of the discrete Laplace noise, in users.
        tau_steps: tau, in users.
    """

    scale: Ratio
    tau_steps: Whole

    def noise_of(self) -> LaplaceNoise:
        return LaplaceNoise(_fraction(self.scale, LARGEST_SCALE), self.tau_steps)


class PlanPart(Part, kw_only=True, frozen=True, omit_defaults=True, tag_field="mechanism"):
    """Budget, contract and noise of a plan. The subclasses have the exact numbers of one mechanism each.

    Attributes:
        mechanism: The kind of plan.
        epsilon: ε of the budget.
        delta: δ of the budget.
        delta_certified: Proved δ, which verify recomputes from the numbers below; another version's may be larger.
        max_nonzero: The most non-zero counts of any dataset; null without a bound.
        max_items_per_user: The most counts that one user contributes to.
        noise: The noise is drawn in whole steps.
        sigma: Standard deviation of the noise of each count.
        sigma_shared: Standard deviation of the noise that all counts share; 0 for none.
        gamma: Variance of each count's own noise divided by that of the shared noise; null without.
        total_noise: Standard deviation of a released count.
        tau: The threshold minus the least count that gets noise; null without a threshold.
        threshold: Counts above it are released, before an offset is added back; null without.
        lower_threshold: Counts below it were removed before noise was added.
    """

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
    """Discrete Gaussian noise.

    Attributes:
        lattice: Steps for one user.
        variance_steps: Variance of each count's own noise in squared steps.
        variance_shared_steps: Variance of the shared noise; 0 for none.
        tau_steps: tau in steps; null without a threshold.
        offset: How the count of rank k + 1 is released that a top-k step subtracts.
        sums: The noise of each sum and vector.
    """

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
    """Laplace noise for each count, and a threshold.

    Attributes:
        scale: Scale of the discrete Laplace noise, in users.
        tau_steps: tau, in users.
    """

    scale: Ratio
    tau_steps: Whole

    def noise_of(self) -> AnyNoise:
        return LaplaceNoise(_fraction(self.scale, LARGEST_SCALE), self.tau_steps)


class RoundsPlan(PlanPart, kw_only=True, frozen=True, tag="rounds"):
    """Items are found in rounds with pooled evidence, and then measured. A draw with k parts has variance / k.

    Attributes:
        lattice: Steps for the full weight of one user.
        variance_steps: Variance of a draw with one part of the budget, in squared steps.
        parts_of_rounds: Parts of the budget for each round.
        part_of_sizes: Parts for the numbers of users by found items.
        part_of_measurement: Parts for the measurement.
        thresholds_steps: For each round: the noisy weight above which an item is found, in steps.
        growth: From the second round on, a user with n items weighs up to growth / sqrt(n) for each, and up to 1.
        alone: The noise for users with one item, if they are a group of their own.
        shared: Own variance over shared variance of the measurement; 0 for no shared noise.
        sums: The noise of each sum and vector, for a limit of 1.

    Declared:
        cuts_steps: For each round but the last: the noisy weight below which an item is hopeless, and leaves.
    """

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

    Attributes:
        standard_error: Standard deviation of the noise of a count; null in rounds.
        covariance: Covariance of two counts, by shared noise.
        offset: The noisy count that a top-k step subtracted, which the counts include again; null without.
        lower_threshold: Counts below it were removed before noise was added.
        threshold: All counts are above it; null without a threshold.
        decimals: Decimals of the counts; null if they are whole without rounding, or not rounded.
    """

    standard_error: float | None
    covariance: float | UnsetType = UNSET
    offset: float | None = None
    lower_threshold: Number | UnsetType = UNSET
    threshold: float | None = None
    decimals: Annotated[int, Meta(ge=0, le=40)] | None = None


class Findings(Part, kw_only=True, frozen=True):
    """What a release in rounds shows besides its counts. All of it follows from noisy numbers.

    Declared:
        found: Items that were known, found by users with one item, and found in each round. Their sum is checked.
        sizes: Noisy numbers of users by number of found items, in steps.
        bounds: Up to how many found items each of these numbers goes.
        limit: The most items of a user that the measurement counts; 0 without a measurement.
        needed: Users with which an item has an even chance of being found.
        reason: Why margins may be too narrow; null if they are not.
    """

    found: Annotated[tuple[Whole, ...], Meta(max_length=MOST_ROUNDS + 2)]
    sizes: Annotated[tuple[Steps, ...], Meta(max_length=1000)] = field(name="noisy_sizes_steps")
    bounds: Annotated[tuple[Number, ...], Meta(max_length=1000)] = field(name="sizes_up_to")
    limit: Whole
    needed: Whole | None
    reason: Annotated[str, Meta(max_length=300)] | None


class BookingPart(Part, kw_only=True, frozen=True):
    """The entry of a ledger in which the release was booked before its noise was drawn.

    Attributes:
        dataset: The dataset, as in the request.

    Declared:
        ledger: Id of the ledger.
        entry: Number of the entry.
        hash: Its hash: `dphist ledger show LEDGER --expect HASH` looks for it.
    """

    ledger: Annotated[str, Meta(pattern="^[0-9a-f]{32}$", max_length=32)]
    dataset: str
    entry: Number
    hash: Digest


class SumFacts(Part, kw_only=True, frozen=True, tag_field="kind", tag="sum"):
    """How exact a sum is.

    Attributes:
        kind: A sum.
        name: Name of the column in the release.
        column: Column of the input.
        low: Least value of a user; smaller ones are raised to it.
        high: Largest value of a user; larger ones are lowered to it.
        own_standard_error: Standard deviation of the noise of the sum around the middle of its range.
        standard_error: Standard deviation of the noise of the sum.
        covariance_with_count: Covariance of the sum and the count of the same item.
        covariance_between_items: Covariance of the sums of two items.
        bias_at_threshold: How far the sum is off on average if the count is at the threshold.
    """

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
    """How exact the sum of a mean is.

    Attributes:
        kind: A mean.
        name: Name of the column in the release.
        column: Column of the input.
        low: Least value of a user; smaller ones are raised to it.
        high: Largest value of a user; larger ones are lowered to it.
        own_standard_error: Standard deviation of the noise of the sum around the middle of its range.
    """

    name: str
    column: str
    low: float
    high: float
    own_standard_error: float


class VectorFacts(Part, kw_only=True, frozen=True, tag_field="kind", tag="vector"):
    """How exact a vector of sums is.

    Attributes:
        kind: A vector.
        name: Name of the vector, with which its columns begin.
        columns: Columns of the input.
        norm: Largest Euclidean norm of a user's own vector; longer ones are shortened to it.
        standard_error: Standard deviation of the noise of each column.
    """

    name: str
    columns: tuple[str, ...]
    norm: float
    standard_error: float


class Output(Part, kw_only=True, frozen=True, omit_defaults=True):
    """The data.

    Attributes:
        kind: Its format.
        sha256: Digest of a file's bytes, of the values of a database table, or of a folder's `files`.
        files: Digest of each file of a folder.
        columns: Names of the columns, in order.
        rows: Number of rows.
        escape_formulas: Whether text that a spreadsheet would run has a quote before it.

    Declared:
        name: Name of the file, folder or table. A signature holds for this name only.
        types: Arrow types of the columns. Those of numbers are checked; in binary files, all are.
    """

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
    """Who signed: see docs/signatures.md.

    Attributes:
        algorithm: Ed25519.
        public_key: The 32 bytes of the public key, in base64.
        value: The 64 bytes of the signature, in base64.
    """

    algorithm: Literal["ed25519"]
    public_key: str
    value: str


class Statement(Part, kw_only=True, frozen=True):
    """A certificate without the facts about its output, which follow when it is written.

    Attributes:
        format: Format of the certificate.
        private: False if the noise was made from a seed.
        guarantee: What the release guarantees; null if it is not private.
        caveats: What readers of the numbers easily overlook, as codes.
        request: What was asked: user events, a sketch, or a histogram counted elsewhere.
        plan: The mechanism and the exact numbers of its noise, which prove the guarantee.
        counts: How exact the counts are.
        findings: In rounds: what was found.
        booking: The booking in a ledger, if there is one.
        sums: With a limit on users: how exact sums, means and vectors are.

    Declared:
        dphist: Version of dphist.
        created: Time of the release, in UTC.
    """

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
    """The certificate of a release.

    Attributes:
        output: The data.
        signature: Who signed data and certificate, if anyone did. `--public-key` says by whom it must be.
        self_sha256: Digest of the certificate without this field.
    """

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
