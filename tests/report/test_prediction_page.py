"""The page of one prediction, in a real browser."""

import json
from dataclasses import replace

import pytest

from maya.report import write_html
from maya.report.html import Window, _thin

SIZES = [(1280, 900, "light"), (1280, 900, "dark"), (390, 844, "light")]


@pytest.fixture(scope="module")
def page(sample, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "prediction.html"
    write_html(sample.prediction, sample.trace, sample.timeline, sample.estimates, path)
    return path


def test_page_asks_the_network_for_nothing(page):
    text = page.read_text()
    assert "http://" not in text and "https://" not in text and "src=" not in text


def test_text_from_the_script_is_escaped(sample, tmp_path):
    hostile = replace(sample.prediction, command=("</pre><script>alert(1)</script>",), notes=("<b>",))
    write_html(hostile, sample.trace, sample.timeline, sample.estimates, tmp_path / "p.html")
    text = (tmp_path / "p.html").read_text()
    assert "<script>alert" not in text and "&lt;b&gt;" in text


@pytest.mark.parametrize(("width", "height", "scheme"), SIZES)
def test_page_shows_answer_and_timeline_without_console_errors(
    page, open_page, console_errors, width, height, scheme
):
    browser = open_page(page, width, height, scheme)
    assert browser.find_element("id", "verdict").text == "FITS"
    assert "on dgx-h100" in browser.find_element("class name", "figures").text and "dgx-h100" in browser.title
    assert "40.0 ms" in browser.find_element("tag name", "h1").text
    assert browser.execute_script(COLOURS_DRAWN) > 4
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert console_errors() == []


def test_page_shows_critical_path_communication_and_lines_over_time(page, open_page):
    browser = open_page(page)
    assert "gemm 30.0 ms 75.0 %" in browser.find_element("id", "path").text
    assert (
        "0-1" in browser.find_element("id", "communicators").text
        or "0, 1" in browser.find_element("id", "communicators").text
    )
    for name in ("busy", "memory"):
        line = browser.find_element("css selector", f"#{name} polyline")
        assert line.size["width"] > 200 and line.size["height"] > 10


def test_pointing_at_a_slice_names_it_and_zoom_keeps_it_drawn(page, open_page, console_errors):
    browser = open_page(page)
    for button in ("in", "in", "out", "all"):
        browser.find_element("id", button).click()
    browser.execute_script(POINT_EVERYWHERE)
    assert "GEMM" in browser.execute_script("return window.seen")
    assert browser.execute_script(COLOURS_DRAWN) > 4
    assert console_errors() == []


def test_top_operations_are_ranked_with_their_provenance(page, open_page):
    rows = open_page(page).find_elements("css selector", "#operations tr")
    assert rows[1].text.startswith("GEMM 4096x2048x1024 bf16 9.00 ms 54.2 % 6 learned")
    assert rows[1].text.endswith("aten::addmm")


def test_drawing_data_covers_one_iteration(page):
    text = page.read_text()
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert data["length"] == 40_000_000
    for track in data["tracks"]:
        begins, lengths = track["slices"][0::3], track["slices"][1::3]
        assert begins == sorted(begins) and min(begins) >= 0
        assert max(b + d for b, d in zip(begins, lengths, strict=True)) <= data["length"]


def test_many_small_slices_are_merged_within_the_budget():
    window = Window(0, 0, 1_000_000)
    slices = [(10 * i, 10 * i + 8, "k", "compute") for i in range(100_000)]
    merged = list(_thin(slices, window.length // 1000, 1000))
    assert len(merged) <= 1000
    assert merged[0][0] == 0 and merged[-1][1] == slices[-1][1]


COLOURS_DRAWN = """
const canvas = document.querySelector("#timeline canvas"), g = canvas.getContext("2d");
const pixels = new Uint32Array(g.getImageData(0, 0, canvas.width, canvas.height).data.buffer), count = {};
for (const p of pixels) count[p] = (count[p] || 0) + 1;
return Object.values(count).filter((n) => n > 50).length;
"""
POINT_EVERYWHERE = """
const canvas = document.querySelector("#timeline canvas"), at = canvas.getBoundingClientRect();
window.seen = "";
for (let y = 30; y < at.height; y += 10) for (let x = 0; x < at.width; x += 10) {
  canvas.dispatchEvent(new PointerEvent("pointermove", {clientX: at.left + x, clientY: at.top + y}));
  const tip = document.getElementById("tip");
  if (tip.style.display === "block") window.seen += tip.textContent + "\\n";
}
"""
