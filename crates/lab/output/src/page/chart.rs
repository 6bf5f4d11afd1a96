//! Charts as SVG text, written by hand: the plotting libraries place text without knowing its width, use fixed colours,
//! and do not support a dark background. Here colours are CSS variables that follow the reader's scheme, the legend is
//! above the data, and the same input gives the same bytes.

use super::axis::{Axis, Scale, Ticks};
use super::escape;
use std::fmt::Write;

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Line,
    /// Each value holds until the next point: counts of servers, states.
    Step,
    /// A line, filled down to the axis.
    Area,
    Points,
    /// One bar per point; bars of several series at one x are side by side.
    Bars,
}

/// Values in the order in which they are joined. A non-finite y is a gap: nothing is drawn across it.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub name: String,
    pub mark: Mark,
    pub points: Vec<(f64, f64)>,
}

impl Series {
    pub fn new(name: impl Into<String>, mark: Mark, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
        Series { name: name.into(), mark, points: points.into_iter().collect() }
    }
}

/// One plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub series: Vec<Series>,
    /// What stands out: the series of this name, or the bars of it.
    pub strong: Option<String>,
}

const WIDTH: f64 = 820.0;
/// Width of a drawing for a narrow screen.
const NARROW: f64 = 380.0;
const PLOT_HEIGHT: f64 = 250.0;
/// Width of a character of the 12 px font, on average and rounded up.
const CHARACTER: f64 = 6.9;
/// The same of the title's.
const TITLE_CHARACTER: f64 = 8.4;
const LINE: f64 = 19.0;
/// How far a slanted name reaches to the left, by its length: the cosine of 30 degrees.
const SLANT: f64 = 0.87;
/// Most values of a line that are dots, too.
const MOST_DOTS: usize = 60;
/// Number of colours in the style sheet; a ninth series starts over.
const COLOURS: usize = 8;

/// The data area, in SVG units.
struct Frame<'a> {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    x: Scale<'a>,
    y: Scale<'a>,
}

impl Frame<'_> {
    fn x(&self, value: f64) -> Option<f64> {
        Some(self.left + self.x.place(value)? * (self.right - self.left))
    }

    /// Values outside the range lie just outside the frame, which clips them.
    fn y(&self, value: f64) -> Option<f64> {
        Some(self.bottom - self.y.place(value)?.clamp(-0.1, 1.1) * (self.bottom - self.top))
    }

    /// Horizontal lines with their labels.
    fn grid(&self, svg: &mut String, ticks: &[(f64, String)]) {
        for (value, label) in ticks {
            let Some(at) = self.y(*value) else { continue };
            let _ = write!(
                svg,
                "<path class=\"g\" d=\"M{} {at}H{}\"/><text class=\"e\" x=\"{}\" y=\"{}\">{}</text>",
                n(self.left),
                n(self.right),
                n(self.left - 6.0),
                n(at + 4.0),
                escape(label),
                at = n(at)
            );
        }
    }

    fn point(&self, (x, y): (f64, f64)) -> Option<(f64, f64)> {
        Some((self.x(x)?, self.y(y)?))
    }
}

impl Chart {
    pub fn new(title: impl Into<String>, x: Axis, y: Axis) -> Chart {
        Chart { title: title.into(), x, y, series: Vec::new(), strong: None }
    }

    /// Lets a series, or the bars over a name, stand out from the others.
    pub fn strong(self, name: impl Into<String>) -> Chart {
        Chart { strong: Some(name.into()), ..self }
    }

    /// Whether there is nothing to draw: no value of any series has a place.
    pub fn is_empty(&self) -> bool {
        self.range_y().is_none() || self.range_x().is_none()
    }

