"""The report page and the plots, without Spark."""

import base64
import math
import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from rich.console import Console

from tidemark.analysis import plots
from tidemark.analysis.report import Report, number, slug, tell_next


def page_of(report: Report) -> str:
    return report.html()


def test_every_text_is_escaped() -> None:
    report = Report("<b>title</b>", "<i>sub</i>")
    report.heading("<h>")
    report.text("<p> & more")
    report.facts({"<n>": "<v>"})
    report.table(["<c>"], [["<cell>"]], caption="<caption>")
    report.code("<code>", language='"x', caption="<k>")

    page = page_of(report)

    for text in (
        "<b>title",
        "<i>sub",
        "<h>",
        "<p> &",
        "<n>",
        "<v>",
        "<c>",
        "<cell>",
        "<caption>\n",
        "<code><code>",
        "<k>",
    ):
        assert text not in page
    assert "&lt;cell&gt;" in page
    assert "&lt;p&gt; &amp; more" in page


def test_an_empty_line_parts_paragraphs() -> None:
    report = Report("t")
    report.text("one\nline\n\ntwo\n\n\n")

    assert re.findall(r"<p>(.*?)</p>", page_of(report), re.DOTALL) == ["one\nline", "two"]


def test_numbers_stand_right_with_their_header_and_the_unknown_is_a_dash() -> None:
    report = Report("t")
    report.table(["name", "count"], [["a", 12345], ["b", None]])

    page = page_of(report)

    assert '<th>name</th><th class="number">count</th>' in page
    assert '<td class="number">12,345</td>' in page
    assert '<td class="unknown">\u2013</td>' in page


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1234567, "1,234,567"),
        (2.0, "2"),
        (0.12344, "0.1234"),
        (12345.6, "12,346"),
        (1e20, "100,000,000,000,000,000,000"),
    ],
)
def test_numbers_are_for_people(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("column", "texts"),
    [
        ((0.122, 0.06043, 0, 0.9317), ["0.1220", "0.0604", "0", "0.9317"]),
        ((6.507, 6.75, 12.0), ["6.51", "6.75", "12.00"]),
        ((892.1, 1576.3), ["892", "1,576"]),
        ((0.0312, 90_000.5), ["0.0312", "90,000"]),
        ((3, 2.0, None, "text"), ["3", "2", "\u2013", "text"]),
        ((math.nan, 1.5), ["nan", "1.500"]),
    ],
)
def test_the_numbers_of_a_column_have_as_many_decimals(column: tuple[object, ...], texts: list[str]) -> None:
    report = Report("t")
    report.table(("name",), [(value,) for value in column])
    assert re.findall(r"<td[^>]*>([^<]*)</td>", page_of(report)) == texts


def test_figures_are_inline_in_the_page_s_own_colour_and_beside_it_as_png(tmp_path) -> None:
    open_before = plots.plt.get_fignums()  # a test of a page that fails may have left one
    report = Report("Two figures")
    for name in ("first", "second"):
        figure, (axes,) = plots.new_figure()
        axes.plot([1, 2, 3], label="line")
        axes.legend()
        report.figure(figure, caption=f"The {name}", name=name)

    page = report.write(tmp_path / "new" / "folder")

    assert page.name == "two-figures.html"
    text = page.read_text(encoding="utf-8")
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) == 2
    for drawing in drawings:
        ET.fromstring(drawing)
    assert plots.INK not in text
    assert "currentColor" in text
    assert "http://" not in re.sub(
        r'xmlns(:\w+)?="[^"]*"|<metadata>.*?</metadata>', "", text, flags=re.DOTALL
    )
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert all(f'id="{target}"' in text for target in re.findall(r'href="#([^"]+)"', text))
    assert all(f'id="{target}"' in text for target in re.findall(r"url\(#([^)]+)\)", text))
    assert (page.parent / "first.png").read_bytes().startswith(b"\x89PNG")
    assert plots.plt.get_fignums() == open_before


def test_two_figures_of_one_name_are_refused() -> None:
    report = Report("t")
    report.figure(plots.new_figure()[0], caption="", name="a")
    twin = plots.new_figure()[0]
    with pytest.raises(ValueError, match="already has a figure named 'a'"):
        report.figure(twin, caption="", name="a")
    plots.plt.close(twin)


def test_the_same_report_gives_the_same_bytes() -> None:
    def page() -> str:
        report = Report("t")
        figure, (axes,) = plots.new_figure()
        axes.plot([1, 2])
        report.figure(figure, caption="c", name="n")
        return page_of(report)

    assert page() == page()


def test_slugs_are_names_for_files() -> None:
    assert slug("Telemetry: 1 h & 1 day!") == "telemetry-1-h-1-day"
    assert slug("…") == "report"


