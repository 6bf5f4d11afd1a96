use super::*;

/// Run with `UPDATE_GOLDEN=1` after an intended change, and review the file before you commit it.
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/page/golden.html");

fn small_page() -> String {
    let day = |at: u32| f64::from(at) * 3600.0;
    let load = |at: u32| 30.0 - 25.0 * (f64::from(at) / 24.0 * std::f64::consts::TAU).cos();
    let servers = Chart::new("Load and servers <awake>", Axis::new("time").time(), Axis::new("servers"))
        .with(Series::new("load", Mark::Area, (0..=24).map(|at| (day(at), load(at)))))
        .with(Series::new("awake", Mark::Step, (0..=24).map(|at| (day(at), (load(at) / 10.0).ceil() * 10.0))))
        .with(Series::new(
            "measured",
            Mark::Line,
            (0..=24).map(|at| (day(at), if (8..12).contains(&at) { f64::NAN } else { load(at) * 0.9 })),
        ));
    let latency = Chart::new(
        "Latency",
        Axis::new("percentile").names(["p50", "p99", "p99.9"]),
        Axis::new("response time").time().log(),
    )
    .with(Series::new("always on", Mark::Bars, [(0.0, 0.0004), (1.0, 0.012), (2.0, 0.09)]))
    .with(Series::new("Ebb", Mark::Bars, [(0.0, 0.0005), (1.0, 0.02), (2.0, 0.7)]));
    let saved =
        Chart::new("Savings", Axis::new("hours short").percent(), Axis::new("energy saved").percent())
            .with(Series::new("policies", Mark::Points, [(0.0, 0.476), (0.086, 0.458), (0.02, 0.6)]));
    let mut page = Page::new("A & B", "The lead.\n\nIts second part.");
    page.section("Load", "What came in.").chart(&servers).section("Latency", "").chart(&latency);
    page.section("Savings", "Modelled.").chart(&saved).table(
        "Policies",
        &["policy", "saved", "power"],
        &[
            vec!["whole gears".into(), "47.6 %".into(), "1,200.5 W".into()],
            vec!["<ideal>".into(), "63.9 %".into(), "–".into()],
        ],
    );
    page.render()
}

#[test]
fn a_small_page_is_what_it_was() {
    let page = small_page();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(GOLDEN, &page).unwrap();
    }
    let golden = std::fs::read_to_string(GOLDEN).unwrap();
    let differs = page.lines().zip(golden.lines()).enumerate().find(|(_, (now, then))| now != then);
    assert_eq!(
        differs, None,
        "the page changed: UPDATE_GOLDEN=1 cargo test -p ebb-output page, and look at it"
    );
    assert_eq!(page.len(), golden.len());
}

#[test]
fn text_from_outside_stays_text() {
    let mut page = Page::new("<script>", "a&b");
    page.section("\"x\"", "'<b>'\u{0}").table("<i>", &["<u>"], &[vec!["<s>".into()]]);
    page.chart(&Chart::new("<q>", Axis::new("</svg>"), Axis::new("<y>")).with(Series::new(
        "<n>",
        Mark::Line,
        [],
    )));
    page.chart(&Chart::new("<q>", Axis::new("</svg>"), Axis::new("<y>")).strong("<n>").with(Series::new(
        "<n>",
        Mark::Line,
        [(0.0, 1.0)],
    )));
    let html = page.render();
    for tag in ["<script>", "<b>", "<i>", "<u>", "<s>", "<q>", "<y>", "<n>", "\u{0}"] {
        assert!(!html.contains(tag), "{tag} came through");
    }
    assert_eq!(
        html.matches("</svg>").count(),
        2,
        "a chart without a value is left out, another is drawn for two widths"
    );
}

#[test]
fn columns_of_numbers_are_set_right() {
    for number in ["12", "1,200.5 W", "47.6 %", "−3", "≤ 3 %", ".5", "12 GiB/s"] {
        assert!(is_number(number), "{number}");
    }
    for text in ["2021-08 hourly", "a 12", "10–20 %", "12:30", "", "1 of 2"] {
        assert!(!is_number(text), "{text}");
    }
}

