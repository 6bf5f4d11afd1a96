//! The lab's page over a socket and in a real browser, on a fake lab.

use super::browser::{DRAWN, no_trouble};
use super::http::{ask, bearer, events, send};
use super::made_up_lab::{MadeUpLab, figures};
use super::shelf::Shelf;
use super::{ACT, LOOK, Served};
use crate::{Hosts, Tokens, serve_lab};
use ebb_testing::browser::Browser;
use serde_json::{Value, json};
use std::path::Path;

fn served(lab: &MadeUpLab) -> Served {
    let lab = lab.clone();
    Served::by("127.0.0.1:0".parse().unwrap(), Shelf::default(), async move |listener, address, stopped| {
        let (tokens, hosts) = (Tokens::new(LOOK, ACT).unwrap(), Hosts::new(address, &[]));
        serve_lab(listener, tokens, hosts, lab, async { stopped.await.unwrap_or(()) }).await;
    })
}

const START: &str = r#"{"start":{"campaign":"second"}}"#;

#[test]
fn the_lab_shows_figures_to_who_may_look_and_starts_for_who_may_act() {
    let lab = MadeUpLab::new();
    let served = served(&lab);
    let (code, head, body) = ask(&served, "GET /", &[], "");
    assert!(code == 200 && body.contains("Ebb lab") && head.contains("default-src 'self'"), "{head}");
    let paths =
        ["runs", "runs.csv", "figures", "figures/0", "offers", "stream"].map(|path| format!("/api/{path}"));
    for path in &paths {
        for token in ["", "Bearer wrong", LOOK] {
            let (code, _, body) = ask(&served, &format!("GET {path}"), &[("Authorization", token)], "");
            assert_eq!(code, 401, "{path}");
            assert!(body.contains("`ebb lab serve`"), "the remedy: {body}");
        }
    }
    let act =
        |token: &str, body: &str| ask(&served, "POST /api/act", &[("Authorization", &bearer(token))], body);
    for act_body in [START, r#"{"delete":{"campaign":"first"}}"#, r#"{"create":{"matrix":{"name":"m"}}}"#] {
        let (code, _, why) = act(LOOK, act_body);
        assert!(code == 403 && why.contains("may only look"), "{code} {why}");
        assert_eq!(act("wrong", act_body).0, 401);
    }
    assert_eq!((lab.cost(), lab.acts().len()), ((0, 0), 0), "strangers and lookers cost and change nothing");
    assert_eq!(act(ACT, START).0, 200);
    assert_eq!(act(ACT, START).0, 409);
    assert_eq!(act(ACT, r#"{"pause":{"campaign":"second"}}"#).0, 200);
    assert_eq!(lab.acts(), ["start \"second\"", "pause \"second\""]);
    for strange in [
        "",
        "{}",
        r#"{"start":{"campaign":"a","force":true}}"#,
        r#"{"create":{"matrix":{"name":"m","set_disks":"reboot"}}}"#,
    ] {
        assert_eq!(act(ACT, strange).0, 400, "{strange}");
    }
    assert_eq!(act(ACT, &" ".repeat(70_000)).0, 413, "a body is bounded");
    for header in [("Host", "evil.example.org"), ("Origin", "http://evil.example.org")] {
        let headers = [("Authorization", &*bearer(ACT)), header];
        assert_eq!(ask(&served, "POST /api/act", &headers, START).0, 403, "{header:?}");
    }
    assert_eq!(lab.acts().len(), 2);
}

#[test]
fn questions_reach_the_lab_and_a_mistake_names_its_field() {
    let lab = MadeUpLab::new();
    let served = served(&lab);
    let get = |path: &str| ask(&served, &format!("GET {path}"), &[("Authorization", &bearer(LOOK))], "");
    let (code, _, body) =
        get("/api/runs?campaign=first&target=&workload=512B&size=&random=&reads=&load=&from=&to=");
    let runs: Vec<Value> = serde_json::from_str(&body).unwrap();
    assert_eq!((code, runs.len()), (200, 8));
    let (_, head, csv) = get("/api/runs.csv?campaign=first");
    assert!(head.contains("content-type: text/csv") && csv == "campaign\nfirst\n", "{head}");
    let (_, head, svg) = get("/api/figures/3?campaign=first");
    assert!(head.contains("image/svg+xml") && svg == "<svg>3</svg>", "{head}");
    let (code, _, body) = get("/api/runs?size=x");
    let fault: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, &fault["key"]), (422, &json!("size")));
    let plan =
        |matrix: &str| get(&format!("/api/plan?matrix={}", matrix.replace('"', "%22").replace(' ', "")));
    let matrix = r#"{"name":"m","levels":[10],"target":[{"name":"t","at":"file:x"}]}"#;
    let (code, _, body) = plan(matrix);
    assert_eq!(
        (code, &serde_json::from_str::<Value>(&body).unwrap()["runs"]),
        (200, &json!(270)),
        "looking plans"
    );
    assert_eq!(plan(&matrix.replace("\"levels\":[10]", "\"repetitions\":0")).0, 422);
    assert_eq!(plan("{").0, 400);
    for wrong in
        ["/api/runs?colour=red", "/api/repeat?campaign=a", "/api/figures/x", "/api/compare?a=x", "/api/plan"]
    {
        assert_eq!(get(wrong).0, 400, "{wrong}");
    }
    assert_eq!(get("/api/status").0, 404, "there is no cluster here");
    assert!(lab.acts().is_empty());
}

