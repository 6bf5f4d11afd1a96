//! The page in a real browser, on a fake cluster: what must not depend on a cluster's moods. With a real one: the
//! end-to-end tests.

use super::made_up::{Leader, put, status};
use super::shelf::Shelf;
use super::{ACT, LOOK, Served};
use ebb_testing::browser::Browser;
use ebb_types::{GearMode, LatencyFigures, LatencyStatus, Notice, ServerId, ServerState};
use serde_json::json;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

pub(super) const DRAWN: &str = "return document.body.dataset.state === 'drawn'";

pub(super) fn unix_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// Twelve servers in all states, with a day behind them.
fn eventful() -> Leader {
    use ServerState::{Asleep, Awake, Draining, Failed, Waking};
    let leader = Leader::new(status(12));
    let now = unix_millis();
    leader.live_a_day(now);
    leader.notice(now - 90_000, Notice::Failed { server: ServerId(5) });
    leader.change(|status| {
        let states =
            [Awake, Awake, Awake, Draining, Failed, Awake, Asleep, Asleep, Waking, Asleep, Asleep, Asleep];
        status.servers.iter_mut().zip(states).for_each(|(server, state)| put(server, state));
        status.gear.servers_awake = 5;
        (status.gear.servers, status.gear.gear, status.gear.load) = (6, 2, 3.21);
        status.gear.forecast = Some(4.5);
        status.gear.shifting = true;
        status.latency = Some(LatencyStatus {
            span_millis: 15_200,
            reads: Some(LatencyFigures { count: 1204, p50_millis: 0.42, p99_millis: 3.25 }),
            writes: Some(LatencyFigures { count: 96, p50_millis: 2.5, p99_millis: 18.75 }),
        });
        for server in &mut status.servers {
            server.debt_since_unix_millis = Some(now - 7_200_000 - 60_000 * u64::from(server.id.0));
        }
        (status.groups.in_sync, status.groups.away, status.groups.catching_up) = (96, 640, 32);
        status.debt_bytes = status.servers.iter().filter_map(|s| Some(s.vitals.as_ref()?.debt_bytes)).sum();
        status.notes = vec!["server-5 is declared lost in 58 min, if it does not come back".into()];
    });
    leader
}

pub(super) fn no_trouble(browser: &Browser, served: &Served) {
    let errors = browser.errors();
    assert!(errors.is_empty(), "{errors:?}");
    let own = format!("http://{}/", served.address);
    let requests = browser.requests();
    assert!(requests.len() > 5, "{requests:?}");
    let foreign: Vec<_> = requests.iter().filter(|url| !url.starts_with(&own)).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    let opens = format!("{own}?token=");
    let told: Vec<_> =
        requests.iter().filter(|url| url.contains("token") && !url.starts_with(&opens)).collect();
    assert!(told.is_empty(), "only the request for the page has a token in its address: {told:?}");
}

/// One browser for all: it takes longer to start than all of them.
#[test]
fn in_a_real_browser() {
    let Some(browser) = Browser::start() else { return };
    for step in [
        the_page_draws_what_it_is_told,
        a_click_says_why_and_an_act_asks_first,
        ten_thousand_servers_scroll,
        objects_are_browsed,
        a_page_that_cannot_see_says_so_and_recovers,
        charts_go_on_and_stay_where_somebody_looks,
        a_page_that_is_left_gives_its_connection_back,
    ] {
        // What an earlier page did is not this one's.
        browser.go("about:blank");
        browser.errors();
        browser.requests();
        step(&browser);
    }
}