    /// Steps over time, from zero up: a line for each name.
    pub fn steps<P: IntoIterator<Item = (f64, f64)>>(
        title: &str,
        y: &str,
        lines: impl IntoIterator<Item = (&'static str, P)>,
    ) -> Chart {
        let chart = Chart::new(title, Axis::new("time").time(), Axis::new(y).from(0.0));
        let line = |chart: Chart, (name, points)| chart.with(Series::new(name, Mark::Step, points));
        lines.into_iter().fold(chart, line)
    }

    pub fn with(mut self, series: Series) -> Chart {
        self.series.push(series);
        self
    }

    /// The chart as one `<svg>` element that needs nothing else: put it into a page or a file.
    pub fn svg(&self) -> String {
        self.drawn(WIDTH)
    }

    /// The same for a telephone: narrow, so that its text need not shrink.
    pub(super) fn narrow_svg(&self) -> String {
        self.drawn(NARROW)
    }

    fn drawn(&self, wide: f64) -> String {
        let mut head = String::new();
        let mut top = 22.0;
        for (row, line) in lines(&self.title, (wide / TITLE_CHARACTER) as usize).iter().enumerate() {
            let y = 15.0 + row as f64 * LINE;
            let _ = write!(head, "<text class=\"t\" x=\"0\" y=\"{}\">{}</text>", n(y), escape(line));
            top = y + 7.0;
        }
        let top = self.legend(&mut head, top, wide);
        let _ = write!(head, "<text x=\"0\" y=\"{}\">{}</text>", n(top + 13.0), escape(&self.y.label));
        let top = top + 28.0;

        let y = Scale::new(&self.y, self.range_y(), Some(5.0));
        let y_ticks = y.ticks(5.0);
        let widest = y_ticks.iter().map(|(_, label)| width(label)).fold(20.0, f64::max);
        let x = Scale::new(&self.x, self.range_x(), None);
        let (right, left) = (wide - 26.0, widest + 8.0);
        let left = left.max(self.room_for_names(right - left));
        let frame = Frame { left, right, top, bottom: top + PLOT_HEIGHT, x, y };

        let mut body = String::new();
        frame.grid(&mut body, &y_ticks);
        let height = self.x_axis(&mut body, &frame);
        // The clip's name must differ between the charts of one page, and be the same in every run.
        let clip = format!("c{:08x}", fingerprint(&format!("{wide} {self:?}")));
        let _ = write!(
            body,
            "<clipPath id=\"{clip}\"><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/></clipPath><g clip-path=\"url(#{clip})\">",
            n(frame.left - 5.0),
            n(frame.top - 5.0),
            n(frame.right - frame.left + 10.0),
            n(frame.bottom - frame.top + 5.5)
        );
        for (at, series) in self.series.iter().enumerate() {
            self.series(&mut body, &frame, at, series);
        }
        body.push_str("</g>");
        if self.is_empty() {
            let _ = write!(
                body,
                "<text class=\"m\" x=\"{}\" y=\"{}\">no data</text>",
                n(wide / 2.0),
                n(top + 120.0)
            );
        }
        let _ = write!(
            body,
            "<path class=\"a\" d=\"M{} {}H{}\"/>",
            n(frame.left),
            n(frame.bottom),
            n(frame.right)
        );
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"ebb\" viewBox=\"0 0 {wide} {}\" role=\"img\" \
             aria-label=\"{}\"><style>{STYLE}</style>{head}{body}</svg>\n",
            n(height),
            escape(&self.title)
        )
    }

    /// The left edge of the plot that leaves room for slanted names, which end at their bars; zero if they are not
    /// slanted.
    fn room_for_names(&self, room: f64) -> f64 {
        let Ticks::Names(names) = &self.x.ticks else { return 0.0 };
        let slot = room / names.len().max(1) as f64;
        if names.iter().all(|name| width(name) + 8.0 <= slot) {
            return 0.0;
        }
        let reach = |(at, name): (usize, &String)| width(name) * SLANT - (at as f64 + 0.5) * slot;
        names.iter().enumerate().map(reach).fold(0.0, f64::max)
    }