#[test]
fn a_stream_tells_what_changes_and_a_page_that_is_gone_costs_nothing() {
    let lab = MadeUpLab::new();
    let served = served(&lab);
    let head =
        format!("GET /api/stream HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {LOOK}", served.address);
    assert_eq!(lab.cost(), (0, 0), "nothing is computed while no page is open");
    let mut stream = events(send(&served, &head, ""));
    let (name, rights) = stream.next().unwrap();
    assert_eq!((name.as_str(), &rights["act"]), ("rights", &json!(false)));
    let (name, view) = stream.next().unwrap();
    assert_eq!((name.as_str(), &view["campaigns"][1]["phase"]), ("lab", &json!("unfinished")));
    lab.live(12);
    let (_, view) = stream.next().unwrap();
    assert_eq!(
        (&view["campaigns"][1]["phase"], view["points"].as_array().unwrap().len()),
        (&json!("running"), 12)
    );
    assert_eq!(view["points"][9]["watts"], Value::Null, "absent, not zero");
    lab.live(14);
    let (_, view) = stream.next().unwrap();
    assert_eq!(
        (&view["first"], view["points"].as_array().unwrap().len()),
        (&json!(12), 2),
        "only what is new"
    );
}

/// One browser for all: it takes longer to start than all of them.
#[test]
fn the_lab_in_a_real_browser() {
    let Some(browser) = Browser::start() else { return };
    for step in [
        charts_draw_what_the_program_gave,
        a_campaign_is_watched,
        a_matrix_is_configured,
        without_a_target_nothing_is_planned,
        who_looks_cannot_start,
    ] {
        browser.go("about:blank");
        browser.errors();
        browser.requests();
        step(&browser);
    }
}

/// The points of a chart's lines.
type Lines = Vec<Vec<(f64, Option<f64>)>>;

/// To nine digits: the last ones change on the way through JSON.
fn digits(lines: &Lines) -> Vec<Vec<String>> {
    let point =
        |(x, y): &(f64, Option<f64>)| format!("{x:.8e} {}", y.map_or("none".into(), |y| format!("{y:.8e}")));
    lines.iter().map(|line| line.iter().map(point).collect()).collect()
}