fn the_page_draws_what_it_is_told(browser: &Browser) {
    let begun = unix_millis();
    let leader = eventful();
    let served = Served::start(leader.clone());
    for (width, height) in [(1600, 1000), (390, 844)] {
        browser.look(width, height, false);
        browser.go(&served.url(ACT));
        browser.wait("the page is drawn", DRAWN);
        let wide = browser.run("return document.documentElement.scrollWidth - innerWidth");
        assert!(wide.as_i64().unwrap() <= 0, "nothing is cut off at {width}: {wide}");
    }
    println!("drawn after {} ms", browser.run("return document.body.dataset.millis"));
    let address = browser.run("return location.href");
    assert!(!address.as_str().unwrap().contains("token"), "{address}");
    assert_eq!(browser.text("#tile-servers dd"), "5 of 12");
    assert_eq!(browser.text("#tile-load dd"), "3.21");
    assert_eq!(browser.text("#tile-groups dd"), "all served");
    let groups = browser.text("#tile-groups .more");
    assert!(groups.starts_with("96 of 768 in sync, "), "{groups}");
    assert_eq!(browser.text("#tile-latency dd"), "18.8 ms", "the slower of reads and writes");
    let latency = browser.text("#tile-latency .more");
    assert!(
        latency.contains("reads 0.42 ms and 3.25 ms (1,204), writes 2.50 ms and 18.8 ms (96)"),
        "{latency}"
    );
    // Servers 1, 2, 3 and 6 are awake; 6 holds for the longest away, 2 h 6 min ago.
    let debt = browser.text("#tile-debt .more");
    assert!(debt.contains("held by 4 servers, for at most 2.1 h"), "{debt}");
    assert!(browser.text("#legend").contains("asleep 5"), "{}", browser.text("#legend"));
    let watts: f64 = leader.status().servers.iter().map(|s| s.modelled_watts.unwrap().0).sum();
    let label =
        |id: &str| browser.run(&format!("return document.getElementById('{id}').getAttribute('aria-label')"));
    let power = label("chart-power").as_str().unwrap().to_owned();
    assert!(power.contains(&format!("modelled {watts:.1} W")), "{power} is not {watts}");
    let said = leader.status().power.unwrap();
    for (line, watts) in
        [("all awake", said.always_on_modelled_watts), ("oracle", said.oracle_modelled_watts)]
    {
        assert!(power.contains(&format!("{line}, modelled {watts}")), "{power} has not {line}: {watts}");
    }
    // Since the hour that ended a day ago, when there had been 7.
    assert_eq!(browser.text("#tile-cycles dd"), "233");
    let budget = browser.text("#tile-cycles .more");
    assert!(budget.starts_with("in 2") && budget.ends_with(", 24 a day each"), "{budget}");
    let latencies = label("chart-latency").as_str().unwrap().to_owned();
    assert!(latencies.contains("reads 3.25 ms, writes 18.8 ms"), "{latencies}");
    let hours = label("chart-hours").as_str().unwrap().to_owned();
    assert!(
        hours.contains("forecast, high (90 %)") && !hours.contains("%) absent"),
        "the plan has a band: {hours}"
    );
    let band = "const l = document.getElementById('chart-load').getAttribute('aria-label'); return l && !l.includes('%) absent') && l";
    let load = browser.wait("the load has the band of its hour", band);
    let high = |millis: u64| {
        let hour = millis / 3_600_000 % 24;
        let peak = 12.0 * (0.4 - 0.3 * (hour as f64 / 24.0 * std::f64::consts::TAU).cos());
        format!("forecast, high (90 %) {:.2}, forecast, low (10 %) {:.2}", peak * 1.3, peak * 0.8)
    };
    // An hour may end in between.
    let bands = [begun, unix_millis()].map(high);
    assert!(bands.iter().any(|band| load.as_str().unwrap().contains(band)), "{load} has none of {bands:?}");
    for (chart, unit) in [("power", "W"), ("load", "servers"), ("latency", "ms"), ("hours", "servers")] {
        let label = format!("return document.getElementById('chart-{chart}').drawn.axes[1].label");
        assert_eq!(browser.run(&label), unit, "{chart}");
    }
    let points = "return Number(document.getElementById('chart-hours').dataset.points)";
    assert_eq!(browser.run(points), 49, "25 hours behind and a day ahead");
    // Each state's colour is in the strip.
    let colours = "const c = document.querySelector('#strip canvas'); const p = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; \
        const seen = new Set(); for (let n = 0; n < p.length; n += 4) seen.add([p[n], p[n + 1], p[n + 2]].join()); \
        const rgb = name => { const d = document.createElement('i'); d.style.color = getComputedStyle(document.documentElement).getPropertyValue(name); document.body.append(d); const v = getComputedStyle(d).color.match(/\\d+/g).join(); d.remove(); return v; }; \
        return ['--A', '--D', '--S', '--W', '--F'].every(name => seen.has(rgb(name)))";
    browser.wait("each state has its colour", colours);
    browser.click("#measure");
    let measured = "return document.getElementById('measured').innerText.includes('140.0 W by the controllers of 2 of 12 servers; modelled for the same 136.4 W: the model is -2.57 % off')";
    browser.wait("measured watts stand beside the modelled ones", measured);
    browser.run("location.hash = '#whatif'");
    let cells = "const t = document.querySelector('#wish-table tbody'); return t.rows.length === 9 && [...t.rows[6].cells].map(c => c.innerText)";
    let before = browser.wait("the hours are replayed", cells);
    assert_eq!((&before[1], &before[2]), (&"15".into(), &"15".into()), "25 hours, 1 % of them short");
    browser.run("const s = document.querySelector('[name=short_goal]'); s.value = -1; s.dispatchEvent(new Event('input', { bubbles: true }))");
    let moved = "const t = document.querySelector('#wish-table tbody'); return t.rows[6].cells[2].innerText === '150' && t.rows[6].cells[1].innerText === '15'";
    browser.wait("a slider is heard", moved);
    no_trouble(browser, &served);
}

