//! What is answered to whom, byte by byte.

use super::made_up::{Leader, put, status};
use super::shelf::Shelf;
use super::{ACT, LOOK, Served};
use crate::assets::ASSETS;
use ebb_types::{AdminRequest, GearWish, Notice, ServerId, ServerState};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn send(served: &Served, head: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(served.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    write!(stream, "{head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}").unwrap();
    stream
}

/// Status code, head and body of the answer.
pub(super) fn ask(
    served: &Served,
    line: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, String, String) {
    let host = served.address.to_string();
    let mut head = format!("{line} HTTP/1.1");
    let own_host = headers.iter().any(|(name, _)| *name == "Host");
    for (name, value) in headers.iter().copied().chain((!own_host).then_some(("Host", host.as_str()))) {
        head += &format!("\r\n{name}: {value}");
    }
    let mut text = String::new();
    send(served, &head, body).read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, head.to_ascii_lowercase(), body.to_owned())
}

pub(super) fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

#[test]
fn whoever_has_no_token_sees_the_program_and_no_figure() {
    let leader = Leader::new(status(9));
    let served = Served::start(leader.clone());
    for asset in ASSETS {
        let (code, head, _) = ask(&served, &format!("GET {}", asset.path), &[], "");
        assert_eq!(code, 200, "{}", asset.path);
        assert!(head.contains(&format!("content-type: {}", asset.kind)), "{head}");
    }
    let object = "/api/s3/object?bucket=b&key=k";
    for path in [
        "/api/status",
        "/api/stream",
        "/api/notices",
        "/api/servers/1",
        "/api/volumes",
        "/api/s3/buckets",
        "/api/s3/objects?bucket=b",
        object,
    ] {
        for token in [None, Some("Bearer wrong"), Some(LOOK)] {
            let headers: Vec<_> = token.map(|token| ("Authorization", token)).into_iter().collect();
            let (code, _, body) = ask(&served, &format!("GET {path}"), &headers, "");
            assert_eq!(code, 401, "{path} {token:?}");
            assert!(body.contains("`ebb page`"), "the remedy: {body}");
        }
        let joint = if path.contains('?') { '&' } else { '?' };
        let (code, ..) = ask(&served, &format!("GET {path}{joint}token={ACT}"), &[], "");
        assert_eq!(code, 401, "{path}: a token in an address counts for nothing");
    }
    for method in ["PUT", "DELETE"] {
        assert_eq!(ask(&served, &format!("{method} {object}"), &[], "").0, 401);
    }
    assert_eq!(leader.all(), 0, "strangers cost the leader nothing");
    assert!(served.shelf.asked().is_empty(), "nor the gateway");
}

