"""The declaration that a publisher signs has the certificate's facts, and exists only where it can be true."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dphist
from dphist.report.declaration import Declaration, declaration_of
from dphist.report.facts import gather_facts
from release_data import events
from report_cases import COUNTS, EVIL, flat, made, released

pytestmark = pytest.mark.usefixtures("quick_curve")


def texts(declaration: Declaration | None) -> dict[str, str]:
    assert declaration is not None
    return {label: " ".join(sentences) for label, sentences in declaration.facts}


def test_its_facts_are_those_of_the_certificate() -> None:
    path, facts = made("booked")
    certificate = json.loads(Path(f"{path}.certificate.json").read_text())
    found = texts(declaration_of(facts))
    assert "20 counts (users per item) in booked.csv" in found["What is published"]
    assert certificate["created"][:10] in found["What is published"]
    assert "(epsilon = 1.0, delta = 1e-06)-differentially private" in found["Guarantee"]
    assert "identified by user" in found["Unit of privacy"]
    assert "73.2 %" in found["Protection: strong"]
    assert "Laplace noise" in found["Noise and threshold"]
    assert "2 items per user" in found["Noise and threshold"]
    assert f"Threshold: {certificate['counts']['threshold']:.4g}." in found["Noise and threshold"]
    assert "Other releases of the same data" in found["Not protected"]
    assert "not signed" in found["Checked"]
    booking = certificate["booking"]
    assert all(str(booking[key]) in found["Booked"] for key in ("ledger", "dataset", "entry", "hash"))
    assert certificate["self_sha256"] in found["Certificate"]
    assert certificate["output"]["sha256"] == found["SHA-256 of the data"]
    page = flat(facts)
    assert all(name in page for name in ("Period of the data", "Place and date", "no other run was made"))


def test_counts_that_are_not_numbers_of_users_and_weak_budgets_are_declared_as_such(tmp_path: Path) -> None:
    assert "NOT numbers of users" in texts(declaration_of(made("top-k, differences")[1]))["What is published"]
    dphist.release(
        events(COUNTS), user="user", item="item", epsilon=9.0, delta=0.01, max_items_per_user=1,
        output=tmp_path / "weak.csv",
    )  # fmt: skip
    found = texts(declaration_of(gather_facts(tmp_path / "weak.csv")))
    assert "ε = 9 is a weak guarantee" in found["Protection: weak"]
    assert "Not in a ledger" in found["Booked"]


def test_long_conditions_stay_on_the_page_and_are_never_markup(tmp_path: Path) -> None:
    condition = f"item <> '{EVIL.replace(chr(39), '')}' AND item <> '{'x' * 4000}'"
    path = released(tmp_path, max_items_per_user=2, where=condition)
    facts = gather_facts(path)
    published = texts(declaration_of(facts))["What is published"]
    assert "Condition: item <> " in published
    assert len(published) < 400
    assert "<script>alert" not in flat(facts)


def test_there_is_none_without_private_noise_or_without_a_certificate(tmp_path: Path) -> None:
    seeded = gather_facts(released(tmp_path, max_items_per_user=2, seed=7))
    in_memory = gather_facts(dphist.release(
        events(COUNTS), user="user", item="item", epsilon=1.0, delta=1e-6, max_items_per_user=1
    ))  # fmt: skip
    for facts in (seeded, in_memory):
        assert declaration_of(facts) is None
        assert "Declaration to sign" not in flat(facts)