fn a_click_says_why_and_an_act_asks_first(browser: &Browser) {
    let leader = eventful();
    let served = Served::start(leader.clone());
    browser.look(1280, 900, false);
    browser.go(&served.url(ACT));
    browser.wait("the page is drawn", DRAWN);
    browser.click("#strip canvas");
    let title = browser.wait("a server is named", "return /^. ?Server \\d+:/.test(document.getElementById('one-title').innerText) && document.getElementById('one-title').innerText");
    let id: usize =
        title.as_str().unwrap().split(' ').find_map(|word| word.trim_end_matches(':').parse().ok()).unwrap();
    let why = leader.status().servers[id - 1].why.to_string();
    assert_eq!(browser.text("#one-why").to_lowercase(), format!("{why}.").to_lowercase());
    assert!(
        browser.text("#notices").contains("load or forecast needs more servers"),
        "{}",
        browser.text("#notices")
    );
    let dated = "return [...document.querySelectorAll('#notices time')].every(time => /\\d .*\\d:\\d/.test(time.innerText))";
    assert_eq!(browser.run(dated), true, "each notice has its date");
    browser.click("a[href='#why']");
    browser.wait(
        "none is chosen",
        "return document.getElementById('one-title').innerText === 'Choose a server'",
    );
    assert!(browser.text("#one-why").starts_with("Each server is awake"), "and no reason of another");
    browser.run("history.back()");
    browser.wait("it is named again", "return document.getElementById('one-title').innerText.includes(':')");
    browser.click("a[href='#act']");
    browser.wait("the buttons are there", "return document.querySelector('[data-gear=\"1\"]') !== null");
    browser.click("[data-gear='1']");
    assert!(browser.text("#confirm-command").contains("ebb gear set 1/3"));
    browser.click("#confirm-no");
    assert_eq!(leader.last_act(), None, "an act that is not confirmed is none");
    browser.click("[data-gear='1']");
    browser.click("#confirm-yes");
    browser
        .wait("it is done", "return document.getElementById('act-result').innerText.startsWith('Decided')");
    assert!(leader.last_act().is_some());
    browser.run("document.getElementById('which').value = 5");
    browser.click("button[value='lost']");
    assert_eq!(
        browser.run("return document.getElementById('confirm-yes').disabled"),
        true,
        "it asks for the number"
    );
    browser.run("const n = document.getElementById('confirm-number'); n.value = '5'; n.dispatchEvent(new Event('input'))");
    browser.click("#confirm-yes");
    browser
        .wait("it is done", "return document.getElementById('act-result').innerText.includes('ebb lost 5')");
    assert_eq!(
        leader.last_act(),
        Some(ebb_types::AdminRequest::MarkLost { server: ServerId(5), accept_loss: false })
    );
    no_trouble(browser, &served);
    // The other token looks. Behind `#` it is sent to no server.
    browser.go("about:blank");
    browser.go(&format!("http://{}/#token={LOOK}", served.address));
    browser.wait("the page is drawn", DRAWN);
    assert_eq!(browser.run("return location.href"), json!(format!("http://{}/", served.address)));
    browser.run("location.hash = '#act'");
    browser.wait("it says so", "return !document.getElementById('act-looks').hidden");
    let enabled = "return [...document.querySelectorAll('#view-act :is(button, input):not(dialog *)')].filter(b => !b.disabled).length";
    assert_eq!(browser.run(enabled), 0);
}