#[test]
fn each_token_gives_its_right() {
    let leader = Leader::new(status(9));
    let served = Served::start(leader.clone());
    for token in [LOOK, ACT] {
        let (code, _, body) = ask(&served, "GET /api/status", &[("Authorization", &bearer(token))], "");
        assert_eq!((code, serde_json::from_str(&body).ok()), (200, Some(leader.status())));
    }
    let act =
        |token: &str, body: &str| ask(&served, "POST /api/act", &[("Authorization", &bearer(token))], body);
    let gear = r#"{"gear_set":{"servers":5}}"#;
    let (code, _, why) = act(LOOK, gear);
    assert_eq!(code, 403);
    assert!(why.contains("may only look"), "{why}");
    assert_eq!(act("wrong", gear).0, 401);
    assert_eq!(leader.last_act(), None);
    assert_eq!(act(ACT, gear).0, 200);
    assert_eq!(leader.last_act(), Some(AdminRequest::GearSet(GearWish::Servers(5))));
    let measure = |token: &str| ask(&served, "POST /api/measure", &[("Authorization", &bearer(token))], "");
    assert_eq!((measure(LOOK).0, measure(ACT).0), (403, 200), "controllers are an administrator's to ask");
    for (body, request) in [
        (r#""gear_auto""#, AdminRequest::GearAuto),
        (
            r#"{"maintenance":{"server":7,"end":true}}"#,
            AdminRequest::Maintenance { server: ServerId(7), end: true },
        ),
        (r#"{"lost":{"server":7}}"#, AdminRequest::MarkLost { server: ServerId(7), accept_loss: false }),
    ] {
        assert_eq!(act(ACT, body).0, 200, "{body}");
        assert_eq!(leader.last_act(), Some(request));
    }
}

#[test]
fn what_is_no_act_is_refused_with_the_reason() {
    let leader = Leader::new(status(9));
    let served = Served::start(leader.clone());
    let act = |body: &str| ask(&served, "POST /api/act", &[("Authorization", &bearer(ACT))], body);
    for body in [
        "",
        "{}",
        "[]",
        r#"{"force":{"accept_loss":true}}"#,
        r#"{"lost":{"server":7,"now":1}}"#,
        r#"{"lost":{"server":70000}}"#,
    ] {
        let (code, _, why) = act(body);
        assert_eq!(code, 400, "{body}: {why}");
    }
    let (code, ..) = act(&" ".repeat(5000));
    assert_eq!(code, 413, "a body is bounded");
    assert_eq!(leader.last_act(), None);
    leader.refuse("this cluster has 3 gears");
    let (code, _, why) = act(r#"{"gear_set":{"gear":9}}"#);
    assert_eq!((code, why.as_str()), (409, "this cluster has 3 gears"));
    leader.be_reachable(false);
    let (code, _, why) = act(r#""gear_auto""#);
    assert_eq!(code, 503);
    assert!(why.contains("cannot be reached"), "{why}");
    let (code, ..) = ask(&served, "GET /api/act", &[("Authorization", &bearer(ACT))], "");
    assert_eq!(code, 405, "looking never acts");
}

#[test]
fn other_names_and_other_sites_are_refused_even_with_a_token() {
    let leader = Leader::new(status(9));
    let served = Served::start(leader.clone());
    let bearer = bearer(ACT);
    let port = served.address.port();
    for path in ["GET /", "GET /api/status", "POST /api/act"] {
        let body = if path.starts_with("POST") { r#""gear_auto""# } else { "" };
        for header in [
            ("Host", "evil.example.org".to_owned()),
            ("Host", format!("evil.example.org:{port}")),
            ("Origin", "http://evil.example.org".to_owned()),
            ("Origin", "null".to_owned()),
        ] {
            let headers = [("Authorization", bearer.as_str()), (header.0, header.1.as_str())];
            let (code, head, _) = ask(&served, path, &headers, body);
            assert_eq!(code, 403, "{path} {header:?}");
            assert!(!head.contains("access-control"), "{head}");
        }
    }
    assert_eq!(leader.all(), 0);
    let own = format!("http://localhost:{port}");
    let headers = [("Authorization", bearer.as_str()), ("Origin", own.as_str())];
    assert_eq!(ask(&served, "POST /api/act", &headers, r#""gear_auto""#).0, 200);
}

#[test]
fn every_answer_keeps_other_origins_out() {
    let served = Served::start(Leader::new(status(1)));
    for line in ["GET /", "GET /main.js", "GET /api/status", "GET /nothing", "POST /api/act"] {
        let (_, head, _) = ask(&served, line, &[], "");
        for header in [
            "content-security-policy: default-src 'self';",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "x-frame-options: deny",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
        ] {
            assert!(head.contains(header), "{line} lacks {header}: {head}");
        }
        assert!(!head.contains("unsafe"), "{head}");
    }
}

/// The events of a stream, one after the other.
pub(super) fn events(stream: TcpStream) -> impl Iterator<Item = (String, Value)> {
    let mut name = String::new();
    BufReader::new(stream).lines().map_while(Result::ok).filter_map(move |line| {
        if let Some(text) = line.strip_prefix("event: ") {
            name = text.to_owned();
        }
        let data = line.strip_prefix("data: ")?;
        Some((name.clone(), serde_json::from_str(data).expect("JSON")))
    })
}

#[test]
fn a_stream_begins_with_all_that_was_seen_and_goes_on_with_what_changes() {
    let leader = Leader::new(status(4));
    leader.notice(1_000, Notice::Back { server: ServerId(2) });
    let served = Served::start(leader.clone());
    let open = |token: &str| {
        let head =
            format!("GET /api/stream HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}", served.address);
        events(send(&served, &head, ""))
    };
    let mut stream = open(LOOK);
    let rights = |next: Option<(String, Value)>| next.map(|(name, body)| (name, body["act"].clone()));
    assert_eq!(rights(stream.next()), Some(("rights".into(), json!(false))));
    let (name, first) = stream.next().unwrap();
    assert_eq!(
        (name.as_str(), &first["now"]),
        ("hello", &Value::Null),
        "at once, before the leader is asked"
    );
    let (name, hello) = stream.next().unwrap();
    assert_eq!((name.as_str(), &hello["now"]["letters"]), ("hello", &json!("AAAA")));
    assert_eq!(
        hello["servers"][2],
        json!({"id": 3, "rack": 3, "pool": 0, "gear_group": 1, "logger": false, "address": "10.0.0.3:9100"})
    );
    assert_eq!(hello["notices"][0]["text"], "server-2 is back", "as the log says it");
    assert_eq!(hello["facts"]["cluster"], "c07ba8035aba914d");
    leader.change(|status| put(&mut status.servers[1], ServerState::Asleep));
    leader.notice(2_000, Notice::Failed { server: ServerId(4) });
    let (_, tick) = stream.find(|(_, body)| body["now"]["letters"] == "ASAA").unwrap();
    assert_eq!(tick["notices"][0]["notice"], json!({"failed": {"server": 4}}));
    assert_eq!(tick["now"]["power"], json!(leader.status().power), "as the leader says it");
    let mut second = open(ACT);
    assert_eq!(rights(second.next()), Some(("rights".into(), json!(true))));
    let (_, hello) = second.next().unwrap();
    assert_eq!(hello["strip"]["base"], "AAAA");
    let change = &hello["strip"]["changes"][0];
    assert_eq!((&change[1], &change[2]), (&json!(1), &json!("S")));
    assert!(leader.only_asked(), "looking changes nothing");
}

#[test]
fn what_if_takes_settings_and_needs_recorded_hours() {
    let leader = Leader::new(status(9));
    let served = Served::start(leader.clone());
    let ask = |query: &str| {
        ask(&served, &format!("GET /api/what-if?{query}"), &[("Authorization", &bearer(LOOK))], "")
    };
    let wish = "servers=6&g_min=1&short_goal=0.02&cycles_per_day=4";
    let (code, _, why) = ask(wish);
    assert_eq!(code, 409);
    assert!(why.contains("0 hours are recorded"), "{why}");
    leader.live_a_day(1_795_671_376_239);
    // The outlook is read again with the gear.
    leader.change(|status| status.gear.servers -= 1);
    let asked = std::iter::repeat_with(|| ask(wish)).find(|(code, ..)| *code == 200);
    let body: Value = serde_json::from_str(&asked.unwrap().2).unwrap();
    assert_eq!((&body["hours"], &body["servers_awake"][0]), (&json!(25), &json!(3)));
    for wrong in ["", "servers=6", "servers=-1&g_min=1&short_goal=0.02&cycles_per_day=4"] {
        assert_eq!(ask(wrong).0, 400, "{wrong}");
    }
    assert!(leader.only_asked());
}

#[test]
fn one_server_says_why() {
    let leader = Leader::new(status(4));
    let served = Served::start(leader.clone());
    let one =
        |id: &str| ask(&served, &format!("GET /api/servers/{id}"), &[("Authorization", &bearer(LOOK))], "");
    let (code, _, body) = one("2");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, &body["letter"]), (200, &json!("A")));
    assert_eq!(body["why_text"], leader.status().servers[1].why.to_string());
    assert!(body["sleep_saves_modelled_watts"].as_f64().is_some_and(|saved| (saved - 62.8).abs() < 1e-9));
    assert_eq!(one("70").0, 404);
    assert_eq!(one("x").0, 400);
}

/// With the token that looks, unless another is given.
fn s3(served: &Served, line: &str, token: &str, body: &str) -> (u16, String, String) {
    ask(served, line, &[("Authorization", &bearer(token)), ("Cookie", "a=b")], body)
}

#[test]
fn objects_are_listed_and_downloaded_and_never_shown() {
    let served = Served::start(Leader::new(status(1)));
    for (key, content) in [("a/1", "one"), ("a/2", "two"), ("b & c", "<script>alert(1)</script>"), ("d", "")]
    {
        served.shelf.put("first", key, content.as_bytes());
    }
    let (code, head, body) = s3(&served, "GET /api/s3/buckets", LOOK, "");
    assert_eq!(code, 200, "{body}");
    assert!(
        body.contains("<Name>first</Name>") && head.contains("content-type: application/xml"),
        "{head}{body}"
    );
    let (code, _, body) = s3(&served, "GET /api/s3/objects?bucket=first", LOOK, "");
    assert_eq!(code, 200, "{body}");
    assert!(body.contains("<Prefix>a/</Prefix>") && body.contains("<Key>b &amp; c</Key>"), "{body}");
    assert!(!body.contains("<Key>d</Key>") && body.contains("<IsTruncated>true"), "{body}");
    let (_, _, body) = s3(&served, "GET /api/s3/objects?bucket=first&after=b+%26+c", LOOK, "");
    assert!(body.contains("<Key>d</Key>") && !body.contains("Prefix>a/<"), "{body}");
    let (_, _, body) = s3(&served, "GET /api/s3/objects?bucket=first&prefix=a/", LOOK, "");
    assert!(body.contains("<Key>a/1</Key>") && !body.contains("<Key>d"), "{body}");
    let (code, head, body) = s3(&served, "GET /api/s3/object?bucket=first&key=b+%26+c", LOOK, "");
    assert_eq!((code, body.as_str()), (200, "<script>alert(1)</script>"));
    for header in [
        "content-type: application/octet-stream",
        "content-disposition: attachment",
        "content-security-policy: sandbox;",
        "x-content-type-options: nosniff",
        "content-length: 25",
    ] {
        assert!(head.contains(header), "it lacks {header}: {head}");
    }
    assert!(
        !head.contains("text/html") && !head.contains("x-evil"),
        "the gateway's fields stay there: {head}"
    );
    let (code, _, why) = s3(&served, "GET /api/s3/object?bucket=first&key=e", LOOK, "");
    assert_eq!(code, 404);
    assert!(why.contains("there is no \"such\" key (NoSuchKey)"), "{why}");
    for wrong in ["/api/s3/objects", "/api/s3/object?bucket=first"] {
        assert_eq!(s3(&served, &format!("GET {wrong}"), LOOK, "").0, 400, "{wrong}");
    }
    let asked = served.shelf.asked();
    assert!(asked.contains(&"GET /first/b%20%26%20c".to_owned()), "{asked:?}");
    assert!(asked.iter().all(|line| line.starts_with("GET ")), "looking changes nothing: {asked:?}");
}

#[test]
fn who_may_act_uploads_and_deletes_and_nobody_else() {
    let served = Served::start(Leader::new(status(1)));
    served.shelf.put("first", "old", b"old");
    let new = "/api/s3/object?bucket=first&key=x/new+1";
    for token in [LOOK, "wrong"] {
        let code = if token == LOOK { 403 } else { 401 };
        assert_eq!(s3(&served, &format!("PUT {new}"), token, "new").0, code);
        assert_eq!(s3(&served, "DELETE /api/s3/object?bucket=first&key=old", token, "").0, code);
    }
    assert!(served.shelf.asked().is_empty(), "the gateway does not hear of it");
    let long = "x".repeat(100_000);
    assert_eq!(s3(&served, &format!("PUT {new}"), ACT, &long).0, 200, "more than an act may have");
    assert_eq!(served.shelf.get("first", "x/new 1").as_deref(), Some(long.as_bytes()));
    assert_eq!(s3(&served, "DELETE /api/s3/object?bucket=first&key=old", ACT, "").0, 200);
    assert_eq!(served.shelf.get("first", "old"), None);
    // What is too long is refused by its head: no byte of it is sent.
    let mut stream = TcpStream::connect(served.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (host, length) = (served.address, crate::s3::UPLOAD_MOST + 1);
    write!(stream, "PUT {new} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {ACT}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n").unwrap();
    let mut first = String::new();
    BufReader::new(stream).read_line(&mut first).unwrap();
    assert!(first.contains("413"), "{first}");
    let before = served.shelf.asked().len();
    assert_eq!(s3(&served, "POST /api/s3/object?bucket=first&key=old", ACT, "").0, 405);
    assert_eq!(s3(&served, "PUT /api/s3/objects?bucket=first", ACT, "").0, 405, "buckets are not made here");
    assert_eq!(served.shelf.asked().len(), before);
}

#[test]
fn without_a_key_the_page_says_how_to_give_one() {
    let shelf = Shelf::default();
    shelf.lock();
    let served = Served::on("127.0.0.1:0".parse().unwrap(), Leader::new(status(1)), shelf);
    for line in ["GET /api/s3/buckets", "GET /api/s3/objects?bucket=b", "PUT /api/s3/object?bucket=b&key=k"] {
        let (code, _, why) = s3(&served, line, ACT, "");
        assert_eq!(code, 409, "{line}");
        assert!(why.contains("--s3-key") && why.contains("`ebb key add`"), "{why}");
    }
}

#[test]
fn volumes_are_those_of_the_command_line() {
    let served = Served::start(Leader::new(status(1)));
    let (code, _, body) = s3(&served, "GET /api/volumes", LOOK, "");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, &body[0]["name"]), (200, &json!("v1")));
}