fn charts_draw_what_the_program_gave(browser: &Browser) {
    let lab = MadeUpLab::new();
    let served = served(&lab);
    for (width, height) in [(1600, 1000), (390, 844)] {
        browser.look(width, height, false);
        browser.go(&served.url(LOOK));
        browser.wait("the page is drawn", DRAWN);
        browser.wait(
            "its charts are",
            "return document.querySelectorAll('#figures .chart canvas').length === 5",
        );
        let wide = browser.run("return document.documentElement.scrollWidth - innerWidth");
        assert!(wide.as_i64().unwrap() <= 0, "nothing is cut off at {width}: {wide}");
    }
    let drawn = "return [...document.querySelectorAll('#figures .chart')].map(host => { const [at, ...lines] = host.drawn.data; \
        return lines.map(line => at.map((x, n) => [x, line[n]]).filter(([, y]) => y !== undefined)); })";
    let expected =
        figures().into_iter().map(|figure| figure.lines.into_iter().map(|line| line.points).collect());
    let drawn: Vec<Lines> = serde_json::from_value(browser.run(drawn)).unwrap();
    let (drawn, expected) = (drawn.iter().map(digits), expected.map(|lines| digits(&lines)));
    let (drawn, expected): (Vec<_>, Vec<_>) = (drawn.collect(), expected.collect());
    assert_eq!(drawn, expected, "every value, and the gap");
    let inked = "return [...document.querySelectorAll('#figures canvas')].every(c => { const p = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0; for (let k = 3; k < p.length; k += 4) n += p[k] > 0; return n > 500; })";
    assert_eq!(browser.run(inked), true, "each chart has ink");
    let label = browser.run("return document.querySelector('#figures .chart').getAttribute('aria-label')");
    let label = label.as_str().unwrap();
    assert!(
        label.contains("modelled watts")
            && label.contains("4096 B 10: ")
            && label.contains("40: not measured"),
        "{label}"
    );
    assert_eq!(
        browser.run("return document.getElementById('runs').dataset.runs"),
        "24",
        "of the first campaign"
    );
    assert!(browser.text("#runs").contains("modelled") && browser.text("#runs").contains("level 0"));
    browser.run("const w = document.querySelector('#which [name=workload]'); w.value = '512B'; w.dispatchEvent(new Event('input', { bubbles: true }))");
    browser.wait("a filter is heard", "return document.getElementById('runs').dataset.runs === '8'");
    browser.run("const w = document.querySelector('#which [name=size]'); w.value = 'x'; w.dispatchEvent(new Event('input', { bubbles: true }))");
    let said = browser.wait(
        "a mistake is at its field",
        "return document.querySelector('[name=size][aria-invalid] + .fault')?.innerText",
    );
    assert_eq!(said, "\"x\" is not a condition");
    browser.run("document.querySelector('#which [name=size]').value = ''; document.querySelector('#runs tbody button').click()");
    let again = browser.wait(
        "how to repeat",
        "return document.getElementById('again').open && document.getElementById('again-commands').innerText",
    );
    assert!(again.as_str().unwrap().contains("ebb lab eval run first.toml"), "{again}");
    browser.run("document.getElementById('again').close(); document.querySelector('#sides button').click()");
    browser.wait(
        "two campaigns",
        "return document.querySelectorAll('#compare-figures .chart canvas').length === 1",
    );
    assert!(
        browser.text("#ratios").contains("iops per watt") && browser.text("#compare-note").contains("48.5 W")
    );
    // A refusal of a question is an answer, which the browser logs.
    let errors = browser.errors();
    assert!(errors.iter().all(|error| error.contains("422")), "{errors:?}");
    no_trouble(browser, &served);
}

fn a_campaign_is_watched(browser: &Browser) {
    let lab = MadeUpLab::new();
    lab.live(40);
    let served = served(&lab);
    browser.look(1600, 1000, false);
    browser.go(&format!("{}#live", served.url(LOOK)));
    browser.wait("the page is drawn", DRAWN);
    let points = "return ['load', 'iops', 'mb', 'response', 'watts', 'celsius'].map(id => document.getElementById(`chart-${id}`).dataset.points)";
    browser.wait("all charts have the same times", &format!("{} .every(n => n === '40')", points));
    lab.live(44);
    browser.wait("and follow", &format!("{} .every(n => n === '44')", points));
    assert_eq!(browser.text("#tile-done dd"), "24 of 96");
    let label = |id: &str| {
        browser.run(&format!("return document.getElementById('{id}').getAttribute('aria-label')")).to_string()
    };
    assert!(label("chart-load").contains("configured 100 %"), "{}", label("chart-load"));
    assert!(
        label("chart-watts").contains("pdu outlet1, measured")
            && label("chart-watts").contains("model node, modelled")
    );
    assert!(label("chart-celsius").contains("hwmon disk, measured 45 °C"), "{}", label("chart-celsius"));
    no_trouble(browser, &served);
}

