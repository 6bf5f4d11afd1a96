//! Profiles as one HTML page with charts.

use super::profile::Profile;
use super::show::{grouped, percent, seconds};
use ebb_output::{Axis, Chart, Mark, Page, Series};
use ebb_types::{Bytes, plural};

/// A page that shows every trace.
pub fn page(profiles: &[Profile]) -> String {
    let names: Vec<&str> = profiles.iter().map(|profile| profile.name.as_str()).collect();
    let lead = "The workload of the traces. Random: begins elsewhere than the previous request on the same device \
                ended. Distinct: 4 KiB blocks that are read or written, each counted once.";
    let mut page = Page::new(names.join(", "), lead);
    if profiles.len() > 1 {
        page.section("Overview", "").table(
            "Traces",
            &OVERVIEW,
            &profiles.iter().map(overview).collect::<Vec<_>>(),
        );
    }
    for profile in profiles {
        show(&mut page, profile);
    }
    page.render()
}

const OVERVIEW: [&str; 8] =
    ["trace", "requests", "span", "requests/s", "reads", "random", "mean size", "distinct"];

fn overview(profile: &Profile) -> Vec<String> {
    let figures = &profile.figures;
    let or_absent = |value: Option<String>| value.unwrap_or_else(|| "–".into());
    vec![
        profile.name.clone(),
        grouped(figures.requests),
        seconds(figures.span_seconds),
        or_absent(figures.requests_per_second.map(|rate| format!("{rate:.1}"))),
        percent(figures.read_share),
        percent(figures.random_share),
        or_absent(figures.mean_size_bytes.map(|mean| Bytes(mean as u64).to_string())),
        Bytes(figures.unique_bytes).to_string(),
    ]
}

fn show(page: &mut Page, profile: &Profile) {
    let figures = &profile.figures;
    let format = figures.format.as_deref().unwrap_or("made");
    let text = format!(
        "{format}, {} {}, {} in {}.",
        grouped(figures.requests),
        plural(figures.requests, "request"),
        Bytes(figures.bytes),
        seconds(figures.span_seconds)
    );
    let lines = figures.lines();
    let rows: Vec<Vec<String>> = lines.into_iter().map(|(label, text)| vec![label.into(), text]).collect();
    page.section(&profile.name, &text).table("Figures", &["", ""], &rows);
    if figures.requests == 0 {
        return;
    }
    for chart in load(profile) {
        page.chart(&chart);
    }
    page.chart(&sizes(profile));
    let curves = [
        ("Inter-arrival times", Axis::new("time between arrivals").time(), &figures.gaps),
        ("Seek distances", Axis::new("distance on the device").bytes(), &figures.seeks),
    ];
    for (title, x, spread) in curves {
        // A logarithmic axis has no zero; the curve begins at the share of zeros.
        let Some(spread) = spread.as_ref().filter(|spread| spread.max > 0.0) else { continue };
        let y = Axis::new("share of requests up to it").percent().from(0.0).to(1.0);
        let points = spread.curve.iter().copied();
        page.chart(&Chart::new(title, x.log(), y).with(Series::new("requests", Mark::Step, points)));
    }
    if profile.devices.len() > 1 {
        let rows: Vec<Vec<String>> = profile.devices.iter().map(device).collect();
        let header = ["device", "requests", "reads", "random", "bytes", "footprint", "distinct"];
        page.table("Devices", &header, &rows);
    }
}

fn device(device: &super::profile::DeviceProfile) -> Vec<String> {
    let reads = (device.requests > 0).then(|| device.reads as f64 / device.requests as f64);
    vec![
        device.name.clone(),
        grouped(device.requests),
        percent(reads),
        percent(device.random_share),
        Bytes(device.bytes).to_string(),
        Bytes(device.footprint_bytes).to_string(),
        Bytes(device.unique_bytes).to_string(),
    ]
}

fn load(profile: &Profile) -> [Chart; 2] {
    let load = &profile.load;
    let series = |name: &str, counts: &[u64], unit: f64| {
        let each = load.interval_seconds;
        let points = counts.iter().enumerate().map(|(i, &n)| (i as f64 * each, n as f64 / unit / each));
        Series::new(name, Mark::Step, points.collect::<Vec<_>>())
    };
    let time = || Axis::new("time since the first request").time();
    let means = format!("means of {}", seconds(load.interval_seconds));
    [
        Chart::new(format!("Requests over time ({means})"), time(), Axis::new("requests/s"))
            .with(series("reads", &load.reads, 1.0))
            .with(series("writes", &load.writes, 1.0)),
        Chart::new(format!("Bytes over time ({means})"), time(), Axis::new("MiB/s")).with(series(
            "reads and writes",
            &load.bytes,
            1024.0 * 1024.0,
        )),
    ]
}

fn sizes(profile: &Profile) -> Chart {
    let names = profile.sizes.iter().map(|class| format!("{}", Bytes(class.from_bytes)));
    let all = profile.figures.requests as f64;
    let bars = |name: &str, of: fn(&super::profile::SizeClass) -> u64| {
        let points = profile.sizes.iter().enumerate();
        let points = points.map(|(i, class)| (i as f64, of(class) as f64 / all)).collect::<Vec<_>>();
        Series::new(name, Mark::Bars, points)
    };
    Chart::new("Request sizes", Axis::new("from").names(names), Axis::new("share of requests").percent())
        .with(bars("reads", |class| class.reads))
        .with(bars("writes", |class| class.writes))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_page_shows_every_trace_with_its_charts_and_survives_an_empty_one() {
        let of = |name: &str, text: &'static str| {
            let mut reader = ebb_trace::open("t.spc", text.as_bytes()).unwrap();
            super::super::profile(name, reader.as_mut()).unwrap()
        };
        let full = of("a <b>", "3,0,4096,R,10\n3,8,4096,W,10.5\n9,800,0,R,11\n3,0,512,R,14\n");
        let html = super::page(&[full, of("nothing", "")]);
        assert!(html.contains("a &lt;b&gt;") && !html.contains("a <b>") && html.contains("nothing"));
        assert_eq!(html.matches("<figure>").count(), 5);
    }
}