    /// Rows of names above the plot. Returns the y position of their end.
    fn legend(&self, out: &mut String, top: f64, wide: f64) -> f64 {
        let (mut x, mut row) = (0.0, 0);
        // What cannot be seen needs no explanation.
        let seen = |series: &Series| series.points.iter().any(|(_, y)| y.is_finite());
        let named = self.series.iter().enumerate();
        let named = named.filter(|(_, series)| !series.name.is_empty() && seen(series));
        let mut any = false;
        for (at, series) in named {
            let room = width(&series.name) + 40.0;
            if x > 0.0 && x + room > wide {
                (x, row) = (0.0, row + 1);
            }
            let y = top + 9.0 + row as f64 * LINE;
            let colour = at % COLOURS;
            let _ = match series.mark {
                Mark::Line | Mark::Step => {
                    let strong = self.class_of(series);
                    write!(out, "<path class=\"l{strong} s{colour}\" d=\"M{} {}h18\"/>", n(x), n(y))
                }
                Mark::Points => {
                    write!(out, "<circle class=\"f{colour}\" cx=\"{}\" cy=\"{}\" r=\"4\"/>", n(x + 9.0), n(y))
                }
                Mark::Area | Mark::Bars => write!(
                    out,
                    "<rect class=\"f{colour}\" x=\"{}\" y=\"{}\" width=\"18\" height=\"10\"/>",
                    n(x),
                    n(y - 5.0)
                ),
            };
            let _ = write!(
                out,
                "<text x=\"{}\" y=\"{}\">{}</text>",
                n(x + 23.0),
                n(y + 4.0),
                escape(&series.name)
            );
            x += room;
            any = true;
        }
        if any { top + (row + 1) as f64 * LINE } else { top }
    }

    /// Ticks and label below the plot. Returns the height of the whole chart.
    fn x_axis(&self, out: &mut String, frame: &Frame) -> f64 {
        let room = frame.right - frame.left;
        // The widest label of a first try determines how many fit.
        let widest =
            |ticks: &[(f64, String)]| ticks.iter().map(|(_, label)| width(label)).fold(0.0, f64::max);
        let wanted = (room / (widest(&frame.x.ticks(8.0)) + 24.0)).clamp(2.0, 9.0);
        let ticks = frame.x.ticks(wanted);
        let widest = widest(&ticks);
        let slanted =
            matches!(self.x.ticks, Ticks::Names(_)) && widest + 8.0 > room / ticks.len().max(1) as f64;
        for (value, label) in &ticks {
            let Some(x) = frame.x(*value) else { continue };
            let y = frame.bottom + 17.0;
            let (class, turn) = match slanted {
                true => ("e", format!(" transform=\"rotate(-30 {} {})\"", n(x), n(y))),
                false => ("m", String::new()),
            };
            let _ = write!(
                out,
                "<path class=\"a\" d=\"M{x} {}v4\"/><text class=\"{class}\" x=\"{x}\" y=\"{}\"{turn}>{}</text>",
                n(frame.bottom),
                n(y),
                escape(label),
                x = n(x)
            );
        }
        let below = frame.bottom + if slanted { 24.0 + widest * 0.5 } else { 24.0 }; // half: the sine of the slant
        let _ = write!(
            out,
            "<text class=\"m\" x=\"{}\" y=\"{}\">{}</text>",
            n((frame.left + frame.right) / 2.0),
            n(below + 12.0),
            escape(&self.x.label)
        );
        below + 22.0
    }

    fn series(&self, out: &mut String, frame: &Frame, at: usize, series: &Series) {
        let colour = at % COLOURS;
        match series.mark {
            Mark::Line | Mark::Step | Mark::Area => {
                for run in runs(frame, series) {
                    let path = path(&run, series.mark == Mark::Step);
                    if series.mark == Mark::Area {
                        let (first, last) = (run[0].0, run[run.len() - 1].0);
                        let _ = write!(
                            out,
                            "<path class=\"w f{colour}\" d=\"{path}L{} {b}L{} {b}Z\"/>",
                            n(last),
                            n(first),
                            b = n(frame.bottom)
                        );
                    }
                    let strong = self.class_of(series);
                    let _ = write!(out, "<path class=\"l{strong} s{colour}\" d=\"{path}\"/>");
                }
                // A line of few values shows which they are; one of many would only be thick.
                if series.mark == Mark::Line && series.points.len() <= MOST_DOTS {
                    dots(out, frame, series, colour, 2.6);
                }
            }
            Mark::Points => dots(out, frame, series, colour, 3.5),
            Mark::Bars => self.bars(out, frame, at, series),
        }
    }