fn a_matrix_is_configured(browser: &Browser) {
    let lab = MadeUpLab::new();
    let served = served(&lab);
    browser.look(1280, 900, false);
    browser.go(&format!("{}#plan", served.url(ACT)));
    browser.wait("the page is drawn", DRAWN);
    browser.wait(
        "it says how long it would take",
        "return document.getElementById('planned').innerText.includes('270 runs, about 5 min')",
    );
    assert!(browser.text("#traces").contains("cello99.srt.gz"));
    let text: Value = serde_json::from_str(&browser.text("#planned-text")).unwrap();
    assert_eq!(
        (&text["target"][0]["at"], &text["target"][0]["overwrite"]),
        (&json!("file:/var/tmp/lab.dat"), &json!(false))
    );
    assert_eq!(text["target"].as_array().unwrap().len(), 1, "a second target is not chosen for anybody");
    let set = |name: &str, value: &str| {
        browser.run(&format!("const f = document.querySelector('#matrix [name=\"{name}\"]'); f.value = '{value}'; f.dispatchEvent(new Event('input', {{ bubbles: true }}))"))
    };
    set("repetitions", "0");
    let said = browser.wait(
        "a mistake is at its field",
        "return document.querySelector('[name=repetitions][aria-invalid] + .fault')?.innerText",
    );
    assert_eq!(said, "at least one");
    set("repetitions", "2");
    set("name", "mine");
    browser.wait("it is mended", "return document.querySelector('#matrix [aria-invalid]') === null");
    browser.click("#keep-start");
    browser.wait("it is kept", "return document.getElementById('plan-result').innerText === 'mine is kept.'");
    browser.wait("it asks", "return document.getElementById('confirm').open");
    assert_eq!(lab.acts(), ["keep the matrix \"mine\""], "nothing writes to a target unasked");
    browser.click("#confirm-yes");
    browser
        .wait("it runs", "return document.getElementById('plan-result').innerText === 'Start mine: done.'");
    assert_eq!(lab.acts(), ["keep the matrix \"mine\"", "start \"mine\""]);
    lab.live(2);
    browser
        .wait("it shows what runs", "return document.querySelector('[data-act=\"pause second\"]') !== null");
    // Out from under the head of the page.
    browser.run("scrollTo(0, 0)");
    browser.click("[data-act='pause second']");
    browser.click("#confirm-yes");
    browser.wait(
        "it is paused",
        "return document.querySelector('[data-act=\"start second\"]')?.innerText === 'Resume'",
    );
    browser.click("[data-act='delete second']");
    assert_eq!(
        browser.run("return document.getElementById('confirm-yes').disabled"),
        true,
        "the name comes first"
    );
    browser.run("const n = document.getElementById('confirm-name'); n.value = 'second'; n.dispatchEvent(new Event('input'))");
    browser.click("#confirm-yes");
    browser.wait(
        "it is done",
        "return document.getElementById('plan-result').innerText === 'Delete second: done.'",
    );
    assert_eq!(lab.acts()[2..], ["pause \"second\"", "delete \"second\", and its results"]);
    lab.break_results("results.sqlite has schema version 9: use the release that wrote it");
    let banner = browser.wait(
        "it says so",
        "return !document.getElementById('banner').hidden && document.getElementById('banner').innerText",
    );
    assert!(banner.as_str().unwrap().contains("schema version 9"), "{banner}");
    let errors = browser.errors();
    assert!(errors.iter().all(|error| error.contains("422")), "{errors:?}");
    no_trouble(browser, &served);
}

