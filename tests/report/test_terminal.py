import io
from dataclasses import replace

from rich.console import Console

from maya.report import render_terminal
from maya.report.labels import duration, kernel_label, label, number, ranges, size
from maya.simulate.types import Prediction
from maya.trace.types import Lapack


def text_of(prediction: Prediction) -> str:
    console = Console(file=io.StringIO(), force_terminal=False, width=60)
    render_terminal(prediction, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_verdict_and_iteration_time_come_first(sample):
    assert text_of(sample.prediction).splitlines()[0] == "FITS  40.0 ms an iteration"


def test_breakdown_memory_and_sureness_are_named(sample):
    text = text_of(sample.prediction)
    assert "61.0 GiB of 80.0 GiB on the fullest rank (76 %)" in text
    assert "compute 18.0 ms (45 %)" in text and "idle 8.00 ms (20 %)" in text
    assert "82.0 % learned from measurements of this device" in text
    assert "4 on dgx-h100; 3 launched, 2 unique" in text


def test_the_likely_error_says_what_it_rests_on(sample):
    own = "within 4 % for half, 13 % for nine in ten of 250 measured iterations with as much host time on this device"
    assert own in text_of(sample.prediction)
    other = replace(sample.prediction.likely_error, own=False)
    text = text_of(replace(sample.prediction, likely_error=other))
    assert "on all devices, for of this one there are too few" in text
    borrowed = text_of(
        replace(sample.prediction, provenance={"borrowed": 0.7, "roofline": 0.1, "learned": 0.2})
    )
    assert own + "; perhaps more here, where 80 % of the time rests on a datasheet" in borrowed


def test_critical_path_and_communication_are_named(sample):
    text = text_of(sample.prediction)
    assert "critical path  gemm 75 %, all_reduce 20 %, host 5 %" in text
    assert "1.00 ms of the iteration are waits for the host" in text
    assert "all_reduce among 2 ranks: 24.0 MiB in 5.40 ms, 33 % of it waiting" in text


def test_communication_of_a_rank_sums_over_its_communicators(sample):
    (total,) = sample.prediction.communication  # of all four ranks
    once_more = replace(total, communicator=1)
    of_two_ranks = replace(total, communicator=2, instances=1, ranks=2)
    text = text_of(replace(sample.prediction, communication=(total, once_more, of_two_ranks)))
    assert "all_reduce among 2 ranks: 60.0 MiB in 13.5 ms, 33 % of it waiting" in text


def test_no_escape_sequences_and_no_wrapping_outside_a_terminal(sample):
    text = text_of(sample.prediction)
    assert "\x1b" not in text and "█" not in text
    assert any(len(line) > 60 for line in text.splitlines())


def test_incomplete_prediction_names_what_is_not_covered(sample):
    incomplete = replace(sample.prediction, verdict="INCOMPLETE", unsupported=("cudnn.cudnnFoo",))
    text = text_of(incomplete)
    assert text.startswith("INCOMPLETE") and "cudnn.cudnnFoo" in text


def test_traceback_is_printed_as_it_is():
    traceback = 'Traceback (most recent call last):\n  File "t.py", line 1\nValueError: [red]not markup[/red]'
    assert traceback in text_of(Prediction(verdict="FAILED", message=traceback))


def test_many_notes_are_counted_instead_of_listed(sample):
    text = text_of(replace(sample.prediction, notes=tuple(f"note {n}" for n in range(9))))
    assert "note 3" in text and "note 4" not in text and "and 5 more" in text


def test_bar_fills_its_width_on_a_terminal(sample):
    console = Console(file=io.StringIO(), force_terminal=True, width=200, color_system=None)
    render_terminal(sample.prediction, console)
    assert "█" * 48 in console.file.getvalue()  # type: ignore[attr-defined]


def test_units_are_chosen_by_magnitude():
    assert [duration(s) for s in (1.2345, 0.0123, 4.5e-6, 0)] == ["1.23 s", "12.3 ms", "4.50 µs", "0 s"]
    assert [duration(s, 4) for s in (1.2345, 0.99996, 0.0123, 1234.5)] == [
        "1.234 s", "1.000 s", "12.30 ms", "1,234 s",
    ]  # fmt: skip
    assert [number(n) for n in (949_812.3, 999.4, 0.25, 1 / 3)] == ["949,812", "999.4", "0.25", "0.3333"]
    assert [size(b) for b in (512, 1 << 20, 80 << 30)] == ["512 B", "1.0 MiB", "80.0 GiB"]


def test_evenly_spaced_ranks_are_abbreviated():
    assert ranges((0, 1, 2, 3)) == "0-3"
    assert ranges((0, 8, 16, 24)) == "0, 8, … 24"
    assert ranges((5,)) == "5" and ranges((0, 4)) == "0, 4"


def test_kernel_label_keeps_the_functor_that_tells_it_from_others():
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, char*>(int)"
    assert kernel_label(name) == "vectorized_elementwise_kernel<FillFunctor>"
    assert kernel_label("triton_poi_fused_0") == "triton_poi_fused_0"


def test_a_factorisation_goes_by_its_routine_and_sizes():
    assert label(Lapack("syevd", 768, 768, vectors=True)) == "syevd 768x768 fp32"
    assert label(Lapack("potrs", 64, 64, 8, 16, "fp64")) == "potrs 16x 64x64x8 fp64"


def test_kernel_label_sees_through_an_anonymous_namespace():
    name = "void at::native::(anonymous namespace)::cunn_SoftMaxBackward<8, float, LogSoftMaxBackwardEpilogue>(int)"
    assert kernel_label(name) == "cunn_SoftMaxBackward"