#[test]
fn a_million_points_make_a_small_file_that_keeps_the_extremes() {
    let points =
        (0..1_000_000).map(|at| (f64::from(at), if at == 777_777 { 100.0 } else { f64::from(at % 7) }));
    let chart =
        Chart::new("", Axis::new("x"), Axis::new("y").to(100.0)).with(Series::new("", Mark::Line, points));
    let svg = chart.svg();
    assert!(svg.len() < 120_000, "{} bytes", svg.len());
    // The top of the plot: title, y label, no legend.
    assert!(svg.contains(" 50L"), "the one high value is gone");
}

/// What stands out: a line is thicker, other bars stand back; a dot says its value.
#[test]
fn one_series_or_bar_stands_out() {
    let lines = Chart::new("", Axis::new("x"), Axis::new("y"))
        .with(Series::new("a", Mark::Line, [(0.0, 1.0), (1.0, 2.5)]))
        .with(Series::new("b", Mark::Line, [(0.0, 2.0), (1.0, 1.0)]));
    let svg = lines.clone().strong("b").svg();
    assert!(
        svg.contains("class=\"l s0\"")
            && svg.contains("class=\"l h s1\"")
            && !svg.contains("class=\"l h s0\"")
    );
    assert!(svg.contains("<title>a 1, 2.5</title>") && svg.matches("<circle").count() == 4);
    assert!(!lines.svg().contains("class=\"l h"));
    let bars = Chart::new("", Axis::new("").names(["p", "q"]), Axis::new("y")).with(Series::new(
        "a",
        Mark::Bars,
        [(0.0, 1.0), (1.0, 2.0)],
    ));
    let svg = bars.strong("q").svg();
    assert!(svg.contains("class=\"f0 b\"") && svg.contains("class=\"f0\" x"), "{svg}");
}

/// Slanted names end within the drawing: the first one must not begin left of it.
#[test]
fn slanted_names_are_not_clipped() {
    let names =
        ["a-name-that-is-quite-long-for-its-bar", "another-one", "c", "d", "e", "f", "g", "h", "i", "j"];
    let chart = Chart::new("", Axis::new("").names(names), Axis::new("y")).with(Series::new(
        "",
        Mark::Bars,
        (0..10).map(|x| (f64::from(x), 1.0)),
    ));
    let svg = chart.svg();
    let label = &svg[..svg.find(names[0]).unwrap()];
    let x = label.rsplit(" x=\"").next().unwrap().split('"').next().unwrap().parse::<f64>().unwrap();
    assert!(label.contains("rotate(-30"), "{label}");
    assert!(x - 0.866 * 6.0 * names[0].len() as f64 >= 0.0, "it ends at {x}");
}

/// A narrow drawing has everything that a broad one has, within its width.
#[test]
fn a_narrow_drawing_wraps_what_does_not_fit() {
    let title =
        "A title of a chart that is much too long for the screen of a telephone, and has to go on below";
    let chart = ["first series", "second series", "third series", "fourth series"]
        .iter()
        .fold(Chart::new(title, Axis::new("x"), Axis::new("y")), |chart, name| {
            chart.with(Series::new(*name, Mark::Line, [(0.0, 1.0), (9.0, 2.0)]))
        });
    let svg = chart.narrow_svg();
    let titles: Vec<&str> = svg.split("<text class=\"t\"").skip(1).collect();
    assert_eq!(titles.len(), 3, "{titles:?}");
    let said: Vec<&str> = titles.iter().map(|t| &t[t.find('>').unwrap() + 1..t.find('<').unwrap()]).collect();
    assert_eq!(said.join(" "), title);
    assert!(said.iter().all(|line| line.len() <= 45), "{said:?}");
    // Every x of a text or a path is within the width.
    let places =
        svg.split(" x=\"").skip(1).map(|rest| rest.split('"').next().unwrap().parse::<f64>().unwrap());
    assert!(places.clone().count() > 10 && places.clone().all(|x| x <= 380.0));
    assert!(svg.contains("viewBox=\"0 0 380 "));
}

#[test]
fn a_gap_is_not_drawn_across() {
    let gap = [(0.0, 1.0), (1.0, 1.0), (2.0, f64::NAN), (3.0, 1.0), (4.0, 1.0)];
    let chart = Chart::new("", Axis::new("x"), Axis::new("y")).with(Series::new("", Mark::Line, gap));
    assert_eq!(chart.svg().matches("class=\"l s0\"").count(), 2);
}