fn objects_are_browsed(browser: &Browser) {
    let served = Served::start(eventful());
    served.shelf.put("first", "letters/a & b.html", b"<script>document.title = 'shown'</script>");
    served.shelf.put("first", "letters/c", b"c");
    served.shelf.put("first", "d", b"d");
    served.shelf.put("first", "e", b"e");
    browser.look(1000, 900, false);
    browser.go(&format!("{}#browse", served.url(ACT)));
    browser
        .wait("the bucket is listed", "return document.querySelector('#buckets a')?.innerText === 'first'");
    assert!(browser.text("#volumes").contains("512.0 MiB in cold"), "{}", browser.text("#volumes"));
    browser.click("#buckets a");
    let names = |expected: &str| {
        let all =
            "[...document.querySelectorAll('#objects tbody tr')].map(row => row.cells[0].innerText).join()";
        browser.wait(expected, &format!("return {all} === '{expected}'"));
    };
    names("d,e");
    browser.click("#objects-more");
    names("d,e,letters/");
    browser.run("[...document.querySelectorAll('#objects a')].find(a => a.innerText === 'letters/').click()");
    names("a & b.html,c");
    assert_eq!(browser.text("#crumbs"), "first letters/");
    // What an object has in it is saved, and not shown.
    browser.run("window.saved = []; HTMLAnchorElement.prototype.click = function () { window.saved.push(this.download); }");
    browser.click("button[aria-label='Download letters/a & b.html']");
    let said = |what: &str| {
        browser.wait(
            what,
            &format!("return document.getElementById('browse-result').innerText.includes('{what}')"),
        )
    };
    said("Downloaded letters/a & b.html.");
    assert_eq!(
        browser.run("return [window.saved.join(), document.title === 'shown']").to_string(),
        "[\"a & b.html\",false]"
    );
    assert!(served.shelf.asked().contains(&"GET /first/letters/a%20%26%20b.html".to_owned()));
    // Nothing changes before it is confirmed.
    browser.click("button[aria-label='Delete letters/c']");
    assert_eq!(browser.text("#confirm-command"), "aws s3 rm s3://first/letters/c");
    browser.click("#confirm-no");
    assert!(served.shelf.get("first", "letters/c").is_some());
    browser.click("button[aria-label='Delete letters/c']");
    browser.click("#confirm-yes");
    names("a & b.html");
    assert_eq!(served.shelf.get("first", "letters/c"), None);
    let choose = |name: &str, content: &str| {
        browser.run(&format!(
            "const all = new DataTransfer(); all.items.add(new File([{content}], '{name}')); document.getElementById('files').files = all.files"
        ));
        browser.click("#upload button");
    };
    choose("new.txt", "'hello'");
    browser.click("#confirm-yes");
    names("a & b.html,new.txt");
    assert_eq!(served.shelf.get("first", "letters/new.txt").as_deref(), Some(&b"hello"[..]));
    choose("long", "new Uint8Array(64 * 2 ** 20 + 1)");
    said("a browser uploads at most 64.0 MiB");
    // Who comes back sees what there is then.
    served.shelf.put("first", "letters/aa", b"late");
    browser.click("a[href='#now']");
    browser.wait("another view is shown", "return document.getElementById('view-browse').hidden");
    browser.run("history.back()");
    names("a & b.html,aa");
    served.shelf.put("first", "letters/A", b"later");
    browser.run("document.getElementById('prefix-form').requestSubmit()");
    names("A,a & b.html");
    // A row is of its own bucket, also when another is shown by now.
    served.shelf.put("second", "letters/A", b"another");
    browser.run("window.old = document.querySelector(\"button[aria-label='Delete letters/A']\"); location.hash = '#browse/second'");
    names("letters/");
    browser.run("window.old.click()");
    assert_eq!(browser.text("#confirm-command"), "aws s3 rm s3://first/letters/A");
    browser.click("#confirm-no");
    no_trouble(browser, &served);
    // The other token looks.
    browser.go(&format!("{}#browse/first", served.url(LOOK)));
    names("d,e");
    let enabled = "return [...document.querySelectorAll('#objects-card :is(button, input)')].filter(b => !b.disabled && !b.hidden).map(b => b.innerText || b.id).join()";
    assert_eq!(browser.run(enabled), "prefix,List,Download,Download,More");
}

