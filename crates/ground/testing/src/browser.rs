//! A real browser for tests of pages: Chromium without a window, driven by chromedriver over W3C WebDriver. As small as
//! the tests need it: scripts do what a person would, and the browser's own log says what went wrong and what was
//! requested.

use crate::skip;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// For what a page takes some time to do: far longer than on the busiest machine.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// A browser with one tab. Ends when dropped.
pub struct Browser {
    driver: Child,
    agent: ureq::Agent,
    /// Of the session.
    url: String,
    /// Chromium's home, and what it leaves behind.
    _home: TempDir,
}

/// Debian calls it chromium, others chrome.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

impl Browser {
    /// `None`: the test is skipped, there is no browser.
    pub fn start() -> Option<Browser> {
        let driver = path_of("chromedriver");
        let Some(program) = BROWSERS.into_iter().find_map(path_of).filter(|_| driver.is_some()) else {
            skip("chromium and chromedriver are not installed");
            return None;
        };
        let home = tempfile::Builder::new().prefix("ebb-browser-").tempdir().expect("a directory");
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .env("HOME", home.path())
            .env("TMPDIR", home.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver starts");
        let port = port(&mut driver);
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(PATIENCE * 2))
            .http_status_as_error(false)
            .proxy(None)
            .build();
        let mut browser = Browser {
            driver,
            agent: ureq::Agent::new_with_config(config),
            url: format!("http://127.0.0.1:{port}"),
            _home: home,
        };
        let profile = browser._home.path().join("profile");
        let arguments = [
            "--headless=new".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--disable-gpu".to_owned(),
            "--hide-scrollbars".to_owned(),
            "--no-proxy-server".to_owned(),
            format!("--user-data-dir={}", profile.display()),
        ];
        let session = browser.post(
            "/session",
            &json!({"capabilities": {"alwaysMatch": {
                "browserName": "chrome",
                "goog:chromeOptions": {"args": arguments, "binary": program},
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }}}),
        );
        let id = session["sessionId"].as_str().expect("a session has an id");
        browser.url = format!("{}/session/{id}", browser.url);
        Some(browser)
    }

    /// One command; panics with what the driver says is wrong.
    fn post(&self, path: &str, body: &Value) -> Value {
        let url = format!("{}{path}", self.url);
        let answer = self.agent.post(&url).header("content-type", "application/json").send(body.to_string());
        let mut answer = answer.unwrap_or_else(|error| panic!("{url}: {error}"));
        let text = answer.body_mut().with_config().limit(64 << 20).read_to_string().expect("an answer");
        let value: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{url}: {error}: {text}"));
        let value = value["value"].clone();
        assert!(value["error"].is_null(), "{url}: {}: {}", value["error"], value["message"]);
        value
    }

    /// A command of the browser's own protocol.
    pub fn command(&self, name: &str, parameters: Value) -> Value {
        self.post("/goog/cdp/execute", &json!({"cmd": name, "params": parameters}))
    }

    pub fn go(&self, url: &str) {
        self.post("/url", &json!({"url": url}));
    }

    pub fn back(&self) {
        self.post("/back", &json!({}));
    }

    /// Runs the body of a function in the page, and returns what it returns; a promise is waited for.
    pub fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Runs `script` until it returns something that is neither false nor null, and returns that.
    pub fn wait(&self, what: &str, script: &str) -> Value {
        let since = Instant::now();
        loop {
            let value = self.run(script);
            if !value.is_null() && value != json!(false) {
                return value;
            }
            if since.elapsed() > PATIENCE {
                panic!("{what}: not within {PATIENCE:?}; the page says {}", self.text("body"));
            }
            std::thread::sleep(POLL);
        }
    }

    /// The text that a person sees in the first element of this selector.
    pub fn text(&self, selector: &str) -> String {
        let script = format!("return document.querySelector({selector:?})?.innerText ?? ''");
        self.run(&script).as_str().unwrap_or_default().to_owned()
    }

    /// A click where the element is: one that is hidden or covered cannot be clicked.
    pub fn click(&self, selector: &str) {
        let found = self.post("/element", &json!({"using": "css selector", "value": selector}));
        let id = found.as_object().and_then(|all| all.values().next()).and_then(Value::as_str);
        self.post(&format!("/element/{}/click", id.expect("an element has an id")), &json!({}));
    }

    /// Width and height of what is seen, and whether it is dark.
    pub fn look(&self, width: u32, height: u32, dark: bool) {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.command("Emulation.setDeviceMetricsOverride", metrics);
        let value = if dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": value}]});
        self.command("Emulation.setEmulatedMedia", features);
    }

    /// Writes a picture of the page: of what is in the window, or of the `whole`.
    pub fn screenshot(&self, file: &Path, whole: bool) {
        self.save(file, "Page.captureScreenshot", json!({"captureBeyondViewport": whole}));
    }

    /// Writes the page as a printer gets it, as PDF.
    pub fn print(&self, file: &Path) {
        self.save(file, "Page.printToPDF", json!({"printBackground": false}));
    }

    fn save(&self, file: &Path, command: &str, parameters: Value) {
        let made = self.command(command, parameters);
        let text = made["data"].as_str().expect("a picture or a document");
        let bytes = base64_simd::STANDARD.decode_to_vec(text).expect("base64");
        std::fs::write(file, bytes).expect("write it");
    }

    fn log(&self, kind: &str) -> Vec<Value> {
        let entries = self.post("/se/log", &json!({"type": kind}));
        entries.as_array().cloned().unwrap_or_default()
    }

    /// Errors and warnings of scripts, and what the browser refused, since the last call.
    pub fn errors(&self) -> Vec<String> {
        let grave = |entry: &Value| matches!(entry["level"].as_str(), Some("SEVERE" | "WARNING"));
        let all = self.log("browser");
        all.iter().filter(|entry| grave(entry)).map(|entry| entry["message"].to_string()).collect()
    }

    /// The addresses of all requests to the network since the last call; not those of the browser's own pages.
    pub fn requests(&self) -> Vec<String> {
        let address = |entry: Value| {
            let message: Value = serde_json::from_str(entry["message"].as_str()?).ok()?;
            let sent = message["message"]["method"] == "Network.requestWillBeSent";
            let url = message["message"]["params"]["request"]["url"].as_str()?;
            let inside = ["chrome:", "about:", "data:", "blob:"].iter().any(|own| url.starts_with(own));
            (sent && !inside).then(|| url.to_owned())
        };
        self.log("performance").into_iter().filter_map(address).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It ends Chromium; what cannot be ended politely goes with the driver.
        let _ = self.agent.delete(&self.url).call();
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

fn path_of(program: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).map(|path| path.join(program)).find(|path| path.is_file())
}

/// It says on which port it listens.
fn port(driver: &mut Child) -> u16 {
    let mut lines = BufReader::new(driver.stdout.take().expect("piped")).lines();
    let said = lines.by_ref().map_while(Result::ok);
    let number = |line: String| {
        let (_, rest) = line.split_once("successfully on port ")?;
        rest.trim_end_matches('.').parse().ok()
    };
    let port = said.filter_map(number).next().expect("chromedriver says its port");
    // What it says later is not read; a closed pipe would end it.
    std::thread::spawn(move || lines.for_each(drop));
    port
}