    /// The class of a line that stands out.
    fn class_of(&self, series: &Series) -> &'static str {
        if self.strong.as_deref() == Some(series.name.as_str()) { " h" } else { "" }
    }

    /// Whether a bar stands back behind the one that stands out.
    fn stands_back(&self, x: f64) -> bool {
        let Ticks::Names(names) = &self.x.ticks else { return false };
        let strong = self.strong.as_ref().and_then(|strong| names.iter().position(|name| name == strong));
        strong.is_some_and(|strong| strong as f64 != x)
    }

    fn bars(&self, out: &mut String, frame: &Frame, at: usize, series: &Series) {
        let bars = |series: &&Series| series.mark == Mark::Bars;
        let beside = self.series.iter().filter(bars).count() as f64;
        let before = self.series[..at].iter().filter(bars).count() as f64;
        let slot = self.bar_slot();
        for &(x, y) in &series.points {
            // Three quarters of the slot are bars, so that neighbours stay apart.
            let left = x + slot * 0.75 * (before / beside - 0.5);
            let edges = (frame.x(left), frame.x(left + slot * 0.75 / beside), frame.y(y));
            let (Some(left), Some(right), Some(top)) = edges else { continue };
            let zero = if self.y.log { frame.bottom } else { frame.y(0.0).unwrap_or(frame.bottom) };
            let _ = write!(
                out,
                "<rect class=\"f{}{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{} {y}</title></rect>",
                at % COLOURS,
                if self.stands_back(x) { " b" } else { "" },
                n(left),
                n(top.min(zero)),
                n((right - left - 1.0).max(0.5)),
                n((zero - top).abs()),
                escape(&series.name)
            );
        }
    }

    /// The x distance between neighbouring bars; 1 if there is only one.
    fn bar_slot(&self) -> f64 {
        let bars = self.series.iter().filter(|series| series.mark == Mark::Bars);
        let mut places: Vec<f64> =
            bars.flat_map(|s| &s.points).map(|point| point.0).filter(|x| x.is_finite()).collect();
        places.sort_by(f64::total_cmp);
        let gaps = places.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| *gap > 0.0);
        let least = gaps.fold(f64::INFINITY, f64::min);
        if least.is_finite() { least } else { 1.0 }
    }

    fn range_x(&self) -> Option<(f64, f64)> {
        if let Ticks::Names(names) = &self.x.ticks {
            return Some((-0.5, names.len().max(1) as f64 - 0.5));
        }
        let (low, high) = range(self.series.iter().flat_map(|s| &s.points).map(|point| point.0), self.x.log)?;
        let marks = |mark: Mark| self.series.iter().any(|series| series.mark == mark);
        if marks(Mark::Bars) {
            let slot = self.bar_slot() / 2.0;
            return Some((low - slot, high + slot));
        }
        Some((low, high))
    }

    fn range_y(&self) -> Option<(f64, f64)> {
        let (low, high) = range(self.series.iter().flat_map(|s| &s.points).map(|point| point.1), self.y.log)?;
        // A linear axis that does not start at zero makes small differences look large.
        Some(if self.y.log { (low, high) } else { (low.min(0.0), high) })
    }
}

/// A dot for each value, which says what it is.
fn dots(out: &mut String, frame: &Frame, series: &Series, colour: usize, radius: f64) {
    let mut last = None;
    for (point, (x, y)) in series.points.iter().filter_map(|point| Some((point, frame.point(*point)?))) {
        let place = (n(x), n(y));
        if last.as_ref() != Some(&place) {
            let _ = write!(
                out,
                "<circle class=\"f{colour}\" cx=\"{}\" cy=\"{}\" r=\"{radius}\"><title>{} {}, {}</title></circle>",
                place.0,
                place.1,
                escape(&series.name),
                point.0,
                point.1
            );
        }
        last = Some(place);
    }
}

