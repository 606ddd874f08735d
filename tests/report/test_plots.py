import re

import numpy as np
import pandas as pd
import pytest

from pipefit.report.plots import POINTS, metric_panels, running_mean, thin, timing_panels


def metrics(**columns) -> pd.DataFrame:
    length = len(next(iter(columns.values())))
    index = pd.Index(np.arange(1, length + 1), name="step")
    return pd.DataFrame({k.replace("__", "/"): v for k, v in columns.items()}, index=index)


def validations(rows=()) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["step", "set", "examples", "checkpoint", "seconds", "loss"])


def test_thinning_keeps_the_ends_and_every_spike():
    x = np.arange(1_000_000)
    y = np.sin(x / 1e5)
    y[123_456], y[777_777] = 50.0, -50.0
    thinned_x, thinned_y = thin(x, y)
    assert len(thinned_x) <= POINTS
    assert {0, 123_456, 777_777, 999_999} <= set(thinned_x)
    assert np.all(np.diff(thinned_x) > 0)
    assert np.array_equal(y[thinned_x], thinned_y)


@pytest.mark.parametrize("length", [0, 1, 2, POINTS, POINTS + 1, POINTS * 3 + 1])
def test_thinning_works_at_every_length_and_leaves_nan_out(length):
    x = np.arange(length)
    y = np.where(x % 7 == 3, np.nan, x * 1.0)
    thinned_x, thinned_y = thin(x, y)
    assert len(thinned_x) <= POINTS and np.isfinite(thinned_y).all()
    if length <= POINTS:
        assert len(thinned_x) == np.isfinite(y).sum()


def test_the_running_mean_is_the_mean_of_the_neighbours():
    x, y = np.arange(1, 1001), np.random.default_rng(0).random(1000)
    steps, means = running_mean(x, y)
    for step, mean in list(zip(steps, means, strict=True))[::20]:
        near = np.abs(x - step) <= 5
        assert mean == pytest.approx(y[near].mean())


def test_the_loss_comes_first_and_the_learning_rates_last_in_one_panel():
    table = metrics(
        accuracy=[0.1, 0.2],
        loss=[2.0, 1.0],
        learning_rate=[0.1, 0.1],
        learning_rate__head=[1.0, 1.0],
    )
    panels = metric_panels(table, validations([(2, "test", 5, None, 0.1, 1.5)]))
    assert [panel.title for panel in panels] == ["loss", "accuracy", "learning_rate"]
    assert [curve.label for curve in panels[0].curves] == ["training", "test"]
    assert [curve.label for curve in panels[2].curves] == ["training", "head"]
    assert len({curve.colour for curve in panels[0].curves}) == 2


def test_what_training_and_validations_call_alike_shares_a_panel():
    table = metrics(loss=[2.0, 1.0], head__loss=[2.0, 1.0], tail__loss=[2.0, 1.0])
    rows = validations([(2, "test", 5, None, 0.1, 1.5)]).assign(**{"head/loss": [1.25]})
    panels = {panel.title: panel for panel in metric_panels(table, rows)}

    assert {title: [curve.label for curve in panel.curves] for title, panel in panels.items()} == {
        "loss": ["training", "tail", "test"],
        "head/loss": ["training", "test"],
    }


def test_what_is_no_number_per_step_is_left_out():
    arrays = pd.Series([np.eye(2), np.eye(2)], dtype=object)
    table = metrics(loss=[2.0, 1.0], good=[True, False], text=["a", "b"])
    table["array"] = arrays.to_numpy()
    rows = validations([(2, "test", 5, None, 0.1, 1.5)]).assign(label=["cat"])

    panels = metric_panels(table, rows)
    assert [panel.title for panel in panels] == ["loss", "good"]


def test_measured_columns_have_panels_of_their_own():
    table = metrics(
        loss=[2.0, 1.0],
        step_seconds=[0.5, 0.25],
        data_seconds=[0.125, 0.125],
        examples_per_second=[200.0, 400.0],
        memory_bytes=[2e9, 3e9],
    )
    assert [panel.title for panel in metric_panels(table, validations())] == ["loss"]
    speed, times, memory = timing_panels(table)
    assert (speed.title, list(speed.curves[0].y)) == ("examples per second", [200.0, 400.0])
    assert times.title == "milliseconds per step"
    assert {curve.label: list(curve.y) for curve in times.curves} == {
        "in all": [500.0, 250.0],
        "waiting for data": [125.0, 125.0],
    }
    assert (memory.title, list(memory.curves[0].y)) == ("memory in GB", [2.0, 3.0])
    assert [panel.title for panel in timing_panels(metrics(step_seconds=[0.5, 0.25]))] == [
        "milliseconds per step"
    ]
    assert timing_panels(metrics(loss=[2.0, 1.0])) == []


def test_norms_have_a_panel_with_all_variables_together_and_the_largest_alone():
    columns = {f"gradient_norm__layer{i}__kernel": [float(i), 2.0 * i] for i in range(12)}
    table = metrics(loss=[2.0, 1.0], learning_rate=[0.1, 0.1], **columns)
    (loss, rates, norms) = metric_panels(table, validations())

    assert [panel.title for panel in (loss, rates, norms)] == [
        "loss",
        "learning_rate",
        "gradient_norm",
    ]
    assert [curve.label for curve in norms.curves] == [
        "all variables",
        *(f"layer{i}/kernel" for i in range(11, 4, -1)),
    ]
    assert norms.curves[0].y == pytest.approx(np.sqrt(506.0) * np.array([1.0, 2.0]))
    assert "5 more curves are left out" in norms.notes
    assert len({curve.colour for curve in norms.curves}) == 8


def test_nan_is_left_out_and_named():
    nan, inf = float("nan"), float("inf")
    (panel,) = metric_panels(metrics(loss=[1.0, nan, inf, 0.5], nothing=[nan] * 4), validations())
    assert panel.title == "loss"
    assert panel.notes == ["training: 2 of 4 values are missing or not finite, the first at step 2"]
    assert "nan" not in panel.svg.lower() and "inf" not in panel.svg.lower()


def test_values_over_decades_get_a_logarithmic_axis():
    (panel,) = metric_panels(metrics(loss=[1000.0, 10.0, 0.1]), validations())
    assert panel.notes == ["logarithmic scale"]
    (panel,) = metric_panels(metrics(loss=[1000.0, 10.0, -0.1]), validations())
    assert panel.notes == []


def test_a_drawing_takes_its_colours_from_the_page_and_its_labels_are_exact():
    (panel,) = metric_panels(metrics(learning_rate=np.linspace(0.015, 0.05, 50)), validations())
    assert panel.svg.startswith("<svg") and panel.svg.rstrip().endswith("</svg>")
    assert "currentColor" in panel.svg and "var(--line)" in panel.svg
    assert "#010203" not in panel.svg and "http" not in panel.svg
    labels = [float(text) for text in re.findall(r">(0\.\d+)<", panel.svg)]
    assert len(labels) > 2 and np.allclose(np.diff(labels, 2), 0)


def test_the_same_curves_give_the_same_drawing():
    draw = lambda: metric_panels(metrics(loss=[2.0, 1.0]), validations())[0].svg  # noqa: E731
    assert draw() == draw()


def test_no_metrics_give_no_panels():
    assert metric_panels(metrics(loss=[]), validations()) == []
    assert metric_panels(pd.DataFrame(index=pd.Index([], name="step")), validations()) == []