fn without_a_target_nothing_is_planned(browser: &Browser) {
    let served = served(&MadeUpLab::that_only_shows());
    browser.go(&format!("{}#plan", served.url(ACT)));
    browser.wait("the page is drawn", DRAWN);
    let said = browser.wait("it says why", "return document.getElementById('planned').innerText");
    assert!(said.as_str().unwrap().contains("Start the lab with --target"), "{said}");
    let disabled = "return ['keep', 'keep-start'].every(id => document.getElementById(id).disabled)";
    let faults = "return document.querySelectorAll('#matrix .fault').length";
    assert_eq!((browser.run(disabled), browser.run(faults)), (json!(true), json!(0)));
    assert!(browser.text("#targets-none").contains("--target"));
    no_trouble(browser, &served);
    // With targets, of which none is chosen.
    let served = self::served(&MadeUpLab::new());
    browser.go(&format!("{}#plan", served.url(ACT)));
    browser.wait("it is planned", "return document.getElementById('planned').dataset.runs === '270'");
    assert_eq!(browser.run(disabled), false);
    browser.run("const u = document.querySelector('#matrix [name=\"use.0\"]'); u.checked = false; u.dispatchEvent(new Event('input', { bubbles: true }))");
    browser.wait(
        "it asks for one",
        "return document.getElementById('planned').innerText === 'Choose a target.'",
    );
    assert_eq!((browser.run(disabled), browser.run(faults)), (json!(true), json!(0)));
    no_trouble(browser, &served);
}

fn who_looks_cannot_start(browser: &Browser) {
    let lab = MadeUpLab::new();
    let served = served(&lab);
    browser.go(&format!("{}#plan", served.url(LOOK)));
    browser.wait("the page is drawn", DRAWN);
    browser.wait("campaigns are listed", "return document.querySelector('[data-act]') !== null");
    browser.wait("it is planned", "return document.getElementById('planned').dataset.runs === '270'");
    let may = "return [...document.querySelectorAll('#campaigns button, #keep, #keep-start')].some(b => !b.disabled)";
    assert_eq!(browser.run(may), false);
    assert!(browser.text("#plan-looks").contains("may only look"));
    browser.run("sessionStorage.clear()");
    browser.go(&format!("http://{}/?again", served.address));
    browser.wait("without a token it is locked", "return document.body.dataset.state === 'locked'");
    assert!(browser.text("#locked").contains("ebb lab serve") && lab.acts().is_empty());
    no_trouble(browser, &served);
}

/// `make screens`: pictures of the lab's views.
#[test]
#[ignore = "writes pictures for people"]
fn screens_of_the_lab() {
    let Some(folder) = std::env::var_os("EBB_SCREENS") else { return };
    let folder = Path::new(&folder);
    std::fs::create_dir_all(folder).unwrap();
    let Some(browser) = Browser::start() else { return };
    let lab = MadeUpLab::new();
    lab.live(180);
    let served = served(&lab);
    for (width, height, shades) in
        [(390, 844, &[false, true][..]), (1200, 800, &[false]), (1600, 1000, &[false, true])]
    {
        for dark in shades.iter().copied() {
            for view in ["query", "live", "plan"] {
                browser.look(width, height, dark);
                browser.go(&format!("http://{}/?token={ACT}&{width}{dark}{view}#{view}", served.address));
                browser.wait("the page is drawn", DRAWN);
                let ready = match view {
                    "query" => {
                        "document.querySelector('#sides button').click(); return document.querySelectorAll('#compare-figures .chart canvas').length === 1"
                    }
                    "live" => "return document.getElementById('chart-celsius').dataset.points === '180'",
                    _ => "return document.getElementById('planned').innerText.includes('270')",
                };
                browser.wait("it is ready", ready);
                let shade = if dark { "dark" } else { "light" };
                let file = folder.join(format!("lab-{view}-{width}-{shade}.png"));
                browser.screenshot(&file, width != 1200);
                println!("{}", file.display());
            }
        }
    }
}
