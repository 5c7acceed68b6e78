"""The planning commands: JSON, exit codes and error messages."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dphist
import oracles_discrete
from release_commands import Done, command

PLAN_KEYS = {
    "mechanism", "analysis", "epsilon", "delta", "delta_certified", "max_nonzero", "max_items_per_user", "sigma",
    "sigma_shared", "gamma", "total_noise", "tau", "threshold", "binding_case",
}  # fmt: skip


def run(*words: str) -> Done:
    return command(Path.cwd(), *words)


def run_json(*words: str) -> Any:
    result = run(*words, "--json")
    assert result.code == 0, result.err
    return result.data


def test_plan_json() -> None:
    data = run_json(
        "plan", "--epsilon", "0.35", "--delta", "1e-5", "--max-nonzero", "51914", "--noise", "continuous"
    )
    assert set(data) >= PLAN_KEYS
    assert data["mechanism"] == "csh"
    assert round(data["tau"], 2) == 6987.26
    assert data["threshold"] == data["tau"] + 1.0
    assert data["delta_certified"] <= 1e-5
    assert data["max_items_per_user"] == 51914
    assert data["binding_case"]["j"] + data["binding_case"]["r"] == 51914


def test_plan_without_a_bound_on_the_counts_is_the_gshm() -> None:
    data = run_json("plan", "--epsilon", "1", "--delta", "1e-6", "--max-items-per-user", "10")
    assert data["mechanism"] == "gshm"
    assert (data["gamma"], data["sigma_shared"], data["max_nonzero"]) == (None, 0.0, None)
    assert round(data["sigma"], 2) == 13.36


def test_plan_with_every_option() -> None:
    data = run_json(
        "plan", "--epsilon", "1", "--delta", "1e-6", "--max-nonzero", "100", "--max-items-per-user", "30",
        "--noise", "continuous", "--analysis", "exact", "--gamma", "7.5", "--minimize", "noise",
    )  # fmt: skip
    assert data["gamma"] == pytest.approx(7.5, rel=1e-8)
    assert data["analysis"] == "exact"


def test_discrete_noise_is_the_default() -> None:
    data = run_json("plan", "--epsilon", "0.35", "--delta", "1e-5", "--max-nonzero", "51914")
    assert data["noise"] == "discrete"
    assert set(data) >= PLAN_KEYS | {"lattice", "variance_steps", "variance_shared_steps", "tau_steps"}
    assert data["sigma"] == pytest.approx(1113.75, rel=0.002)
    assert data["tau"] == pytest.approx(6987.3, rel=0.002)
    assert data["delta_certified"] <= 1e-5


def test_certify_json_has_delta_by_analysis() -> None:
    noise = ("--sigma", "17.66", "--gamma", "sqrt", "--tau", "96.4", "--max-nonzero", "10")
    data = run_json("certify", "--epsilon", "0.35", *noise)
    assert set(data["delta"]) == {"exact", "csh-add-the-deltas", "csh-tighter"}
    assert data["delta"]["exact"] < data["delta"]["csh-tighter"] < data["delta"]["csh-add-the-deltas"]
    data = run_json("certify", "--epsilon", "1", "--sigma", "30", "--tau", "165", "--max-items-per-user", "50")
    assert set(data["delta"]) == {"exact", "gshm-add-the-deltas", "gshm-exact"}
    assert data["delta"]["exact"] == pytest.approx(data["delta"]["gshm-exact"], rel=1e-6)


def test_every_command_states_the_same_guarantee(tmp_path: Path) -> None:
    promise = "observer with even odds on whether a given person is in the data guesses right at most 73.2 %"
    (tmp_path / "log.csv").write_text("user,item\n" + "".join(f"{user},tea\n" for user in range(500)))
    budget = ("--epsilon", "1", "--delta", "1e-6")
    flags = ("--user", "user", "--item", "item", *budget, "--max-items-per-user", "1", "-o", "out.csv")
    released = command(tmp_path, "release", "log.csv", *flags)
    assert "\nPrivacy          ε = 1, δ = 1e-6 for each user (strong)\n" in released.out
    for words in (
        ("plan", *budget, "--max-items-per-user", "3"),
        ("simulate", "--zipf", "1,50,900,3", *budget, "--limits", "3", "--tops", "5"),
        ("release", "log.csv", *flags, "--dry-run"),
        ("report", "out.csv", "--json"),
    ):
        done = command(tmp_path, *words)
        assert done.code == 0, done.err
        assert promise in " ".join(done.out.split()), words


def test_certify_calls_a_bound_a_bound() -> None:
    """The worst mixed neighbours bound delta by 0.06986; the exact delta, of only new counts, is 0.06821."""
    contract = ("--max-nonzero", "10", "--max-items-per-user", "5")
    words = ("certify", "--epsilon", "0.05", "--sigma", "8", "--gamma", "3", "--tau", "20", *contract)
    shown = run(*words).out
    assert "delta, at most            0.0698580111 (certified)\n" in shown
    assert "delta, at least           0.06821442196\n" in shown
    assert "exact" not in shown
    data = run_json(*words)
    assert data["delta_exact"] is None
    assert data["delta_lower"] == pytest.approx(0.06821442195795065, rel=1e-8)
    found = run(*words, "--exact").out
    assert "delta, exact              0.06821442196 (to 9 digits)\n" in found
    assert "at least" not in found


def test_the_certificate_of_a_plan_is_reproduced_from_its_numbers() -> None:
    contract = ("--max-nonzero", "300", "--max-items-per-user", "90")
    data = run_json("plan", "--epsilon", "0.9", "--delta", "1e-7", *contract, "--noise", "continuous")
    again = run_json(
        "certify", "--epsilon", "0.9", "--sigma", repr(data["sigma"]),
        "--sigma-shared", repr(data["sigma_shared"]), "--tau", repr(data["tau"]), *contract, "--delta", "1e-7",
    )  # fmt: skip
    assert again["delta"]["exact"] == pytest.approx(data["delta_certified"], rel=1e-9)


def test_compare_json_and_repeated_options() -> None:
    data = run_json("compare", "--epsilon", "0.35", "--epsilon", "0.349", "--delta", "1e-5", "--max-nonzero", "10")
    assert [c["epsilon"] for c in data["comparisons"]] == [0.35, 0.349]
    assert {row["mechanism"] for row in data["comparisons"][0]["rows"]} == {"gshm", "csh", "laplace"}


def test_compare_and_plan_with_sums_and_vectors() -> None:
    """Shared noise lowers threshold, noise and errors with sums too, if all counts are bounded."""
    base = ("--epsilon", "1", "--delta", "1e-6", "--sum", "0:100", "--vector", "3:1")
    data = run_json("compare", *base, "--max-nonzero", "100", "--max-nonzero", "10")["comparisons"]
    assert [(one["epsilon"], one["max_nonzero"]) for one in data] == [(1.0, 100), (1.0, 10)]
    for one in data:
        gshm, csh = one["ways"]["recentred"], one["ways"]["recentred, csh"]
        assert csh["threshold"] < 0.7 * gshm["threshold"]
        assert all(a < b for a, b in zip(csh["standard_errors"], gshm["standard_errors"], strict=True))
        plan = run_json("plan", *base, "--max-nonzero", str(one["max_nonzero"]))
        assert (plan["threshold"], plan["sums"][1]["columns"]) == (csh["threshold"], 3)
        assert plan["sums"][1]["sigma"] == csh["standard_errors"][1]
    assert "cannot be used with --sum" in run("compare", *base, "--max-nonzero", "9", "--plot", "a.png").err
    for bad in ("0:1", "3", "x:1", "3:0", "3:-1", "257:1", "2:1:1"):
        result = run("plan", "--epsilon", "1", "--delta", "1e-6", "--max-items-per-user", "2", "--vector", bad)
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)


def test_compare_has_the_papers_theorem_for_discrete_noise() -> None:
    """Its least threshold, found here on a grid of noise: no other noise has a lower one."""
    (found,) = run_json("compare", "--epsilon", "0.35", "--delta", "1e-5", "--max-nonzero", "10")["comparisons"]
    rows = {row["analysis"]: row for row in found["rows"]}
    for name, tight in (("discrete theorem, printed", False), ("discrete theorem, tight", True)):
        row = rows[name]
        assert row["gamma"] == pytest.approx(math.sqrt(10))
        sigma = row["total_noise"] / math.sqrt(1 + 1 / math.sqrt(10))

        def delta(sigma: float, tau: float, tight: bool = tight) -> float:
            return float(
                oracles_discrete.delta_discrete_csh(k=10, sigma=sigma, tau=tau, epsilon=0.35, tight=tight)
            )

        assert delta(sigma, row["tau"]) <= 1e-5
        for factor in (0.9, 0.97, 0.99, 1.01, 1.03, 1.1):
            assert delta(sigma * factor, row["tau"] * 0.995) > 1e-5, factor
    assert rows["discrete theorem, printed"]["total_noise"] > 1.4 * rows["exact, gamma = sqrt k"]["total_noise"]


def test_compare_has_the_curves_of_its_chart() -> None:
    words = ("compare", "--epsilon", "0.35", "--delta", "1e-5", "--max-items-per-user", "3")
    assert run(*words, "--curves").code == 2
    (found,) = run_json(*words, "--curves")["comparisons"]
    assert [curve["analysis"] for curve in found["curves"]] == ["gshm-add-the-deltas", "gshm-exact"]
    rows = {row["analysis"]: row for row in found["rows"]}
    for curve in found["curves"]:
        noise, tau = min(curve["points"], key=lambda point: point[1])
        assert tau == pytest.approx(rows[curve["analysis"]]["tau"], rel=1e-3)
        assert curve["least_noise"] <= noise


def test_certify_finds_the_least_tau() -> None:
    words = ("certify", "--epsilon", "1", "--sigma", "30", "--max-items-per-user", "50", "--delta", "1e-6")
    data = run_json(*words)
    assert data["delta"]["exact"] <= 1e-6
    assert data["tau"] == pytest.approx(164.72555, rel=1e-7)
    assert run(*words, "--tau", repr(data["tau"] * (1 - 1e-6))).code == 2
    assert "no tau is enough" in run(*words[:4], "10", *words[5:]).err
    assert run("certify", "--epsilon", "1", "--sigma", "30", "--max-items-per-user", "50").code == 2


def test_audit_does_not_accuse_a_good_plan() -> None:
    """A false alarm has a probability of 1e-9, the confidence of the audit.

    A bound of 0 is less likely: with a new count the bound is 0.17 with a standard deviation of 0.003, and with a
    shared count, which is sometimes chosen, 0.13 with a standard deviation of 0.008.
    """
    words = ("audit", "--epsilon", "1", "--delta", "0.2", "--max-nonzero", "1", "--runs")
    data = run_json(*words, "50000")
    assert not data["contradicts"]
    assert 0.0 < data["delta_lower"] <= data["delta_certified"] <= 0.2
    assert run(*words, "3").code == 2


def test_profile() -> None:
    data = run_json(
        "profile", "--sigma", "30", "--tau", "165", "--max-items-per-user", "50", "--epsilon", "0",
        "--epsilon", "1", "--delta", "1e-3",
    )  # fmt: skip
    pairs = [(row["epsilon"], row["delta"]) for row in data["profile"]]
    assert pairs == sorted(pairs)
    assert [delta for _, delta in pairs] == sorted((delta for _, delta in pairs), reverse=True)


def test_profile_answers_what_it_can() -> None:
    """New counts pass with a larger probability than 1e-9, whatever epsilon is."""
    words = ("profile", "--sigma", "5", "--tau", "10", "--max-items-per-user", "3", "--epsilon", "1")
    shown = run(*words, "--delta", "1e-9")
    assert shown.code == 0
    assert [line.split() for line in shown.out.splitlines()[1:]] == [["1", "0.066709465"], ["infinite", "1e-09"]]
    assert run_json(*words, "--delta", "1e-9")["profile"][1] == {"epsilon": None, "delta": 1e-9}


DEFAULTS = {
    "plan": {"--epsilon": "1", "--delta": "1e-6", "--max-nonzero": "5"},
    "certify": {"--epsilon": "1", "--sigma": "30", "--tau": "165", "--max-nonzero": "50"},
}
BAD: list[tuple[str, dict[str, str | None]]] = [
    ("plan", {"--epsilon": "nan"}),
    ("plan", {"--epsilon": "inf"}),
    ("plan", {"--epsilon": "0"}),
    ("plan", {"--epsilon": "-1"}),
    ("plan", {"--epsilon": "801"}),
    ("plan", {"--epsilon": "much"}),
    ("plan", {"--delta": "0"}),
    ("plan", {"--delta": "1"}),
    ("plan", {"--delta": "nan"}),
    ("plan", {"--delta": "1e-301"}),
    ("plan", {"--max-nonzero": "0"}),
    ("plan", {"--max-nonzero": "-3"}),
    ("plan", {"--max-nonzero": "2.5"}),
    ("plan", {"--max-items-per-user": "6"}),
    ("plan", {"--max-nonzero": None, "--minimize": "noise"}),
    ("plan", {"--noise": "discrete", "--analysis": "csh-tighter"}),
    ("plan", {"--noise": "pink"}),
    ("plan", {"--analysis": "magic"}),
    ("plan", {"--gamma": "-2"}),
    ("plan", {"--gamma": "1e-12"}),
    ("plan", {"--gamma": "nan"}),
    ("plan", {"--gamma": "root"}),
    ("plan", {"--gamma": "3", "--analysis": "gshm-exact"}),
    ("plan", {"--gamma": "sqrt", "--max-nonzero": None, "--max-items-per-user": "3"}),
    ("plan", {"--minimize": "noise", "--analysis": "csh-add-the-deltas"}),
    ("certify", {"--sigma": "0"}),
    ("certify", {"--sigma": "nan"}),
    ("certify", {"--sigma-shared": "-1"}),
    ("certify", {"--tau": "-1"}),
    ("certify", {"--tau": "inf"}),
    ("certify", {"--sigma-shared": "1", "--gamma": "2"}),
    ("certify", {"--sigma": "0.01"}),
    ("certify", {"--delta": "1e-9"}),
]


@pytest.mark.parametrize(("name", "change"), BAD, ids=str)
def test_bad_parameters_get_one_sentence_and_exit_code_2(name: str, change: dict[str, str | None]) -> None:
    options = {**DEFAULTS[name], **change}
    result = run(name, *(word for key, value in options.items() if value is not None for word in (key, value)))
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Error: ")
    assert result.err.count("\n") == 1
    # The sentence names one of the changed options, or its value.
    assert any(flag[2:] in result.err or (value or flag) in result.err for flag, value in change.items())


def test_bad_plots_are_refused_before_any_work(tmp_path: Path) -> None:
    base = ("compare", "--epsilon", "1", "--delta", "1e-5", "--max-items-per-user", "3", "--plot")
    (tmp_path / "folder.png").mkdir()
    bad = {"a.pdf": (2, "must end in"), "no/a.png": (1, "does not exist"), "folder.png": (1, "is a folder")}
    for name, (code, message) in bad.items():
        result = run(*base, str(tmp_path / name))
        assert result.code == code
        assert message in result.err
        assert result.out == ""
    precious = tmp_path / "precious.png"
    precious.write_text("a picture")
    result = run(*base, str(precious))
    assert (result.code, result.out) == (1, "")
    assert "already exists; --force replaces it" in result.err
    assert precious.read_text() == "a picture"


def test_help_has_examples_and_version_is_printed() -> None:
    for name in ("plan", "certify", "compare", "profile", "audit"):
        result = run(name, "--help")
        assert result.code == 0
        assert f"dphist {name} --" in result.out
    assert run("--version").out == f"dphist {dphist.__version__}\n"


def test_import_loads_nothing_heavy() -> None:
    """`import dphist` and `dphist --help` must not import numpy, scipy or flint."""
    heavy = "{'numpy', 'scipy', 'flint', 'jinja2', 'vl_convert'} & set(sys.modules)"
    code = f"import sys, dphist; import dphist.cli; dphist.cli.commands(); sys.exit(bool({heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