def test_the_next_command_stands_at_the_end_and_is_told_as_a_shell_takes_it(capsys):
    report = Report("A page")
    report.next_step("to see <more>", "tidemark", "runs", "my folder", 3)
    report.heading("Later")

    html = report.html()
    tell_next(report, Console(width=40))

    assert html.index("Later") < html.index("Next") < html.index("tidemark runs &#x27;my folder&#x27; 3")
    assert "to see &lt;more&gt;" in html
    assert capsys.readouterr().out == "next: tidemark runs 'my folder' 3  (to see <more>)\n"
    assert "Next" not in Report("A page").html()


AT = datetime(2026, 11, 27, 8, tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "drawn_as_points"),
    [
        ([5.0], "all"),
        ([1.0, 2.0], "all"),
        ([math.nan], None),
        ([float(n) for n in range(40)], None),
        ([math.nan if n in {10, 12} else float(n) for n in range(40)], [11]),
    ],
)
def test_points_that_make_no_line_are_drawn_as_points(values, drawn_as_points):
    figure, (axes,) = plots.new_figure()
    (line,) = axes.plot([AT + timedelta(minutes=n) for n in range(len(values))], values)
    across = axes.axvline(AT)

    plots.show_few_points(figure)

    assert across.get_marker() == "None"
    assert (line.get_marker() == "o") is (drawn_as_points is not None)
    assert line.get_markevery() == (drawn_as_points if isinstance(drawn_as_points, list) else None)
    plots.plt.close(figure)


def test_the_axis_of_one_time_is_an_hour_and_one_bar_does_not_fill_the_plot():
    figure, (one, bars) = plots.new_figure(2)
    one.plot([AT], [5.0])
    plots.time_axis(one)
    bars.bar([AT], [3.0], width=1.0)

    plots.show_few_points(figure)

    low, high = one.get_xlim()
    assert high - low == pytest.approx(1 / 24)
    low, high = bars.get_xlim()
    assert high - low == pytest.approx(8.0)
    plots.plt.close(figure)


@pytest.mark.parametrize(
    ("values", "bottom", "least_top", "tick"),
    [
        ([995.0, 1000.0], 0.0, 1000.0, "1,000"),
        ([0.0], 0.0, 1.0, None),
        ([-3.0, 5.0], -3.0, 5.0, None),
    ],
)
def test_an_axis_of_counts_begins_at_zero_and_parts_thousands(values, bottom, least_top, tick):
    figure, (axes,) = plots.new_figure()
    axes.plot([AT + timedelta(minutes=n) for n in range(len(values))], values)
    plots.time_axis(axes)

    plots.show_few_points(figure)

    low, high = axes.get_ylim()
    assert low <= bottom
    assert bool(low == 0.0) is (bottom == 0.0)
    assert high >= least_top
    assert tick is None or axes.yaxis.get_major_formatter()(1000.0) == tick
    plots.plt.close(figure)


def test_panels_of_one_time_and_of_several_share_the_axis_of_the_several():
    figure, (one, several) = plots.new_figure(2, sharex=True)
    one.plot([AT], [5.0])
    several.plot([AT, AT + timedelta(minutes=2)], [5.0, 6.0])
    plots.time_axis(several)

    plots.show_few_points(figure)

    low, high = one.get_xlim()
    assert high - low < 3 / 1440
    plots.plt.close(figure)


@pytest.mark.parametrize("days", [0.0001, 0.002, 0.03, 0.04, 0.06, 0.084, 0.1, 0.12, 1, 2.9, 4, 30, 89, 300])
def test_on_a_phone_a_legend_is_whole_and_times_do_not_overlap(days):
    figure, (axes,) = plots.new_figure(height=3.4)
    for label in ("raw", "corrected", "without a break"):
        axes.plot(
            [AT + n * timedelta(days=days) / 29 for n in range(30)], range(0, 30_000, 1000), label=label
        )
    axes.set_ylabel("events per day")
    plots.fit_axes(figure)
    plots.time_axis(axes)
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3)
    figure.set_figwidth(plots.NARROW)

    plots.fit_to_phone(figure)

    figure.draw_without_rendering()
    assert axes.get_legend().get_window_extent().x1 <= figure.bbox.x1
    low, high = axes.get_xlim()
    labels = [
        label.get_window_extent()
        for label, at in zip(axes.get_xticklabels(), axes.get_xticks(), strict=True)
        if label.get_text() and low <= at <= high
    ]
    assert len(labels) >= 2
    assert all(before.x1 + 6 < after.x0 for before, after in pairwise(labels))
    plots.plt.close(figure)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.05, "0.05"),
        (1000, "1,000"),
        (2399.5, "2,399.5"),
        (1e7, "10,000,000"),
        (6e8, "600 M"),
        (1.8e9, "1.8 G"),
        (2e13, "20 T"),
        (1e16, "10,000 T"),
        (-2e9, "-2 G"),
    ],
)
def test_a_label_of_an_axis_is_short_and_not_rounded_to_its_neighbour(value, text):
    assert plots.plain(value) == text