fn charts_go_on_and_stay_where_somebody_looks(browser: &Browser) {
    let served = Served::start(eventful());
    browser.go(&served.url(LOOK));
    browser.wait("the page is drawn", DRAWN);
    let ids = ["chart-power", "chart-load", "chart-latency"];
    let points = |count: usize| {
        let all =
            ids.map(|id| format!("document.getElementById('{id}').dataset.points >= {count}")).join("&&");
        browser.wait("time passes", &format!("return {all}"));
    };
    // By chart: whether all of the time is drawn.
    let whole = || {
        let one = |id: &str| {
            format!(
                "(p => p.scales.x.min === p.data[0][0] && p.scales.x.max === p.data[0].at(-1))(document.getElementById('{id}').drawn)"
            )
        };
        browser.run(&format!("return [{}]", ids.map(one).join(",")))
    };
    points(4);
    assert_eq!(whole(), json!([true, true, true]));
    browser.run("(p => p.setScale('x', { min: p.data[0][1], max: p.data[0][2] }))(document.getElementById('chart-load').drawn)");
    points(6);
    assert_eq!(whole(), json!([true, false, true]));
    browser.run("(p => p.over.dispatchEvent(new MouseEvent('dblclick', { bubbles: true })))(document.getElementById('chart-load').drawn)");
    points(8);
    assert_eq!(whole(), json!([true, true, true]));
    // Lines do not cross unwatched times.
    let parted = "return import('/now.js').then(now => now.part([[1, 2, 7, 13], [4, 5, null, 6]], 5))";
    assert_eq!(browser.run(parted), json!([[1, 2, 7, 12.999, 13], [4, 5, null, null, 6]]));
}

/// A browser has six connections for one program, and keeps those of pages that were left.
fn a_page_that_is_left_gives_its_connection_back(browser: &Browser) {
    let leader = eventful();
    let served = Served::start(leader.clone());
    let keeps_signals = "const real = fetch; window.streams = []; \
        window.fetch = (path, options) => { if (path === '/api/stream') streams.push(options.signal); return real(path, options); };";
    browser.command("Page.addScriptToEvaluateOnNewDocument", json!({"source": keeps_signals}));
    browser.go(&served.url(LOOK));
    browser.wait("the page is drawn", DRAWN);
    let aborted = "return streams.map(signal => signal.aborted)";
    assert_eq!(browser.run(aborted), json!([false]));
    browser.run("dispatchEvent(new Event('pagehide'))");
    assert_eq!(browser.run(aborted), json!([true]));
    browser.run("dispatchEvent(new Event('pageshow'))");
    let follows = |load: &str| {
        leader.change(|status| status.gear.load = load.parse().unwrap());
        let drawn = format!("return document.querySelector('#tile-load dd').innerText === '{load}'");
        browser.wait("it follows", &drawn);
        assert_eq!(browser.run("return document.getElementById('banner').hidden"), json!(true));
    };
    follows("4.25");
    assert_eq!(browser.run(aborted), json!([true, false]));
    // As the browser kept it, or loaded again.
    browser.go("about:blank");
    browser.back();
    follows("4.75");
}

fn a_page_that_cannot_see_says_so_and_recovers(browser: &Browser) {
    let leader = eventful();
    let served = Served::start(leader.clone());
    browser.look(800, 800, false);
    let (address, banner) = (
        served.address,
        "return !document.getElementById('banner').hidden && document.getElementById('banner').innerText",
    );
    browser.go(&format!("http://{address}/"));
    browser.wait("it asks for a token", "return document.body.dataset.state === 'locked'");
    assert!(browser.text("#locked").contains("ebb page"), "{}", browser.text("#locked"));
    browser.go(&served.url("wrong"));
    browser.wait(
        "it refuses the token",
        "return document.getElementById('locked-title').innerText.includes('wrong, or stale')",
    );
    browser.go(&served.url(LOOK));
    browser.wait("the page is drawn", DRAWN);
    leader.be_reachable(false);
    let said = browser.wait("it says since when", banner);
    assert!(said.as_str().unwrap().contains("has not answered since"), "{said}");
    assert_eq!(browser.text("#tile-servers dd"), "5 of 12", "it keeps what it had");
    leader.be_reachable(true);
    browser.wait("it recovers", "return document.getElementById('banner').hidden");
    drop(served);
    let said = browser.wait("it says that the program is gone", banner);
    assert!(said.as_str().unwrap().contains("is ebb page, or ebb dev, running?"), "{said}");
    let _served = Served::on(address, leader, Shelf::default());
    browser.wait("it comes back", "return document.getElementById('banner').hidden");
}