/// Lowest and highest of the values that can be drawn.
fn range(values: impl Iterator<Item = f64>, log: bool) -> Option<(f64, f64)> {
    values.filter(|value| value.is_finite() && (!log || *value > 0.0)).fold(None, |range, value| {
        let (low, high) = range.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

/// The gap-free parts of a series, in SVG units. Of several points in one column of pixels, the first, the lowest, the
/// highest and the last are kept: more cannot be seen, and a page with a million points cannot be opened.
fn runs(frame: &Frame, series: &Series) -> Vec<Vec<(f64, f64)>> {
    let mut runs = vec![Vec::new()];
    let mut column: Vec<(f64, f64)> = Vec::new();
    for point in &series.points {
        let Some(point) = frame.point(*point) else {
            flush(&mut column, runs.last_mut().expect("there is one"));
            runs.push(Vec::new());
            continue;
        };
        if column.first().is_some_and(|first| (first.0 * 2.0).floor() != (point.0 * 2.0).floor()) {
            flush(&mut column, runs.last_mut().expect("there is one"));
        }
        column.push(point);
    }
    flush(&mut column, runs.last_mut().expect("there is one"));
    runs.retain(|run| !run.is_empty());
    runs
}

fn flush(column: &mut Vec<(f64, f64)>, run: &mut Vec<(f64, f64)>) {
    if column.len() <= 4 {
        run.append(column);
        return;
    }
    let by_y = |a: &usize, b: &usize| column[*a].1.total_cmp(&column[*b].1);
    let all = 0..column.len();
    let mut keep =
        [0, all.clone().min_by(by_y).unwrap_or(0), all.max_by(by_y).unwrap_or(0), column.len() - 1];
    keep.sort_unstable();
    run.extend(keep.iter().map(|at| column[*at]));
    column.clear();
}

fn path(run: &[(f64, f64)], step: bool) -> String {
    let mut path = String::new();
    let mut last: Option<(String, String)> = None;
    for &(x, y) in run {
        let (x, y) = (n(x), n(y));
        let _ = match &last {
            None => write!(path, "M{x} {y}"),
            Some((last_x, last_y)) if *last_x == x && *last_y == y => continue,
            Some((_, last_y)) if step && *last_y == y => write!(path, "H{x}"),
            Some(_) if step => write!(path, "H{x}V{y}"),
            Some(_) => write!(path, "L{x} {y}"),
        };
        last = Some((x, y));
    }
    // A single point is a line of zero length, made visible by its round cap.
    if run.len() == 1 {
        path.push_str("h0");
    }
    path
}

/// A coordinate, to a tenth of a unit.
fn n(value: f64) -> String {
    let text = format!("{value:.1}");
    match text.strip_suffix(".0") {
        Some("-0") => "0".into(),
        Some(whole) => whole.into(),
        None => text,
    }
}

/// A text in lines of at most `most` characters, broken between words.
fn lines(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut().filter(|line| line.chars().count() + 1 + word.chars().count() <= most) {
            Some(line) => *line = format!("{line} {word}"),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The approximate width of a text.
fn width(text: &str) -> f64 {
    text.chars().count() as f64 * CHARACTER
}

/// FNV-1a of a text.
fn fingerprint(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Colours of eight series, distinguishable with red-green colour blindness, on white and on black.
const STYLE: &str = "\
.ebb{font:12px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;--ink:#1c2126;--dim:#5c6670;--grid:#e3e6ea;\
--c0:#1f6fc4;--c1:#d9660a;--c2:#1a8a5f;--c3:#a83e98;--c4:#c43434;--c5:#11899b;--c6:#8a6d00;--c7:#68707a}\
@media(prefers-color-scheme:dark){.ebb{--ink:#e6e9ec;--dim:#9aa4ae;--grid:#2d343b;\
--c0:#62a8f2;--c1:#f79a4b;--c2:#4cc596;--c3:#dc83cd;--c4:#f27d7d;--c5:#4cc3d6;--c6:#d8b93a;--c7:#a7b0ba}}\
.ebb text{fill:var(--dim)}.ebb .t{fill:var(--ink);font-size:14px;font-weight:600}.ebb .e{text-anchor:end}\
.ebb .m{text-anchor:middle}.ebb .g{stroke:var(--grid);fill:none}.ebb .a{stroke:var(--dim);fill:none}\
.ebb .l{fill:none;stroke-width:1.7;stroke-linejoin:round;stroke-linecap:round}.ebb .w{opacity:.18}.ebb .h{stroke-width:3.2}.ebb .b{opacity:.5}\
.s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}\
.s4{stroke:var(--c4)}.s5{stroke:var(--c5)}.s6{stroke:var(--c6)}.s7{stroke:var(--c7)}\
.f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}\
.f4{fill:var(--c4)}.f5{fill:var(--c5)}.f6{fill:var(--c6)}.f7{fill:var(--c7)}";