@pytest.mark.parametrize("waiting", [0.0, 0.4, 5.0, 70_000.0, 1e15])
def test_panels_of_a_replay_have_axes_of_their_data_however_small_or_large(waiting):
    times = [AT + timedelta(minutes=n) for n in range(5)]
    line = plots.Line("rule", plots.GREEN, times, [0.0, waiting, waiting, 0.0, 0.0], [1.0] * 5)

    figure, (load, backlog, instances) = plots.over_time(times, [0.0] * 5, 10.0, [line])
    plots.show_few_points(figure)
    figure.draw_without_rendering()

    assert load.get_ylim() == (0.0, 1.0)
    low, high = backlog.get_ylim()
    assert low == 0
    assert max(1.0, waiting) <= high < 10 * max(1.0, waiting) ** 1.5
    top = backlog.transData.transform((0, waiting))[1]
    assert waiting == 0 or backlog.get_legend().get_window_extent().y0 > top
    labels = [label.get_window_extent() for label in backlog.get_yticklabels() if label.get_text()]
    assert all(before.y1 < after.y0 + 4 for before, after in pairwise(labels))
    assert all(float(label.get_text()).is_integer() for label in instances.get_yticklabels())
    assert instances.get_ylim()[1] > 1.2  # room for the legend
    plots.plt.close(figure)


def test_a_code_block_begins_with_its_first_line() -> None:
    report = Report("t")
    report.code("\n[[rules]]\ntype = 1\n\n", language="toml")

    assert ">[[rules]]\ntype = 1</code>" in page_of(report)


def test_windows_that_are_missing_are_a_gap_and_no_line_across_it():
    times = [AT + timedelta(minutes=n) for n in (0, 1, 2, 3, 30, 31)]

    shown, (values, others) = plots.windows(times, [1, 2, 3, 4, 5, 6], [1, None, 3, 4, 5, 6])

    assert shown == [*times[:4], AT + timedelta(minutes=4), *times[4:]]
    assert values == pytest.approx([1, 2, 3, 4, math.nan, 5, 6], nan_ok=True)
    assert others == pytest.approx([1, math.nan, 3, 4, math.nan, 5, 6], nan_ok=True)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_step_goes_on_to_the_end_of_the_last_window(count):
    times = [AT + timedelta(minutes=n) for n in range(count)]

    shown, (values,) = plots.windows(times, range(count), to_end=True)

    assert shown == ([*times, AT + timedelta(minutes=count)] if count else [])
    assert values == ([*range(count), count - 1] if count else [])


def test_a_plot_without_any_known_value_says_so():
    figure, (known, unknown) = plots.new_figure(2)
    for axes, value in ((known, 1.0), (unknown, math.nan)):
        axes.plot([AT, AT + timedelta(minutes=1)], [value, value])

    plots.show_few_points(figure)

    assert [[text.get_text() for text in axes.texts] for axes in (known, unknown)] == [[], ["not known"]]
    plots.plt.close(figure)


def test_on_a_phone_panels_stand_one_below_the_other_and_the_legend_of_both_is_whole():
    figure, (left, right) = plots.new_figure(1, 2, width=9.5, height=4.0, sharex=True, sharey=True)
    for axes in (left, right):
        for label in ("other candidates", "none better in all three (training)", "running policy", "best"):
            axes.scatter([1, 2], [3, 4], label=label)
    left.set_ylabel("late messages, %")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize="small")

    plots.fit_to_phone(figure)

    figure.draw_without_rendering()
    above, below = left.get_position(), right.get_position()
    assert above.y0 > below.y1
    assert above.x0 == pytest.approx(below.x0, abs=0.01)
    assert above.width > 0.75
    assert right.get_ylabel() == "late messages, %"
    assert all(any(label.get_visible() for label in axes.get_yticklabels()) for axes in (left, right))
    [legend] = figure.legends
    extent = legend.get_window_extent()
    assert 0 <= extent.x0 < extent.x1 <= figure.bbox.x1
    assert len(legend.get_texts()) == 4
    plots.plt.close(figure)


def test_a_figure_is_drawn_again_for_a_phone_and_in_its_own_colours(tmp_path):
    report = Report("Phone")
    figure, (axes,) = plots.new_figure()
    axes.plot([1, 2], label="line")
    axes.set_title("a title that is longer than a phone is wide, by half")
    report.figure(figure, caption="c", name="one")

    (image,) = re.findall(
        r'<img class="narrow" alt="" src="data:image/svg\+xml;base64,([^"]+)"', report.html()
    )
    drawn = ET.fromstring(base64.b64decode(image))

    assert float(drawn.get("viewBox").split()[2]) == pytest.approx(72 * plots.NARROW)
    assert plots.INK.encode() not in base64.b64decode(image)
    assert b"prefers-color-scheme:dark" in base64.b64decode(image)