fn ten_thousand_servers_scroll(browser: &Browser) {
    let leader = Leader::new(status(10_000));
    leader.change(|status| {
        status
            .servers
            .iter_mut()
            .filter(|server| server.id.0 % 3 == 0)
            .for_each(|s| put(s, ServerState::Asleep));
        status.gear.mode = GearMode::Manual;
    });
    let served = Served::start(leader);
    browser.look(1600, 1000, false);
    browser.go(&served.url(LOOK));
    browser.wait("the page is drawn", DRAWN);
    // From end to end in 90 steps, one per frame; how many frames came in which time.
    let scroll = "const strip = document.getElementById('strip'); return new Promise(done => { const begin = performance.now(); let n = 0; \
        const step = () => { strip.scrollTop = strip.scrollHeight * n / 90; n += 1; if (n <= 90) requestAnimationFrame(step); \
        else done([strip.scrollTop + strip.clientHeight + 2 >= strip.scrollHeight, 90 / (performance.now() - begin) * 1000]); }; requestAnimationFrame(step); })";
    let result = browser.run(scroll);
    println!("{} frames a second", result[1]);
    assert_eq!(result[0], true, "the last server is reached");
    let nodes = browser.run("return document.querySelectorAll('*').length").as_u64().unwrap();
    assert!(nodes < 2000, "servers out of sight cost nothing: {nodes} elements");
    no_trouble(browser, &served);
}

/// Six servers go to sleep, two wake, one fails.
fn story(server: u16, second: u16) -> ServerState {
    match server {
        5 if second >= 20 => ServerState::Failed,
        7 | 8 if second >= 19 => ServerState::Awake,
        7 | 8 if second >= 16 => ServerState::Waking,
        7..=12 if second >= server - 1 => ServerState::Asleep,
        7..=12 if second >= server - 3 => ServerState::Draining,
        _ => ServerState::Awake,
    }
}

/// `make screens`: pictures of every view, and what a printer makes of it, into the folder that EBB_SCREENS names, to
/// be looked at.
#[test]
#[ignore = "writes pictures for people"]
fn screens() {
    let Some(folder) = std::env::var_os("EBB_SCREENS") else { return };
    let folder = Path::new(&folder);
    std::fs::create_dir_all(folder).unwrap();
    let Some(browser) = Browser::start() else { return };
    let leader = eventful();
    let served = Served::start(leader.clone());
    for (bucket, key) in [("backup", "2026-11-25.tar"), ("photos", "2025/a.jpg"), ("photos", "index.html")] {
        served.shelf.put(bucket, key, &[7; 12_345]);
    }
    browser.go(&served.url(ACT));
    browser.wait("the page is drawn", DRAWN);
    // A strip with a past.
    for second in 0..24 {
        let seen = browser.run("return document.getElementById('chart-load').dataset.points").to_string();
        leader.change(|status| {
            status.servers.iter_mut().for_each(|server| put(server, story(server.id.0, second)));
            status.gear.servers_awake = status.servers.iter().filter(|s| s.state.is_live()).count() as u32;
            status.gear.servers = if second < 16 { 6 } else { 8 };
            status.gear.load = 4.6 - 2.0 * (f64::from(second) / 4.0).sin();
            status.debt_bytes =
                status.servers.iter().filter_map(|s| Some(s.vitals.as_ref()?.debt_bytes)).sum();
        });
        browser.wait(
            "a second more",
            &format!("return document.getElementById('chart-load').dataset.points !== {seen}"),
        );
    }
    // The middle width is for docs: as much as a window shows.
    for (width, height, shades) in
        [(390, 844, &[false, true][..]), (1200, 800, &[false]), (1600, 1000, &[false, true])]
    {
        for dark in shades.iter().copied() {
            for view in ["now", "why/9", "whatif", "act", "browse/photos", "locked"] {
                browser.look(width, height, dark);
                if view == "locked" {
                    browser.run("sessionStorage.clear()");
                    browser.go(&format!("http://{}/", served.address));
                } else {
                    browser.go(&format!(
                        "http://{}/?token={ACT}&{width}{dark}{}#{view}",
                        served.address,
                        &view[..3]
                    ));
                    browser.wait("the page is drawn", DRAWN);
                    browser.run("const span = document.getElementById('span'); span.value = '0'; span.dispatchEvent(new Event('change')); return new Promise(done => setTimeout(done, 1200))");
                }
                let shade = if dark { "dark" } else { "light" };
                let name = format!("{}-{width}-{shade}.png", view.split('/').next().unwrap());
                browser.screenshot(&folder.join(&name), width != 1200);
                if width == 1200 && view != "locked" {
                    browser.print(&folder.join(name.replace(".png", ".pdf")));
                }
                println!("{}", folder.join(name).display());
            }
        }
    }
}
